import { describe, expect, test } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  Event,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  Stream,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { BusyBlock, eventCalls, expectOrdered, expectWaiting, madeElsewhere, policies, sharingPolicies } from '../support/stream-order.js';

const bytes = MiB;

/**
 * Room for a given number of allocations, with one block for each: the last to allocate must get
 * the memory of another.
 */
function scratchOf(blocks: number, deallocationEvents: DeallocationEvents, upstream: MemoryResource = new CudaMemoryResource()) {
  return new MonotonicMemoryResource(upstream, {
    initialBytes: bytes,
    growthFactor: 1,
    maximumBytes: blocks * bytes,
    growth: 'after-waits',
    deallocationEvents,
  });
}

describe.each(policies)('a monotonic resource with %s events', (policy) => {
  test('gives a stream its memory back after a rewind, with neither an event nor a wait', () => {
    using scratch = scratchOf(1, policy);
    using a = new Stream();
    const mark = scratch.mark();
    const first = scratch.allocate(bytes, a);
    using hold = a.hold();
    const { records, waits } = eventCalls(() => {
      scratch.deallocate(first, bytes, a);
      scratch.rewind(mark);
      expect(scratch.allocate(bytes, a)).toBe(first);
    });
    expect([records, waits]).toEqual([0, 0]);
    expect(a.query()).toBe(false);
    hold.release();
  });

  test('lets streams allocate side by side without a wait', () => {
    using scratch = scratchOf(4, policy);
    using a = new Stream();
    using b = new Stream();
    using hold = a.hold();
    const { records, waits } = eventCalls(() => {
      for (const stream of [a, b, a, b]) scratch.deallocate(scratch.allocate(bytes, stream), bytes, stream);
    });
    expect([records, waits]).toEqual([0, 0]);
    expect(b.query()).toBe(true);
    hold.release();
  });

  test('makes a stream wait, after a rewind, for another one that freed some of its memory', () => {
    using scratch = scratchOf(1, policy);
    using a = new Stream();
    using b = new Stream();
    const mark = scratch.mark();
    using block = BusyBlock.freed(scratch, bytes, a, b);
    expect(a.query()).toBe(true);
    scratch.rewind(mark);
    block.expectHandedTo(a);
    scratch.validate();
  });

  test('makes it wait even if the other stream has ended', () => {
    using scratch = scratchOf(1, policy);
    using a = new Stream();
    const b = new Stream();
    const mark = scratch.mark();
    using block = BusyBlock.freed(scratch, bytes, a, b);
    b.dispose();
    scratch.rewind(mark);
    block.expectHandedTo(a);
  });

  test('makes it wait for the event that a free was given, and records none', () => {
    using scratch = scratchOf(1, policy);
    using a = new Stream();
    using b = new Stream();
    using event = new Event();
    const mark = scratch.mark();
    using block = BusyBlock.allocate(scratch, bytes, a, b);
    event.record(b);
    const { records } = eventCalls(() => {
      block.free(event);
      scratch.rewind(mark);
    });
    expect(records).toBe(0);
    block.expectHandedTo(a);
  });

  test('keeps the wait for the freeing stream for a third one (rapidsai/rmm#2489)', () => {
    using scratch = scratchOf(1, policy);
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    // Since it waits for b, it is not synchronized on the host under off.
    using block = BusyBlock.freed(scratch, bytes, a, b);
    scratch.reset();
    if (policy === 'off') {
      block.hold.release();
      expect(scratch.allocate(bytes, c)).toBe(block.pointer);
      return;
    }
    block.expectHandedTo(c);
  });

  test('keeps the order of memory in use when its stream ended (rapidsai/rmm#510)', () => {
    using scratch = scratchOf(1, policy);
    const a = new Stream();
    using b = new Stream();
    using block = BusyBlock.allocate(scratch, bytes, a);
    a.dispose();
    expect(() => scratch.allocate(bytes, b)).toThrow('out of memory');
    scratch.validate();
    scratch.reset();
    block.expectHandedTo(b);
    scratch.validate();
  });

  test('keeps the order of memory in use since its stream was synchronized', () => {
    using scratch = scratchOf(1, policy);
    const a = new Stream();
    using b = new Stream();
    const first = scratch.allocate(bytes, a);
    a.synchronizeSync();
    using block = new BusyBlock(scratch, first, bytes, a);
    a.dispose();
    scratch.reset();
    block.expectHandedTo(b);
  });

  test('keeps the order of memory that was free when its stream ended', () => {
    using scratch = scratchOf(1, policy);
    const a = new Stream();
    using b = new Stream();
    using block = BusyBlock.allocate(scratch, bytes, a);
    scratch.reset();
    a.dispose();
    block.expectHandedTo(b);
  });

  test.each(['before', 'after'])('waits for a stream that freed memory of an ended one, %s that one ended', (when) => {
    using scratch = scratchOf(1, policy);
    const a = new Stream();
    using b = new Stream();
    using c = new Stream();
    using block = BusyBlock.allocate(scratch, bytes, a, b);
    if (when === 'after') a.dispose();
    block.free();
    if (when === 'before') a.dispose();
    scratch.reset();
    block.expectHandedTo(c);
    scratch.validate();
  });

  test('does not mistake a new stream for an ended one with the same slot (rapidsai/rmm#2251)', () => {
    using scratch = scratchOf(2, policy);
    const a = new Stream();
    const first = scratch.allocate(bytes, a);
    const mark = scratch.mark();
    using block = new BusyBlock(scratch, first, bytes, a);
    a.dispose();
    using b = new Stream();
    expect(b.identity.slot).toBe(a.identity.slot);
    const second = scratch.allocate(bytes, b);
    expect(second).not.toBe(first);
    scratch.rewind(mark);
    expect(scratch.allocate(bytes, b)).toBe(second);
    scratch.reset();
    const both = [scratch.allocate(bytes, b), scratch.allocate(bytes, b)];
    expect(both).toContain(first);
    expectOrdered(first, bytes, b, block.hold);
  });

  test('gives everything back to the upstream only after the streams that used it', () => {
    using upstream = new CudaAsyncMemoryResource();
    using scratch = scratchOf(1, policy, upstream);
    using a = new Stream();
    using b = new Stream();
    using block = BusyBlock.allocate(scratch, bytes, a);
    expect(scratch.release(b)).toBe(bytes);
    expect(scratch.reservedBytes).toBe(0);
    block.expectHandedTo(b, upstream);
    upstream.deallocate(block.pointer, bytes, b);
    expect(scratch.allocate(bytes, a)).toBeGreaterThan(0);
  });

  test('is disposed in the order of every stream that used it', () => {
    using upstream = new CudaAsyncMemoryResource();
    const scratch = scratchOf(2, policy, upstream);
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const [first, second] = [scratch.allocate(bytes, a), scratch.allocate(bytes, a)];
    using holdA = a.hold();
    using holdB = b.hold();
    scratch.deallocate(first, bytes, a);
    scratch.deallocate(second, bytes, b);
    scratch.dispose();
    const legacy = Stream.legacyDefault();
    expectWaiting(legacy);
    holdA.release();
    expectWaiting(legacy);
    holdB.release();
    legacy.synchronizeSync();
    expect(scratch.reservedBytes).toBe(0);
  });

  test('records an event at a free on a stream whose end is not announced (rapidsai/rmm#649), and never uses the stream again', () => {
    using scratch = scratchOf(1, policy);
    const foreign = madeElsewhere();
    using a = new Stream();
    const unannounced = Stream.fromHandle(foreign.address);
    const mark = scratch.mark();
    const first = scratch.allocate(bytes, a);
    expect(eventCalls(() => scratch.deallocate(first, bytes, unannounced)).records).toBe(1);
    foreign.destroy();
    expect(eventCalls(() => scratch.rewind(mark)).records).toBe(0);
    expect(scratch.allocate(bytes, a)).toBe(first);
  });

  test('records nothing on a stream that may be gone when it is rewound, and holds its memory for it', () => {
    using scratch = scratchOf(1, policy);
    const foreign = madeElsewhere();
    using a = new Stream();
    const unannounced = Stream.fromHandle(foreign.address);
    const first = scratch.allocate(bytes, unannounced);
    foreign.destroy();
    expect(eventCalls(() => scratch.reset()).records).toBe(0);
    const before = driverCallCounts().synchronizations;
    expect(scratch.allocate(bytes, a)).toBe(first);
    expect(driverCallCounts().synchronizations).toBeGreaterThan(before);
  });

  test('gives a stream that may be gone its memory back without waiting', () => {
    using scratch = scratchOf(1, policy);
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    const mark = scratch.mark();
    const first = scratch.allocate(bytes, unannounced);
    const before = driverCallCounts();
    scratch.rewind(mark);
    expect(scratch.allocate(bytes, unannounced)).toBe(first);
    scratch.reset();
    expect(scratch.allocate(bytes, unannounced)).toBe(first);
    expect(driverCallCounts()).toMatchObject({ eventRecords: before.eventRecords, synchronizations: before.synchronizations });
    unannounced.dispose();
    foreign.destroy();
  });

  test('gives small blocks of a stream that may be gone back to the upstream for a larger one of that stream', () => {
    using scratch = scratchOf(4, policy);
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    for (let i = 0; i < 4; i++) scratch.allocate(bytes, unannounced);
    scratch.reset();
    expect(scratch.allocate(4 * bytes, unannounced)).toBeGreaterThan(0);
    expect(scratch.statistics()).toMatchObject({ reservedBytes: 4 * bytes, releases: 4, synchronizations: 0 });
    scratch.validate();
    unannounced.dispose();
    foreign.destroy();
  });

  test('waits on the host once for all memory that the fallback gave to streams that may be gone', () => {
    using fallback = new CudaMemoryResource();
    using scratch = new MonotonicMemoryResource(new CudaMemoryResource(), { maximumBytes: 0, fallback, deallocationEvents: policy });
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    for (let i = 0; i < 4; i++) scratch.allocate(bytes, unannounced);
    scratch.reset();
    expect(scratch.statistics()).toMatchObject({ fallbackBytes: 0, synchronizations: 1 });
    unannounced.dispose();
    foreign.destroy();
  });

  test('waits on the host for a stream that freed memory of one that may be gone', () => {
    using scratch = scratchOf(1, policy);
    const foreign = madeElsewhere();
    using b = new Stream();
    const unannounced = Stream.fromHandle(foreign.address);
    const mark = scratch.mark();
    const first = scratch.allocate(bytes, unannounced);
    // Keeps the stream busy until the host waits for it.
    b.launchHostFunction(() => undefined);
    scratch.deallocate(first, bytes, b);
    scratch.rewind(mark);
    expect(b.query()).toBe(true);
    expect(scratch.statistics().synchronizations).toBe(1);
    expect(scratch.allocate(bytes, unannounced)).toBe(first);
    unannounced.dispose();
    foreign.destroy();
  });

  test('is unchanged if an event cannot be recorded', () => {
    using scratch = scratchOf(2, policy);
    using a = new Stream();
    using b = new Stream();
    const mark = scratch.mark();
    const first = scratch.allocate(bytes, a);
    scratch.allocate(bytes, a);
    using hold = b.hold();
    scratch.deallocate(first, bytes, b, 'deferred');
    failCall('cuEventRecord', 1, 999);
    expect(() => scratch.rewind(mark)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    expect(scratch.statistics().usedBytes).toBe(2 * bytes);
    scratch.validate();
    scratch.rewind(mark);
    expect(scratch.statistics().usedBytes).toBe(0);
    hold.release();
  });
});

describe.each(sharingPolicies)('a block of a monotonic resource with %s events', (policy) => {
  test('goes to another stream, which waits for the first, after a reset', () => {
    using scratch = scratchOf(1, policy);
    using a = new Stream();
    using b = new Stream();
    using block = BusyBlock.allocate(scratch, bytes, a);
    scratch.reset();
    block.expectHandedTo(b);
    expect(scratch.statistics().reuses).toBe(1);
  });

  test('goes to another stream after a rewind, if the first needs it for no allocation', () => {
    using scratch = scratchOf(1, policy);
    using a = new Stream();
    using b = new Stream();
    const mark = scratch.mark();
    using block = BusyBlock.allocate(scratch, bytes, a);
    scratch.rewind(mark);
    block.expectHandedTo(b);
  });

  test('makes a third stream wait for the first when the second took its memory over (rapidsai/rmm#2489)', () => {
    using scratch = scratchOf(2, policy);
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    const first = scratch.allocate(bytes, a);
    scratch.allocate(bytes, c);
    const keptByC = scratch.mark();
    using block = new BusyBlock(scratch, first, bytes, a);
    using hold = c.hold();
    scratch.reset();
    expect(keptByC.isStanding).toBe(false);
    expect(scratch.allocate(bytes, b)).toBe(first);
    scratch.reset();
    hold.release();
    const pointers = [scratch.allocate(bytes, c), scratch.allocate(bytes, c)];
    expect(pointers).toContain(first);
    expectOrdered(first, bytes, c, block.hold);
  });

  test.each(['', ', while a host function used the third'])('keeps its order if another stream gathered it%s', (how) => {
    let meanwhile = () => {};
    const full = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 5 * bytes });
    const upstream = new (class extends CudaMemoryResource {
      override allocate(size: number, stream: Stream): number {
        try {
          return full.allocate(size, stream);
        } finally {
          meanwhile();
        }
      }
      override deallocate(pointer: number, size: number, stream: Stream): void {
        full.deallocate(pointer, size, stream);
      }
    })();
    using scratch = new MonotonicMemoryResource(upstream, { initialBytes: 4 * bytes, deallocationEvents: policy });
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    const mark = scratch.mark();
    const [large, small] = [scratch.allocate(4 * bytes, a), scratch.allocate(bytes, a)];
    using block = new BusyBlock(scratch, small, bytes, a);
    scratch.rewind(mark);
    if (how !== '') meanwhile = () => scratch.deallocate(0, 0, c);
    expect(scratch.allocate(4 * bytes, b)).toBe(large);
    block.expectHandedTo(c);
  });

  test('is ordered like a free if it is fresh from the upstream (part of rapidsai/rmm#2507)', () => {
    using upstream = new CudaAsyncMemoryResource();
    using scratch = scratchOf(1, policy, upstream);
    using a = new Stream();
    using b = new Stream();
    using hold = a.hold();
    const first = scratch.allocate(bytes, a);
    scratch.reset();
    expect(scratch.allocate(bytes, b)).toBe(first);
    expectOrdered(first, bytes, b, hold);
  });

  test('of a stream that may be gone is ordered when that stream took it, and gave others back for a larger one', () => {
    using upstream = new CudaAsyncMemoryResource();
    using scratch = scratchOf(4, policy, upstream);
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    using b = new Stream({ nonBlocking: true });
    for (let i = 0; i < 4; i++) scratch.allocate(bytes, unannounced);
    using hold = unannounced.hold();
    scratch.reset();
    scratch.allocate(2 * bytes, unannounced);
    expect(scratch.statistics()).toMatchObject({ releases: 2, synchronizations: 0 });
    const joined = scratch.allocate(bytes, b);
    expect(scratch.statistics().reuses).toBe(1);
    expectOrdered(joined, bytes, b, hold);
    unannounced.dispose();
    foreign.destroy();
  });

  test('goes back to the upstream, if it is too small, only after the stream that used it', () => {
    using upstream = new CudaAsyncMemoryResource();
    using scratch = new MonotonicMemoryResource(upstream, { initialBytes: bytes, maximumBytes: 2 * bytes, deallocationEvents: policy });
    using a = new Stream();
    using b = new Stream();
    using block = BusyBlock.allocate(scratch, bytes, a);
    scratch.reset();
    const second = scratch.allocate(2 * bytes, b);
    expect(scratch.statistics().releases).toBe(1);
    expectOrdered(second, bytes, b, block.hold);
  });
});

describe('the events that a monotonic resource records', () => {
  test.each([
    ['eager', 2],
    ['deferred', 0],
    ['off', 0],
  ] as const)('under %s are %i where a reset frees the blocks of two streams', (policy, expected) => {
    using scratch = scratchOf(4, policy);
    using a = new Stream();
    using b = new Stream();
    const { records } = eventCalls(() => {
      for (const stream of [a, b, a, b]) scratch.deallocate(scratch.allocate(bytes, stream), bytes, stream);
      scratch.reset();
    });
    expect(records).toBe(expected);
  });

  test.each([
    ['eager', 3],
    ['deferred', 1],
    ['off', 1],
  ] as const)('under %s are %i where a busy stream frees three times what another allocated', (policy, expected) => {
    using scratch = scratchOf(3, policy);
    using a = new Stream();
    using b = new Stream();
    const mark = scratch.mark();
    const pointers = [0, 1, 2].map(() => scratch.allocate(bytes / 4, a));
    using _hold = b.hold();
    const { records, waits } = eventCalls(() => {
      for (const pointer of pointers) scratch.deallocate(pointer, bytes / 4, b);
      scratch.rewind(mark);
      scratch.rewind(mark);
    });
    expect([records, waits]).toEqual([expected, 1]);
  });

  test('are none under off if the freeing stream is idle at the rewind', () => {
    using scratch = scratchOf(1, 'off');
    using a = new Stream();
    using b = new Stream();
    const mark = scratch.mark();
    scratch.deallocate(scratch.allocate(bytes, a), bytes, b);
    const { records, waits } = eventCalls(() => scratch.rewind(mark));
    expect([records, waits]).toEqual([0, 0]);
    expect(scratch.statistics().synchronizations).toBe(0);
  });

  test('are none for a rewind that takes back nothing of a stream', () => {
    using scratch = scratchOf(2, 'eager');
    using a = new Stream();
    using b = new Stream();
    const first = scratch.allocate(bytes, a);
    scratch.deallocate(first, bytes, b);
    const mark = scratch.mark();
    scratch.allocate(bytes, b);
    using _hold = b.hold();
    const { records, waits } = eventCalls(() => scratch.rewind(mark));
    expect([records, waits]).toEqual([0, 0]);
  });

  test('must, as a fence, belong to the stream that frees', () => {
    using scratch = scratchOf(1, 'eager');
    using a = new Stream();
    using b = new Stream();
    using event = new Event();
    const pointer = scratch.allocate(bytes, a);
    for (const stream of [a, b]) {
      expect(() => scratch.deallocate(pointer, bytes, stream, event)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
      expect(() => scratch.deallocate(pointer, bytes, stream, 'never' as DeallocationEvents)).toThrow("'eager', 'deferred', 'off'");
    }
    event.record(a);
    expect(eventCalls(() => scratch.deallocate(pointer, bytes, a, event)).records).toBe(0);
  });
});

describe('a monotonic resource without events', () => {
  test('keeps a block for its own stream while that is busy, and takes new memory for another', () => {
    using scratch = scratchOf(2, 'off');
    using a = new Stream();
    using b = new Stream();
    const first = scratch.allocate(bytes, a);
    using _hold = a.hold();
    scratch.reset();
    expect(scratch.allocate(bytes, b)).not.toBe(first);
    expect(scratch.allocate(bytes, a)).toBe(first);
    expect(scratch.statistics().synchronizations).toBe(0);
  });

  test('gives a block to another stream when its own answers that it is idle', () => {
    using scratch = scratchOf(2, 'off');
    using a = new Stream();
    using b = new Stream();
    const first = scratch.allocate(bytes, a);
    scratch.reset();
    const { records } = eventCalls(() => expect(scratch.allocate(bytes, b)).toBe(first));
    expect(records).toBe(0);
    expect(scratch.statistics()).toMatchObject({ growths: 1, synchronizations: 0 });
  });

  test('synchronizes the streams that blocks are held for before it runs out, and counts them', () => {
    using scratch = scratchOf(1, 'off');
    using a = new Stream();
    using b = new Stream();
    const first = scratch.allocate(bytes, a);
    // Keeps the stream busy until it is waited for.
    a.launchHostFunction(() => undefined);
    scratch.reset();
    expect(scratch.allocate(bytes, b)).toBe(first);
    expect(scratch.statistics().synchronizations).toBe(1);
  });
});
