import { describe, expect, test, vi } from 'vitest';
import {
  ArenaMemoryResource,
  type Bin,
  BinningMemoryResource,
  type BinningMemoryResourceOptions,
  CachingMemoryResource,
  CallbackMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  Device,
  FixedSizeMemoryResource,
  GiB,
  KiB,
  LifetimeError,
  LimitingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  ResourceStack,
  StatisticsResourceAdaptor,
  Stream,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { code } from '../support/errors.js';
import { SpyResource } from '../support/spy-resource.js';

const stream = new Stream();

/** A resource that remembers the requested sizes. */
class SizesResource extends SpyResource {
  readonly sizes: number[] = [];

  override allocate(bytes: number, on: Stream): number {
    this.sizes.push(bytes);
    return super.allocate(bytes, on);
  }
}

describe('a binning resource', () => {
  test('has a bin of fixed-size blocks for each power of two', () => {
    using resource = new BinningMemoryResource(new CudaMemoryResource(), { minimumExponent: 18, maximumExponent: 22 });
    expect(resource.bins.map(({ bytes }) => bytes)).toEqual([256 * KiB, 512 * KiB, MiB, 2 * MiB, 4 * MiB]);
    expect(resource.bins.every(({ resource: bin }) => bin instanceof FixedSizeMemoryResource)).toBe(true);
    expect(resource.alternates).toEqual(resource.bins.map(({ resource: bin }) => bin));
  });

  test('has the given bins, smallest first, with sizes rounded up to 256', () => {
    const given = new SpyResource();
    using resource = new BinningMemoryResource(new SpyResource(), {
      bins: [{ bytes: 5000, resource: given }, 1000, 256],
      minimumExponent: 9,
      maximumExponent: 9,
    });
    expect(resource.bins.map(({ bytes }) => bytes)).toEqual([256, 512, 1024, 5120]);
    expect(resource.bins[3]?.resource).toBe(given);
  });

  test('lists a resource that serves two bins once', () => {
    const given = new SpyResource();
    using resource = new BinningMemoryResource(new SpyResource(), {
      bins: [
        { bytes: 512, resource: given },
        { bytes: 2048, resource: given },
      ],
    });
    expect(resource.alternates).toEqual([given]);
  });

  test('serves each size from the smallest bin that it fits into, and sizes that fit into none from the upstream', () => {
    const sizes = [512, 768, 1024, 1280, 4096, 1 * MiB, 3 * GiB];
    const bins = sizes.map((bytes) => ({ bytes, resource: new SizesResource() }));
    const upstream = new SizesResource();
    using resource = new BinningMemoryResource(upstream, { bins });
    const asked = [1, 2, ...sizes.flatMap((bytes) => [bytes - 1, bytes, bytes + 1]), 2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, 2 ** 40];
    for (const bytes of asked) {
      const expected = bins.find((bin) => bytes <= bin.bytes)?.resource ?? upstream;
      resource.allocate(bytes, stream);
      expect(expected.sizes.pop()).toBe(bytes);
      resource.deallocate(256, bytes, stream);
      expect(expected.fences).toHaveLength(1);
      expected.fences.length = 0;
    }
  });

  test('serves zero bytes from the smallest bin, which returns the null pointer', () => {
    const bin = new SizesResource();
    using resource = new BinningMemoryResource(new SizesResource(), { bins: [{ bytes: 512, resource: bin }, 1024] });
    expect(resource.allocate(0, stream)).toBe(0);
    expect(bin.sizes).toEqual([0]);
    resource.deallocate(0, 0, stream);
    resource.deallocate(0, 700, stream);
  });

  test('frees memory where its size came from', () => {
    using upstream = new CudaMemoryResource();
    const before = upstream.reservedBytes;
    using resource = new BinningMemoryResource(upstream, { minimumExponent: 12, maximumExponent: 14 });
    const small = resource.allocate(100, stream);
    const large = resource.allocate(MiB, stream);
    expect(upstream.reservedBytes - before).toBe(4096 + MiB);
    resource.deallocate(large, MiB, stream);
    resource.deallocate(small, 100, stream);
    expect(upstream.reservedBytes - before).toBe(4096);
    expect(resource.allocate(4096, stream)).toBe(small);
  });

  test('sends everything to the upstream if it has no bins', () => {
    const upstream = new SizesResource();
    using resource = new BinningMemoryResource(upstream);
    expect([resource.bins, resource.alternates]).toEqual([[], []]);
    const pointer = resource.allocate(100, stream);
    resource.deallocate(pointer, 100, stream);
    expect(upstream.sizes).toEqual([100]);
  });

  describe('addBin', () => {
    test('sends sizes to added bins as if they had always been there', () => {
      const upstream = new SizesResource();
      const given = new SizesResource();
      using resource = new BinningMemoryResource(upstream, { bins: [1024], deallocationEvents: 'off' });
      resource.addBin(300);
      resource.addBin({ bytes: MiB, resource: given });
      resource.addBin(4096);
      expect(resource.bins.map(({ bytes }) => bytes)).toEqual([512, 1024, 4096, MiB]);
      expect(resource.alternates).toEqual(resource.bins.map(({ resource: bin }) => bin));
      for (const bytes of [1, 512, 513, 1024, 1025, 4096]) {
        const pointer = resource.allocate(bytes, stream);
        resource.deallocate(pointer, bytes, stream);
      }
      expect([upstream.sizes, given.sizes]).toEqual([[512, 1024, 4096], []]);
      const deallocate = vi.spyOn(given, 'deallocate');
      for (const bytes of [4097, MiB]) resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
      expect(given.sizes).toEqual([4097, MiB]);
      expect(deallocate.mock.calls.map(([, , , fence]) => fence)).toEqual(['off', 'off']);
      expect(resource.bins[0]?.resource).toMatchObject({ deallocationEvents: 'off' });
    });

    test('preallocates blocks like other bins, and gives them back with the resource', () => {
      using upstream = new CudaMemoryResource();
      const before = upstream.reservedBytes;
      using resource = new BinningMemoryResource(upstream, { blocksToPreallocate: 2 });
      resource.addBin(MiB);
      expect(upstream.reservedBytes - before).toBe(2 * MiB);
      expect(resource.trim(stream)).toBe(2 * MiB);
      resource.allocate(MiB, stream);
      resource.dispose();
      expect(upstream.reservedBytes).toBe(before);
    });

    test('refuses a bin while the resource that serves its requests has allocations, whose sizes would lead elsewhere', () => {
      using resource = new BinningMemoryResource(new CudaMemoryResource(), { bins: [1024] });
      const small = resource.allocate(700, stream);
      const large = resource.allocate(MiB, stream);
      expect(() => resource.addBin(768)).toThrow(
        expect.objectContaining({
          code: 'ERR_CISTERN_INVALID_STATE',
          message:
            'cannot add a bin of 768 bytes: the next larger bin, which has served such requests, has 1 live allocations; free them first',
        }),
      );
      expect(() => resource.addBin(2048)).toThrow('the upstream, which has served such requests, has 1 live allocations');
      expect(resource.bins.map(({ bytes }) => bytes)).toEqual([1024]);
      resource.deallocate(small, 700, stream);
      resource.addBin(768);
      resource.deallocate(large, MiB, stream);
      resource.addBin(2048);
      expect(resource.bins.map(({ bytes }) => bytes)).toEqual([768, 1024, 2048]);
    });

    test.each<[string, (bins: BinningMemoryResource) => void, string]>([
      ['allocates', (bins) => bins.allocate(5000, stream), 'ERR_CISTERN_INVALID_STATE'],
      ['adds the same bin', (bins) => bins.addBin(64 * KiB), 'ERR_OUT_OF_RANGE'],
      ['disposes it', (bins) => bins.dispose(), 'ERR_CISTERN_DISPOSED'],
    ])('refuses a bin if the upstream %s while its blocks are taken', (_, act, expected) => {
      using cuda = new CudaMemoryResource();
      const before = cuda.reservedBytes;
      let bins: BinningMemoryResource | undefined;
      let isFirst = true;
      const upstream = new CallbackMemoryResource(
        (bytes, on) => {
          if (bins !== undefined && isFirst) {
            isFirst = false;
            act(bins);
          }
          return cuda.allocate(bytes, on);
        },
        (pointer, bytes, on) => cuda.deallocate(pointer, bytes, on),
      );
      bins = new BinningMemoryResource(upstream, { blocksToPreallocate: 2 });
      expect(() => bins.addBin(64 * KiB)).toThrow(code(expected));
      expect(isFirst).toBe(false);
      const sizes = bins.bins.map(({ bytes }) => bytes);
      expect(sizes).toEqual(expected === 'ERR_OUT_OF_RANGE' ? [64 * KiB] : []);
      bins.dispose();
      expect(cuda.reservedBytes - before).toBe(expected === 'ERR_CISTERN_INVALID_STATE' ? 5000 : 0);
    });

    test.each<[string, (bins: BinningMemoryResource) => void, string]>([
      ['adds the same bin', (bins) => bins.addBin(64 * KiB), 'ERR_OUT_OF_RANGE'],
      ['disposes it', (bins) => bins.dispose(), 'ERR_CISTERN_DISPOSED'],
    ])('leaves nothing behind if the upstream %s during that and refuses the blocks', (_, act, expected) => {
      using cuda = new CudaMemoryResource();
      const before = cuda.reservedBytes;
      let bins: BinningMemoryResource | undefined;
      let isFirst = true;
      let refuses = false;
      const upstream = new CallbackMemoryResource(
        (bytes, on) => {
          const pointer = cuda.allocate(bytes, on);
          if (bins !== undefined && isFirst) {
            isFirst = false;
            act(bins);
            refuses = true;
          }
          return pointer;
        },
        (pointer, bytes, on) => {
          if (refuses) throw new Error('not now');
          cuda.deallocate(pointer, bytes, on);
        },
      );
      bins = new BinningMemoryResource(upstream, { blocksToPreallocate: 2 });
      expect(() => bins?.addBin(64 * KiB)).toThrow(code(expected));
      refuses = false;
      bins.dispose();
      expect(cuda.reservedBytes - before).toBe(0);
    });

    test('succeeds although a cache took memory back at the end of a run', () => {
      using cuda = new CudaMemoryResource();
      using cache = new CachingMemoryResource(cuda);
      using resource = new BinningMemoryResource(cuda, { bins: [{ bytes: MiB, resource: cache }] });
      cache.run(() => resource.allocate(5000, stream));
      resource.addBin(64 * KiB);
      expect(resource.bins).toHaveLength(2);
    });

    test('refuses a resource that takes memory back, which adaptors above do not know of, unless it is below this one already', () => {
      using cuda = new CudaMemoryResource();
      using cache = new CachingMemoryResource(cuda);
      using other = new CachingMemoryResource(cuda);
      using resource = new BinningMemoryResource(cuda, { bins: [{ bytes: MiB, resource: cache }] });
      const above = new StatisticsResourceAdaptor(resource);
      for (const taker of [other, new StatisticsResourceAdaptor(other)]) {
        expect(() => resource.addBin({ bytes: KiB, resource: taker })).toThrow(code('ERR_INVALID_ARG_VALUE'));
      }
      expect(resource.bins).toHaveLength(1);
      resource.addBin({ bytes: KiB, resource: cache });
      cache.run(() => above.allocate(500, stream));
      expect(above.statistics().bytes.current).toBe(0);
    });

    test('counts neither zero bytes nor failed allocations', () => {
      const upstream = new CudaMemoryResource();
      using resource = new BinningMemoryResource(upstream, { bins: [1024] });
      resource.allocate(0, stream);
      failCall('cuMemAlloc', 1, 2);
      expect(() => resource.allocate(500, stream)).toThrow(OutOfMemoryError);
      resource.deallocate(0, 500, stream);
      resource.addBin(512);
      expect(resource.bins).toHaveLength(2);
    });

    test.each<[number | Bin, string, string]>([
      [1024, 'ERR_OUT_OF_RANGE', 'bins must differ in size, got a second one of 1024 bytes'],
      [0, 'ERR_OUT_OF_RANGE', 'bin must be at least 1, got 0'],
      ['1KiB' as never, 'ERR_INVALID_ARG_TYPE', 'bin must be a number, got "1KiB"'],
      [4 * GiB, 'ERR_OUT_OF_RANGE', 'blockBytes must be from 1 to 2 GiB - 256'],
      [{ bytes: 5 } as never, 'ERR_INVALID_ARG_TYPE', 'bin.resource must be a MemoryResource'],
    ])('refuses %j, and leaves the state unchanged', (bin, expected, message) => {
      using resource = new BinningMemoryResource(new CudaMemoryResource(), { bins: [1024] });
      expect(() => resource.addBin(bin)).toThrow(expect.objectContaining({ code: expected, message: expect.stringContaining(message) }));
      expect(resource.bins).toHaveLength(1);
      resource.dispose();
      expect(() => resource.addBin(2048)).toThrow(code('ERR_CISTERN_DISPOSED'));
    });
  });

  test('takes no blocks before they are used, or as many as requested', () => {
    using upstream = new CudaMemoryResource();
    const before = upstream.reservedBytes;
    using lazy = new BinningMemoryResource(upstream, { minimumExponent: 18, maximumExponent: 22 });
    expect(upstream.reservedBytes).toBe(before);
    using eager = new BinningMemoryResource(upstream, { minimumExponent: 18, maximumExponent: 22, blocksToPreallocate: 2 });
    expect(upstream.reservedBytes - before).toBe(2 * (256 * KiB + 512 * KiB + 7 * MiB));
    expect(lazy.isEqual(eager)).toBe(false);
  });

  test.each<[BinningMemoryResourceOptions, string]>([
    [{ minimumExponent: 10 }, 'minimumExponent and maximumExponent, the smallest and the largest bin, must be given together'],
    [{ maximumExponent: 10 }, 'must be given together'],
    [{ minimumExponent: 7, maximumExponent: 10 }, 'minimumExponent must be an integer from 8 to 30, got 7'],
    [{ minimumExponent: 10, maximumExponent: 9 }, 'maximumExponent must be an integer from 10 to 30, got 9'],
    [{ minimumExponent: 10, maximumExponent: 31 }, 'maximumExponent must be an integer from 10 to 30, got 31'],
    [{ minimumExponent: 10.5, maximumExponent: 11 }, 'minimumExponent must be an integer'],
    [{ bins: [0] }, 'bins[0] must be at least 1, got 0'],
    [{ bins: [512, -1] }, 'bins[1] must be an integer'],
    [{ bins: [1000, 1024] }, 'bins must differ in size, got two of 1024 bytes'],
    [{ bins: [2 * GiB] }, 'blockBytes must be from 1 to 2 GiB - 256'],
    [{ bins: [{ bytes: 512 } as never] }, 'bins[0].resource must be a MemoryResource, got undefined'],
    [
      { bins: [{ bytes: 512, resource: new ManagedMemoryResource() }] },
      'must have device memory of device 0, as the upstream does, got one with managed memory',
    ],
    [{ bins: [null as never] }, 'bins[0] must be an object, got null'],
    [{ bins: 512 as never }, 'bins must be an array, got 512'],
    [{ bins: [512], deallocationEvents: 'lazy' as 'eager' }, 'deallocationEvents must be'],
  ])('refuses %o', (options, message) => {
    expect(() => new BinningMemoryResource(new CudaMemoryResource(), options)).toThrow(message);
  });

  test('refuses a bin on another device', () => {
    const resource = new CudaMemoryResource({ device: Device.get(1) });
    const make = () => new BinningMemoryResource(new CudaMemoryResource(), { bins: [{ bytes: 512, resource }] });
    expect(make).toThrow('got one with device memory of device 1');
  });

  test('leaves nothing behind if a bin cannot be made', () => {
    using upstream = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 15 * KiB });
    const make = (maximumExponent: number) =>
      new BinningMemoryResource(upstream, { minimumExponent: 10, maximumExponent, blocksToPreallocate: 1 });
    expect(() => make(14)).toThrow(
      expect.objectContaining({ path: ['BinningMemoryResource', 'FixedSizeMemoryResource', 'LimitingResourceAdaptor'] }),
    );
    expect(upstream.allocatedBytes).toBe(0);
    make(13).dispose();
  });

  test('is out of memory if the bin is, and asks no other', () => {
    using bin = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes: 1024, blocksToPreallocate: 1, maximumBytes: 1024 });
    using resource = new BinningMemoryResource(new CudaMemoryResource(), { bins: [{ bytes: 1024, resource: bin }, 2048] });
    const pointer = resource.allocate(1000, stream);
    expect(() => resource.allocate(1000, stream)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY', path: ['BinningMemoryResource', 'FixedSizeMemoryResource'] }),
    );
    expect(resource.allocate(1025, stream)).toBeGreaterThan(0);
    resource.deallocate(pointer, 1000, stream);
    expect(resource.allocate(1, stream)).toBe(pointer);
  });

  test('names the request that the upstream could not serve', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes: MiB });
    using resource = new BinningMemoryResource(pool, { bins: [1024] });
    expect(() => resource.allocate(2 * MiB, stream)).toThrow(
      expect.objectContaining({ path: ['BinningMemoryResource', 'PoolMemoryResource'] }),
    );
  });

  test("names the size of a block's allocation when it is freed with a size of another bin", () => {
    using resource = new BinningMemoryResource(new CudaMemoryResource(), { minimumExponent: 10, maximumExponent: 12 });
    const pointer = resource.allocate(3000, stream);
    for (const bytes of [1000, MiB]) {
      const message = new RegExp(`^the BinningMemoryResource cannot free 0x\\w+ with ${bytes} bytes: it was allocated with 3000 bytes$`);
      expect(() => resource.deallocate(pointer, bytes, stream)).toThrow(message);
    }
    expect(() => resource.deallocate(pointer, 3001, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    resource.deallocate(pointer, 3000, stream);
    expect(() => resource.deallocate(pointer, 3000, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    expect(() => resource.deallocate(pointer, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
  });

  test('does not let a wrong size free an upstream block that a bin holds', () => {
    const upstream = new CudaMemoryResource();
    using resource = new BinningMemoryResource(upstream, { bins: [1024], blocksToPreallocate: 2 });
    const first = resource.allocate(768, stream);
    const second = resource.allocate(768, stream);
    const reservedBytes = upstream.reservedBytes;
    for (const pointer of [first, second]) {
      expect(() => resource.deallocate(pointer, 2048, stream)).toThrow(LifetimeError);
    }
    resource.deallocate(first, 768, stream);
    expect(() => resource.deallocate(first, 2048, stream)).toThrow(LifetimeError);
    expect(upstream.reservedBytes).toBe(reservedBytes);
    resource.deallocate(second, 768, stream);
  });

  test('gives its policy to its own bins, and passes it to the upstream and to bins given as resources', () => {
    const upstream = new SpyResource();
    const given = new SpyResource();
    const bins = [{ bytes: 512, resource: given }, 1024];
    using resource = new BinningMemoryResource(upstream, { bins, deallocationEvents: 'deferred' });
    expect(resource.bins[1]?.resource).toMatchObject({ deallocationEvents: 'deferred' });
    resource.deallocate(256, 100, stream);
    resource.deallocate(256, 5000, stream);
    resource.deallocate(256, 5000, stream, 'off');
    expect(given.fences).toEqual(['deferred']);
    expect(upstream.fences).toEqual(['deferred', 'off']);
  });

  test('leaves the policy to the resources if it has none itself', () => {
    const upstream = new SpyResource();
    using resource = new BinningMemoryResource(upstream, { bins: [1024] });
    expect(resource.bins[0]?.resource).toMatchObject({ deallocationEvents: 'eager' });
    resource.deallocate(256, 5000, stream);
    expect(upstream.fences).toEqual([undefined]);
  });

  test('passes a fence on to its bins', () => {
    using resource = new BinningMemoryResource(new CudaMemoryResource(), { bins: [1024], deallocationEvents: 'eager' });
    const before = driverCallCounts().eventRecords;
    const free = (fence?: 'off') => resource.deallocate(resource.allocate(1000, stream), 1000, stream, fence);
    free('off');
    expect(driverCallCounts().eventRecords - before).toBe(0);
    free();
    expect(driverCallCounts().eventRecords - before).toBe(1);
  });

  test('passes an alignment on', () => {
    const upstream = new SpyResource();
    using resource = new BinningMemoryResource(upstream, { bins: [1024] });
    resource.allocate(5000, stream, 4096);
    expect(upstream.alignments).toEqual([4096]);
    expect(() => resource.allocate(1000, stream, 4096)).toThrow('alignment must be at most 256');
  });

  test('trims its own bins, and keeps the given bytes in total', () => {
    using given = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
    using resource = new BinningMemoryResource(new CudaMemoryResource(), { bins: [1024, 4096, { bytes: 16_384, resource: given }] });
    const use = () => {
      for (const bytes of [1000, 1000, 4000, 4000, 10_000].map((size) => ({ size, pointer: resource.allocate(size, stream) }))) {
        resource.deallocate(bytes.pointer, bytes.size, stream);
      }
    };
    use();
    const blocks = [1000, 1000, 4000, 4000].map((bytes) => ({ bytes, pointer: resource.allocate(bytes, stream) }));
    for (const { pointer, bytes } of blocks) resource.deallocate(pointer, bytes, stream);
    expect(resource.trim(stream, { bytesToKeep: 5000 })).toBe(4096);
    expect(resource.trim(stream)).toBe(2048 + 4096);
    expect(given.reservedBytes).toBe(MiB);
    expect(() => resource.trim(stream, { bytesToKeep: -1 })).toThrow(code('ERR_OUT_OF_RANGE'));
  });

  test('disposes its own bins, and nothing else', () => {
    const upstream = new SpyResource();
    const given = new SpyResource();
    const resource = new BinningMemoryResource(upstream, { bins: [{ bytes: 512, resource: given }, 1024] });
    resource.allocate(1000, stream);
    resource.dispose();
    resource.dispose();
    expect(upstream.fences).toHaveLength(1);
    expect([upstream.isDisposed, given.isDisposed]).toEqual([false, false]);
    for (const use of [() => resource.allocate(0, stream), () => resource.trim(stream)]) {
      expect(use).toThrow('the BinningMemoryResource is already disposed');
    }
  });

  test('disposes every bin even if the upstream refuses the memory of one, and retries that one later', () => {
    using upstream = new CudaMemoryResource();
    const before = upstream.reservedBytes;
    const resource = new BinningMemoryResource(upstream, { minimumExponent: 10, maximumExponent: 12, blocksToPreallocate: 1 });
    failCall('cuMemFree', 1, 999);
    expect(() => resource.dispose()).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(upstream.reservedBytes - before).toBe(1024);
    resource.dispose();
    expect(upstream.reservedBytes).toBe(before);
  });

  test('is in a stack together with its bins, which are layers of their own', () => {
    using stack = createResourceStack(
      'binning(pool(cuda), minimumExponent=18, maximumExponent=20, bins=[4KiB, 64KiB], blocksToPreallocate=1, deallocationEvents=deferred)',
    );
    expect(stack.layers.map(({ constructor: { name } }) => name)).toEqual([
      'BinningMemoryResource',
      ...Array.from({ length: 5 }, () => 'FixedSizeMemoryResource'),
      'PoolMemoryResource',
      'CudaMemoryResource',
    ]);
    const { bins } = stack.resource as BinningMemoryResource;
    expect(bins.map(({ bytes }) => bytes)).toEqual([4 * KiB, 64 * KiB, 256 * KiB, 512 * KiB, MiB]);
    for (const { bytes, resource } of bins) {
      expect(resource).toMatchObject({ blockBytes: bytes, reservedBytes: bytes, deallocationEvents: 'deferred' });
    }
    expect(stack.deallocationEvents).toBe('deferred');
  });

  test.each([
    ['binning(cuda)', 'there must be at least one bin'],
    ['binning(cuda, minimumExponent=18)', 'must be given together'],
    ['binning(cuda, minimumExponent=18.5, maximumExponent=20)', 'minimumExponent must be an integer, got 18.5'],
    ['fixed-size(cuda, blockBytes=3GiB)', 'blockBytes must be from 1 to 2 GiB - 256'],
    ['fixed-size(cuda, blocksToPreallocate=-1)', 'blocksToPreallocate must be an integer'],
  ])('cannot be made from %s', (specification, message) => {
    expect(() => createResourceStack(specification)).toThrow(message);
  });
});

test('fixed-size blocks are created from a specification', () => {
  using stack = createResourceStack('fixed-size(cuda, blockBytes=64KiB, blocksToPreallocate=2, maximumBytes=1MiB, deallocationEvents=off)');
  expect(stack.resource).toBeInstanceOf(FixedSizeMemoryResource);
  expect(stack.resource).toMatchObject({ blockBytes: 64 * KiB, reservedBytes: 128 * KiB, deallocationEvents: 'off' });
  expect(() => Array.from({ length: 17 }, () => stack.resource.allocate(1, stream))).toThrow(OutOfMemoryError);
});

test('bins given as resources, each of its own kind, are disposed with the stack that owns them', () => {
  using cuda = new CudaMemoryResource();
  const before = cuda.reservedBytes;
  const small: MemoryResource = new ArenaMemoryResource(cuda, { arenaBytes: MiB });
  const medium: MemoryResource = new PoolMemoryResource(cuda, { initialBytes: MiB });
  const resource = new BinningMemoryResource(cuda, {
    bins: [
      { bytes: 4 * KiB, resource: small },
      { bytes: 256 * KiB, resource: medium },
    ],
  });
  const stack = ResourceStack.of(resource);
  for (const bytes of [1000, 100_000, MiB]) resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
  expect(cuda.reservedBytes - before).toBe(2 * MiB);
  stack.disposeAdaptors();
  expect(cuda.reservedBytes).toBe(before);
});
