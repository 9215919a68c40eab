import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { sampleStatistics } from './sample-statistics.js';
import { statisticsMetrics } from './statistics-metrics.js';

/** The part of a `Meter` of `@opentelemetry/api` that cistern needs; every 1.x version has it. */
export interface StatisticsMeter {
  /** Makes an instrument whose value is observed and may decrease. */
  createObservableGauge(name: string, options: { readonly unit: string; readonly description: string }): object;
  /** Makes an instrument whose value is observed and only increases. */
  createObservableCounter(name: string, options: { readonly unit: string; readonly description: string }): object;
  /** Registers a callback that is called at each collection, for these instruments. */
  addBatchObservableCallback(callback: (result: StatisticsObserver) => void, observables: never[]): void;
  /** Unregisters the callback. */
  removeBatchObservableCallback(callback: (result: StatisticsObserver) => void, observables: never[]): void;
}

/** Receives the values that OpenTelemetry collects. */
export interface StatisticsObserver {
  /** Reports the value of an instrument for these attributes. */
  observe(instrument: never, value: number, attributes: Record<string, string>): void;
}

/**
 * Reports the statistics to OpenTelemetry: observable gauges and counters named `cistern.…`, which
 * take one {@link sampleStatistics} whenever the application's metric reader collects. cistern does
 * not depend on an OpenTelemetry package; pass your own meter.
 * @param meter a `Meter` of `@opentelemetry/api`
 * @returns an object that ends the observation when it is disposed
 * @throws ArgumentTypeError if `meter` is not a meter.
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
