import type { Intervals } from './placement.js';

/** Allocations with their first section, and the one after their last. */
export interface SectionProblem {
  readonly count: number;
  readonly sections: number;
  readonly sizes: Float64Array;
  readonly lowers: Int32Array;
  readonly uppers: Int32Array;
  /** How long each lives, in any unit. Only the order of preference depends on it. */
  readonly durations: Float64Array;
}

/** Cuts time into sections: a new one begins at the first request after a free. */
export function sectionsOf({ count, sizes, starts, ends, operationCount }: Intervals, durations: Float64Array): SectionProblem {
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
  return { count, sections, sizes, lowers, uppers, durations };
}
