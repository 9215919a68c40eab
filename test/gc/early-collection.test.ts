import { constants, type PerformanceEntry, PerformanceObserver } from 'node:perf_hooks';
import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { CachingMemoryResource } from '../../src/adaptors/pooling/caching-memory-resource.js';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { GiB, MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { configureEarlyCollection, heldMemory } from '../../src/collector/early-collection.js';
import { Device, type MemoryKind } from '../../src/driver/device.js';
import { Stream } from '../../src/driver/streams/stream.js';
import type { MemoryResource } from '../../src/memory-resource.js';
import { CallbackMemoryResource } from '../../src/resources/callback-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';
import { collectGarbage } from './collection.js';

const stream = Stream.legacyDefault();
const ofDevice = heldMemory('device', Device.get());
let addresses: AddressCountingResource;

beforeEach(() => {
  addresses = new AddressCountingResource();
  vi.spyOn(Device.get(), 'totalBytes', 'get').mockReturnValue(1 * GiB);
  configureEarlyCollection();
});

afterEach(async () => {
  await collectGarbage();
  vi.restoreAllMocks();
  expect(ofDevice.heldBytes).toBe(0);
});

interface CollectionEntry extends PerformanceEntry {
  readonly detail: { readonly kind: number };
}

/** The number of major collections while `run` ran. */
async function majorCollections(run: () => void): Promise<number> {
  let count = 0;
  const observer = new PerformanceObserver((list) => {
    for (const entry of list.getEntries() as CollectionEntry[]) if (entry.detail.kind === constants.NODE_PERFORMANCE_GC_MAJOR) count++;
  });
  observer.observe({ entryTypes: ['gc'] });
  run();
  // Entries arrive in a later turn of the event loop.
  for (let turn = 0; turn < 3; turn++) await setImmediate();
  observer.disconnect();
  return count;
}

describe('what buffers hold', () => {
  it('goes up with them, and back to nothing when they are disposed, resized and collected', async () => {
    const held = Array.from({ length: 10 }, () => new DeviceBuffer(32 * MiB, { resource: addresses, stream }));
    expect(ofDevice.heldBytes).toBe(320 * MiB);
    for (const buffer of held.splice(5)) buffer.dispose();
    expect(ofDevice.heldBytes).toBe(160 * MiB);
    held[0]?.resize(0);
    held[0]?.shrinkToFit();
    expect(ofDevice.heldBytes).toBe(128 * MiB);
    held.length = 0;
    await collectGarbage();
    expect(ofDevice.heldBytes).toBe(0);
  });

  it('is their capacity, not their length', () => {
    using buffer = new DeviceBuffer(1, { resource: addresses, stream, capacityBytes: 8 * MiB });
    buffer.resize(2);
    expect(ofDevice.heldBytes).toBe(8 * MiB);
  });

  it('is unchanged if the resource refuses', () => {
    addresses.limitBytes = 1000;
    expect(() => new DeviceBuffer(2000, { resource: addresses, stream })).toThrow();
    const buffer = new DeviceBuffer(500, { resource: addresses, stream });
    addresses.beforeFree = () => {
      throw new Error('no');
    };
    expect(() => buffer.dispose()).toThrow('no');
    expect(ofDevice.heldBytes).toBe(500);
    addresses.beforeFree = undefined;
    buffer.dispose();
    expect(ofDevice.heldBytes).toBe(0);
  });
});

describe('a program that disposes its buffers', () => {
  it('causes no major collection by buffers of 256 MiB that come and go', async () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 512 * MiB });
    const count = await majorCollections(() => {
      for (let i = 0; i < 2000; i++) new DeviceBuffer(256 * MiB, { resource: pool, stream }).dispose();
    });
    expect(count).toBe(0);
  });

  it('causes none by runs of a cache that hold 640 MiB', async () => {
    using cache = new CachingMemoryResource(new CudaMemoryResource());
    const count = await majorCollections(() => {
      for (let pass = 0; pass < 50; pass++) {
        cache.run(() => {
          for (let i = 0; i < 80; i++) new DeviceBuffer(8 * MiB, { resource: cache, stream });
        });
      }
    });
    expect(count).toBe(0);
  });

  it('causes a few in its lifetime if it really needs nearly all of the device', async () => {
    const count = await majorCollections(() => {
      for (let pass = 0; pass < 500; pass++) {
        const held = Array.from({ length: 61 }, () => new DeviceBuffer(16 * MiB, { resource: addresses, stream }));
        for (const buffer of held) buffer.dispose();
      }
    });
    expect(count).toBeLessThanOrEqual(4);
  });
});

describe('a program that never disposes', () => {
  it('holds no more than the device has, yielding now and then', async () => {
    let most = 0;
    for (let i = 0; i < 400; i++) {
      new DeviceBuffer(64 * MiB, { resource: addresses, stream });
      most = Math.max(most, addresses.liveBytes);
      if (i % 10 === 9) await setImmediate();
    }
    expect(most).toBeLessThanOrEqual(1 * GiB);
  });

  it('holds no more than the device has, in one job', () => {
    let most = 0;
    for (let i = 0; i < 400; i++) {
      new DeviceBuffer(64 * MiB, { resource: addresses, stream });
      most = Math.max(most, addresses.liveBytes);
    }
    expect(most).toBeLessThanOrEqual(1 * GiB);
  });

  it.each<MemoryKind>(['host', 'pinned-host'])('holds no more %s memory than the host has', (memoryKind) => {
    vi.spyOn(process, 'availableMemory').mockImplementation(() => 2 * GiB - addresses.liveBytes);
    const resource: MemoryResource = new CallbackMemoryResource(
      (bytes, on) => addresses.allocate(bytes, on),
      (pointer, bytes, on) => addresses.deallocate(pointer, bytes, on),
      { memoryKind },
    );
    const held = [];
    let most = 0;
    for (let i = 0; i < 1000; i++) {
      // Some live for a while, so that only major collections find them.
      held.push(new DeviceBuffer(32 * MiB, { resource, stream }));
      if (held.length > 8) held.shift();
      most = Math.max(most, addresses.liveBytes);
    }
    expect(most).toBeLessThanOrEqual(2 * GiB);
    expect(heldMemory(memoryKind, Device.get()).heldBytes).toBe(addresses.liveBytes);
  });

  it('collects nothing if early collection is off', async () => {
    configureEarlyCollection({ timeShare: 0 });
    const count = await majorCollections(() => {
      for (let i = 0; i < 100; i++) new DeviceBuffer(64 * MiB, { resource: addresses, stream });
      expect(addresses.frees).toEqual([]);
    });
    expect(count).toBe(0);
  });
});
