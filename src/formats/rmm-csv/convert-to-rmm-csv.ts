import type { RecordedRun } from '../recorded-run.js';
import { RecordKind } from '../recording/recording-format.js';
import type { WrittenEvents } from '../written-events.js';
import { logHeader } from './log-writer.js';

const nanosecondsPerDay = 86_400e9;
const pieceCharacters = 64 * 1024;

/**
 * The text of an RMM log that holds the allocations, failures and frees of a layer of a run, in pieces. A run that was read from an RMM log gives
 * that log again, byte by byte.
 */
export function* rmmCsv(run: RecordedRun, layer: number, written: WrittenEvents = { count: 0 }): Generator<string> {
  const { kinds, layerOf, streamOf, threadOf, times, firsts, seconds, threads, streams } = run;
  const { timeSeparator, nullPointer } = run.csv ?? { timeSeparator: '.', nullPointer: '(nil)' };
  const timeOfDay = new TimeOfDay(run, timeSeparator);
  let text = `${logHeader}\n`;
  for (let i = 0; i < run.eventCount; i++) {
    const kind = kinds[i] as number;
    if (kind > RecordKind.failure || layerOf[i] !== layer) continue;
    const first = firsts[i] as number;
    const second = seconds[i] as number;
    const isFailure = kind === RecordKind.failure;
    const action = kind === RecordKind.allocate ? 'allocate' : isFailure ? 'allocate failure' : 'free';
    const pointer = first === 0 || isFailure ? nullPointer : `0x${first.toString(16)}`;
    const bytes = isFailure && second > Number.MAX_SAFE_INTEGER ? BigInt(second) + BigInt(first) : second;
    const thread = threads[threadOf[i] as number] as string;
    const stream = streams[streamOf[i] as number] as string;
    text += `${thread},${timeOfDay.format(times[i] as number)},${action},${pointer},${bytes},${stream}\n`;
    if (text.length > pieceCharacters) {
      written.count = i;
      yield text;
      text = '';
    }
  }
  yield text;
}

/** Writes times as the local times of day that they were. */
class TimeOfDay {
  /** Nanoseconds from a local midnight to time 0. */
  readonly #start: number;
  readonly #separator: string;
  #second = -1;
  #prefix = '';

  constructor({ startedAt = 0, utcOffsetMinutes }: RecordedRun, separator: string) {
    this.#start = modulo(startedAt + utcOffsetMinutes * 60_000, nanosecondsPerDay / 1e6) * 1e6;
    this.#separator = separator;
  }

  format(time: number): string {
    const sinceMidnight = modulo(this.#start + time, nanosecondsPerDay);
    const second = Math.floor(sinceMidnight / 1e9);
    if (second !== this.#second) {
      this.#second = second;
      this.#prefix = `${new Date(second * 1000).toISOString().slice(11, 19)}${this.#separator}`;
    }
    return `${this.#prefix}${String(Math.floor((sinceMidnight - second * 1e9) / 1000)).padStart(6, '0')}`;
  }
}

function modulo(value: number, divisor: number): number {
  return ((value % divisor) + divisor) % divisor;
}
