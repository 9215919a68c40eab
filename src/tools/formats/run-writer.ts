import { InvalidLogError } from '../../basics/errors.js';
import { EventColumnsBuilder, EventKind, type LoggedEvent, maximumNames } from './event-columns.js';
import type { ReadingBudget } from './reading-budget.js';
import { finishRun, RecordedNames, type RecordedRun } from './recorded-run.js';

const maximumLayers = 2 ** 8;
/** Of a layer, a thread or what else a log names by a number or a word. */
const longestName = 100;

/** An event of another program's log. What the log does not say is left out. */
export interface ForeignEvent extends Pick<LoggedEvent, 'kind' | 'first' | 'second'> {
  readonly layer: string;
  /** In nanoseconds. */
  readonly time: number;
  readonly stream?: string | undefined;
  readonly thread?: string | undefined;
  readonly phase?: number | undefined;
  readonly stack?: string | undefined;
}

/**
 * Puts together the run that another program's log holds: gives names their numbers, and keeps the order and the limits
 * that every run has.
 */
export class RunWriter {
  readonly names = new RecordedNames();
  readonly #source: string;
  readonly #budget: ReadingBudget;
  readonly #layers = new Map<string, number>();
  readonly #streams = new Map<string, number>();
  readonly #threads = new Map<string, number>();
  readonly #stacks = new Map<string, number>([['', 0]]);
  readonly #labels = new Map<string, number>([['', 0]]);
  readonly #events: LoggedEvent[] = [];

  constructor(source: string, budget: ReadingBudget) {
    this.#source = source;
    this.#budget = budget;
  }

  get eventCount(): number {
    return this.#events.length;
  }

  add({ layer, stream = '0x0', thread = '0', stack = '', phase = 0, ...event }: ForeignEvent): void {
    this.#budget.keepOne();
    this.#events.push({
      ...event,
      phase,
      account: 0,
      layer: this.#numberOf(this.#layers, layer, maximumLayers, 'layers', (name) => this.names.layers.push({ name, upstream: undefined })),
      stream: this.#numberOf(this.#streams, stream, maximumNames, 'streams', (name) => this.names.streams.push(name)),
      thread: this.#numberOf(this.#threads, thread, maximumNames, 'threads', (name) => this.names.threads.push(name)),
      stack: this.#numberOf(this.#stacks, stack, 2 ** 32, 'stacks', (text) => this.names.stacks.push(text)),
    });
  }

  /** Names an allocation. */
  label(layer: string, address: number, text: string, time: number): void {
    const second = this.#numberOf(this.#labels, text, 2 ** 32, 'labels', (label) => this.names.labels.push(label));
    this.add({ kind: EventKind.label, layer, first: address, second, time });
  }

  /**
   * The run, whose time 0 is that of its first event.
   * @param startsAt milliseconds since 1970 at time 0 of the log, if it says so
   */
  finish(startsAt?: number): RecordedRun {
    const { names } = this;
    if (names.streams.length === 0) names.streams.push('0x0');
    if (names.threads.length === 0) names.threads.push('0');
    // Events of one time stay in the order of the log.
    const events = this.#events.sort((a, b) => a.time - b.time);
    const first = events[0]?.time ?? 0;
    const builder = new EventColumnsBuilder();
    for (const event of events) builder.append({ ...event, time: event.time - first });
    const startedAt = startsAt === undefined ? undefined : Math.floor(startsAt + first / 1e6);
    const origin = { source: this.#source, startedAt, utcOffsetMinutes: 0, damage: undefined, skippedRecordCount: 0, csv: undefined };
    return finishRun(origin, names, builder);
  }

  #numberOf(numbers: Map<string, number>, name: string, most: number, what: string, push: (name: string) => number): number {
    let number = numbers.get(name);
    if (number === undefined) {
      number = push(name) - 1;
      if (number >= most) throw new InvalidLogError(this.#source, undefined, `names more than ${most} ${what}`);
      numbers.set(name, number);
    }
    return number;
  }
}

/** A number or a short text, as text; anything else, which may be lists in lists, is `other`. */
export function nameOf(value: unknown, other: string): string {
  return typeof value === 'string' || typeof value === 'number' ? String(value).slice(0, longestName) : other;
}

/** A number of bytes or an address, from a number or its text, or `undefined` for anything else. */
export function wholeNumber(value: unknown): number | undefined {
  const number = typeof value === 'string' && /^(?:0x[0-9a-f]{1,16}|\d{1,20})$/i.test(value) ? Number(value) : value;
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : undefined;
}
