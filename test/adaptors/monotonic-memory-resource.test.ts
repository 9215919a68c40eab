import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CudaMemoryResource,
  createResourceStack,
  Device,
  KiB,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  type MonotonicMark,
  MonotonicMemoryResource,
  type MonotonicMemoryResourceOptions,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
} from '../../src/index.js';
import { code } from '../support/errors.js';
import { policies } from '../support/stream-order.js';

const stream = new Stream();

/** An upstream of a given size. It remembers its calls, and can call back before a call returns. */
class BoundedUpstream implements MemoryResource {
  readonly memoryKind = 'device';
  readonly device = Device.get();
  readonly asked: number[] = [];
  liveBytes = 0;
  /** Called once, by the next call. */
  meanwhile: (() => void) | undefined;
  refusesFrees = false;
  readonly #limitBytes: number;
  readonly #cuda = new CudaMemoryResource();

  constructor(limitBytes = 1024 * MiB) {
    this.#limitBytes = limitBytes;
  }

  allocate(bytes: number, on: Stream, alignment?: number): number {
    this.asked.push(bytes);
    if (this.liveBytes + bytes > this.#limitBytes) {
      this.#interrupt();
      throw new OutOfMemoryError('bounded', { requestedBytes: bytes, path: ['BoundedUpstream'] });
    }
    const pointer = this.#cuda.allocate(bytes, on, alignment);
    this.liveBytes += bytes;
    this.#interrupt();
    return pointer;
  }

  deallocate(pointer: number, bytes: number, on: Stream): void {
    if (this.refusesFrees) throw new Error('refused');
    this.#cuda.deallocate(pointer, bytes, on);
    this.liveBytes -= bytes;
    this.#interrupt();
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}

  #interrupt(): void {
    const { meanwhile } = this;
    this.meanwhile = undefined;
    meanwhile?.();
  }
}

function scratchOn(upstream: MemoryResource = new CudaMemoryResource(), options?: MonotonicMemoryResourceOptions) {
  return new MonotonicMemoryResource(upstream, options);
}

describe('a monotonic resource', () => {
  test.each([
    [{ initialBytes: 0 }, 'initialBytes must be at least 1, got 0'],
    [{ initialBytes: -1 }, 'initialBytes must be an integer from 0 to 2^53 - 1, got -1'],
    [{ growthFactor: 0.5 }, 'growthFactor must be from 1 to 64, got 0.5'],
    [{ growthFactor: Number.NaN }, 'growthFactor must be from 1 to 64, got NaN'],
    [{ growthFactor: '2' as unknown as number }, 'growthFactor must be a number, got "2"'],
    [{ maximumBytes: 1.5 }, 'maximumBytes must be an integer from 0 to 2^53 - 1, got 1.5'],
    [{ fallback: {} as MemoryResource }, 'fallback must be a MemoryResource, got an instance of Object'],
    [{ deallocationEvents: 'lazy' as 'off' }, "deallocationEvents must be 'eager', 'deferred', 'off', got \"lazy\""],
  ])('refuses %o', (options, message) => {
    expect(() => scratchOn(undefined, options)).toThrow(message);
  });

  test('refuses a fallback on another device', () => {
    const fallback = new CudaMemoryResource({ device: Device.get(1) });
    expect(() => scratchOn(undefined, { fallback })).toThrow('fallback must belong to device 0, as the upstream does, got one of device 1');
  });

  test('takes nothing before the first allocation, then a block for each stream', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream);
    using other = new Stream();
    expect(upstream.asked).toEqual([]);
    for (const each of [stream, other, stream, other]) scratch.allocate(MiB, each);
    expect(upstream.asked).toEqual([2 * MiB, 2 * MiB]);
  });

  test('takes blocks that grow by its factor, and larger ones for larger requests', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: 1000, growthFactor: 3 });
    scratch.allocate(1, stream);
    scratch.allocate(1024, stream);
    scratch.allocate(MiB + 1, stream);
    scratch.allocate(256, stream);
    expect(upstream.asked).toEqual([1024, 3072, MiB + 256, 3 * (MiB + 256)]);
  });

  test('never exceeds its maximum, and uses all of it if needed', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB, maximumBytes: 10 * MiB + 100 });
    for (let i = 0; i < 10; i++) scratch.allocate(MiB, stream);
    expect(upstream.asked).toEqual([MiB, 2 * MiB, 4 * MiB, 3 * MiB]);
    expect(() => scratch.allocate(1, stream)).toThrow(
      expect.objectContaining({ requestedBytes: 1, limitBytes: 10 * MiB, path: ['MonotonicMemoryResource'] }),
    );
    expect(scratch.statistics()).toMatchObject({ reservedBytes: 10 * MiB, usedBytes: 10 * MiB });
  });

  test('backs off, down to what is needed, while the upstream refuses', () => {
    const upstream = new BoundedUpstream(5 * MiB);
    using scratch = scratchOn(upstream, { initialBytes: 4 * MiB });
    scratch.allocate(4 * MiB, stream);
    scratch.allocate(100, stream);
    expect(upstream.asked).toEqual([4 * MiB, 8 * MiB, 4 * MiB, 2 * MiB, MiB]);
    expect(() => scratch.allocate(2 * MiB, stream)).toThrow(
      expect.objectContaining({ path: ['MonotonicMemoryResource', 'BoundedUpstream'] }),
    );
  });

  test('does not blame the upstream if only its maximum is in the way', () => {
    const upstream = new BoundedUpstream(MiB);
    using scratch = scratchOn(upstream, { initialBytes: MiB, growthFactor: 1, maximumBytes: 2 * MiB, deallocationEvents: 'off' });
    using other = new Stream();
    scratch.allocate(MiB, other);
    other.launchHostFunction(() => undefined);
    scratch.reset();
    scratch.allocate(MiB, stream);
    expect(upstream.asked).toEqual([MiB, MiB]);
    expect(() => scratch.allocate(3 * MiB, stream)).toThrow(
      expect.objectContaining({
        message: expect.stringContaining('1 MiB are reserved, 1 MiB of them used, none is left, and its maximum is 2 MiB'),
        path: ['MonotonicMemoryResource'],
      }),
    );
  });

  test('returns addresses one after another, rounded up to 256 bytes', () => {
    using scratch = scratchOn();
    const pointers = [1, 256, 257, 1000].map((bytes) => scratch.allocate(bytes, stream));
    const first = pointers[0] as number;
    expect(pointers).toEqual([first, first + 256, first + 512, first + 1024]);
    expect(scratch.statistics().usedBytes).toBe(2048);
  });

  test.each([512, 4096, 64 * KiB, 4 * MiB])('returns multiples of %i', (alignment) => {
    using scratch = scratchOn();
    scratch.allocate(256, stream);
    const pointers = [0, 1, 2].map(() => scratch.allocate(1000, stream, alignment));
    expect(pointers.map((pointer) => pointer % alignment)).toEqual([0, 0, 0]);
    expect(new Set(pointers).size).toBe(3);
    scratch.validate();
  });

  test('frees nothing by single frees', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB, maximumBytes: MiB });
    const pointer = scratch.allocate(MiB, stream);
    scratch.deallocate(pointer, MiB, stream);
    expect(() => scratch.allocate(1, stream)).toThrow(OutOfMemoryError);
    scratch.reset();
    expect(scratch.allocate(MiB, stream)).toBe(pointer);
  });

  test('refuses frees that are detectably wrong', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB });
    const older = scratch.allocate(MiB, stream);
    const mark = scratch.mark();
    scratch.allocate(4096, stream);
    scratch.rewind(mark);
    const pointer = scratch.allocate(4096, stream);
    for (const block of [older, pointer]) {
      expect(() => scratch.deallocate(block, 0, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
      expect(() => scratch.deallocate(block, MiB + 1, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
      expect(() => scratch.deallocate(block + 1, 1, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
      scratch.deallocate(block, 4096, stream);
    }
    expect(() => scratch.deallocate(pointer + 4096, 4096, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    expect(() => scratch.deallocate(4096, 4096, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    scratch.reset();
    expect(() => scratch.deallocate(pointer, 4096, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    scratch.deallocate(0, 4096, stream);
  });

  test('accepts a free on another stream, in an older block too', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB });
    using other = new Stream();
    const pointers = [0, 1, 2].map(() => scratch.allocate(MiB, stream));
    for (const pointer of pointers) scratch.deallocate(pointer, MiB, other);
    scratch.validate();
  });

  test('reports its statistics', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB });
    const mark = scratch.mark();
    scratch.allocate(1000, stream);
    scratch.rewind(mark);
    scratch.allocate(MiB, stream);
    scratch.reset();
    scratch.allocate(100, stream);
    const statistics = scratch.statistics();
    expect(statistics).toMatchObject({
      reservedBytes: MiB,
      usedBytes: 256,
      growths: 1,
      rewinds: 2,
      fallbackAllocations: 0,
      fallbackBytes: 0,
    });
    expect(Object.isFrozen(statistics)).toBe(true);
  });
});

describe('a mark', () => {
  test('frees by a rewind what was allocated since, on all streams, and nothing else', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB });
    using other = new Stream();
    using late = new Stream();
    const kept = scratch.allocate(MiB / 2, stream);
    const mark = scratch.mark();
    const first = [stream, other, late].map((each) => scratch.allocate(MiB / 2, each));
    scratch.allocate(4 * MiB, stream);
    scratch.rewind(mark);
    expect(scratch.statistics().usedBytes).toBe(MiB / 2);
    expect([stream, other, late].map((each) => scratch.allocate(MiB / 2, each))).toEqual(first);
    expect(first).not.toContain(kept);
    scratch.validate();
  });

  test('can be rewound to repeatedly, without a call of the upstream', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB });
    const mark = scratch.mark();
    for (let i = 0; i < 100; i++) {
      for (let j = 0; j < 8; j++) scratch.allocate(MiB / 4, stream);
      scratch.rewind(mark);
    }
    expect(upstream.asked).toEqual([MiB, 2 * MiB]);
  });

  test('leaves the block that is large enough with the stream, not its first block', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB });
    const mark = scratch.mark();
    scratch.allocate(256, stream);
    scratch.rewind(mark);
    for (let i = 0; i < 3; i++) {
      scratch.allocate(4 * MiB, stream);
      expect(scratch.statistics().usedBytes).toBe(4 * MiB);
      scratch.rewind(mark);
    }
    expect(scratch.statistics().largestFreeBytes).toBe(MiB);
  });

  test('nests: a rewind to one drops those after it, and keeps those before it', () => {
    using scratch = scratchOn();
    const [outer, middle, inner] = [0, 1, 2].map(() => {
      const mark = scratch.mark();
      scratch.allocate(256, stream);
      return mark;
    }) as [MonotonicMark, MonotonicMark, MonotonicMark];
    scratch.rewind(middle);
    expect([outer, middle, inner].map(({ isStanding }) => isStanding)).toEqual([true, true, false]);
    scratch.allocate(256, stream);
    expect(() => scratch.rewind(inner)).toThrow(
      'cannot rewind to mark 3: the MonotonicMemoryResource was rewound to an earlier mark, or reset, since it was made',
    );
    expect(() => scratch.rewind(inner)).toThrow(code('ERR_CISTERN_INVALID_STATE'));
    expect(scratch.statistics().usedBytes).toBe(512);
    scratch.rewind(outer);
    expect(scratch.statistics().usedBytes).toBe(0);
    expect(() => scratch.rewind(middle)).toThrow(code('ERR_CISTERN_INVALID_STATE'));
  });

  test('is the same one while nothing is allocated, so that marks do not pile up in a loop', () => {
    using scratch = scratchOn();
    scratch.allocate(256, stream);
    const mark = scratch.mark();
    scratch.allocate(256, stream);
    scratch.rewind(mark);
    expect(scratch.mark()).toBe(mark);
    scratch.allocate(256, stream);
    expect(scratch.mark()).not.toBe(mark);
  });

  test("is the same one while none of the fallback's allocations since is live", () => {
    const fallback = new BoundedUpstream();
    using scratch = scratchOn(undefined, { maximumBytes: 0, fallback });
    scratch.allocate(256, stream);
    const mark = scratch.mark();
    for (let i = 0; i < 3; i++) {
      scratch.allocate(256, stream);
      scratch.rewind(mark);
      expect(scratch.mark()).toBe(mark);
      const pointer = scratch.allocate(256, stream);
      scratch.deallocate(pointer, 256, stream);
      expect(scratch.mark()).toBe(mark);
    }
    scratch.allocate(256, stream);
    expect(scratch.mark()).not.toBe(mark);
  });

  test('rewinds at the end of a scope that uses it, if it still stands', () => {
    using scratch = scratchOn();
    {
      using _frame = scratch.mark();
      scratch.allocate(256, stream);
      {
        using _inner = scratch.mark();
        scratch.allocate(256, stream);
      }
      expect(scratch.statistics().usedBytes).toBe(256);
    }
    expect(scratch.statistics().usedBytes).toBe(0);
    using _fallen = scratch.mark();
    scratch.allocate(256, stream);
    scratch.reset();
    scratch.allocate(512, stream);
    expect(_fallen.isStanding).toBe(false);
    _fallen[Symbol.dispose]();
    expect(scratch.statistics().usedBytes).toBe(512);
  });

  test.each(['reset', 'release', 'dispose'] as const)('no longer stands after a %s', (what) => {
    using scratch = scratchOn();
    scratch.allocate(256, stream);
    const mark = scratch.mark();
    if (what === 'release') scratch.release(stream);
    else scratch[what]();
    expect(mark.isStanding).toBe(false);
    expect(() => scratch.rewind(mark)).toThrow(code(what === 'dispose' ? 'ERR_CISTERN_DISPOSED' : 'ERR_CISTERN_INVALID_STATE'));
  });

  test('must belong to the same resource', () => {
    using scratch = scratchOn();
    using other = scratchOn();
    expect(() => scratch.rewind(other.mark())).toThrow(ArgumentRangeError);
    for (const mark of [undefined, 1, {}] as MonotonicMark[]) expect(() => scratch.rewind(mark)).toThrow(ArgumentTypeError);
  });

  test('cannot be made from a disposed resource', () => {
    const scratch = scratchOn();
    scratch.dispose();
    expect(() => scratch.mark()).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(() => scratch.reset()).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(() => scratch.release(stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    scratch.dispose();
  });
});

describe('the blocks of a monotonic resource', () => {
  test('are kept by a reset, and given back by a release', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB });
    for (let i = 0; i < 3; i++) scratch.allocate(MiB, stream);
    scratch.reset();
    expect([upstream.liveBytes, scratch.statistics().usedBytes]).toEqual([3 * MiB, 0]);
    scratch.allocate(2 * MiB, stream);
    expect(scratch.release(stream)).toBe(3 * MiB);
    expect([upstream.liveBytes, scratch.reservedBytes]).toEqual([0, 0]);
    scratch.allocate(1, stream);
    expect(upstream.asked).toEqual([MiB, 2 * MiB, MiB]);
  });

  test('are given back by a trim if nothing is allocated in them', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB });
    using other = new Stream();
    const mark = scratch.mark();
    scratch.allocate(MiB, other);
    scratch.allocate(MiB, stream);
    scratch.allocate(MiB, stream);
    expect(scratch.trim(stream)).toBe(0);
    scratch.rewind(mark);
    scratch.allocate(MiB, other);
    expect(scratch.trim(stream)).toBe(3 * MiB);
    expect(upstream.liveBytes).toBe(MiB);
    expect(() => scratch.trim({} as Stream)).toThrow(ArgumentTypeError);
    scratch.validate();
  });

  test.each(policies)('go back to the upstream if they are too small and a larger one is needed, under %s', (deallocationEvents) => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB, growthFactor: 1, maximumBytes: 4 * MiB, deallocationEvents });
    using other = new Stream();
    const mark = scratch.mark();
    for (const each of [stream, other, stream, other]) scratch.allocate(MiB, each);
    scratch.rewind(mark);
    scratch.allocate(3 * MiB, stream);
    expect(upstream.liveBytes).toBeLessThanOrEqual(4 * MiB);
    scratch.validate();
  });

  test('of two streams are skipped by a third, which takes one that is large enough', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB, maximumBytes: 3 * MiB });
    using other = new Stream();
    scratch.allocate(2 * MiB, other);
    scratch.allocate(MiB, stream);
    scratch.reset();
    using third = new Stream();
    scratch.allocate(2 * MiB, third);
    scratch.allocate(MiB, third);
    expect(scratch.statistics()).toMatchObject({ growths: 2, reuses: 2 });
  });

  test('of a stream that has ended serve others after a rewind', () => {
    using scratch = scratchOn(undefined, { initialBytes: MiB });
    const ended = new Stream();
    const mark = scratch.mark();
    scratch.allocate(MiB, ended);
    ended.dispose();
    scratch.rewind(mark);
    scratch.allocate(MiB, stream);
    expect(scratch.statistics()).toMatchObject({ growths: 1, reuses: 1 });
  });

  test("are kept by a release that the upstream refuses, though everything is rewound and the fallback's memory is freed", () => {
    const upstream = new BoundedUpstream();
    const fallback = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB, maximumBytes: MiB, fallback });
    const mark = scratch.mark();
    scratch.allocate(MiB, stream);
    scratch.allocate(MiB, stream);
    upstream.refusesFrees = true;
    expect(() => scratch.release(stream)).toThrow('refused');
    expect(mark.isStanding).toBe(false);
    expect(scratch.statistics()).toMatchObject({ reservedBytes: MiB, usedBytes: 0, allocatedBytes: 0, fallbackBytes: 0 });
    expect(fallback.liveBytes).toBe(0);
    upstream.refusesFrees = false;
    expect(scratch.release(stream)).toBe(MiB);
  });

  test('all go back on disposal', () => {
    const upstream = new BoundedUpstream();
    const scratch = scratchOn(upstream, { initialBytes: MiB });
    const ended = new Stream();
    for (const each of [stream, ended, stream]) scratch.allocate(MiB, each);
    ended.dispose();
    scratch.dispose();
    scratch.dispose();
    expect([upstream.liveBytes, scratch.reservedBytes]).toEqual([0, 0]);
    scratch.validate();
  });
});

describe('a fallback', () => {
  test('is among the layers of the resource', () => {
    const fallback = new CudaMemoryResource();
    using scratch = scratchOn(undefined, { fallback });
    expect(scratch.alternates).toEqual([fallback]);
    expect('alternates' in scratchOn()).toBe(false);
  });

  test('serves what the maximum leaves no room for, and gets its memory back', () => {
    const fallback = new BoundedUpstream();
    using scratch = scratchOn(undefined, { maximumBytes: MiB, fallback });
    scratch.allocate(MiB, stream);
    const [large, small] = [scratch.allocate(3 * MiB, stream), scratch.allocate(1000, stream)];
    expect(fallback.asked).toEqual([3 * MiB, 1000]);
    expect(scratch.statistics()).toMatchObject({ reservedBytes: MiB, fallbackAllocations: 2, fallbackBytes: 3 * MiB + 1000 });
    expect(() => scratch.deallocate(small, 1001, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    scratch.deallocate(large, 3 * MiB, stream);
    scratch.deallocate(small, 1000, stream);
    expect(fallback.liveBytes).toBe(0);
    expect(() => scratch.deallocate(small, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
  });

  test('serves if the upstream is out of memory', () => {
    const fallback = new BoundedUpstream();
    using scratch = scratchOn(new BoundedUpstream(MiB), { initialBytes: MiB, fallback });
    scratch.allocate(MiB, stream);
    scratch.allocate(256, stream);
    expect(fallback.liveBytes).toBe(256);
  });

  test('is rewound: its memory is freed if it was allocated since the mark', () => {
    const fallback = new BoundedUpstream();
    const scratch = scratchOn(undefined, { maximumBytes: 0, fallback });
    const kept = scratch.allocate(1 * KiB, stream);
    const mark = scratch.mark();
    const freed = scratch.allocate(2 * KiB, stream);
    scratch.allocate(4 * KiB, stream);
    scratch.deallocate(freed, 2 * KiB, stream);
    scratch.rewind(mark);
    expect(fallback.liveBytes).toBe(1 * KiB);
    scratch.allocate(8 * KiB, stream);
    scratch.reset();
    expect(fallback.liveBytes).toBe(0);
    expect(() => scratch.deallocate(kept, 1 * KiB, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    scratch.allocate(16 * KiB, stream);
    scratch.dispose();
    expect(fallback.liveBytes).toBe(0);
  });

  test('gets memory of an ended stream back after all queued work', () => {
    const fallback = new PoolMemoryResource(new CudaMemoryResource());
    using scratch = scratchOn(undefined, { maximumBytes: 0, fallback });
    const ended = new Stream();
    scratch.allocate(MiB, ended);
    ended.dispose();
    scratch.reset();
    expect(scratch.statistics()).toMatchObject({ fallbackBytes: 0, synchronizations: 1 });
    fallback.dispose();
  });

  test('gets memory of several ended streams back after a single wait, even if one ends during it', () => {
    const fallback = new BoundedUpstream();
    using scratch = scratchOn(undefined, { maximumBytes: 0, fallback });
    const streams = Array.from({ length: 6 }, () => new Stream());
    for (const each of streams) scratch.allocate(MiB, each);
    for (const each of streams.slice(0, 3)) each.dispose();
    fallback.meanwhile = () => streams.at(-1)?.dispose();
    scratch.reset();
    expect(scratch.statistics()).toMatchObject({ fallbackBytes: 0, synchronizations: 1 });
    for (const each of streams) each.dispose();
  });

  test('is in the path of the error if it is also out of memory', () => {
    using scratch = scratchOn(undefined, { maximumBytes: 0, fallback: new BoundedUpstream(0) });
    expect(() => scratch.allocate(256, stream)).toThrow(
      expect.objectContaining({ requestedBytes: 256, path: ['MonotonicMemoryResource', 'BoundedUpstream'] }),
    );
  });

  test('that refuses a free is asked again at the next rewind', () => {
    const fallback = new BoundedUpstream();
    const scratch = scratchOn(undefined, { maximumBytes: MiB, fallback });
    const pointer = scratch.allocate(2 * MiB, stream);
    scratch.allocate(256, stream);
    fallback.refusesFrees = true;
    expect(() => scratch.deallocate(pointer, 2 * MiB, stream)).toThrow('refused');
    expect(() => scratch.reset()).toThrow('refused');
    expect(scratch.statistics()).toMatchObject({ usedBytes: 0, fallbackBytes: 2 * MiB });
    expect(() => scratch.dispose()).toThrow('refused');
    expect(scratch.reservedBytes).toBe(0);
    fallback.refusesFrees = false;
    scratch.dispose();
    expect(fallback.liveBytes).toBe(0);
  });

  test('does not get memory twice if its own calls rewind', () => {
    const fallback = new BoundedUpstream();
    using scratch = scratchOn(undefined, { maximumBytes: 0, fallback });
    const pointer = scratch.allocate(MiB, stream);
    scratch.allocate(2 * MiB, stream);
    fallback.meanwhile = () => scratch.reset();
    scratch.reset();
    expect(fallback.liveBytes).toBe(0);
    fallback.meanwhile = () => expect(() => scratch.deallocate(pointer, MiB, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    scratch.allocate(MiB, stream);
    fallback.meanwhile = () => scratch.dispose();
    expect(() => scratch.allocate(MiB, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(fallback.liveBytes).toBe(0);
  });
});

describe('a monotonic resource whose upstream runs host functions', () => {
  test.each(['rewind', 'reset'])('serves the allocation even if it is %s in the meantime', (what) => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB });
    const mark = scratch.mark();
    scratch.allocate(MiB, stream);
    upstream.meanwhile = () => (what === 'rewind' ? scratch.rewind(mark) : scratch.reset());
    expect(scratch.allocate(MiB, stream)).toBeGreaterThan(0);
    expect(scratch.statistics().usedBytes).toBe(MiB);
    scratch.validate();
  });

  test('serves it even if another stream uses it in the meantime, and stays within the maximum', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { initialBytes: MiB, maximumBytes: 3 * MiB });
    using other = new Stream();
    upstream.meanwhile = () => {
      scratch.allocate(2 * MiB, other);
      expect(() => scratch.allocate(MiB, other)).toThrow(OutOfMemoryError);
    };
    scratch.allocate(MiB, stream);
    expect(upstream.liveBytes).toBe(3 * MiB);
    scratch.validate();
  });

  test('gives back only what is free on the requesting stream, if another is served while the upstream refuses', () => {
    const upstream = new BoundedUpstream(3 * MiB);
    using scratch = scratchOn(upstream, { initialBytes: MiB, growthFactor: 1 });
    using other = new Stream();
    scratch.allocate(MiB, stream);
    scratch.reset();
    upstream.meanwhile = () => scratch.allocate(MiB, other);
    expect(() => scratch.allocate(3 * MiB, stream)).toThrow(OutOfMemoryError);
    scratch.validate();
    expect(scratch.statistics().usedBytes).toBe(MiB);
    scratch.allocate(MiB, stream);
  });

  test('gives the new memory back if it is disposed in the meantime', () => {
    const upstream = new BoundedUpstream();
    const scratch = scratchOn(upstream);
    upstream.meanwhile = () => scratch.dispose();
    expect(() => scratch.allocate(MiB, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(upstream.liveBytes).toBe(0);
  });

  test('keeps the new memory if the stream ends in the meantime', () => {
    const upstream = new BoundedUpstream();
    using scratch = scratchOn(upstream, { growth: 'after-waits', initialBytes: MiB });
    const ending = new Stream();
    upstream.meanwhile = () => ending.dispose();
    expect(() => scratch.allocate(MiB, ending)).toThrow(code('ERR_CISTERN_DISPOSED'));
    scratch.validate();
    scratch.allocate(MiB, stream);
    expect(upstream.asked).toEqual([MiB]);
  });
});

test('the kind monotonic takes its options from a specification', () => {
  using stack = createResourceStack(
    'monotonic(cuda, initialBytes=1MiB, maximumBytes=4MiB, growthFactor=1.5, fallback=pool(cuda), deallocationEvents=deferred)',
  );
  const scratch = stack.resource as MonotonicMemoryResource;
  expect(scratch).toBeInstanceOf(MonotonicMemoryResource);
  expect(scratch).toMatchObject({ initialBytes: MiB, maximumBytes: 4 * MiB, growthFactor: 1.5, deallocationEvents: 'deferred' });
  expect(scratch.fallback).toBeInstanceOf(PoolMemoryResource);
});

test.each(policies)('a monotonic resource never lets live allocations overlap, in random programs under %s', (deallocationEvents) => {
  const step = fc.record({
    action: fc.constantFrom('allocate', 'allocate', 'allocate', 'free', 'mark', 'rewind', 'reset', 'end', 'trim', 'release'),
    size: fc.oneof(fc.integer({ min: 1, max: 2000 }), fc.integer({ min: 1, max: 40_000 })),
    order: fc.integer({ min: 0, max: 13 }),
    stream: fc.nat(2),
    pick: fc.nat(),
    isBusy: fc.boolean(),
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60, size: 'max' }), fc.boolean(), (steps, hasFallback) => {
      const fallback = new BoundedUpstream();
      const upstream = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 200_000 });
      const scratch = scratchOn(upstream, {
        initialBytes: 4096,
        maximumBytes: 100_000,
        deallocationEvents,
        ...(hasFallback ? { fallback } : {}),
      });
      const streams = [new Stream(), new Stream(), new Stream()];
      let live: { pointer: number; bytes: number }[] = [];
      let marks: { mark: MonotonicMark; live: typeof live }[] = [];
      for (const { action, size, order, stream: index, pick, isBusy } of steps) {
        const on = streams[index] as Stream;
        if (isBusy) on.launchHostFunction(() => undefined);
        if (action === 'allocate') {
          try {
            // Leaf resources promise 256.
            const alignment = 2 ** (hasFallback ? Math.min(order, 8) : order);
            const pointer = scratch.allocate(size, on, alignment);
            expect(pointer % Math.max(256, alignment)).toBe(0);
            for (const other of live) expect(pointer + size <= other.pointer || other.pointer + other.bytes <= pointer).toBe(true);
            live = [...live, { pointer, bytes: size }];
          } catch (error) {
            expect(error).toBeInstanceOf(OutOfMemoryError);
            expect(hasFallback).toBe(false);
          }
        } else if (action === 'free' && live.length > 0) {
          const { pointer, bytes } = live[pick % live.length] as (typeof live)[0];
          const before = fallback.liveBytes;
          scratch.deallocate(pointer, bytes, on, (['eager', 'deferred', 'off', undefined] as const)[pick % 4]);
          if (fallback.liveBytes < before) {
            live = live.filter((block) => block.pointer !== pointer);
            for (const mark of marks) mark.live = mark.live.filter((block) => block.pointer !== pointer);
          }
        } else if (action === 'mark') {
          marks.push({ mark: scratch.mark(), live });
        } else if (action === 'rewind' && marks.length > 0) {
          const chosen = marks[pick % marks.length] as (typeof marks)[0];
          scratch.rewind(chosen.mark);
          live = chosen.live;
          marks = marks.filter(({ mark }) => mark.isStanding);
          expect(marks).toContain(chosen);
        } else if (action === 'reset' && pick % 4 === 0) {
          scratch.reset();
          live = [];
          marks = [];
        } else if (action === 'end') {
          on.dispose();
          streams[index] = new Stream();
        } else if (action === 'trim') {
          scratch.trim(on);
        } else if (action === 'release' && pick % 8 === 0) {
          expect(scratch.release(on)).toBeGreaterThanOrEqual(0);
          expect([scratch.reservedBytes, fallback.liveBytes]).toEqual([0, 0]);
          live = [];
          marks = [];
        }
        scratch.validate();
        const { reservedBytes, usedBytes, fallbackBytes } = scratch.statistics();
        expect(reservedBytes).toBeLessThanOrEqual(100_000);
        expect(usedBytes + fallbackBytes).toBeGreaterThanOrEqual(live.reduce((sum, { bytes }) => sum + bytes, 0));
        if (live.length === 0) expect(usedBytes).toBe(0);
      }
      scratch.dispose();
      expect([upstream.allocatedBytes, fallback.liveBytes]).toEqual([0, 0]);
      for (const each of streams) each.dispose();
    }),
    { numRuns: 60 },
  );
});
