import { describe, expect, test } from 'vitest';
import { mailbox, native } from '../../src/driver/native.js';
import {
  ArenaMemoryResource,
  CachingMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  Device,
  DeviceBuffer,
  Event,
  FixedSizeMemoryResource,
  type MemoryResource,
  MiB,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';
import { attachBuffer, detachBuffer } from '../../src/workers/index.js';
import { InRunResource } from '../support/in-run-resource.js';
import { BusyBlock, eventRecords, expectWaiting, policies } from '../support/stream-order.js';

const bytes = MiB;

/** Resources with room for one block: the next allocation must get the freed block. */
const poolingResources: [string, (deallocationEvents: DeallocationEvents) => MemoryResource][] = [
  [
    'a pool',
    (deallocationEvents) =>
      new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: bytes, maximumBytes: bytes, deallocationEvents }),
  ],
  [
    'an arena',
    (deallocationEvents) => {
      // Otherwise work that an earlier test left on the default stream would be waited for.
      Device.get().synchronizeSync();
      return new ArenaMemoryResource(new CudaMemoryResource(), { arenaBytes: bytes, deallocationEvents });
    },
  ],
  [
    'fixed-size blocks',
    (deallocationEvents) =>
      new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes: bytes, maximumBytes: bytes, deallocationEvents }),
  ],
  [
    'the run of a cache',
    (deallocationEvents) =>
      new InRunResource(new CachingMemoryResource(new CudaMemoryResource(), { growth: 'after-waits', deallocationEvents })),
  ],
];

function waitFor(a: Stream, b: Stream): void {
  using event = new Event();
  event.record(a);
  b.wait(event);
}

function attachFrom(a: Stream, b: Stream): void {
  const given = new DeviceBuffer(bytes, { resource: new CudaMemoryResource(), stream: a });
  attachBuffer(detachBuffer(given), { stream: b }).dispose();
}

/** How stream `b` becomes ordered after stream `a`. */
const orders: [string, () => Stream, (a: Stream, b: Stream) => void][] = [
  ["the program's own wait", () => new Stream({ nonBlocking: true }), waitFor],
  [
    'a wait that another library queued',
    () => new Stream({ nonBlocking: true }),
    (a, b) => {
      using event = new Event();
      event.record(a);
      mailbox[0] = b.handle;
      mailbox[1] = event.handle;
      native().waitEvent();
    },
  ],
  ['the order of the legacy default stream', () => Stream.legacyDefault(), () => {}],
];

describe.each(poolingResources)('%s', (_name, make) => {
  describe.each(policies)('with %s events', (policy) => {
    describe.each(orders)('and a stream ordered after another by %s', (_order, makeStream, order) => {
      test.each([
        ['before the memory was allocated', true],
        ['after the memory was allocated', false],
      ])('makes a third stream wait for the first, though the free had an event recorded %s', (_when, isOlder) => {
        using pool = make(policy);
        using a = new Stream();
        const b = makeStream();
        using c = new Stream({ nonBlocking: true });
        using old = new Event();
        if (isOlder) old.record(b);
        const first = pool.allocate(bytes, a);
        if (!isOlder) old.record(b);
        using block = new BusyBlock(pool, first, bytes, a);
        block.free();
        // Stream a has it in its own order, and b in a's order; neither uses it.
        expect(pool.allocate(bytes, a)).toBe(first);
        order(a, b);
        pool.deallocate(first, bytes, b, old);
        block.expectHandedTo(c);
        pool.deallocate(first, bytes, c);
        b.dispose();
      });
    });

    test.each([
      ['waited', waitFor],
      ['attached a buffer', attachFrom],
    ])('relies on an event only while its stream has not %s since', (_what, comeAfter) => {
      using pool = make(policy);
      using a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      using c = new Stream({ nonBlocking: true });
      using fence = new Event();
      const pointer = pool.allocate(bytes, a);
      fence.record(a);
      using block = new BusyBlock(pool, pointer, bytes, b);
      comeAfter(b, a);
      pool.deallocate(pointer, bytes, a, fence);
      block.expectHandedTo(c);
      pool.deallocate(pointer, bytes, c);
    });

    test('waits for no more than the event of a free, if that covers everything', async () => {
      using pool = make(policy);
      using a = new Stream({ nonBlocking: true });
      using c = new Stream({ nonBlocking: true });
      using fence = new Event();
      // An event of the resource's own covers the origin of the memory.
      pool.deallocate(pool.allocate(bytes, a), bytes, a, 'eager');
      const pointer = pool.allocate(bytes, a);
      set(pointer, 1, 1, bytes, a);
      fence.record(a);
      using hold = a.hold();
      pool.deallocate(pointer, bytes, a, fence);
      expect(pool.allocate(bytes, c)).toBe(pointer);
      await expect.poll(() => c.query()).toBe(true);
      expectWaiting(a);
      hold.release();
      pool.deallocate(pointer, bytes, c);
    });
  });
});

/** Ways in which a pool finds a block for a stream: each frees that block, and allocates it again. */
const findings: [string, (pool: PoolMemoryResource, a: Stream, other: Stream) => { pointer: number; size: number }][] = [
  [
    'at an alignment',
    (pool, a) => {
      pool.deallocate(pool.allocate(bytes, a, 4096), bytes, a);
      return { pointer: pool.allocate(bytes, a, 4096), size: bytes };
    },
  ],
  [
    'among what another stream freed',
    (pool, a, other) => {
      pool.deallocate(pool.allocate(8 * bytes, other), 8 * bytes, other);
      return { pointer: pool.allocate(8 * bytes, a), size: 8 * bytes };
    },
  ],
  [
    'behind many that are a little too small',
    (pool, a) => {
      // All of one class of sizes, of which only the first few are looked at.
      const sizes = [1007, ...new Array<number>(20).fill(992)].map((units) => units * 256);
      const pointers = sizes.map((size) => {
        const pointer = pool.allocate(size, a);
        pool.allocate(256, a);
        return pointer;
      });
      pool.allocate(pool.statistics().largestFreeBytes, a);
      for (const [i, pointer] of pointers.entries()) pool.deallocate(pointer, sizes[i] as number, a);
      return { pointer: pool.allocate(1000 * 256, a), size: 1000 * 256 };
    },
  ],
];

test.each(findings)('a pool relies on the event of a free of memory that it had found %s', (_how, find) => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 8 * bytes, maximumBytes: 8 * bytes });
  using a = new Stream({ nonBlocking: true });
  using other = new Stream({ nonBlocking: true });
  using c = new Stream({ nonBlocking: true });
  using fence = new Event();
  const { pointer, size } = find(pool, a, other);
  fence.record(a);
  using _hold = a.hold();
  const records = eventRecords(() => {
    pool.deallocate(pointer, size, a, fence);
    expect(pool.allocate(size, c)).toBe(pointer);
  });
  expect(records).toBe(0);
});

test('a stream is not mistaken for the one that had its slot before', () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), {
    initialBytes: bytes,
    maximumBytes: bytes,
    deallocationEvents: 'deferred',
  });
  using last = new Stream({ nonBlocking: true });
  const a = new Stream();
  const slot = a.identity.slot;
  using block = BusyBlock.allocate(pool, bytes, a);
  using ran = new Event();
  ran.record(a);
  block.free();
  expect(pool.allocate(bytes, a)).toBe(block.pointer);
  a.dispose();
  using b = new Stream({ nonBlocking: true });
  expect(b.identity.slot).toBe(slot);
  using fence = new Event();
  fence.record(b);
  mailbox[0] = b.handle;
  mailbox[1] = ran.handle;
  native().waitEvent();
  pool.deallocate(block.pointer, bytes, b, fence);
  block.expectHandedTo(last);
  pool.deallocate(block.pointer, bytes, last);
});
