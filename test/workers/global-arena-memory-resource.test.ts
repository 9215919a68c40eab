import { setTimeout } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { alignUp } from '../../src/basics/units.js';
import { checkOrder } from '../../src/checking/index.js';
import { interpose, mailbox, NativeMemoryKind, NativeStatus, native } from '../../src/driver/native.js';
import { CudaMemoryResource, Device, DeviceBuffer, Event, KiB, MiB, PoolMemoryResource, Stream, set } from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { GlobalArenaMemoryResource } from '../../src/workers/index.js';
import { needSecondDevice } from '../support/device-memory.js';
import { caught, code } from '../support/errors.js';

let stream: Stream;
beforeAll(() => {
  stream = new Stream({ nonBlocking: true });
});
afterAll(() => stream.dispose());

const arenaBytes = 4 * MiB;
const superblockBytes = 256 * KiB;

function open(name = 'test'): GlobalArenaMemoryResource {
  return new GlobalArenaMemoryResource({ name, arenaBytes, superblockBytes });
}

describe('a global arena', () => {
  test('is as the call says that allocates its block, also after another was given up for a host function', () => {
    stream.launchHostFunction(() => {});
    let status: number | undefined;
    for (const end = performance.now() + 1000; status !== NativeStatus.hostFunctionReady && performance.now() < end; ) {
      native().openArena('given up', 0, NativeMemoryKind['pinned-host'], arenaBytes, superblockBytes / 2, 0);
      status = mailbox[0];
      if (status === NativeStatus.success) native().closeArena(mailbox[1] as number);
    }
    stream.synchronizeSync();
    using arena = new GlobalArenaMemoryResource({ name: 'given up', arenaBytes: superblockBytes, superblockBytes });
    expect(status).toBe(NativeStatus.hostFunctionReady);
    expect(arena).toMatchObject({ arenaBytes: superblockBytes, granularityBytes: superblockBytes, memoryKind: 'device' });
  });

  test('is one for all resources of its name, and ends with the last', () => {
    const before = driverCallCounts();
    const first = open();
    const second = open();
    const other = open('other');
    const pointer = first.allocate(1, stream);
    expect(first.isEqual(second)).toBe(true);
    expect(first.isEqual(other)).toBe(false);
    expect([first.reservedBytes, second.reservedBytes, other.reservedBytes]).toEqual([superblockBytes, superblockBytes, 0]);
    expect(second.statistics()).toEqual({
      usedBytes: superblockBytes,
      peakUsedBytes: superblockBytes,
      largestFreeBytes: arenaBytes - superblockBytes,
      workers: 1,
    });
    first.dispose();
    second.dispose();
    expect(() => second.allocate(1, stream)).toThrow('disposed');
    expect(driverCallCounts().frees).toBe(before.frees);
    second.deallocate(pointer, 1, stream);
    other.dispose();
    expect(driverCallCounts().frees - before.frees).toBe(2);
    expect(driverCallCounts().allocations - before.allocations).toBe(2);
  });

  test('keeps the settings with which it was opened', () => {
    using first = open();
    using second = new GlobalArenaMemoryResource({ name: 'test' });
    expect([second.arenaBytes, second.granularityBytes, second.memoryKind]).toEqual([arenaBytes, superblockBytes, 'device']);
    for (const [option, found] of [
      [{ arenaBytes: 8 * MiB }, arenaBytes],
      [{ superblockBytes: 512 * KiB }, superblockBytes],
      [{ memoryKind: 'managed' }, '"device"'],
    ] as const) {
      expect(caught(() => new GlobalArenaMemoryResource({ name: 'test', ...option }))).toMatchObject({
        code: 'ERR_INVALID_ARG_VALUE',
        message: `${Object.keys(option)[0]} must be ${found}, because global arena "test" was opened with that, got ${JSON.stringify(Object.values(option)[0])}`,
      });
    }
    expect(first.statistics().workers).toBe(1);
    // None of those refused has it open.
    first.dispose();
    second.dispose();
    using again = new GlobalArenaMemoryResource({ name: 'test', arenaBytes: 8 * MiB });
    expect(again.arenaBytes).toBe(8 * MiB);
  });

  test('is the same for this worker as long as it has the arena open, or memory of it', () => {
    const first = open();
    first.deallocate(first.allocate(1, stream), 1, stream);
    const second = open();
    expect(second.isEqual(first)).toBe(true);
    const pointer = second.allocate(1, stream);
    first.dispose();
    second.dispose();
    using again = open();
    expect(again.isEqual(first)).toBe(true);
    expect(again.reservedBytes).toBe(superblockBytes);
    again.deallocate(pointer, 1, stream);
    expect(again.reservedBytes).toBe(0);
  });

  test('may be opened with the same size again, without the superblocks that round it up', () => {
    const options = { name: 'test', arenaBytes: 2.5 * MiB };
    using first = new GlobalArenaMemoryResource({ ...options, superblockBytes: 2 * MiB });
    using second = new GlobalArenaMemoryResource(options);
    expect(second.arenaBytes).toBe(4 * MiB);
    expect(first.isEqual(second)).toBe(true);
  });

  test.each([
    [{ name: '' }, 'name must be a non-empty string'],
    [{ arenaBytes: 0 }, 'arenaBytes must be at least 1, got 0'],
    [{ arenaBytes: 1.5 }, 'arenaBytes must be'],
    [{ superblockBytes: 3000 }, 'superblockBytes must be a power of two of at least 256 B, got 3000'],
    [{ superblockBytes: 128 }, 'superblockBytes must be a power of two'],
    [{ memoryKind: 'host' }, "memoryKind must be 'device', 'managed', 'pinned-host'"],
    [{ waitMilliseconds: -1 }, 'waitMilliseconds must be a number from 0 to 60000, got -1'],
    [{ waitMilliseconds: Number.NaN }, 'waitMilliseconds must be a number'],
    [{ waitMilliseconds: Number.POSITIVE_INFINITY }, 'waitMilliseconds must be a number'],
    [{ waitMilliseconds: 60_001 }, 'waitMilliseconds must be a number from 0 to 60000, got 60001'],
    [{ arenabytes: 1 }, 'arenabytes'],
  ])('refuses the options %o', (options, message) => {
    expect(() => new GlobalArenaMemoryResource(options as never)).toThrow(message);
  });

  test('has at first half of the free memory of its device, in superblocks of 1 MiB', () => {
    const { freeBytes } = Device.get().memoryInfo();
    using arena = new GlobalArenaMemoryResource({ name: 'by default', waitMilliseconds: 60_000 });
    expect(arena).toMatchObject({ granularityBytes: 1 * MiB, arenaBytes: alignUp(freeBytes / 2, 1 * MiB) });
    using least = new GlobalArenaMemoryResource({ name: 'least', arenaBytes: 1, superblockBytes: 256, waitMilliseconds: 0 });
    expect(least.arenaBytes).toBe(256);
    expect(new GlobalArenaMemoryResource({ name: 'least' }).waitMilliseconds).toBe(20);
  });

  test('refuses wrong calls, and is unchanged', () => {
    const arena = open();
    const gone = new Stream();
    gone.dispose();
    const pointer = arena.allocate(1, stream, superblockBytes);
    for (const [expected, call] of [
      ['ERR_OUT_OF_RANGE', () => arena.allocate(-1, stream)],
      ['ERR_OUT_OF_RANGE', () => arena.allocate(0.5, stream)],
      ['ERR_OUT_OF_RANGE', () => arena.allocate(1, stream, 2 * superblockBytes)],
      ['ERR_OUT_OF_RANGE', () => arena.allocate(0, stream, 3)],
      ['ERR_INVALID_ARG_TYPE', () => arena.allocate(1, undefined as never)],
      ['ERR_CISTERN_DISPOSED', () => arena.allocate(0, gone)],
      ['ERR_OUT_OF_RANGE', () => arena.deallocate(-1, 1, stream)],
      ['ERR_OUT_OF_RANGE', () => arena.deallocate(0, -1, stream)],
      ['ERR_INVALID_ARG_TYPE', () => arena.deallocate(0, 0, undefined as never)],
      ['ERR_CISTERN_DISPOSED', () => arena.deallocate(pointer, 1, gone)],
    ] as const) {
      expect(call).toThrow(code(expected));
    }
    expect(arena.allocate(0, stream)).toBe(0);
    arena.deallocate(0, 0, stream);
    expect(arena.statistics()).toMatchObject({ usedBytes: superblockBytes, workers: 1 });
    arena.dispose();
    arena.dispose();
    expect(() => arena.statistics()).toThrow(code('ERR_CISTERN_DISPOSED'));
    arena.deallocate(pointer, 1, stream);
    using again = open();
    expect(again.statistics().usedBytes).toBe(0);
  });

  test('of device memory serves streams of its device only', () => {
    needSecondDevice();
    using other = new Stream({ device: Device.get(1) });
    using arena = open();
    using pinned = new GlobalArenaMemoryResource({ name: 'pinned', arenaBytes, memoryKind: 'pinned-host' });
    expect(() => arena.allocate(1, other)).toThrow(code('ERR_INVALID_ARG_VALUE'));
    pinned.deallocate(pinned.allocate(1, other), 1, other);
  });

  test('counts the most that this worker had, until it is told to begin again', () => {
    using arena = open();
    expect(arena.peakReservedBytes).toBe(0);
    const pointers = [arena.allocate(1, stream), arena.allocate(1, stream)];
    for (const pointer of pointers) arena.deallocate(pointer, 1, stream);
    arena.deallocate(arena.allocate(1, stream), 1, stream);
    expect([arena.reservedBytes, arena.peakReservedBytes]).toEqual([0, 2 * superblockBytes]);
    arena.resetPeakReservedBytes();
    expect(arena.peakReservedBytes).toBe(0);
  });

  test('of a size that the device does not have is not opened', () => {
    for (const options of [
      { arenaBytes: 2 ** 48 },
      { arenaBytes: Number.MAX_SAFE_INTEGER },
      { arenaBytes: Number.MAX_SAFE_INTEGER, superblockBytes: 2 ** 52 },
    ]) {
      expect(caught(() => new GlobalArenaMemoryResource({ name: 'huge', ...options }))).toMatchObject({
        code: 'ERR_CISTERN_OUT_OF_MEMORY',
        message: expect.stringMatching(/^global arena "huge" is out of memory/),
      });
    }
    using arena = open('huge');
    expect(arena.arenaBytes).toBe(arenaBytes);
  });

  test.each(['device', 'managed', 'pinned-host'] as const)('has memory of kind %s', (memoryKind) => {
    using arena = new GlobalArenaMemoryResource({ name: memoryKind, memoryKind, arenaBytes });
    expect(arena.memoryKind).toBe(memoryKind);
    using buffer = new DeviceBuffer(100, { resource: arena, stream });
    buffer.fill(5);
    expect(buffer.toHostSync()).toEqual(new Uint8Array(100).fill(5));
  });

  test('gives adjacent superblocks, and takes them back in pieces', () => {
    using arena = open();
    const first = arena.allocate(4 * superblockBytes, stream);
    const second = arena.allocate(superblockBytes + 1, stream);
    const third = arena.allocate(superblockBytes, stream);
    expect(third).toBe(second + 2 * superblockBytes);
    // The second ends within a superblock.
    expect(() => arena.deallocate(second, 3 * superblockBytes, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    arena.deallocate(third, superblockBytes, stream);
    expect(second).toBe(first + 4 * superblockBytes);
    expect(first % superblockBytes).toBe(0);
    expect(arena.reservedBytes).toBe(6 * superblockBytes);
    arena.deallocate(first + superblockBytes, 4 * superblockBytes, stream);
    expect(arena.reservedBytes).toBe(2 * superblockBytes);
    for (const [pointer, bytes, code] of [
      [first, 2 * superblockBytes, 'ERR_CISTERN_WRONG_SIZE'],
      [first + 256, 256, 'ERR_CISTERN_FOREIGN_POINTER'],
      [first + superblockBytes, superblockBytes, 'ERR_CISTERN_DOUBLE_FREE'],
      [first - superblockBytes * 100, superblockBytes, 'ERR_CISTERN_FOREIGN_POINTER'],
      [second + superblockBytes, 2, 'ERR_CISTERN_WRONG_SIZE'],
    ] as const) {
      expect(caught(() => arena.deallocate(pointer, bytes, stream))).toMatchObject({ code });
    }
    arena.deallocate(second + superblockBytes, 1, stream);
    arena.deallocate(first, superblockBytes, stream);
    expect(arena.statistics()).toMatchObject({ usedBytes: 0, largestFreeBytes: arenaBytes, peakUsedBytes: 7 * superblockBytes });
  });

  test('takes the smallest free range that has room', () => {
    using arena = open();
    const pieces = Array.from({ length: 16 }, () => arena.allocate(superblockBytes, stream));
    const [a, b, c, d, e] = pieces as [number, number, number, number, number];
    for (const each of [a, b, c]) arena.deallocate(each, superblockBytes, stream);
    arena.deallocate(e, superblockBytes, stream);
    expect(arena.allocate(1, stream)).toBe(e);
    expect(arena.allocate(2 * superblockBytes, stream)).toBe(a);
    arena.deallocate(a, 2 * superblockBytes, stream);
    arena.deallocate(d, superblockBytes, stream);
    // Ranges that were freed with several events are one range.
    expect(arena.allocate(4 * superblockBytes, stream)).toBe(a);
    arena.deallocate(a, 4 * superblockBytes, stream);
    for (const each of pieces.slice(4)) arena.deallocate(each, each === e ? 1 : superblockBytes, stream);
  });

  test('makes a stream wait for every stream that freed what it takes', async () => {
    using arena = open();
    using checker = checkOrder();
    using other = new Stream({ nonBlocking: true });
    using third = new Stream({ nonBlocking: true });
    const first = arena.allocate(superblockBytes, other);
    const second = arena.allocate(superblockBytes, third);
    const rest = arena.allocate(arenaBytes - 2 * superblockBytes, stream);
    const holds = [other.hold(), third.hold()];
    set(first, 1, 1, 100, other);
    set(second, 1, 1, 100, third);
    arena.deallocate(first, superblockBytes, other);
    arena.deallocate(second, superblockBytes, third);
    const both = arena.allocate(2 * superblockBytes, stream);
    set(both, 2, 1, 2 * superblockBytes, stream);
    for (const hold of holds) {
      // Without a wait it would have run by then.
      await setTimeout(50);
      expect(stream.query()).toBe(false);
      hold.release();
    }
    stream.synchronizeSync();
    expect(checker.violations).toEqual([]);
    arena.deallocate(both, 2 * superblockBytes, stream);
    arena.deallocate(rest, arenaBytes - 2 * superblockBytes, stream);
  });

  test('brings a stream memory that its earlier events do not cover', () => {
    using arena = open();
    using other = new Stream({ nonBlocking: true });
    arena.deallocate(arena.allocate(arenaBytes, other), arenaBytes, other);
    using event = new Event();
    event.record(stream);
    expect(stream.identity.receivedAt).toBeLessThan(event.version);
    const all = arena.allocate(arenaBytes, stream);
    expect(stream.identity.receivedAt).toBe(event.version);
    arena.deallocate(all, arenaBytes, stream);
  });

  test('uses events again', () => {
    using arena = open();
    using other = new Stream({ nonBlocking: true });
    const created = () => driverCallCounts().byFunction['cuEventCreate'] ?? 0;
    const before = created();
    for (let i = 0; i < 50; i++) {
      const pair = [arena.allocate(superblockBytes, other), arena.allocate(2 * superblockBytes, other)] as const;
      arena.deallocate(pair[0], superblockBytes, other);
      arena.deallocate(pair[1], 2 * superblockBytes, stream);
      // A part of what was freed with the second event, then the rest.
      const parts = [arena.allocate(2 * superblockBytes, stream), arena.allocate(arenaBytes - 2 * superblockBytes, other)] as const;
      arena.deallocate(parts[0], 2 * superblockBytes, stream);
      arena.deallocate(parts[1], arenaBytes - 2 * superblockBytes, stream);
    }
    expect(created() - before).toBeLessThanOrEqual(3);
  });

  test('is unchanged, peaks included, if the driver refuses a wait', () => {
    using arena = open();
    using other = new Stream({ nonBlocking: true });
    arena.deallocate(arena.allocate(superblockBytes, other), superblockBytes, other);
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => arena.allocate(arenaBytes, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    expect(arena.statistics()).toEqual({
      usedBytes: 0,
      peakUsedBytes: superblockBytes,
      largestFreeBytes: arenaBytes,
      workers: 1,
    });
    arena.deallocate(arena.allocate(arenaBytes, stream), arenaBytes, stream);
    const { frees } = driverCallCounts();
    arena.dispose();
    expect(driverCallCounts().frees - frees).toBe(1);
  });

  test('serves memory whose stream has ended', () => {
    using arena = open();
    using checker = checkOrder();
    const other = new Stream({ nonBlocking: true });
    const all = arena.allocate(arenaBytes, other);
    set(all, 1, 1, arenaBytes, other);
    arena.deallocate(all, arenaBytes, other);
    other.dispose();
    const again = arena.allocate(arenaBytes, stream);
    set(again, 2, 1, arenaBytes, stream);
    arena.deallocate(again, arenaBytes, stream);
    expect(checker.violations).toEqual([]);
  });

  test('says why it has no memory', () => {
    using arena = open();
    const pointer = arena.allocate(3 * MiB, stream);
    expect(caught(() => arena.allocate(2 * MiB, stream))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      message:
        'global arena "test" is out of memory: 2 MiB (2097152 bytes) were asked for; of its 4 MiB, 3 MiB are in use by 1 worker, 3 MiB by this one, and the largest free range has 1 MiB; no other worker has any of it',
      requestedBytes: 2 * MiB,
      availableBytes: 1 * MiB,
      limitBytes: arenaBytes,
      stages: [{ stage: 'other-workers', recoveredBytes: 0 }],
      path: ['global arena "test"'],
    });
    arena.deallocate(pointer, 3 * MiB, stream);
  });

  test.each(['eager', 'deferred', 'off'] as const)('takes back what pools have free, under %s', (deallocationEvents) => {
    using arena = open();
    using checker = checkOrder();
    using first = new PoolMemoryResource(arena, { growth: 'after-waits', deallocationEvents });
    using second = new PoolMemoryResource(arena, { growth: 'after-waits', deallocationEvents });
    using other = new Stream({ nonBlocking: true });
    const pointers = Array.from({ length: 12 }, (_, i) => first.allocate(300_000, i % 2 === 0 ? stream : other));
    for (const [i, pointer] of pointers.entries()) {
      const each = i % 2 === 0 ? stream : other;
      set(pointer, 1, 1, 300_000, each);
      first.deallocate(pointer, 300_000, each);
    }
    expect(first.reservedBytes).toBeGreaterThan(3 * MiB);
    const all = second.allocate(arenaBytes, other);
    set(all, 2, 1, arenaBytes, other);
    second.deallocate(all, arenaBytes, other);
    expect(first.reservedBytes).toBe(0);
    first.validate();
    const again = first.allocate(arenaBytes, stream);
    set(again, 3, 1, arenaBytes, stream);
    first.deallocate(again, arenaBytes, stream);
    expect(checker.violations).toEqual([]);
  });

  test('leaves a pool what is in use', () => {
    using arena = open();
    using pool = new PoolMemoryResource(arena);
    using other = new PoolMemoryResource(arena);
    const used = pool.allocate(1000, stream);
    pool.deallocate(pool.allocate(2 * MiB, stream), 2 * MiB, stream);
    const pointer = other.allocate(arenaBytes - superblockBytes, stream);
    expect(pool.reservedBytes).toBe(superblockBytes);
    expect(() => other.allocate(superblockBytes, stream)).toThrow('out of memory');
    pool.deallocate(used, 1000, stream);
    const last = other.allocate(superblockBytes, stream);
    other.deallocate(last, superblockBytes, stream);
    other.deallocate(pointer, arenaBytes - superblockBytes, stream);
  });

  test('frees buffers that were dropped', () => {
    using arena = open();
    using cuda = new CudaMemoryResource();
    expect(arena.isEqual(cuda)).toBe(false);
    using pool = new PoolMemoryResource(arena);
    let buffer: DeviceBuffer | undefined = new DeviceBuffer(arenaBytes, { resource: pool, stream });
    expect(buffer.byteLength).toBe(arenaBytes);
    buffer = undefined;
    using again = new DeviceBuffer(arenaBytes, { resource: pool, stream });
    expect(again.byteLength).toBe(arenaBytes);
  });
});

describe('a worker that asks others for superblocks', () => {
  const full = { name: 'asking', arenaBytes: superblockBytes, superblockBytes };
  afterEach(() => interpose());

  interface Answer {
    readonly asked?: number;
    readonly freedBefore?: number;
    readonly freedNow?: number;
    readonly hasRoom?: boolean;
    /** The request, if the answers to it are still awaited. */
    readonly request?: number;
    readonly silent?: readonly number[];
  }

  /** Gives these answers, and the last of them from then on. Returns the requests that are continued; 0: a new one. */
  function answer(answers: readonly Answer[], meanwhile = () => {}): number[] {
    const continued: number[] = [];
    interpose(() => ({
      askForSuperblocks: (_arena, _bytes, _patience, _left, request) => {
        const {
          asked = 0,
          freedBefore = 0,
          freedNow = 0,
          hasRoom,
          request: awaited = 0,
          silent = [],
        } = answers[Math.min(continued.push(request), answers.length) - 1] as Answer;
        if (continued.length === answers.length) meanwhile();
        [NativeStatus.success, asked, freedBefore, freedNow, hasRoom === true ? 1 : 0, awaited].forEach((value, i) => {
          mailbox[i] = value;
        });
        return Float64Array.from(silent);
      },
    }));
    return continued;
  }

  test('goes on waiting for the same request, and says what came of it from its beginning', () => {
    using arena = new GlobalArenaMemoryResource({ ...full, waitMilliseconds: 60_000 });
    const pointer = arena.allocate(1, stream);
    const continued = answer([
      { asked: 2, freedBefore: 100, freedNow: 100 + 1 * MiB, request: 1, silent: [0, 3] },
      { asked: 0, freedBefore: 100 + 1 * MiB, freedNow: 100 + 3 * MiB, silent: [0, 3] },
    ]);
    expect(caught(() => arena.allocate(1, stream))).toMatchObject({
      message: expect.stringMatching(
        /; 2 other workers were asked to return free memory, 0 answered within 60000 ms \(not: the main thread, worker 3\), and 3 MiB were returned$/,
      ),
      stages: [{ stage: 'other-workers', recoveredBytes: 3 * MiB }],
    });
    expect(continued).toEqual([0, 1]);
    arena.deallocate(pointer, 1, stream);
  });

  test('asks again if another one has taken the room that there was', () => {
    using arena = new GlobalArenaMemoryResource({ ...full, waitMilliseconds: 60_000 });
    const pointer = arena.allocate(1, stream);
    const continued = answer([{ asked: 2, hasRoom: true }, { asked: 1 }]);
    expect(caught<Error>(() => arena.allocate(1, stream)).message).toContain('; 1 other worker was asked');
    expect(continued).toEqual([0, 0]);
    answer(
      [
        { asked: 1, hasRoom: true },
        { asked: 1, hasRoom: true },
      ],
      () => arena.deallocate(pointer, 1, stream),
    );
    expect(arena.allocate(1, stream)).toBe(pointer);
    arena.deallocate(pointer, 1, stream);
  });

  test('asks once if it may not wait, and no longer than it may wait', () => {
    const arenas = [0, 50].map((waitMilliseconds) => new GlobalArenaMemoryResource({ ...full, waitMilliseconds }));
    const [hasty, patient] = arenas as [GlobalArenaMemoryResource, GlobalArenaMemoryResource];
    const pointer = hasty.allocate(1, stream);
    const continued = answer([{ asked: 1, hasRoom: true }]);
    expect(() => hasty.allocate(1, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(continued).toEqual([0]);
    expect(() => patient.allocate(1, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    hasty.deallocate(pointer, 1, stream);
    for (const each of arenas) each.dispose();
  });

  test('asks with what is left of its time, which is never less than none', () => {
    using arena = new GlobalArenaMemoryResource({ ...full, waitMilliseconds: 1 });
    const pointer = arena.allocate(1, stream);
    const left: number[] = [];
    interpose(() => ({
      askForSuperblocks: (_arena, _bytes, _patience, milliseconds) => {
        left.push(milliseconds);
        // Longer than it may wait; there is room, which another one takes.
        for (const end = performance.now() + 3; performance.now() < end; );
        [NativeStatus.success, 1, 0, 0, 1, 0].forEach((value, i) => {
          mailbox[i] = value;
        });
        return new Float64Array();
      },
    }));
    expect(() => arena.allocate(1, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(left).toEqual([1, 0]);
    arena.deallocate(pointer, 1, stream);
  });
});
