import { channel, subscribe, unsubscribe } from 'node:diagnostics_channel';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CudaMemoryResource,
  DeviceBuffer,
  type MemoryResource,
  MiB,
  PoolMemoryResource,
  StatisticsResourceAdaptor,
  Stream,
} from '../../../src/index.js';
import { publishStatistics, type StatisticsSample, sampleStatistics } from '../../../src/tools/watch/index.js';
import { SpyResource } from '../../support/spy-resource.js';

let stream: Stream;
beforeAll(() => {
  stream = new Stream();
});
afterAll(() => stream.dispose());

function names(): string[] {
  return sampleStatistics().resources.map(({ name }) => name);
}

describe('sampleStatistics', () => {
  test('has the counts of each adaptor, and what the layers below hold', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { initialBytes: 4 * MiB });
    using resource = new StatisticsResourceAdaptor(pool, { name: 'training' });
    const freed = resource.allocate(1000, stream);
    const live = resource.allocate(1 * MiB, stream);
    resource.deallocate(freed, 1000, stream);
    const { resources, layers, devices, driverCalls, processId } = sampleStatistics();
    expect(resources).toEqual([
      {
        name: 'training',
        device: 0,
        memoryKind: 'device',
        liveBytes: 1 * MiB,
        peakBytes: 1 * MiB + 1000,
        totalAllocatedBytes: 1 * MiB + 1000,
        liveAllocations: 1,
        allocations: 2,
        frees: 1,
        failedAllocations: 0,
        layers: layers.map(({ name }) => name),
      },
    ]);
    expect(layers.map(({ name }) => name.replace(/\d+/, '#'))).toEqual(['PoolMemoryResource #', 'CudaMemoryResource #']);
    expect(layers[0]).toMatchObject({
      reservedBytes: 4 * MiB,
      peakReservedBytes: 4 * MiB,
      pool: { allocatedBytes: 1 * MiB, freeBytes: 3 * MiB, upstreamBlocks: 1, growths: 1, releases: 0 },
    });
    const { largestFreeBytes } = pool.statistics();
    expect(largestFreeBytes).toBeLessThan(3 * MiB);
    expect(layers[0]?.pool).toMatchObject({ largestFreeBytes, fragmentation: 1 - largestFreeBytes / (3 * MiB) });
    expect(layers[1]).toMatchObject({ reservedBytes: 4 * MiB, pool: null });
    expect(devices[0]?.totalBytes).toBeGreaterThan(devices[0]?.freeBytes as number);
    expect(driverCalls['cuMemAlloc']).toBeGreaterThan(0);
    expect(Object.values(driverCalls)).not.toContain(0);
    expect(processId).toBe(process.pid);
    resource.deallocate(live, 1 * MiB, stream);
    expect(sampleStatistics().layers[0]?.pool).toMatchObject({ freeBytes: 4 * MiB, fragmentation: 0 });
    resource.allocate(4 * MiB, stream);
    expect(sampleStatistics().layers[0]?.pool).toMatchObject({ freeBytes: 0, largestFreeBytes: 0, fragmentation: 0 });
  });

  test('counts from the beginning, whatever is pushed and popped', () => {
    using resource = new StatisticsResourceAdaptor(new SpyResource());
    const first = resource.allocate(100, stream);
    resource.pushCounters();
    resource.allocate(50, stream);
    resource.pushCounters();
    resource.deallocate(first, 100, stream);
    resource.allocate(7, stream);
    const inside = sampleStatistics().resources;
    expect(inside[0]).toMatchObject({ liveBytes: 57, peakBytes: 150, totalAllocatedBytes: 157, allocations: 3, frees: 1 });
    resource.popCounters();
    resource.popCounters();
    expect(sampleStatistics().resources).toEqual(inside);
    expect(resource.overallStatistics()).toEqual(resource.statistics());
  });

  test('numbers equal names, and keeps the numbers when others go', () => {
    const upstream = new SpyResource();
    using plain = new StatisticsResourceAdaptor(upstream);
    const first = new StatisticsResourceAdaptor(upstream, { name: 'step' });
    using second = new StatisticsResourceAdaptor(upstream, { name: 'step' });
    expect([plain.name, first.name, second.name]).toEqual(['statistics', 'step', 'step']);
    expect(names()).toEqual(['statistics', 'step', 'step 2']);
    first.dispose();
    expect(names()).toEqual(['statistics', 'step 2']);
    using third = new StatisticsResourceAdaptor(upstream, { name: 'step' });
    expect(names()).toEqual(['statistics', 'step 2', 'step']);
    expect(third.name).toBe('step');
  });

  test('lists a layer once if several resources are built on it', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream);
    using one = new StatisticsResourceAdaptor(pool, { name: 'one' });
    using other = new StatisticsResourceAdaptor(one, { name: 'other' });
    const { resources, layers } = sampleStatistics();
    expect(layers).toHaveLength(2);
    expect(resources.map(({ layers: below }) => below)).toEqual([layers.map(({ name }) => name), layers.map(({ name }) => name)]);
    expect(other.upstream).toBe(one);
    const statistics = vi.spyOn(pool, 'statistics');
    sampleStatistics();
    expect(statistics).toHaveBeenCalledOnce();
  });

  test('leaves out a layer that fails', () => {
    const upstream = new SpyResource();
    Object.defineProperty(upstream, 'reservedBytes', {
      get() {
        throw new Error('not now');
      },
    });
    using resource = new StatisticsResourceAdaptor(upstream as MemoryResource, { name: 'on a faulty one' });
    expect(sampleStatistics()).toMatchObject({ resources: [{ name: resource.name, layers: [] }], layers: [] });
  });

  test('counts buffers', () => {
    const { buffers } = sampleStatistics();
    using _buffer = new DeviceBuffer(100, { stream });
    expect(sampleStatistics().buffers).toBe(buffers + 1);
  });

  test('is plain data', () => {
    using resource = new StatisticsResourceAdaptor(new SpyResource());
    const sample = sampleStatistics();
    expect(JSON.parse(JSON.stringify(sample))).toEqual(sample);
    expect(sample.resources[0]?.name).toBe(resource.name);
  });
});

describe('a name', () => {
  test.each([[''], [5], [null]])('cannot be %j', (name) => {
    expect(() => new StatisticsResourceAdaptor(new SpyResource(), { name: name as string })).toThrow(ArgumentTypeError);
    expect(names()).toEqual([]);
  });
});

/** A busy machine may need seconds for what usually takes milliseconds. */
const patient = { timeout: 10_000 };

describe('publishStatistics', () => {
  function collect(): { readonly samples: StatisticsSample[]; readonly end: () => void } {
    const samples: StatisticsSample[] = [];
    const listener = (message: unknown) => {
      samples.push(message as StatisticsSample);
    };
    subscribe('cistern:statistics', listener);
    return { samples, end: () => unsubscribe('cistern:statistics', listener) };
  }

  test('publishes samples while there are subscribers, until it is disposed', async () => {
    using resource = new StatisticsResourceAdaptor(new SpyResource(), { name: 'published' });
    const { samples, end } = collect();
    const publisher = publishStatistics({ intervalMilliseconds: 10 });
    await expect.poll(() => samples.length, patient).toBeGreaterThan(2);
    expect(samples[0]?.resources).toMatchObject([{ name: resource.name }]);
    publisher[Symbol.dispose]();
    const count = samples.length;
    await new Promise((settle) => setTimeout(settle, 100));
    expect(samples).toHaveLength(count);
    end();
  });

  test('can be disposed by a subscriber', async () => {
    let calls = 0;
    const publisher = publishStatistics({ intervalMilliseconds: 10 });
    const listener = () => {
      calls++;
      publisher[Symbol.dispose]();
    };
    subscribe('cistern:statistics', listener);
    await expect.poll(() => calls, patient).toBe(1);
    await new Promise((settle) => setTimeout(settle, 100));
    unsubscribe('cistern:statistics', listener);
    expect(calls).toBe(1);
  });

  test('takes no sample without subscribers', async () => {
    const upstream = new SpyResource();
    let asked = 0;
    Object.defineProperty(upstream, 'reservedBytes', { get: () => asked++ });
    using _resource = new StatisticsResourceAdaptor(upstream as MemoryResource);
    expect(channel('cistern:statistics').hasSubscribers).toBe(false);
    using _publisher = publishStatistics({ intervalMilliseconds: 10 });
    await new Promise((settle) => setTimeout(settle, 100));
    expect(asked).toBe(0);
    const { samples, end } = collect();
    await expect.poll(() => samples.length, patient).toBeGreaterThan(0);
    expect(asked).toBeGreaterThan(0);
    end();
  });

  test.each([[9], [0], [10.5], [2 ** 31], [Number.NaN]])('refuses an interval of %d', (intervalMilliseconds) => {
    expect(() => publishStatistics({ intervalMilliseconds })).toThrow(ArgumentRangeError);
  });

  test('refuses an interval that is not a number', () => {
    expect(() => publishStatistics({ intervalMilliseconds: '5' as never })).toThrow(ArgumentTypeError);
    expect(() => publishStatistics(null as never)).toThrow(ArgumentTypeError);
  });
});
