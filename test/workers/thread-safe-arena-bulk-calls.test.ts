import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { Device, KiB, MiB, Stream } from '../../src/index.js';
import { intercept } from '../../src/observing/interceptor.js';
import { failCall } from '../../src/tools/testing/index.js';
import { ThreadSafeArenaMemoryResource } from '../../src/workers/index.js';
import { checkResultArrays, expectBulkOrder, expectRefused, type RefusedFrees } from '../support/bulk-calls.js';
import { code } from '../support/errors.js';
import { BusyBlock, policies, sharingPolicies } from '../support/stream-order.js';

const stream = new Stream({ nonBlocking: true });
afterAll(() => stream.dispose());

let names = 0;
function arena(deallocationEvents: (typeof policies)[number] = 'eager', arenaBytes = 1 * MiB): ThreadSafeArenaMemoryResource {
  Device.get().synchronizeSync();
  return new ThreadSafeArenaMemoryResource({ name: `many ${++names}`, arenaBytes, superblockBytes: 64 * KiB, deallocationEvents });
}

/** What an arena has in use. What it has reserved may differ after a refusal, which gives back what is free. */
function stateOf(resource: ThreadSafeArenaMemoryResource): object {
  const { liveBytes, liveAllocations } = resource.statistics();
  return { liveBytes, liveAllocations };
}

const steps = fc.array(fc.record({ sizes: fc.array(fc.nat({ max: 40 * KiB }), { maxLength: 30 }), freed: fc.nat({ max: 7 }) }), {
  maxLength: 8,
});

describe('bulk calls of a thread-safe arena', () => {
  test('give and count what single calls do', () => {
    fc.assert(
      fc.property(steps, (list) => {
        using bulk = arena('deferred', 16 * MiB);
        using single = arena('deferred', 16 * MiB);
        const [a, b] = [bulk.allocate(1, stream), single.allocate(1, stream)];
        const base = a - b;
        const live: { pointers: Float64Array; sizes: Float64Array }[] = [];
        for (const step of list) {
          const sizes = Float64Array.from(step.sizes);
          const pointers = bulk.allocateMany(sizes, stream);
          const expected = sizes.map((bytes) => single.allocate(bytes, stream));
          expect([...pointers]).toEqual([...expected].map((pointer) => (pointer === 0 ? 0 : pointer + base)));
          expect(bulk.statistics()).toEqual(single.statistics());
          live.push({ pointers, sizes });
          const [block] = live.splice(step.freed % live.length, step.freed < 4 ? 1 : 0);
          if (block === undefined) continue;
          bulk.deallocateMany(block.pointers, block.sizes, stream);
          block.pointers.forEach((pointer, i) => {
            single.deallocate(pointer === 0 ? 0 : pointer - base, block.sizes[i] as number, stream);
          });
          expect(bulk.statistics()).toEqual(single.statistics());
        }
        for (const { pointers, sizes } of live) {
          bulk.deallocateMany(pointers, sizes, stream);
          pointers.forEach((pointer, i) => {
            single.deallocate(pointer === 0 ? 0 : pointer - base, sizes[i] as number, stream);
          });
        }
        bulk.deallocate(a, 1, stream);
        single.deallocate(b, 1, stream);
      }),
      { numRuns: 40 },
    );
  });

  test('take more than the index does at once, and any size', () => {
    using resource = arena('eager', 64 * MiB);
    const sizes = new Float64Array(100_000).fill(256);
    sizes[50_000] = 0;
    sizes[70_000] = 20 * MiB;
    const pointers = resource.allocateMany(sizes, stream);
    expect(pointers[50_000]).toBe(0);
    expect(new Set(pointers).size).toBe(100_000);
    expect(resource.statistics()).toMatchObject({ liveBytes: 99_998 * 256 + 20 * MiB, liveAllocations: 99_999 });
    resource.deallocateMany(pointers, sizes, stream);
    expect(stateOf(resource)).toEqual({ liveBytes: 0, liveAllocations: 0 });
    expect(resource.allocateMany(new Float64Array(), stream)).toEqual(new Float64Array());
    resource.deallocateMany(new Float64Array(), new Float64Array(), stream);
  });

  test('put the pointers into the array that they are given, as long as it is apart from the sizes', () => {
    using resource = arena();
    checkResultArrays(resource, stream);
    expect(stateOf(resource)).toEqual({ liveBytes: 0, liveAllocations: 0 });
  });

  test('refuse what is no array of sizes or pointers', () => {
    using resource = arena();
    for (const wrong of [undefined, [1], new Float32Array(1), 1] as never[]) {
      expect(() => resource.allocateMany(wrong, stream)).toThrow(TypeError);
      expect(() => resource.deallocateMany(wrong, new Float64Array(1), stream)).toThrow(TypeError);
    }
    expect(() => resource.deallocateMany(new Float64Array(2), new Float64Array(3), stream)).toThrow('elements, got 2 and 3');
    for (const wrong of [-1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53]) {
      expect(() => resource.allocateMany(Float64Array.of(256, wrong), stream)).toThrow(`sizes[1] must be an integer`);
      expect(() => resource.deallocateMany(Float64Array.of(wrong), Float64Array.of(0), stream)).toThrow(`pointers[0] must be an integer`);
      expect(() => resource.deallocateMany(Float64Array.of(0), Float64Array.of(wrong), stream)).toThrow(RangeError);
    }
    expect(() => resource.allocateMany(Float64Array.of(1), {} as Stream)).toThrow(TypeError);
    const ended = arena();
    ended.dispose();
    expect(() => ended.allocateMany(Float64Array.of(1), stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
  });

  test.each(policies)('allocate all or nothing: %s', (policy) => {
    using resource = arena(policy);
    const kept = resource.allocate(300, stream);
    const before = stateOf(resource);
    const sizes = Float64Array.of(256, 0, 500 * KiB, 256, 600 * KiB, 256);
    expect(() => resource.allocateMany(sizes, stream)).toThrow(/out of memory: 600 KiB/);
    expect(stateOf(resource)).toEqual(before);
    expect(() => resource.allocateMany(Float64Array.of(256, 2 ** 52), stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(stateOf(resource)).toEqual(before);
    resource.deallocate(kept, 300, stream);
    resource.deallocate(resource.allocate(1 * MiB, stream), 1 * MiB, stream);
  });

  test.each(policies)('free all or nothing: %s', (policy) => {
    using resource = arena(policy);
    const sizes = Float64Array.of(256, 1000, 4096);
    const pointers = resource.allocateMany(sizes, stream);
    const [first = 0, second = 0, third = 0] = pointers;
    const refusals: RefusedFrees = [
      [[first, second, third], [256, 999, 4096], 'ERR_CISTERN_WRONG_SIZE', 'it was allocated with 1000 bytes'],
      [[first, second, third + 256], [256, 1000, 3840], 'ERR_CISTERN_FOREIGN_POINTER', 'was not allocated by this resource'],
      [[first, 8], [256, 8], 'ERR_CISTERN_FOREIGN_POINTER', 'was not allocated by this resource'],
      [[first, second, first], [256, 1000, 256], 'ERR_CISTERN_DOUBLE_FREE', 'twice in one call'],
    ];
    expectRefused(resource, refusals, stream, () => stateOf(resource));
    resource.deallocateMany(pointers, sizes, stream);
    expect(() => resource.deallocateMany(pointers, sizes, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(stateOf(resource)).toEqual({ liveBytes: 0, liveAllocations: 0 });
  });

  test.each(sharingPolicies)('keep the order of streams: %s', (policy) => {
    using resource = arena(policy);
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    expectBulkOrder(resource, a, b);
  });

  test.each(sharingPolicies)('leave what they had taken from other streams behind the work of these: %s', (policy) => {
    using resource = arena(policy);
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    using c = new Stream({ nonBlocking: true });
    using block = BusyBlock.freed(resource, 1 * MiB, a);
    expect(() => resource.allocateMany(Float64Array.of(1 * MiB, 1 * MiB), b)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    block.expectHandedTo(c);
    resource.deallocate(block.pointer, 1 * MiB, c);
  });

  test('leave all allocated if the event of the frees is refused, and none if the driver refuses an allocation', () => {
    using resource = arena('eager');
    const sizes = Float64Array.of(256, 512);
    const pointers = resource.allocateMany(sizes, stream);
    const before = stateOf(resource);
    failCall('cuEventRecord', 1, 999);
    expect(() => resource.deallocateMany(pointers, sizes, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(stateOf(resource)).toEqual(before);
    resource.deallocateMany(pointers, sizes, stream);
    using other = new Stream({ nonBlocking: true });
    resource.deallocate(resource.allocate(1 * MiB, stream), 1 * MiB, stream);
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => resource.allocateMany(sizes, other)).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(stateOf(resource)).toEqual({ liveBytes: 0, liveAllocations: 0 });
  });

  test('refuse a captured stream', () => {
    using resource = arena();
    const sizes = Float64Array.of(256, 512);
    const pointers = resource.allocateMany(sizes, stream);
    const graph = stream.capture(() => {
      expect(() => resource.allocateMany(sizes, stream)).toThrow(code('ERR_CISTERN_CAPTURING'));
      expect(() => resource.deallocateMany(pointers, sizes, stream)).toThrow(code('ERR_CISTERN_CAPTURING'));
    });
    graph.dispose();
    resource.deallocateMany(pointers, sizes, stream);
  });

  test('are single calls for who looks on', () => {
    using resource = arena();
    const seen: string[] = [];
    intercept(resource, {
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
    const pointers = resource.allocateMany(sizes, stream);
    const [first = 0] = pointers;
    expect(() => resource.deallocateMany(Float64Array.of(first, first), Float64Array.of(256, 256), stream)).toThrow(
      code('ERR_CISTERN_DOUBLE_FREE'),
    );
    expect(() => resource.deallocateMany(pointers, Float64Array.of(256, 999), stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    resource.deallocateMany(pointers, sizes, stream);
    expect(() => resource.allocateMany(Float64Array.of(512, 2 * MiB), stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(seen).toEqual(['+256', '+1000', '-256', '-1000', '+512', `+${2 * MiB}`, '-512']);
    expect(stateOf(resource)).toEqual({ liveBytes: 0, liveAllocations: 0 });
  });
});
