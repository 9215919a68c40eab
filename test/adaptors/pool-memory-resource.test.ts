import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  CudaMemoryResource,
  createResourceStack,
  type DeallocationEvents,
  Device,
  GiB,
  KiB,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  type PoolMemoryResourceOptions,
  Stream,
  set,
} from '../../src/index.js';
import { readAllocationLog, replayLog } from '../../src/tools/replay/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { code } from '../support/errors.js';
import { QuickPool } from '../support/quick-pool.js';
import { BusyBlock, eventCalls, eventRecords, expectOrdered, policies, sharingPolicies } from '../support/stream-order.js';
import { arrowEtl } from '../tools/formats/logs.js';

const stream = new Stream();

/** An upstream of a given size, which counts its calls. */
class BoundedUpstream implements MemoryResource {
  readonly memoryKind = 'device';
  readonly device = Device.get();
  readonly asked: number[] = [];
  liveBytes = 0;
  mostBytes = 0;
  served = 0;
  returned = 0;
  readonly #limitBytes: number;
  readonly #cuda = new CudaMemoryResource();

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  allocate(bytes: number, on: Stream): number {
    this.asked.push(bytes);
    if (this.liveBytes + bytes > this.#limitBytes)
      throw new OutOfMemoryError('bounded', { requestedBytes: bytes, path: ['BoundedUpstream'] });
    this.liveBytes += bytes;
    this.mostBytes = Math.max(this.mostBytes, this.liveBytes);
    this.served++;
    return this.#cuda.allocate(bytes, on);
  }

  deallocate(pointer: number, bytes: number, on: Stream): void {
    this.#cuda.deallocate(pointer, bytes, on);
    this.liveBytes -= bytes;
    this.returned++;
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}
}

/** An upstream that has addresses for one block, without memory. */
class Addresses extends BoundedUpstream {
  override allocate(): number {
    return 2 ** 45;
  }

  override deallocate(): void {}
}

describe('a pool', () => {
  test('has a peak of its reserved bytes, which can be reset', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource());
    pool.deallocate(pool.allocate(4 * MiB, stream), 4 * MiB, stream);
    const peak = pool.reservedBytes;
    pool.trim(stream);
    expect([pool.reservedBytes, pool.peakReservedBytes]).toEqual([0, peak]);
    pool.resetPeakReservedBytes();
    expect(pool.peakReservedBytes).toBe(0);
    pool.deallocate(pool.allocate(MiB, stream), MiB, stream);
    expect(pool.peakReservedBytes).toBe(pool.reservedBytes);
  });

  test('refuses a maximum below its initial size', () => {
    expect(() => new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 2 * MiB, maximumBytes: MiB })).toThrow(
      code('ERR_OUT_OF_RANGE'),
    );
  });

  test.each([-1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 60, '1' as unknown as number])(
    'refuses an initial size of %s',
    (initialBytes) => {
      expect(() => new PoolMemoryResource(new CudaMemoryResource(), { initialBytes })).toThrow(/initialBytes must be/);
    },
  );

  test.each([1.5, Number.NaN, 2 ** 60, '1' as unknown as number])('refuses a maximum of %s', (maximumBytes) => {
    expect(() => new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes })).toThrow(/maximumBytes must be an? /);
  });

  test('takes at most its maximum, rounded down to a multiple of 256, as its initial size', () => {
    const upstream = new BoundedUpstream(MiB);
    using _pool = new PoolMemoryResource(upstream, { initialBytes: 1000, maximumBytes: 1000 });
    expect(upstream.asked).toEqual([768]);
  });

  test('does not blame the upstream for a request that no block can hold', () => {
    using pool = new PoolMemoryResource(new BoundedUpstream(MiB));
    pool.deallocate(pool.allocate(MiB / 2, stream), MiB / 2, stream);
    failCall('cuMemFree', 1, 999);
    // The upstream refuses, and so does the driver when room is to be made.
    expect(() => pool.allocate(MiB, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(() => pool.allocate(2 ** 40, stream)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY', path: ['PoolMemoryResource'], cause: undefined }),
    );
  });

  test('asks the upstream for no block that is larger than one can be, whatever the alignment', () => {
    const upstream = new BoundedUpstream(0);
    using pool = new PoolMemoryResource(upstream);
    const most = 2 ** 39 - 256;
    expect(() => pool.allocate(most, stream, 512)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(upstream.asked).toEqual([]);
    expect(() => pool.allocate(most, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(upstream.asked).toEqual([most]);
  });

  // A block of another stream must be large enough for any address. If none can be, the stream's memory is merged.
  test.each([
    [2 ** 38, 256, { reuses: 1, merges: 0 }],
    [2 ** 38, 2 ** 38, { reuses: 1, merges: 0 }],
    [2 ** 38, 2 ** 38 + 256, { reuses: 0, merges: 1 }],
    [2 ** 39, 256, { reuses: 0, merges: 1 }],
    [2 ** 40, 256, { reuses: 0, merges: 1 }],
    [2 ** 40, 2 ** 39 - 256, { reuses: 0, merges: 1 }],
  ])('at a multiple of %s takes %s bytes of another stream', (alignment, bytes, counts) => {
    const most = 2 ** 39 - 256;
    using pool = new PoolMemoryResource(new Addresses(0), { initialBytes: most, maximumBytes: most });
    using other = new Stream();
    pool.deallocate(pool.allocate(most, other), most, other);
    expect(pool.allocate(bytes, stream, alignment)).toBe(2 ** 45);
    expect(pool.statistics()).toMatchObject(counts);
    pool.validate();
  });

  test('refuses an initial size that no block can hold', () => {
    const upstream = new BoundedUpstream(0);
    expect(() => new PoolMemoryResource(upstream, { initialBytes: 2 ** 39 })).toThrow(OutOfMemoryError);
    expect(upstream.asked).toEqual([]);
    expect(() => new PoolMemoryResource(upstream, { initialBytes: 2 ** 39 - 256 })).toThrow(OutOfMemoryError);
    expect(upstream.asked).toEqual([2 ** 39 - 256]);
  });

  test('finds out by itself whether it pays to keep freed blocks for requests of their sizes', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
    for (let i = 0; i < 20; i++) pool.deallocate(pool.allocate(KiB, stream), KiB, stream);
    const [first, second] = [2, 2, 1].map((factor) => pool.allocate(factor * KiB, stream)) as [number, number];
    for (const pointer of [first, second]) pool.deallocate(pointer, 2 * KiB, stream);
    expect(pool.allocate(4 * KiB, stream)).not.toBe(first);
  });

  test('keeps freed blocks for requests of their sizes if that pays, and coalesces them before it grows', () => {
    using pool = new QuickPool(new BoundedUpstream(MiB), { initialBytes: 64 * KiB, maximumBytes: 64 * KiB });
    const sizes = [16 * KiB, 48 * KiB];
    const pointers = sizes.map((bytes) => pool.allocate(bytes, stream));
    pointers.forEach((pointer, i) => {
      pool.deallocate(pointer, sizes[i] as number, stream);
    });
    expect([48 * KiB, 16 * KiB].map((bytes) => pool.allocate(bytes, stream))).toEqual([pointers[1], pointers[0]]);
    expect(() => pool.deallocate(pointers[0] as number, 48 * KiB, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    pool.deallocate(pointers[0] as number, 16 * KiB, stream);
    expect(() => pool.deallocate(pointers[0] as number, 16 * KiB, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    pool.deallocate(pointers[1] as number, 48 * KiB, stream);
    expect(pool.allocate(64 * KiB, stream)).toBe(pointers[0]);
    expect(pool.statistics().growths).toBe(1);
    pool.validate();
  });

  test('serves other streams with what waits for requests of its size', () => {
    using pool = new QuickPool(new BoundedUpstream(MiB), { maximumBytes: 64 * KiB, deallocationEvents: 'deferred' });
    using other = new Stream();
    const pointer = pool.allocate(64 * KiB, stream);
    pool.deallocate(pointer, 64 * KiB, stream);
    expect(pool.allocate(64 * KiB, other)).toBe(pointer);
  });

  test('refuses a policy that does not exist', () => {
    expect(() => new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents: 'lazy' as DeallocationEvents })).toThrow(
      "deallocationEvents must be 'eager', 'deferred', 'off', got \"lazy\"",
    );
  });

  test('allocates ninety percent of the device', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: Math.floor(0.9 * GiB) });
    const bytes = Math.floor(0.9 * GiB);
    pool.deallocate(pool.allocate(bytes, stream), bytes, stream);
  });

  describe.each(policies)('with blocks of 2 GiB and more, under %s', (deallocationEvents) => {
    const bytes = 3 * GiB;

    test('frees them as any other', () => {
      using pool = new PoolMemoryResource(new Addresses(0), { initialBytes: 8 * GiB, maximumBytes: 8 * GiB, deallocationEvents });
      const pointer = pool.allocate(bytes, stream);
      const recorded = eventRecords(() => pool.deallocate(pointer, bytes, stream));
      expect(recorded).toBe(deallocationEvents === 'eager' ? 1 : 0);
      expect(pool.statistics().allocatedBytes).toBe(0);
      expect(pool.allocate(bytes, stream)).toBe(pointer);
      pool.validate();
    });

    test('keeps them if the event of their free cannot be recorded', () => {
      using pool = new PoolMemoryResource(new Addresses(0), { initialBytes: 8 * GiB, maximumBytes: 8 * GiB, deallocationEvents });
      const pointer = pool.allocate(bytes, stream);
      if (deallocationEvents === 'eager') {
        failCall('cuEventRecord', 1, 999);
        expect(() => pool.deallocate(pointer, bytes, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
        expect(pool.statistics().allocatedBytes).toBe(bytes);
      }
      pool.deallocate(pointer, bytes, stream);
      expect(pool.statistics().allocatedBytes).toBe(0);
    });

    // In units, the sizes below 2 GiB that have more than 2 GiB - 256 B are 2 GiB.
    test.each([2 ** 31 - 256, 2 ** 31 - 255, 2 ** 31 - 1, 2 ** 31])('serves %s bytes, and frees them', (size) => {
      using pool = new PoolMemoryResource(new Addresses(0), { initialBytes: 8 * GiB, maximumBytes: 8 * GiB, deallocationEvents });
      const pointers = [pool.allocate(size, stream), pool.allocate(size, stream)] as const;
      expect(pointers[1] - pointers[0]).toBe(Math.ceil(size / 256) * 256);
      expect(pool.statistics().allocatedBytes).toBe(2 * (pointers[1] - pointers[0]));
      pool.validate();
      for (const pointer of pointers) pool.deallocate(pointer, size, stream);
      expect(pool.statistics().allocatedBytes).toBe(0);
    });

    test('frees nothing if their size comes with the null pointer', () => {
      using pool = new PoolMemoryResource(new Addresses(0), { initialBytes: 8 * GiB, maximumBytes: 8 * GiB, deallocationEvents });
      pool.allocate(bytes, stream);
      pool.deallocate(0, bytes, stream);
      expect(pool.statistics().allocatedBytes).toBe(bytes);
      pool.validate();
    });

    test('refuses a size that equals theirs, or that of a small block, only in its last 32 bits', () => {
      using pool = new PoolMemoryResource(new Addresses(0), { initialBytes: 8 * GiB, maximumBytes: 8 * GiB, deallocationEvents });
      const [large, small] = [pool.allocate(4 * GiB + 256, stream), pool.allocate(256, stream)];
      for (const [pointer, wrong] of [
        [large, 256],
        [small, 4 * GiB + 256],
      ] as const) {
        expect(() => pool.deallocate(pointer, wrong, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
      }
      pool.deallocate(small, 256, stream);
      pool.deallocate(large, 4 * GiB + 256, stream);
      expect(pool.statistics().allocatedBytes).toBe(0);
    });
  });

  test('keeps its blocks in order if an aligned request takes the last spare records', () => {
    const pools: PoolMemoryResource[] = [];
    for (let k = 0; k < 300; k++) {
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
      pools.push(pool);
      const pointers = Array.from({ length: 1 + (k % 7) }, () => pool.allocate(256, stream));
      const aligned = pool.allocate(2560, stream, 64 * KiB);
      pool.validate();
      pool.deallocate(aligned, 2560, stream);
      for (const pointer of pointers) pool.deallocate(pointer, 256, stream);
    }
    for (const pool of pools) pool.dispose();
  });

  test('takes its initial size at once, rounded up to 256 bytes', () => {
    const upstream = new BoundedUpstream(MiB);
    using pool = new PoolMemoryResource(upstream, { initialBytes: 1000 });
    expect(upstream.asked).toEqual([1024]);
    expect(pool.reservedBytes).toBe(1024);
  });

  test('coalesces what the first stream frees with the rest of the initial block', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 3 * MiB, maximumBytes: 3 * MiB });
    pool.deallocate(pool.allocate(MiB, stream), MiB, stream);
    expect(pool.statistics().largestFreeBytes).toBe(3 * MiB);
  });

  test('leaves the initial block to every stream under off', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), {
      initialBytes: 2 * MiB,
      maximumBytes: 2 * MiB,
      deallocationEvents: 'off',
    });
    using other = new Stream();
    using _hold = other.hold();
    pool.deallocate(pool.allocate(MiB, other), MiB, other);
    expect(pool.allocate(MiB, stream)).toBeGreaterThan(0);
    expect(pool.statistics().synchronizations).toBe(0);
  });

  test('lets the first stream take from the initial block without waiting under off, but not what a later one freed', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), {
      initialBytes: 3 * MiB,
      maximumBytes: 6 * MiB,
      deallocationEvents: 'off',
    });
    pool.allocate(MiB, stream);
    pool.allocate(MiB, stream);
    expect(pool.statistics().reuses).toBe(0);
    // The initial block is in the lane of this stream.
    const late = Stream.legacyDefault();
    using hold = stream.hold();
    const pointer = pool.allocate(MiB, late);
    pool.deallocate(pointer, MiB, late);
    expect(pool.allocate(MiB, stream)).not.toBe(pointer);
    hold.release();
    pool.validate();
  });

  test('lets only the first stream take from the initial block in the index under off', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 2 * MiB, deallocationEvents: 'off' });
    using other = new Stream();
    pool.allocate(MiB, stream);
    expect(pool.statistics().reuses).toBe(0);
    pool.allocate(MiB, other);
    expect(pool.statistics().reuses).toBe(1);
  });

  test('lets no stream take in the index from an initial block that may be in use', () => {
    failCall('cuStreamQuery', 1, 999);
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, deallocationEvents: 'off' });
    pool.allocate(MiB, stream);
    expect(pool.statistics().reuses).toBe(1);
  });

  test.each(sharingPolicies)(
    'leaves the initial block to the legacy default stream if that comes first, under %s',
    (deallocationEvents) => {
      const first = Stream.legacyDefault();
      using second = new Stream({ nonBlocking: true });
      using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes: MiB, deallocationEvents });
      const [freed, given] = [pool.allocate(KiB, first), pool.allocate(KiB, first)];
      using hold = second.hold();
      pool.deallocate(freed, KiB, first, 'eager');
      expect(eventCalls(() => pool.deallocate(given, KiB, second, 'off'))).toEqual({ records: 0, waits: 0 });
      expect(eventCalls(() => pool.allocate(MiB - 2 * KiB, first))).toEqual({ records: 0, waits: 0 });
      hold.release();
    },
  );

  test.each(sharingPolicies)('hands the initial block over once, and leaves its stream what that frees, under %s', (deallocationEvents) => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 2 * MiB, maximumBytes: 2 * MiB, deallocationEvents });
    using other = new Stream();
    pool.allocate(KiB, stream);
    const legacy = Stream.legacyDefault();
    const pointer = pool.allocate(MiB, legacy);
    pool.deallocate(pointer, MiB, legacy);
    pool.allocate(KiB, other);
    const { reuses } = pool.statistics();
    expect(pool.allocate(MiB, legacy)).toBe(pointer);
    expect(pool.statistics().reuses).toBe(reuses);
  });

  test('serves exactly its initial size if that is its maximum', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes: MiB });
    const pointer = pool.allocate(MiB, stream);
    expect(() => pool.allocate(1, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY', availableBytes: 0 }));
    pool.deallocate(pointer, MiB, stream);
    pool.validate();
  });

  test('doubles while it has no maximum', () => {
    const upstream = new BoundedUpstream(GiB);
    using pool = new PoolMemoryResource(upstream);
    for (let i = 0; i < 8; i++) pool.allocate(MiB, stream);
    expect(upstream.asked).toEqual([MiB, MiB, 2 * MiB, 4 * MiB]);
  });

  test('takes half of what its maximum leaves', () => {
    const upstream = new BoundedUpstream(GiB);
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 16 * MiB });
    pool.allocate(MiB, stream);
    for (let i = 0; i < 8; i++) pool.allocate(MiB, stream);
    expect(upstream.asked).toEqual([8 * MiB, 4 * MiB]);
  });

  test('backs off in steps of 256 bytes while the upstream refuses', () => {
    // RMM's own numbers: the 500 bytes are served only by 5120, 2560, 1280, 768 (in RMM 640, which
    // is not aligned).
    const upstream = new BoundedUpstream(6000);
    using pool = new PoolMemoryResource(upstream);
    pool.allocate(1000, stream);
    pool.allocate(4000, stream);
    pool.allocate(500, stream);
    expect(() => pool.allocate(2000, stream)).toThrow(OutOfMemoryError);
    expect(upstream.asked.slice(0, 6)).toEqual([1024, 4096, 5120, 2560, 1280, 768]);
    for (const bytes of upstream.asked) expect(bytes % 256).toBe(0);
  });

  test('grows within its maximum as RMM does', () => {
    const upstream = new BoundedUpstream(6000);
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 8192 });
    pool.allocate(1000, stream);
    expect(() => pool.allocate(4000, stream)).toThrow(OutOfMemoryError);
    pool.allocate(500, stream);
    pool.allocate(2000, stream);
    pool.validate();
  });

  test('gives entirely free blocks back if its maximum is in the way', () => {
    const upstream = new BoundedUpstream(GiB);
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 8 * MiB });
    const first = pool.allocate(4 * MiB, stream);
    pool.deallocate(first, 4 * MiB, stream);
    const second = pool.allocate(6 * MiB, stream);
    expect(second).toBeGreaterThan(0);
    expect(upstream.liveBytes).toBeLessThanOrEqual(8 * MiB);
    expect(pool.statistics().releases).toBe(1);
    pool.validate();
  });

  test('gives entirely free blocks back if the upstream has too little', () => {
    const upstream = new BoundedUpstream(8 * MiB);
    using pool = new PoolMemoryResource(upstream);
    pool.deallocate(pool.allocate(4 * MiB, stream), 4 * MiB, stream);
    expect(pool.allocate(6 * MiB, stream)).toBeGreaterThan(0);
    pool.validate();
  });

  test('gives entirely free blocks back if the upstream has too little, though its maximum leaves just enough', () => {
    using pool = new PoolMemoryResource(new BoundedUpstream(8 * MiB), { initialBytes: 4 * MiB, maximumBytes: 10 * MiB });
    expect(pool.allocate(6 * MiB, stream)).toBeGreaterThan(0);
    expect(pool.statistics()).toMatchObject({ releases: 1, reservedBytes: 6 * MiB });
  });

  test('gives back no more blocks than its maximum requires', () => {
    const upstream = new BoundedUpstream(GiB);
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 10 * MiB });
    const sizes = [5 * MiB, 2.5 * MiB, 1.25 * MiB];
    const pointers = sizes.map((bytes) => pool.allocate(bytes, stream));
    for (const [i, pointer] of pointers.entries()) pool.deallocate(pointer, sizes[i] as number, stream);
    expect(upstream.asked).toEqual(sizes);
    pool.allocate(6 * MiB, stream);
    expect([pool.statistics().releases, pool.reservedBytes]).toEqual([1, 9.75 * MiB]);
  });

  test('works on another pool', () => {
    using lower = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 8 * MiB });
    using upper = new PoolMemoryResource(lower, { initialBytes: MiB });
    const pointer = upper.allocate(3 * MiB, stream);
    upper.deallocate(pointer, 3 * MiB, stream);
    expect(lower.statistics().allocatedBytes).toBe(upper.reservedBytes);
  });

  test('trims to the bytes to keep', () => {
    const upstream = new BoundedUpstream(GiB);
    using pool = new PoolMemoryResource(upstream);
    const pointers = [1, 2, 3, 4].map(() => pool.allocate(MiB, stream));
    for (const pointer of pointers.slice(1)) pool.deallocate(pointer, MiB, stream);
    expect(pool.trim(stream, { bytesToKeep: 4 * MiB })).toBe(0);
    expect(pool.trim(stream)).toBe(3 * MiB);
    expect(upstream.liveBytes).toBe(MiB);
    pool.deallocate(pointers[0] as number, MiB, stream);
    expect(pool.trim(stream)).toBe(MiB);
    expect(upstream.liveBytes).toBe(0);
  });

  test('gives everything back at the end, including live allocations', () => {
    const upstream = new BoundedUpstream(GiB);
    const pool = new PoolMemoryResource(upstream, { initialBytes: MiB });
    pool.allocate(2 * MiB, stream);
    pool.dispose();
    pool.dispose();
    expect(upstream.liveBytes).toBe(0);
    expect(() => pool.allocate(1, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(() => pool.deallocate(256, 1, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
  });

  test.each([1, 8, 128])('takes an alignment of %s as one of 256', (alignment) => {
    using pool = new PoolMemoryResource(new BoundedUpstream(8 * 256), { initialBytes: 8 * 256, maximumBytes: 8 * 256 });
    const [first] = [3, 1, 4].map((units) => pool.allocate(units * 256, stream)) as [number];
    pool.deallocate(first, 3 * 256, stream);
    expect(() => pool.allocate(4 * 256, stream, alignment)).toThrow(OutOfMemoryError);
    expect(pool.allocate(3 * 256, stream, alignment)).toBe(first);
    pool.validate();
  });

  test('serves alignments above 256', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
    pool.allocate(1, stream);
    for (const alignment of [512, 4096, 64 * KiB]) {
      const pointer = pool.allocate(1000, stream, alignment);
      expect(pointer % alignment).toBe(0);
      pool.deallocate(pointer, 1000, stream);
    }
    expect(pool.allocate(3 * MiB, stream, 2 * MiB) % (2 * MiB)).toBe(0);
    pool.validate();
  });

  test('says how much memory it had when it ran out', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes: 2 * MiB });
    pool.allocate(MiB - 256, stream);
    try {
      pool.allocate(3 * MiB, stream);
      expect.unreachable();
    } catch (error) {
      expect(error).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY', requestedBytes: 3 * MiB, limitBytes: 2 * MiB, availableBytes: 256 });
      expect((error as Error).message).toContain('the largest free block has 256 B');
    }
  });

  test('is not made if the upstream does not have its initial size', () => {
    expect(() => new PoolMemoryResource(new BoundedUpstream(0), { initialBytes: MiB })).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_OUT_OF_MEMORY',
        path: ['PoolMemoryResource', 'BoundedUpstream'],
      }),
    );
  });

  test('names the resource below that had no more', () => {
    using pool = new PoolMemoryResource(new BoundedUpstream(MiB));
    const error = (() => {
      try {
        return pool.allocate(2 * MiB, stream);
      } catch (thrown) {
        return thrown;
      }
    })();
    expect(error).toMatchObject({ path: ['PoolMemoryResource', 'BoundedUpstream'], cause: { requestedBytes: 2 * MiB } });
    expect((error as Error).message).toMatch(/, and the upstream has no more$/);
  });

  test('refuses an invalid upstream', () => {
    expect(() => new PoolMemoryResource(undefined as unknown as MemoryResource)).toThrow(code('ERR_INVALID_ARG_TYPE'));
  });

  test('distinguishes a double free, a foreign pointer, an inner pointer and a wrong size, and stays intact', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
    const kept = pool.allocate(1000, stream);
    const freed = pool.allocate(1000, stream);
    pool.deallocate(freed, 1000, stream);
    expect(() => pool.deallocate(freed, 1000, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    expect(() => pool.deallocate(kept + 256, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(() => pool.deallocate(256, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(() => pool.deallocate(kept, 1001, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    expect(() => pool.deallocate(Number.NaN, 1000, stream)).toThrow(code('ERR_OUT_OF_RANGE'));
    pool.deallocate(0, 0, stream);
    pool.validate();
    pool.deallocate(kept, 1000, stream);
  });

  test.each([-1, -256, 0.5, Number.NaN, 2 ** 60])('does not accept %s as a pointer', (pointer) => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes: MiB });
    pool.allocate(MiB, stream);
    expect(() => pool.deallocate(pointer, MiB, stream)).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(pool.statistics().allocatedBytes).toBe(MiB);
  });

  test('merges the two lanes of a stream before it runs out', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4 * MiB, maximumBytes: 4 * MiB });
    pool.deallocate(pool.allocate(MiB, stream), MiB, stream, 'off');
    expect(pool.allocate(4 * MiB, stream)).toBeGreaterThan(0);
    expect(pool.statistics().merges).toBe(0);
  });

  test('merges no more than it needs: first the other lane of the stream, then one stream after another', () => {
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const allocateThree = () => {
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 3 * MiB, maximumBytes: 3 * MiB });
      return { pool, pointers: [1, 2, 3].map(() => pool.allocate(MiB, stream)) as [number, number, number] };
    };
    const first = allocateThree();
    // Of two lanes with blocks of one size, the one whose block was freed last is merged first.
    for (const [i, on] of [...[stream, a, b].entries()].reverse()) first.pool.deallocate(first.pointers[i] as number, MiB, on);
    expect(first.pool.allocate(2 * MiB, stream)).toBe(first.pointers[0]);
    expect(first.pool.statistics()).toMatchObject({ merges: 1, allocatedBytes: 2 * MiB });
    const second = allocateThree();
    second.pool.deallocate(second.pointers[0], MiB, stream);
    second.pool.deallocate(second.pointers[1], MiB, stream, 'off');
    second.pool.deallocate(second.pointers[2], MiB, a);
    expect(second.pool.allocate(2 * MiB, stream)).toBe(second.pointers[0]);
    expect(second.pool.statistics()).toMatchObject({ merges: 0, allocatedBytes: 2 * MiB });
    for (const { pool } of [first, second]) {
      pool.validate();
      pool.dispose();
    }
  });

  test.each(sharingPolicies)('holds the rest of a block that coalesced with memory held for its stream, under %s', (deallocationEvents) => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 2 * MiB, maximumBytes: 2 * MiB, deallocationEvents });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const [first, second] = [pool.allocate(MiB, a), pool.allocate(MiB, a)];
    pool.deallocate(first, MiB, a, 'eager');
    using hold = a.hold();
    set(second, 1, 1, MiB, a);
    pool.deallocate(second, MiB, a, 'off');
    expect(pool.allocate(MiB + KiB, a)).toBe(first);
    expect(pool.heldBackFrom(b)).toBe(MiB - KiB);
    hold.release();
    a.synchronizeSync();
    expect(eventRecords(() => expect(pool.allocate(KiB, b)).toBeGreaterThan(second))).toBe(0);
  });

  test('keeps blocks that the upstream refuses to take back', () => {
    const upstream = new BoundedUpstream(GiB);
    const pool = new PoolMemoryResource(upstream, { initialBytes: MiB });
    pool.allocate(2 * MiB, stream);
    failCall('cuMemFree', 1, 999);
    expect(() => pool.trim(stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    pool.validate();
    expect(pool.reservedBytes).toBe(3 * MiB);
    failCall('cuMemFree', 1, 999);
    expect(() => pool.dispose()).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(upstream.liveBytes).toBeGreaterThan(0);
    pool.dispose();
    expect(upstream.liveBytes).toBe(0);
    expect(pool.reservedBytes).toBe(0);
  });

  test('keeps at least the bytes that a trim is to keep', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource());
    const pointers = [1, 2, 3].map(() => pool.allocate(MiB, stream));
    for (const pointer of pointers) pool.deallocate(pointer, MiB, stream);
    const reserved = pool.reservedBytes;
    pool.trim(stream, { bytesToKeep: reserved - 1 });
    expect(pool.reservedBytes).toBe(reserved);
  });

  test('is constructed even if the driver does not say whether a stream is idle', () => {
    failCall('cuStreamQuery', 1, 999);
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
    expect(pool.allocate(MiB, stream)).toBeGreaterThan(0);
  });

  test('forgets an upstream failure after it is overcome', () => {
    using pool = new PoolMemoryResource(new BoundedUpstream(6000));
    pool.allocate(1000, stream);
    pool.allocate(4000, stream);
    pool.allocate(500, stream);
    expect(() => pool.allocate(2 ** 50, stream)).toThrow(expect.objectContaining({ path: ['PoolMemoryResource'], cause: undefined }));
  });

  test('accepts only streams of its own device', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource());
    using other = new Stream({ device: Device.get(1) });
    expect(() => pool.allocate(1, other)).toThrow(code('ERR_INVALID_ARG_VALUE'));
    expect(() => pool.allocate(1, {} as Stream)).toThrow(code('ERR_INVALID_ARG_TYPE'));
    expect(() => pool.allocate(1, undefined as unknown as Stream)).toThrow(code('ERR_INVALID_ARG_TYPE'));
  });

  test('takes its initial size on its own device', () => {
    const device = Device.get(1);
    using pool = new PoolMemoryResource(new CudaMemoryResource({ device }), { initialBytes: 1 });
    using own = new Stream({ device });
    expect(pool.reservedBytes).toBe(256);
    expect(pool.allocate(256, own)).toBeGreaterThan(0);
    expect(pool.reservedBytes).toBe(256);
  });

  test('refuses an option that does not exist', () => {
    expect(() => new PoolMemoryResource(new CudaMemoryResource(), { initialByte: 1 } as object)).toThrow(/initialByte/);
  });

  test('names an unusual alignment when it is out of memory', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1024, maximumBytes: 1024 });
    expect(() => pool.allocate(2048, stream, 512)).toThrow('the largest free block has 1 KiB at a multiple of 512,');
    expect(() => pool.allocate(2048, stream)).toThrow('the largest free block has 1 KiB, and');
  });

  test('is unchanged if the driver fails during a reuse', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes: MiB });
    using other = new Stream();
    pool.deallocate(pool.allocate(MiB, stream), MiB, stream);
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => pool.allocate(MiB, other)).toThrow(code('ERR_CISTERN_DRIVER'));
    pool.validate();
    expect(pool.statistics().allocatedBytes).toBe(0);
    expect(pool.allocate(MiB, other)).toBeGreaterThan(0);
  });

  test('takes one block from another stream, the smallest that is large enough, and merges nothing', () => {
    const [small, large] = [MiB - 256, MiB];
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: small + large, maximumBytes: small + large });
    using a = new Stream();
    using b = new Stream();
    const [first, second] = [pool.allocate(small, a), pool.allocate(large, b)];
    pool.deallocate(first, small, a);
    pool.deallocate(second, large, b);
    expect(eventRecords(() => expect(pool.allocate(large, stream)).toBe(second))).toBe(0);
    expect(pool.statistics()).toMatchObject({ merges: 0, reuses: 2 });
  });

  test('finds a block behind many that are a little too small before it runs out of memory', () => {
    const sizes = [1007, ...new Array<number>(20).fill(992)].map((units) => units * 256);
    const total = sizes.reduce((sum, bytes) => sum + bytes + 256, 0);
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: total, maximumBytes: total });
    const pointers = sizes.map((bytes) => {
      const pointer = pool.allocate(bytes, stream);
      pool.allocate(256, stream);
      return pointer;
    });
    for (const [i, pointer] of pointers.entries()) pool.deallocate(pointer, sizes[i] as number, stream);
    const bytes = 1000 * 256 - 10;
    expect(pool.allocate(bytes, stream)).toBe(pointers[0]);
    pool.deallocate(pointers[0] as number, bytes, stream);
    pool.validate();
  });

  test('keeps a block allocated if the event of its free cannot be recorded', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
    const pointer = pool.allocate(1000, stream);
    failCall('cuEventRecord', 1, 999);
    expect(() => pool.deallocate(pointer, 1000, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    pool.validate();
    pool.deallocate(pointer, 1000, stream);
  });

  test.each(policies)('agrees with a naive model under any steps on several streams with %s events', (deallocationEvents) => {
    const streams = [new Stream(), new Stream(), new Stream()];
    const step = fc.record({
      kind: fc.constantFrom('allocate', 'allocate', 'allocate', 'free', 'free', 'trim', 'renew', 'synchronize'),
      bytes: fc.oneof(fc.integer({ min: 1, max: 3000 }), fc.integer({ min: 1, max: 200_000 })),
      on: fc.nat({ max: 2 }),
      pick: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60, size: 'max' }), (steps) => {
        const upstream = new BoundedUpstream(MiB);
        const pool = new PoolMemoryResource(upstream, { deallocationEvents, maximumBytes: MiB });
        const live: { pointer: number; bytes: number }[] = [];
        for (const { kind, bytes, on, pick } of steps) {
          const current = streams[on] as Stream;
          if (kind === 'allocate') {
            try {
              const pointer = pool.allocate(bytes, current);
              for (const range of live) expect(pointer >= range.pointer + range.bytes || pointer + bytes <= range.pointer).toBe(true);
              live.push({ pointer, bytes });
            } catch (error) {
              expect(error).toBeInstanceOf(OutOfMemoryError);
            }
          } else if (kind === 'free' && live.length > 0) {
            const [range] = live.splice(pick % live.length, 1) as [{ pointer: number; bytes: number }];
            pool.deallocate(range.pointer, range.bytes, current, [undefined, ...policies][pick % 4]);
          } else if (kind === 'trim') pool.trim(current);
          else if (kind === 'renew') {
            current.dispose();
            streams[on] = new Stream();
          } else current.synchronizeSync();
          pool.validate();
          const statistics = pool.statistics();
          const allocatedBytes = live.reduce((sum, range) => sum + Math.ceil(range.bytes / 256) * 256, 0);
          expect(statistics).toMatchObject({
            reservedBytes: upstream.liveBytes,
            peakReservedBytes: upstream.mostBytes,
            allocatedBytes,
            upstreamBlocks: upstream.served - upstream.returned,
            growths: upstream.served,
            releases: upstream.returned,
          });
          const freeBytes = upstream.liveBytes - allocatedBytes;
          expect(statistics.largestFreeBytes).toBeLessThanOrEqual(freeBytes);
          expect(statistics.largestFreeBytes > 0).toBe(freeBytes > 0);
        }
        for (const { pointer, bytes } of live) pool.deallocate(pointer, bytes, streams[0] as Stream);
        pool.trim(streams[0] as Stream);
        expect(upstream.liveBytes).toBe(0);
        pool.dispose();
      }),
      { numRuns: 60 },
    );
  });
});

test.each([10, 60, 200])("a pool finds memory that was held back for one of many streams, under 'off': %s streams", (count) => {
  const bytes = 4 * MiB + count * 256;
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: bytes, maximumBytes: bytes, deallocationEvents: 'off' });
  const streams = Array.from({ length: count }, () => new Stream());
  const owner = streams[count >> 1] as Stream;
  const allocateAll = () => streams.map((each) => pool.allocate(256, each));
  const small = allocateAll();
  const large = pool.allocate(4 * MiB, owner);
  for (const [i, each] of streams.entries()) pool.deallocate(small[i] as number, 256, each);
  pool.deallocate(pool.allocate(256, stream), 256, stream);
  allocateAll();
  pool.deallocate(large, 4 * MiB, owner);
  pool.device.synchronizeSync();
  expect(pool.allocate(4 * MiB, stream)).toBe(large);
  pool.validate();
  for (const each of streams) each.dispose();
});

test("a pool takes one block of a stream that has become idle before it merges others, under 'off'", () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), {
    initialBytes: 4 * MiB,
    maximumBytes: 4 * MiB,
    deallocationEvents: 'off',
  });
  using a = new Stream({ nonBlocking: true });
  using b = new Stream({ nonBlocking: true });
  const [small, large] = [pool.allocate(MiB, a), pool.allocate(3 * MiB, b)];
  pool.deallocate(small, MiB, a);
  a.synchronizeSync();
  pool.deallocate(large, 3 * MiB, b);
  expect(pool.allocate(2 * MiB, stream)).toBe(large);
  expect(pool.statistics()).toMatchObject({ merges: 0, synchronizations: 0 });
});

test.each([
  [3, 1],
  [200, 0],
  [200, 100],
  [200, 199],
])("a pool waits for no stream while one is idle, under 'off': of %s streams, the one with index %s", (count, idle) => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), {
    initialBytes: count * MiB,
    maximumBytes: count * MiB,
    deallocationEvents: 'off',
  });
  const streams = Array.from({ length: count }, () => new Stream({ nonBlocking: true }));
  const pointers = streams.map((each) => pool.allocate(MiB, each));
  for (const [i, each] of streams.entries()) pool.deallocate(pointers[i] as number, MiB, each);
  const holds = streams.map((each, i) => (i === idle ? undefined : each.hold()));
  // A wait for one that is held would not end.
  failCall('cuStreamSynchronize');
  try {
    expect(pool.allocate(MiB, stream)).toBe(pointers[idle]);
  } finally {
    for (const hold of holds) hold?.release();
  }
  expect(failCall('cuStreamSynchronize', 0)).toBe(true);
  for (const each of streams) each.dispose();
});

test("a pool does not grow while a stream that was idle once, and is again, has the memory, under 'off'", () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 2 * MiB, deallocationEvents: 'off' });
  using a = new Stream({ nonBlocking: true });
  const allocateBoth = () => [a, stream].map((each) => pool.allocate(MiB, each)) as [number, number];
  const [first, second] = allocateBoth();
  pool.deallocate(first, MiB, a);
  a.synchronizeSync();
  // Looks for a block, and learns that the stream is idle.
  pool.deallocate(pool.allocate(MiB, stream), MiB, a);
  pool.deallocate(second, MiB, stream);
  expect(pool.allocate(2 * MiB, stream)).toBe(Math.min(first, second));
  expect(pool.statistics()).toMatchObject({ growths: 1, merges: 1, synchronizations: 0 });
});

describe('a large request of a pool whose memory is scarce', () => {
  const maximumBytes = MiB;

  /**
   * Of 1 MiB, half is used. Streams a and b have freed neighbours of 64 KiB, and a has freed a block of 320 KiB, which the
   * stream of the tests can only split.
   */
  function fragmented(options: PoolMemoryResourceOptions = {}) {
    const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes, ...options });
    const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
    const half = pool.allocate(512 * KiB, a);
    const [first, second] = [pool.allocate(64 * KiB, a), pool.allocate(64 * KiB, a)];
    pool.allocate(64 * KiB, a);
    const large = pool.allocate(320 * KiB, a);
    const free = () => {
      pool.deallocate(first, 64 * KiB, a);
      pool.deallocate(second, 64 * KiB, b);
      pool.deallocate(large, 320 * KiB, a);
    };
    return { pool, a, b, half, first, second, large, free };
  }

  test.each(sharingPolicies)(
    'takes what several streams freed side by side, and leaves a larger block whole, under %s',
    (deallocationEvents) => {
      const { pool, first, large, free } = fragmented({ deallocationEvents });
      using _pool = pool;
      free();
      expect(pool.allocate(96 * KiB, stream)).toBe(first);
      expect(pool.allocate(320 * KiB, stream)).toBe(large);
      expect(pool.statistics()).toMatchObject({ merges: 2, reuses: 0, synchronizations: 0 });
      pool.validate();
    },
  );

  test('waits for every stream whose memory it merges', () => {
    const { pool, a, b, free } = fragmented({ growth: 'after-waits', deallocationEvents: 'deferred' });
    using _pool = pool;
    const holds = [a.hold(), b.hold()];
    free();
    expect(eventCalls(() => pool.allocate(96 * KiB, stream))).toEqual({ records: 2, waits: 2 });
    // All that is free is the stream's own now.
    expect(eventCalls(() => pool.allocate(320 * KiB, stream))).toEqual({ records: 0, waits: 0 });
    for (const hold of holds) hold.release();
  });

  test.each<[string, number, PoolMemoryResourceOptions]>([
    ['is small', 4 * KiB, {}],
    ['is nearly as large as a block of another stream', 317 * KiB, {}],
    ['has a pool without a maximum', 96 * KiB, { maximumBytes: Number.POSITIVE_INFINITY }],
    ["could keep the memory from others, under 'off'", 96 * KiB, { deallocationEvents: 'off' }],
  ])('merges nothing if it %s', (_, bytes, options) => {
    const { pool, a, b, free } = fragmented(options);
    using _pool = pool;
    free();
    a.synchronizeSync();
    b.synchronizeSync();
    expect(pool.allocate(bytes, stream)).toBeGreaterThan(0);
    expect(pool.statistics()).toMatchObject({ merges: 0, growths: 1 });
  });

  test('merges nothing while at most a quarter is used', () => {
    const { pool, a, half, free } = fragmented();
    using _pool = pool;
    free();
    pool.deallocate(half, 512 * KiB, a);
    expect(pool.statistics().allocatedBytes).toBe(64 * KiB);
    for (const bytes of [192 * KiB, 96 * KiB]) pool.allocate(bytes, stream);
    expect(pool.statistics().merges).toBe(0);
    pool.allocate(96 * KiB, stream);
    expect(pool.statistics().merges).toBe(2);
  });

  test("merges nothing if the stream's memory is held for it", () => {
    const { pool, free } = fragmented();
    using _pool = pool;
    free();
    pool.deallocate(pool.allocate(256, stream), 256, stream, 'off');
    pool.allocate(96 * KiB, stream);
    expect(pool.statistics().merges).toBe(0);
  });

  test.each([1, 2])('is served from what the driver could order the stream after: record %s of 2 is refused', (nth) => {
    const { pool, a, b, large, free } = fragmented({ growth: 'after-waits', deallocationEvents: 'deferred' });
    using _pool = pool;
    const holds = [a.hold(), b.hold()];
    free();
    failCall('cuEventRecord', nth, 999);
    expect(pool.allocate(96 * KiB, stream)).toBe(large);
    expect(failCall('cuEventRecord', 0)).toBe(false);
    expect(pool.statistics()).toMatchObject({ merges: nth - 1, reuses: 2 - nth });
    for (const hold of holds) hold.release();
    pool.validate();
  });

  test.each(sharingPolicies)('waits for what was queued before a neighbour was freed, under %s', (deallocationEvents) => {
    const { pool, a, b, first, second, large } = fragmented({ growth: 'after-waits', deallocationEvents });
    using _pool = pool;
    using c = new Stream({ nonBlocking: true });
    const hold = a.hold();
    pool.deallocate(first, 64 * KiB, a);
    using block = new BusyBlock(pool, second, 64 * KiB, b);
    block.free();
    pool.deallocate(large, 320 * KiB, a);
    expect(pool.allocate(96 * KiB, c)).toBe(first);
    hold.release();
    expectOrdered(first, 96 * KiB, c, block.hold);
  });

  test.each(sharingPolicies)(
    'lets a log of 8 threads with a stream each complete with a tenth more than its peak, under %s',
    async (events) => {
      const log = await readAllocationLog(arrowEtl);
      const bytes = Math.ceil((1.1 * log.peakLiveBytes) / 256) * 256;
      const specification = `pool(cuda, initialBytes=${bytes}, maximumBytes=${bytes}, deallocationEvents=${events})`;
      const { failures, leakedBytes, driver } = replayLog(log, () => createResourceStack(specification), { streams: 'thread', repeat: 1 });
      expect({ failures, leakedBytes, synchronizations: driver.synchronizations }).toEqual({
        failures: 0,
        leakedBytes: 0,
        synchronizations: 0,
      });
    },
  );
});
