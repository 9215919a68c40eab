import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  Device,
  Event,
  HostMemoryResource,
  LimitingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryLocation,
  managedRangeAttributes,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  PrefetchResourceAdaptor,
  prefetch,
  Stream,
} from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';

vi.mock('../../src/driver/memory/managed-memory.js', { spy: true });

let stream: Stream;
let upstream: ManagedMemoryResource;
beforeAll(() => {
  stream = new Stream();
  upstream = new ManagedMemoryResource();
});
afterAll(() => stream.dispose());
afterEach(() => {
  vi.restoreAllMocks();
  expect(upstream.reservedBytes).toBe(0);
});

/** The place that the memory of an allocation was moved to. */
function locationOf(resource: PrefetchResourceAdaptor | ManagedMemoryResource, bytes = 10_000) {
  const pointer = resource.allocate(bytes, stream);
  stream.synchronizeSync();
  const { lastPrefetchLocation } = managedRangeAttributes(pointer, bytes);
  resource.deallocate(pointer, bytes, stream);
  return lastPrefetchLocation;
}

describe('PrefetchResourceAdaptor', () => {
  test('moves each allocation to the device of the upstream', () => {
    expect(locationOf(new PrefetchResourceAdaptor(upstream))).toBe(0);
    expect(locationOf(new PrefetchResourceAdaptor(upstream), 1)).toBe(0);
  });

  test('moves each allocation to the given location', () => {
    expect(locationOf(new PrefetchResourceAdaptor(upstream, { location: 'host' }))).toBe('host');
    expect(locationOf(new PrefetchResourceAdaptor(upstream, { location: Device.get(1) }))).toBe(1);
  });

  test('is the reason for the move: without it nothing moves', () => {
    expect(locationOf(upstream)).toBeUndefined();
  });

  test('queues the move of the whole allocation on its stream', () => {
    const resource = new PrefetchResourceAdaptor(upstream);
    using other = new Stream({ nonBlocking: true });
    const pointer = resource.allocate(10_000, other);
    expect(prefetch).toHaveBeenLastCalledWith(pointer, 10_000, Device.get(), other);
    resource.deallocate(pointer, 10_000, other);
  });

  test('passes zero bytes, the alignment and the fence on', () => {
    const resource = new PrefetchResourceAdaptor(upstream, { deallocationEvents: 'deferred' });
    const allocate = vi.spyOn(upstream, 'allocate');
    const deallocate = vi.spyOn(upstream, 'deallocate');
    using event = new Event();
    vi.mocked(prefetch).mockClear();
    expect(resource.allocate(0, stream)).toBe(0);
    expect(prefetch).not.toHaveBeenCalled();
    const pointers = [resource.allocate(5, stream, 256), resource.allocate(5, stream)] as const;
    resource.deallocate(pointers[0], 5, stream);
    resource.deallocate(pointers[1], 5, stream, event);
    expect(allocate.mock.calls.map(([, , alignment]) => alignment)).toEqual([undefined, 256, undefined]);
    expect(deallocate.mock.calls.map(([, , , fence]) => fence)).toEqual(['deferred', event]);
  });

  test('frees the allocation if it cannot be moved', () => {
    const resource = new PrefetchResourceAdaptor(upstream);
    failCall('cuMemPrefetchAsync', 1, 1);
    expect(() => resource.allocate(5000, stream)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_DRIVER', driverName: 'CUDA_ERROR_INVALID_VALUE' }),
    );
    expect(upstream.reservedBytes).toBe(0);
    expect(locationOf(resource)).toBe(0);
  });

  test('allocates on a device that cannot prefetch, and moves nothing', () => {
    const resource = new PrefetchResourceAdaptor(upstream);
    vi.spyOn(Device.get(), 'attribute').mockReturnValue(0);
    failCall('cuMemPrefetchAsync', 1, 101);
    expect(locationOf(resource)).toBeUndefined();
    vi.restoreAllMocks();
    failCall('cuMemPrefetchAsync', 1, 101);
    expect(() => resource.allocate(5000, stream)).toThrow(expect.objectContaining({ driverName: 'CUDA_ERROR_INVALID_DEVICE' }));
  });

  test('frees the allocation if its stream was disposed in the meantime', () => {
    const resource = new PrefetchResourceAdaptor(upstream);
    const ending = new Stream();
    const { allocate } = upstream;
    vi.spyOn(upstream, 'allocate').mockImplementation((...args) => {
      const pointer = allocate.apply(upstream, args);
      ending.dispose();
      return pointer;
    });
    expect(() => resource.allocate(5000, ending)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(upstream.reservedBytes).toBe(0);
  });

  test('names itself in an out-of-memory error, and passes other errors on', () => {
    const resource = new PrefetchResourceAdaptor(new LimitingResourceAdaptor(upstream, { limitBytes: 1000 }));
    expect(() => resource.allocate(5000, stream)).toThrow(
      expect.objectContaining({ path: ['PrefetchResourceAdaptor', 'LimitingResourceAdaptor'] }),
    );
    expect(() => resource.allocate(-1, stream)).toThrow(RangeError);
  });

  test('passes unmanaged memory on unchanged', () => {
    for (const other of [
      new CudaMemoryResource(),
      new CudaAsyncMemoryResource(),
      new PinnedHostMemoryResource(),
      new HostMemoryResource(),
    ]) {
      using _ = other;
      using pool = new PoolMemoryResource(other);
      const resource = new PrefetchResourceAdaptor(pool);
      const pointer = resource.allocate(10_000, stream);
      expect(pointer).toBeGreaterThan(0);
      expect(resource.memoryKind).toBe(other.memoryKind);
      resource.deallocate(pointer, 10_000, stream);
    }
  });

  test.each(['device', 0, null])('refuses the location %s', (location) => {
    expect(() => new PrefetchResourceAdaptor(upstream, { location: location as MemoryLocation })).toThrow(
      /^location must be a Device or 'host'/,
    );
  });
});
