import {
  type Attributes,
  type BatchObservableCallback,
  createNoopMeter,
  type Meter,
  type MetricOptions,
  type Observable,
  type ObservableCounter,
  type ObservableGauge,
} from '@opentelemetry/api';
import { describe, expect, test } from 'vitest';
import { ArgumentTypeError, currentBackend, StatisticsResourceAdaptor } from '../../../src/index.js';
import { Account, AccountingResourceAdaptor } from '../../../src/serving/index.js';
import { observeStatistics, prometheusText, sampleStatistics } from '../../../src/tools/watch/index.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';

/** The result of one collection. */
interface Measurement {
  readonly name: string;
  readonly kind: 'gauge' | 'counter';
  readonly unit: string | undefined;
  readonly value: number;
  readonly attributes: Attributes;
}

/**
 * The smallest meter that implements OpenTelemetry's interface and collects: the SDK for this
 * version needs a newer Node.
 */
function collectingMeter(): { readonly meter: Meter; readonly collect: () => Promise<Measurement[]> } {
  const instruments = new Map<Observable, Pick<Measurement, 'name' | 'kind' | 'unit'>>();
  const callbacks = new Map<BatchObservableCallback, readonly Observable[]>();
  const noop = createNoopMeter();
  const create = <T extends Observable>(kind: Measurement['kind'], made: T, name: string, options: MetricOptions = {}): T => {
    // The noop meter uses one object for all instruments of a kind.
    const instrument = Object.create(made) as T;
    instruments.set(instrument, { name, kind, unit: options.unit });
    return instrument;
  };
  const meter: Meter = Object.assign(Object.create(noop) as Meter, {
    createObservableGauge: (name: string, options?: MetricOptions): ObservableGauge =>
      create('gauge', noop.createObservableGauge(name, options), name, options),
    createObservableCounter: (name: string, options?: MetricOptions): ObservableCounter =>
      create('counter', noop.createObservableCounter(name, options), name, options),
    addBatchObservableCallback: (callback: BatchObservableCallback, observables: Observable[]) => {
      callbacks.set(callback, observables);
    },
    removeBatchObservableCallback: (callback: BatchObservableCallback) => {
      callbacks.delete(callback);
    },
  });
  const collect = async () => {
    const measurements: Measurement[] = [];
    for (const [callback, observables] of callbacks) {
      await callback({
        observe(observable, value, attributes = {}) {
          if (!observables.includes(observable)) throw new Error('an instrument is observed that the callback did not name');
          measurements.push({ ...(instruments.get(observable) as Measurement), value, attributes });
        },
      });
    }
    return measurements;
  };
  return { meter, collect };
}

describe('prometheusText', () => {
  test('are refused for what is no sample', () => {
    const sample = sampleStatistics();
    for (const value of [{}, null, undefined, 'text', { ...sample, layers: undefined }, { ...sample, driverCalls: 1 }]) {
      expect(() => prometheusText(value as never)).toThrow(
        expect.objectContaining({
          code: 'ERR_INVALID_ARG_TYPE',
          message: expect.stringMatching(/^sample must be what sampleStatistics\(\) returns, got /),
        }),
      );
    }
  });

  test('has help, type and a value for each quantity, in base units', () => {
    using resource = new StatisticsResourceAdaptor(new SpyResource(), { name: 'training' });
    resource.deallocate(resource.allocate(300, stream), 300, stream);
    resource.allocate(200, stream);
    const text = prometheusText(sampleStatistics());
    const labels = '{resource="training",device="0",memory_kind="device"}';
    expect(text).toContain(
      `# HELP cistern_resource_live_bytes Bytes currently allocated through the resource.
# TYPE cistern_resource_live_bytes gauge
cistern_resource_live_bytes${labels} 200
`,
    );
    expect(text).toContain(`# TYPE cistern_resource_allocated_bytes_total counter\ncistern_resource_allocated_bytes_total${labels} 500\n`);
    expect(text).toContain(`cistern_resource_frees_total${labels} 1\n`);
    expect(text).toMatch(/^cistern_device_size_bytes\{device="0",device_name=".+"\} \d+$/m);
    if (currentBackend() === 'software') expect(text).toMatch(/^cistern_managed_resident_bytes\{device="0"\} \d+$/m);
    expect(text).toMatch(/^cistern_driver_calls_total\{function="cuInit"\} \d+$/m);
  });

  test('has what libraries hold that cistern run records', () => {
    const library = { name: 'onnxruntime-node', deviceBytes: 7, peakDeviceBytes: 9, hostBytes: 5, allocations: 3 };
    const text = prometheusText({ ...sampleStatistics(), libraries: [library, { ...library, name: 'cistern', hostBytes: 0 }] });
    const lines = text.split('\n').filter((line) => line.startsWith('cistern_library_'));
    expect(lines).toEqual(
      Object.entries({ device_bytes: [7, 7], device_peak_bytes: [9, 9], host_bytes: [5, 0], allocations_total: [3, 3] }).flatMap(
        ([name, values]) => values.map((value, i) => `cistern_library_${name}{library="${['onnxruntime-node', 'cistern'][i]}"} ${value}`),
      ),
    );
    expect(prometheusText(sampleStatistics())).not.toContain('cistern_library_');
  });

  test('conforms to the format', () => {
    using _one = new StatisticsResourceAdaptor(new SpyResource(), { name: 'one' });
    using _other = new StatisticsResourceAdaptor(new SpyResource(), { name: 'one' });
    const text = prometheusText(sampleStatistics());
    expect(text.endsWith('\n')).toBe(true);
    const label = '[a-z_]+="(?:[^"\\\\\\n]|\\\\["\\\\n])*"';
    const value = new RegExp(`^([a-z_]+)(?:\\{${label}(?:,${label})*\\})? -?\\d+(?:\\.\\d+)?(?:e[-+]?\\d+)?$`);
    const keys = new Set<string>();
    let family = '';
    for (const line of text.trimEnd().split('\n')) {
      const type = /^# TYPE ([a-z_]+) (gauge|counter)$/.exec(line);
      if (type !== null) {
        expect(type[1]).toBe(family);
        expect(type[1]?.endsWith('_total')).toBe(type[2] === 'counter');
      } else if (line.startsWith('# HELP ')) family = line.split(' ')[2] as string;
      else {
        expect(value.exec(line)?.[1], line).toBe(family);
        const key = line.slice(0, line.lastIndexOf(' '));
        expect(keys.has(key), key).toBe(false);
        keys.add(key);
      }
    }
    expect(keys.size).toBeGreaterThan(10);
  });

  test('escapes special characters in names', () => {
    using _resource = new StatisticsResourceAdaptor(new SpyResource(), { name: 'a "b"\\c\nd' });
    expect(prometheusText(sampleStatistics())).toContain('{resource="a \\"b\\"\\\\c\\nd",');
  });
});

describe('observeStatistics', () => {
  test('gives an OpenTelemetry meter the same values as Prometheus', async () => {
    using resource = new StatisticsResourceAdaptor(new SpyResource(), { name: 'training' });
    const { meter, collect } = collectingMeter();
    const observation = observeStatistics(meter);
    resource.allocate(200, stream);
    const attributes = { resource: 'training', device: '0', memory_kind: 'device' };
    const measurements = await collect();
    expect(measurements).toContainEqual({ name: 'cistern.resource.live', kind: 'gauge', unit: 'By', value: 200, attributes });
    expect(measurements).toContainEqual({
      name: 'cistern.resource.allocations',
      kind: 'counter',
      unit: '{allocation}',
      value: 1,
      attributes,
    });
    const values = prometheusText(sampleStatistics()).match(/^[a-z].*$/gm);
    expect(values).toHaveLength(measurements.length);
    observation[Symbol.dispose]();
    expect(await collect()).toEqual([]);
  });

  test('refuses a value that is not a meter', () => {
    for (const meter of [undefined, null, {}, 'meter']) expect(() => observeStatistics(meter as never)).toThrow(ArgumentTypeError);
  });
});

describe('accounts in metrics', () => {
  test('are gauges by path, and a counter of all refusals', () => {
    const resource = new AccountingResourceAdaptor(new SpyResource());
    const account = new Account({ name: 'metrics "a"', limitBytes: 1024 });
    account.run(() => {
      resource.allocate(512, stream);
      expect(() => resource.allocate(1024, stream)).toThrow();
    });
    const sample = sampleStatistics();
    const text = prometheusText(sample);
    expect(text).toContain('cistern_account_live_bytes{account="metrics \\"a\\""} 512\n');
    expect(text).toContain('cistern_account_limit_bytes{account="metrics \\"a\\""} 1024\n');
    expect(text).toContain(`# TYPE cistern_account_refusals_total counter\ncistern_account_refusals_total ${sample.accountRefusals}\n`);
  });
});
