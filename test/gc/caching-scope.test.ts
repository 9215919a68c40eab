import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { setImmediate } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import {
  CachingMemoryResource,
  CudaMemoryResource,
  DeviceBuffer,
  MiB,
  reclaimUnreachableBuffers,
  StatisticsResourceAdaptor,
  Stream,
  uncached,
} from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { collectGarbage } from './collection.js';

const bytes = MiB;
const stream = new Stream();

afterEach(async () => {
  await collectGarbage();
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(0);
});

function drop(count: number, resource?: CachingMemoryResource | StatisticsResourceAdaptor): void {
  for (let i = 0; i < count; i++) new DeviceBuffer(bytes, resource === undefined ? { stream } : { stream, resource });
}

describe('a buffer that was created in one run of a cache and dropped', () => {
  it('does not free the memory that a later run now has there', async () => {
    const leaks: unknown[] = [];
    const listener = (message: unknown) => void leaks.push(message);
    subscribe('cistern:leak', listener);
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    cache.run(() => drop(2));
    await cache.run(async () => {
      const buffer = new DeviceBuffer(bytes, { stream });
      const pointer = cache.allocate(bytes, stream);
      buffer.fill(5);
      // Here the collector finds the buffers of the first run, whose addresses these two now have.
      await collectGarbage();
      reclaimUnreachableBuffers('major');
      expect(cache.statistics()).toMatchObject({ upstreamBlocks: 2, busyBlocks: 2 });
      expect(cache.allocate(bytes, stream)).not.toBe(pointer);
      expect([...new Set(buffer.toHostSync())]).toEqual([5]);
    });
    unsubscribe('cistern:leak', listener);
    expect(leaks).toEqual([]);
    expect(cache.statistics()).toMatchObject({ upstreamBlocks: 3, busyBlocks: 0 });
    cache.validate();
  });

  it('is not freed a second time through a resource that counts', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    const counting = new StatisticsResourceAdaptor(cache);
    for (let pass = 0; pass < 5; pass++) {
      cache.run(() => drop(3, counting));
      expect(counting.statistics().allocations).toMatchObject({ current: 0, total: 3 * (pass + 1) });
      await collectGarbage();
      expect(counting.statistics().bytes.current).toBe(0);
    }
    cache.validate();
  });
});

describe('a buffer that is dropped in a run', () => {
  it('returns its memory to that run when the collector finds it', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    await cache.run(async () => {
      for (let i = 0; i < 5; i++) {
        drop(4);
        await collectGarbage();
        expect(cache.statistics()).toMatchObject({ busyBlocks: 0, upstreamBlocks: 4 });
      }
    });
    cache.validate();
  });

  it('is freed by the collector if it was kept, and its memory stays in the cache', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    cache.run(() => void cache.keep(new DeviceBuffer(bytes, { stream })));
    expect(cache.statistics().keptBlocks).toBe(1);
    await collectGarbage();
    expect(cache.statistics()).toMatchObject({ keptBlocks: 0, freeBlocks: 1 });
  });

  it('goes to the upstream if it was created uncached', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    cache.run(() => uncached(() => drop(1)));
    expect(upstream.reservedBytes).toBe(bytes);
    await collectGarbage();
    expect(upstream.reservedBytes).toBe(0);
  });
});

describe('a loop that drops all of its buffers', () => {
  it('needs the memory of one pass under a cache, and the driver in the first pass only', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    const before = driverCallCounts().allocations;
    for (let pass = 0; pass < 200; pass++) {
      await cache.run(async () => {
        drop(5);
        if (pass % 10 === 0) await setImmediate();
        drop(5);
      });
    }
    expect(driverCallCounts().allocations - before).toBe(10);
    expect(upstream.peakReservedBytes).toBe(10 * bytes);
    cache.validate();
  });
});
