import { expect, test } from 'vitest';
import {
  CachingMemoryResource,
  CallbackMemoryResource,
  CudaMemoryResource,
  DeviceBuffer,
  type DevicePointer,
  KiB,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  PassThroughAdaptor,
  PoolMemoryResource,
  Stream,
  uncached,
} from '../../src/index.js';

/** Backs every allocation with a buffer that does not appear among the layers. */
function buffersOf(resource: MemoryResource): { upstream: MemoryResource; backing: Map<DevicePointer, DeviceBuffer> } {
  const backing = new Map<DevicePointer, DeviceBuffer>();
  const upstream = new CallbackMemoryResource(
    (bytes, stream) => {
      const buffer = new DeviceBuffer(bytes, { resource, stream });
      backing.set(buffer.ptr, buffer);
      return buffer.ptr;
    },
    (pointer) => {
      backing.get(pointer)?.dispose();
      backing.delete(pointer);
    },
  );
  return { upstream, backing };
}

test("the end of a run leaves buffers alone that back the cache's memory", () => {
  using stream = new Stream();
  const cuda = new CudaMemoryResource();
  const { upstream, backing } = buffersOf(cuda);
  using cache = new CachingMemoryResource(upstream);
  const pass = () => cache.run(() => cache.allocate(MiB, stream));
  const pointer = pass();
  expect([...backing.values()].map(({ isDisposed }) => isDisposed)).toEqual([false]);
  using mine = new DeviceBuffer(MiB, { resource: cuda, stream });
  expect(mine.ptr).not.toBe(pointer);
  expect(pass()).toBe(pointer);
});

test.each(['reset', 'rewind', 'release'] as const)("a %s leaves buffers alone that back the resource's memory", (way) => {
  using stream = new Stream();
  const { upstream, backing } = buffersOf(new CudaMemoryResource());
  using monotonic = new MonotonicMemoryResource(upstream, { initialBytes: MiB });
  const mark = monotonic.mark();
  const above = new DeviceBuffer(4 * KiB, { resource: monotonic, stream });
  const [below] = backing.values();
  if (way === 'rewind') monotonic.rewind(mark);
  else if (way === 'reset') monotonic.reset();
  else expect(monotonic.release(stream)).toBe(MiB);
  expect(above.isDisposed).toBe(true);
  expect(below?.isDisposed).toBe(way === 'release');
});

test('of two buffers at one address, each is notified when its own memory is taken back', () => {
  using stream = new Stream();
  const cuda = new CudaMemoryResource();
  const outer = new PoolMemoryResource(cuda, { initialBytes: 4 * MiB });
  const slab = new DeviceBuffer(MiB, { resource: outer, stream });
  const upstream = new CallbackMemoryResource(
    () => slab.ptr,
    () => {},
  );
  using inner = new PoolMemoryResource(upstream, { initialBytes: MiB, maximumBytes: MiB });
  const small = new DeviceBuffer(256, { resource: inner, stream });
  expect(small.ptr).toBe(slab.ptr);
  inner.dispose();
  expect([small.isDisposed, slab.isDisposed]).toEqual([true, false]);
  outer.dispose();
  expect(slab.isDisposed).toBe(true);
});

test('memory that foreign code allocates during a bulk free is taken back too', () => {
  using stream = new Stream();
  using monotonic = new MonotonicMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
  let late: DeviceBuffer | undefined;
  const above = new CallbackMemoryResource(
    (bytes, on) => monotonic.allocate(bytes, on),
    (pointer, bytes, on) => {
      monotonic.deallocate(pointer, bytes, on);
      late ??= new DeviceBuffer(256, { resource: monotonic, stream });
    },
  );
  const mark = monotonic.mark();
  const first = new DeviceBuffer(256, { resource: above, stream });
  monotonic.rewind(mark);
  expect([first.isDisposed, late?.isDisposed]).toEqual([true, true]);
});

test('a limit above a cache counts memory as freed that a buffer released in the run', () => {
  using stream = new Stream();
  using cache = new CachingMemoryResource(new CudaMemoryResource());
  const limit = new LimitingResourceAdaptor(cache, { limitBytes: MiB });
  for (let pass = 1; pass <= 3; pass++) {
    cache.run(() => new DeviceBuffer(4 * KiB * pass, { resource: limit, stream }).release());
    expect(limit.allocatedBytes).toBe(0);
  }
});

test('a buffer that adopted memory of a run outside it ends with the run', () => {
  using stream = new Stream();
  using cache = new CachingMemoryResource(new CudaMemoryResource());
  let adopted: DeviceBuffer | undefined;
  cache.run(() => {
    const released = new DeviceBuffer(4 * KiB, { resource: cache, stream }).release();
    adopted = uncached(() => DeviceBuffer.adopt(released));
  });
  expect(adopted?.isDisposed).toBe(true);
});

test('a cache stays intact if an adaptor above throws after it has freed', () => {
  class Failing extends PassThroughAdaptor {
    constructor(upstream: MemoryResource) {
      super(upstream, {});
    }

    allocate(bytes: number, stream: Stream): DevicePointer {
      return this.upstream.allocate(bytes, stream);
    }

    deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
      this.upstream.deallocate(pointer, bytes, stream);
      throw new Error('freed nevertheless');
    }
  }
  using stream = new Stream();
  using cache = new CachingMemoryResource(new CudaMemoryResource());
  const failing = new Failing(cache);
  const limit = new LimitingResourceAdaptor(failing, { limitBytes: MiB });
  expect(() => cache.run(() => limit.allocate(4 * KiB, stream))).toThrow('freed nevertheless');
  cache.validate();
  expect(cache.statistics()).toMatchObject({ busyBlocks: 0, keptBlocks: 0 });
});
