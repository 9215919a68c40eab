import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import {
  ArenaMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResource,
  type DeallocationEvents,
  Device,
  Event,
  GiB,
  KiB,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  Stream,
  type StreamHold,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { code } from '../support/errors.js';
import { StepCounter } from '../support/steps.js';
import { eventWaits, expectWaiting, inHostFunction, policies, sharingPolicies } from '../support/stream-order.js';

vi.mock('../../src/suballocation/index-module.js', () => import('../support/counted-index-module.js'));

const stream = new Stream();

/**
 * An upstream of a given size, which counts its calls and can call back during a call. The memory
 * cannot be used.
 */
class AddressUpstream implements MemoryResource {
  readonly memoryKind = 'device';
  readonly device = Device.get();
  readonly asked: number[] = [];
  liveBytes = 0;
  limitBytes: number;
  interrupt: (() => void) | undefined;
  #next = 2 ** 44;

  constructor(limitBytes = Number.POSITIVE_INFINITY) {
    this.limitBytes = limitBytes;
  }

  allocate(bytes: number): number {
    this.asked.push(bytes);
    if (this.liveBytes + bytes > this.limitBytes)
      throw new OutOfMemoryError('bounded', { requestedBytes: bytes, path: ['AddressUpstream'] });
    this.liveBytes += bytes;
    const address = this.#next;
    this.#next += Math.ceil(bytes / MiB) * MiB + MiB;
    this.#run();
    return address;
  }

  deallocate(_pointer: number, bytes: number): void {
    this.liveBytes -= bytes;
    this.#run();
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}

  #run(): void {
    const interrupt = this.interrupt;
    this.interrupt = undefined;
    interrupt?.();
  }
}

function arenaOf(mebibytes: number, deallocationEvents: DeallocationEvents = 'off', upstream: MemoryResource = new AddressUpstream()) {
  // Otherwise work that an earlier test left on the default stream would be waited for.
  Device.get().synchronizeSync();
  return new ArenaMemoryResource(upstream, { arenaBytes: mebibytes * MiB, deallocationEvents });
}

function synchronizations(during: () => void): number {
  const before = driverCallCounts().synchronizations;
  during();
  return driverCallCounts().synchronizations - before;
}

describe('an arena', () => {
  test.each([0, 1, MiB - 1, -1, 1.5 * MiB + 0.5, Number.NaN, Number.POSITIVE_INFINITY])('refuses a size of %s', (arenaBytes) => {
    expect(() => new ArenaMemoryResource(new AddressUpstream(), { arenaBytes })).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(() => new ArenaMemoryResource(new AddressUpstream(), { arenaBytes })).toThrow(/arenaBytes must be/);
  });

  test('refuses invalid options and an invalid upstream', () => {
    expect(() => new ArenaMemoryResource(undefined as unknown as MemoryResource)).toThrow(code('ERR_INVALID_ARG_TYPE'));
    expect(() => new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: '1' as unknown as number })).toThrow(
      code('ERR_INVALID_ARG_TYPE'),
    );
    expect(() => new ArenaMemoryResource(new AddressUpstream(), { dumpFile: 1 as unknown as string })).toThrow(
      code('ERR_INVALID_ARG_TYPE'),
    );
    expect(() => arenaOf(1, 'lazy' as DeallocationEvents)).toThrow("deallocationEvents must be 'eager', 'deferred', 'off', got \"lazy\"");
  });

  test('takes its size at once, rounded down to 256 bytes', () => {
    const upstream = new AddressUpstream();
    using arena = new ArenaMemoryResource(upstream, { arenaBytes: MiB + 1000 });
    expect(upstream.asked).toEqual([MiB + 768]);
    expect(arena.arenaBytes).toBe(MiB + 768);
    expect(arena.reservedBytes).toBe(MiB + 768);
  });

  test('is created from a specification with all of its options', () => {
    using arena = createResource('arena(cuda, arenaBytes=2MiB, dumpFile=/dev/null, deallocationEvents=deferred)') as ArenaMemoryResource;
    expect(arena.arenaBytes).toBe(2 * MiB);
    expect(arena.deallocationEvents).toBe('deferred');
    expect(() => arena.allocate(3 * MiB, stream)).toThrow(OutOfMemoryError);
  });

  test("takes half of the device's free memory if no size is given", () => {
    const upstream = new AddressUpstream();
    const half = Device.get().memoryInfo().freeBytes / 2;
    using arena = new ArenaMemoryResource(upstream);
    expect(arena.arenaBytes).toBe(half - (half % 256));
    expect(arena.deallocationEvents).toBe('off');
  });

  test('takes the least that an arena can have if the device has less than twice that', () => {
    using _spy = vi.spyOn(Device.prototype, 'memoryInfo').mockReturnValue({ freeBytes: 192 * KiB, totalBytes: GiB });
    using arena = new ArenaMemoryResource(new AddressUpstream());
    expect(arena.arenaBytes).toBe(MiB);
    // It is the upstream that says so if there is too little.
    expect(() => new ArenaMemoryResource(new AddressUpstream(192 * KiB))).toThrow(OutOfMemoryError);
  });

  test('takes several blocks if one cannot be large enough', () => {
    const upstream = new AddressUpstream();
    using arena = new ArenaMemoryResource(upstream, { arenaBytes: 1025 * GiB });
    expect(upstream.asked).toEqual([512 * GiB - 256, 512 * GiB - 256, GiB + 512]);
    expect(arena.allocate(500 * GiB, stream)).toBeGreaterThan(0);
    expect(arena.allocate(500 * GiB, stream)).toBeGreaterThan(0);
    arena.validate();
  });

  test('gives back what it took if the upstream does not have its whole size', () => {
    const upstream = new AddressUpstream(600 * GiB);
    expect(() => new ArenaMemoryResource(upstream, { arenaBytes: 1025 * GiB })).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY', path: ['ArenaMemoryResource', 'AddressUpstream'] }),
    );
    expect(upstream.liveBytes).toBe(0);
  });

  test('allocates ninety percent of its size', () => {
    using arena = arenaOf(100);
    const pointer = arena.allocate(90 * MiB, stream);
    arena.deallocate(pointer, 90 * MiB, stream);
    expect(arena.allocate(90 * MiB, stream)).toBe(pointer);
  });

  test('serves small, medium and large sizes side by side', () => {
    using arena = arenaOf(1024);
    const sizes = [KiB, MiB / 2, MiB, 5 * MiB, 900 * MiB];
    const pointers = sizes.map((bytes) => arena.allocate(bytes, stream));
    arena.validate();
    expect(new Set(pointers).size).toBe(sizes.length);
    for (const [index, bytes] of sizes.entries()) arena.deallocate(pointers[index] as number, bytes, stream);
    expect(arena.statistics()).toMatchObject({ allocatedBytes: 0, growths: 1 });
  });

  test('serves exactly its size, and not a byte more', () => {
    using arena = arenaOf(3);
    const pointer = arena.allocate(3 * MiB, stream);
    expect(() => arena.allocate(1, stream)).toThrow(OutOfMemoryError);
    arena.deallocate(pointer, 3 * MiB, stream);
    expect(() => arena.allocate(3 * MiB + 1, stream)).toThrow(OutOfMemoryError);
    arena.validate();
  });

  test('serves alignments above 256', () => {
    using arena = arenaOf(8, 'off', new CudaMemoryResource());
    arena.allocate(1, stream);
    for (const alignment of [512, 4096, MiB]) {
      const pointer = arena.allocate(1000, stream, alignment);
      expect(pointer % alignment).toBe(0);
      arena.deallocate(pointer, 1000, stream);
    }
    expect(() => arena.allocate(1000, stream, 2 ** 40)).toThrow(OutOfMemoryError);
    arena.validate();
  });

  test('finds an aligned place that only one part of the global arena has', () => {
    using arena = arenaOf(4);
    const pointer = arena.allocate(4 * MiB, stream, 4 * MiB);
    expect(pointer % (4 * MiB)).toBe(0);
    expect(arena.statistics()).toMatchObject({ superblocks: 0, allocatedBytes: 4 * MiB });
  });

  test('distinguishes a double free, a foreign pointer, an inner pointer and a wrong size, and stays intact', () => {
    using arena = arenaOf(1);
    const kept = arena.allocate(1000, stream);
    const freed = arena.allocate(1000, stream);
    arena.deallocate(freed, 1000, stream);
    expect(() => arena.deallocate(freed, 1000, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    expect(() => arena.deallocate(kept + 256, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(() => arena.deallocate(256, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(() => arena.deallocate(kept, 1001, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    arena.deallocate(0, 0, stream);
    arena.validate();
    arena.deallocate(kept, 1000, stream);
  });

  test('gives everything back at the end, including live allocations', () => {
    const upstream = new AddressUpstream();
    const arena = arenaOf(4, 'off', upstream);
    arena.allocate(MiB, stream);
    arena.dispose();
    arena.dispose();
    expect(upstream.liveBytes).toBe(0);
    expect(() => arena.allocate(1, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(() => arena.defragment()).toThrow(code('ERR_CISTERN_DISPOSED'));
  });
});

describe('superblocks', () => {
  test('have 32 KiB and serve many small requests of one stream', () => {
    using arena = arenaOf(8);
    for (let i = 0; i < 16; i++) arena.allocate(2 * KiB, stream);
    expect(arena.statistics().superblocks).toBe(1);
    arena.allocate(1, stream);
    expect(arena.statistics().superblocks).toBe(2);
  });

  test('have the size of a large request', () => {
    using arena = arenaOf(2);
    arena.allocate(1.5 * MiB + 1, stream);
    expect(arena.statistics().superblocks).toBe(1);
    using other = new Stream();
    expect(arena.allocate(0.5 * MiB - 256, other)).toBeGreaterThan(0);
    expect(arena.statistics()).toMatchObject({ superblocks: 2, defragmentations: 0 });
  });

  test('of two streams lie apart, so that neither waits for the other', () => {
    using arena = arenaOf(4);
    using other = new Stream();
    using _hold = stream.hold();
    const first = arena.allocate(256, stream);
    arena.deallocate(first, 256, stream);
    const waits = eventWaits(() => {
      expect(Math.abs(arena.allocate(256, other) - first)).toBeGreaterThanOrEqual(32 * KiB);
    });
    expect(waits).toBe(0);
    expect(arena.statistics()).toMatchObject({ superblocks: 2, reuses: 0, synchronizations: 0 });
  });

  test('come from a smaller hole of the global arena than the stream has', () => {
    using arena = arenaOf(64);
    const large = arena.allocate(32 * MiB, stream);
    const pointers = [8 * MiB, 2 * MiB, 22 * MiB].map((bytes) => arena.allocate(bytes, stream));
    arena.deallocate(pointers[0] as number, 8 * MiB, stream);
    arena.defragment();
    arena.deallocate(large, 32 * MiB, stream);
    // The stream's own block of 32 MiB stays whole.
    expect(arena.allocate(MiB, stream)).toBe(pointers[0]);
    expect(arena.allocate(32 * MiB, stream)).toBe(large);
    expect(arena.statistics()).toMatchObject({ defragmentations: 1, synchronizations: 0 });
  });

  test('are also taken from a rest below 32 KiB when nothing else is left', () => {
    using arena = new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: 2 * MiB });
    const pointer = arena.allocate(2 * MiB - 16 * KiB, stream);
    using other = new Stream();
    expect(arena.allocate(KiB, other)).toBeGreaterThan(pointer);
  });
});

describe('holes that are too small', () => {
  /**
   * An arena with a given number of free pieces of 2 KiB in the global arena, every second piece;
   * and the addresses of the pieces.
   */
  function arenaWithHoles(count: number): { arena: ArenaMemoryResource; pointers: readonly number[] } {
    const arena = new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: count * 4 * KiB, deallocationEvents: 'deferred' });
    const pointers = Array.from({ length: 2 * count }, () => arena.allocate(2 * KiB, stream));
    for (const [index, pointer] of pointers.entries()) if (index % 2 === 0) arena.deallocate(pointer, 2 * KiB, stream);
    arena.defragment();
    return { arena, pointers };
  }

  test('do not make an allocation more expensive as their number grows', () => {
    const stepsAmong = (count: number) => {
      using counter = new StepCounter();
      using arena = arenaWithHoles(count).arena;
      return counter.during(() => {
        for (let i = 0; i < 10; i++) arena.allocate(2 * KiB, stream);
      });
    };
    expect(stepsAmong(2048)).toBeLessThan(1.5 * stepsAmong(512));
  });

  test('are not searched when other free memory is returned to the global arena', () => {
    const stepsAmong = (count: number) => {
      using counter = new StepCounter();
      const { arena, pointers } = arenaWithHoles(count);
      using _end = arena;
      using other = new Stream();
      arena.deallocate(pointers[1] as number, 2 * KiB, other);
      let pointer = 0;
      const steps = counter.during(() => {
        pointer = arena.allocate(6 * KiB, stream);
      });
      expect(pointer).toBe(pointers[0]);
      return steps;
    };
    expect(stepsAmong(2048)).toBeLessThan(1.5 * stepsAmong(512));
  });

  test('are not waited for if they hide one that is large enough', () => {
    using arena = arenaOf(67 + 1 + 9 * (66 + 1) + 67, 'deferred');
    using other = new Stream();
    const sizes = [67, ...Array.from({ length: 9 }, () => 66)].map((mebibytes) => mebibytes * MiB);
    const holes = sizes.map((bytes) => {
      const pointer = arena.allocate(bytes, stream);
      arena.allocate(MiB, stream);
      return pointer;
    });
    const last = arena.allocate(67 * MiB, other);
    using hold = stream.hold();
    // The last one freed is the first that the global arena gets, and so the last that is searched.
    for (const [index, bytes] of [...sizes.entries()].reverse()) arena.deallocate(holes[index] as number, bytes, stream);
    arena.defragment();
    arena.deallocate(last, 67 * MiB, other);
    using third = new Stream();
    expect(eventWaits(() => expect(arena.allocate(67 * MiB, third)).toBe(last))).toBe(0);
    hold.release();
  });
});

describe('the arena of a stream', () => {
  test('coalesces a freed block with the one before, the one after, and both', () => {
    using arena = arenaOf(1);
    const [a, b, c] = [1, 2, 3].map(() => arena.allocate(256 * KiB, stream)) as [number, number, number];
    arena.allocate(256 * KiB, stream);
    arena.deallocate(a, 256 * KiB, stream);
    arena.deallocate(c, 256 * KiB, stream);
    arena.deallocate(b, 256 * KiB, stream);
    arena.validate();
    expect(arena.allocate(768 * KiB, stream)).toBe(a);
  });

  test('takes sizes above 1 MiB back without waiting, and reuses them', () => {
    using arena = arenaOf(64);
    using _hold = stream.hold();
    const pointer = arena.allocate(32 * MiB, stream);
    const waited = synchronizations(() => arena.deallocate(pointer, 32 * MiB, stream));
    expect(waited).toBe(0);
    expect(arena.allocate(32 * MiB, stream)).toBe(pointer);
  });

  test('gets the memory of another stream that its own stream frees, without a wait', () => {
    using arena = arenaOf(1);
    using other = new Stream();
    const pointer = arena.allocate(MiB, stream);
    using _hold = other.hold();
    const waited = synchronizations(() => {
      arena.deallocate(pointer, MiB, other);
      expect(arena.allocate(MiB, other)).toBe(pointer);
    });
    expect(waited).toBe(0);
    arena.validate();
  });

  test('records no event for an allocation or a free by default', () => {
    Device.get().synchronizeSync();
    const before = driverCallCounts().eventRecords;
    using arena = arenaOf(1, 'off', new CudaMemoryResource());
    for (let i = 0; i < 10; i++) arena.deallocate(arena.allocate(1000, stream), 1000, stream);
    expect(driverCallCounts().eventRecords).toBe(before);
  });

  test.each(policies)('passes to other streams when its stream ends, with %s events', (policy) => {
    using arena = arenaOf(1, policy);
    const ending = new Stream();
    const pointer = arena.allocate(MiB, ending);
    arena.deallocate(pointer, MiB, ending);
    ending.dispose();
    expect(arena.allocate(MiB, stream)).toBe(pointer);
  });

  test.each(policies)('does not make the global arena wait for it when its stream ends, with %s events', (policy) => {
    using arena = arenaOf(4, policy);
    const ending = new Stream();
    const pointer = arena.allocate(MiB, ending);
    using hold = ending.hold();
    arena.deallocate(pointer, MiB, ending);
    ending.dispose();
    using other = new Stream();
    expect(eventWaits(() => arena.allocate(3 * MiB, other))).toBe(0);
    // The memory that the ended stream left is waited for.
    expect(eventWaits(() => expect(arena.allocate(MiB, other)).toBe(pointer))).toBe(1);
    hold.release();
  });

  test('is counted while its stream lives', () => {
    using arena = arenaOf(4);
    const before = arena.statistics().arenas;
    using first = new Stream();
    const second = new Stream();
    arena.allocate(1, first);
    arena.deallocate(arena.allocate(1, second), 1, second, 'eager');
    expect(arena.statistics().arenas).toBe(before + 2);
    second.dispose();
    expect(arena.statistics().arenas).toBe(before + 1);
  });
});

describe('memory that streams exchange', () => {
  test.each(sharingPolicies)('makes neither the host wait nor the arena defragment while one block will do, with %s events', (policy) => {
    using arena = arenaOf(2, policy);
    using other = new Stream();
    const [first, second] = [arena.allocate(MiB, stream), arena.allocate(MiB, stream)];
    using hold = stream.hold();
    arena.deallocate(first, MiB, stream);
    const waited = synchronizations(() => expect(arena.allocate(MiB, other)).toBe(first));
    expect(waited).toBe(0);
    expect(arena.statistics()).toMatchObject({ reuses: 1, defragmentations: 0 });
    // Neighbours of two streams serve a third only if they coalesce.
    arena.deallocate(first, MiB, other);
    arena.deallocate(second, MiB, stream);
    using third = new Stream();
    expect(synchronizations(() => expect(arena.allocate(2 * MiB, third)).toBe(first))).toBe(0);
    expect(arena.statistics().synchronizations).toBe(0);
    hold.release();
    arena.validate();
  });

  test('makes the host wait without events, and then coalesces', () => {
    using arena = arenaOf(2);
    using a = new Stream();
    using b = new Stream();
    const first = arena.allocate(MiB, a);
    const second = arena.allocate(MiB, b);
    // Keeps the streams busy until they are waited for.
    a.launchHostFunction(() => undefined);
    b.launchHostFunction(() => undefined);
    arena.deallocate(first, MiB, a);
    arena.deallocate(second, MiB, b);
    expect(arena.allocate(2 * MiB, stream)).toBe(first);
    expect(arena.statistics()).toMatchObject({ synchronizations: 2, reuses: 0 });
    arena.validate();
  });

  test('coalesces with memory held by its own stream, which the host does not wait for', () => {
    using arena = arenaOf(2);
    using a = new Stream();
    const first = arena.allocate(MiB, a);
    const second = arena.allocate(MiB, stream);
    arena.deallocate(second, MiB, stream);
    stream.synchronizeSync();
    using hold = a.hold();
    arena.deallocate(first, MiB, a);
    expect(synchronizations(() => expect(arena.allocate(2 * MiB, a)).toBe(first))).toBe(0);
    hold.release();
  });

  test('makes a third stream wait for the first if the second took a superblock of it (rapidsai/rmm#2489)', () => {
    using arena = arenaOf(2, 'deferred', new CudaMemoryResource());
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    const first = arena.allocate(2 * MiB, a);
    using hold = a.hold();
    arena.deallocate(first, 2 * MiB, a);
    arena.defragment();
    // The stream has the rest of a superblock, of which it has freed nothing.
    arena.allocate(256, b);
    arena.allocate(MiB, stream);
    arena.allocate(256, c);
    expectWaiting(c);
    hold.release();
    c.synchronizeSync();
  });

  test('is not waited for if it cannot serve the request', () => {
    using arena = arenaOf(2, 'deferred');
    using a = new Stream();
    using b = new Stream();
    arena.allocate(MiB, stream);
    const pointer = arena.allocate(MiB, a);
    using hold = a.hold();
    arena.deallocate(pointer, MiB, a);
    arena.defragment();
    expect(eventWaits(() => expect(() => arena.allocate(2 * MiB, b)).toThrow(OutOfMemoryError))).toBe(0);
    hold.release();
  });

  test('lets host functions use and dispose things while the host waits', () => {
    using arena = arenaOf(4);
    using a = new Stream();
    const b = new Stream();
    const [first, second, third] = [arena.allocate(MiB, a), arena.allocate(MiB, a), arena.allocate(MiB, b)];
    a.launchHostFunction(() => {
      arena.deallocate(second, MiB, a);
      b.dispose();
    });
    arena.deallocate(first, MiB, a);
    b.launchHostFunction(() => undefined);
    arena.deallocate(third, MiB, b);
    expect(arena.allocate(2 * MiB, stream)).toBeGreaterThan(0);
    arena.validate();
  });

  test('is not lost if the driver fails during an exchange', () => {
    using arena = arenaOf(2, 'deferred');
    using a = new Stream();
    using hold = a.hold();
    arena.deallocate(arena.allocate(2 * MiB, a), 2 * MiB, a);
    failCall('cuEventRecord', 1, 999);
    expect(() => arena.defragment()).toThrow(code('ERR_CISTERN_DRIVER'));
    arena.validate();
    expect(arena.defragment()).toBe(2 * MiB);
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => arena.allocate(MiB, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    arena.validate();
    expect(arena.statistics().allocatedBytes).toBe(0);
    hold.release();
  });
});

describe('defragmenting an arena', () => {
  test('waits without events, returns all free memory, and coalesces it', () => {
    using arena = arenaOf(4);
    using a = new Stream();
    using b = new Stream();
    const first = arena.allocate(2 * MiB, a);
    const second = arena.allocate(MiB, b);
    a.launchHostFunction(() => undefined);
    arena.deallocate(first, 2 * MiB, a);
    arena.deallocate(second, MiB, b);
    expect(synchronizations(() => expect(arena.defragment()).toBe(3 * MiB))).toBeGreaterThan(0);
    expect(arena.statistics()).toMatchObject({ defragmentations: 1, largestFreeBytes: 4 * MiB, synchronizations: 0 });
    expect(arena.defragment()).toBe(0);
  });

  test('returns the free memory of a superblock that is partly used', () => {
    using arena = arenaOf(1);
    arena.allocate(256, stream);
    expect(arena.defragment()).toBe(32 * KiB - 256);
    using other = new Stream();
    expect(arena.allocate(MiB / 2, other)).toBeGreaterThan(0);
    arena.validate();
  });

  test.each(sharingPolicies)('does not wait with %s events, but a stream that takes the memory does', (policy) => {
    using arena = arenaOf(1, policy, new CudaMemoryResource());
    using a = new Stream();
    using b = new Stream();
    const first = arena.allocate(MiB, a);
    using hold = a.hold();
    arena.deallocate(first, MiB, a);
    expect(synchronizations(() => expect(arena.defragment()).toBe(MiB))).toBe(0);
    expect(arena.allocate(MiB, b)).toBe(first);
    expectWaiting(b);
    hold.release();
    b.synchronizeSync();
  });

  test('keeps what to wait for while the events of a lane are recorded again', () => {
    using arena = arenaOf(2, 'eager', new CudaMemoryResource());
    using a = new Stream();
    using b = new Stream();
    const [first, second] = [arena.allocate(MiB, a), arena.allocate(MiB, a)];
    arena.deallocate(first, MiB, a);
    arena.defragment();
    a.synchronizeSync();
    using hold = a.hold();
    arena.deallocate(second, MiB, a);
    // The returned memory does not wait for what its stream freed later.
    expect(eventWaits(() => expect(arena.allocate(MiB, b)).toBe(first))).toBe(0);
    hold.release();
  });

  test('keeps the later of two events of a stream that returned memory twice', () => {
    using arena = arenaOf(2, 'eager', new CudaMemoryResource());
    using a = new Stream();
    using b = new Stream();
    const [first, second] = [arena.allocate(MiB, a), arena.allocate(MiB, a)];
    using earlier = a.hold();
    arena.deallocate(first, MiB, a);
    arena.defragment();
    using later = a.hold();
    arena.deallocate(second, MiB, a);
    arena.defragment();
    arena.allocate(2 * MiB, b);
    earlier.release();
    expectWaiting(b);
    later.release();
  });

  test('returns memory that ended streams left, and a stream that takes it waits for them', () => {
    using arena = arenaOf(1, 'off', new CudaMemoryResource());
    const ending = new Stream();
    using other = new Stream();
    const pointer = arena.allocate(MiB, ending);
    using hold = ending.hold();
    arena.deallocate(pointer, MiB, ending);
    ending.dispose();
    expect(arena.defragment()).toBe(MiB);
    expect(arena.allocate(MiB, other)).toBe(pointer);
    expectWaiting(other);
    hold.release();
    other.synchronizeSync();
  });

  test('in a host function, which must not wait, returns memory that is known to be idle', () => {
    using arena = arenaOf(4);
    using a = new Stream();
    using b = new Stream();
    const first = arena.allocate(2 * MiB, a);
    const second = arena.allocate(MiB, b);
    arena.deallocate(first, 2 * MiB, a);
    arena.deallocate(second, MiB, b);
    b.synchronizeSync();
    {
      using _hold = a.hold();
      arena.deallocate(arena.allocate(1, a), 1, a);
      expect(inHostFunction(() => arena.defragment())).toBe(MiB);
    }
    expect(arena.defragment()).toBe(2 * MiB + 32 * KiB);
  });

  test('works with an arena that a host function uses or disposes during the wait', () => {
    const upstream = new AddressUpstream();
    const arena = arenaOf(4, 'off', upstream);
    using a = new Stream();
    const [first, second] = [arena.allocate(MiB, a), arena.allocate(MiB, a)];
    arena.deallocate(first, MiB, a);
    a.launchHostFunction(() => arena.deallocate(second, MiB, a));
    // Freed during the wait, which does not cover it.
    expect(arena.defragment()).toBe(0);
    expect(arena.defragment()).toBe(2 * MiB);
    arena.deallocate(arena.allocate(MiB, a), MiB, a);
    a.launchHostFunction(() => arena.dispose());
    expect(() => arena.defragment()).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(upstream.liveBytes).toBe(0);
  });
});

describe('an arena and its upstream', () => {
  test('gives the block back only if it is entirely free, and takes it again when needed', () => {
    const upstream = new AddressUpstream();
    using arena = arenaOf(4, 'off', upstream);
    const pointer = arena.allocate(MiB, stream);
    expect(arena.trim(stream)).toBe(0);
    arena.deallocate(pointer, MiB, stream);
    expect(arena.trim(stream, { bytesToKeep: 1 })).toBe(0);
    expect(arena.trim(stream)).toBe(4 * MiB);
    expect(arena.reservedBytes).toBe(0);
    using other = new Stream();
    arena.allocate(MiB, other);
    expect(upstream.asked).toEqual([4 * MiB, 4 * MiB]);
    expect(arena.statistics()).toMatchObject({ growths: 2, releases: 1, superblocks: 2 });
    expect(eventWaits(() => arena.allocate(3 * MiB, stream))).toBeLessThanOrEqual(1);
    expect(() => arena.allocate(1, stream)).toThrow(OutOfMemoryError);
  });

  test('takes as much as there is if the upstream gave the rest to others', () => {
    const upstream = new AddressUpstream();
    using arena = arenaOf(16, 'off', upstream);
    arena.trim(stream);
    upstream.limitBytes = 6 * MiB;
    arena.allocate(3 * MiB, stream);
    expect(upstream.asked).toEqual([16 * MiB, 16 * MiB, 8 * MiB, 4 * MiB]);
    upstream.limitBytes = 16 * MiB;
    arena.allocate(12 * MiB, stream);
    expect(arena.reservedBytes).toBe(16 * MiB);
    arena.validate();
  });

  test('blames the upstream if it has no more memory, but not if it was not asked', () => {
    const upstream = new AddressUpstream();
    using arena = arenaOf(4, 'off', upstream);
    arena.trim(stream);
    upstream.limitBytes = 0;
    expect(() => arena.allocate(MiB, stream)).toThrow(expect.objectContaining({ path: ['ArenaMemoryResource', 'AddressUpstream'] }));
    upstream.limitBytes = 4 * MiB;
    arena.allocate(MiB, stream);
    expect(() => arena.allocate(4 * MiB, stream)).toThrow(expect.objectContaining({ path: ['ArenaMemoryResource'], cause: undefined }));
  });

  test("forgets the upstream's refusal when a request succeeded without it", () => {
    const upstream = new AddressUpstream();
    using arena = arenaOf(4, 'deferred', upstream);
    using other = new Stream();
    arena.trim(stream);
    upstream.limitBytes = 2 * MiB;
    const [first, second] = [arena.allocate(MiB, stream), arena.allocate(MiB, other)];
    arena.deallocate(first, MiB, stream);
    arena.deallocate(second, MiB, other);
    // The upstream refuses, but neighbours of two streams coalesce.
    expect(arena.allocate(2 * MiB, stream)).toBe(first);
    expect(upstream.asked.at(-1)).toBe(2 * MiB);
    expect(() => arena.allocate(5 * MiB, stream)).toThrow(expect.objectContaining({ path: ['ArenaMemoryResource'], cause: undefined }));
  });

  test('leaves what a trim keeps to every stream', () => {
    using arena = arenaOf(4, 'deferred');
    using a = new Stream();
    using b = new Stream();
    arena.allocate(256, a);
    expect(arena.trim(a)).toBe(0);
    expect(arena.allocate(3 * MiB, b)).toBeGreaterThan(0);
    expect(arena.statistics()).toMatchObject({ superblocks: 2, reuses: 0 });
  });

  test.each(policies)('orders its first memory after the stream that it was taken on, with %s events', (policy) => {
    using upstream = new CudaAsyncMemoryResource();
    const legacy = Stream.legacyDefault();
    using hold: StreamHold = legacy.hold();
    const arena = new ArenaMemoryResource(upstream, { arenaBytes: 2 * MiB, deallocationEvents: policy });
    using a = new Stream({ nonBlocking: true });
    arena.allocate(MiB, a);
    expectWaiting(a);
    hold.release();
    a.synchronizeSync();
    expect(eventWaits(() => arena.allocate(MiB, stream))).toBe(0);
    arena.dispose();
  });

  test('keeps memory for which no event could be recorded', () => {
    using hold = Stream.legacyDefault().hold();
    failCall('cuEventRecord', 1, 999);
    using arena = new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: 2 * MiB });
    arena.validate();
    hold.release();
    expect(arena.allocate(2 * MiB, stream)).toBeGreaterThan(0);
  });

  test('takes its block again even if the stream ends during that', () => {
    const upstream = new AddressUpstream();
    using arena = arenaOf(2, 'off', upstream);
    const a = new Stream();
    arena.trim(a);
    upstream.interrupt = () => a.dispose();
    expect(() => arena.allocate(MiB, a)).toThrow(code('ERR_CISTERN_DISPOSED'));
    arena.validate();
    expect(arena.allocate(2 * MiB, stream)).toBeGreaterThan(0);
    expect(upstream.asked).toEqual([2 * MiB, 2 * MiB]);
  });

  test('does not exceed its size if it is used while it takes its block', () => {
    const upstream = new AddressUpstream();
    using arena = arenaOf(2, 'off', upstream);
    arena.trim(stream);
    upstream.interrupt = () => expect(() => arena.allocate(MiB, stream)).toThrow(OutOfMemoryError);
    arena.allocate(MiB, stream);
    expect(upstream.liveBytes).toBe(2 * MiB);
  });

  test('gives the block back if it was disposed in the meantime', () => {
    const upstream = new AddressUpstream();
    const arena = arenaOf(2, 'off', upstream);
    arena.trim(stream);
    upstream.interrupt = () => arena.dispose();
    expect(() => arena.allocate(MiB, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(upstream.liveBytes).toBe(0);
  });
});

describe('an arena that is out of memory', () => {
  function exhausted(dumpFile?: string): ArenaMemoryResource {
    const arena = new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: 4 * MiB, ...(dumpFile === undefined ? {} : { dumpFile }) });
    const pointers = Array.from({ length: 8 }, () => arena.allocate(MiB / 2, stream));
    for (const pointer of [pointers[1], pointers[4], pointers[5]]) arena.deallocate(pointer as number, MiB / 2, stream);
    return arena;
  }

  test('says how much memory it had', () => {
    using arena = exhausted();
    expect(() => arena.allocate(2 * MiB, stream)).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_OUT_OF_MEMORY',
        requestedBytes: 2 * MiB,
        availableBytes: MiB,
        limitBytes: 4 * MiB,
        path: ['ArenaMemoryResource'],
        message:
          "the ArenaMemoryResource is out of memory: 2 MiB (2097152 bytes) were asked for; of the arena's 4 MiB, 1.50 MiB are free; the largest free block has 1 MiB (fragmentation 33.3 %)",
      }),
    );
  });

  test('shows its state', () => {
    using arena = exhausted();
    using other = new Stream();
    arena.deallocate(arena.allocate(MiB, other), MiB, other, 'eager');
    expect(() => arena.allocate(2 * MiB, other)).toThrow(OutOfMemoryError);
    const legacy = `stream ${Stream.legacyDefault().id}, held`;
    const lines = arena.dump().replaceAll(/ +/g, ' ').split('\n');
    expect(lines).toEqual([
      'arena of 4 MiB: 4 MiB held in 1 block of the upstream',
      'allocated: 2.50 MiB in 5 blocks',
      'refused last: 2 MiB (2097152 bytes)',
      '',
      ' free largest ranges fragmentation',
      'global arena 1.50 MiB 1 MiB 2 33.3 %',
      'ended streams 0 B 0 B 0 0.0 %',
      `${legacy} 0 B 0 B 0 0.0 %`,
      `stream ${stream.id}, held 0 B 0 B 0 0.0 %`,
      `stream ${other.id}, held 0 B 0 B 0 0.0 %`,
      `stream ${other.id} 0 B 0 B 0 0.0 %`,
      '',
      '[########........################................################]',
      'each character is 64 KiB: # allocated, . free, + both',
      '',
    ]);
  });

  test('shows cells that are partly used, and aligns its columns', () => {
    using arena = arenaOf(64);
    const front = arena.allocate(512 * KiB, stream);
    arena.allocate(MiB, stream);
    arena.deallocate(front, 512 * KiB, stream);
    const lines = arena.dump().split('\n');
    expect(lines.find((line) => line.startsWith('['))).toBe(`[++${'.'.repeat(62)}]`);
    const table = lines.slice(lines.indexOf('') + 1, lines.indexOf('', lines.indexOf('') + 1));
    expect(new Set(table.map((line) => line.length)).size).toBe(1);
  });

  test('shows an arena that holds nothing', () => {
    using arena = arenaOf(1);
    arena.trim(stream);
    expect(arena.dump()).toContain('arena of 1 MiB: 0 B held in 0 blocks');
  });

  test('appends its dump to a file if asked to', () => {
    const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
    try {
      const dumpFile = join(folder, 'arena.txt');
      using arena = exhausted(dumpFile);
      for (const mebibytes of [2, 3]) expect(() => arena.allocate(mebibytes * MiB, stream)).toThrow(OutOfMemoryError);
      const text = readFileSync(dumpFile, 'utf8');
      expect(text.match(/refused last: . MiB/g)).toEqual(['refused last: 2 MiB', 'refused last: 3 MiB']);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('warns if the file cannot be written, and still throws the out-of-memory error', async () => {
    using arena = exhausted(join(tmpdir(), 'no-such-folder', 'arena.txt'));
    const warned = new Promise<Error & { code?: string }>((resolve) => process.once('warning', resolve));
    expect(() => arena.allocate(2 * MiB, stream)).toThrow(OutOfMemoryError);
    expect(await warned).toMatchObject({ code: 'CISTERN_ARENA_DUMP' });
  });
});

describe('an arena whose memory is scarce', () => {
  /** An arena of 8 MiB that has run out before, of which 4 MiB are used, in pieces of 1 MiB. */
  function scarce(deallocationEvents: DeallocationEvents = 'off') {
    const arena = arenaOf(8, deallocationEvents);
    const pointers = Array.from({ length: 8 }, () => arena.allocate(MiB, stream));
    expect(() => arena.allocate(MiB, stream)).toThrow(OutOfMemoryError);
    for (const pointer of pointers.slice(0, 4)) arena.deallocate(pointer, MiB, stream);
    return { arena, pointers };
  }

  test('reuses close fits of its own stream at once', () => {
    const { arena, pointers } = scarce();
    using _arena = arena;
    arena.deallocate(pointers[5] as number, MiB, stream);
    using _hold = stream.hold();
    const { defragmentations } = arena.statistics();
    for (const bytes of [MiB, MiB - 32 * KiB]) {
      const pointer = arena.allocate(bytes, stream);
      expect(pointer).toBe(pointers[5]);
      arena.deallocate(pointer, bytes, stream);
    }
    expect(arena.statistics().defragmentations).toBe(defragmentations);
  });

  test.each(policies)('returns free memory before a stream splits a larger block, with %s events', (policy) => {
    const { arena, pointers } = scarce(policy);
    using _arena = arena;
    using other = new Stream();
    // Returns all free memory.
    expect(arena.allocate(2 * MiB, other)).toBe(pointers[0]);
    arena.deallocate(pointers[0] as number, 2 * MiB, stream);
    arena.deallocate(pointers[6] as number, MiB, other);
    const { defragmentations } = arena.statistics();
    // Of 4 MiB of this stream and 1 MiB of the other one.
    other.synchronizeSync();
    expect(arena.allocate(MiB / 2, stream)).toBe(pointers[6]);
    expect(arena.statistics()).toMatchObject({ synchronizations: 0 });
    expect(arena.statistics().defragmentations).toBeGreaterThan(defragmentations);
    arena.validate();
  });

  test('is plentiful again when most of it was freed', () => {
    const { arena, pointers } = scarce();
    using _arena = arena;
    for (const pointer of pointers.slice(4, 7)) arena.deallocate(pointer, MiB, stream);
    const { defragmentations } = arena.statistics();
    arena.allocate(MiB / 2, stream);
    expect(arena.statistics().defragmentations).toBe(defragmentations);
  });

  test('leaves memory where it is if the driver refuses an event for it', () => {
    const { arena } = scarce();
    using _arena = arena;
    using hold = stream.hold();
    failCall('cuEventRecord', 1, 999);
    expect(arena.allocate(MiB / 2, stream)).toBeGreaterThan(0);
    arena.validate();
    hold.release();
  });

  test('disposes the events that a later one of the same stream replaces', () => {
    const { arena } = scarce();
    using _arena = arena;
    using hold = stream.hold();
    const disposed = vi.spyOn(Event.prototype, 'dispose');
    const { eventRecords } = driverCallCounts();
    for (let i = 0; i < 100; i++) {
      const bytes = MiB / 2 + i * 4 * KiB;
      arena.deallocate(arena.allocate(bytes, stream), bytes, stream);
    }
    const recorded = driverCallCounts().eventRecords - eventRecords;
    expect(recorded).toBeGreaterThan(10);
    expect(disposed.mock.calls.length).toBeGreaterThanOrEqual(recorded - 1);
    disposed.mockRestore();
    hold.release();
  });
});

describe('any steps on several streams', () => {
  test.each(policies)('agree with a naive model with %s events', (deallocationEvents) => {
    const streams = [new Stream(), new Stream(), new Stream()];
    const step = fc.record({
      kind: fc.constantFrom('allocate', 'allocate', 'allocate', 'free', 'free', 'trim', 'defragment', 'renew', 'synchronize'),
      bytes: fc.oneof(fc.integer({ min: 1, max: 3000 }), fc.integer({ min: 1, max: 2 * MiB })),
      on: fc.nat({ max: 2 }),
      pick: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60, size: 'max' }), (steps) => {
        const upstream = new AddressUpstream();
        const arena = arenaOf(6, deallocationEvents, upstream);
        const live: { pointer: number; bytes: number }[] = [];
        for (const { kind, bytes, on, pick } of steps) {
          const current = streams[on] as Stream;
          if (kind === 'allocate') {
            try {
              const pointer = arena.allocate(bytes, current);
              for (const range of live) expect(pointer >= range.pointer + range.bytes || pointer + bytes <= range.pointer).toBe(true);
              live.push({ pointer, bytes });
            } catch (error) {
              expect(error).toBeInstanceOf(OutOfMemoryError);
            }
          } else if (kind === 'free' && live.length > 0) {
            const [range] = live.splice(pick % live.length, 1) as [{ pointer: number; bytes: number }];
            arena.deallocate(range.pointer, range.bytes, current);
          } else if (kind === 'trim') arena.trim(current);
          else if (kind === 'defragment') arena.defragment();
          else if (kind === 'renew') {
            current.dispose();
            streams[on] = new Stream();
          } else current.synchronizeSync();
          arena.validate();
          expect(arena.reservedBytes).toBe(upstream.liveBytes);
          expect(arena.reservedBytes).toBeLessThanOrEqual(arena.arenaBytes);
          expect(arena.statistics().allocatedBytes).toBe(live.reduce((sum, range) => sum + Math.ceil(range.bytes / 256) * 256, 0));
        }
        for (const { pointer, bytes } of live) arena.deallocate(pointer, bytes, streams[0] as Stream);
        // Everything that was split has coalesced again.
        expect(arena.allocate(6 * MiB, streams[1] as Stream)).toBeGreaterThan(0);
        arena.dispose();
        expect(upstream.liveBytes).toBe(0);
      }),
      { numRuns: 60 },
    );
  });
});

describe('an arena for many streams', () => {
  test.each([5, 25, 100, 199])(
    'finds memory whose stream is known to be idle, however many others have none: stream %s of 200',
    (place) => {
      const count = 200;
      using arena = new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: (count + 4) * MiB });
      const streams = Array.from({ length: count }, () => new Stream());
      for (const each of streams) arena.allocate(MiB, each);
      const owner = streams[place] as Stream;
      arena.deallocate(arena.allocate(4 * MiB, owner), 4 * MiB, owner);
      Device.get().synchronizeSync();
      expect(arena.allocate(4 * MiB, stream)).toBeGreaterThan(0);
      arena.validate();
      for (const each of streams) each.dispose();
    },
  );

  test.each([2 ** 39 - 256, 2 ** 39 - 2 ** 19])(
    'has no room for %s bytes, which are more than a block can have in whole superblocks',
    (bytes) => {
      using arena = new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: 4 * MiB });
      expect(() => arena.allocate(bytes, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
      arena.validate();
      expect(arena.statistics().allocatedBytes).toBe(0);
    },
  );

  test.each([2 ** 39, 2 ** 40])('finds the only address at a multiple of %s', (alignment) => {
    using arena = new ArenaMemoryResource(new AddressUpstream(), { arenaBytes: 4 * MiB });
    expect(arena.allocate(256, stream, alignment) % alignment).toBe(0);
    expect(() => arena.allocate(256, stream, alignment)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    arena.validate();
  });
});
