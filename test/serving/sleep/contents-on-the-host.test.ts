import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { checkOrder } from '../../../src/checking/index.js';
import { VirtualMemory } from '../../../src/driver/memory/virtual-memory.js';
import {
  copy,
  copyFromHost,
  Device,
  GiB,
  MiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../../src/index.js';
import { SpillableBuffer, SpillingResourceAdaptor, type SpillPin, sleepResource, wakeResource } from '../../../src/serving/index.js';
import { driverCallCounts, failCall } from '../../../src/tools/testing/index.js';
import { settledFreeBytes } from '../../support/device-memory.js';
import { code } from '../../support/errors.js';
import { needFaults } from '../../support/real-gpu.js';
import { skipTest } from '../../support/skip-test.js';
import { valuesOf } from '../../support/stream-order.js';

const faulty = ['cuMemcpyAsync', 'cuMemHostAlloc', 'cuMemFreeHost', 'cuStreamSynchronize'];

let stream: Stream;
let memory: VirtualMemoryResource;
let page: number;
let freeBefore: number;

const pinnedBytes = () => {
  using pinned = new PinnedHostMemoryResource();
  return pinned.reservedBytes;
};
const pinnedPages = () => pinnedBytes() / page;
const callsOf = (name: string) => driverCallCounts().byFunction[name] as number;

/** Lets the event loop turn until something holds. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise(setImmediate);
}

/** Allocations of so many pages, a page apart from each other, so that each is kept for itself. They are filled with 1, 2 and so on. */
function allocateApart(...pages: number[]): number[] {
  const all = pages.map((count) => [memory.allocate(count * page, stream), memory.allocate(page, stream)] as const);
  for (const [, between] of all) memory.deallocate(between, page, stream);
  for (const [i, [pointer]] of all.entries()) set(pointer, i + 1, 1, (pages[i] as number) * page, stream);
  return all.map(([pointer]) => pointer);
}

function deallocate(pointers: readonly number[], ...pages: number[]): void {
  for (const [i, pointer] of pointers.entries()) memory.deallocate(pointer, (pages[i] as number) * page, stream);
}

/** Sleeps and wakes: the pages kept and copied, how often the driver pinned memory, and the pages that are pinned afterwards. */
async function sleepAndWake(stagingBytes: number, unchanged = false): Promise<number[]> {
  const before = callsOf('cuMemHostAlloc');
  const { keptBytes, copiedBytes } = await sleepResource(memory, { keep: 'host', unchanged });
  const registered = callsOf('cuMemHostAlloc') - before;
  await wakeResource(memory, { stagingBytes });
  return [keptBytes / page, copiedBytes / page, registered, pinnedPages()];
}

beforeEach(() => {
  if (Device.get().attribute('virtualMemoryManagementSupported') !== 1) skipTest('the device has no virtual memory management');
  stream = new Stream({ nonBlocking: true });
  freeBefore = settledFreeBytes();
  memory = new VirtualMemoryResource({ reservationBytes: GiB });
  page = memory.granularityBytes;
});

afterEach(() => {
  for (const name of faulty) failCall(name, 0);
  memory.dispose();
  stream.dispose();
  expect([settledFreeBytes(), pinnedBytes()]).toEqual([freeBefore, 0]);
});

describe('host memory that a wake leaves', () => {
  test('is so much as it asks for, in whole pieces', async () => {
    const pointers = allocateApart(1, 1, 1);
    expect(await sleepAndWake(3 * page)).toEqual([3, 3, 3, 3]);
    expect(await sleepAndWake(3 * page)).toEqual([3, 3, 0, 3]);
    // Awake already.
    await wakeResource(memory, { stagingBytes: 3 * page });
    expect(pinnedPages()).toBe(3);
    await wakeResource(memory, { stagingBytes: 2 * page - 1 });
    expect(pinnedPages()).toBe(1);
    expect(await sleepAndWake(2 * page)).toEqual([3, 3, 2, 2]);
    expect(await sleepAndWake(3 * page - 1)).toEqual([3, 3, 1, 2]);
    expect(await sleepAndWake(0)).toEqual([3, 3, 1, 0]);
    expect(await sleepAndWake(GiB)).toEqual([3, 3, 3, 3]);
    await wakeResource(memory);
    expect(pinnedPages()).toBe(0);
    expect(await sleepAndWake(GiB)).toEqual([3, 3, 3, 3]);
    expect(pointers.map((pointer) => valuesOf(pointer, page, stream))).toEqual([[1], [2], [3]]);
    await expect(wakeResource(memory, { stagingBytes: -1 })).rejects.toThrow(/^stagingBytes must/);
    deallocate(pointers, 1, 1, 1);
    // It goes with the resource.
    expect(pinnedPages()).toBe(3);
    memory.dispose();
    expect(pinnedPages()).toBe(0);
  });

  test('serves by size, whatever the order in which it came', async () => {
    deallocate(await keptOf(3, 1, 2), 3, 1, 2);
    // The smallest piece that fits, for each.
    const pointers = allocateApart(1, 2, 3);
    expect(await sleepAndWake(GiB)).toEqual([6, 6, 0, 6]);
    expect(pointers.map((pointer, i) => valuesOf(pointer, (i + 1) * page, stream))).toEqual([[1], [2], [3]]);
    deallocate(pointers, 1, 2, 3);
    // One of three pages serves for two, and what is too small for nothing.
    const others = allocateApart(2, 2, 2);
    expect(await sleepAndWake(GiB)).toEqual([6, 6, 1, 8]);
    deallocate(others, 2, 2, 2);

    async function keptOf(...pages: number[]): Promise<number[]> {
      const made = allocateApart(...pages);
      await sleepAndWake(GiB);
      return made;
    }
  });

  test('need not be copied again if it has the contents, all of them', async () => {
    const [first, second, third] = allocateApart(2, 1, 2) as [number, number, number];
    // Nothing is on the host yet.
    expect(await sleepAndWake(GiB, true)).toEqual([5, 5, 3, 5]);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 0, 0, 5]);
    expect(await sleepAndWake(GiB, false)).toEqual([5, 5, 0, 5]);
    // What comes and goes next to it, on either side, is other memory.
    const beside = [memory.allocate(page, stream), memory.allocate(page, stream)];
    expect(beside).toEqual([first + 2 * page, second + page]);
    deallocate(beside, 1, 1);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 0, 0, 5]);
    // A free of any part, also while it sleeps, makes all of the piece one that is copied.
    memory.deallocate(second, page, stream);
    memory.deallocate(third + page, page, stream);
    const anew = [1, 2, 3, 4].map(() => memory.allocate(page, stream));
    expect(anew).toEqual([first + 2 * page, second, second + page, third + page]);
    for (const i of [0, 2]) memory.deallocate(anew[i] as number, page, stream);
    set(second, 7, 1, page, stream);
    set(third + page, 8, 1, page, stream);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 3, 0, 5]);
    await sleepResource(memory, { keep: 'host', unchanged: true });
    memory.deallocate(first, page, stream);
    await wakeResource(memory, { stagingBytes: GiB });
    expect(memory.allocate(page, stream)).toBe(first);
    set(first, 9, 1, page, stream);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 2, 0, 5]);
    expect([first, first + page, second, third, third + page].map((at) => valuesOf(at, page, stream))).toEqual([[9], [1], [7], [3], [8]]);
    // What cistern itself writes is known, and only that is copied. A read is no write.
    set(second, 4, 1, page, stream);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 1, 0, 5]);
    expect(valuesOf(second, page, stream)).toEqual([4]);
    copyFromHost(first + 2 * page - 1, Uint8Array.of(6), stream);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 2, 0, 5]);
    copy(third, second, page, stream);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 2, 0, 5]);
    expect([first, first + page, second, third, third + page].map((at) => valuesOf(at, page, stream))).toEqual([
      [9],
      [1, 6],
      [4],
      [4],
      [8],
    ]);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 0, 0, 5]);
    // What is allocated anew at the same place is other memory, although nothing of cistern has written to it.
    memory.deallocate(second, page, stream);
    expect(memory.allocate(page, stream)).toBe(first + 2 * page);
    expect(memory.allocate(page, stream)).toBe(second);
    memory.deallocate(first + 2 * page, page, stream);
    expect(await sleepAndWake(GiB, true)).toEqual([5, 1, 0, 5]);
    // What was discarded is not what the host has.
    await sleepResource(memory, { keep: 'nothing' });
    await wakeResource(memory, { stagingBytes: GiB });
    expect(await sleepAndWake(GiB, true)).toEqual([5, 5, 0, 5]);
    deallocate([first, second, third], 2, 1, 2);
    const wrong = { keep: 'host', unchanged: 1 } as unknown as { keep: 'host' };
    await expect(sleepResource(memory, wrong)).rejects.toThrow(code('ERR_INVALID_ARG_TYPE'));
  });

  test('is not taken for the contents of memory that has grown since, at either end', async () => {
    const pointers = allocateApart(2, 1);
    const [first = 0, second = 0] = pointers;
    await sleepAndWake(GiB);
    const beside = [memory.allocate(page, stream), memory.allocate(page, stream)];
    expect(beside).toEqual([first + 2 * page, second + page]);
    set(first + 2 * page, 8, 1, page, stream);
    set(second + page, 9, 1, page, stream);
    await sleepAndWake(GiB, true);
    const all = [first, first + page, first + 2 * page, second, second + page];
    expect(all.map((at) => valuesOf(at, page, stream))).toEqual([[1], [1], [8], [2], [9]]);
    deallocate([first, second], 3, 2);
  });

  test('is known to be older after a write next to what was kept before for itself', async () => {
    const places = [0, 1, 2, 3, 4];
    const pages = places.map(() => memory.allocate(page, stream));
    const values = () => pages.flatMap((at) => valuesOf(at, page, stream));
    // Of five pages, the second and the fourth are kept first, each for itself, and then all as one.
    for (const i of [0, 2, 4]) memory.deallocate(pages[i] as number, page, stream);
    for (const i of [1, 3]) set(pages[i] as number, i, 1, page, stream);
    expect(await sleepAndWake(GiB)).toEqual([2, 2, 2, 2]);
    for (const i of [0, 2, 4]) {
      expect(memory.allocate(page, stream)).toBe(pages[i]);
      set(pages[i] as number, i, 1, page, stream);
    }
    expect(await sleepAndWake(GiB, true)).toEqual([5, 5, 1, 7]);
    const expected = [...places];
    for (const i of [4, 2, 0, 1, 3]) {
      expected[i] = 10 + i;
      set(pages[i] as number, 10 + i, 1, page, stream);
      expect([await sleepAndWake(GiB, true), values()]).toEqual([[5, 5, 0, 7], expected]);
    }
    deallocate(pages, 1, 1, 1, 1, 1);
  });

  test('is not taken for what a later sleep has kept', async () => {
    const [first = 0, second = 0] = allocateApart(1, 1);
    await sleepAndWake(GiB);
    // The place of the first is now free for the second, whose own place keeps what it had before.
    deallocate([first], 1);
    set(second, 5, 1, page, stream);
    await sleepAndWake(GiB);
    await sleepAndWake(GiB, true);
    expect(valuesOf(second, page, stream)).toEqual([5]);
    deallocate([second], 1);
  });

  test('is known to be older if something writes after a sleep that failed', async () => {
    needFaults();
    const [first = 0, second = 0] = allocateApart(2, 1);
    await sleepAndWake(GiB);
    // Only the first has to be copied, which fails; the second is not reached, and its place on the host is too small for the first.
    set(first, 3, 1, 2 * page, stream);
    failCall('cuMemcpyAsync', 1, 999);
    await expect(sleepResource(memory, { keep: 'host', unchanged: true })).rejects.toThrow(/cannot copy/);
    set(second, 9, 1, page, stream);
    await sleepAndWake(GiB, true);
    expect([valuesOf(first, 2 * page, stream), valuesOf(second, page, stream)]).toEqual([[3], [9]]);
    deallocate([first, second], 2, 1);
  });

  test('is not taken for that of a buffer that had left, and came back only to be read', async () => {
    using pool = new PoolMemoryResource(memory, { initialBytes: 4 * page, maximumBytes: 4 * page });
    using spilling = new SpillingResourceAdaptor(pool, new PinnedHostMemoryResource());
    using buffer = new SpillableBuffer(2 * page, { resource: spilling, stream });
    const use = async <T>(act: (pin: SpillPin) => T): Promise<T> => {
      using pin = await buffer.pin(stream);
      return act(pin);
    };
    await use((pin) => pin.fill(7));
    expect(spilling.spill(2 * page)).toBe(2 * page);
    const other = spilling.allocate(2 * page, stream);
    const rest = spilling.allocate(page, stream);
    await sleepResource(spilling, { keep: 'host' });
    await wakeResource(spilling, { stagingBytes: GiB });
    spilling.deallocate(other, 2 * page, stream);
    expect(await use(({ ptr }) => valuesOf(ptr, 2 * page, stream))).toEqual([7]);
    await sleepResource(spilling, { keep: 'host', unchanged: true });
    await wakeResource(spilling, { stagingBytes: GiB });
    expect(await use(({ ptr }) => valuesOf(ptr, 2 * page, stream))).toEqual([7]);
    spilling.deallocate(rest, page, stream);
  });

  test('is in pieces of 64 MiB, between which the event loop turns; a free waits for the copies, and what is freed is not kept', async () => {
    using checker = checkOrder();
    const pointer = memory.allocate(132 * MiB, stream);
    const free = (begin: number, end: number) => memory.deallocate(pointer + begin * MiB, (end - begin) * MiB, stream);
    set(pointer, 3, 1, 132 * MiB, stream);
    const sleeping = sleepResource(memory, { keep: 'host' });
    await until(() => pinnedBytes() > 0);
    expect(pinnedBytes()).toBeLessThan(132 * MiB);
    // What is being copied, a part of what will be, and all of a piece.
    free(0, 60);
    free(100, 104);
    free(128, 132);
    expect(await sleeping).toMatchObject({ keptBytes: 128 * MiB });
    expect([settledFreeBytes(), pinnedBytes()]).toEqual([freeBefore, 128 * MiB]);
    const waking = wakeResource(memory, { stagingBytes: GiB });
    free(60, 92);
    await waking;
    expect(freeBefore - settledFreeBytes()).toBe(32 * MiB);
    expect(valuesOf(pointer + 92 * MiB, 8 * MiB, stream)).toEqual([3]);
    expect(valuesOf(pointer + 104 * MiB, 24 * MiB, stream)).toEqual([3]);
    free(92, 100);
    free(104, 128);
    // The last piece is as large as what is left.
    const other = memory.allocate(68 * MiB, stream);
    expect(await sleepResource(memory, { keep: 'host' })).toMatchObject({ keptBytes: 68 * MiB });
    memory.deallocate(other, 68 * MiB, stream);
    await wakeResource(memory);
    expect(checker.violations).toEqual([]);
  });
});

describe('what a resource has of its own for its contents goes', () => {
  const streamCalls = () => callsOf('cuStreamCreateWithPriority') - callsOf('cuStreamDestroy');

  test.each(['host', 'nothing'] as const)('with a resource that is disposed awake, or freed asleep (%s)', async (keep) => {
    const streamsBefore = streamCalls();
    const ends: ((each: VirtualMemoryResource, pointer: number) => Promise<void>)[] = [
      async (each, pointer) => {
        await wakeResource(each, { stagingBytes: GiB });
        each.deallocate(pointer, page, stream);
        each.dispose();
      },
      async (each, pointer) => {
        each.dispose();
        each.deallocate(pointer, page, stream);
      },
      // It wakes after its end: nothing is left for a sleep that might follow.
      async (each, pointer) => {
        each.dispose();
        await wakeResource(each, { stagingBytes: GiB });
        expect([pinnedBytes(), streamCalls()]).toEqual([0, streamsBefore]);
        each.deallocate(pointer, page, stream);
      },
      async (each, pointer) => {
        await wakeResource(each, { stagingBytes: GiB });
        each.dispose();
        expect([pinnedBytes(), streamCalls()]).toEqual([0, streamsBefore]);
        await sleepResource(each, { keep });
        await wakeResource(each, { stagingBytes: GiB });
        each.deallocate(pointer, page, stream);
      },
    ];
    for (const [i, end] of ends.entries()) {
      const each = new VirtualMemoryResource();
      const pointer = each.allocate(page, stream);
      await sleepResource(each, { keep });
      await end(each, pointer);
      expect([i, pinnedBytes(), streamCalls()]).toEqual([i, 0, streamsBefore]);
    }
  });

  test('once its copies are done, if it is disposed or freed meanwhile', async () => {
    const streamsBefore = streamCalls();
    const pointers = allocateApart(1, 1);
    await sleepAndWake(GiB);
    deallocate(pointers.slice(1), 1);
    const copiesBefore = callsOf('cuMemcpyAsync');
    const sleeping = sleepResource(memory, { keep: 'host' });
    await until(() => callsOf('cuMemcpyAsync') > copiesBefore);
    memory.dispose();
    await sleeping;
    expect([pinnedPages(), streamCalls()]).toEqual([1, streamsBefore]);
    deallocate(pointers.slice(0, 1), 1);
    expect([pinnedPages(), streamCalls()]).toEqual([0, streamsBefore]);

    memory = new VirtualMemoryResource();
    const pointer = memory.allocate(page, stream);
    const again = sleepResource(memory, { keep: 'host' });
    await until(() => pinnedBytes() > 0);
    memory.deallocate(pointer, page, stream);
    await again;
    expect(pinnedBytes()).toBe(0);
    await wakeResource(memory);
  });

  test('addresses that went back are not asleep, even if their resource is put to sleep', async () => {
    memory.dispose();
    await sleepResource(memory, { keep: 'host' });
    using other = new VirtualMemoryResource({ reservationBytes: GiB });
    const pointer = other.allocate(page, stream);
    set(pointer, 1, 1, page, stream);
    other.deallocate(pointer, page, stream);
    await wakeResource(memory);
  });
});

describe('the copies of contents', () => {
  test('wait for nothing that the default stream has', async () => {
    const pointer = memory.allocate(page, stream);
    set(pointer, 1, 1, page, stream);
    await sleepResource(memory, { keep: 'host' });
    const hold = Stream.legacyDefault().hold();
    await wakeResource(memory);
    hold.release();
    expect(valuesOf(pointer, page, stream)).toEqual([1]);
    memory.deallocate(pointer, page, stream);
  });

  test('are done when the promise resolves, also if their host memory stays', async () => {
    using checker = checkOrder();
    const pointer = memory.allocate(16 * page, stream);
    set(pointer, 1, 1, 16 * page, stream);
    await sleepAndWake(GiB);
    expect(valuesOf(pointer, 16 * page, stream)).toEqual([1]);
    memory.deallocate(pointer, 16 * page, stream);
    expect(checker.violations).toEqual([]);
  });

  test('are waited for by no free after them', async () => {
    const [pointer = 0] = allocateApart(1);
    await sleepAndWake(GiB);
    const before = callsOf('cuStreamSynchronize');
    memory.deallocate(pointer, page, stream);
    expect(callsOf('cuStreamSynchronize')).toBe(before);
  });

  test('are done when the promise rejects', async () => {
    needFaults();
    using checker = checkOrder();
    const pointers = allocateApart(8, 1);
    failCall('cuMemcpyAsync', 2, 999);
    // The first error counts.
    failCall('cuStreamSynchronize', 1, 719);
    await expect(sleepResource(memory, { keep: 'host' })).rejects.toThrow(/cannot copy/);
    failCall('cuStreamSynchronize', 0);
    failCall('cuMemcpyAsync', 2, 999);
    await expect(sleepResource(memory, { keep: 'host' })).rejects.toThrow(/cannot copy/);
    expect([memory.isAsleep, pinnedBytes()]).toEqual([false, 0]);
    deallocate(pointers, 8, 1);
    expect(checker.violations).toEqual([]);
  });

  test('of a wake that fails are done before any memory is freed', async () => {
    needFaults();
    using checker = checkOrder();
    const pointers = allocateApart(8, 1);
    await sleepResource(memory, { keep: 'host' });
    failCall('cuMemcpyAsync', 2, 999);
    const waking = wakeResource(memory);
    // It has failed, and not yet unmapped what it mapped.
    memory.deallocate(pointers[0] as number, 8 * page, stream);
    expect(checker.violations).toEqual([]);
    await expect(waking).rejects.toThrow(/cannot copy/);
    await wakeResource(memory);
    expect(valuesOf(pointers[1] as number, page, stream)).toEqual([2]);
    memory.deallocate(pointers[1] as number, page, stream);
  });

  test('leave host memory that the driver refuses to free to the next call, whatever it is', async () => {
    needFaults();
    const pointer = memory.allocate(page, stream);
    set(pointer, 1, 1, page, stream);
    failCall('cuMemcpyAsync', 1, 999);
    failCall('cuMemFreeHost', 1, 999);
    await expect(sleepResource(memory, { keep: 'host' })).rejects.toThrow(/cannot copy/);
    expect([memory.isAsleep, pinnedPages()]).toEqual([false, 1]);
    set(pointer, 2, 1, page, stream);
    expect(await sleepResource(memory, { keep: 'host' })).toMatchObject({ keptBytes: page, copiedBytes: page });
    expect(pinnedPages()).toBe(1);
    await wakeResource(memory);
    expect([valuesOf(pointer, page, stream), pinnedPages()]).toEqual([[2], 0]);
    memory.deallocate(pointer, page, stream);
  });

  test.each(['awaitBeforeSleep', 'unmap'] as const)('go on, and memory sleeps, only when nothing stalls a stream: %s', async (name) => {
    const pointer = memory.allocate(page, stream);
    using calls = vi.spyOn(VirtualMemory.prototype, name);
    calls.mockReturnValueOnce(false);
    await sleepResource(memory, { keep: 'host' });
    expect(calls.mock.results.map(({ value }) => value)).toEqual([false, true]);
    await wakeResource(memory);
    memory.deallocate(pointer, page, stream);
  });

  test('of a wake that fails go back only when nothing stalls a stream', async () => {
    needFaults();
    const pointer = memory.allocate(page, stream);
    await sleepResource(memory, { keep: 'host' });
    using calls = vi.spyOn(VirtualMemory.prototype, 'unmap');
    calls.mockReturnValueOnce(false);
    failCall('cuMemcpyAsync', 1, 999);
    await expect(wakeResource(memory)).rejects.toThrow(/cannot copy/);
    expect(calls.mock.results.map(({ value }) => value)).toEqual([false, true]);
    await wakeResource(memory);
    memory.deallocate(pointer, page, stream);
  });

  test('the event loop goes on while the devices work', async () => {
    const pointer = memory.allocate(64 * page, stream);
    for (let i = 0; i < 4; i++) set(pointer, i, 1, 64 * page, stream);
    let wasIdle: boolean | undefined;
    const { awaitBeforeSleep } = VirtualMemory.prototype;
    using _spy = vi.spyOn(VirtualMemory.prototype, 'awaitBeforeSleep').mockImplementation(function (this: VirtualMemory) {
      wasIdle ??= stream.query();
      return awaitBeforeSleep.call(this);
    });
    await sleepResource(memory, { keep: 'nothing' });
    expect(wasIdle).toBe(true);
    await wakeResource(memory);
    memory.deallocate(pointer, 64 * page, stream);
  });
});
