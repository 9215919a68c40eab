import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  ArenaMemoryResource,
  CachingMemoryResource,
  CudaMemoryResource,
  type DevicePointer,
  FixedSizeMemoryResource,
  KiB,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
} from '../../src/index.js';

/** Device memory up to a limit that may change, which counts requests for it. */
class ScarceResource extends CudaMemoryResource {
  leftBytes: number;
  calls = 0;

  constructor(leftBytes: number) {
    super();
    this.leftBytes = leftBytes;
  }

  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.calls++;
    if (bytes > this.leftBytes) throw new OutOfMemoryError('no more', { requestedBytes: bytes, path: ['the device'] });
    this.leftBytes -= bytes;
    return super.allocate(bytes, stream, alignment);
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    super.deallocate(pointer, bytes, stream);
    this.leftBytes += bytes;
  }
}

let stream: Stream;
beforeAll(() => {
  stream = new Stream();
});
afterAll(() => {
  stream.dispose();
});

const bytes = 8 * KiB;
const poolingResources: readonly [string, (upstream: MemoryResource) => MemoryResource][] = [
  ['pool', (upstream) => new PoolMemoryResource(upstream)],
  ['pool without events', (upstream) => new PoolMemoryResource(upstream, { deallocationEvents: 'off' })],
  ['pool with a far maximum', (upstream) => new PoolMemoryResource(upstream, { maximumBytes: 1024 * MiB })],
  ['arena', (upstream) => new ArenaMemoryResource(upstream, { arenaBytes: 16 * MiB })],
  ['blocks of fixed size', (upstream) => new FixedSizeMemoryResource(upstream, { blockBytes: bytes, blocksToPreallocate: 128 })],
  ['monotonic resource', (upstream) => new MonotonicMemoryResource(upstream, { growthFactor: 8 })],
  ['cache', (upstream) => new CachingMemoryResource(upstream)],
  ['pool on a pool', (upstream) => new PoolMemoryResource(new PoolMemoryResource(upstream))],
];

function inRun<T>(resource: MemoryResource, use: () => T): T {
  return resource instanceof CachingMemoryResource ? resource.run(use) : use();
}

describe.each(poolingResources)('a %s whose upstream has no more', (_, make) => {
  test('asks it once for each request, and gets what others give back', () => {
    const upstream = new ScarceResource(16 * MiB + 100 * KiB);
    using resource = make(upstream);
    inRun(resource, () => {
      const served: DevicePointer[] = [];
      const fill = () => {
        for (let i = 0; i < 10_000; i++) {
          try {
            served.push(resource.allocate(bytes, stream));
          } catch (error) {
            expect(error).toBeInstanceOf(OutOfMemoryError);
            return;
          }
        }
        throw new Error('memory without end');
      };
      fill();
      const refuse = (count: number) => {
        const before = upstream.calls;
        for (let i = 0; i < count; i++) expect(() => resource.allocate(bytes, stream)).toThrow(OutOfMemoryError);
        return upstream.calls - before;
      };
      // An arena holds everything that it may, and asks for nothing.
      expect(refuse(100)).toBeLessThanOrEqual(
        resource instanceof PoolMemoryResource && resource.upstream instanceof PoolMemoryResource ? 200 : 100,
      );
      if (resource instanceof ArenaMemoryResource) return;
      const before = served.length;
      const left = upstream.leftBytes;
      // Another user gives back as much as one block needs, unnoticed here.
      upstream.leftBytes = left + bytes;
      served.push(resource.allocate(bytes, stream));
      expect(served.length).toBe(before + 1);
      // And much more.
      upstream.leftBytes += 8 * MiB;
      const calls = upstream.calls;
      fill();
      expect(served.length - before).toBeGreaterThan(1000);
      if (!(resource instanceof CachingMemoryResource)) expect(upstream.calls - calls).toBeLessThan(40);
      // A smaller request is tried again.
      expect(refuse(10)).toBeLessThanOrEqual(20);
    });
  });
});

test('a pool asks for large blocks again after it gave memory back', () => {
  const upstream = new ScarceResource(4 * MiB);
  using pool = new PoolMemoryResource(upstream);
  const pointer = pool.allocate(3 * MiB, stream);
  expect(() => pool.allocate(2 * MiB, stream)).toThrow(OutOfMemoryError);
  pool.deallocate(pointer, 3 * MiB, stream);
  const calls = upstream.calls;
  pool.deallocate(pool.allocate(4 * MiB, stream), 4 * MiB, stream);
  expect(upstream.calls - calls).toBe(2);
  expect(pool.trim(stream)).toBe(4 * MiB);
  pool.allocate(1 * MiB, stream);
  pool.allocate(1 * MiB, stream);
  pool.allocate(1 * MiB, stream);
  pool.allocate(1 * MiB, stream);
  expect(pool.reservedBytes).toBe(4 * MiB);
});

describe('a cache with a maximum', () => {
  test('gives free blocks of other sizes back before it grows, and names the maximum if that does not help', () => {
    using upstream = new CudaMemoryResource();
    const before = upstream.reservedBytes;
    using cache = new CachingMemoryResource(upstream, { name: 'small', maximumBytes: 10_000 });
    expect(cache.maximumBytes).toBe(39 * 256);
    cache.run(() => [1000, 2000, 3000].map((size) => cache.allocate(size, stream)));
    expect(cache.reservedBytes).toBe(1024 + 2048 + 3072);
    cache.run(() => {
      const again = cache.allocate(2000, stream);
      cache.allocate(5000, stream);
      expect(cache.reservedBytes).toBeLessThanOrEqual(cache.maximumBytes);
      expect(cache.reservedBytes).toBeGreaterThanOrEqual(2048 + 5120);
      expect(() => cache.allocate(5000, stream)).toThrow(
        expect.objectContaining({
          code: 'ERR_CISTERN_OUT_OF_MEMORY',
          limitBytes: 39 * 256,
          message: expect.stringMatching(/are in the cache 'small', and its maximum is 9.75 KiB$/),
        }),
      );
      expect(() => cache.allocate(MiB, stream)).toThrow('its maximum is 9.75 KiB');
      cache.deallocate(again, 2000, stream);
      cache.validate();
    });
    expect(cache.statistics().busyBlocks).toBe(0);
    // Outside runs it does not count.
    const passed = cache.allocate(MiB, stream);
    cache.deallocate(passed, MiB, stream);
    cache.dispose();
    expect(upstream.reservedBytes).toBe(before);
  });

  test.each([-1, 1.5, Number.NaN])('refuses a maximum of %d bytes', (maximumBytes) => {
    expect(() => new CachingMemoryResource(new CudaMemoryResource(), { maximumBytes })).toThrow(/^maximumBytes must be/);
  });
});

test.each([
  ['cache', (upstream: MemoryResource) => new CachingMemoryResource(upstream, { maximumBytes: 64 * MiB })],
  ['pool', (upstream: MemoryResource) => new PoolMemoryResource(upstream, { maximumBytes: 64 * MiB })],
  ['monotonic resource', (upstream: MemoryResource) => new MonotonicMemoryResource(upstream, { maximumBytes: 64 * MiB })],
])('the out-of-memory error of a %s names the limit below that was hit', (_, make) => {
  const limit = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: MiB });
  using resource = make(limit);
  expect(() => inRun(resource, () => resource.allocate(2 * MiB, stream))).toThrow(
    expect.objectContaining({ limitBytes: MiB, message: expect.stringContaining('the upstream, which has a limit of 1 MiB, has no more') }),
  );
});
