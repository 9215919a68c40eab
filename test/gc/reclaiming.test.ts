import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ReclaimingResourceAdaptor } from '../../src/adaptors/pass-through/reclaiming-resource-adaptor.js';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { OutOfMemoryError } from '../../src/basics/errors.js';
import { GiB, MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { configureEarlyCollection } from '../../src/collector/early-collection.js';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Stream } from '../../src/driver/streams/stream.js';
import type { MemoryResource } from '../../src/memory-resource.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';
import { needSmallDevice } from '../support/device-memory.js';
import { collectGarbage } from './collection.js';

let stream: Stream;

// Early collection would leave nothing to do here.
beforeAll(() => configureEarlyCollection({ timeShare: 0 }));

beforeEach(() => {
  stream = new Stream();
});

afterEach(async () => {
  await collectGarbage();
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(0);
  stream.dispose();
  // A destroyed pool of the driver returns its memory once the device is seen to be idle.
  Device.get().synchronizeSync();
});

describe('a loop that needs 8 GiB if nothing of it is freed, on a device of 1 GiB', () => {
  beforeEach(needSmallDevice);

  const stacks: [string, () => MemoryResource][] = [
    ['CudaMemoryResource', () => new CudaMemoryResource()],
    ['CudaAsyncMemoryResource', () => new CudaAsyncMemoryResource()],
    ['an eager pool', () => new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents: 'eager' })],
    ['a deferred pool', () => new PoolMemoryResource(new CudaAsyncMemoryResource(), { deallocationEvents: 'deferred' })],
    ['a pool without events', () => new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents: 'off' })],
  ];

  function expectRescued(resource: ReclaimingResourceAdaptor): void {
    const { exhaustions, stages } = resource.timings();
    expect(exhaustions).toBeGreaterThanOrEqual(7);
    expect(stages.reduce((sum, { rescues }) => sum + rescues, 0)).toBe(exhaustions);
    expect(stages.reduce((sum, { recoveredBytes }) => sum + recoveredBytes, 0)).toBeGreaterThan(6 * GiB);
  }

  it.each(stacks)('runs to the end over %s, in one job, on two streams', async (_, make) => {
    using upstream = make();
    const resource = new ReclaimingResourceAdaptor(upstream);
    using other = new Stream();
    for (let i = 0; i < 256; i++) new DeviceBuffer(32 * MiB, { resource, stream: i % 2 === 0 ? stream : other });
    expectRescued(resource);
    resource.deallocate(resource.allocate(960 * MiB, stream), 960 * MiB, stream);
    await collectGarbage();
  });

  it.each(stacks)('runs to the end over %s, asynchronously', async (_, make) => {
    using upstream = make();
    const resource = new ReclaimingResourceAdaptor(upstream);
    for (let i = 0; i < 256; i++) {
      const scratch = await resource.allocateAsync(16 * MiB, stream);
      new DeviceBuffer(16 * MiB, { resource, stream });
      resource.deallocate(scratch, 16 * MiB, stream);
      new DeviceBuffer(16 * MiB, { resource, stream });
    }
    const { exhaustions, stages } = resource.timings();
    expect(exhaustions).toBeGreaterThanOrEqual(7);
    expect(stages.reduce((sum, { rescues }) => sum + rescues, 0)).toBe(exhaustions);
    await collectGarbage();
  });

  it.each(stacks)('never runs out over %s with a soft limit', async (_, make) => {
    using upstream = make();
    const resource = new ReclaimingResourceAdaptor(upstream, { softLimitFraction: 0.5 });
    for (let i = 0; i < 256; i++) new DeviceBuffer(32 * MiB, { resource, stream });
    expect(resource.timings()).toMatchObject({ exhaustions: 0 });
    expect(resource.timings().softCollections).toBeGreaterThanOrEqual(8);
    expect(resource.liveBytes).toBeLessThanOrEqual(608 * MiB);
    await collectGarbage();
  });
});

describe('settling', () => {
  it('frees buffers that V8 has already collected, without collecting', () => {
    const addresses = new AddressCountingResource();
    addresses.limitBytes = 1000;
    for (let i = 0; i < 10; i++) new DeviceBuffer(100, { resource: addresses, stream });
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['settle'] });
    expect(() => resource.allocate(900, stream)).toThrow(OutOfMemoryError);
    (globalThis as unknown as { gc(): void }).gc();
    const pointer = resource.allocate(900, stream);
    expect(resource.timings().stages[0]).toMatchObject({ calls: 2, rescues: 1, recoveredBytes: expect.closeTo(1000, -3) });
    resource.deallocate(pointer, 900, stream);
  });
});

describe('allocating asynchronously', () => {
  it('finds what the current job still held', async () => {
    const addresses = new AddressCountingResource();
    addresses.limitBytes = 1000;
    const held = new WeakRef(new DeviceBuffer(1000, { resource: addresses, stream }));
    // Reading the target of a WeakRef keeps it alive until the job is over.
    expect(held.deref()?.byteLength).toBe(1000);
    const resource = new ReclaimingResourceAdaptor(addresses);
    expect(() => resource.allocate(1000, stream)).toThrow(OutOfMemoryError);
    expect(held.deref()?.byteLength).toBe(1000);
    const pointer = await resource.allocateAsync(1000, stream);
    expect(addresses.liveBytes).toBe(1000);
    resource.deallocate(pointer, 1000, stream);
    await setImmediate();
  });
});
