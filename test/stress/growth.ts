/**
 * Whether a quantity grows that is measured after every round.
 *
 * What a program needs initially is created in the first third of the rounds, or in the first
 * twenty, which do not count. Over the others, the trend is the median of the slopes between all
 * pairs of rounds (Theil and Sen). Outliers, and a single step up or down, hardly change it; they
 * would change a least-squares line, or the difference of two maxima.
 */

/** The result of {@link trend}. */
export interface Trend {
  /** The change over the rounds that count, by the median slope. */
  readonly change: number;
  /** How many rounds count. */
  readonly rounds: number;
}

const leastWarmUp = 20;
/** With fewer rounds, no trend can be computed. */
export const minimumRounds = 30;
/** More rounds are grouped, by their medians: the number of pairs grows with the square. */
const maximumPoints = 600;

/** The trend of a series, or `undefined` if it is too short. */
export function trend(series: readonly number[]): Trend | undefined {
  if (series.length < minimumRounds) return undefined;
  const counted = series.slice(Math.max(leastWarmUp, Math.ceil(series.length / 3)));
  const points = medians(counted, Math.ceil(counted.length / maximumPoints));
  const slopes: number[] = [];
  for (const [later, second] of points.entries()) {
    for (const [earlier, first] of points.slice(0, later).entries()) slopes.push((second - first) / (later - earlier));
  }
  return { change: median(slopes) * (points.length - 1), rounds: counted.length };
}

/** One sentence if a series grows by more than is allowed, over the rounds that count. */
export function growthOf(
  name: string,
  series: readonly number[],
  allowance: number,
  format: (value: number) => string,
): string | undefined {
  const found = trend(series);
  if (found === undefined || found.change <= allowance) return undefined;
  const { change, rounds } = found;
  return `${name} grows: by ${format(change)} in the last ${rounds} rounds (median slope); ${format(allowance)} are allowed`;
}

function medians(values: readonly number[], width: number): number[] {
  return Array.from({ length: Math.floor(values.length / width) }, (_, i) => median(values.slice(i * width, (i + 1) * width)));
}

function median(values: readonly number[]): number {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  const upper = sorted[middle] as number;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] as number) + upper) / 2;
}
