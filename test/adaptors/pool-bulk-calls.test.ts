import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CudaMemoryResource, Device, KiB, LimitingResourceAdaptor, MiB, PoolMemoryResource, Stream } from '../../src/index.js';
import { intercept } from '../../src/observing/interceptor.js';
import { failCall } from '../../src/tools/testing/index.js';
import { checkResultArrays, expectBulkOrder, expectRefused, type RefusedFrees } from '../support/bulk-calls.js';
import { code } from '../support/errors.js';
import { QuickPool } from '../support/quick-pool.js';
import { BusyBlock, eventCalls, policies, sharingPolicies } from '../support/stream-order.js';

const stream = new Stream();
const cuda = new CudaMemoryResource();

function poolOf(bytes: number, deallocationEvents: (typeof policies)[number] = 'deferred'): PoolMemoryResource {
  Device.get().synchronizeSync();
  return new PoolMemoryResource(cuda, { initialBytes: bytes, maximumBytes: bytes, deallocationEvents });
}

/** What a pool has, in figures that a refused call leaves as they were. */
function stateOf(pool: PoolMemoryResource): object {
  pool.validate();
  const { allocatedBytes, largestFreeBytes, reservedBytes } = pool.statistics();
  return { allocatedBytes, largestFreeBytes, reservedBytes };
}

const sizesAndChoices = fc.array(fc.record({ sizes: fc.array(fc.nat({ max: 40 * KiB }), { maxLength: 30 }), freed: fc.nat({ max: 7 }) }), {
  maxLength: 12,
});

describe('bulk calls of a pool', () => {
  for (const [name, make] of [
    ['a pool', () => poolOf(8 * MiB)],
    ['a pool with quick lists', () => new QuickPool(new CudaMemoryResource(), { initialBytes: 8 * MiB })],
  ] as const) {
    it(`give the addresses of single calls: ${name}`, () => {
      fc.assert(
        fc.property(sizesAndChoices, (steps) => {
          using bulk = make();
          using single = make();
          const base = bulk.allocate(1, stream) - single.allocate(1, stream);
          const live: { pointers: Float64Array; sizes: Float64Array }[] = [];
          for (const { sizes: list, freed } of steps) {
            const sizes = Float64Array.from(list);
            const pointers = bulk.allocateMany(sizes, stream);
            const expected = sizes.map((bytes) => single.allocate(bytes, stream));
            expect([...pointers]).toEqual([...expected].map((pointer) => (pointer === 0 ? 0 : pointer + base)));
            live.push({ pointers, sizes });
            const [block] = live.splice(freed % live.length, freed < 4 ? 1 : 0);
            if (block === undefined) continue;
            bulk.deallocateMany(block.pointers, block.sizes, stream);
            block.pointers.forEach((pointer, i) => {
              single.deallocate(pointer === 0 ? 0 : pointer - base, block.sizes[i] as number, stream);
            });
            expect(stateOf(bulk)).toEqual(stateOf(single));
          }
        }),
      );
    });
  }

  it('grow the pool, and take any size that single calls take', () => {
    using pool = new PoolMemoryResource(cuda);
    const sizes = Float64Array.of(0, 1, 3 * MiB, 0, 256);
    const pointers = pool.allocateMany(sizes, stream);
    expect([pointers[0], pointers[3]]).toEqual([0, 0]);
    expect(new Set(pointers).size).toBe(4);
    expect(pool.statistics().allocatedBytes).toBe(256 + 3 * MiB + 256);
    pool.deallocateMany(pointers, sizes, stream);
    expect(pool.statistics().allocatedBytes).toBe(0);
    const many = new Float64Array(100_000).fill(256);
    pool.deallocateMany(pool.allocateMany(many, stream), many, stream);
    expect(pool.statistics().allocatedBytes).toBe(0);
    expect(pool.allocateMany(new Float64Array(), stream)).toEqual(new Float64Array());
    pool.deallocateMany(new Float64Array(), new Float64Array(), stream);
  });

  it('put the pointers into the array that they are given, as long as it is apart from the sizes', () => {
    using pool = new PoolMemoryResource(cuda, { maximumBytes: MiB });
    checkResultArrays(pool, stream);
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  it('refuse what is no array of sizes or pointers, before they change anything', () => {
    using pool = new PoolMemoryResource(cuda, { maximumBytes: MiB });
    for (const wrong of [undefined, [1], new Float32Array(1), 1] as never[]) {
      expect(() => pool.allocateMany(wrong, stream)).toThrow(TypeError);
      expect(() => pool.deallocateMany(wrong, new Float64Array(1), stream)).toThrow(TypeError);
      expect(() => pool.deallocateMany(new Float64Array(1), wrong, stream)).toThrow(TypeError);
    }
    expect(() => pool.allocateMany(new Float64Array(2 ** 20 + 1), stream)).toThrow('sizes must have at most 1048576 elements, got 1048577');
    expect(() => pool.deallocateMany(new Float64Array(2), new Float64Array(3), stream)).toThrow('the same number of elements, got 2 and 3');
    for (const wrong of [-1, 0.5, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53]) {
      expect(() => pool.allocateMany(Float64Array.of(256, wrong), stream)).toThrow(
        `sizes[1] must be an integer from 0 to 2^53 - 1, got ${wrong}`,
      );
      expect(() => pool.deallocateMany(Float64Array.of(0, wrong), Float64Array.of(0, 1), stream)).toThrow(RangeError);
      expect(() => pool.deallocateMany(Float64Array.of(0), Float64Array.of(wrong), stream)).toThrow(RangeError);
    }
    expect(pool.reservedBytes).toBe(0);
    expect(() => pool.allocateMany(Float64Array.of(1), {} as Stream)).toThrow(TypeError);
  });

  it.each(policies)('allocate all or nothing: %s', (policy) => {
    using pool = poolOf(MiB, policy);
    const kept = pool.allocate(300, stream);
    const before = stateOf(pool);
    const sizes = Float64Array.of(256, 0, 500 * KiB, 256, 600 * KiB, 256);
    expect(() => pool.allocateMany(sizes, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(stateOf(pool)).toEqual(before);
    expect(() => pool.allocateMany(Float64Array.of(256, 2 ** 40 + 256), stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(stateOf(pool)).toEqual(before);
    pool.deallocate(kept, 300, stream);
    pool.deallocate(pool.allocate(MiB, stream), MiB, stream);
  });

  it.each(policies)('free all or nothing: %s', (policy) => {
    using pool = poolOf(MiB, policy);
    const sizes = Float64Array.of(256, 1000, 4096);
    const pointers = pool.allocateMany(sizes, stream);
    const [first = 0, second = 0, third = 0] = pointers;
    const refusals: RefusedFrees = [
      [[first, second, third], [256, 999, 4096], 'ERR_CISTERN_WRONG_SIZE', 'it was allocated with 1000 bytes'],
      [[first, second, third + 256], [256, 1000, 3840], 'ERR_CISTERN_FOREIGN_POINTER', 'inside'],
      [[first, 8], [256, 8], 'ERR_CISTERN_FOREIGN_POINTER', 'was not allocated by this resource'],
      [[first, second, first], [256, 1000, 256], 'ERR_CISTERN_DOUBLE_FREE', 'twice in one call'],
    ];
    expectRefused(pool, refusals, stream, () => stateOf(pool));
    pool.deallocateMany(pointers, sizes, stream);
    expect(() => pool.deallocateMany(pointers, sizes, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  it('record one event for all frees under eager, and none under the other policies', () => {
    for (const policy of policies) {
      using pool = poolOf(MiB, policy);
      const sizes = new Float64Array(50).fill(256);
      const pointers = pool.allocateMany(sizes, stream);
      const calls = eventCalls(() => pool.deallocateMany(pointers, sizes, stream));
      expect(calls).toEqual({ records: policy === 'eager' ? 1 : 0, waits: 0 });
    }
  });

  it.each(sharingPolicies)('keep the order of streams: %s', (policy) => {
    using pool = poolOf(MiB, policy);
    using a = new Stream();
    using b = new Stream();
    expectBulkOrder(pool, a, b);
  });

  it.each(sharingPolicies)('leave what they had taken from other streams behind the work of these: %s', (policy) => {
    using pool = poolOf(MiB, policy);
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    // The second is refused after all memory was merged, or at once.
    for (const bytes of [MiB, 2 ** 40]) {
      using block = BusyBlock.freed(pool, MiB, a);
      expect(() => pool.allocateMany(Float64Array.of(MiB, bytes), b)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
      block.expectHandedTo(c);
      pool.deallocate(block.pointer, MiB, c);
      Device.get().synchronizeSync();
    }
  });

  it('leave all allocated if the event of the frees is refused', () => {
    using pool = poolOf(MiB, 'eager');
    const sizes = Float64Array.of(256, 512);
    const pointers = pool.allocateMany(sizes, stream);
    const before = stateOf(pool);
    failCall('cuEventRecord', 1, 999);
    expect(() => pool.deallocateMany(pointers, sizes, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(stateOf(pool)).toEqual(before);
    pool.deallocateMany(pointers, sizes, stream);
  });

  it('are single calls for who looks on', () => {
    using limited = new LimitingResourceAdaptor(cuda, { limitBytes: 4 * MiB });
    using pool = new PoolMemoryResource(limited, { initialBytes: MiB, maximumBytes: MiB });
    const seen: string[] = [];
    intercept(pool, {
      allocate(next, ...call) {
        seen.push(`+${call[0]}`);
        return next(...call);
      },
      deallocate(next, ...call) {
        seen.push(`-${call[1]}`);
        next(...call);
      },
    });
    const sizes = Float64Array.of(256, 1000);
    const pointers = pool.allocateMany(sizes, stream);
    expect(() =>
      pool.deallocateMany(Float64Array.of(pointers[0] as number, pointers[0] as number), Float64Array.of(256, 256), stream),
    ).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    pool.deallocateMany(pointers, sizes, stream);
    expect(() => pool.allocateMany(Float64Array.of(512, MiB), stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(seen).toEqual(['+256', '+1000', '-256', '-1000', '+512', `+${MiB}`, '-512']);
    expect(pool.statistics().allocatedBytes).toBe(0);
  });
});
