import { describe, expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import {
  ArenaMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  Device,
  Event,
  LimitingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import {
  BusyBlock,
  eventCalls,
  eventRecords,
  expectOrdered,
  expectWaiting,
  madeElsewhere,
  sharingPolicies,
  valuesOf,
} from '../support/stream-order.js';

const bytes = MiB;

type Pooling = PoolMemoryResource | ArenaMemoryResource;
type MakePool = (blocks: number, deallocationEvents: DeallocationEvents, upstream?: MemoryResource) => Pooling;

/**
 * Pooling resources with room for a few blocks: with room for one, the next allocation must get the
 * freed block.
 */
const poolingResources: [string, MakePool][] = [
  [
    'a pool',
    (blocks, deallocationEvents, upstream = new CudaMemoryResource()) => {
      // Otherwise work that an earlier test left on the default stream would be waited for.
      Device.get().synchronizeSync();
      return new PoolMemoryResource(upstream, {
        initialBytes: blocks * bytes,
        maximumBytes: blocks * bytes,
        growth: 'after-waits',
        deallocationEvents,
      });
    },
  ],
  [
    'an arena',
    (blocks, deallocationEvents, upstream = new CudaMemoryResource()) => {
      // Otherwise work that an earlier test left on the default stream would be waited for.
      Device.get().synchronizeSync();
      return new ArenaMemoryResource(upstream, { arenaBytes: blocks * bytes, deallocationEvents });
    },
  ],
];

function fill(pointer: number, value: number, stream: Stream): void {
  set(pointer, value, 1, bytes, stream);
}

describe.each(poolingResources)('%s', (_name, make) => {
  describe.each(sharingPolicies)('with %s events', (policy) => {
    test('makes another stream that takes a block wait for the stream that freed it', () => {
      using pool = make(1, policy);
      using a = new Stream();
      using b = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      block.expectHandedTo(b);
    });

    test('makes a third stream wait for the first when the second took its memory over (rapidsai/rmm#2489)', () => {
      using pool = make(1, policy);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      // Cannot be served, but merges all free memory on stream b in the attempt.
      expect(() => pool.allocate(2 * bytes, b)).toThrow('out of memory');
      block.expectHandedTo(c);
      pool.validate();
    });

    test('makes a third stream wait for the first even if the second had recorded an event before it took the memory over', () => {
      using pool = make(2, policy);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      const first = pool.allocate(bytes, a);
      pool.deallocate(pool.allocate(bytes, b), bytes, b, 'eager');
      using block = new BusyBlock(pool, first, bytes, a);
      block.free();
      expect(() => pool.allocate(3 * bytes, b)).toThrow('out of memory');
      pool.allocate(2 * bytes, c);
      expectOrdered(first, bytes, c, block.hold);
    });

    test('makes a stream wait for both streams whose neighbouring blocks it gets coalesced', () => {
      using pool = make(2, policy);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      const first = pool.allocate(bytes, a);
      const second = pool.allocate(bytes, b);
      using holdA = a.hold();
      using holdB = b.hold();
      pool.deallocate(first, bytes, a);
      pool.deallocate(second, bytes, b);
      pool.allocate(2 * bytes, c);
      holdA.release();
      a.synchronizeSync();
      fill(first, 3, c);
      expectWaiting(c);
      holdB.release();
      c.synchronizeSync();
      pool.validate();
    });

    test('makes another stream wait for memory that the upstream ordered on the first (part of rapidsai/rmm#2507)', () => {
      using upstream = new CudaAsyncMemoryResource();
      using pool = make(4, policy, upstream);
      using a = new Stream();
      using b = new Stream();
      pool.trim(a);
      using hold = a.hold();
      pool.allocate(bytes, a);
      const rest = pool.allocate(bytes, b);
      fill(rest, 2, b);
      expectWaiting(b);
      hold.release();
      b.synchronizeSync();
    });

    test('keeps the order when the stream that freed a block is gone (rapidsai/rmm#510)', () => {
      using pool = make(1, policy);
      const a = new Stream();
      using b = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      a.dispose();
      block.expectHandedTo(b);
    });

    test('makes a third stream wait for one that is gone when the second, with its slot, took its memory over', () => {
      using pool = make(1, policy);
      const a = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      a.dispose();
      using b = new Stream();
      expect(b.identity.slot).toBe(a.identity.slot);
      expect(() => pool.allocate(2 * bytes, b)).toThrow('out of memory');
      using c = new Stream();
      block.expectHandedTo(c);
    });

    test.each(['first', 'second'])('makes a stream wait for both of two streams that are gone, though the %s has completed', (which) => {
      using pool = make(2, policy);
      const streams = [new Stream(), new Stream()] as const;
      using b = new Stream();
      const blocks = streams.map((stream) => pool.allocate(bytes, stream));
      using first = streams[0].hold();
      using second = streams[1].hold();
      for (const [i, stream] of streams.entries()) pool.deallocate(blocks[i] as number, bytes, stream);
      for (const stream of streams) stream.dispose();
      pool.allocate(2 * bytes, b);
      (which === 'first' ? first : second).release();
      expectWaiting(b);
    });

    test('makes every stream wait for many that are gone, not only the first that takes memory of them', () => {
      using pool = make(10, policy);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      using event = new Event();
      using hold = a.hold();
      event.record(a);
      const streams = Array.from({ length: 10 }, () => new Stream());
      const blocks = streams.map((stream) => pool.allocate(bytes, stream));
      for (const [i, stream] of streams.entries()) {
        stream.wait(event);
        pool.deallocate(blocks[i] as number, bytes, stream);
        stream.dispose();
      }
      pool.allocate(bytes, b);
      expectOrdered(pool.allocate(bytes, c), bytes, c, hold);
    });

    test('does not mistake a new stream for an old one with the same slot (rapidsai/rmm#2251)', () => {
      using pool = make(1, policy);
      const a = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      a.dispose();
      using b = new Stream();
      expect(b.identity.slot).toBe(a.identity.slot);
      block.expectHandedTo(b);
    });

    test("keeps the order when the stream that freed a block is gone, and its caller's event is recorded elsewhere", () => {
      using pool = make(1, policy);
      const a = new Stream();
      using b = new Stream();
      using event = new Event();
      using block = BusyBlock.allocate(pool, bytes, a);
      event.record(a);
      block.free(event);
      a.dispose();
      event.record(b);
      block.expectHandedTo(b);
    });

    test('records events of its own device (rapidsai/rmm#1333)', () => {
      const device = Device.get(1);
      using upstream = new CudaMemoryResource({ device });
      const pool = make(1, policy, upstream);
      using a = new Stream({ device });
      using b = new Stream({ device });
      using block = BusyBlock.freed(pool, bytes, a);
      expect(pool.allocate(bytes, b)).toBe(block.pointer);
      expectWaiting(b);
      block.hold.release();
      pool.dispose();
    });

    test('returns a block to its own stream without waiting', () => {
      using pool = make(1, policy);
      using a = new Stream();
      using hold = a.hold();
      const before = driverCallCounts().eventWaits;
      const first = pool.allocate(bytes, a);
      pool.deallocate(first, bytes, a);
      expect(pool.allocate(bytes, a)).toBe(first);
      expect(driverCallCounts().eventWaits).toBe(before);
      expectWaiting(a);
      hold.release();
    });

    test('makes a third stream wait for the first when a trim gathered its memory on the second', () => {
      using pool = make(1, policy);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      expect(pool.trim(b, { bytesToKeep: bytes })).toBe(0);
      block.expectHandedTo(c);
    });

    test('gives memory back to the upstream only after the stream that freed it', () => {
      using upstream = new CudaAsyncMemoryResource();
      const pool = make(1, policy, upstream);
      using a = new Stream();
      using b = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      expect(pool.trim(b)).toBe(bytes);
      block.expectHandedTo(b, upstream);
      upstream.deallocate(block.pointer, bytes, b);
      pool.dispose();
    });

    test('gives memory back at the end only after the stream that freed it', () => {
      using upstream = new CudaAsyncMemoryResource();
      const pool = make(1, policy, upstream);
      using a = new Stream({ nonBlocking: true });
      using block = BusyBlock.freed(pool, bytes, a);
      pool.dispose();
      // The stream that memory goes back on. A non-blocking stream does not wait for it by itself.
      const stream = Stream.legacyDefault();
      block.expectHandedTo(stream, upstream);
      upstream.deallocate(block.pointer, bytes, stream);
    });
  });

  test('without memory in use gives it back without an event', () => {
    const pool = make(1, 'deferred');
    using a = new Stream();
    using _other = new Stream();
    pool.deallocate(pool.allocate(bytes, a), bytes, a);
    a.synchronizeSync();
    expect(eventRecords(() => pool.dispose())).toBe(0);
  });

  test('with memory in use gives it back after streams that have ended', () => {
    using upstream = new CudaAsyncMemoryResource();
    const pool = make(1, 'deferred', upstream);
    const a = new Stream({ nonBlocking: true });
    const first = pool.allocate(bytes, a);
    let hasRun = false;
    a.launchHostFunction(() => {
      hasRun = true;
    });
    fill(first, 1, a);
    a.dispose();
    pool.dispose();
    expect(hasRun).toBe(true);
  });

  describe('records events that', () => {
    const run = (pool: Pooling, stream: Stream) => {
      for (let i = 0; i < 10; i++) pool.deallocate(pool.allocate(bytes, stream), bytes, stream);
    };

    test('are one for each free under eager', () => {
      using pool = make(1, 'eager');
      using stream = new Stream();
      expect(eventRecords(() => run(pool, stream))).toBe(10);
    });

    test.each(['deferred', 'off'] as const)('are none on one stream under %s', (policy) => {
      using pool = make(1, policy);
      using stream = new Stream();
      expect(eventRecords(() => run(pool, stream))).toBe(0);
    });

    test('are one for each change of stream under deferred', () => {
      using pool = make(1, 'deferred');
      using a = new Stream();
      using b = new Stream();
      using hold = a.hold();
      run(pool, a);
      expect(eventRecords(() => run(pool, b))).toBe(1);
      expect(eventRecords(() => run(pool, a))).toBe(1);
      hold.release();
    });

    test('are none for a stream whose work has run', () => {
      using pool = make(1, 'deferred');
      using a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      run(pool, a);
      a.synchronizeSync();
      run(pool, a);
      expect(eventRecords(() => run(pool, b))).toBe(0);
    });

    test.each([
      ['one for all the frees on a stream that ends while it is busy', true, 1],
      ['none on one that ends once it is idle', false, 0],
    ])('are %s', (_what, isBusy, count) => {
      using pool = make(4, 'deferred');
      using second = make(1, 'off');
      const stream = new Stream();
      run(pool, stream);
      run(second, stream);
      if (!isBusy) stream.synchronizeSync();
      using _hold = isBusy ? stream.hold() : undefined;
      expect(eventRecords(() => stream.dispose())).toBe(count);
    });

    test('are one for each free on a stream whose end is not announced (rapidsai/rmm#649)', () => {
      using pool = make(1, 'deferred');
      const foreign = madeElsewhere();
      using unannounced = Stream.fromHandle(foreign.address);
      expect(eventRecords(() => run(pool, unannounced))).toBe(10);
      unannounced.dispose();
      using announced = Stream.fromHandle(foreign.address, { announcesEnd: true });
      expect(eventRecords(() => run(pool, announced))).toBe(0);
      announced.dispose();
      foreign.destroy();
    });

    test("are one for a free with a caller's event, too, on a stream whose end is not announced (rapidsai/rmm#649)", () => {
      using pool = make(1, 'deferred');
      const foreign = madeElsewhere();
      using unannounced = Stream.fromHandle(foreign.address);
      using event = new Event();
      const pointer = pool.allocate(bytes, unannounced);
      event.record(unannounced);
      expect(eventRecords(() => pool.deallocate(pointer, bytes, unannounced, event))).toBe(1);
      unannounced.dispose();
      foreign.destroy();
    });

    test('are none if a caller passes its own, which other streams then wait for', () => {
      using pool = make(1, 'eager');
      using a = new Stream();
      using b = new Stream();
      using event = new Event();
      using block = BusyBlock.allocate(pool, bytes, a);
      event.record(a);
      expect(eventRecords(() => block.free(event))).toBe(0);
      block.expectHandedTo(b);
    });

    test('are recorded anyway if the events of two callers were passed, the older one last', () => {
      using pool = make(2, 'eager');
      using a = new Stream();
      using b = new Stream();
      using older = new Event();
      using later = new Event();
      const first = pool.allocate(bytes, a);
      const second = pool.allocate(bytes, a);
      older.record(a);
      using block = new BusyBlock(pool, first, bytes, a);
      later.record(a);
      block.free(later);
      pool.deallocate(second, bytes, a, older);
      pool.allocate(2 * bytes, b);
      expectOrdered(first, bytes, b, block.hold);
    });

    test.each(sharingPolicies)("are recorded anyway if the caller's event is older than the memory, with %s events", (policy) => {
      using pool = make(1, policy);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      using event = new Event();
      using block = BusyBlock.freed(pool, bytes, a);
      event.record(b);
      const second = pool.allocate(bytes, b);
      pool.deallocate(second, bytes, b, event);
      block.expectHandedTo(c);
    });

    test("are recorded anyway if the caller's event is older than a free into the memory held for the stream", () => {
      using pool = make(1, 'off');
      using b = new Stream();
      using c = new Stream();
      using event = new Event();
      event.record(b);
      using block = BusyBlock.freed(pool, bytes, b);
      const second = pool.allocate(bytes, b);
      pool.deallocate(second, bytes, b, event);
      block.expectHandedTo(c);
    });

    test("are recorded anyway if the caller's event is older than the memory, and the stream has another object by then", () => {
      using pool = make(1, 'eager');
      const foreign = madeElsewhere();
      const b = Stream.fromHandle(foreign.address, { announcesEnd: true });
      using a = new Stream();
      using c = new Stream();
      using event = new Event();
      using block = BusyBlock.freed(pool, bytes, a);
      event.record(b);
      const second = pool.allocate(bytes, b);
      b.dispose();
      const again = Stream.fromHandle(foreign.address, { announcesEnd: true });
      pool.deallocate(second, bytes, again, event);
      block.expectHandedTo(c);
      again.dispose();
      foreign.destroy();
    });

    test.each(['recorded again', 'disposed'])("are recorded anyway if the caller's event is %s", (fate) => {
      using pool = make(1, 'eager');
      using a = new Stream();
      using b = new Stream();
      using elsewhere = new Stream();
      const event = new Event();
      using block = BusyBlock.allocate(pool, bytes, a);
      event.record(a);
      block.free(event);
      if (fate === 'disposed') event.dispose();
      else event.record(elsewhere);
      block.expectHandedTo(b);
      event.dispose();
    });

    test('must belong to the stream that frees', () => {
      using pool = make(1, 'eager');
      using a = new Stream();
      using b = new Stream();
      using event = new Event();
      const pointer = pool.allocate(bytes, a);
      expect(() => pool.deallocate(pointer, bytes, a, event)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
      event.record(b);
      expect(() => pool.deallocate(pointer, bytes, a, event)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
      event.dispose();
      expect(() => pool.deallocate(pointer, bytes, a, event)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
      expect(() => pool.deallocate(pointer, bytes, a, 'never' as DeallocationEvents)).toThrow("'eager', 'deferred', 'off'");
      pool.deallocate(pointer, bytes, a, 'off');
      pool.validate();
    });
  });

  describe('without events', () => {
    test('is out of memory for a host function, which must not wait', () => {
      using pool = make(1, 'off');
      using a = new Stream();
      using b = new Stream();
      pool.deallocate(pool.allocate(bytes, a), bytes, a);
      let error: unknown;
      {
        using _hold = a.hold();
        b.launchHostFunction(() => {
          try {
            pool.allocate(bytes, b);
          } catch (thrown) {
            error = thrown;
          }
        });
        b.synchronizeSync();
      }
      expect(error).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
    });

    test('keeps a block for its own stream while that is busy, and takes new memory for another', () => {
      using pool = make(2, 'off');
      using a = new Stream();
      using b = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      expect(pool.allocate(bytes, b)).not.toBe(block.pointer);
      expect(pool.allocate(bytes, a)).toBe(block.pointer);
      expect(pool.statistics().synchronizations).toBe(0);
    });

    test('says how many bytes it holds back from a stream until others are idle', () => {
      using pool = make(4, 'off');
      using a = new Stream();
      using b = new Stream();
      const pointers = [pool.allocate(bytes, a), pool.allocate(bytes, b), pool.allocate(bytes, a)] as const;
      using holdA = a.hold();
      using holdB = b.hold();
      const seen = () => [a, b, Stream.legacyDefault()].map((each) => pool.heldBackFrom(each) / bytes);
      expect(seen()).toEqual([0, 0, 0]);
      pool.deallocate(pointers[0], bytes, a);
      pool.deallocate(pointers[1], bytes, b);
      pool.deallocate(pointers[2], bytes, a);
      expect(seen()).toEqual([1, 2, 3]);
      holdA.release();
      a.synchronizeSync();
      expect(seen()).toEqual([1, 0, 1]);
      holdB.release();
      b.synchronizeSync();
      expect(seen()).toEqual([0, 0, 0]);
    });

    test('asks a stream whether it is idle before it waits for it', () => {
      using pool = make(1, 'off');
      using a = new Stream();
      using b = new Stream();
      const first = pool.allocate(bytes, a);
      pool.deallocate(first, bytes, a);
      const before = driverCallCounts().synchronizations;
      expect(pool.allocate(bytes, b)).toBe(first);
      expect(driverCallCounts().synchronizations).toBe(before);
      expect(pool.statistics().growths).toBe(1);
    });

    test.each(['synchronized', 'queried', 'awaited'])('gives a block to another stream when its own was %s', async (how) => {
      using pool = make(1, 'off');
      using a = new Stream();
      using b = new Stream();
      const first = pool.allocate(bytes, a);
      pool.deallocate(first, bytes, a);
      if (how === 'synchronized') a.synchronizeSync();
      else if (how === 'queried') expect(a.query()).toBe(true);
      else await a.synchronize();
      let second = 0;
      const records = eventRecords(() => {
        second = pool.allocate(bytes, b);
      });
      expect(second).toBe(first);
      expect(records).toBe(0);
      expect(pool.statistics().synchronizations).toBe(0);
    });

    test('does not take a synchronization to cover later frees', async () => {
      using pool = make(1, 'off');
      using a = new Stream();
      using b = new Stream();
      const first = pool.allocate(bytes, a);
      const begun = a.synchronize();
      using block = new BusyBlock(pool, first, bytes, a);
      block.free();
      await begun;
      let released = false;
      b.launchHostFunction(() => {
        released = true;
        block.hold.release();
      });
      // There is no other memory, so the pooling resource waits for stream a, and the host function
      // runs during the wait.
      expect(pool.allocate(bytes, b)).toBe(first);
      expect(released).toBe(true);
    });

    test('synchronizes the streams that memory is held for before it runs out, and counts them', () => {
      using pool = make(1, 'off');
      using a = new Stream();
      using b = new Stream();
      const first = pool.allocate(bytes, a);
      // Keeps the stream busy until the pool waits for it.
      a.launchHostFunction(() => undefined);
      fill(first, 1, a);
      pool.deallocate(first, bytes, a);
      const second = pool.allocate(bytes, b);
      expect(second).toBe(first);
      fill(second, 2, b);
      expect(valuesOf(second, bytes, b)).toEqual([2]);
      expect(pool.statistics().synchronizations).toBe(1);
      b.launchHostFunction(() => undefined);
      pool.deallocate(second, bytes, b);
      expect(pool.allocate(bytes, a)).toBe(first);
      expect(pool.statistics().synchronizations).toBe(2);
    });

    test('lets host functions that use it run while it waits', () => {
      using pool = make(2, 'off');
      using a = new Stream();
      using b = new Stream();
      const first = pool.allocate(bytes, a);
      const second = pool.allocate(bytes, a);
      pool.deallocate(first, bytes, a);
      a.launchHostFunction(() => pool.deallocate(second, bytes, a));
      expect(pool.allocate(bytes, b)).toBeGreaterThan(0);
      pool.validate();
    });

    test('gives back what it holds for a stream that may be gone without using that stream', () => {
      const foreign = madeElsewhere();
      const pool = make(1, 'off');
      using unannounced = Stream.fromHandle(foreign.address);
      const first = pool.allocate(bytes, unannounced);
      pool.deallocate(first, bytes, unannounced);
      foreign.destroy();
      const records = eventRecords(() => pool.dispose());
      expect(records).toBe(0);
    });

    test('is not trimmed if the device cannot be waited for, on which a stream that may be gone was busy', () => {
      const foreign = madeElsewhere();
      using pool = make(1, 'off');
      using unannounced = Stream.fromHandle(foreign.address);
      using b = new Stream();
      pool.deallocate(pool.allocate(bytes, unannounced), bytes, unannounced);
      foreign.destroy();
      failCall('cuCtxSynchronize', 1, 999);
      expect(() => pool.trim(b)).toThrow('cannot synchronize device 0');
      expect(pool.heldBackFrom(b)).toBe(bytes);
      expect(pool.trim(b)).toBe(bytes);
    });

    test('records the event for the memory it holds when the stream ends', () => {
      using pool = make(1, 'off');
      const a = new Stream();
      using b = new Stream();
      using block = BusyBlock.freed(pool, bytes, a);
      a.dispose();
      block.expectHandedTo(b);
    });

    test('does not mistake a new stream for an old one with the same slot (rapidsai/rmm#2251)', () => {
      using pool = make(2, 'off');
      const a = new Stream();
      pool.deallocate(pool.allocate(bytes, a), bytes, a);
      a.dispose();
      using b = new Stream();
      expect(b.identity.slot).toBe(a.identity.slot);
      using block = BusyBlock.freed(pool, bytes, b);
      using c = new Stream();
      expect(pool.allocate(bytes, c)).not.toBe(block.pointer);
    });

    test('shares a block that its free allows to be shared', () => {
      using pool = make(1, 'off');
      using a = new Stream();
      using b = new Stream();
      const first = pool.allocate(bytes, a);
      pool.deallocate(first, bytes, a, 'deferred');
      expect(pool.allocate(bytes, b)).toBe(first);
      expect(pool.statistics().synchronizations).toBe(0);
    });
  });

  test('does not keep a stream from ending', () => {
    using pool = make(1, 'deferred');
    const a = new Stream();
    using b = new Stream();
    pool.deallocate(pool.allocate(bytes, a), bytes, a);
    failCall('cuEventQuery', 1, 999);
    a.dispose();
    expect(pool.allocate(bytes, b)).toBeGreaterThan(0);
  });
});

test('a pool without events does not give a third stream what a busy stream took over from one that is gone (rapidsai/rmm#2489)', () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), {
    initialBytes: bytes,
    maximumBytes: 2 * bytes,
    deallocationEvents: 'off',
  });
  const a = new Stream();
  using b = new Stream();
  using c = new Stream();
  using block = BusyBlock.freed(pool, bytes, a);
  a.dispose();
  expect(() => pool.allocate(3 * bytes, b)).toThrow('out of memory');
  expect(pool.statistics().merges).toBe(1);
  expect(pool.allocate(bytes, c)).not.toBe(block.pointer);
});

test.each(sharingPolicies)(
  'the initial block of a pool is ordered for every stream, with %s events (part of rapidsai/rmm#2507)',
  (policy) => {
    using upstream = new CudaAsyncMemoryResource();
    const stalled = Stream.legacyDefault().hold();
    using pool = new PoolMemoryResource(upstream, { initialBytes: 2 * bytes, maximumBytes: 2 * bytes, deallocationEvents: policy });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    // The end of a pool with memory in use may wait for the device.
    using _hold = stalled;
    fill(pool.allocate(bytes, a), 1, a);
    fill(pool.allocate(bytes, b), 2, b);
    for (const stream of [a, b]) expectWaiting(stream);
  },
);

/**
 * An upstream that calls back during an allocation or a free, like one that runs host functions
 * while it waits.
 */
class InterruptedUpstream extends CudaMemoryResource {
  interrupt: (() => void) | undefined;
  /** What the next free is refused with, after the interruption. */
  refusal: Error | undefined;

  override allocate(size: number, stream: Stream, alignment?: number): number {
    const pointer = super.allocate(size, stream, alignment);
    this.#run();
    return pointer;
  }

  override deallocate(pointer: number, size: number, stream: Stream): void {
    const { refusal } = this;
    this.refusal = undefined;
    if (refusal === undefined) super.deallocate(pointer, size, stream);
    this.#run();
    if (refusal !== undefined) throw refusal;
  }

  #run(): void {
    const interrupt = this.interrupt;
    this.interrupt = undefined;
    interrupt?.();
  }
}

describe('memory held for a stream that merges it with what it shares', () => {
  test.each(sharingPolicies)('stays held in a pool with %s events, and all of it is', (policy) => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes: 2 * bytes, deallocationEvents: policy });
    using a = new Stream();
    using b = new Stream();
    const shared = pool.allocate(bytes, a);
    using block = BusyBlock.allocate(pool, bytes, a);
    pool.deallocate(shared, bytes, a);
    block.free('off');
    expect(() => pool.allocate(3 * bytes, a)).toThrow('out of memory');
    expect([pool.heldBackFrom(a), pool.heldBackFrom(b)]).toEqual([0, 2 * bytes]);
    block.hold.release();
    a.synchronizeSync();
    expect(eventCalls(() => expect([pool.allocate(bytes, b), pool.allocate(bytes, b)]).toContain(block.pointer))).toEqual({
      records: 0,
      waits: 0,
    });
    pool.validate();
  });

  test.each(sharingPolicies)('goes to the global arena, with an event, if an arena with %s events has run out', (policy) => {
    using arena = new ArenaMemoryResource(new CudaMemoryResource(), { arenaBytes: bytes, deallocationEvents: policy });
    using a = new Stream();
    using b = new Stream();
    using block = BusyBlock.allocate(arena, bytes, a);
    block.free('off');
    expect(() => arena.allocate(2 * bytes, a)).toThrow('out of memory');
    block.expectHandedTo(b);
  });
});

describe('an arena', () => {
  test('does not rely on an event that is older than what it returned to the global arena', () => {
    using arena = new ArenaMemoryResource(new CudaMemoryResource(), { arenaBytes: 2 * bytes, deallocationEvents: 'deferred' });
    using b = new Stream();
    using c = new Stream();
    using d = new Stream();
    using event = new Event();
    event.record(b);
    const blocks = [arena.allocate(bytes, b), arena.allocate(bytes, b)];
    using hold = b.hold();
    for (const block of blocks) fill(block, 1, b);
    for (const block of blocks) arena.deallocate(block, bytes, b);
    const second = arena.allocate(bytes, b);
    arena.defragment();
    arena.allocate(bytes, c);
    arena.deallocate(second, bytes, b, event);
    const third = arena.allocate(bytes, d);
    expect(third).toBe(second);
    expectOrdered(third, bytes, d, hold);
  });

  test('does not rely on an event that is older than the memory that came from the upstream on the same stream', () => {
    const half = bytes / 2;
    const upstream = new LimitingResourceAdaptor(new CudaAsyncMemoryResource(), { limitBytes: bytes });
    using arena = new ArenaMemoryResource(upstream, { arenaBytes: bytes, deallocationEvents: 'deferred' });
    using b = new Stream();
    using c = new Stream();
    arena.trim(Stream.legacyDefault());
    // The rest that the arena can grow by is less than it gives to a stream at a time.
    const other = upstream.allocate(half, b);
    using checker = checkOrder();
    using event = new Event();
    event.record(b);
    using hold = b.hold();
    const first = arena.allocate(half, b);
    arena.deallocate(first, half, b, event);
    const second = arena.allocate(half, c);
    expect(second).toBe(first);
    c.touch(second, half, 'write');
    hold.release();
    expect(checker.violations).toEqual([]);
    upstream.deallocate(other, half, b);
  });
});

describe('a pool whose upstream runs host functions', () => {
  test('puts new memory into the order of the requesting stream', () => {
    const upstream = new InterruptedUpstream();
    using pool = new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' });
    using a = new Stream();
    using b = new Stream();
    const kept = pool.allocate(bytes, b);
    upstream.interrupt = () => pool.deallocate(kept, bytes, b);
    using block = BusyBlock.freed(pool, bytes, a);
    pool.allocate(bytes, b);
    const second = pool.allocate(bytes, b);
    fill(second, 2, b);
    if (second === block.pointer) expectWaiting(b);
    block.hold.release();
    a.synchronizeSync();
    expect(valuesOf(second, bytes, b)).toEqual([2]);
    pool.validate();
  });

  test('serves the allocation even if another stream used it in the meantime', () => {
    const upstream = new InterruptedUpstream();
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 2 * bytes });
    using a = new Stream();
    using b = new Stream();
    const kept = pool.allocate(bytes, b);
    upstream.interrupt = () => pool.deallocate(kept, bytes, b);
    expect(pool.allocate(bytes, a)).toBeGreaterThan(0);
    pool.validate();
  });

  test('gives back blocks that become free while it gives back others', () => {
    const upstream = new InterruptedUpstream();
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 4 * bytes });
    using a = new Stream();
    using b = new Stream();
    const kept = pool.allocate(2 * bytes, b);
    pool.deallocate(pool.allocate(bytes, a), bytes, a);
    upstream.interrupt = () => pool.deallocate(kept, 2 * bytes, b);
    expect(pool.allocate(3.5 * bytes, a)).toBeGreaterThan(0);
    pool.validate();
  });

  test('gives every block back once if it is disposed again during its disposal', () => {
    const upstream = new InterruptedUpstream();
    const before = upstream.reservedBytes;
    const pool = new PoolMemoryResource(upstream);
    using a = new Stream();
    for (let i = 0; i < 4; i++) pool.allocate(bytes, a);
    upstream.interrupt = () => pool.dispose();
    pool.dispose();
    expect(upstream.reservedBytes).toBe(before);
    expect(pool.reservedBytes).toBe(0);
  });

  test('gives the new memory back if it was disposed in the meantime', () => {
    const upstream = new InterruptedUpstream();
    upstream.resetPeakReservedBytes();
    const before = upstream.reservedBytes;
    const pool = new PoolMemoryResource(upstream);
    using a = new Stream();
    upstream.interrupt = () => pool.dispose();
    expect(() => pool.allocate(bytes, a)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(upstream.reservedBytes).toBe(before);
  });

  test.each([0, 1])('waits on the host for memory that came after its stream had ended, on device %i', (index) => {
    const device = Device.get(index);
    const upstream = new InterruptedUpstream({ device });
    using pool = new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' });
    const a = new Stream({ device });
    using b = new Stream({ device });
    using hold = a.hold();
    let released = false;
    b.launchHostFunction(() => {
      released = true;
      hold.release();
    });
    upstream.interrupt = () => a.dispose();
    expect(() => pool.allocate(bytes, a)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    pool.allocate(bytes, b);
    expect(released).toBe(true);
  });

  test('waits for every device whose stream may have used managed memory that came after that had ended', () => {
    const a = new Stream({ device: Device.get(1) });
    class Upstream extends ManagedMemoryResource {
      override allocate(size: number, on: Stream): number {
        const pointer = super.allocate(size, on);
        a.dispose();
        return pointer;
      }
    }
    using pool = new PoolMemoryResource(new Upstream(), { deallocationEvents: 'deferred' });
    using b = new Stream();
    const before = driverCallCounts().synchronizations;
    expect(() => pool.allocate(bytes, a)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(pool.allocate(bytes, b)).toBeGreaterThan(0);
    expect(driverCallCounts().synchronizations - before).toBe(Device.count());
  });

  test.each([
    ['use', false],
    ['give back', true],
  ])('does not %s memory that came after its stream had ended if the device cannot be waited for', (_what, isTrimmed) => {
    const upstream = new InterruptedUpstream();
    const before = upstream.reservedBytes;
    using pool = new PoolMemoryResource(upstream, { maximumBytes: bytes });
    const a = new Stream();
    using b = new Stream();
    upstream.interrupt = () => {
      a.dispose();
      failCall('cuCtxSynchronize', 1, 999);
    };
    expect(() => pool.allocate(bytes, a)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    expect(pool.statistics()).toMatchObject({
      reservedBytes: bytes,
      allocatedBytes: 0,
      largestFreeBytes: bytes,
      upstreamBlocks: 1,
    });
    for (const use of [() => pool.allocate(bytes, b), () => pool.trim(b)]) {
      failCall('cuCtxSynchronize', 1, 999);
      expect(use).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    }
    if (isTrimmed) expect([pool.trim(b), upstream.reservedBytes - before]).toEqual([bytes, 0]);
    else expect(pool.allocate(bytes, b)).toBeGreaterThan(0);
    expect(pool.statistics().growths).toBe(1);
    pool.validate();
  });

  test.each([
    ['is disposed', (pool: PoolMemoryResource) => pool.dispose()],
    ['loses the stream', (_pool: PoolMemoryResource, a: Stream) => a.dispose()],
  ])('keeps a block that the upstream refuses to take back while the pool %s', (_what, interrupt) => {
    const upstream = new InterruptedUpstream();
    const pool = new PoolMemoryResource(upstream);
    const a = new Stream();
    pool.deallocate(pool.allocate(bytes, a), bytes, a);
    upstream.refusal = new Error('refused');
    upstream.interrupt = () => interrupt(pool, a);
    expect(() => pool.trim(a)).toThrow('refused');
    expect(pool.reservedBytes).toBe(bytes);
    pool.validate();
    pool.dispose();
    expect([pool.reservedBytes, upstream.reservedBytes]).toEqual([0, 0]);
    a.dispose();
  });

  test.each(['allocating', 'releasing'])('keeps its memory if the stream ended while it was %s', (what) => {
    const upstream = new InterruptedUpstream();
    using pool = new PoolMemoryResource(upstream, { growth: 'after-waits', deallocationEvents: 'deferred' });
    const a = new Stream();
    if (what === 'releasing') for (const pointer of [pool.allocate(bytes, a), pool.allocate(bytes, a)]) pool.deallocate(pointer, bytes, a);
    upstream.interrupt = () => a.dispose();
    const use = () => (what === 'allocating' ? pool.allocate(bytes, a) : pool.trim(a));
    expect(use).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    pool.validate();
    using b = new Stream();
    const reserved = pool.reservedBytes;
    pool.allocate(bytes, b);
    expect(pool.reservedBytes).toBe(reserved);
  });
});

describe('a failing driver', () => {
  test('does not make new memory appear idle', () => {
    using upstream = new CudaAsyncMemoryResource();
    const pool = new PoolMemoryResource(upstream, { deallocationEvents: 'deferred', maximumBytes: bytes });
    const foreign = madeElsewhere();
    using unannounced = Stream.fromHandle(foreign.address);
    using b = new Stream();
    using hold = unannounced.hold();
    failCall('cuEventRecord', 1, 999);
    expect(() => pool.allocate(bytes, unannounced)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    // The stream may be gone, so only the device can be waited for.
    let released = false;
    b.launchHostFunction(() => {
      released = true;
      hold.release();
    });
    pool.allocate(bytes, b);
    expect(released).toBe(true);
    expect(unannounced.query()).toBe(true);
    pool.dispose();
    unannounced.dispose();
    foreign.destroy();
  });
});
