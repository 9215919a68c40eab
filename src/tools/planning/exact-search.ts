/**
 * Finds offsets below a given capacity, or proves that there are none.
 *
 * The idea is that of Google's MiniMalloc (Moffitt, ASPLOS 2023). Any solution can be pushed down: as
 * long as an allocation fits anywhere below its place, it moves there. At the end each allocation
 * rests on another or on the bottom, and fits nowhere below. Such a solution is built by placing
 * allocations in the order of their offsets, those with equal offsets in the order of preference, and
 * each on its floor: the top of what it overlaps and is placed. The search tries the candidates for the
 * next place one after another, and goes back if nothing fits.
 *
 * Time is cut into sections: at the requests that follow a free. What is live in one section lies
 * side by side.
 *
 *     section    0   1   2   3
 *     c              [=======]      floors: an allocation in section 2 begins at or above c's top
 *     a          [=======]
 *     b                  [===]
 *
 * These rules shorten the search:
 *  - An allocation whose floor comes before the last place, in this order, can only be placed once
 *    another one is under it. So it begins at or above the lowest top of those that it overlaps and that
 *    are not placed. If there are none, or if it would fit entirely below the last offset, no pushed-down
 *    solution is left.
 *  - If a section exceeds the capacity, packed in the order of these least offsets, no packing fits.
 *  - No candidate lies at or above the end of another allocation that is put on its floor.
 *  - Of equal allocations at one offset only the first is tried.
 *  - Parts that do not overlap in time are solved separately. Each part is ranked by preference
 *    again, because `left` depends on the placed allocations.
 *
 * Cost: exponential at worst; a step is linear in the allocations and sections of its part, and
 * quadratic in the allocations that need another one under them. A part is sorted once.
 */
import { type Preference, Ranking } from './preference.js';
import type { SectionProblem } from './sections.js';

/** The result of one run. */
export type SearchResult = 'found' | 'impossible' | 'gave-up';

/** How many steps pass between two readings of the clock. */
const stepsPerLook = 64;
/** Instead of the allocation placed last, if any may be placed at its offset. */
const none = -1;

export class ExactSearch {
  /** Where each allocation is placed; the solution if one was found. */
  readonly offsets: Float64Array;
  readonly #count: number;
  readonly #sections: number;
  readonly #capacity: number;
  readonly #sizes: Float64Array;
  readonly #lowers: Int32Array;
  readonly #uppers: Int32Array;
  /** The top of what an allocation overlaps and is placed. */
  readonly #floors: Float64Array;
  /** The least offset that an allocation can still get. */
  readonly #leasts: Float64Array;
  readonly #ranking: Ranking;
  /** The place of an allocation in the order of preference of its part. */
  readonly #ranks: Int32Array;
  /** By section. */
  readonly #tops: Float64Array;
  readonly #crossings: Int32Array;
  readonly #partOf: Int32Array;
  /** Lists of unplaced allocations, by least offset, one above the other. */
  #lists: Int32Array;
  #listTop = 0;
  /** Floors that were raised, to be restored. */
  #trail = new Int32Array(1024);
  #trailFloors = new Float64Array(1024);
  #trailTop = 0;
  #stepsLeft = 0;
  #isLate: () => boolean = () => false;
  #hasGivenUp = false;

  constructor(problem: SectionProblem, capacity: number, preference: Preference) {
    const { count, sections, sizes, lowers, uppers } = problem;
    this.#count = count;
    this.#sections = sections;
    this.#capacity = capacity;
    this.#sizes = sizes;
    this.#lowers = lowers;
    this.#uppers = uppers;
    this.#floors = new Float64Array(count);
    this.#leasts = new Float64Array(count);
    this.#ranking = new Ranking(problem, preference);
    this.#ranks = this.#ranking.ranks;
    this.#tops = new Float64Array(sections);
    this.#crossings = new Int32Array(sections + 2);
    this.#partOf = new Int32Array(sections + 1);
    this.#lists = new Int32Array(4 * count + 1024);
    this.offsets = new Float64Array(count);
  }

  /** Searches for at most a number of steps. If it finds a solution, `offsets` has it. */
  run(steps: number, isLate: () => boolean): SearchResult {
    this.#stepsLeft = steps;
    this.#isLate = isLate;
    this.#hasGivenUp = false;
    this.#floors.fill(0);
    this.#trailTop = 0;
    for (let i = 0; i < this.#count; i++) this.#lists[i] = i;
    this.#listTop = this.#count;
    this.#ranking.rank(this.#lists.slice(0, this.#count));
    if (this.#solveParts(0, this.#count, 0, none)) return 'found';
    return this.#hasGivenUp ? 'gave-up' : 'impossible';
  }

  /** Whether an allocation can be placed on its floor after another one was placed at an offset. */
  #isPlaceable(a: number, last: number, lastPlaced: number): boolean {
    const floor = this.#floors[a] as number;
    if (floor !== last || lastPlaced === none) return floor >= last;
    return (this.#ranks[a] as number) > (this.#ranks[lastPlaced] as number);
  }

  /** Computes the least offsets of a list, and sorts it by them. Whether all can still be placed. */
  #mayFit(from: number, to: number, last: number, lastPlaced: number): boolean {
    const lists = this.#lists;
    const leasts = this.#leasts;
    for (let i = from; i < to; i++) {
      const a = lists[i] as number;
      const floor = this.#floors[a] as number;
      const isPlaceable = this.#isPlaceable(a, last, lastPlaced);
      if (!isPlaceable && floor + (this.#sizes[a] as number) <= last) return false;
      const least = isPlaceable ? floor : this.#lowestTopUnder(a, from, to, last);
      if (least + (this.#sizes[a] as number) > this.#capacity) return false;
      leasts[a] = least;
      let at = i;
      while (at > from) {
        const before = lists[at - 1] as number;
        const other = leasts[before] as number;
        if (other < least || (other === least && (this.#ranks[before] as number) < (this.#ranks[a] as number))) break;
        lists[at--] = before;
      }
      lists[at] = a;
    }
    return this.#packs(from, to);
  }

  /** The lowest top that an unplaced allocation can have that overlaps another one. */
  #lowestTopUnder(a: number, from: number, to: number, last: number): number {
    const lower = this.#lowers[a] as number;
    const upper = this.#uppers[a] as number;
    let lowest = Number.POSITIVE_INFINITY;
    for (let i = from; i < to; i++) {
      const b = this.#lists[i] as number;
      if (b === a || (this.#lowers[b] as number) >= upper || lower >= (this.#uppers[b] as number)) continue;
      const top = Math.max(this.#floors[b] as number, last) + (this.#sizes[b] as number);
      if (top < lowest) lowest = top;
    }
    return lowest;
  }

  /** Whether each section fits if it is packed in the order of least offsets. */
  #packs(from: number, to: number): boolean {
    const { first, end } = this.#span(from, to);
    const tops = this.#tops;
    const lists = this.#lists;
    tops.fill(0, first, end);
    for (let i = from; i < to; i++) {
      const a = lists[i] as number;
      const least = this.#leasts[a] as number;
      const bytes = this.#sizes[a] as number;
      const upper = this.#uppers[a] as number;
      for (let section = this.#lowers[a] as number; section < upper; section++) {
        let top = tops[section] as number;
        if (top < least) top = least;
        top += bytes;
        if (top > this.#capacity) return false;
        tops[section] = top;
      }
    }
    return true;
  }

  /** The first section of a list, and the one after its last. */
  #span(from: number, to: number): { first: number; end: number } {
    let first = this.#sections;
    let end = 0;
    for (let i = from; i < to; i++) {
      const a = this.#lists[i] as number;
      if ((this.#lowers[a] as number) < first) first = this.#lowers[a] as number;
      if ((this.#uppers[a] as number) > end) end = this.#uppers[a] as number;
    }
    return { first, end };
  }

  /** Solves a list part by part, the smallest first; parts have no section in common. */
  #solveParts(from: number, to: number, last: number, lastPlaced: number): boolean {
    if (from === to) return true;
    if (!this.#mayFit(from, to, last, lastPlaced)) return false;
    const { first, end } = this.#span(from, to);
    const crossings = this.#crossings;
    crossings.fill(0, first, end + 1);
    for (let i = from; i < to; i++) {
      const a = this.#lists[i] as number;
      (crossings[(this.#lowers[a] as number) + 1] as number)++;
      (crossings[this.#uppers[a] as number] as number)--;
    }
    let part = 0;
    let crossing = 0;
    this.#partOf[first] = 0;
    for (let section = first + 1; section < end; section++) {
      crossing += crossings[section] as number;
      if (crossing === 0) part++;
      this.#partOf[section] = part;
    }
    if (part === 0) return this.#solve(from, to, last, lastPlaced);
    const partOf = (a: number) => this.#partOf[this.#lowers[a] as number] as number;
    const begins = new Int32Array(part + 2);
    for (let i = from; i < to; i++) (begins[partOf(this.#lists[i] as number) + 1] as number)++;
    const parts: number[] = [];
    for (let each = 0; each <= part; each++) {
      if ((begins[each + 1] as number) > 0) parts.push(each);
      (begins[each + 1] as number) += begins[each] as number;
    }
    const base = this.#listTop;
    this.#reserve(base + to - from);
    const next = begins.slice();
    for (let i = from; i < to; i++) {
      const a = this.#lists[i] as number;
      const at = partOf(a);
      this.#lists[base + (next[at] as number)] = a;
      (next[at] as number)++;
    }
    this.#listTop = base + to - from;
    const lengthOf = (each: number) => (begins[each + 1] as number) - (begins[each] as number);
    parts.sort((a, b) => lengthOf(a) - lengthOf(b));
    const isSolved = parts.every((each) => this.#solveRanked(base + (begins[each] as number), base + (begins[each + 1] as number), last));
    this.#listTop = base;
    return isSolved;
  }

  /** Ranks a connected list by preference, and solves it. */
  #solveRanked(from: number, to: number, last: number): boolean {
    const part = this.#lists.slice(from, to);
    const ranks = part.map((a) => this.#ranks[a] as number);
    this.#ranking.rank(part);
    const isSolved = this.#mayFit(from, to, last, none) && this.#solve(from, to, last, none);
    // If a later part fails, the search goes on with the previous ranks.
    for (let i = 0; i < part.length; i++) this.#ranks[part[i] as number] = ranks[i] as number;
    return isSolved;
  }

  /** Solves a connected list that is sorted by least offset. */
  #solve(from: number, to: number, last: number, lastPlaced: number): boolean {
    let lowestEnd = Number.POSITIVE_INFINITY;
    for (let i = from; i < to; i++) {
      const a = this.#lists[i] as number;
      lowestEnd = Math.min(lowestEnd, (this.#floors[a] as number) + (this.#sizes[a] as number));
    }
    const candidates: number[] = [];
    for (let i = from; i < to; i++) {
      const a = this.#lists[i] as number;
      if ((this.#leasts[a] as number) >= lowestEnd) break;
      if (this.#isPlaceable(a, last, lastPlaced) && !this.#isRepeated(a, candidates)) candidates.push(a);
    }
    for (const a of candidates) {
      if (this.#stepsLeft <= 0 || (this.#stepsLeft % stepsPerLook === 0 && this.#isLate())) {
        this.#hasGivenUp = true;
        return false;
      }
      this.#stepsLeft--;
      const trail = this.#trailTop;
      const base = this.#listTop;
      this.#place(a, from, to);
      const isSolved = this.#solveParts(base, this.#listTop, this.offsets[a] as number, a);
      this.#listTop = base;
      if (isSolved) return true;
      while (this.#trailTop > trail) {
        this.#trailTop--;
        this.#floors[this.#trail[this.#trailTop] as number] = this.#trailFloors[this.#trailTop] as number;
      }
      if (this.#hasGivenUp) return false;
    }
    return false;
  }

  #isRepeated(a: number, candidates: readonly number[]): boolean {
    return candidates.some(
      (b) =>
        this.#sizes[a] === this.#sizes[b] &&
        this.#lowers[a] === this.#lowers[b] &&
        this.#uppers[a] === this.#uppers[b] &&
        this.#floors[a] === this.#floors[b],
    );
  }

  /** Places an allocation of a list on its floor, and lists the others at the top. */
  #place(a: number, from: number, to: number): void {
    const floors = this.#floors;
    const offset = floors[a] as number;
    const top = offset + (this.#sizes[a] as number);
    const lower = this.#lowers[a] as number;
    const upper = this.#uppers[a] as number;
    this.offsets[a] = offset;
    this.#reserve(this.#listTop + to - from);
    this.#reserveTrail(this.#trailTop + to - from);
    const lists = this.#lists;
    let end = this.#listTop;
    for (let i = from; i < to; i++) {
      const b = lists[i] as number;
      if (b === a) continue;
      lists[end++] = b;
      if ((this.#lowers[b] as number) >= upper || lower >= (this.#uppers[b] as number)) continue;
      const floor = floors[b] as number;
      if (floor >= top) continue;
      this.#trail[this.#trailTop] = b;
      this.#trailFloors[this.#trailTop++] = floor;
      floors[b] = top;
    }
    this.#listTop = end;
  }

  #reserve(length: number): void {
    if (length <= this.#lists.length) return;
    const larger = new Int32Array(2 * length);
    larger.set(this.#lists);
    this.#lists = larger;
  }

  #reserveTrail(length: number): void {
    if (length <= this.#trail.length) return;
    const trail = new Int32Array(2 * length);
    const floors = new Float64Array(2 * length);
    trail.set(this.#trail);
    floors.set(this.#trailFloors);
    this.#trail = trail;
    this.#trailFloors = floors;
  }
}
