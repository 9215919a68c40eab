/**
 * Finds the greatest and the least value in any range of a curve, without reading the whole range.
 *
 *     level 0   values        [ 3 1 4 1 5 9 2 6 5 3 5 8 … ]
 *     level 1   of 32 each    [ the index of the greatest | … ]  and the least
 *     level 2   of 1024 each
 *
 * Invariant: at(level, group) is the first index of the extreme of
 * values[group · 32^level … (group + 1) · 32^level).
 *
 * Cost: n / 31 entries twice; a query reads at most 64 entries of each level.
 */
const groupSize = 32;

/** The extremes of a curve. */
export class Extremes {
  readonly values: Float64Array;
  readonly #greatest: Int32Array[] = [];
  readonly #least: Int32Array[] = [];

  constructor(values: Float64Array) {
    this.values = values;
    for (let length = values.length, level = 0; length > groupSize; level++) {
      const groups = Math.ceil(length / groupSize);
      const greatest = new Int32Array(groups);
      const least = new Int32Array(groups);
      for (let group = 0; group < groups; group++) {
        const from = group * groupSize;
        const to = Math.min(length, from + groupSize);
        greatest[group] = this.#indexAtLevel(this.#greatest, level, from, to, 1);
        least[group] = this.#indexAtLevel(this.#least, level, from, to, -1);
      }
      this.#greatest.push(greatest);
      this.#least.push(least);
      length = groups;
    }
  }

  /**
   * The first index of the greatest value from `from` up to, but not including, `to`; -1 if the
   * range is empty.
   */
  indexOfMaximum(from: number, to: number): number {
    return this.#indexOf(this.#greatest, from, to, 1);
  }

  /**
   * The first index of the least value from `from` up to, but not including, `to`; -1 if the range
   * is empty.
   */
  indexOfMinimum(from: number, to: number): number {
    return this.#indexOf(this.#least, from, to, -1);
  }

  #indexAtLevel(levels: readonly Int32Array[], level: number, from: number, to: number, sign: number): number {
    const below = levels[level - 1];
    let best = -1;
    for (let entry = from; entry < to; entry++) {
      const index = below === undefined ? entry : (below[entry] as number);
      if (best < 0 || sign * ((this.values[index] as number) - (this.values[best] as number)) > 0) best = index;
    }
    return best;
  }

  #indexOf(levels: readonly Int32Array[], from: number, to: number, sign: number): number {
    let best = -1;
    const consider = (level: number, first: number, last: number) => {
      if (first >= last) return;
      const index = this.#indexAtLevel(levels, level, first, last, sign);
      if (best < 0) best = index;
      else {
        const difference = sign * ((this.values[index] as number) - (this.values[best] as number));
        if (difference > 0 || (difference === 0 && index < best)) best = index;
      }
    };
    let first = from;
    let last = to;
    for (let level = 0; first < last; level++) {
      const nextFirst = Math.ceil(first / groupSize);
      const nextLast = Math.floor(last / groupSize);
      if (level === levels.length || nextFirst >= nextLast) {
        consider(level, first, last);
        break;
      }
      consider(level, first, nextFirst * groupSize);
      consider(level, nextLast * groupSize, last);
      first = nextFirst;
      last = nextLast;
    }
    return best;
  }
}

/** The last index whose value is at most `value`, or -1. The values must ascend. */
export function lastAtMost(ascending: ArrayLike<number>, value: number): number {
  let low = 0;
  let high = ascending.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((ascending[middle] as number) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * The changes to draw so that the curves look as if all changes were drawn. For each of `columns`
 * equal parts of the time from `from` to `to`: the changes with the greatest and the least value of
 * each curve, and the last change. Ascending; the first is the change in effect at `from`.
 */
export function drawnChanges(
  times: Float64Array,
  curves: readonly Extremes[],
  range: { readonly from: number; readonly to: number },
  columns: number,
): Uint32Array {
  const { from, to } = range;
  const drawn: number[] = [];
  const first = lastAtMost(times, from);
  const end = lastAtMost(times, to) + 1;
  if (first >= 0) drawn.push(first);
  if (end - first <= 2 * columns) {
    for (let change = first + 1; change < end; change++) drawn.push(change);
    return Uint32Array.from(drawn);
  }
  let start = first + 1;
  for (let column = 1; column <= columns && start < end; column++) {
    const stop = column === columns ? end : lastAtMost(times, from + ((to - from) * column) / columns) + 1;
    if (stop <= start) continue;
    const here = [stop - 1];
    for (const curve of curves) here.push(curve.indexOfMaximum(start, stop), curve.indexOfMinimum(start, stop));
    here.sort((a, b) => a - b);
    for (const change of here) if (change !== drawn.at(-1)) drawn.push(change);
    start = stop;
  }
  return Uint32Array.from(drawn);
}
