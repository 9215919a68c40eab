import { ExactSearch, type SearchResult } from './exact-search.js';
import type { Preference } from './preference.js';
import type { SectionProblem } from './sections.js';

const preferences: readonly Preference[] = [
  ['left', 'duration', 'area'],
  ['left', 'widthArea', 'width'],
  ['full', 'duration', 'area'],
  ['width', 'widthArea', 'full'],
  ['area', 'full'],
  ['duration', 'area', 'full'],
  ['size', 'duration'],
];

/** Steps of the first run of each order of preference. */
const firstSteps = 1000;

/**
 * Searches within a capacity, with several orders of preference in turn, each time for twice as many
 * steps. One order may find in a thousand steps what another one does not find in a million. Returns
 * the offsets, or why there are none.
 */
export function searchWithin(problem: SectionProblem, capacity: number, isLate: () => boolean): Float64Array | SearchResult {
  for (let steps = firstSteps; ; steps *= 2) {
    for (const preference of preferences) {
      const search = new ExactSearch(problem, capacity, preference);
      const result = search.run(steps, isLate);
      if (result === 'found') return search.offsets;
      if (result === 'impossible' || isLate()) return result;
    }
  }
}
