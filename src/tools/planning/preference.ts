import type { SectionProblem } from './sections.js';

/** The keys by which allocations are compared: larger values come first. */
type PreferenceKey =
  /** The bytes in the fullest of its sections. */
  | 'full'
  /** The bytes in the fullest of its sections, without what is placed. */
  | 'left'
  | 'size'
  /** How many sections it lives in. */
  | 'width'
  | 'duration'
  /** Its size times its duration. */
  | 'area'
  /** Its size times its width. */
  | 'widthArea';

/** An order of preference: by the first key; if it is equal, by the next. */
export type Preference = readonly PreferenceKey[];

/** Ranks the allocations of a problem, or of a part of it, in an order of preference. */
export class Ranking {
  /** By allocation: its place in the order. */
  readonly ranks: Int32Array;
  readonly #problem: SectionProblem;
  readonly #totals: Float64Array;
  readonly #left: Float64Array;
  readonly #compare: (a: number, b: number) => number;

  constructor(problem: SectionProblem, preference: Preference) {
    const { count, sections, sizes, lowers, uppers, durations } = problem;
    this.#problem = problem;
    this.ranks = Int32Array.from({ length: count }, (_, a) => a);
    this.#totals = new Float64Array(sections);
    this.#left = new Float64Array(count);
    this.#measure(this.ranks);
    const width = Float64Array.from(uppers, (upper, a) => upper - (lowers[a] as number));
    const columns: Record<PreferenceKey, Float64Array> = {
      full: this.#left.slice(),
      left: this.#left,
      size: sizes,
      width,
      duration: durations,
      area: sizes.map((size, a) => size * (durations[a] as number)),
      widthArea: sizes.map((size, a) => size * (width[a] as number)),
    };
    this.#compare = descending(preference.map((key) => columns[key]));
  }

  /** Ranks the allocations of a part, from 0 on: all that are not placed in its sections. */
  rank(part: Int32Array): void {
    this.#measure(part);
    for (const [rank, a] of part.slice().sort(this.#compare).entries()) this.ranks[a] = rank;
  }

  /** Computes what is left in the fullest section of each allocation of a part. */
  #measure(part: Int32Array): void {
    const { sizes, lowers, uppers } = this.#problem;
    const totals = this.#totals.fill(0);
    for (const a of part) {
      const upper = uppers[a] as number;
      for (let section = lowers[a] as number; section < upper; section++) (totals[section] as number) += sizes[a] as number;
    }
    for (const a of part) {
      const upper = uppers[a] as number;
      let most = 0;
      for (let section = lowers[a] as number; section < upper; section++) most = Math.max(most, totals[section] as number);
      this.#left[a] = most;
    }
  }
}

/** Compares by the first column, greater values first, then by the next ones, then by number. */
export function descending(columns: readonly Float64Array[]): (a: number, b: number) => number {
  return (a, b) => {
    for (const column of columns) {
      const difference = (column[b] as number) - (column[a] as number);
      if (difference !== 0) return difference;
    }
    return a - b;
  };
}
