import type { OrderedSequence, StreamWait } from './sequence.js';

/** What an event of a pass covers. */
export interface EventRecord {
  readonly recordedOn: unknown;
  readonly recordedAt: number;
  readonly recordedAfter: number;
}

interface Wait extends EventRecord {
  readonly at: number;
  readonly stream: unknown;
}

/** Collects the operations of a pass. Allocations of zero bytes are left out. */
export class SequenceBuilder {
  readonly #operations: number[] = [];
  readonly #sizes: number[] = [];
  readonly #streams: number[] = [];
  readonly #freeStreams: number[] = [];
  readonly #waits: Wait[] = [];
  readonly #streamNumbers = new Map<unknown, number>();

  /** A record of a stream, for `wait`. */
  record(stream: unknown): EventRecord {
    return { recordedOn: stream, recordedAt: this.#operations.length, recordedAfter: this.#waits.length };
  }

  /** Returns the number of the allocation. */
  allocate(bytes: number, stream: unknown): number {
    const number = this.#sizes.push(bytes) - 1;
    this.#streams.push(this.#numberOf(stream));
    this.#freeStreams.push(-1);
    this.#operations.push(number);
    return number;
  }

  free(number: number, stream: unknown): void {
    this.#freeStreams[number] = this.#numberOf(stream);
    this.#operations.push(~number);
  }

  wait(stream: unknown, record: EventRecord): void {
    this.#waits.push({ at: this.#operations.length, stream, ...record });
  }

  /** Streams that only wait or record get the highest numbers. */
  finish(): OrderedSequence {
    const used = this.#streamNumbers.size;
    const waits = this.#waits.map(
      (wait): StreamWait => ({ ...wait, stream: this.#numberOf(wait.stream), recordedOn: this.#numberOf(wait.recordedOn) }),
    );
    return {
      operations: Int32Array.from(this.#operations),
      sizes: Float64Array.from(this.#sizes),
      streams: Int32Array.from(this.#streams),
      freeStreams: Int32Array.from(this.#freeStreams),
      ...(used > 1 && waits.length > 0 ? { waits } : {}),
    };
  }

  #numberOf(stream: unknown): number {
    const known = this.#streamNumbers.get(stream);
    if (known !== undefined) return known;
    this.#streamNumbers.set(stream, this.#streamNumbers.size);
    return this.#streamNumbers.size - 1;
  }
}
