import { EventKind } from '../../recording/event-kind.js';
import { doubled } from '../../recording/typed-arrays.js';

export { EventKind };

/**
 * Events of a log in columns: each column has one entry per event, in order. Fields that a format
 * does not have are 0.
 */
export interface EventColumns {
  readonly eventCount: number;
  /** What happened: an {@link EventKind}. */
  readonly kinds: Uint8Array;
  /** Indexes into {@link RunDescription.layers}. */
  readonly layerOf: Uint8Array;
  /** Indexes into {@link RunDescription.streams}. */
  readonly streamOf: Uint16Array;
  /** Indexes into {@link RunDescription.threads}. */
  readonly threadOf: Uint16Array;
  /** Indexes into {@link RunDescription.phases}. */
  readonly phaseOf: Uint16Array;
  /** Indexes into {@link RunDescription.stacks}. */
  readonly stackOf: Uint32Array;
  /** Indexes into {@link RunDescription.accounts}: in whose scope the call was made. */
  readonly accountOf: Uint16Array;
  /**
   * Nanoseconds since time 0, as in the log. If several threads wrote to one log, times may
   * decrease slightly.
   */
  readonly times: Float64Array;
  /**
   * The first number of the event, usually the pointer. For a failure, 0 or the exact size minus
   * the second number.
   */
  readonly firsts: Float64Array;
  /** The second number of the event, usually bytes. */
  readonly seconds: Float64Array;
}

/**
 * The largest number of streams, threads, phases or accounts in a log, because their indexes have
 * 16 bits.
 */
export const maximumNames = 2 ** 16;

type Columns = Omit<EventColumns, 'eventCount'>;
type Column = Columns[keyof Columns];

const initialCapacity = 4096;

/**
 * An event of a log on its way from the reader of a format to a sink. Fast readers write each event
 * into the same object instead of creating one, so a sink must keep the fields, not the object.
 */
export interface LoggedEvent {
  kind: EventKind;
  layer: number;
  stream: number;
  thread: number;
  phase: number;
  stack: number;
  account: number;
  time: number;
  first: number;
  second: number;
}

/** The object that a fast reader writes each event into. */
export function emptyEvent(): LoggedEvent {
  return { kind: EventKind.allocate, layer: 0, stream: 0, thread: 0, phase: 0, stack: 0, account: 0, time: 0, first: 0, second: 0 };
}

/**
 * Receives each event from the reader of a format: the columns themselves, or something that needs
 * fewer fields.
 */
export interface EventSink {
  /** Number of events. */
  readonly eventCount: number;
  append(event: Readonly<LoggedEvent>): void;
}

/** One event of a log that is in columns. */
export function eventAt(columns: EventColumns, index: number): LoggedEvent {
  const { kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, accountOf, times, firsts, seconds } = columns;
  return {
    kind: kinds[index] as EventKind,
    layer: layerOf[index] as number,
    stream: streamOf[index] as number,
    thread: threadOf[index] as number,
    phase: phaseOf[index] as number,
    stack: stackOf[index] as number,
    account: accountOf[index] as number,
    time: times[index] as number,
    first: firsts[index] as number,
    second: seconds[index] as number,
  };
}

/** Every event of a log that is in columns, in order. */
export function* eventsOf(columns: EventColumns): Generator<LoggedEvent> {
  for (let i = 0; i < columns.eventCount; i++) yield eventAt(columns, i);
}

/** Passes every event of a log that is in columns to a sink, in order. */
export function appendEvents(columns: EventColumns, sink: Pick<EventSink, 'append'>): void {
  for (let i = 0; i < columns.eventCount; i++) sink.append(eventAt(columns, i));
}

/** Builds {@link EventColumns}, growing them as needed. */
export class EventColumnsBuilder implements EventSink {
  #capacity = initialCapacity;
  #columns: Columns = {
    kinds: new Uint8Array(initialCapacity),
    layerOf: new Uint8Array(initialCapacity),
    streamOf: new Uint16Array(initialCapacity),
    threadOf: new Uint16Array(initialCapacity),
    phaseOf: new Uint16Array(initialCapacity),
    stackOf: new Uint32Array(initialCapacity),
    accountOf: new Uint16Array(initialCapacity),
    times: new Float64Array(initialCapacity),
    firsts: new Float64Array(initialCapacity),
    seconds: new Float64Array(initialCapacity),
  };
  #count = 0;

  get eventCount(): number {
    return this.#count;
  }

  append({ kind, layer, stream, thread, phase, stack, account, time, first, second }: Readonly<LoggedEvent>): void {
    if (this.#count === this.#capacity) this.#grow();
    const columns = this.#columns;
    const row = this.#count++;
    columns.kinds[row] = kind;
    columns.layerOf[row] = layer;
    columns.streamOf[row] = stream;
    columns.threadOf[row] = thread;
    columns.phaseOf[row] = phase;
    columns.stackOf[row] = stack;
    columns.accountOf[row] = account;
    columns.times[row] = time;
    columns.firsts[row] = first;
    columns.seconds[row] = second;
  }

  /** The events so far. */
  finish(): EventColumns {
    const eventCount = this.#count;
    return { eventCount, ...mapColumns(this.#columns, (column) => column.subarray(0, eventCount)) };
  }

  /**
   * Grows one column at a time, so that each old column can be collected before the next is made.
   */
  #grow(): void {
    this.#capacity *= 2;
    const columns: Record<string, Column> = this.#columns;
    for (const name of Object.keys(columns)) {
      columns[name] = doubled(columns[name] as Column);
    }
  }
}

/** Applies a change to each column. */
function mapColumns(columns: Columns, change: (column: Column) => Column): Columns {
  const of = <T extends Column>(column: T) => change(column) as T;
  const { kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, accountOf, times, firsts, seconds } = columns;
  return {
    kinds: of(kinds),
    layerOf: of(layerOf),
    streamOf: of(streamOf),
    threadOf: of(threadOf),
    phaseOf: of(phaseOf),
    stackOf: of(stackOf),
    accountOf: of(accountOf),
    times: of(times),
    firsts: of(firsts),
    seconds: of(seconds),
  };
}
