import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  CudaMemoryResource,
  Device,
  HostMemoryResource,
  ManagedMemoryResource,
  MiB,
  PinnedHostMemoryResource,
  Stream,
} from '../../src/index.js';

const types = [CudaMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource, HostMemoryResource] as const;

describe.each(types)('%o', (type) => {
  let stream: Stream;
  beforeEach(() => {
    stream = new Stream({ nonBlocking: true });
  });
  afterEach(() => stream.dispose());

  test('is equal only to others of its class and device', () => {
    using first = new type();
    using second = new type();
    using far = new type({ device: Device.get(1) });
    expect(first.isEqual(second)).toBe(true);
    expect(first.isEqual(far)).toBe(false);
    for (const other of types) {
      using resource = new other();
      expect(first.isEqual(resource)).toBe(other === type);
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

  test('refuses an invalid device', () => {
    expect(() => new type({ device: 'cuda:0' as unknown as Device })).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
  });
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
