import { ExactSearch, type SearchResult } from './exact-search.js';
import type { SectionProblem } from './sections.js';

/** What allocations are compared by: greater values come first. */
type SearchKey = (a: number) => number;

/** Steps of the first run of each order of preference. */
const firstSteps = 1000;

/**
 * Searches within a capacity, with several orders of preference in turn, each time for twice as many
 * steps. One order may find in a thousand steps what another one does not find in a million. Returns
 * the offsets, or why there are none.
 */
export function searchWithin(problem: SectionProblem, capacity: number, isLate: () => boolean): Float64Array | SearchResult {
  const orders = preferences(problem);
  for (let steps = firstSteps; ; steps *= 2) {
    for (const order of orders) {
      const search = new ExactSearch(problem, capacity, order);
      const result = search.run(steps, isLate);
      if (result === 'found') return search.offsets;
      if (result === 'impossible' || isLate()) return result;
    }
  }
}

function preferences({ count, sections, sizes, lowers, uppers, durations }: SectionProblem): Int32Array[] {
  const totals = new Float64Array(sections);
  for (let a = 0; a < count; a++) {
    for (let section = lowers[a] as number; section < (uppers[a] as number); section++) (totals[section] as number) += sizes[a] as number;
  }
  const size = (a: number) => sizes[a] as number;
  const width = (a: number) => (uppers[a] as number) - (lowers[a] as number);
  const duration = (a: number) => durations[a] as number;
  const full = (a: number) => mostIn(totals, lowers[a] as number, uppers[a] as number);
  const widthArea = (a: number) => size(a) * width(a);
  const area = (a: number) => size(a) * duration(a);
  return [
    [full, duration, area],
    [full, widthArea, width],
    [width, widthArea, full],
    [area, full],
    [full, area, duration],
    [duration, area, full],
    [size, duration],
  ].map((keys) => sortedBy(count, keys));
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
