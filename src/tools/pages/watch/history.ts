import type { StatisticsSample } from '../../watch/statistics-sample.js';

/** The number of samples kept: an hour, at one per second. */
const maximumSamples = 3600;

/** The received samples, in order of time. */
export class History {
  #samples: StatisticsSample[] = [];

  get samples(): readonly StatisticsSample[] {
    return this.#samples;
  }

  get latest(): StatisticsSample | undefined {
    return this.#samples.at(-1);
  }

  /**
   * Ignores samples that are already present, as after a lost connection; a new process starts a
   * new history.
   */
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

/**
 * The increase of a count per second since the previous sample; `null` for the first sample, and if
 * unknown.
 */
export function rates(samples: readonly StatisticsSample[], count: (sample: StatisticsSample) => number | null): (number | null)[] {
  const counts = samples.map(count);
  return samples.map(({ timeMilliseconds }, i) => {
    const before = samples[i - 1];
    const [from, to] = [counts[i - 1] ?? null, counts[i] ?? null];
    if (before === undefined || from === null || to === null || to < from) return null;
    return (1000 * (to - from)) / (timeMilliseconds - before.timeMilliseconds);
  });
}
