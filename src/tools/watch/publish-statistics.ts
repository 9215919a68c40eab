import { channel } from 'node:diagnostics_channel';
import { assertInteger, assertOptions, optionNames } from '../../basics/validation.js';
import { sampleStatistics } from './sample-statistics.js';

/** Options of {@link publishStatistics}. */
export interface PublishStatisticsOptions {
  /**
   * The time between two samples, an integer from 10 to 2^31 - 1. If sampling is slow, the interval
   * is stretched so that it takes at most a fiftieth of the time.
   * @defaultValue 1000
   */
  readonly intervalMilliseconds?: number | undefined;
}

const knownOptions = optionNames<PublishStatisticsOptions>({ intervalMilliseconds: true });

const statistics = channel('cistern:statistics');
/** Sampling takes at most the inverse of this share of the time. */
const restPerSample = 50;

/**
 * Publishes a {@link StatisticsSample} on the diagnostics channel `cistern:statistics` at regular
 * intervals, until it is disposed. No sample is taken while the channel has no subscriber. Does not
 * keep the process alive.
 * @throws ArgumentTypeError, ArgumentRangeError if the interval is invalid.
 * @example
 * ```ts
 * import { subscribe } from 'node:diagnostics_channel';
 *
 * subscribe('cistern:statistics', (message) => {
 *   const { resources } = message as StatisticsSample;
 *   console.log(resources.map(({ name, liveBytes }) => `${name} ${formatBytes(liveBytes)}`).join(', '));
 * });
 * const publisher = publishStatistics({ intervalMilliseconds: 5000 });
 * publisher[Symbol.dispose](); // or keep it for as long as the process runs
 * ```
 */
export function publishStatistics(options: PublishStatisticsOptions = {}): Disposable {
  assertOptions(options, knownOptions);
  const { intervalMilliseconds = 1000 } = options;
  assertInteger(intervalMilliseconds, 'intervalMilliseconds', 10, 2 ** 31 - 1, '10 to 2^31 - 1');
  let timer: NodeJS.Timeout;
  let isDisposed = false;
  const publish = () => {
    const begun = performance.now();
    if (statistics.hasSubscribers) statistics.publish(sampleStatistics());
    // A subscriber may have disposed the publisher.
    if (!isDisposed) timer = setTimeout(publish, Math.max(intervalMilliseconds, restPerSample * (performance.now() - begun))).unref();
  };
  timer = setTimeout(publish, 0).unref();
  return {
    [Symbol.dispose]() {
      isDisposed = true;
      clearTimeout(timer);
    },
  };
}
