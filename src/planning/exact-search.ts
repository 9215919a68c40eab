/**
 * Finds offsets below a given capacity, or proves that there are none.
 *
 * The idea is that of Google's MiniMalloc (Moffitt, ASPLOS 2023). Every solution can be pushed down
 * until each allocation rests on another or on the bottom; and an allocation can be placed when
 * everything below it is. So it is enough to place allocations with offsets that never decrease,
 * each as low as what is already placed permits. `floors[a]` is that offset. The search tries the
 * candidates one after another, and goes back if nothing fits.
 *
 * Time is cut into sections: at the requests that follow a free. What is live in one section lies
 * side by side.
 *
 *     section    0   1   2   3
 *     c              [=======]      floors: an allocation in section 2 begins at or above c's top
 *     a          [=======]
 *     b                  [===]
 *
 * What cuts the search short:
 *  - floors rise to the offset that was placed last, even without an overlap;
 *  - a section is packed in the order of floors: if that exceeds the capacity, no packing fits;
 *  - a candidate is dominated if another allocation would fit entirely below it;
 *  - of equal allocations at one offset only the first is tried;
 *  - after a candidate with nothing left above it, the others cannot do better;
 *  - what falls apart in time is solved part by part.
 *
 * Cost: exponential at worst; a step is linear in the allocations and sections of its part.
 */
import type { Intervals } from './placement.js';

/** The result of one run. */
export type SearchResult = 'found' | 'impossible' | 'gave-up';

/** Which candidates come first. */
interface SearchOrder {
  /** The allocations in the order of preference. */
  readonly order: Int32Array;
  /** Whether the lowest floor precedes preference. */
  readonly isLowestFirst: boolean;
}

class ExactSearch {
  readonly offsets: Float64Array;
  /** By section: how often it had no room. */
  readonly failures: Float64Array;
  readonly #count: number;
  readonly #sections: number;
  readonly #capacity: number;
  /** By place in the order of preference. */
  readonly #order: Int32Array;
  readonly #isLowestFirst: boolean;
  readonly #sizes: Float64Array;
  readonly #lowers: Int32Array;
  readonly #uppers: Int32Array;
  readonly #floors: Float64Array;
  readonly #places: Float64Array;
  /** By section. */
  readonly #tops: Float64Array;
  readonly #crossings: Int32Array;
  readonly #partOf: Int32Array;
  /** Lists of unplaced allocations, by floor, one above the other. */
  #lists: Int32Array;
  #listTop = 0;
  /** Floors that were raised, to be restored. */
  #trail = new Int32Array(1024);
  #trailFloors = new Float64Array(1024);
  #trailTop = 0;
  #stepsLeft = 0;
  #isLate: () => boolean = () => false;
  #hasGivenUp = false;

  constructor(
    problem: SectionProblem,
    capacity: number,
    { order, isLowestFirst }: SearchOrder,
    failures = new Float64Array(problem.sections),
  ) {
    const { count, sections } = problem;
    this.#count = count;
    this.#sections = sections;
    this.#capacity = capacity;
    this.#order = order;
    this.#isLowestFirst = isLowestFirst;
    this.#sizes = Float64Array.from(order, (a) => problem.sizes[a] as number);
    this.#lowers = Int32Array.from(order, (a) => problem.lowers[a] as number);
    this.#uppers = Int32Array.from(order, (a) => problem.uppers[a] as number);
    this.#floors = new Float64Array(count);
    this.#places = new Float64Array(count);
    this.#tops = new Float64Array(sections + 1);
    this.#crossings = new Int32Array(sections + 2);
    this.#partOf = new Int32Array(sections + 1);
    this.#lists = new Int32Array(4 * count + 1024);
    this.offsets = new Float64Array(count);
    this.failures = failures;
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
    const isFound = this.#mayFit(0, this.#count) && this.#solveParts(0, this.#count, 0);
    if (!isFound) return this.#hasGivenUp ? 'gave-up' : 'impossible';
    for (let i = 0; i < this.#count; i++) this.offsets[this.#order[i] as number] = this.#places[i] as number;
    return 'found';
  }

  /** Whether each section fits if it is packed in the order of floors. */
  #mayFit(from: number, to: number): boolean {
    const tops = this.#tops;
    const lists = this.#lists;
    let first = this.#sections;
    let last = 0;
    for (let i = from; i < to; i++) {
      const a = lists[i] as number;
      if ((this.#lowers[a] as number) < first) first = this.#lowers[a] as number;
      if ((this.#uppers[a] as number) > last) last = this.#uppers[a] as number;
    }
    tops.fill(0, first, last);
    for (let i = from; i < to; i++) {
      const a = lists[i] as number;
      const floor = this.#floors[a] as number;
      const bytes = this.#sizes[a] as number;
      const upper = this.#uppers[a] as number;
      for (let section = this.#lowers[a] as number; section < upper; section++) {
        let top = tops[section] as number;
        if (top < floor) top = floor;
        top += bytes;
        if (top > this.#capacity) {
          (this.failures[section] as number)++;
          return false;
        }
        tops[section] = top;
      }
    }
    return true;
  }

  /** Solves a list part by part, where parts have no section in common, the smallest first. */
  #solveParts(from: number, to: number, last: number): boolean {
    if (from === to) return true;
    const lists = this.#lists;
    const crossings = this.#crossings;
    let first = this.#sections;
    let end = 0;
    for (let i = from; i < to; i++) {
      const a = lists[i] as number;
      if ((this.#lowers[a] as number) < first) first = this.#lowers[a] as number;
      if ((this.#uppers[a] as number) > end) end = this.#uppers[a] as number;
    }
    crossings.fill(0, first, end + 1);
    for (let i = from; i < to; i++) {
      const a = lists[i] as number;
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
    if (part === 0) return this.#solve(from, to, last);
    const begins = new Int32Array(part + 2);
    for (let i = from; i < to; i++) (begins[(this.#partOf[this.#lowers[lists[i] as number] as number] as number) + 1] as number)++;
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
      const at = this.#partOf[this.#lowers[a] as number] as number;
      this.#lists[base + (next[at] as number)] = a;
      (next[at] as number)++;
    }
    this.#listTop = base + to - from;
    const lengthOf = (each: number) => (begins[each + 1] as number) - (begins[each] as number);
    parts.sort((a, b) => lengthOf(a) - lengthOf(b));
    const isSolved = parts.every((each) => this.#solve(base + (begins[each] as number), base + (begins[each + 1] as number), last));
    this.#listTop = base;
    return isSolved;
  }

  /** Solves a list that hangs together. No offset may be below `last`. */
  #solve(from: number, to: number, last: number): boolean {
    if (this.#hasGivenUp) return false;
    if (this.#stepsLeft <= 0 || ((this.#stepsLeft & 255) === 0 && this.#isLate())) {
      this.#hasGivenUp = true;
      return false;
    }
    let dominated = Number.POSITIVE_INFINITY;
    for (let i = from; i < to; i++) {
      const a = this.#lists[i] as number;
      dominated = Math.min(dominated, Math.max(this.#floors[a] as number, last) + (this.#sizes[a] as number));
    }
    const candidates: number[] = [];
    for (let i = from; i < to; i++) {
      const a = this.#lists[i] as number;
      if ((this.#floors[a] as number) >= dominated) break;
      if (!this.#isRepeated(a, candidates)) candidates.push(a);
    }
    if (!this.#isLowestFirst) candidates.sort((a, b) => a - b);
    for (const a of candidates) {
      this.#stepsLeft--;
      const trail = this.#trailTop;
      const base = this.#listTop;
      const isCovered = this.#place(a, from, to);
      const isSolved = this.#mayFit(base, this.#listTop) && this.#solveParts(base, this.#listTop, this.#places[a] as number);
      this.#listTop = base;
      if (isSolved) return true;
      while (this.#trailTop > trail) {
        this.#trailTop--;
        this.#floors[this.#trail[this.#trailTop] as number] = this.#trailFloors[this.#trailTop] as number;
      }
      if (this.#hasGivenUp || !isCovered) return false;
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

  /**
   * Places an allocation of a list, and lists the others at the top, by their new floors. Returns
   * whether any of them must lie above it.
   */
  #place(a: number, from: number, to: number): boolean {
    const floors = this.#floors;
    const offset = floors[a] as number;
    const top = offset + (this.#sizes[a] as number);
    const lower = this.#lowers[a] as number;
    const upper = this.#uppers[a] as number;
    this.#places[a] = offset;
    this.#reserve(this.#listTop + to - from);
    this.#reserveTrail(this.#trailTop + to - from);
    const lists = this.#lists;
    const base = this.#listTop;
    let end = base;
    let isCovered = false;
    for (let i = from; i < to; i++) {
      const b = lists[i] as number;
      if (b === a) continue;
      const floor = floors[b] as number;
      let raised = floor;
      if ((this.#lowers[b] as number) < upper && lower < (this.#uppers[b] as number)) {
        isCovered = true;
        if (raised < top) raised = top;
      } else if (raised < offset) {
        raised = offset;
      }
      if (raised !== floor) {
        this.#trail[this.#trailTop] = b;
        this.#trailFloors[this.#trailTop++] = floor;
        floors[b] = raised;
      }
      let at = end++;
      while (at > base) {
        const before = lists[at - 1] as number;
        const other = floors[before] as number;
        if (other < raised || (other === raised && before < b)) break;
        lists[at--] = before;
      }
      lists[at] = b;
    }
    this.#listTop = end;
    return isCovered;
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

/** Allocations with their first section, and the one after their last. */
export interface SectionProblem {
  readonly count: number;
  readonly sections: number;
  readonly sizes: Float64Array;
  readonly lowers: Int32Array;
  readonly uppers: Int32Array;
}

/** Cuts time into sections: a new one begins at the first request after a free. */
export function sectionsOf({ count, sizes, starts, ends, operationCount }: Intervals): SectionProblem {
  const requests = new Uint8Array(operationCount + 1);
  const frees = new Uint8Array(operationCount + 1);
  for (let a = 0; a < count; a++) {
    requests[starts[a] as number] = 1;
    frees[ends[a] as number] = 1;
  }
  const sectionAt = new Int32Array(operationCount + 2);
  let section = 0;
  let isBetween = false;
  for (let i = 0; i <= operationCount; i++) {
    if (frees[i] === 1) isBetween = true;
    if (requests[i] === 1 && isBetween) {
      section++;
      isBetween = false;
    }
    // A free ends what is live in the section before the next request.
    sectionAt[i] = isBetween ? section + 1 : section;
  }
  const sections = section + 1;
  const lowers = Int32Array.from(starts, (start) => sectionAt[start] as number);
  const uppers = Int32Array.from(ends, (end) => Math.min(sections, sectionAt[end] as number));
  return { count, sections, sizes, lowers, uppers };
}

/** What allocations are compared by: greater values come first. */
export type SearchKey = (a: number) => number;

/** The keys from which orders of preference are made. */
function searchKeys({
  count,
  sections,
  sizes,
  lowers,
  uppers,
}: SectionProblem): Record<'full' | 'size' | 'width' | 'area' | 'neighbours', SearchKey> {
  const totals = new Float64Array(sections);
  for (let a = 0; a < count; a++) {
    for (let section = lowers[a] as number; section < (uppers[a] as number); section++) (totals[section] as number) += sizes[a] as number;
  }
  const fullest = Float64Array.from({ length: count }, (_, a) => mostIn(totals, lowers[a] as number, uppers[a] as number));
  const neighbours = Float64Array.from({ length: count }, (_, a) => {
    let number = 0;
    for (let b = 0; b < count; b++)
      if ((lowers[b] as number) < (uppers[a] as number) && (lowers[a] as number) < (uppers[b] as number)) number++;
    return number;
  });
  const width = (a: number) => (uppers[a] as number) - (lowers[a] as number);
  return {
    full: (a) => fullest[a] as number,
    size: (a) => sizes[a] as number,
    width,
    area: (a) => (sizes[a] as number) * width(a),
    neighbours: (a) => neighbours[a] as number,
  };
}

function mostIn(values: Float64Array, from: number, to: number): number {
  let most = 0;
  for (let i = from; i < to; i++) most = Math.max(most, values[i] as number);
  return most;
}

/** The allocations in descending order of the first key, then of the next. */
export function sortedBy(count: number, keys: readonly SearchKey[]): Int32Array {
  const columns = keys.map((key) => Float64Array.from({ length: count }, (_, a) => key(a)));
  return Int32Array.from({ length: count }, (_, a) => a).sort((a, b) => {
    for (const column of columns) {
      const difference = (column[b] as number) - (column[a] as number);
      if (difference !== 0) return difference;
    }
    return a - b;
  });
}

/** The same numbers every time, so that plans can be repeated. From 0 to 1. */
export function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

/** Steps of the first run of each order, and how many runs with learnt orders come before the next. */
const firstSteps = 2000;
const learningSteps = 1000;
const learningRuns = 20;

/**
 * Searches within a capacity: runs with fixed orders of preference, each time with twice the steps;
 * in between, runs whose order follows where earlier ones failed. Returns the offsets, or why there
 * are none.
 */
export function searchWithin(problem: SectionProblem, capacity: number, isLate: () => boolean): Float64Array | SearchResult {
  const { count, sections, lowers, uppers } = problem;
  const { full, size, width, area, neighbours } = searchKeys(problem);
  const fixed = [
    [full, area, width],
    [full, width, area],
    [area, full, width],
    [width, area, full],
    [size, width],
    [neighbours, size],
  ].flatMap((keys) => {
    const order = sortedBy(count, keys);
    return [false, true].map((isLowestFirst) => ({ order, isLowestFirst }));
  });
  const random = randomNumbers(12_345);
  const learners = [
    { failures: new Float64Array(sections), weighs: size, keys: [area, full, width] },
    { failures: new Float64Array(sections), weighs: () => 1, keys: [full, area, width] },
    { failures: new Float64Array(sections), weighs: size, keys: [width, area, full] },
  ];
  for (let round = 0; ; round++) {
    for (const order of fixed) {
      const search = new ExactSearch(problem, capacity, order);
      const result = search.run(firstSteps * 2 ** round, isLate);
      if (result === 'found') return search.offsets;
      if (result === 'impossible' || isLate()) return result;
    }
    for (let run = 0; run < learningRuns * 2 ** round; run++) {
      for (const { failures, weighs, keys } of learners) {
        const weight = Float64Array.from({ length: count }, (_, a) => {
          let sum = 0;
          for (let section = lowers[a] as number; section < (uppers[a] as number); section++) sum += failures[section] as number;
          return sum * weighs(a) * (1 + 0.3 * random());
        });
        const order = { order: sortedBy(count, [(a) => weight[a] as number, ...keys]), isLowestFirst: run % 2 === 1 };
        const search = new ExactSearch(problem, capacity, order, failures);
        const result = search.run(learningSteps * 1.3 ** Math.floor(run / learningRuns), isLate);
        if (result === 'found') return search.offsets;
        if (result === 'impossible' || isLate()) return result;
        for (let section = 0; section < sections; section++) (failures[section] as number) *= 0.9;
      }
    }
  }
}
