/**
 * When each allocation of a pass needs its bytes, according to stream order.
 *
 * The operations of a pass have numbers from 0. Allocation `a` has its bytes from `start[a]`, its
 * request, on. Another allocation `b` may have them if `a` is freed before `b` is requested, in
 * stream order: if the free is on `b`'s stream, or if `b`'s stream waited, directly or through other
 * streams, for an event that was recorded on the freeing stream after the free. A free on another
 * stream than the allocation's gives the bytes to the freeing stream only.
 *
 *     stream 0   alloc a   free a   record e          alloc c      c may have a's bytes
 *     stream 1                                wait e  alloc b      b may, because of the wait
 *     stream 2                                        alloc d      d may not: nothing orders it after the free
 *
 * The clock of a stream says, for each other stream, up to which operation it is ordered after that
 * stream. A clock changes only at a wait, so its history is short.
 */
import type { OrderedSequence, StreamWait } from '../../plans/sequence.js';

/** What a stream was ordered after from an operation on. */
interface Clock {
  readonly from: number;
  /** The number of the wait that made it so. */
  readonly wait: number;
  /** By stream: operations before this number. */
  readonly seen: readonly number[];
}

export class Lifetimes {
  /** The number of allocations. */
  readonly count: number;
  readonly operationCount: number;
  /** Streams with higher numbers neither allocate nor free, but may pass on an order between others. */
  readonly streamCount: number;
  /** By allocation: its bytes, rounded up to the alignment. */
  readonly sizes: Float64Array;
  readonly streams: Int32Array;
  /** -1 for an allocation that is never freed. */
  readonly freeStreams: Int32Array;
  /** By allocation: the operation that requests it. */
  readonly starts: Int32Array;
  /** By allocation: the operation that frees it, or `operationCount`. */
  readonly frees: Int32Array;
  /**
   * By allocation: the operation from which on every stream that allocates may have its bytes, or
   * `operationCount`. The same as `frees` if there is one stream.
   */
  readonly ends: Int32Array;
  /**
   * By allocation: how long it lives, in the unit of the sequence's times, or otherwise in
   * operations.
   */
  readonly durations: Float64Array;
  readonly #clocks: Clock[][];

  constructor(sequence: OrderedSequence, alignmentBytes: number) {
    const { operations, sizes } = sequence;
    this.count = sizes.length;
    this.operationCount = operations.length;
    this.sizes = Float64Array.from(sizes, (bytes) => Math.ceil(bytes / alignmentBytes) * alignmentBytes);
    this.streams = Int32Array.from(sequence.streams);
    this.freeStreams = Int32Array.from(sequence.freeStreams);
    this.starts = new Int32Array(this.count);
    this.frees = new Int32Array(this.count).fill(operations.length);
    let streamCount = 1;
    const timeOf = (operation: number) => sequence.times?.[Math.min(operation, operations.length - 1)] ?? operation;
    for (let i = 0; i < operations.length; i++) {
      const operation = operations[i] as number;
      if (operation >= 0) this.starts[operation] = i;
      else this.frees[~operation] = i;
    }
    this.durations = Float64Array.from(this.frees, (free, a) => timeOf(free) - timeOf(this.starts[a] as number));
    for (let a = 0; a < this.count; a++) {
      streamCount = Math.max(streamCount, (this.streams[a] as number) + 1, (this.freeStreams[a] as number) + 1);
    }
    this.streamCount = streamCount;
    this.#clocks = clocksOf(sequence.waits ?? [], streamCount);
    const allocating = [...new Set(this.streams)];
    this.ends = streamCount === 1 ? this.frees : Int32Array.from(this.frees, (_, a) => this.#end(a, allocating));
  }

  /** The first operation of a stream at which it may have the bytes of an allocation. */
  visibleFrom(a: number, stream: number): number {
    const freed = this.frees[a] as number;
    const by = this.freeStreams[a] as number;
    if (by === stream || by < 0) return freed;
    const clocks = this.#clocks[stream] as Clock[];
    return clocks[firstIndex(clocks, ({ seen }) => (seen[by] as number) > freed)]?.from ?? this.operationCount;
  }

  /** Whether two allocations must not share bytes. */
  overlaps(a: number, b: number): boolean {
    const isFirst = (this.starts[a] as number) < (this.starts[b] as number);
    const first = isFirst ? a : b;
    const second = isFirst ? b : a;
    return (this.starts[second] as number) < this.visibleFrom(first, this.streams[second] as number);
  }

  /** How many operations of each other stream a stream has seen before its operation with a number. */
  seenBefore(stream: number, operation: number): readonly number[] | undefined {
    const clocks = this.#clocks[stream] as Clock[];
    return clocks[firstIndex(clocks, ({ from }) => from >= operation) - 1]?.seen;
  }

  /** The first operation of a stream that follows one that has not run: `cut[s]` operations of stream `s` have. */
  firstBeyond(stream: number, cut: readonly number[]): number {
    const clocks = this.#clocks[stream] as Clock[];
    const isBeyond = ({ seen }: Clock) => seen.some((value, other) => other !== stream && value > (cut[other] as number));
    return clocks[firstIndex(clocks, isBeyond)]?.from ?? this.operationCount;
  }

  #end(a: number, streams: readonly number[]): number {
    let end = this.frees[a] as number;
    for (const stream of streams) {
      if (end === this.operationCount) break;
      end = Math.max(end, this.visibleFrom(a, stream));
    }
    return end;
  }
}

function clocksOf(waits: readonly StreamWait[], usedStreams: number): Clock[][] {
  const streamCount = waits.reduce((count, { stream, recordedOn }) => Math.max(count, stream + 1, recordedOn + 1), usedStreams);
  const clocks: Clock[][] = Array.from({ length: streamCount }, () => []);
  /** What a stream was ordered after, by a number of operations and one of waits. */
  const seenAt = (stream: number, operations: number, waitsBefore: number) => {
    const own = clocks[stream] as Clock[];
    return own[firstIndex(own, ({ from, wait }) => from > operations || (from === operations && wait >= waitsBefore)) - 1]?.seen;
  };
  for (const [wait, { at, stream, recordedOn, recordedAt, recordedAfter = 0 }] of waits.entries()) {
    if (stream === recordedOn) continue;
    const own = seenAt(stream, at, wait);
    const other = seenAt(recordedOn, recordedAt, recordedAfter);
    const seen = Array.from({ length: streamCount }, (_, each) => Math.max(own?.[each] ?? 0, other?.[each] ?? 0));
    seen[recordedOn] = Math.max(seen[recordedOn] as number, recordedAt);
    if (own === undefined || seen.some((value, each) => value > (own[each] as number)))
      (clocks[stream] as Clock[]).push({ from: at, wait, seen });
  }
  return clocks;
}

/** The first index at which `isReached` holds, or the length; from there on it holds. */
function firstIndex(clocks: readonly Clock[], isReached: (clock: Clock) => boolean): number {
  let low = 0;
  let high = clocks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isReached(clocks[middle] as Clock)) high = middle;
    else low = middle + 1;
  }
  return low;
}
