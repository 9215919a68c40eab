import { beforeEach, expect, test } from 'vitest';
import {
  ArenaMemoryResource,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  Event,
  FixedSizeMemoryResource,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { memorySummary } from '../../src/serving/index.js';
import { planOf } from '../support/plans.js';
import { expectOrdered, policies } from '../support/stream-order.js';

/** A limit stands for the memory of a device: what fills a real one, or this one, is none of a test's business. */
let device: LimitingResourceAdaptor;
let stream: Stream;

beforeEach(() => {
  device = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 8 * MiB });
  stream = new Stream();
});

/** Takes blocks of 1 MiB from a resource, and frees them. */
function fill(resource: MemoryResource, count: number, on = stream): void {
  const pointers = Array.from({ length: count }, () => resource.allocate(MiB, on));
  for (const pointer of pointers) resource.deallocate(pointer, MiB, on);
}

function refusal(allocate: () => unknown): OutOfMemoryError {
  try {
    allocate();
  } catch (error) {
    if (error instanceof OutOfMemoryError) return error;
    throw error;
  }
  throw new Error('it was not refused');
}

test('a pool is served with the memory that another keeps', () => {
  using first = new PoolMemoryResource(device);
  using second = new PoolMemoryResource(device);
  fill(first, 8);
  const pointer = second.allocate(6 * MiB, stream);
  expect(first.reservedBytes).toBeLessThanOrEqual(2 * MiB);
  first.validate();
  second.deallocate(pointer, 6 * MiB, stream);
});

const keepers: readonly (readonly [string, (upstream: MemoryResource) => MemoryResource & { readonly reservedBytes: number }])[] = [
  ['a pool', (upstream) => new PoolMemoryResource(upstream)],
  ['an arena', (upstream) => new ArenaMemoryResource(upstream, { arenaBytes: 8 * MiB })],
  ['a fixed-size resource', (upstream) => new FixedSizeMemoryResource(upstream, { blockBytes: MiB, blocksToPreallocate: 1 })],
  ['a monotonic resource', (upstream) => new MonotonicMemoryResource(upstream, { initialBytes: MiB })],
];

test.each(keepers)('%s returns what is wholly free, and asks for it', (_, make) => {
  using pool = new PoolMemoryResource(device);
  {
    using keeper = make(device);
    fill(keeper, 4);
    if (keeper instanceof MonotonicMemoryResource) keeper.reset();
    pool.deallocate(pool.allocate(5 * MiB, stream), 5 * MiB, stream);
  }
  fill(pool, 6);
  using keeper = make(device);
  keeper.deallocate(keeper.allocate(MiB, stream), MiB, stream);
  expect(keeper.reservedBytes).toBeGreaterThan(0);
});

test('a cache returns the blocks of its runs', () => {
  using cache = new CachingMemoryResource(device);
  cache.run(() => fill(cache, 8));
  expect(cache.reservedBytes).toBe(8 * MiB);
  using pool = new PoolMemoryResource(device);
  pool.deallocate(pool.allocate(8 * MiB, stream), 8 * MiB, stream);
  expect(cache.reservedBytes).toBe(0);
});

test('a resource that passes calls on is served, too', () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { name: 'first' });
  fill(pool, 2);
  const before = pool.reservedBytes;
  const error = refusal(() => new CudaMemoryResource().allocate(2 ** 46, stream));
  // It could not help, but returned what it had.
  expect(pool.reservedBytes).toBeLessThan(before);
  expect(error.message).not.toContain('first');
});

test('memory that is wholly free, but in pieces that several streams freed, is returned', () => {
  using first = new PoolMemoryResource(device, { initialBytes: 8 * MiB });
  using other = new Stream();
  const pointers = Array.from({ length: 8 }, () => first.allocate(MiB, stream));
  using event = new Event();
  event.record(stream);
  other.wait(event);
  for (const [i, pointer] of pointers.entries()) {
    first.deallocate(pointer, MiB, i % 2 === 0 ? stream : other);
  }
  using second = new PoolMemoryResource(device);
  second.deallocate(second.allocate(8 * MiB, stream), 8 * MiB, stream);
  expect(first.reservedBytes).toBe(0);
});

test('what was idle longest is returned first, and no more than is missing', () => {
  using oldest = new PoolMemoryResource(device);
  using younger = new PoolMemoryResource(device);
  fill(younger, 2);
  fill(oldest, 2);
  younger.deallocate(younger.allocate(3 * MiB, stream), 3 * MiB, stream);
  const kept = younger.reservedBytes;
  using asking = new PoolMemoryResource(device);
  asking.deallocate(asking.allocate(8 * MiB - kept - MiB, stream), 8 * MiB - kept - MiB, stream);
  expect([oldest.reservedBytes < 2 * MiB, younger.reservedBytes]).toEqual([true, kept]);
});

test('memory that is in use stays, and the error says who keeps what is free', () => {
  using first = new PoolMemoryResource(device, { initialBytes: 8 * MiB, name: 'weights' });
  const live = first.allocate(MiB, stream);
  using second = new PoolMemoryResource(device);
  const error = refusal(() => second.allocate(2 * MiB, stream));
  expect(error.message).toContain("pool 'weights' keeps 7 MiB free");
  expect(first.reservedBytes).toBe(8 * MiB);
  first.deallocate(live, MiB, stream);
});

test('a resource keeps keepBytes', () => {
  using first = new PoolMemoryResource(device, { initialBytes: 8 * MiB, keepBytes: 8 * MiB });
  using second = new PoolMemoryResource(device);
  expect(refusal(() => second.allocate(MiB, stream)).message).toContain('another pool keeps 8 MiB free');
  expect(first.trim(stream)).toBe(8 * MiB);
  second.deallocate(second.allocate(MiB, stream), MiB, stream);
});

test('nobody is asked if the maximum of the pool itself was reached', () => {
  using first = new PoolMemoryResource(device);
  fill(first, 4);
  const { reservedBytes } = first;
  using second = new PoolMemoryResource(device, { maximumBytes: MiB });
  expect(refusal(() => second.allocate(2 * MiB, stream)).message).not.toContain('keeps');
  expect(first.reservedBytes).toBe(reservedBytes);
});

test('resources under another limit are not asked: they could not help', () => {
  using elsewhere = new PoolMemoryResource(new CudaMemoryResource());
  fill(elsewhere, 4);
  const { reservedBytes } = elsewhere;
  using pool = new PoolMemoryResource(device);
  refusal(() => pool.allocate(9 * MiB, stream));
  expect(elsewhere.reservedBytes).toBe(reservedBytes);
});

test('a pool over a pool of the driver is served with the memory of another such pool', () => {
  using upstream = new CudaAsyncMemoryResource({ maximumBytes: 8 * MiB });
  using first = new PoolMemoryResource(upstream);
  using second = new PoolMemoryResource(upstream);
  fill(first, 8);
  second.deallocate(second.allocate(8 * MiB, stream), 8 * MiB, stream);
});

test('memory is returned in the order of the stream that needs it', () => {
  using busy = new Stream({ nonBlocking: true });
  using first = new PoolMemoryResource(device);
  fill(first, 8, busy);
  using held = busy.hold();
  using second = new PoolMemoryResource(device);
  // The free below waits for the stream, and that would wait for the hold: such memory is freed later, and nobody waits for ever.
  const pointer = second.allocate(4 * MiB, stream);
  held.release();
  second.deallocate(pointer, 4 * MiB, stream);
});

test('resources that are collected are forgotten', () => {
  new PoolMemoryResource(device).dispose();
  using pool = new PoolMemoryResource(device);
  expect(refusal(() => pool.allocate(9 * MiB, stream)).message).not.toContain('keeps');
});

test('the summary lists who keeps memory outside the stack', () => {
  using first = new PoolMemoryResource(device, { initialBytes: 4 * MiB, name: 'weights' });
  const live = first.allocate(MiB, stream);
  using second = new PoolMemoryResource(device);
  const summary = memorySummary(second);
  expect(summary).toMatch(
    /Other resources that keep memory\n(.*\n)* {2}pool\(limiting\(cuda\)\) 'weights' +device 0 +reserved 4 MiB +free 3 MiB/,
  );
  expect(memorySummary(first)).not.toContain("'weights'");
  first.deallocate(live, MiB, stream);
});

test.each(policies)(
  'the block of a plan, which several streams used, goes to another resource after the work of all of them (%s)',
  (policy) => {
    const limited = new LimitingResourceAdaptor(new CudaAsyncMemoryResource(), { limitBytes: 4 * MiB });
    const plan = planOf('+4096@0:0 +4096@1:4096 -0@0 -1@1');
    using planned = new PlannedMemoryResource(limited, plan, { deallocationEvents: policy });
    using pool = new PoolMemoryResource(limited);
    using idle = new Stream({ nonBlocking: true });
    using busy = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    // The first pass leaves events, which say nothing of the second.
    for (const isBusy of [false, true]) {
      planned.begin();
      const first = planned.allocate(MiB, idle);
      const second = planned.allocate(MiB, busy);
      const hold = isBusy ? busy.hold() : undefined;
      using _release = { [Symbol.dispose]: () => hold?.release() };
      set(second, 1, 1, MiB, busy);
      planned.deallocate(first, MiB, idle);
      planned.deallocate(second, MiB, busy);
      if (hold === undefined) continue;
      const pointer = pool.allocate(4 * MiB, other);
      expect(planned.reservedBytes).toBe(0);
      expectOrdered(pointer, 4 * MiB, other, hold);
      pool.deallocate(pointer, 4 * MiB, other);
      pool.trim(other);
    }
    // It is not returned while any of it is live, and passes go on.
    planned.begin();
    const live = planned.allocate(MiB, idle);
    expect(refusal(() => pool.allocate(4 * MiB, other)).message).toContain('another planned keeps 1 MiB free');
    planned.deallocate(live, MiB, idle);
    expect(planned.statistics().deviations['in-use']).toBe(0);
  },
);

test.each(policies)('the block of a plan goes to another resource after the last pass of its one stream (%s)', (policy) => {
  const limited = new LimitingResourceAdaptor(new CudaAsyncMemoryResource(), { limitBytes: 4 * MiB });
  using planned = new PlannedMemoryResource(limited, planOf('+4096@0:0 -0@0'), { deallocationEvents: policy });
  using pool = new PoolMemoryResource(limited);
  using busy = new Stream({ nonBlocking: true });
  using other = new Stream({ nonBlocking: true });
  for (let pass = 0; pass < 3; pass++) {
    planned.begin();
    planned.deallocate(planned.allocate(MiB, busy), MiB, busy);
    busy.synchronizeSync();
    busy.query();
  }
  planned.begin();
  const first = planned.allocate(MiB, busy);
  const hold = busy.hold();
  using _release = { [Symbol.dispose]: () => hold.release() };
  set(first, 1, 1, MiB, busy);
  planned.deallocate(first, MiB, busy);
  const pointer = pool.allocate(4 * MiB, other);
  expect(planned.reservedBytes).toBe(0);
  expectOrdered(pointer, 4 * MiB, other, hold);
  pool.deallocate(pointer, 4 * MiB, other);
});
