import { CsvRows, defaultNullPointer, nanosecondsPerDay, RowText, rowActions } from '../../../files/csv-rows.js';
import { EventKind, type LoggedEvent } from '../event-columns.js';
import type { DescribedRun, WrittenEvents } from '../recorded-run.js';

const fullBytes = 64 * 1024;

/**
 * The bytes of an RMM log, in pieces, with the allocations, failures and frees of one layer of a
 * run. A run that was read from an RMM log gives the same log again, byte by byte.
 */
export function* rmmCsv(
  run: DescribedRun,
  events: Iterable<Readonly<LoggedEvent>>,
  layer: number,
  written: WrittenEvents = { count: 0 },
): Generator<Uint8Array> {
  const { timeSeparator, nullPointer } = run.csv ?? { timeSeparator: '.', nullPointer: defaultNullPointer };
  const actions = rowActions(nullPointer);
  const threads = run.threads.map((thread) => new RowText(`${thread},`));
  const streams = run.streams.map((stream) => new RowText(`,${stream}\n`));
  const clock = new TimeOfDay(run, timeSeparator);
  const rows = new CsvRows(2 * fullBytes);
  let count = 0;
  for (const event of events) {
    count++;
    const { kind, first, second } = event;
    if (kind > EventKind.failure || event.layer !== layer) continue;
    const stream = streams[event.stream] as RowText;
    const microseconds = clock.enter(event.time);
    rows.addText(threads[event.thread] as RowText);
    if (kind === EventKind.allocate) {
      rows.add(clock.prefix, microseconds, first === 0 ? actions.allocateNothing : actions.allocate, first, second, stream);
    } else if (kind === EventKind.free) {
      rows.add(clock.prefix, microseconds, first === 0 ? actions.freeNothing : actions.free, first, second, stream);
    } else if (second <= Number.MAX_SAFE_INTEGER) {
      rows.add(clock.prefix, microseconds, actions.allocateFailure, 0, second, stream);
    } else {
      // The size exceeds what a number holds: all but its first digit go into the text with the
      // stream.
      const digits = String(BigInt(second) + BigInt(first));
      const rest = new RowText(`${digits.slice(1)},${run.streams[event.stream]}\n`);
      rows.add(clock.prefix, microseconds, actions.allocateFailure, 0, Number(digits[0]), rest);
    }
    if (rows.length < fullBytes) continue;
    written.count = count;
    yield rows.take();
  }
  yield rows.take();
}

/** Formats times as the local times of day in the original log. */
class TimeOfDay {
  /** The second entered last, as a prefix up to its microseconds. */
  prefix = new RowText('');
  /** Nanoseconds from a local midnight to time 0. */
  readonly #start: number;
  readonly #separator: string;
  #second = -1;

  constructor({ startedAt = 0, utcOffsetMinutes }: DescribedRun, separator: string) {
    this.#start = modulo(startedAt + utcOffsetMinutes * 60_000, nanosecondsPerDay / 1e6) * 1e6;
    this.#separator = separator;
  }

  /**
   * Makes the prefix for the second that contains a time. Returns the microseconds since its start.
   */
  enter(time: number): number {
    const sinceMidnight = modulo(this.#start + time, nanosecondsPerDay);
    const second = Math.floor(sinceMidnight / 1e9);
    if (second !== this.#second) {
      this.#second = second;
      this.prefix = new RowText(`${new Date(second * 1000).toISOString().slice(11, 19)}${this.#separator}`);
    }
    return Math.floor((sinceMidnight - second * 1e9) / 1000);
  }
}

function modulo(value: number, divisor: number): number {
  return ((value % divisor) + divisor) % divisor;
}
