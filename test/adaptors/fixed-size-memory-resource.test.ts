import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  FixedSizeMemoryResource,
  type FixedSizeMemoryResourceOptions,
  GiB,
  KiB,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  Stream,
  set,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { caught, code } from '../support/errors.js';
import { SpyResource } from '../support/spy-resource.js';
import { BusyBlock, expectOrdered, policies, sharingPolicies } from '../support/stream-order.js';

const stream = new Stream();
const blockBytes = 64 * KiB;

/**
 * Remembers its calls, and calls back during a call, like a resource that runs host functions while
 * it waits.
 */
class ObservedUpstream extends CudaMemoryResource {
  readonly asked: number[] = [];
  liveBytes = 0;
  limitBytes = Number.POSITIVE_INFINITY;
  meanwhile: (() => void) | undefined;

  override allocate(bytes: number, on: Stream): number {
    this.asked.push(bytes);
    if (this.liveBytes + bytes > this.limitBytes)
      throw new OutOfMemoryError('limited', { requestedBytes: bytes, path: ['ObservedUpstream'] });
    const pointer = super.allocate(bytes, on);
    this.liveBytes += bytes;
    this.#run();
    return pointer;
  }

  override deallocate(pointer: number, bytes: number, on: Stream): void {
    super.deallocate(pointer, bytes, on);
    this.liveBytes -= bytes;
    this.#run();
  }

  #run(): void {
    const { meanwhile } = this;
    this.meanwhile = undefined;
    meanwhile?.();
  }
}

describe('fixed-size blocks', () => {
  test('are 128 of 1 MiB, taken at once, by default', () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream);
    expect(blocks.blockBytes).toBe(MiB);
    expect(upstream.asked).toEqual([128 * MiB]);
    expect(blocks.reservedBytes).toBe(128 * MiB);
  });

  test('are taken one by one, and none at once, if none are to be preallocated', () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 0 });
    expect(upstream.asked).toEqual([]);
    for (let i = 0; i < 3; i++) blocks.allocate(1, stream);
    expect(upstream.asked).toEqual([blockBytes, blockBytes, blockBytes]);
  });

  test('are rounded up to multiples of 256 bytes', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes: 1000, blocksToPreallocate: 2 });
    expect(blocks.blockBytes).toBe(1024);
    const pointer = blocks.allocate(1024, stream);
    blocks.deallocate(pointer, 1024, stream);
    blocks.validate();
  });

  test.each<[FixedSizeMemoryResourceOptions, string]>([
    [{ blockBytes: 0 }, 'blockBytes must be from 1 to 2 GiB - 256 (2147483392), got 0'],
    [{ blockBytes: 2 * GiB }, 'blockBytes must be from 1 to 2 GiB - 256'],
    [{ blockBytes: 1.5 }, 'blockBytes must be an integer'],
    [{ blocksToPreallocate: -1 }, 'blocksToPreallocate must be an integer'],
    [{ blockBytes: 1000, maximumBytes: 1000 }, 'maximumBytes must be at least one block (1024), got 1000'],
    [{ maximumBytes: Number.NaN }, 'maximumBytes must be an integer'],
    [{ deallocationEvents: 'lazy' as 'eager' }, 'deallocationEvents must be'],
  ])('refuse %o', (options, message) => {
    expect(() => new FixedSizeMemoryResource(new CudaMemoryResource(), options)).toThrow(message);
  });

  test('can have 2 GiB - 256 bytes, of which 1 is requested', () => {
    using blocks = new FixedSizeMemoryResource(new SpyResource(), { blockBytes: 2 * GiB - 256, blocksToPreallocate: 3 });
    const pointer = blocks.allocate(1, stream);
    blocks.validate();
    expect(() => blocks.deallocate(pointer, 2, stream)).toThrow('it was allocated with 1 bytes');
    blocks.deallocate(pointer, 1, stream);
    expect(() => blocks.allocate(2 ** 31, stream)).toThrow(OutOfMemoryError);
  });

  test('serve every size up to their own with one block', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes, blocksToPreallocate: 4 });
    const sizes = [1, 300, blockBytes - 1, blockBytes];
    const pointers = sizes.map((bytes) => blocks.allocate(bytes, stream));
    for (const [i, pointer] of pointers.entries()) expect((pointer - Math.min(...pointers)) / blockBytes).toBe(i);
    expect(blocks.statistics()).toMatchObject({ allocatedBytes: 4 * blockBytes, largestFreeBytes: 0, growths: 1 });
    for (const [i, pointer] of pointers.entries()) blocks.deallocate(pointer, sizes[i] as number, stream);
    blocks.validate();
    expect(blocks.statistics()).toMatchObject({ allocatedBytes: 0, largestFreeBytes: blockBytes });
  });

  test('serve no larger size, and name their size', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes, blocksToPreallocate: 4 });
    const error = caught(() => blocks.allocate(blockBytes + 1, stream));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error).toMatchObject({ requestedBytes: blockBytes + 1, limitBytes: blockBytes, availableBytes: blockBytes });
    expect((error as Error).message).toContain('a block has 64 KiB (65536 bytes)');
    expect(blocks.statistics().growths).toBe(1);
  });

  test('give alignments up to 256, and refuse more', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes, blocksToPreallocate: 1 });
    blocks.deallocate(blocks.allocate(1, stream, 16), 1, stream);
    expect(() => blocks.allocate(1, stream, 512)).toThrow(
      'alignment must be at most 256, which is what this resource can promise, got 512',
    );
    expect(blocks.statistics().allocatedBytes).toBe(0);
  });

  test("come in batches of the preallocation's size", () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 4 });
    for (let i = 0; i < 9; i++) blocks.allocate(blockBytes, stream);
    expect(upstream.asked).toEqual([4 * blockBytes, 4 * blockBytes, 4 * blockBytes]);
  });

  test('come in smaller batches while the upstream does not have that much, down to one block', () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 5 });
    upstream.limitBytes = 6 * blockBytes;
    for (let i = 0; i < 6; i++) blocks.allocate(blockBytes, stream);
    expect(upstream.asked.map((bytes) => bytes / blockBytes)).toEqual([5, 5, 3, 2, 1]);
    const error = caught(() => blocks.allocate(1, stream));
    expect(error).toMatchObject({ requestedBytes: 1, limitBytes: undefined, path: ['FixedSizeMemoryResource', 'ObservedUpstream'] });
    expect((error as Error).message).toContain('none of its 6 blocks of 64 KiB is free for the stream, and the upstream has no more');
    blocks.validate();
  });

  test('do not exceed the maximum, with a smaller last batch', () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 4, maximumBytes: 6.5 * blockBytes });
    const pointers = Array.from({ length: 6 }, () => blocks.allocate(blockBytes, stream));
    expect(upstream.asked.map((bytes) => bytes / blockBytes)).toEqual([4, 2]);
    const error = caught(() => blocks.allocate(1, stream));
    expect(error).toMatchObject({ limitBytes: 6.5 * blockBytes, availableBytes: 0, cause: undefined });
    expect((error as Error).message).toContain('its maximum is 416 KiB');
    blocks.deallocate(pointers[3] as number, blockBytes, stream);
    expect(blocks.allocate(1, stream)).toBe(pointers[3]);
  });

  test('are fewer at once if the maximum is below the first batch', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes, maximumBytes: 3 * blockBytes });
    expect(blocks.reservedBytes).toBe(3 * blockBytes);
  });

  test('leave nothing behind if the first batch cannot be allocated', () => {
    using cuda = new CudaMemoryResource();
    const before = cuda.reservedBytes;
    using upstream = new LimitingResourceAdaptor(cuda, { limitBytes: MiB });
    const error = caught(() => new FixedSizeMemoryResource(upstream));
    expect(error).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      path: ['FixedSizeMemoryResource', 'LimitingResourceAdaptor'],
    });
    expect(cuda.reservedBytes).toBe(before);
  });

  test('go back to the upstream in whole batches', () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 2 });
    const pointers = Array.from({ length: 6 }, () => blocks.allocate(blockBytes, stream));
    const [kept, ...rest] = pointers as [number, ...number[]];
    for (const pointer of rest) blocks.deallocate(pointer, blockBytes, stream);
    expect(blocks.trim(stream, { bytesToKeep: 5 * blockBytes })).toBe(0);
    expect(blocks.trim(stream, { bytesToKeep: 4 * blockBytes })).toBe(2 * blockBytes);
    expect(blocks.trim(stream)).toBe(2 * blockBytes);
    expect(upstream.liveBytes).toBe(2 * blockBytes);
    blocks.deallocate(kept, blockBytes, stream);
    expect(blocks.trim(stream)).toBe(2 * blockBytes);
    expect(blocks.reservedBytes).toBe(0);
    blocks.validate();
  });

  test('go back to the upstream at the end, including live ones', () => {
    const upstream = new ObservedUpstream();
    const blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 2 });
    for (let i = 0; i < 3; i++) blocks.allocate(1, stream);
    blocks.dispose();
    blocks.dispose();
    expect(upstream.liveBytes).toBe(0);
    expect(() => blocks.allocate(1, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
  });

  test('distinguish a double free, a foreign pointer, an inner pointer and a wrong size', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), { blockBytes, blocksToPreallocate: 2 });
    const kept = blocks.allocate(1000, stream);
    const freed = blocks.allocate(1000, stream);
    blocks.deallocate(freed, 1000, stream);
    const name = 'the FixedSizeMemoryResource cannot free 0x';
    expect(() => blocks.deallocate(freed, 1000, stream)).toThrow(/^the FixedSizeMemoryResource cannot free 0x\w+: it is already freed$/);
    expect(() => blocks.deallocate(kept + 256, 1000, stream)).toThrow('it lies inside an allocation, not at its start');
    expect(() => blocks.deallocate(256, 1000, stream)).toThrow(`${name}100: it was not allocated by this resource`);
    expect(() => blocks.deallocate(kept, 1001, stream)).toThrow('with 1001 bytes: it was allocated with 1000 bytes');
    blocks.validate();
    blocks.deallocate(kept, 1000, stream);
  });

  test('stay within the maximum if the upstream runs a host function that takes some', () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 0, maximumBytes: 2 * blockBytes });
    using other = new Stream();
    upstream.meanwhile = () => {
      blocks.allocate(1, other);
      expect(() => blocks.allocate(1, other)).toThrow(OutOfMemoryError);
    };
    expect(blocks.allocate(1, stream)).toBeGreaterThan(0);
    expect(blocks.reservedBytes).toBe(2 * blockBytes);
    blocks.validate();
  });

  test('give a new batch back if a host function disposed them in the meantime', () => {
    const upstream = new ObservedUpstream();
    const blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 0 });
    upstream.meanwhile = () => blocks.dispose();
    expect(() => blocks.allocate(1, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(upstream.liveBytes).toBe(0);
  });

  test('are unchanged if the driver fails during a reuse', () => {
    using blocks = blocksOf(1, 'eager');
    using other = new Stream();
    blocks.deallocate(blocks.allocate(1, stream), 1, stream);
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => blocks.allocate(1, other)).toThrow(code('ERR_CISTERN_DRIVER'));
    blocks.validate();
    expect(blocks.allocate(1, other)).toBeGreaterThan(0);
  });

  test.each(policies)('agree with a naive model under any steps on several streams with %s events', (deallocationEvents) => {
    const step = fc.record({
      kind: fc.constantFrom('allocate', 'allocate', 'allocate', 'free', 'free', 'trim', 'synchronize'),
      bytes: fc.integer({ min: 1, max: 1000 }),
      who: fc.nat(2),
      which: fc.nat(100),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60, size: 'max' }), fc.nat(3), (steps, blocksToPreallocate) => {
        const streams = [new Stream(), new Stream(), new Stream()];
        using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), {
          blockBytes: 1000,
          blocksToPreallocate,
          maximumBytes: 8 * 1024,
          deallocationEvents,
        });
        const live: { pointer: number; bytes: number }[] = [];
        for (const { kind, bytes, who, which } of steps) {
          const on = streams[who] as Stream;
          if (kind === 'allocate' && live.length < 8) live.push({ pointer: blocks.allocate(bytes, on), bytes });
          else if (kind === 'allocate') expect(() => blocks.allocate(bytes, on)).toThrow(OutOfMemoryError);
          else if (kind === 'trim') blocks.trim(on);
          else if (kind === 'synchronize') on.synchronizeSync();
          else if (live.length > 0) {
            const [block] = live.splice(which % live.length, 1) as [(typeof live)[0]];
            blocks.deallocate(block.pointer, block.bytes, on);
          }
          blocks.validate();
          expect(blocks.statistics().allocatedBytes).toBe(live.length * 1024);
          expect(new Set(live.map(({ pointer }) => pointer)).size).toBe(live.length);
        }
        for (const each of streams) each.dispose();
      }),
      { numRuns: 60 },
    );
  });
});

/** Room for a few blocks, taken at once: with one, the next allocation must get the freed block. */
function blocksOf(count: number, deallocationEvents: (typeof policies)[number], upstream: MemoryResource = new CudaMemoryResource()) {
  const maximumBytes = count * blockBytes;
  return new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: count, maximumBytes, deallocationEvents });
}

function fill(pointer: number, value: number, on: Stream): void {
  set(pointer, value, 1, blockBytes, on);
}

describe.each(sharingPolicies)('fixed-size blocks with %s events', (policy) => {
  test('serve another stream after it waits for the one that freed them', () => {
    using blocks = blocksOf(1, policy);
    using a = new Stream();
    using b = new Stream();
    using block = BusyBlock.freed(blocks, blockBytes, a);
    block.expectHandedTo(b);
  });

  test.each(['freed', 'gathered by a trim'])(
    'keep their order for a third stream when they were %s on a second (rapidsai/rmm#2489)',
    (how) => {
      using blocks = blocksOf(1, policy);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      using block = BusyBlock.freed(blocks, blockBytes, a);
      if (how === 'freed') blocks.deallocate(blocks.allocate(1, b), 1, b);
      else blocks.trim(b, { bytesToKeep: blockBytes });
      block.expectHandedTo(c);
    },
  );

  test('of a batch that the upstream ordered on one stream make another wait (part of rapidsai/rmm#2507)', () => {
    using upstream = new CudaAsyncMemoryResource();
    using blocks = new FixedSizeMemoryResource(upstream, {
      blockBytes,
      blocksToPreallocate: 2,
      growth: 'after-waits',
      deallocationEvents: policy,
    });
    using a = new Stream();
    using b = new Stream();
    using hold = a.hold();
    for (let i = 0; i < 3; i++) blocks.allocate(1, a);
    const growths = blocks.statistics().growths;
    const rest = blocks.allocate(blockBytes, b);
    expect(blocks.statistics().growths).toBe(growths);
    expectOrdered(rest, blockBytes, b, hold);
  });

  test('keep their order when the stream that freed them is gone, and a new one has its place (rapidsai/rmm#510, #2251)', () => {
    using blocks = blocksOf(1, policy);
    const a = new Stream();
    using block = BusyBlock.freed(blocks, blockBytes, a);
    a.dispose();
    using b = new Stream();
    expect(b.identity.slot).toBe(a.identity.slot);
    block.expectHandedTo(b);
  });

  test('go back to the upstream only after the stream that freed them', () => {
    using upstream = new CudaAsyncMemoryResource();
    const blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 0, deallocationEvents: policy });
    using a = new Stream();
    using b = new Stream();
    using block = BusyBlock.freed(blocks, blockBytes, a);
    expect(blocks.trim(b)).toBe(blockBytes);
    block.expectHandedTo(b, upstream);
    upstream.deallocate(block.pointer, blockBytes, b);
    blocks.dispose();
  });
});

describe('fixed-size blocks with off events', () => {
  test('serve another stream only when their own is known to be idle', () => {
    using blocks = new FixedSizeMemoryResource(new CudaMemoryResource(), {
      blockBytes,
      blocksToPreallocate: 0,
      deallocationEvents: 'off',
    });
    using a = new Stream();
    using b = new Stream();
    const first = blocks.allocate(1, a);
    using hold = a.hold();
    blocks.deallocate(first, 1, a);
    expect(blocks.allocate(1, b)).not.toBe(first);
    hold.release();
    a.synchronizeSync();
    expect(blocks.allocate(1, b)).toBe(first);
    expect(blocks.statistics()).toMatchObject({ synchronizations: 0, growths: 2 });
  });

  test('forget why the upstream refused a batch when a block was found without it', () => {
    const upstream = new ObservedUpstream();
    using blocks = new FixedSizeMemoryResource(upstream, { blockBytes, blocksToPreallocate: 1, deallocationEvents: 'off' });
    upstream.limitBytes = blockBytes;
    using a = new Stream();
    a.launchHostFunction(() => undefined);
    blocks.deallocate(blocks.allocate(1, a), 1, a);
    expect(blocks.allocate(1, stream)).toBeGreaterThan(0);
    expect(upstream.asked).toHaveLength(2);
    expect(caught(() => blocks.allocate(MiB, stream))).toMatchObject({ path: ['FixedSizeMemoryResource'], cause: undefined });
  });

  test('are waited for on the host before an out-of-memory error, while host functions use them', () => {
    using blocks = blocksOf(2, 'off');
    using a = new Stream();
    using b = new Stream();
    const first = blocks.allocate(blockBytes, a);
    const second = blocks.allocate(blockBytes, a);
    blocks.deallocate(first, blockBytes, a);
    a.launchHostFunction(() => blocks.deallocate(second, blockBytes, a));
    fill(first, 1, a);
    const third = blocks.allocate(blockBytes, b);
    expect([first, second]).toContain(third);
    expect(blocks.statistics().synchronizations).toBe(1);
    blocks.validate();
  });

  test('keep their order when the stream that freed them is gone', () => {
    using blocks = blocksOf(1, 'off');
    const a = new Stream();
    using b = new Stream();
    using block = BusyBlock.freed(blocks, blockBytes, a);
    a.dispose();
    block.expectHandedTo(b);
  });
});

test.each([
  ['eager', 10],
  ['deferred', 0],
  ['off', 0],
] as const)('fixed-size blocks with %s events record %d events at ten frees of one stream', (policy, records) => {
  using blocks = blocksOf(1, policy);
  const before = driverCallCounts().eventRecords;
  for (let i = 0; i < 10; i++) blocks.deallocate(blocks.allocate(i + 1, stream), i + 1, stream);
  expect(driverCallCounts().eventRecords - before).toBe(records);
});
