import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  ArenaMemoryResource,
  BinningMemoryResource,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResource,
  type DeallocationEvents,
  Event,
  FixedSizeMemoryResource,
  type MemoryResource,
  MiB,
  PoolMemoryResource,
  Stream,
  VirtualMemoryResource,
} from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { needMemoryPools } from '../support/device-memory.js';
import { code } from '../support/errors.js';

const idleMilliseconds = 1000;
let stream: Stream;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  stream = new Stream();
});

afterEach(() => {
  stream.dispose();
  vi.useRealTimers();
});

/** Lets time pass, while nothing happens. */
function pass(milliseconds: number): void {
  stream.synchronizeSync();
  vi.advanceTimersByTime(milliseconds);
}

function use(resource: MemoryResource, bytes: number, on = stream): void {
  resource.deallocate(resource.allocate(bytes, on), bytes, on);
}

function poolWith(options: { readonly keepBytes?: number; readonly deallocationEvents?: DeallocationEvents } = {}): PoolMemoryResource {
  return new PoolMemoryResource(new CudaMemoryResource(), { ...options, idleMilliseconds });
}

test('memory that nobody needs returns after the time, and at most twice the time', () => {
  using pool = poolWith();
  use(pool, 8 * MiB);
  pass(idleMilliseconds - 1);
  expect(pool.reservedBytes).toBe(8 * MiB);
  pass(idleMilliseconds + 2);
  expect(pool.reservedBytes).toBe(0);
  expect(pool.statistics().idleReturnedBytes).toBe(8 * MiB);
  pool.validate();
});

test('bins return blocks that nobody needs, those added later too', () => {
  const upstream = new CudaMemoryResource();
  using resource = new BinningMemoryResource(upstream, { bins: [1 * MiB], idleMilliseconds });
  resource.addBin(2 * MiB);
  const before = upstream.reservedBytes;
  use(resource, 1 * MiB);
  use(resource, 2 * MiB);
  expect(upstream.reservedBytes - before).toBe(3 * MiB);
  pass(2 * idleMilliseconds + 1);
  expect(upstream.reservedBytes - before).toBe(0);
  using parsed = createResource('binning(cuda, bins=[1MiB], idleMilliseconds=1000)');
  use(parsed, 1 * MiB);
  pass(2 * idleMilliseconds + 1);
  expect(upstream.reservedBytes - before).toBe(0);
});

test('what is in use stays, and so does the block around it', () => {
  using pool = poolWith();
  const live = pool.allocate(MiB, stream);
  use(pool, 8 * MiB);
  const before = pool.reservedBytes;
  pass(10 * idleMilliseconds);
  expect(pool.reservedBytes).toBeLessThan(before);
  expect(pool.reservedBytes).toBeGreaterThanOrEqual(MiB);
  pool.deallocate(live, MiB, stream);
});

test('a program that needs the memory again within the time keeps it, without a call of the driver', () => {
  using pool = poolWith();
  use(pool, 8 * MiB);
  const { growths } = pool.statistics();
  for (let i = 0; i < 20; i++) {
    pass(0.9 * idleMilliseconds);
    use(pool, 8 * MiB);
  }
  expect([pool.statistics().growths, pool.statistics().releases, pool.reservedBytes]).toEqual([growths, 0, 8 * MiB]);
});

test('a program that pauses for longer pays for a few pauses only', () => {
  using pool = poolWith();
  for (let i = 0; i < 100; i++) {
    use(pool, 8 * MiB);
    pass(5 * idleMilliseconds);
  }
  // The time doubles: 1, 2, 4, and 8 times is longer than a pause.
  expect(pool.statistics().growths).toBeLessThanOrEqual(5);
  pass(64 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(0);
});

test('keepBytes stay', () => {
  using pool = poolWith({ keepBytes: 8 * MiB });
  use(pool, 8 * MiB);
  pass(10 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(8 * MiB);
});

test('what a busy stream freed is left alone until its work has run', () => {
  using pool = poolWith();
  using busy = new Stream({ nonBlocking: true });
  const pointer = pool.allocate(8 * MiB, busy);
  const hold = busy.hold();
  pool.deallocate(pointer, 8 * MiB, busy);
  pass(10 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(8 * MiB);
  hold.release();
  busy.synchronizeSync();
  pass(2 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(0);
});

test('blocks whose pieces several streams freed return', () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 8 * MiB, idleMilliseconds });
  using other = new Stream();
  const pointers = Array.from({ length: 8 }, () => pool.allocate(MiB, stream));
  using event = new Event();
  event.record(stream);
  other.wait(event);
  for (const [i, pointer] of pointers.entries()) pool.deallocate(pointer, MiB, i % 2 === 0 ? stream : other);
  other.synchronizeSync();
  pass(3 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(0);
});

test.each(['eager', 'deferred', 'off'] as const)('under %s, no event is recorded and no stream waits', (deallocationEvents) => {
  using pool = poolWith({ deallocationEvents });
  use(pool, 8 * MiB);
  stream.synchronizeSync();
  const counts = () => {
    const { eventRecords, eventWaits, synchronizations } = driverCallCounts();
    return [eventRecords, eventWaits, synchronizations];
  };
  const before = counts();
  vi.advanceTimersByTime(0.75 * idleMilliseconds);
  // It is set aside, and a stream that has never used the pool gets it.
  using other = new Stream();
  const pointer = pool.allocate(8 * MiB, other);
  expect(pool.statistics().growths).toBe(1);
  expect(counts()).toEqual(before);
  pool.deallocate(pointer, 8 * MiB, other);
});

test('nothing happens during a capture', () => {
  using pool = poolWith();
  use(pool, 8 * MiB);
  stream.synchronizeSync();
  using captured = new Stream({ nonBlocking: true });
  using graph = captured.capture(() => {
    const before = driverCallCounts();
    vi.advanceTimersByTime(10 * idleMilliseconds);
    expect(driverCallCounts()).toEqual(before);
  });
  expect(graph).toBeDefined();
  expect(pool.reservedBytes).toBe(8 * MiB);
  pass(3 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(0);
});

test('frees of plain memory wait until the streams of the device are idle, but not for ever', () => {
  using pool = poolWith();
  use(pool, 8 * MiB);
  pass(0.75 * idleMilliseconds);
  using busy = new Stream({ nonBlocking: true });
  const hold = busy.hold();
  vi.advanceTimersByTime(2 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(8 * MiB);
  vi.advanceTimersByTime(10 * idleMilliseconds);
  expect(pool.reservedBytes).toBe(0);
  hold.release();
});

describe('what is set aside', () => {
  test('serves a smaller request, counts as free, and is found by a trim', () => {
    using pool = poolWith();
    use(pool, 8 * MiB);
    pass(0.75 * idleMilliseconds);
    expect(pool.statistics()).toMatchObject({ reservedBytes: 8 * MiB, allocatedBytes: 0, largestFreeBytes: 8 * MiB, upstreamBlocks: 1 });
    pool.validate();
    use(pool, MiB);
    expect(pool.statistics().growths).toBe(1);
    pass(0.75 * idleMilliseconds);
    expect(pool.trim(stream)).toBe(8 * MiB);
  });

  test('makes way within a maximum', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { idleMilliseconds, maximumBytes: 8 * MiB });
    use(pool, 5 * MiB);
    pass(0.75 * idleMilliseconds);
    use(pool, 8 * MiB);
    expect(pool.reservedBytes).toBe(8 * MiB);
  });

  test('is returned when another resource needs it', () => {
    using upstream = createResource('limiting(cuda, limitBytes=8MiB)');
    using pool = new PoolMemoryResource(upstream, { idleMilliseconds });
    use(pool, 8 * MiB);
    pass(0.75 * idleMilliseconds);
    using other = new PoolMemoryResource(upstream);
    use(other, 8 * MiB);
    expect(pool.reservedBytes).toBe(0);
  });

  test('is known to be freed already', () => {
    using pool = poolWith();
    const pointer = pool.allocate(8 * MiB, stream);
    pool.deallocate(pointer, 8 * MiB, stream);
    pass(0.75 * idleMilliseconds);
    expect(() => pool.deallocate(pointer, 8 * MiB, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
  });

  test('goes with the resource', () => {
    using upstream = new CudaMemoryResource();
    const before = upstream.reservedBytes;
    const pool = new PoolMemoryResource(upstream, { idleMilliseconds });
    use(pool, 8 * MiB);
    pass(0.75 * idleMilliseconds);
    pool.dispose();
    expect(upstream.reservedBytes).toBe(before);
    expect(vi.getTimerCount()).toBe(0);
  });
});

describe('every resource that keeps memory returns it', () => {
  test('an arena', () => {
    using arena = new ArenaMemoryResource(new CudaMemoryResource(), { arenaBytes: 8 * MiB, idleMilliseconds });
    use(arena, MiB);
    pass(3 * idleMilliseconds);
    expect(arena.reservedBytes).toBe(0);
    use(arena, MiB);
    arena.validate();
  });

  test('a fixed-size resource', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes: MiB, blocksToPreallocate: 2, idleMilliseconds });
    use(blocks, MiB);
    pass(3 * idleMilliseconds);
    expect(blocks.reservedBytes).toBe(0);
    use(blocks, MiB);
    blocks.validate();
  });

  test('a cache, which takes back only blocks of the size that a request needs', () => {
    using cache = new CachingMemoryResource(new CudaMemoryResource(), { idleMilliseconds });
    const pass2 = () =>
      cache.run(() => {
        use(cache, MiB);
        use(cache, 2 * MiB);
      });
    pass2();
    pass(0.75 * idleMilliseconds);
    cache.run(() => use(cache, MiB));
    pass(0.75 * idleMilliseconds);
    expect(cache.reservedBytes).toBe(MiB);
    cache.validate();
  });

  test('pages of virtual memory', () => {
    using pool = new PoolMemoryResource(new VirtualMemoryResource(), { idleMilliseconds });
    const live = pool.allocate(2 * MiB, stream);
    use(pool, 16 * MiB);
    pass(3 * idleMilliseconds);
    expect(pool.reservedBytes).toBe(2 * MiB);
    use(pool, 16 * MiB);
    pool.deallocate(live, 2 * MiB, stream);
    pool.validate();
  });

  test('a pool over a pool of the driver', () => {
    needMemoryPools();
    using pool = new PoolMemoryResource(new CudaAsyncMemoryResource(), { idleMilliseconds });
    use(pool, 8 * MiB);
    pass(3 * idleMilliseconds);
    expect(pool.reservedBytes).toBe(0);
  });

  test('in a specification', () => {
    using pool = createResource('pool(cuda, idleMilliseconds=1000)') as PoolMemoryResource;
    use(pool, 8 * MiB);
    pass(3 * idleMilliseconds);
    expect(pool.reservedBytes).toBe(0);
  });
});

test('the timer keeps no process alive, and a wrong time is refused', () => {
  vi.useRealTimers();
  const before = process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { idleMilliseconds: 60_000 });
  expect(process.getActiveResourcesInfo().filter((name) => name === 'Timeout')).toHaveLength(before);
  expect(pool.reservedBytes).toBe(0);
  expect(() => new PoolMemoryResource(new CudaMemoryResource(), { idleMilliseconds: -1 })).toThrow(code('ERR_OUT_OF_RANGE'));
  expect(() => new PoolMemoryResource(new CudaMemoryResource(), { idleMilliseconds: '5' as never })).toThrow(code('ERR_INVALID_ARG_TYPE'));
});
