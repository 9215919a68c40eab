import { describe, expect, test } from 'vitest';
import { ArenaMemoryResource, type DevicePointer, Event, KiB, MiB, PoolMemoryResource, Stream } from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { SpyResource } from '../support/spy-resource.js';
import { eventCalls, expectWaiting, inHostFunction, madeElsewhere } from '../support/stream-order.js';

/** Memory that is never accessed, with a count of live allocations. */
class Upstream extends SpyResource {
  liveBytes = 0;
  #end = 2 ** 44;

  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    super.allocate(bytes, stream, alignment);
    this.liveBytes += bytes;
    const pointer = this.#end;
    this.#end += Math.ceil(bytes / MiB) * MiB + MiB;
    return pointer;
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    super.deallocate(pointer, bytes, stream);
    this.liveBytes -= bytes;
  }
}

const disposed = expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' });

describe('memory that arrives inside a host function, where waiting is impossible', () => {
  test('goes back at the next dispose, if its pool was disposed in the meantime', () => {
    using stream = new Stream({ nonBlocking: true });
    const upstream = new Upstream();
    const pool = new PoolMemoryResource(upstream);
    upstream.meanwhile = () => pool.dispose();
    expect(() => inHostFunction(() => pool.allocate(1024, stream))).toThrow(disposed);
    expect(upstream.liveBytes).toBe(1024);
    pool.dispose();
    expect(upstream.liveBytes).toBe(0);
    expect(pool.reservedBytes).toBe(0);
  });

  test('serves later allocations, if its stream ended in the meantime', () => {
    using stream = new Stream({ nonBlocking: true });
    const ending = new Stream({ nonBlocking: true });
    const upstream = new Upstream();
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 1024 });
    upstream.meanwhile = () => ending.dispose();
    expect(() => inHostFunction(() => pool.allocate(1024, ending))).toThrow(disposed);
    expect(pool.reservedBytes).toBe(1024);
    pool.validate();
    expect(pool.allocate(1024, stream)).toBeGreaterThan(0);
    expect(pool.statistics()).toMatchObject({ growths: 1, reservedBytes: 1024 });
    pool.validate();
  });

  test('goes back with the rest, if its stream ended in the meantime', () => {
    const ending = new Stream({ nonBlocking: true });
    const upstream = new Upstream();
    const pool = new PoolMemoryResource(upstream);
    upstream.meanwhile = () => ending.dispose();
    expect(() => inHostFunction(() => pool.allocate(1024, ending))).toThrow(disposed);
    pool.dispose();
    expect(upstream.liveBytes).toBe(0);
  });
});

test('stays where others find it, if the stream of a trim ends while the device is waited for', () => {
  using stream = new Stream({ nonBlocking: true });
  const foreign = madeElsewhere();
  using unannounced = Stream.fromHandle(foreign.address);
  using pool = new PoolMemoryResource(new Upstream(), { initialBytes: 2 * MiB, maximumBytes: 2 * MiB, deallocationEvents: 'off' });
  // A live allocation keeps the block from going back to the upstream.
  pool.allocate(MiB, stream);
  pool.deallocate(pool.allocate(MiB, unannounced), MiB, unannounced);
  const ending = new Stream({ nonBlocking: true });
  ending.launchHostFunction(() => ending.dispose());
  expect(() => pool.trim(ending)).toThrow(disposed);
  expect(pool.allocate(MiB, stream)).toBeGreaterThan(0);
  pool.validate();
  unannounced.dispose();
  foreign.destroy();
});

describe('an event that cannot be recorded', () => {
  test('is replaced by a wait for the device if its stream is gone later', () => {
    using stream = new Stream({ nonBlocking: true });
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    const upstream = new Upstream();
    const pool = new PoolMemoryResource(upstream, { maximumBytes: 1024 });
    {
      using _hold = unannounced.hold();
      failCall('cuEventRecord', 1, 999);
      expect(() => pool.allocate(1024, unannounced)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    }
    foreign.destroy();
    const pointer = pool.allocate(1024, stream);
    expect(pool.statistics()).toMatchObject({ growths: 1, synchronizations: 1 });
    pool.deallocate(pointer, 1024, stream);
    pool.dispose();
    expect(upstream.liveBytes).toBe(0);
  });

  test('is recorded again before any stream waits, since the earlier recording may be lost', () => {
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using pool = new PoolMemoryResource(new Upstream(), { maximumBytes: 2 * KiB });
    const [first, second] = [pool.allocate(KiB, stream), pool.allocate(KiB, stream)] as const;
    using _hold = stream.hold();
    pool.deallocate(first, KiB, stream);
    failCall('cuEventRecord', 1, 999);
    expect(() => pool.deallocate(second, KiB, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    expect(eventCalls(() => pool.allocate(KiB, other))).toEqual({ records: 1, waits: 1 });
  });
});

describe('what to wait for after many streams and many rounds', () => {
  test('is one event for each stream, however often an arena is defragmented', () => {
    using busy = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using arena = new ArenaMemoryResource(new Upstream(), { arenaBytes: 8 * MiB, deallocationEvents: 'deferred' });
    using _hold = busy.hold();
    const round = () => {
      arena.deallocate(arena.allocate(KiB, busy), KiB, busy);
      arena.defragment();
    };
    for (let i = 0; i < 50; i++) round();
    expect(eventCalls(() => arena.allocate(KiB, busy)).waits).toBe(0);
    arena.defragment();
    expect(eventCalls(() => arena.allocate(KiB, other)).waits).toBeLessThanOrEqual(1);
  });

  test('is the later of two events of one stream', () => {
    using busy = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using arena = new ArenaMemoryResource(new Upstream(), { arenaBytes: MiB, deallocationEvents: 'deferred' });
    const [first, second] = [arena.allocate(KiB, busy), arena.allocate(KiB, busy)] as const;
    using earlier = busy.hold();
    arena.deallocate(first, KiB, busy);
    arena.defragment();
    using _later = busy.hold();
    arena.deallocate(second, KiB, busy);
    arena.defragment();
    arena.allocate(MiB, other);
    earlier.release();
    expectWaiting(other);
  });

  test('is not skipped by a stream whose own events they are', () => {
    using busy = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using arena = new ArenaMemoryResource(new Upstream(), { arenaBytes: MiB, deallocationEvents: 'deferred' });
    using _hold = busy.hold();
    arena.deallocate(arena.allocate(MiB, busy), MiB, busy);
    arena.defragment();
    // The superblock belongs to the busy stream again, without a wait; the other stream must still
    // wait for it.
    const pointer = arena.allocate(KiB, busy);
    expect(eventCalls(() => arena.allocate(KiB, other)).waits).toBe(1);
    arena.deallocate(pointer, KiB, busy);
  });

  test('becomes one event for many streams that have ended', () => {
    using busy = new Stream({ nonBlocking: true });
    using next = new Stream({ nonBlocking: true });
    using last = new Stream({ nonBlocking: true });
    using pool = new PoolMemoryResource(new Upstream(), { initialBytes: MiB, maximumBytes: MiB, deallocationEvents: 'deferred' });
    using _hold = busy.hold();
    using event = new Event();
    event.record(busy);
    const streams = Array.from({ length: 40 }, () => new Stream({ nonBlocking: true }));
    const pointers = streams.map((stream) => pool.allocate(16 * KiB, stream));
    for (const [i, stream] of streams.entries()) {
      stream.wait(event);
      pool.deallocate(pointers[i] as number, 16 * KiB, stream);
    }
    for (const stream of streams) stream.dispose();
    expect(eventCalls(() => pool.allocate(16 * KiB, next)).waits).toBe(40);
    expect(eventCalls(() => pool.allocate(16 * KiB, last)).waits).toBe(1);
    pool.validate();
  });
});

test('is, in an arena, only the one of many blocks of nearly the same size that fits', () => {
  using stream = new Stream({ nonBlocking: true });
  using other = new Stream({ nonBlocking: true });
  const least = 64 * 256;
  // There are more blocks before and after the one that fits than are searched.
  const sizes = Array.from({ length: 61 }, (_, i) => (i === 30 ? least + 256 : least));
  const between = 1024;
  using arena = new ArenaMemoryResource(new Upstream(), {
    arenaBytes: sizes.reduce((sum, bytes) => sum + bytes + between, 0),
    deallocationEvents: 'deferred',
  });
  const pointers = sizes.map((bytes) => {
    const pointer = arena.allocate(bytes, stream);
    arena.allocate(between, stream);
    return pointer;
  });
  using _hold = stream.hold();
  for (const [i, pointer] of pointers.entries()) arena.deallocate(pointer, sizes[i] as number, stream);
  failCall('cuStreamWaitEvent', 1, 999);
  expect(() => arena.allocate(least + 256, other)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
  arena.validate();
  expect(arena.allocate(least + 256, other)).toBe(pointers[30]);
  expectWaiting(other);
});

test.each([
  ['a pool', (bytes: number) => new PoolMemoryResource(new Upstream(), { initialBytes: bytes, maximumBytes: bytes })],
  ['an arena', (bytes: number) => new ArenaMemoryResource(new Upstream(), { arenaBytes: bytes })],
])('%s is not out of memory while one of many blocks of nearly the same size fits', (_name, make) => {
  using stream = new Stream({ nonBlocking: true });
  const least = 64 * 256;
  const sizes = [least + 256, ...Array.from({ length: 60 }, () => least)];
  const between = 1024;
  using pool = make(sizes.reduce((sum, bytes) => sum + bytes + between, 0));
  const pointers = sizes.map((bytes) => {
    const pointer = pool.allocate(bytes, stream);
    pool.allocate(between, stream);
    return pointer;
  });
  for (const [i, pointer] of pointers.entries()) pool.deallocate(pointer, sizes[i] as number, stream);
  expect(pool.allocate(least + 256, stream)).toBe(pointers[0]);
  expect(() => pool.allocate(least + 256, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY' }));
  pool.validate();
});
