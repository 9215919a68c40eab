import type { StatisticsSample } from '../../watch/statistics-sample.js';

/** How many samples are kept: an hour, at one each second. */
const maximumSamples = 3600;

/** The samples that came, in the order of their times. */
export class History {
  #samples: StatisticsSample[] = [];

  get samples(): readonly StatisticsSample[] {
    return this.#samples;
  }

  get latest(): StatisticsSample | undefined {
    return this.#samples.at(-1);
  }

  /** What was there already, as after a lost connection, is left out; another process begins anew. */
  add(sample: StatisticsSample): void {
    const { latest } = this;
    if (latest !== undefined && latest.processId !== sample.processId) this.#samples = [];
    else if (latest !== undefined && sample.timeMilliseconds <= latest.timeMilliseconds) return;
    this.#samples.push(sample);
    if (this.#samples.length > maximumSamples) this.#samples.shift();
  }

  /** The samples of the last `seconds`; all for 0. */
  window(seconds: number): readonly StatisticsSample[] {
    const { latest } = this;
    if (seconds === 0 || latest === undefined) return this.#samples;
    const begin = latest.timeMilliseconds - 1000 * seconds;
    return this.#samples.slice(this.#samples.findIndex(({ timeMilliseconds }) => timeMilliseconds >= begin));
  }
}

/** By how much a count grew each second since the sample before; `null` for the first, and where it is not known. */
export function rates(samples: readonly StatisticsSample[], count: (sample: StatisticsSample) => number | null): (number | null)[] {
  const counts = samples.map(count);
  return samples.map(({ timeMilliseconds }, i) => {
    const before = samples[i - 1];
    const [from, to] = [counts[i - 1] ?? null, counts[i] ?? null];
    if (before === undefined || from === null || to === null || to < from) return null;
    return (1000 * (to - from)) / (timeMilliseconds - before.timeMilliseconds);
  });
}
