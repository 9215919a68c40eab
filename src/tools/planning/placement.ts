/**
 * Places allocations one by one, in a given order, each into the smallest hole that fits (best
 * fit), or on top.
 *
 * Data structure. Time is cut into blocks of operations. Each block lists what is placed and live
 * in it, by offset. An allocation that lives in one block finds its holes with one walk through
 * that list; one that lives in several looks at all of them, each neighbour once.
 *
 *     block 0   [ a ][ b ]      [ d ]
 *     block 1   [ a ]     [ c ] [ d ]     an allocation that lives in both: holes of the union
 *
 * Cost: for each allocation the length of the lists that it looks at, which is about twice the
 * number of live allocations for most.
 */
import { ALLOCATION_ALIGNMENT } from '../../basics/units.js';
import type { Lifetimes } from './lifetimes.js';

/** When each allocation needs its bytes, as an interval of operations. */
export interface Intervals {
  readonly count: number;
  readonly sizes: Float64Array;
  readonly starts: Int32Array;
  readonly ends: Int32Array;
  /** One more than the last operation. */
  readonly operationCount: number;
}

export interface Placement {
  readonly offsets: Float64Array;
  readonly totalBytes: number;
}

/** Lists of about this many allocations take the least time. */
const operationsPerBlock = 4096;
/** Offsets of up to 2^40 bytes, and this many neighbours, fit into one number. */
const mostFound = 2 ** 21;
const highestKey = 2 ** 40;

export class Placer {
  readonly #intervals: Intervals;
  readonly #exact: Lifetimes | undefined;
  readonly #blocks: Int32Array[];
  readonly #counts: Int32Array;
  readonly #blockOperations: number;
  /** By allocation: the last query that met it. */
  readonly #met: Int32Array;
  #query = 0;
  #found = new Int32Array(1024);
  #keys = new Float64Array(1024);
  #sorted = new Int32Array(1024);
  offsets: Float64Array;

  /** @param exact if given, intervals that meet may still share bytes, by its `overlaps` */
  constructor(intervals: Intervals, exact?: Lifetimes) {
    this.#intervals = intervals;
    this.#exact = exact;
    this.#blockOperations = Math.max(1, Math.min(operationsPerBlock, Math.ceil(intervals.operationCount / 4)));
    const blocks = Math.ceil((intervals.operationCount + 1) / this.#blockOperations);
    this.#blocks = Array.from({ length: blocks }, () => new Int32Array(16));
    this.#counts = new Int32Array(blocks);
    this.#met = new Int32Array(intervals.count);
    this.offsets = new Float64Array(intervals.count);
  }

  /**
   * Places all allocations in an order. Returns the total, or infinity if it reaches `giveUpBytes`
   * or if `isLate` says so.
   */
  place(order: Int32Array, giveUpBytes: number, isLate: () => boolean): number {
    this.#counts.fill(0);
    this.offsets = new Float64Array(this.#intervals.count);
    let total = 0;
    for (let i = 0; i < order.length; i++) {
      if ((i & 1023) === 1023 && isLate()) return Number.POSITIVE_INFINITY;
      const a = order[i] as number;
      const offset = this.#findHole(a);
      this.offsets[a] = offset;
      const end = offset + (this.#intervals.sizes[a] as number);
      if (end > total) total = end;
      if (total >= giveUpBytes) return Number.POSITIVE_INFINITY;
      this.#add(a, offset);
    }
    return total;
  }

  #findHole(a: number): number {
    const { sizes, starts, ends } = this.#intervals;
    const { offsets } = this;
    const bytes = sizes[a] as number;
    const start = starts[a] as number;
    const end = ends[a] as number;
    const first = Math.floor(start / this.#blockOperations);
    const last = Math.floor((Math.max(end, start + 1) - 1) / this.#blockOperations);
    let list = this.#blocks[first] as Int32Array;
    let count = this.#counts[first] as number;
    if (last > first) {
      count = this.#collect(first, last, start, end);
      list = this.#sorted;
    }
    let top = 0;
    let best = -1;
    let bestBytes = Number.POSITIVE_INFINITY;
    for (let i = 0; i < count; i++) {
      const b = list[i] as number;
      if ((starts[b] as number) >= end || (ends[b] as number) <= start) continue;
      if (this.#exact !== undefined && !this.#exact.overlaps(a, b)) continue;
      const offset = offsets[b] as number;
      const hole = offset - top;
      if (hole >= bytes && hole < bestBytes) {
        best = top;
        bestBytes = hole;
      }
      const next = offset + (sizes[b] as number);
      if (next > top) top = next;
    }
    return best < 0 ? top : best;
  }

  /** Merges the lists of several blocks into `#found`, by offset. Returns how many there are. */
  #collect(first: number, last: number, start: number, end: number): number {
    const { starts, ends } = this.#intervals;
    const query = ++this.#query;
    let count = 0;
    for (let block = first; block <= last; block++) {
      const list = this.#blocks[block] as Int32Array;
      const length = this.#counts[block] as number;
      if (count + length > this.#found.length) {
        const larger = new Int32Array(2 * (count + length));
        larger.set(this.#found);
        this.#found = larger;
      }
      for (let i = 0; i < length; i++) {
        const b = list[i] as number;
        if (this.#met[b] === query || (starts[b] as number) >= end || (ends[b] as number) <= start) continue;
        this.#met[b] = query;
        this.#found[count++] = b;
      }
    }
    const { offsets } = this;
    // Sorting numbers is several times faster than sorting with a comparison.
    const found = this.#found;
    if (this.#keys.length < count) this.#keys = new Float64Array(2 * count);
    const keys = this.#keys.subarray(0, count);
    let highest = 0;
    for (let i = 0; i < count; i++) {
      const offset = offsets[found[i] as number] as number;
      if (offset > highest) highest = offset;
      keys[i] = (offset / ALLOCATION_ALIGNMENT) * mostFound + i;
    }
    if (highest >= highestKey || count > mostFound) {
      this.#sorted = Int32Array.from(found.slice(0, count)).sort((a, b) => (offsets[a] as number) - (offsets[b] as number));
      return count;
    }
    keys.sort();
    if (this.#sorted.length < count) this.#sorted = new Int32Array(2 * count);
    for (let i = 0; i < count; i++) {
      const key = keys[i] as number;
      this.#sorted[i] = found[key - Math.floor(key / mostFound) * mostFound] as number;
    }
    return count;
  }

  #add(a: number, offset: number): void {
    const { starts, ends } = this.#intervals;
    const start = starts[a] as number;
    const first = Math.floor(start / this.#blockOperations);
    const last = Math.floor((Math.max(ends[a] as number, start + 1) - 1) / this.#blockOperations);
    for (let block = first; block <= last; block++) {
      let list = this.#blocks[block] as Int32Array;
      const count = this.#counts[block] as number;
      if (count === list.length) {
        const larger = new Int32Array(2 * count);
        larger.set(list);
        this.#blocks[block] = larger;
        list = larger;
      }
      let low = 0;
      let high = count;
      while (low < high) {
        const middle = (low + high) >> 1;
        if ((this.offsets[list[middle] as number] as number) <= offset) low = middle + 1;
        else high = middle;
      }
      list.copyWithin(low + 1, low, count);
      list[low] = a;
      this.#counts[block] = count + 1;
    }
  }
}
