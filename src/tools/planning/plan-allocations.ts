/**
 * Computes a plan: offsets for the allocations of a pass.
 *
 *  1. The lower bound: the most bytes that may be live at once.
 *  2. Placement one by one, in several orders. Of a large pass, a first plan comes from a free list,
 *     as a pool would serve it.
 *  3. Exact search below the best total, if the pass is small enough.
 *  4. While time remains, each order is improved by placing earlier the allocations that ended up
 *    on top.
 *
 * It stops as soon as the total equals the lower bound. Streams without order among each other are
 * also planned separately, each in its own range.
 */

import { invalidValue, OutOfMemoryError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, formatBytes } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertMilliseconds, assertOptions, optionNames } from '../../basics/validation.js';
import { gapOf, type Plan } from '../../plans/plan.js';
import { differenceOf, type OrderedSequence, type StreamWait } from '../../plans/sequence.js';
import { none } from '../../suballocation/blocks.js';
import { FreeSpaceIndex, unitBytes } from '../../suballocation/free-space-index.js';
import { Lifetimes } from './lifetimes.js';
import { lowerBound } from './lower-bound.js';
import { type Intervals, type Placement, Placer } from './placement.js';
import { descending } from './preference.js';
import { searchWithin } from './search-within.js';
import { sectionsOf } from './sections.js';
import { type PlanSource, sequenceOf } from './sequences.js';

/** One algorithm that was tried. */
export interface PlanAttempt {
  /** Its name, such as `size, best fit`. */
  readonly algorithm: string;
  /**
   * The total that it reached, which may be more than that of an earlier attempt; `undefined` if it
   * has no plan, because the time was over, local search improved nothing, or exact search found
   * nothing.
   */
  readonly totalBytes: number | undefined;
  readonly milliseconds: number;
}

/** Options of {@link planAllocations}. */
export interface PlanOptions {
  /**
   * Every offset is a multiple of this power of two, at least 256.
   * @defaultValue 256
   */
  readonly alignmentBytes?: number | undefined;
  /**
   * The most bytes that the plan may need. The search ends with the first such plan.
   * @defaultValue none: searches for the smallest plan
   */
  readonly maximumBytes?: number | undefined;
  /**
   * How long to search for a better plan, in milliseconds. The first plan is computed even if that
   * takes longer.
   * @defaultValue 5000
   */
  readonly timeLimitMilliseconds?: number | undefined;
  /** Called after each algorithm. */
  readonly onAttempt?: ((attempt: PlanAttempt) => void) | undefined;
}

const knownOptions = optionNames<PlanOptions>({
  alignmentBytes: true,
  maximumBytes: true,
  onAttempt: 'function',
  timeLimitMilliseconds: true,
});

/** Exact search is tried for at most this many allocations and sections. */
const mostSearched = 4000;
/** The part of the remaining time that exact search gets; local search gets the rest. */
const searchShare = 0.8;
/** From this many allocations on, the first plan comes from a free list. */
const manyAllocations = 20_000;

/**
 * Computes a fixed place for each allocation of a program, so that nothing is searched at run time.
 *
 * Two allocations share bytes only if one is freed before the other is requested, in stream order: on
 * the same stream, or on a stream that waited for an event recorded after the free. Of the formats,
 * only a recording has events (those of the program and of its resources); in an RMM log and in a
 * snapshot, streams have no order among each other. A free on another stream than the allocation's
 * gives the bytes to the freeing stream. The implicit order of the legacy default stream is ignored.
 *
 * From several logs of one program, whose sizes vary from run to run, it computes one plan, with
 * the largest size at each place. All must have the same operations, on the same streams.
 *
 * Each order that is tried takes, for each allocation, time proportional to about twice the number
 * of live ones; a million allocations with a thousand live take a few seconds.
 *
 * RMM has no counterpart. Halide calls the result an allocation plan.
 * @param source an `AllocationLog`, a `RecordedRun`, a sequence that a `PlannedMemoryResource`
 * recorded, or several of these
 * @throws OutOfMemoryError if no plan within `maximumBytes` was found.
 * @throws ArgumentTypeError, ArgumentRangeError for invalid options, or logs that do not have the
 * same operations.
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if a sequence is inconsistent.
 * @example
 * ```ts
 * const plan = planAllocations(await readAllocationLog('trace.csv.gz'));
 * console.log(plan.totalBytes, plan.lowerBoundBytes, plan.isOptimal);
 * ```
 */
export function planAllocations(source: PlanSource | readonly PlanSource[], options: PlanOptions = {}): Plan {
  assertOptions(options, knownOptions);
  const {
    alignmentBytes = ALLOCATION_ALIGNMENT,
    maximumBytes = Number.POSITIVE_INFINITY,
    timeLimitMilliseconds = 5000,
    onAttempt,
  } = options;
  assertAlignment(alignmentBytes);
  if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
  assertMilliseconds(timeLimitMilliseconds, 'timeLimitMilliseconds');
  const sequence = merged((Array.isArray(source) ? source : [source]).map(sequenceOf));
  const alignment = Math.max(alignmentBytes, ALLOCATION_ALIGNMENT);
  const lifetimes = new Lifetimes(sequence, alignment);
  const planner = new Planner(lifetimes, maximumBytes, timeLimitMilliseconds, onAttempt);
  const { offsets, totalBytes } = planner.run();
  const lowerBoundBytes = planner.lowerBoundBytes;
  if (totalBytes > maximumBytes) {
    throw new OutOfMemoryError(
      `no plan within ${formatBytes(maximumBytes)} was found: the best needs ${formatBytes(totalBytes)}, and ${formatBytes(lowerBoundBytes)} are live at once`,
      { requestedBytes: totalBytes, limitBytes: maximumBytes, path: ['planAllocations'] },
    );
  }
  const { operations, sizes, streams, freeStreams } = sequence;
  return {
    operations: Int32Array.from(operations),
    sizes: Float64Array.from(sizes),
    streams: Int32Array.from(streams),
    freeStreams: Int32Array.from(freeStreams),
    offsets,
    alignmentBytes: alignment,
    totalBytes,
    lowerBoundBytes,
    isOptimal: planner.isOptimal,
    gap: gapOf(totalBytes, lowerBoundBytes),
  };
}

/**
 * One sequence with the largest size at each place. Waits between streams count only if all
 * sequences have them.
 */
function merged(sequences: readonly OrderedSequence[]): OrderedSequence {
  const [first, ...others] = sequences;
  if (first === undefined) throw invalidValue('a plan needs at least one log');
  if (others.length === 0) return first;
  const sizes = Float64Array.from(first.sizes);
  for (const [i, other] of others.entries()) {
    const difference = differenceOf(first, other);
    if (difference !== undefined) {
      throw invalidValue(`log ${i + 1} differs from log 0 in its ${difference}`);
    }
    for (let a = 0; a < sizes.length; a++) sizes[a] = Math.max(sizes[a] as number, other.sizes[a] as number);
  }
  const { operations, streams, freeStreams, waits = [] } = first;
  const isSameOrder = others.every((other) => areEqual(waits, other.waits ?? []));
  return { operations, streams, freeStreams, sizes, ...(isSameOrder ? { waits } : {}) };
}

function areEqual(waits: readonly StreamWait[], others: readonly StreamWait[]): boolean {
  const isEqual = (a: StreamWait, b: StreamWait | undefined) =>
    a.at === b?.at &&
    a.stream === b.stream &&
    a.recordedOn === b.recordedOn &&
    a.recordedAt === b.recordedAt &&
    a.recordedAfter === b.recordedAfter;
  return waits.length === others.length && waits.every((wait, i) => isEqual(wait, others[i]));
}

class Planner {
  readonly lowerBoundBytes: number;
  isOptimal = false;
  readonly #lifetimes: Lifetimes;
  readonly #intervals: Intervals;
  readonly #maximumBytes: number;
  readonly #onAttempt: ((attempt: PlanAttempt) => void) | undefined;
  readonly #deadline: number;
  #best: Placement | undefined;
  #attemptBegan = 0;

  constructor(lifetimes: Lifetimes, maximumBytes: number, limit: number, onAttempt: ((attempt: PlanAttempt) => void) | undefined) {
    this.#lifetimes = lifetimes;
    this.#intervals = lifetimes;
    this.#maximumBytes = maximumBytes;
    this.#onAttempt = onAttempt;
    this.#deadline = performance.now() + limit;
    this.lowerBoundBytes = lowerBound(lifetimes);
  }

  run(): Placement {
    const { count, streamCount } = this.#lifetimes;
    if (count > manyAllocations) this.#try('free list', () => fromFreeList(this.#intervals));
    if (streamCount > 1) this.#try('each stream by itself', () => this.#planStreams());
    const orders = placementOrders(this.#intervals);
    const exact = streamCount > 1 && count <= manyAllocations ? this.#lifetimes : undefined;
    const placer = new Placer(this.#intervals, exact);
    const placed: { readonly name: string; readonly order: Int32Array; readonly totalBytes: number; readonly offsets: Float64Array }[] = [];
    for (const [name, order] of orders) {
      if (this.#isDone || (this.#best !== undefined && this.#isLate())) break;
      const isLate = this.#best === undefined ? () => false : () => this.#isLate();
      this.#try(`${name}, best fit`, () => {
        const totalBytes = placer.place(order, Number.POSITIVE_INFINITY, isLate);
        if (totalBytes === Number.POSITIVE_INFINITY) return undefined;
        placed.push({ name, order, totalBytes, offsets: placer.offsets });
        return { offsets: placer.offsets, totalBytes };
      });
    }
    placed.sort((a, b) => a.totalBytes - b.totalBytes);
    if (streamCount === 1 && count <= mostSearched) this.#search();
    for (const [i, { name, order, totalBytes, offsets }] of placed.entries()) {
      if (this.#isDone || this.#isLate()) break;
      const now = performance.now();
      const deadline = now + (this.#deadline - now) / (placed.length - i);
      this.#try(`${name}, improved`, () => this.#improve(placer, order, { totalBytes, offsets }, () => performance.now() > deadline));
    }
    const best = this.#best as Placement | undefined;
    this.isOptimal ||= best !== undefined && best.totalBytes === this.lowerBoundBytes;
    return best ?? { offsets: new Float64Array(0), totalBytes: 0 };
  }

  #isLate(): boolean {
    return performance.now() > this.#deadline;
  }

  get #isDone(): boolean {
    const total = this.#best?.totalBytes ?? Number.POSITIVE_INFINITY;
    return (
      this.isOptimal || total <= this.lowerBoundBytes || (total <= this.#maximumBytes && this.#maximumBytes < Number.POSITIVE_INFINITY)
    );
  }

  #try(algorithm: string, attempt: () => Placement | undefined): void {
    this.#attemptBegan = performance.now();
    const placement = attempt();
    if (placement !== undefined && placement.totalBytes < (this.#best?.totalBytes ?? Number.POSITIVE_INFINITY)) this.#best = placement;
    this.#onAttempt?.({ algorithm, totalBytes: placement?.totalBytes, milliseconds: performance.now() - this.#attemptBegan });
  }

  /** Each stream's allocations in a range of their own, the ranges side by side. */
  #planStreams(): Placement {
    const { count, streams } = this.#lifetimes;
    const offsets = new Float64Array(count);
    const ofStream = new Map<number, number[]>();
    streams.forEach((stream, a) => {
      const own = ofStream.get(stream);
      if (own === undefined) ofStream.set(stream, [a]);
      else own.push(a);
    });
    let base = 0;
    for (const [stream, own] of ofStream) {
      const intervals = this.#intervalsOf(own, stream);
      const placer = new Placer(intervals);
      let best: Placement | undefined;
      for (const [, order] of placementOrders(intervals)) {
        if (best !== undefined && this.#isLate()) break;
        const totalBytes = placer.place(order, best?.totalBytes ?? Number.POSITIVE_INFINITY, () => false);
        if (totalBytes < (best?.totalBytes ?? Number.POSITIVE_INFINITY)) best = { offsets: placer.offsets, totalBytes };
      }
      const placement = best as Placement;
      own.forEach((a, i) => {
        offsets[a] = base + (placement.offsets[i] as number);
      });
      base += placement.totalBytes;
    }
    return { offsets, totalBytes: base };
  }

  /**
   * When the allocations of a stream need their bytes, by numbers that count only its own requests and
   * ends: so many streams take no longer than one.
   */
  #intervalsOf(own: readonly number[], stream: number): Intervals {
    const starts = Int32Array.from(own, (a) => this.#lifetimes.starts[a] as number);
    const ends = Int32Array.from(own, (a) => this.#lifetimes.visibleFrom(a, stream));
    const numbers = new Map([...new Set([...starts, ...ends])].sort((a, b) => a - b).map((operation, number) => [operation, number]));
    const numberOf = (operation: number) => numbers.get(operation) as number;
    return {
      count: own.length,
      sizes: Float64Array.from(own, (a) => this.#lifetimes.sizes[a] as number),
      starts: starts.map(numberOf),
      ends: ends.map(numberOf),
      operationCount: numbers.size,
    };
  }

  /**
   * Local search over orders: places the allocations that ended up on top earlier, and keeps the
   * order if the total did not grow.
   */
  #improve(placer: Placer, first: Int32Array, start: Placement, isLate: () => boolean): Placement | undefined {
    const { sizes, count } = this.#intervals;
    const random = randomNumbers(0x2545f491);
    let order = first;
    let current = start;
    let best: Placement | undefined;
    while (!isLate() && current.totalBytes > this.lowerBoundBytes) {
      const changed = order.slice();
      const least = current.totalBytes - (current.totalBytes - this.lowerBoundBytes) * random();
      for (let i = 1; i < count; i++) {
        const a = changed[i] as number;
        if ((current.offsets[a] as number) + (sizes[a] as number) <= least) continue;
        const to = Math.floor(random() * random() * i);
        changed.copyWithin(to + 1, to, i);
        changed[to] = a;
      }
      const total = placer.place(changed, current.totalBytes * 1.0005 + 1, isLate);
      if (total === Number.POSITIVE_INFINITY) continue;
      order = changed;
      current = { offsets: placer.offsets, totalBytes: total };
      if (total < (best?.totalBytes ?? start.totalBytes)) best = current;
    }
    return best;
  }

  /**
   * Exact search: first within the maximum, then at the lower bound, then halfway between the
   * largest total known to be impossible and the best plan.
   */
  #search(): void {
    const problem = sectionsOf(this.#intervals, this.#lifetimes.durations);
    if (problem.sections > mostSearched) return;
    const step = greatestCommonDivisor(this.#intervals.sizes);
    const searchDeadline = performance.now() + (this.#deadline - performance.now()) * searchShare;
    // Nothing up to the first is possible; nothing up to the second was found.
    let impossible = this.lowerBoundBytes - step;
    let missed = impossible;
    while (!this.#isDone && performance.now() < searchDeadline) {
      const { totalBytes } = this.#best as Placement;
      if (totalBytes - missed <= step) break;
      const isTooLarge = totalBytes > this.#maximumBytes;
      const middle =
        missed < this.lowerBoundBytes ? this.lowerBoundBytes : missed + Math.max(1, Math.floor((totalBytes - missed) / 2 / step)) * step;
      const capacity = isTooLarge ? this.#maximumBytes : middle;
      const now = performance.now();
      const deadline = isTooLarge ? searchDeadline : now + (searchDeadline - now) / 2;
      this.#try(`exact search within ${formatBytes(capacity)}`, () => {
        const result = searchWithin(problem, capacity, () => performance.now() > deadline);
        if (typeof result === 'object') return placementOf(result, this.#intervals.sizes);
        if (result === 'impossible') impossible = Math.max(impossible, capacity);
        missed = Math.max(missed, capacity);
        return undefined;
      });
      if (isTooLarge && missed >= capacity) break;
    }
    this.isOptimal ||= impossible >= (this.#best as Placement).totalBytes - step;
  }
}

/** The same numbers every time, so that plans can be repeated. From 0 to 1. */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

function placementOf(offsets: Float64Array, sizes: Float64Array): Placement {
  let totalBytes = 0;
  for (let a = 0; a < offsets.length; a++) totalBytes = Math.max(totalBytes, (offsets[a] as number) + (sizes[a] as number));
  return { offsets, totalBytes };
}

/** What a pool with one large block and best fit would do. */
function fromFreeList({ count, sizes, starts, ends, operationCount }: Intervals): Placement | undefined {
  const first = 2 ** 20;
  const index = new FreeSpaceIndex();
  const lane = index.addLane();
  index.addSegment(first, 2 ** 38, lane);
  const requests = new Int32Array(operationCount + 1).fill(none);
  const frees: (number[] | undefined)[] = [];
  for (let a = 0; a < count; a++) {
    requests[starts[a] as number] = a;
    const end = ends[a] as number;
    if (end < operationCount) {
      const known = frees[end];
      if (known === undefined) frees[end] = [a];
      else known.push(a);
    }
  }
  const offsets = new Float64Array(count);
  for (let i = 0; i < operationCount; i++) {
    for (const a of frees[i] ?? []) index.freeAt((offsets[a] as number) + first, sizes[a] as number, lane);
    const a = requests[i] as number;
    if (a === none) continue;
    const units = (sizes[a] as number) / unitBytes;
    const address = units > 2 ** 22 ? none : index.allocate(units, 0, lane, none);
    if (address === none) return undefined;
    offsets[a] = address - first;
  }
  return placementOf(offsets, sizes);
}

/** Orders in which allocations are placed. Each is sorted on request. */
function* placementOrders(intervals: Intervals): Generator<readonly [string, Int32Array]> {
  const { count, sizes, starts, ends } = intervals;
  const end = Float64Array.from(ends);
  const time = end.map((value, a) => value - (starts[a] as number));
  const area = sizes.map((size, a) => size * (time[a] as number));
  const peak = peaksOf(intervals);
  const columns: Record<string, readonly Float64Array[]> = {
    'peak, end': [peak, end],
    size: [sizes, time],
    area: [area, time],
    lifetime: [time, sizes],
    'peak, lifetime': [peak, time, sizes],
    'peak, size': [peak, sizes, time],
    'peak, area': [peak, area, time],
  };
  const all = Int32Array.from({ length: count }, (_, a) => a);
  for (const [name, by] of Object.entries(columns)) yield [name, all.slice().sort(descending(by))];
}

/** By allocation: the most bytes that are live at once during its life. */
function peaksOf({ count, sizes, starts, ends, operationCount }: Intervals): Float64Array {
  const changes = new Float64Array(operationCount + 2);
  for (let a = 0; a < count; a++) {
    (changes[starts[a] as number] as number) += sizes[a] as number;
    (changes[ends[a] as number] as number) -= sizes[a] as number;
  }
  // A tree of maxima: node i covers nodes 2 i and 2 i + 1; the leaves are the operations.
  const leaves = 2 ** Math.ceil(Math.log2(operationCount + 2));
  const tree = new Float64Array(2 * leaves);
  let live = 0;
  for (let i = 0; i <= operationCount; i++) {
    live += changes[i] as number;
    tree[leaves + i] = live;
  }
  for (let node = leaves - 1; node > 0; node--) tree[node] = Math.max(tree[2 * node] as number, tree[2 * node + 1] as number);
  return Float64Array.from({ length: count }, (_, a) => {
    let most = 0;
    let low = leaves + (starts[a] as number);
    let high = leaves + (ends[a] as number);
    for (; low < high; low >>= 1, high >>= 1) {
      if ((low & 1) === 1) most = Math.max(most, tree[low++] as number);
      if ((high & 1) === 1) most = Math.max(most, tree[--high] as number);
    }
    return most;
  });
}

function greatestCommonDivisor(sizes: Float64Array): number {
  let divisor = 0;
  for (let value of sizes) while (value > 0) [divisor, value] = [value, divisor % value];
  return Math.max(divisor, 1);
}
