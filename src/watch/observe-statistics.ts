import { ArgumentTypeError, formatValue } from '../errors.js';
import { sampleStatistics } from './sample-statistics.js';
import { statisticsMetrics } from './statistics-metrics.js';

/** What is needed of a `Meter` of `@opentelemetry/api`; every 1.x version has it. */
export interface StatisticsMeter {
  /** Makes an instrument whose value is asked for and may fall. */
  createObservableGauge(name: string, options: { readonly unit: string; readonly description: string }): object;
  /** Makes an instrument whose value is asked for and only grows. */
  createObservableCounter(name: string, options: { readonly unit: string; readonly description: string }): object;
  /** Has the callback called at each collection, for these instruments. */
  addBatchObservableCallback(callback: (result: StatisticsObserver) => void, observables: never[]): void;
  /** Ends that. */
  removeBatchObservableCallback(callback: (result: StatisticsObserver) => void, observables: never[]): void;
}

/** What OpenTelemetry hands to those whom it asks for values. */
export interface StatisticsObserver {
  /** Reports the value of an instrument for these attributes. */
  observe(instrument: never, value: number, attributes: Record<string, string>): void;
}

/**
 * Gives the statistics to OpenTelemetry: observable gauges and counters named `cistern.…`, which take one {@link sampleStatistics} whenever the
 * application's metric reader collects. Cistern depends on no OpenTelemetry package; the application gives its own meter.
 * @param meter a `Meter` of `@opentelemetry/api`
 * @returns what ends the observation when it is disposed
 * @throws ArgumentTypeError for what is no meter.
 * @example
 * ```ts
 * import { metrics } from '@opentelemetry/api';
 *
 * const observation = observeStatistics(metrics.getMeter('cistern'));
 * observation[Symbol.dispose](); // or keep it for as long as the process runs
 * ```
 */
export function observeStatistics(meter: StatisticsMeter): Disposable {
  if (typeof (meter as Partial<StatisticsMeter> | null | undefined)?.addBatchObservableCallback !== 'function') {
    throw new ArgumentTypeError(`meter must be a Meter of @opentelemetry/api, got ${formatValue(meter)}`);
  }
  const instruments = statisticsMetrics.map(({ name, kind, unit, description }) => {
    const options = { unit, description };
    return (kind === 'gauge' ? meter.createObservableGauge(name, options) : meter.createObservableCounter(name, options)) as never;
  });
  const observe = (observer: StatisticsObserver) => {
    const sample = sampleStatistics();
    for (const [i, metric] of statisticsMetrics.entries()) {
      metric.read(sample, (value, labels) => observer.observe(instruments[i] as never, value, labels));
    }
  };
  meter.addBatchObservableCallback(observe, instruments);
  return {
    [Symbol.dispose]() {
      meter.removeBatchObservableCallback(observe, instruments);
    },
  };
}
