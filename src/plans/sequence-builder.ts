import type { OrderedSequence, StreamWait } from './sequence.js';

/** The operations that an event of a pass covers. */
export interface EventRecord {
  readonly recordedOn: StreamHistory;
  readonly recordedAt: number;
  readonly recordedAfter: number;
  /** How many steps of the stream it covers; and whose operations. */
  readonly steps: number;
  readonly origin: Origin;
}

/** The only stream whose operations a step follows, or `several`. */
type Origin = StreamHistory | 'several' | undefined;

interface StreamHistory {
  /** -1 until it allocates or frees. */
  number: number;
  lastOperation: number;
  /** Operations, and waits that were kept. */
  steps: number;
  origin: Origin;
  /** By stream: how many of its steps this one follows because of a wait. */
  readonly heard: Map<StreamHistory, number>;
}

interface Wait extends EventRecord {
  readonly at: number;
  readonly stream: StreamHistory;
}

/**
 * Collects the operations of a pass. It leaves out allocations of zero bytes, and waits that add
 * nothing to the order between two streams that allocate or free: those between other streams, and
 * those for steps that the stream already follows.
 */
export class SequenceBuilder {
  readonly #operations: number[] = [];
  readonly #sizes: number[] = [];
  readonly #streams: number[] = [];
  readonly #freeStreams: number[] = [];
  readonly #waits: Wait[] = [];
  readonly #histories = new Map<unknown, StreamHistory>();
  /** Streams with a number. */
  #numbered = 0;

  get operationCount(): number {
    return this.#operations.length;
  }

  get waitCount(): number {
    return this.#waits.length;
  }

  /** A record of a stream, for `wait`; `undefined` if nothing in it can matter. */
  record(stream: unknown): EventRecord | undefined {
    const recordedOn = this.#histories.get(stream);
    if (recordedOn === undefined) return undefined;
    const { steps, origin } = recordedOn;
    return { recordedOn, recordedAt: this.#operations.length, recordedAfter: this.#waits.length, steps, origin };
  }

  /** Returns the number of the allocation. */
  allocate(bytes: number, stream: unknown): number {
    const number = this.#sizes.push(bytes) - 1;
    this.#streams.push(this.#operate(stream));
    this.#freeStreams.push(-1);
    this.#operations.push(number);
    return number;
  }

  free(number: number, stream: unknown): void {
    this.#freeStreams[number] = this.#operate(stream);
    this.#operations.push(~number);
  }

  /** Returns whether the wait was kept. */
  wait(stream: unknown, record: EventRecord): boolean {
    const { recordedOn, steps, origin } = record;
    const known = this.#histories.get(stream);
    if (known !== undefined && (known === recordedOn || known === origin || (known.heard.get(recordedOn) ?? 0) >= steps)) return false;
    const history = known ?? this.#historyOf(stream);
    history.heard.set(recordedOn, steps);
    step(history, origin);
    this.#waits.push({ ...record, at: this.#operations.length, stream: history });
    return true;
  }

  /** Streams that only wait or record get the highest numbers. */
  finish(): OrderedSequence {
    const waits = this.#numbered > 1 ? this.#usefulWaits() : [];
    return {
      operations: Int32Array.from(this.#operations),
      sizes: Float64Array.from(this.#sizes),
      streams: Int32Array.from(this.#streams),
      freeStreams: Int32Array.from(this.#freeStreams),
      ...(waits.length > 0 ? { waits } : {}),
    };
  }

  /** The waits that a later operation of their stream follows, or a useful wait of another. */
  #usefulWaits(): StreamWait[] {
    /** By stream: how many waits come before its latest record that is of use. */
    const neededBefore = new Map<StreamHistory, number>();
    const isUseful = new Uint8Array(this.#waits.length);
    for (let i = this.#waits.length - 1; i >= 0; i--) {
      const { at, stream, recordedOn, recordedAfter } = this.#waits[i] as Wait;
      if (stream.lastOperation < at && (neededBefore.get(stream) ?? 0) <= i) continue;
      isUseful[i] = 1;
      neededBefore.set(recordedOn, Math.max(neededBefore.get(recordedOn) ?? 0, recordedAfter));
    }
    const usefulBefore = new Int32Array(this.#waits.length + 1);
    for (let i = 0; i < isUseful.length; i++) usefulBefore[i + 1] = (usefulBefore[i] as number) + (isUseful[i] as number);
    return this.#waits
      .filter((_, i) => isUseful[i] === 1)
      .map(({ at, stream, recordedOn, recordedAt, recordedAfter }) => ({
        at,
        stream: this.#numberOf(stream),
        recordedOn: this.#numberOf(recordedOn),
        recordedAt,
        recordedAfter: usefulBefore[recordedAfter] as number,
      }));
  }

  /** Notes the next operation of a stream. Returns the number of the stream. */
  #operate(stream: unknown): number {
    const history = this.#histories.get(stream) ?? this.#historyOf(stream);
    history.lastOperation = this.#operations.length;
    step(history, history);
    return this.#numberOf(history);
  }

  #historyOf(stream: unknown): StreamHistory {
    const history: StreamHistory = { number: -1, lastOperation: -1, steps: 0, origin: undefined, heard: new Map() };
    this.#histories.set(stream, history);
    return history;
  }

  #numberOf(history: StreamHistory): number {
    if (history.number < 0) history.number = this.#numbered++;
    return history.number;
  }
}

function step(history: StreamHistory, origin: Origin): void {
  history.steps++;
  history.origin = history.origin === undefined || history.origin === origin ? origin : 'several';
}
