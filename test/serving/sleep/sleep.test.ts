import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { layersOf } from '../../../src/adaptors/layers.js';
import { checkOrder } from '../../../src/checking/index.js';
import { StreamIdentity } from '../../../src/driver/streams/stream-identity.js';
import { GraphMemoryResource } from '../../../src/graphs/index.js';
import {
  ArenaMemoryResource,
  BinningMemoryResource,
  CachingMemoryResource,
  CudaMemoryResource,
  copy,
  copyFromHost,
  copyToHost,
  copyToHostSync,
  Device,
  DeviceBuffer,
  FixedSizeMemoryResource,
  GiB,
  KiB,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../../src/index.js';
import { toDLPack } from '../../../src/interchange/index.js';
import { PlannedMemoryResource } from '../../../src/plans/index.js';
import { sleepResource, wakeResource } from '../../../src/serving/index.js';
import { Sleeper } from '../../../src/serving/sleep/sleeping-memory.js';
import { planAllocations } from '../../../src/tools/planning/index.js';
import { driverCallCounts, failCall } from '../../../src/tools/testing/index.js';
import { detachBuffer, shareBuffer } from '../../../src/workers/index.js';
import { needSecondDevice, needSmallDevice, settledFreeBytes } from '../../support/device-memory.js';
import { caught, code } from '../../support/errors.js';
import { planOf } from '../../support/plans.js';
import { needFaults } from '../../support/real-gpu.js';
import { runModule, wholePackage } from '../../support/run-module.js';
import { skipTest } from '../../support/skip-test.js';
import { valuesOf } from '../../support/stream-order.js';

const asleep = code('ERR_CISTERN_ASLEEP');
const invalidState = code('ERR_CISTERN_INVALID_STATE');
const freeBytes = () => Device.get().memoryInfo().freeBytes;

let stream: Stream;
let upstream: VirtualMemoryResource;
let page: number;
let freeBefore: number;

const pinnedBytes = () => {
  using pinned = new PinnedHostMemoryResource();
  return pinned.reservedBytes;
};

/** Lets the event loop turn until something holds. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise(setImmediate);
}

beforeEach(() => {
  if (Device.get().attribute('virtualMemoryManagementSupported') !== 1) skipTest('the device has no virtual memory management');
  stream = new Stream({ nonBlocking: true });
  freeBefore = settledFreeBytes();
  upstream = new VirtualMemoryResource({ reservationBytes: 4 * GiB });
  page = upstream.granularityBytes;
});

afterEach(() => {
  for (const name of ['cuMemUnmap', 'cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemHostAlloc', 'cuMemFreeHost', 'cuMemcpyAsync'])
    failCall(name, 0);
  upstream.dispose();
  expect(upstream.reservedBytes).toBe(0);
  stream.dispose();
  expect(settledFreeBytes()).toBe(freeBefore);
  expect(pinnedBytes()).toBe(0);
});

describe('memory that sleeps', () => {
  test('goes back to the device, and comes back with its contents, at the same addresses', async () => {
    using pool = new PoolMemoryResource(upstream);
    using weights = new DeviceBuffer(3 * page + 100, { resource: pool, stream });
    using small = new DeviceBuffer(Float32Array.of(1, 2, 3), { resource: pool, stream });
    weights.fill(7);
    const before = [weights.ptr, small.ptr];
    const reserved = upstream.reservedBytes;
    const slept = await sleepResource(pool, { keep: 'host' });
    expect(slept).toMatchObject({ releasedBytes: reserved, keptBytes: reserved });
    expect(slept.elapsedMilliseconds).toBeGreaterThan(0);
    expect([upstream.reservedBytes, freeBytes(), upstream.isAsleep]).toEqual([0, freeBefore, true]);
    expect(pinnedBytes()).toBe(reserved);
    const woken = await wakeResource(pool);
    expect(woken).toMatchObject({ mappedBytes: reserved, restoredBytes: reserved });
    expect([upstream.reservedBytes, freeBefore - freeBytes(), upstream.isAsleep, pinnedBytes()]).toEqual([reserved, reserved, false, 0]);
    expect([weights.ptr, small.ptr]).toEqual(before);
    expect(valuesOf(weights.ptr, weights.byteLength, stream)).toEqual([7]);
    expect([...new Float32Array((await small.toHost()).buffer)]).toEqual([1, 2, 3]);
    // It is memory like any other again.
    using more = new DeviceBuffer(page, { resource: pool, stream });
    more.fill(1);
  });

  test('is kept without what is free in the resources above', async () => {
    using pool = new PoolMemoryResource(upstream);
    const pointers = Array.from({ length: 8 }, () => pool.allocate(page, stream));
    const [first = 0, ...others] = pointers;
    set(first, 5, 1, page, stream);
    for (const pointer of others) pool.deallocate(pointer, page, stream);
    expect(upstream.reservedBytes).toBe(8 * page);
    expect(await sleepResource(pool, { keep: 'host' })).toMatchObject({ releasedBytes: 8 * page, keptBytes: page });
    await wakeResource(pool);
    expect(upstream.reservedBytes).toBe(page);
    expect(valuesOf(first, page, stream)).toEqual([5]);
    pool.deallocate(first, page, stream);
  });

  test('is kept without the contents, if they are not needed', async () => {
    const pointer = upstream.allocate(2 * page, stream);
    const before = driverCallCounts().byFunction;
    expect(await sleepResource(upstream, { keep: 'nothing' })).toMatchObject({ releasedBytes: 2 * page, keptBytes: 0 });
    expect(freeBytes()).toBe(freeBefore);
    expect(await wakeResource(upstream)).toMatchObject({ mappedBytes: 2 * page, restoredBytes: 0 });
    expect(driverCallCounts().byFunction['cuMemcpyAsync']).toBe(before['cuMemcpyAsync']);
    set(pointer, 1, 1, 2 * page, stream);
    expect(valuesOf(pointer, 2 * page, stream)).toEqual([1]);
    upstream.deallocate(pointer, 2 * page, stream);
  });

  test('sleeps and wakes by tag', async () => {
    using weights = new VirtualMemoryResource({ tag: 'weights' });
    using cache = new VirtualMemoryResource({ tag: 'cache' });
    using stack = new BinningMemoryResource(weights, { bins: [{ bytes: page, resource: cache }] });
    const kept = stack.allocate(2 * page, stream);
    const dropped = stack.allocate(page, stream);
    set(kept, 3, 1, 2 * page, stream);
    await sleepResource(stack, { keep: 'nothing', tag: 'cache' });
    expect([weights.isAsleep, cache.isAsleep]).toEqual([false, true]);
    expect(valuesOf(kept, 2 * page, stream)).toEqual([3]);
    await sleepResource(stack, { keep: 'host', tag: 'weights' });
    expect(freeBytes()).toBe(freeBefore);
    await wakeResource(stack, { tag: 'weights' });
    expect([weights.isAsleep, cache.isAsleep]).toEqual([false, true]);
    expect(valuesOf(kept, 2 * page, stream)).toEqual([3]);
    // The rest.
    expect(await wakeResource(stack)).toMatchObject({ mappedBytes: page, restoredBytes: 0 });
    // Both at once.
    set(dropped, 4, 1, page, stream);
    expect(await sleepResource(stack, { keep: 'host' })).toMatchObject({ releasedBytes: 3 * page, keptBytes: 3 * page });
    expect(await wakeResource(stack)).toMatchObject({ mappedBytes: 3 * page, restoredBytes: 3 * page });
    expect([valuesOf(kept, 2 * page, stream), valuesOf(dropped, page, stream)]).toEqual([[3], [4]]);
    stack.deallocate(kept, 2 * page, stream);
    stack.deallocate(dropped, page, stream);
  });

  test('refuses what cannot sleep, unknown tags and invalid options', async () => {
    using plain = new PoolMemoryResource(new CudaMemoryResource());
    await expect(sleepResource(plain, { keep: 'host' })).rejects.toThrow(code('ERR_CISTERN_NOT_SUPPORTED'));
    await expect(wakeResource(plain)).rejects.toThrow(code('ERR_CISTERN_NOT_SUPPORTED'));
    await expect(sleepResource(upstream, { keep: 'host', tag: 'weights' })).rejects.toThrow(code('ERR_INVALID_ARG_VALUE'));
    await expect(wakeResource(upstream, { tag: 'weights' })).rejects.toThrow(code('ERR_INVALID_ARG_VALUE'));
    await expect(wakeResource(upstream, { tag: 3 as unknown as string })).rejects.toThrow(code('ERR_INVALID_ARG_TYPE'));
    await expect(sleepResource(upstream, { keep: 'disk' as 'host' })).rejects.toThrow(code('ERR_INVALID_ARG_VALUE'));
    await expect(sleepResource({} as MemoryResource, { keep: 'host' })).rejects.toThrow(code('ERR_INVALID_ARG_TYPE'));
    expect(() => new VirtualMemoryResource({ tag: 3 as unknown as string })).toThrow(code('ERR_INVALID_ARG_TYPE'));
    expect(upstream.isAsleep).toBe(false);
  });

  test('stays asleep if it sleeps again, and awake if it wakes again', async () => {
    const pointer = upstream.allocate(page, stream);
    set(pointer, 4, 1, page, stream);
    expect(await wakeResource(upstream)).toMatchObject({ mappedBytes: 0, restoredBytes: 0 });
    await sleepResource(upstream, { keep: 'host' });
    expect(await sleepResource(upstream, { keep: 'nothing' })).toMatchObject({ releasedBytes: 0, keptBytes: 0 });
    await wakeResource(upstream);
    expect(valuesOf(pointer, page, stream)).toEqual([4]);
    upstream.deallocate(pointer, page, stream);
  });

  test('refuses a call before the last one has ended', async () => {
    const pointer = upstream.allocate(page, stream);
    const first = sleepResource(upstream, { keep: 'host' });
    await expect(sleepResource(upstream, { keep: 'host' })).rejects.toThrow(invalidState);
    await expect(wakeResource(upstream)).rejects.toThrow(invalidState);
    await first;
    const second = wakeResource(upstream);
    await expect(sleepResource(upstream, { keep: 'host' })).rejects.toThrow(invalidState);
    await second;
    upstream.deallocate(pointer, page, stream);
  });

  test('refuses a call for several resources of which any is on its way', async () => {
    using first = new VirtualMemoryResource({ tag: 'first' });
    using second = new VirtualMemoryResource({ tag: 'second' });
    using stack = new BinningMemoryResource(first, { bins: [{ bytes: page, resource: second }] });
    for (const tag of ['first', 'second']) {
      const sleeping = sleepResource(stack, { keep: 'host', tag });
      await expect(sleepResource(stack, { keep: 'host' })).rejects.toThrow(invalidState);
      await expect(wakeResource(stack)).rejects.toThrow(invalidState);
      await sleeping;
      expect([first.isAsleep, second.isAsleep]).toEqual([tag === 'first', tag === 'second']);
      await wakeResource(stack);
    }
  });

  test('refuses a call for a resource that another call is about to wake, and leaves alone one that falls asleep meanwhile', async () => {
    using first = new VirtualMemoryResource({ tag: 'first' });
    using second = new VirtualMemoryResource({ tag: 'second' });
    using stack = new BinningMemoryResource(first, { bins: [{ bytes: page, resource: second }] });
    const [large, small] = [stack.allocate(2 * page, stream), stack.allocate(page, stream)];
    set(large, 1, 1, 2 * page, stream);
    set(small, 2, 1, page, stream);
    await sleepResource(stack, { keep: 'host' });
    const waking = wakeResource(stack);
    const others = ['first', 'second'].flatMap((tag) => [wakeResource(stack, { tag }), sleepResource(stack, { keep: 'host', tag })]);
    for (const { reason } of (await Promise.allSettled(others)) as PromiseRejectedResult[]) expect(reason).toEqual(invalidState);
    await waking;
    expect([first.isAsleep, second.isAsleep]).toEqual([false, false]);
    // The wake has to wait for the sleep, which it need not.
    let sleeping: Promise<unknown> | undefined;
    const { wake } = Sleeper.prototype;
    using _spy = vi.spyOn(Sleeper.prototype, 'wake').mockImplementation(async function (this: Sleeper) {
      await wake.call(this);
      await sleeping;
    });
    for (const [sleeper, waker] of [
      ['first', 'second'],
      ['second', 'first'],
    ] as const) {
      await sleepResource(stack, { keep: 'host', tag: waker });
      const waking = wakeResource(stack, { stagingBytes: GiB });
      sleeping = sleepResource(stack, { keep: 'host', tag: sleeper });
      await waking;
      expect([first.isAsleep, second.isAsleep]).toEqual([sleeper === 'first', sleeper === 'second']);
      // Of one the contents, of the other what stays for the next sleep.
      expect(pinnedBytes()).toBe(3 * page);
      await wakeResource(stack);
      expect([valuesOf(large, 2 * page, stream), valuesOf(small, page, stream)]).toEqual([[1], [2]]);
    }
    stack.deallocate(large, 2 * page, stream);
    stack.deallocate(small, page, stream);
  });

  test('takes as long as the report says, or longer', async () => {
    const pointer = upstream.allocate(page, stream);
    const started = performance.now();
    const fallen = await sleepResource(upstream, { keep: 'host' });
    const woken = await wakeResource(upstream);
    const most = performance.now() - started;
    for (const { elapsedMilliseconds } of [fallen, woken]) {
      expect(elapsedMilliseconds).toBeGreaterThan(0);
      expect(elapsedMilliseconds).toBeLessThanOrEqual(most);
    }
    upstream.deallocate(pointer, page, stream);
  });

  test('can be of a resource that has nothing, or is disposed', async () => {
    expect(await sleepResource(upstream, { keep: 'host' })).toMatchObject({ releasedBytes: 0 });
    await wakeResource(upstream);
    const pointer = upstream.allocate(page, stream);
    set(pointer, 9, 1, page, stream);
    upstream.dispose();
    await sleepResource(upstream, { keep: 'host' });
    await wakeResource(upstream);
    expect(valuesOf(pointer, page, stream)).toEqual([9]);
    await sleepResource(upstream, { keep: 'host' });
    upstream.deallocate(pointer, page, stream);
    await wakeResource(upstream);
  });

  test('uses streams of its own device only', async () => {
    needSecondDevice();
    const [first, second] = [Device.get(0), Device.get(1)];
    using far = new Stream({ device: second, nonBlocking: true });
    using resource = new VirtualMemoryResource({ device: second });
    const pointer = resource.allocate(page, far);
    const count = () => [first, second].map(({ index }) => StreamIdentity.ofDevice(index).length);
    const [ofFirst = 0, ofSecond = 0] = count();
    await sleepResource(resource, { keep: 'host' });
    expect(count()).toEqual([ofFirst, ofSecond + 1]);
    await wakeResource(resource);
    resource.deallocate(pointer, page, far);
  });

  test('keeps the access that other devices have', async () => {
    needSecondDevice();
    const [first, second] = [Device.get(0), Device.get(1)];
    if (!second.canAccessPeer(first)) skipTest('the devices cannot access each other');
    using far = new Stream({ device: second, nonBlocking: true });
    const pointer = upstream.allocate(page, stream);
    await sleepResource(upstream, { keep: 'nothing' });
    second.enablePeerAccess(first);
    try {
      await wakeResource(upstream);
      set(pointer, 6, 1, page, far);
      expect(valuesOf(pointer, page, far)).toEqual([6]);
    } finally {
      second.disablePeerAccess(first);
    }
    upstream.deallocate(pointer, page, stream);
  });
});

describe('while memory sleeps', () => {
  test('the message says what to do', async () => {
    const pointer = upstream.allocate(page, stream);
    await sleepResource(upstream, { keep: 'nothing' });
    expect(caught<Error>(() => set(pointer, 1, 1, 1, stream)).message).toBe(
      `cannot set memory: the memory at 0x${pointer.toString(16)} is asleep; await wakeResource() first`,
    );
    upstream.deallocate(pointer, page, stream);
  });

  test('whatever would use it is refused, and works again afterwards', async () => {
    using pool = new PoolMemoryResource(upstream);
    using buffer = new DeviceBuffer(page, { resource: pool, stream });
    using outside = new DeviceBuffer(page, { resource: new CudaMemoryResource(), stream });
    buffer.fill(1);
    const { ptr } = buffer;
    await sleepResource(pool, { keep: 'host' });
    const array = new Uint8Array(16);
    const refused: (() => unknown)[] = [
      () => pool.allocate(256, stream),
      () => upstream.allocate(page, stream),
      () => buffer.ptr,
      () => buffer.fill(2),
      () => buffer.toHostSync(),
      () => buffer.resize(2 * page),
      () => buffer.copyFrom(array),
      () => outside.copyFrom(buffer),
      () => toDLPack(buffer, { dtype: 'uint8', shape: [page] }),
      () => shareBuffer(buffer),
      () => detachBuffer(buffer),
      () => new DeviceBuffer(buffer, { resource: outside.resource, stream }),
      () => copy(outside.ptr, ptr, 16, stream),
      () => copy(ptr, outside.ptr, 16, stream),
      // The last byte alone.
      () => set(ptr - 15, 1, 1, 16, stream),
      () => copyFromHost(ptr, array, stream),
      () => copyToHostSync(array, ptr + page - 16, stream),
    ];
    for (const use of refused) expect(use, use.toString()).toThrow(asleep);
    await expect(copyToHost(ptr, 16, stream)).rejects.toThrow(asleep);
    expect([buffer.isDisposed, buffer.byteLength, outside.byteLength]).toEqual([false, page, page]);
    await wakeResource(pool);
    expect(valuesOf(buffer.ptr, page, stream)).toEqual([1]);
    using later = new DeviceBuffer(256, { resource: pool, stream });
    outside.copyFrom(buffer);
    later.fill(1);
  });

  test.each<[string, (upstream: MemoryResource) => MemoryResource]>([
    ['a pool', (below) => new PoolMemoryResource(below)],
    ['a pool behind an adaptor', (below) => new PoolMemoryResource(new LimitingResourceAdaptor(below, { limitBytes: GiB }))],
    ['a pool on a pool', (below) => new PoolMemoryResource(new PoolMemoryResource(below), { initialBytes: MiB })],
    ['an arena', (below) => new ArenaMemoryResource(below, { arenaBytes: 8 * MiB })],
    ['blocks of one size', (below) => new FixedSizeMemoryResource(below, { blockBytes: 64 * KiB, blocksToPreallocate: 32 })],
    ['a bump allocator', (below) => new MonotonicMemoryResource(below, { initialBytes: 4 * MiB })],
    ['a cache', (below) => new CachingMemoryResource(below)],
  ])('%s has nothing to give, even if it was just asked on the same stream', async (_name, make) => {
    const resource = make(upstream);
    const pointers = [1, 2, 3].map(() => resource.allocate(1000, stream));
    const [first = 0, second = 0, third = 0] = pointers;
    resource.deallocate(first, 1000, stream);
    const sleeping = sleepResource(resource, { keep: 'host' });
    expect(() => resource.allocate(1000, stream)).toThrow(asleep);
    await sleeping;
    expect(() => resource.allocate(1000, stream)).toThrow(asleep);
    // A free does not make the next request one of a known stream.
    resource.deallocate(second, 1000, stream);
    expect(() => resource.allocate(1000, stream)).toThrow(asleep);
    await wakeResource(resource);
    const again = resource.allocate(1000, stream);
    set(again, 1, 1, 1000, stream);
    resource.deallocate(again, 1000, stream);
    resource.deallocate(third, 1000, stream);
    for (const layer of layersOf(resource)) if (layer !== upstream) layer[Symbol.dispose]();
  });

  test('each of several pools on it gives free memory back, and has nothing to give', async () => {
    const pools = [1, 2, 3].map(() => new PoolMemoryResource(upstream));
    const pointers = pools.map((pool) => [pool.allocate(page, stream), pool.allocate(page, stream)] as const);
    for (const [i, pool] of pools.entries()) pool.deallocate((pointers[i] as readonly number[])[0] as number, page, stream);
    const sleeping = sleepResource(upstream, { keep: 'host' });
    for (const pool of pools) expect(() => pool.allocate(page, stream)).toThrow(asleep);
    expect(await sleeping).toMatchObject({ releasedBytes: 6 * page, keptBytes: 3 * page });
    await wakeResource(upstream);
    expect(upstream.reservedBytes).toBe(3 * page);
    for (const [i, pool] of pools.entries()) pool.deallocate((pointers[i] as readonly number[])[1] as number, page, stream);
    for (const pool of pools) pool.dispose();
  });

  test('a plan has nothing to give, and goes on afterwards', async () => {
    using pool = new PoolMemoryResource(upstream);
    using resource = new PlannedMemoryResource(pool, undefined, { planner: planAllocations, recordedPasses: 1 });
    const step = () => {
      resource.begin();
      const [a, b] = [resource.allocate(5000, stream), resource.allocate(6000, stream)];
      resource.deallocate(a, 5000, stream);
      resource.deallocate(b, 6000, stream);
      resource.end();
    };
    for (let i = 0; i < 4; i++) step();
    const { plannedAllocations } = resource.statistics();
    expect(plannedAllocations).toBe(0);
    resource.begin();
    const a = resource.allocate(5000, stream);
    const sleeping = sleepResource(resource, { keep: 'host' });
    expect(() => resource.allocate(6000, stream)).toThrow(asleep);
    await sleeping;
    expect(() => resource.allocate(6000, stream)).toThrow(asleep);
    await wakeResource(resource);
    const b = resource.allocate(6000, stream);
    set(a, 1, 1, 5000, stream);
    set(b, 2, 1, 6000, stream);
    expect(valuesOf(a, 5000, stream)).toEqual([1]);
    resource.deallocate(a, 5000, stream);
    resource.deallocate(b, 6000, stream);
    resource.end();
    step();
  });

  test('a plan that is followed has nothing to give, even after a free', async () => {
    using pool = new PoolMemoryResource(upstream);
    using resource = new PlannedMemoryResource(pool, planOf('+1@0:0 +2@0:1 -0@0 +1@0:0 -1@0 -2@0'));
    resource.begin();
    const a = resource.allocate(256, stream);
    const b = resource.allocate(512, stream);
    expect(resource.statistics().plannedAllocations).toBe(2);
    const sleeping = sleepResource(resource, { keep: 'host' });
    resource.deallocate(a, 256, stream);
    expect(() => resource.allocate(256, stream)).toThrow(asleep);
    await sleeping;
    // Neither a refused request nor a free makes the next request one of a known stream.
    expect(() => resource.allocate(256, stream)).toThrow(asleep);
    await wakeResource(resource);
    expect(resource.allocate(256, stream)).toBe(a);
    resource.deallocate(b, 512, stream);
    resource.deallocate(a, 256, stream);
    resource.end();
  });

  test('graphs are neither captured nor launched, and are valid afterwards', async () => {
    using graphs = new GraphMemoryResource(upstream);
    let output = 0;
    using graph = graphs.capture(stream, () => {
      const scratch = graphs.allocate(page, stream);
      output = graphs.allocate(4096, stream);
      set(scratch, 8, 1, page, stream);
      copy(output, scratch, 4096, stream);
      graphs.deallocate(scratch, page, stream);
    });
    using exec = graph.instantiate();
    exec.launch(stream);
    await sleepResource(graphs, { keep: 'host' });
    expect(() => exec.launch(stream)).toThrow(asleep);
    expect(() => graphs.capture(stream, () => {})).toThrow(asleep);
    await wakeResource(graphs);
    expect(valuesOf(output, 4096, stream)).toEqual([8]);
    set(output, 0, 1, 4096, stream);
    exec.launch(stream);
    expect(valuesOf(output, 4096, stream)).toEqual([8]);
  });

  test('a graph that keeps memory of its own is not launched either', async () => {
    using graphs = new GraphMemoryResource(upstream);
    using graph = graphs.capture(stream, () => set(graphs.kept.allocate(4096, stream), 8, 1, 4096, stream));
    using exec = graph.instantiate();
    await sleepResource(graphs, { keep: 'nothing' });
    expect(() => exec.launch(stream)).toThrow(asleep);
    await wakeResource(graphs);
    exec.launch(stream);
  });

  test('it can be freed', async () => {
    using checker = checkOrder();
    const pointer = upstream.allocate(6 * page, stream);
    set(pointer, 2, 1, 6 * page, stream);
    await sleepResource(upstream, { keep: 'host' });
    upstream.deallocate(pointer + page, page, stream);
    upstream.deallocate(pointer + 4 * page, 2 * page, stream);
    expect([upstream.reservedBytes, freeBytes()]).toEqual([0, freeBefore]);
    expect(await wakeResource(upstream)).toMatchObject({ mappedBytes: 3 * page });
    expect(valuesOf(pointer, page, stream)).toEqual([2]);
    expect(valuesOf(pointer + 2 * page, 2 * page, stream)).toEqual([2]);
    expect(() => set(pointer + page, 1, 1, 1, stream)).toThrow();
    // The holes serve again.
    expect(upstream.allocate(page, stream)).toBe(pointer + page);
    upstream.deallocate(pointer, 4 * page, stream);
    expect(checker.violations).toEqual([]);
  });

  test('the host memory goes back with the last allocation, and the addresses with the resource', async () => {
    const disposed = new VirtualMemoryResource();
    const pointer = disposed.allocate(page, stream);
    await sleepResource(disposed, { keep: 'host' });
    expect(pinnedBytes()).toBe(page);
    const before = driverCallCounts().byFunction['cuMemAddressFree'] as number;
    disposed.dispose();
    disposed.deallocate(pointer, page, stream);
    expect([pinnedBytes(), driverCallCounts().byFunction['cuMemAddressFree']]).toEqual([0, before + 1]);
    // Nothing is asleep any more.
    using other = new DeviceBuffer(page, { resource: upstream, stream });
    other.fill(1);
  });

  test('a pool is disposed with what is in it', async () => {
    const pool = new PoolMemoryResource(upstream);
    pool.allocate(page, stream);
    const buffer = new DeviceBuffer(page, { resource: pool, stream });
    await sleepResource(pool, { keep: 'host' });
    pool.dispose();
    expect(buffer.isDisposed).toBe(true);
    expect([upstream.reservedBytes, pinnedBytes()]).toEqual([0, 0]);
  });
});

describe('in stream order', () => {
  test('memory stays until what was queued has run, and keeps what that wrote', async () => {
    using other = new Stream({ nonBlocking: true });
    const pointer = upstream.allocate(2 * page, stream);
    set(pointer, 1, 1, 2 * page, stream);
    stream.synchronizeSync();
    const hold = other.hold();
    set(pointer, 7, 1, 2 * page, other);
    let hasSlept = false;
    const sleeping = sleepResource(upstream, { keep: 'host' }).then(() => {
      hasSlept = true;
    });
    for (let i = 0; i < 20; i++) await new Promise((resolve) => setTimeout(resolve, 1));
    expect([hasSlept, upstream.reservedBytes, freeBefore - freeBytes()]).toEqual([false, 2 * page, 2 * page]);
    hold.release();
    await sleeping;
    expect(freeBytes()).toBe(freeBefore);
    await wakeResource(upstream);
    expect(valuesOf(pointer, 2 * page, stream)).toEqual([7]);
    upstream.deallocate(pointer, 2 * page, stream);
  });

  test('a hold that begins meanwhile is waited for without blocking', async () => {
    using other = new Stream({ nonBlocking: true });
    const pointer = upstream.allocate(page, stream);
    const sleeping = sleepResource(upstream, { keep: 'nothing' });
    const hold = other.hold();
    for (let i = 0; i < 20; i++) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(upstream.reservedBytes).toBe(page);
    hold.release();
    await sleeping;
    expect(upstream.reservedBytes).toBe(0);
    await wakeResource(upstream);
    upstream.deallocate(pointer, page, stream);
  });

  test('the order checker sees every unmapping after every use, on all streams', async () => {
    using checker = checkOrder();
    using pool = new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' });
    const streams = [0, 1, 2].map(() => new Stream({ nonBlocking: true }));
    const buffers = streams.map((each) => new DeviceBuffer(page + 1000, { resource: pool, stream: each }));
    for (let cycle = 0; cycle < 3; cycle++) {
      for (const [i, buffer] of buffers.entries()) buffer.fill(cycle + i);
      await sleepResource(pool, { keep: 'host' });
      await wakeResource(pool);
      for (const [i, buffer] of buffers.entries()) {
        expect(valuesOf(buffer.ptr, buffer.byteLength, buffer.stream)).toEqual([cycle + i]);
      }
    }
    for (const each of [...buffers, ...streams]) each.dispose();
    expect(checker.violations).toEqual([]);
  });

  test('it sleeps if a host function asks for it', async () => {
    const pointer = upstream.allocate(page, stream);
    let sleeping: Promise<unknown> | undefined;
    stream.launchHostFunction(() => {
      sleeping = sleepResource(upstream, { keep: 'host' });
    });
    set(pointer, 9, 1, page, stream);
    await until(() => sleeping !== undefined);
    await sleeping;
    expect(freeBytes()).toBe(freeBefore);
    await wakeResource(upstream);
    expect(valuesOf(pointer, page, stream)).toEqual([9]);
    upstream.deallocate(pointer, page, stream);
  });

  test('it does not sleep while a stream is captured', async () => {
    const pointer = upstream.allocate(page, stream);
    using other = new Stream({ nonBlocking: true });
    other.beginCapture('thread-local');
    await expect(sleepResource(upstream, { keep: 'host' })).rejects.toThrow(code('ERR_CISTERN_CAPTURING'));
    expect([upstream.isAsleep, upstream.reservedBytes]).toEqual([false, page]);
    other.endCapture().dispose();
    // One that begins meanwhile.
    const sleeping = sleepResource(upstream, { keep: 'nothing' });
    await Promise.resolve();
    other.beginCapture('thread-local');
    await expect(sleeping).rejects.toThrow(code('ERR_CISTERN_CAPTURING'));
    other.endCapture().dispose();
    expect([upstream.isAsleep, upstream.reservedBytes]).toEqual([false, page]);
    set(pointer, 1, 1, page, stream);
    upstream.deallocate(pointer, page, stream);
  });

  test('it does not sleep while another worker may use a part of it', async () => {
    const buffer = new DeviceBuffer(page, { resource: upstream, stream });
    shareBuffer(buffer);
    await expect(sleepResource(upstream, { keep: 'host' })).rejects.toThrow(invalidState);
    expect([upstream.isAsleep, upstream.reservedBytes, pinnedBytes()]).toEqual([false, page, 0]);
    expect(buffer.toHostSync()).toHaveLength(page);
    buffer.dispose();
    await until(() => upstream.reservedBytes === 0);
    await sleepResource(upstream, { keep: 'host' });
    await wakeResource(upstream);
  });
});

describe('when a call fails', () => {
  beforeEach(needFaults);

  test('for want of device memory, all stays asleep and nothing is lost', async () => {
    needSmallDevice();
    using weights = new VirtualMemoryResource({ tag: 'weights' });
    using cache = new VirtualMemoryResource({ tag: 'cache' });
    using stack = new BinningMemoryResource(weights, { bins: [{ bytes: 2 * page, resource: cache }] });
    const [first, second] = [stack.allocate(8 * page, stream), stack.allocate(2 * page, stream)];
    set(first, 1, 1, 8 * page, stream);
    set(second, 2, 1, 2 * page, stream);
    await sleepResource(stack, { keep: 'host' });
    using plain = new CudaMemoryResource();
    // One of the two fits, whichever wakes first.
    const taken = freeBytes() - 9 * page;
    const pointer = plain.allocate(taken, stream);
    const error = await wakeResource(stack).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect((error as OutOfMemoryError).availableBytes).toBeGreaterThan(0);
    expect([weights.isAsleep, cache.isAsleep, freeBytes(), pinnedBytes()]).toEqual([true, true, 9 * page, 10 * page]);
    expect(() => copyToHostSync(new Uint8Array(1), first, stream)).toThrow(asleep);
    plain.deallocate(pointer, taken, stream);
    await wakeResource(stack);
    expect([valuesOf(first, 8 * page, stream), valuesOf(second, 2 * page, stream), pinnedBytes()]).toEqual([[1], [2], 0]);
    stack.deallocate(first, 8 * page, stream);
    stack.deallocate(second, 2 * page, stream);
  });

  test.each([
    ['cuMemHostAlloc', 1],
    ['cuMemcpyAsync', 1],
    ['cuMemUnmap', 1],
  ])('while it falls asleep, at %s, it is awake as before', async (name, nth) => {
    const pointer = upstream.allocate(3 * page, stream);
    set(pointer, 5, 1, 3 * page, stream);
    failCall(name, nth, 999);
    await expect(sleepResource(upstream, { keep: 'host' })).rejects.toThrow(code('ERR_CISTERN_DRIVER'));
    expect([upstream.isAsleep, upstream.reservedBytes, pinnedBytes()]).toEqual([false, 3 * page, 0]);
    expect(valuesOf(pointer, 3 * page, stream)).toEqual([5]);
    upstream.deallocate(pointer, 3 * page, stream);
  });

  test.each([1, 2])('while several fall asleep, for want of host memory for number %i, all are awake as before', async (nth) => {
    using weights = new VirtualMemoryResource();
    using cache = new VirtualMemoryResource();
    using stack = new BinningMemoryResource(weights, { bins: [{ bytes: page, resource: cache }] });
    const [first, second] = [stack.allocate(2 * page, stream), stack.allocate(page, stream)];
    set(first, 1, 1, 2 * page, stream);
    set(second, 2, 1, page, stream);
    failCall('cuMemHostAlloc', nth, 999);
    await expect(sleepResource(stack, { keep: 'host' })).rejects.toThrow(code('ERR_CISTERN_DRIVER'));
    expect([weights.isAsleep, cache.isAsleep, pinnedBytes()]).toEqual([false, false, 0]);
    expect([valuesOf(first, 2 * page, stream), valuesOf(second, page, stream)]).toEqual([[1], [2]]);
    // Either can be put to sleep again.
    await sleepResource(stack, { keep: 'host' });
    await wakeResource(stack);
    stack.deallocate(first, 2 * page, stream);
    stack.deallocate(second, page, stream);
  });

  test('while one of several falls asleep, what slept before sleeps on with its contents', async () => {
    using weights = new VirtualMemoryResource({ tag: 'weights' });
    using cache = new VirtualMemoryResource({ tag: 'cache' });
    using stack = new BinningMemoryResource(weights, { bins: [{ bytes: page, resource: cache }] });
    const [first, second] = [stack.allocate(2 * page, stream), stack.allocate(page, stream)];
    set(first, 1, 1, 2 * page, stream);
    set(second, 2, 1, page, stream);
    for (const [tag, kept] of [
      ['weights', 2 * page],
      ['cache', page],
    ] as const) {
      await sleepResource(stack, { keep: 'host', tag });
      failCall('cuMemcpyAsync', 1, 999);
      await expect(sleepResource(stack, { keep: 'host' })).rejects.toThrow(code('ERR_CISTERN_DRIVER'));
      expect([weights.isAsleep, cache.isAsleep, pinnedBytes()]).toEqual([tag === 'weights', tag === 'cache', kept]);
      expect(() => set(tag === 'weights' ? first : second, 1, 1, 1, stream)).toThrow(asleep);
      await wakeResource(stack, { tag });
      expect([valuesOf(first, 2 * page, stream), valuesOf(second, page, stream)]).toEqual([[1], [2]]);
    }
    stack.deallocate(first, 2 * page, stream);
    stack.deallocate(second, page, stream);
  });

  test.each(['sleeps again', 'wakes', 'is freed'])('after some pages were unmapped, the memory is asleep; then it %s', async (next) => {
    const pointer = upstream.allocate(3 * page, stream);
    set(pointer, 5, 1, 3 * page, stream);
    failCall('cuMemUnmap', 2, 999);
    await expect(sleepResource(upstream, { keep: 'host' })).rejects.toThrow(code('ERR_CISTERN_DRIVER'));
    expect([upstream.isAsleep, upstream.reservedBytes, freeBefore - freeBytes()]).toEqual([true, 2 * page, 2 * page]);
    expect(() => set(pointer, 1, 1, 1, stream)).toThrow(asleep);
    if (next === 'sleeps again') {
      expect(await sleepResource(upstream, { keep: 'nothing' })).toMatchObject({ releasedBytes: 2 * page });
      expect(freeBytes()).toBe(freeBefore);
    }
    if (next !== 'is freed') {
      await wakeResource(upstream);
      expect(valuesOf(pointer, 3 * page, stream)).toEqual([5]);
    }
    upstream.deallocate(pointer, 3 * page, stream);
  });

  test.each([
    ['cuMemCreate', 2],
    ['cuMemMap', 1],
    ['cuMemMap', 3],
    ['cuMemSetAccess', 1],
    ['cuMemcpyAsync', 1],
  ])('while it wakes, at call %s %i, it stays asleep, and wakes later', async (name, nth) => {
    // Two ranges.
    const pointer = upstream.allocate(5 * page, stream);
    set(pointer, 5, 1, 5 * page, stream);
    upstream.deallocate(pointer + 2 * page, page, stream);
    await sleepResource(upstream, { keep: 'host' });
    failCall(name, nth, 999);
    await expect(wakeResource(upstream)).rejects.toThrow(code('ERR_CISTERN_DRIVER'));
    expect([upstream.isAsleep, upstream.reservedBytes, freeBytes(), pinnedBytes()]).toEqual([true, 0, freeBefore, 4 * page]);
    await wakeResource(upstream);
    expect(valuesOf(pointer, 2 * page, stream)).toEqual([5]);
    expect(valuesOf(pointer + 3 * page, 2 * page, stream)).toEqual([5]);
    upstream.deallocate(pointer, 2 * page, stream);
    upstream.deallocate(pointer + 3 * page, 2 * page, stream);
  });

  test('a page that could neither be given access nor be unmapped has access once the memory is awake', async () => {
    const pointer = upstream.allocate(2 * page, stream);
    set(pointer, 5, 1, 2 * page, stream);
    await sleepResource(upstream, { keep: 'host' });
    failCall('cuMemSetAccess', 1, 999);
    failCall('cuMemUnmap', 2, 999);
    await expect(wakeResource(upstream)).rejects.toThrow(code('ERR_CISTERN_DRIVER'));
    await wakeResource(upstream);
    expect(valuesOf(pointer, 2 * page, stream)).toEqual([5]);
    upstream.deallocate(pointer, 2 * page, stream);
  });

  test('at the end, only the host memory is left to free: the next call does', async () => {
    const pointer = upstream.allocate(page, stream);
    set(pointer, 5, 1, page, stream);
    await sleepResource(upstream, { keep: 'host' });
    failCall('cuMemFreeHost', 1, 999);
    await expect(wakeResource(upstream)).rejects.toThrow(code('ERR_CISTERN_DRIVER'));
    expect([upstream.isAsleep, pinnedBytes()]).toEqual([false, page]);
    expect(valuesOf(pointer, page, stream)).toEqual([5]);
    // It frees what is kept, and restores nothing.
    expect(await wakeResource(upstream)).toMatchObject({ mappedBytes: 0, restoredBytes: 0 });
    expect(pinnedBytes()).toBe(0);
    upstream.deallocate(pointer, page, stream);
  });
});

test('memory stays until what another worker has queued there has run', () => {
  const inWorker = `const { workerData, parentPort } = require('node:worker_threads');
  import('${wholePackage}').then((cistern) => {
    const stream = new cistern.Stream({ nonBlocking: true });
    globalThis.kept = stream;
    for (let value = 1; value <= 60; value++) cistern.set(workerData.pointer, value, 1, workerData.bytes, stream);
    parentPort.postMessage(stream.query());
  });`;
  const end = runModule(`
    import { Worker } from 'node:worker_threads';
    import { once } from 'node:events';
    import { copyToHostSync, MiB, Stream, VirtualMemoryResource } from 'cistern';
import { checkOrder } from 'cistern/checking';
    import { sleepResource, wakeResource } from 'cistern/serving';
    const resource = new VirtualMemoryResource();
    const stream = new Stream({ nonBlocking: true });
    const bytes = 128 * MiB;
    const checker = checkOrder();
    const pointer = resource.allocate(bytes, stream);
    // What is made at the first time may wait for the device.
    await sleepResource(resource, { keep: 'host' });
    await wakeResource(resource);
    const worker = new Worker(${JSON.stringify(inWorker)}, { eval: true, execArgv: [], workerData: { pointer, bytes } });
    const [wasIdle] = await once(worker, 'message');
    await sleepResource(resource, { keep: 'host' });
    await wakeResource(resource);
    const contents = new Uint8Array(bytes);
    copyToHostSync(contents, pointer, stream);
    console.log(wasIdle, checker.violations.length, Buffer.from(contents.buffer).equals(Buffer.alloc(bytes, 60)));
    resource.deallocate(pointer, bytes, stream);
    await worker.terminate();
  `);
  expect(end).toEqual({ status: 0, signal: null, stdout: 'false 0 true\n', stderr: '' });
});

test('a worker that ends while its memory sleeps, or is on the way, leaves nothing', () => {
  const inWorker = (ending: string) => `import('${wholePackage}').then(async (cistern) => {
    const resource = new cistern.VirtualMemoryResource();
    const stream = new cistern.Stream();
    const pointer = resource.allocate(80 * cistern.MiB, stream);
    cistern.set(pointer, 1, 1, 80 * cistern.MiB, stream);
    globalThis.kept = [resource, stream];
    ${ending}
    require('node:worker_threads').parentPort.postMessage(0);
  });`;
  const asleepThen = 'await cistern.sleepResource(resource, { keep: "host" });';
  const workers = [asleepThen, 'cistern.sleepResource(resource, { keep: "host" });', `${asleepThen} cistern.wakeResource(resource);`];
  const end = runModule(`
    import { Worker } from 'node:worker_threads';
    import { once } from 'node:events';
    import { Device } from 'cistern';
    const before = Device.get().memoryInfo().freeBytes;
    for (const code of ${JSON.stringify(workers.map((ending) => `${inWorker(ending)} setInterval(() => {}, 1000)`))}) {
      const worker = new Worker(code, { eval: true, execArgv: [] });
      await once(worker, 'message');
      await worker.terminate();
      Device.get().synchronizeSync();
      console.log(Device.get().memoryInfo().freeBytes === before);
    }
  `);
  expect(end).toEqual({ status: 0, signal: null, stdout: 'true\ntrue\ntrue\n', stderr: '' });
});
