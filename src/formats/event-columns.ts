/** What an event of a log says. What `first` and `second` hold is beside each. */
export const EventKind = {
  /** Pointer, bytes. The time is taken after the resource allocated. */
  allocate: 1,
  /** Pointer, bytes. The time is taken before the resource is asked to free. */
  free: 2,
  /** 0, bytes that were asked for. Of more than 2^53 bytes, `first` is what `second` cannot hold. */
  failure: 3,
  /** Pointer, bytes of a block that the layer took from its upstream, to serve allocations from. */
  growth: 4,
  /** Pointer, bytes of a block that the layer gave back. */
  release: 5,
  /** The recording's number, 0: an event was recorded on the stream. */
  eventRecord: 6,
  /** The recording's number, 0: the stream waits for it. */
  eventWait: 7,
  /** Phase, 0: a named phase begins. Phases may overlap in asynchronous code. */
  phaseBegin: 8,
  /** Phase, 0. */
  phaseEnd: 9,
  /** Pointer, label: names the live allocation of the layer there. */
  label: 10,
} as const;

export type EventKind = (typeof EventKind)[keyof typeof EventKind];

/** Events of a log in columns: each has an entry for every event, in order. What a format does not have is 0. */
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
  /** Nanoseconds since time 0, as the log has them: where several threads wrote to one log, they may go back by a little. */
  readonly times: Float64Array;
  /** The first number of the event: the pointer, as a rule. Of a failure 0, or what the bytes have beyond the second. */
  readonly firsts: Float64Array;
  /** The second number of the event: bytes, as a rule. */
  readonly seconds: Float64Array;
}

/** How many streams, threads or phases a log can have: their indexes have 16 bits. */
export const maximumNames = 2 ** 16;

type Columns = Omit<EventColumns, 'eventCount'>;
type Column = Columns[keyof Columns];

const initialCapacity = 4096;

/** What a reader of a format hands each event to: the columns themselves, or what needs less of them. */
export interface EventSink {
  /** All events so far. */
  readonly eventCount: number;
  append(
    kind: EventKind,
    layer: number,
    stream: number,
    thread: number,
    phase: number,
    stack: number,
    time: number,
    first: number,
    second: number,
  ): void;
}

/** Makes {@link EventColumns}, which grow. */
export class EventColumnsBuilder implements EventSink {
  #capacity = initialCapacity;
  #columns: Columns = {
    kinds: new Uint8Array(initialCapacity),
    layerOf: new Uint8Array(initialCapacity),
    streamOf: new Uint16Array(initialCapacity),
    threadOf: new Uint16Array(initialCapacity),
    phaseOf: new Uint16Array(initialCapacity),
    stackOf: new Uint32Array(initialCapacity),
    times: new Float64Array(initialCapacity),
    firsts: new Float64Array(initialCapacity),
    seconds: new Float64Array(initialCapacity),
  };
  #count = 0;
  #taken = 0;

  /** All events so far, those that were taken too. */
  get eventCount(): number {
    return this.#taken + this.#count;
  }

  append(
    kind: EventKind,
    layer: number,
    stream: number,
    thread: number,
    phase: number,
    stack: number,
    time: number,
    first: number,
    second: number,
  ): void {
    if (this.#count === this.#capacity) this.#grow();
    const columns = this.#columns;
    const row = this.#count++;
    columns.kinds[row] = kind;
    columns.layerOf[row] = layer;
    columns.streamOf[row] = stream;
    columns.threadOf[row] = thread;
    columns.phaseOf[row] = phase;
    columns.stackOf[row] = stack;
    columns.times[row] = time;
    columns.firsts[row] = first;
    columns.seconds[row] = second;
  }

  /** Takes the events that were appended since the last call. They are good until the next `append`. */
  take(): EventColumns {
    const eventCount = this.#count;
    this.#taken += eventCount;
    this.#count = 0;
    return { eventCount, ...mapColumns(this.#columns, (column) => column.subarray(0, eventCount)) };
  }

  /** Column by column, so that each of the old ones can go before the next is made. */
  #grow(): void {
    this.#capacity *= 2;
    const columns: Record<string, Column> = this.#columns;
    for (const name of Object.keys(columns)) {
      const column = columns[name] as Column;
      const grown = new (column.constructor as new (length: number) => Column)(this.#capacity);
      grown.set(column);
      columns[name] = grown;
    }
  }
}

/** The same columns with something done to each. */
function mapColumns(columns: Columns, change: (column: Column) => Column): Columns {
  const of = <T extends Column>(column: T) => change(column) as T;
  const { kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, times, firsts, seconds } = columns;
  return {
    kinds: of(kinds),
    layerOf: of(layerOf),
    streamOf: of(streamOf),
    threadOf: of(threadOf),
    phaseOf: of(phaseOf),
    stackOf: of(stackOf),
    times: of(times),
    firsts: of(firsts),
    seconds: of(seconds),
  };
}
