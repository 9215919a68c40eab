/** Which memory an allocation gets while streams are busy: what needs no wait, then more, and only then what it must wait for. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  BinningMemoryResource,
  CachingMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  FixedSizeMemoryResource,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  PoolMemoryResource,
  Stream,
  type StreamHold,
} from '../../src/index.js';
import { InRunResource } from '../support/in-run-resource.js';
import { checkOrderInEachTest } from '../support/order-checked-tests.js';
import { expectOrdered, sharingPolicies } from '../support/stream-order.js';

const bytes = 4 * MiB;

let streams: Stream[];
let holds: StreamHold[];
let upstream: CudaMemoryResource;
/** Freeing to `cuda` waits for the streams, so they are disposed after the holds were released. */
let made: Disposable[];

function disposedAtEnd<T extends Disposable>(resource: T): T {
  made.push(resource);
  return resource;
}

// Before the hooks below: its own, which waits for the device, then comes after the holds were released.
checkOrderInEachTest();

beforeEach(() => {
  streams = Array.from({ length: 8 }, () => new Stream({ nonBlocking: true }));
  holds = [];
  made = [];
  upstream = new CudaMemoryResource();
});

afterEach(() => {
  for (const hold of holds) hold.release();
  for (const each of streams) each.synchronizeSync();
  for (const each of [...made.reverse(), upstream, ...streams]) each[Symbol.dispose]();
});

type Growth = 'before-waits' | 'after-waits';
type Make = (most: number, deallocationEvents: DeallocationEvents, growth?: Growth) => MemoryResource & Disposable;

const optionsOf = (most: number, deallocationEvents: DeallocationEvents, growth?: Growth) => ({
  deallocationEvents,
  maximumBytes: most * bytes,
  ...(growth === undefined ? {} : { growth }),
});

const kinds: [string, Make][] = [
  ['a pool', (most, ...given) => new PoolMemoryResource(upstream, { initialBytes: (most - 1) * bytes, ...optionsOf(most, ...given) })],
  [
    'fixed-size blocks',
    (...given) => new FixedSizeMemoryResource(upstream, { blockBytes: bytes, blocksToPreallocate: 0, ...optionsOf(...given) }),
  ],
  [
    'bins',
    (most, deallocationEvents, growth) => {
      const limited = new LimitingResourceAdaptor(upstream, { limitBytes: most * bytes });
      return new BinningMemoryResource(limited, { bins: [bytes], deallocationEvents, ...(growth === undefined ? {} : { growth }) });
    },
  ],
];

/** Allocates a block on each of these streams, and frees them in this order while those that are busy are held. */
function freedOn(resource: MemoryResource, order: readonly Stream[], busy: readonly Stream[]): number[] {
  const pointers = order.map((each) => resource.allocate(bytes, each));
  for (const each of busy) holds.push(each.hold());
  for (const [i, each] of order.entries()) resource.deallocate(pointers[i] as number, bytes, each);
  for (const each of order) if (!busy.includes(each)) each.synchronizeSync();
  return pointers;
}

describe.each(kinds)('%s', (_, make) => {
  describe.each(sharingPolicies)('under %s', (policy) => {
    test.each([
      ['first', 0],
      ['last', 1],
    ] as const)('takes the memory of an idle stream, and not that of a busy one, which was freed %s', (_when, busy) => {
      const resource = disposedAtEnd(make(2, policy));
      const [a, b, c] = streams as [Stream, Stream, Stream];
      const pointers = freedOn(resource, [a, b], [busy === 0 ? a : b]);
      expect(resource.allocate(bytes, c)).toBe(pointers[1 - busy]);
      expect(c.query()).toBe(true);
    });

    test('grows before a stream waits, as far as its maximum allows', () => {
      const resource = disposedAtEnd(make(3, policy));
      const [a, b, c] = streams as [Stream, Stream, Stream];
      const [first, second] = freedOn(resource, [a, b], [a, b]) as [number, number];
      expect([first, second]).not.toContain(resource.allocate(bytes, c));
      expect(c.query()).toBe(true);
      const last = resource.allocate(bytes, c);
      expect([first, second]).toContain(last);
      const hold = holds[last === first ? 0 : 1] as StreamHold;
      for (const each of holds) if (each !== hold) each.release();
      expectOrdered(last, bytes, c, hold);
    });

    test('makes a stream wait before it grows, if that is asked for', () => {
      const resource = disposedAtEnd(make(3, policy, 'after-waits'));
      const [a, b] = streams as [Stream, Stream];
      const [first] = freedOn(resource, [a], [a]) as [number];
      expect(resource.allocate(bytes, b)).toBe(first);
      expectOrdered(first, bytes, b, holds[0] as StreamHold);
    });
  });

  test('takes what was freed before the work that a stream is busy with, as the event of the free tells', () => {
    const resource = disposedAtEnd(make(2, 'eager', 'after-waits'));
    const [a, b] = streams as [Stream, Stream];
    const pointer = resource.allocate(bytes, a);
    resource.deallocate(pointer, bytes, a);
    holds.push(a.hold());
    expect(resource.allocate(bytes, b)).toBe(pointer);
    expect(b.query()).toBe(true);
  });

  test.each([
    [3, true],
    [5, false],
  ])('passes over the memory of a few busy streams: with %s, it %s that of an idle one', (count, isFound) => {
    const resource = disposedAtEnd(make(count + 1, 'deferred', 'after-waits'));
    const idle = streams[7] as Stream;
    const busy = streams.slice(0, count);
    const pointers = freedOn(resource, [idle, ...busy], busy);
    expect(resource.allocate(bytes, streams[6] as Stream) === pointers[0]).toBe(isFound);
  });

  test('with an unknown order is refused', () => {
    expect(() => make(2, 'eager', 'never' as Growth)).toThrow('growth must be');
  });
});

describe('a pool', () => {
  test('that has no maximum takes an eighth of what it has, or what a request needs', () => {
    const pool = disposedAtEnd(new PoolMemoryResource(upstream, { initialBytes: 16 * bytes }));
    const [a, b] = streams as [Stream, Stream];
    const large = pool.allocate(16 * bytes, a);
    holds.push(a.hold());
    pool.deallocate(large, 16 * bytes, a);
    pool.allocate(256, b);
    expect(pool.reservedBytes).toBe(18 * bytes);
    pool.allocate(3 * bytes, b);
    expect(pool.reservedBytes).toBe(21 * bytes);
    expect(b.query()).toBe(true);
  });

  test('that was refused more does not ask again for each request, but lets the stream wait', () => {
    let refusals = 0;
    const counting = new (class extends LimitingResourceAdaptor {
      override allocate(...call: Parameters<MemoryResource['allocate']>): number {
        try {
          return super.allocate(...call);
        } catch (error) {
          refusals++;
          throw error;
        }
      }
    })(upstream, { limitBytes: 2 * bytes });
    const pool = disposedAtEnd(new PoolMemoryResource(counting, { initialBytes: 2 * bytes }));
    const [a, b, c] = streams as [Stream, Stream, Stream];
    const [first, second] = [pool.allocate(bytes, a), pool.allocate(bytes, a)];
    holds.push(a.hold());
    pool.deallocate(first, bytes, a);
    pool.deallocate(second, bytes, a);
    expect([first, second]).toContain(pool.allocate(bytes, b));
    const before = refusals;
    expect(before).toBeGreaterThan(0);
    expect([first, second]).toContain(pool.allocate(bytes, c));
    expect(refusals).toBe(before);
  });

  test('merges what is idle before it grows, and what is busy after', () => {
    const pool = disposedAtEnd(new PoolMemoryResource(upstream, { initialBytes: 4 * MiB, maximumBytes: 6 * MiB }));
    const [a, b, c, d] = streams as [Stream, Stream, Stream, Stream];
    const pieces = [a, b, a, b].map((each) => ({ each, pointer: pool.allocate(MiB, each) }));
    for (const { each, pointer } of pieces.slice(0, 2)) pool.deallocate(pointer, MiB, each);
    for (const each of [a, b]) each.synchronizeSync();
    const merged = pool.allocate(2 * MiB, c);
    expect([merged, pool.reservedBytes]).toEqual([pieces[0]?.pointer, 4 * MiB]);
    holds.push(a.hold(), b.hold());
    for (const { each, pointer } of pieces.slice(2)) pool.deallocate(pointer, MiB, each);
    expect(pieces.map(({ pointer }) => pointer)).not.toContain(pool.allocate(2 * MiB, d));
    expect([d.query(), pool.reservedBytes]).toEqual([true, 6 * MiB]);
    expect(pool.allocate(2 * MiB, d)).toBe(pieces[2]?.pointer);
    expect(d.query()).toBe(false);
  });
});

describe.each([
  ['a pool', () => new PoolMemoryResource(upstream, { initialBytes: 8 * MiB, maximumBytes: 8 * MiB })],
  ['fixed-size', () => new FixedSizeMemoryResource(upstream, { blockBytes: 4096, blocksToPreallocate: 512, maximumBytes: 2 * MiB })],
] as const)('streams that allocate in turns from %s', (_, make) => {
  const rounds = (resource: MemoryResource, count: number) => {
    for (let i = 0; i < count; i++) {
      for (const stream of streams) resource.deallocate(resource.allocate(4096, stream), 4096, stream);
    }
  };

  test('soon have a block each, instead of one that wanders, if there is much free memory', () => {
    const resource = disposedAtEnd(make());
    rounds(resource, 4);
    const { reuses } = resource.statistics();
    expect(reuses).toBeGreaterThan(0);
    rounds(resource, 8);
    expect(resource.statistics().reuses).toBe(reuses);
  });

  test('get a block that is ready, although a busy stream has much free memory', () => {
    const resource = disposedAtEnd(make());
    const [busy, idle, ...others] = streams as [Stream, Stream, Stream];
    resource.deallocate(resource.allocate(4096, busy), 4096, busy);
    resource.deallocate(resource.allocate(4096, idle), 4096, idle);
    holds.push(busy.hold());
    resource.deallocate(resource.allocate(4096, busy), 4096, busy);
    streams = others;
    rounds(resource, 4);
    for (const stream of others) expect(stream.query()).toBe(true);
    expect(resource.statistics()).toMatchObject({ growths: 1 });
    streams = [busy, idle, ...others];
  });
});

describe('other resources that keep memory', () => {
  test.each<[string, (growth: Growth) => MemoryResource & Disposable]>([
    [
      'the run of a cache',
      (growth) => new InRunResource(disposedAtEnd(new CachingMemoryResource(upstream, { growth, deallocationEvents: 'deferred' }))),
    ],
  ])('grow in this order, too: %s', (_, make) => {
    for (const growth of ['before-waits', 'after-waits'] as const) {
      const resource = disposedAtEnd(make(growth));
      const [a, b] = streams as [Stream, Stream];
      const pointers = freedOn(resource, [a], [a]);
      expect(pointers.includes(resource.allocate(bytes, b))).toBe(growth === 'after-waits');
      for (const hold of holds.splice(0)) hold.release();
      for (const each of [a, b]) each.synchronizeSync();
    }
  });

  test.each([
    [3, true],
    [5, false],
  ])('pass over the memory of a few busy streams, too: with %s, the run of a cache %s that of an idle one', (count, isFound) => {
    const options = { maximumBytes: (count + 1) * bytes, growth: 'after-waits', deallocationEvents: 'deferred' } as const;
    const resource = disposedAtEnd(new InRunResource(disposedAtEnd(new CachingMemoryResource(upstream, options))));
    const idle = streams[7] as Stream;
    const busy = streams.slice(0, count);
    const pointers = freedOn(resource, [...busy, idle], busy);
    expect(resource.allocate(bytes, streams[6] as Stream) === pointers.at(-1)).toBe(isFound);
  });

  test('grow in this order, too: a monotonic resource', () => {
    for (const growth of ['before-waits', 'after-waits'] as const) {
      const scratch = disposedAtEnd(new MonotonicMemoryResource(upstream, { initialBytes: bytes, growth, deallocationEvents: 'deferred' }));
      const [a, b] = streams as [Stream, Stream];
      const pointers = [scratch.allocate(bytes, a)];
      holds.push(a.hold());
      scratch.reset();
      expect(pointers.includes(scratch.allocate(bytes, b))).toBe(growth === 'after-waits');
      for (const hold of holds.splice(0)) hold.release();
      for (const each of [a, b]) each.synchronizeSync();
    }
  });
});
