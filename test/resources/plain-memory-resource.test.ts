import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  CudaMemoryResource,
  Device,
  HostMemoryResource,
  LifetimeError,
  ManagedMemoryResource,
  MiB,
  PinnedHostMemoryResource,
  type PlainMemoryResourceOptions,
  Stream,
  set,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';

/** Pinned memory that cistern maps. */
class PopulatedMemoryResource extends PinnedHostMemoryResource {
  constructor(options: PlainMemoryResourceOptions = {}) {
    super({ ...options, populateThreads: 2 });
  }
}

const ofDriver = [CudaMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource, PopulatedMemoryResource] as const;
const types = [...ofDriver, HostMemoryResource] as const;

describe.each(types)('%o', (type) => {
  let stream: Stream;
  beforeEach(() => {
    stream = new Stream({ nonBlocking: true });
  });
  afterEach(() => stream.dispose());

  test('is equal only to others of its kind of memory and device', () => {
    using first = new type();
    using second = new type();
    using far = new type({ device: Device.get(1) });
    expect(first.isEqual(second)).toBe(true);
    expect(first.isEqual(far)).toBe(false);
    for (const other of types) {
      using resource = new other();
      expect(first.isEqual(resource)).toBe(resource.memoryKind === first.memoryKind);
    }
    second.deallocate(first.allocate(100, stream), 100, stream);
  });

  test('reports its bytes and their peak', () => {
    using resource = new type();
    const before = resource.reservedBytes;
    resource.resetPeakReservedBytes();
    const pointer = resource.allocate(3 * MiB, stream);
    expect(resource.reservedBytes).toBe(before + 3 * MiB);
    resource.deallocate(pointer, 3 * MiB, stream);
    expect(resource.reservedBytes).toBe(before);
    expect(resource.peakReservedBytes).toBe(before + 3 * MiB);
    resource.resetPeakReservedBytes();
    expect(resource.peakReservedBytes).toBe(before);
  });

  test('keeps its allocations when it is disposed, for its equals to free', () => {
    const first = new type();
    const pointer = first.allocate(4096, stream);
    first.dispose();
    first.dispose();
    using second = new type();
    second.deallocate(pointer, 4096, stream);
  });

  test("frees only after the stream's remaining work, running host functions during the wait", () => {
    using resource = new type();
    const pointer = resource.allocate(4096, stream);
    let hasRun = false;
    stream.launchHostFunction(() => {
      hasRun = true;
    });
    resource.deallocate(pointer, 4096, stream);
    expect(hasRun).toBe(true);
  });

  test.each([0, 1])('waits for the work of the stream that it is freed on, of device %d', (device) => {
    using resource = new type();
    using other = new Stream({ device: Device.get(device), nonBlocking: true });
    using elsewhere = new CudaMemoryResource({ device: Device.get(device) });
    const pointer = resource.allocate(4096, stream);
    const busy = elsewhere.allocate(64 * MiB, other);
    for (let i = 0; i < 4; i++) set(busy, i, 1, 64 * MiB, other);
    resource.deallocate(pointer, 4096, other);
    expect(other.query()).toBe(true);
    elsewhere.deallocate(busy, 64 * MiB, other);
  });

  test('frees nothing if it cannot wait', () => {
    using resource = new type();
    const pointer = resource.allocate(4096, stream);
    failCall('cuStreamQuery', 1, 700);
    expect(() => resource.deallocate(pointer, 4096, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    expect(failCall('cuStreamQuery', 0)).toBe(false);
    resource.deallocate(pointer, 4096, stream);
    expect(() => resource.deallocate(pointer, 4096, stream)).toThrow(LifetimeError);
  });

  test('is freed after all work if a host function disposes its stream during the wait', () => {
    using resource = new type();
    using busy = new Stream({ nonBlocking: true });
    const pointer = resource.allocate(64 * MiB, stream);
    stream.launchHostFunction(() => {
      stream.dispose();
      if (resource.memoryKind !== 'host') for (let i = 0; i < 4; i++) set(pointer, i, 1, 64 * MiB, busy);
    });
    resource.deallocate(pointer, 64 * MiB, stream);
    expect(busy.query()).toBe(true);
  });

  test('refuses an invalid device', () => {
    expect(() => new type({ device: 'cuda:0' as unknown as Device })).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
  });
});

test.each(ofDriver)('%o frees later if its stream is held', (type) => {
  using resource = new type();
  using stream = new Stream({ nonBlocking: true });
  const frees = () => driverCallCounts().frees;
  const { reservedBytes } = resource;
  const pointer = resource.allocate(4096, stream);
  const before = frees();
  const hold = stream.hold();
  set(pointer, 1, 1, 4096, stream);
  resource.deallocate(pointer, 4096, stream);
  expect([frees(), resource.reservedBytes]).toEqual([before, reservedBytes]);
  hold.release();
  new Stream().dispose();
  expect(frees()).toBe(before + 1);
});

describe('HostMemoryResource', () => {
  test('supports alignments up to a gibibyte', () => {
    using stream = new Stream();
    using resource = new HostMemoryResource();
    for (const alignment of [4096, MiB, 64 * MiB]) {
      const pointer = resource.allocate(100, stream, alignment);
      expect(pointer % alignment).toBe(0);
      resource.deallocate(pointer, 100, stream);
    }
  });
});
