import { setImmediate, setTimeout } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { CachingMemoryResource } from '../../src/adaptors/pooling/caching-memory-resource.js';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { checkOrder } from '../../src/checking/order-checker.js';
import { heldMemory } from '../../src/collector/early-collection.js';
import { mayBeWithWorkers, watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { reclaimUnreachableBuffers } from '../../src/collector/reclaim-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { interpose } from '../../src/driver/native.js';
import { Event } from '../../src/driver/streams/event.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { wrapMemory } from '../../src/interchange/index.js';
import { CallbackMemoryResource } from '../../src/resources/callback-memory-resource.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { HostMemoryResource } from '../../src/resources/host-memory-resource.js';
import { ManagedMemoryResource } from '../../src/resources/managed-memory-resource.js';
import { PinnedHostMemoryResource } from '../../src/resources/pinned-host-memory-resource.js';
import { driverCallCounts } from '../../src/tools/testing/driver-call-counts.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import type { BufferMessage } from '../../src/workers/hand-over.js';
import { attachBuffer, detachBuffer, discardBuffer, shareBuffer } from '../../src/workers/index.js';
import { freeReturned } from '../../src/workers/take-returned-memory.js';
import { needSecondDevice } from '../support/device-memory.js';

import { caught, code } from '../support/errors.js';
import { madeElsewhere, policies } from '../support/stream-order.js';

let upstream: CudaMemoryResource;
let pool: PoolMemoryResource;
let giver: Stream;
let taker: Stream;
let watched: number;

beforeEach(() => {
  watched = watchedBuffers().count;
  upstream = new CudaMemoryResource();
  pool = new PoolMemoryResource(upstream, { initialBytes: 4 * MiB, maximumBytes: 4 * MiB });
  giver = new Stream({ nonBlocking: true });
  taker = new Stream({ nonBlocking: true });
});

afterEach(async () => {
  Device.get().synchronizeSync();
  await home();
  expect(pool.statistics().allocatedBytes, 'bytes that a test left behind').toBe(0);
  // Fewer if a test before was skipped halfway, and what it had is collected now.
  expect(watchedBuffers().count, 'buffers that a test left behind').toBeLessThanOrEqual(watched);
  pool.dispose();
  giver.dispose();
  taker.dispose();
});

/** Waits until the event loop has freed what has come home. */
async function home(resource = pool): Promise<void> {
  for (let turn = 0; turn < 200 && resource.statistics().allocatedBytes > 0; turn++) await setImmediate();
}

function given(byteLength = 4096, resource: PoolMemoryResource | CudaMemoryResource = pool): DeviceBuffer {
  return new DeviceBuffer(byteLength, { resource, stream: giver });
}

/** Different values in a buffer, as a set. */
function valuesOf(buffer: DeviceBuffer): number[] {
  return [...new Set(buffer.toHostSync())];
}

test('a worker asks others for collections as long as a buffer is away, and listens for what comes home once', async () => {
  const message = detachBuffer(given());
  expect(mayBeWithWorkers()).toBe(true);
  attachBuffer(message, { stream: taker }).dispose();
  await home();
  expect(mayBeWithWorkers()).toBe(false);
  let begun = 0;
  interpose(({ onReturned }) => ({
    onReturned: (callback) => {
      begun++;
      onReturned(callback);
    },
  }));
  discardBuffer(detachBuffer(given()));
  interpose();
  expect(begun).toBe(0);
});

describe('a detached buffer', () => {
  test('brings its taker memory that earlier events do not cover', () => {
    const message = detachBuffer(given());
    using event = new Event();
    event.record(taker);
    expect(taker.identity.receivedAt).toBeLessThan(event.version);
    using _attached = attachBuffer(message, { stream: taker });
    expect(taker.identity.receivedAt).toBe(event.version);
  });

  test('is disposed for its giver, and has the same contents, address and properties for its taker', () => {
    const buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource: pool, stream: giver, capacityBytes: 512, label: 'a name' });
    const { ptr } = buffer;
    const message = structuredClone(detachBuffer(buffer));
    expect(buffer).toMatchObject({ isDisposed: true, byteLength: 0, capacityBytes: 0 });
    expect(caught(() => buffer.ptr)).toEqual(code('ERR_CISTERN_DISPOSED'));
    expect(caught(() => detachBuffer(buffer))).toEqual(code('ERR_CISTERN_DISPOSED'));
    buffer.dispose();

    using attached = attachBuffer(message, { stream: taker });
    expect(attached).toMatchObject({ ptr, byteLength: 3, capacityBytes: 512, alignment: 256, label: 'a name', isDisposed: false });
    expect(attached.resource).toMatchObject({ memoryKind: 'device', device: giver.device });
    expect([...attached.toHostSync()]).toEqual([1, 2, 3]);
    expect(pool.statistics().allocatedBytes).toBe(512);
  });

  test('is empty if its giver had no memory', async () => {
    const message = detachBuffer(given(0));
    const before = driverCallCounts().byFunction['cuEventDestroy'] as number;
    using attached = attachBuffer(message, { stream: taker });
    expect(attached).toMatchObject({ ptr: 0, byteLength: 0, capacityBytes: 0 });
    // Nothing of it is left.
    using next = given(0);
    discardBuffer(detachBuffer(next));
    expect(driverCallCounts().byFunction['cuEventDestroy']).toBe(before + 2);
    using empty = given(0);
    expect(caught(() => shareBuffer(empty))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
  });

  test.each([
    ['CudaMemoryResource', CudaMemoryResource, 'device'],
    ['CudaAsyncMemoryResource', CudaAsyncMemoryResource, 'device'],
    ['ManagedMemoryResource', ManagedMemoryResource, 'managed'],
    ['PinnedHostMemoryResource', PinnedHostMemoryResource, 'pinned-host'],
    ['HostMemoryResource', HostMemoryResource, 'host'],
  ] as const)('may be memory of any resource: %s', async (_name, make, memoryKind) => {
    const resource = new make();
    const buffer = new DeviceBuffer(Uint8Array.of(1, 2), { resource, stream: giver });
    using attached = attachBuffer(detachBuffer(buffer), { stream: taker });
    expect(attached.resource.memoryKind).toBe(memoryKind);
    expect([...(await attached.toHost())]).toEqual([1, 2]);
    const bytesOf = () => [heldMemory(memoryKind, giver.device).heldBytes, resource.reservedBytes];
    const before = bytesOf();
    const next = attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: taker });
    using last = attachBuffer(detachBuffer(next), { stream: giver });
    expect(last.resource.memoryKind).toBe(memoryKind);
    expect(bytesOf()).not.toEqual(before);
    last.dispose();
    for (let turn = 0; turn < 200 && bytesOf().join() !== before.join(); turn++) await setTimeout(5);
    expect(bytesOf()).toEqual(before);
  });

  test('keeps its taker from reading before the giver has written', async () => {
    const buffer = given();
    buffer.fill(1);
    giver.synchronizeSync();
    const hold = giver.hold();
    buffer.fill(2);
    using attached = attachBuffer(detachBuffer(buffer), { stream: taker });
    const contents = attached.toHost();
    await setImmediate();
    const isWaiting = !taker.query();
    hold.release();
    expect(new Set(await contents)).toEqual(new Set([2]));
    expect(isWaiting).toBe(true);
  });

  test.each(policies)("returns to a pool that waits for the taker's work, with events: %s", async (deallocationEvents) => {
    using small = new PoolMemoryResource(upstream, { initialBytes: MiB, maximumBytes: MiB, deallocationEvents });
    const buffer = new DeviceBuffer(MiB, { resource: small, stream: giver });
    const { ptr } = buffer;
    buffer.fill(1);
    const attached = attachBuffer(detachBuffer(buffer), { stream: taker });
    const hold = taker.hold();
    const contents = attached.toHost();
    attached.dispose();
    // A turn of the event loop frees the memory, although the taker has not run.
    await home(small);
    expect(small.statistics().allocatedBytes).toBe(0);
    // Under 'off' the pool waits on the host.
    if (deallocationEvents === 'off') void setTimeout(20).then(() => hold.release());
    const next = deallocationEvents === 'off' ? undefined : new DeviceBuffer(MiB, { resource: small, stream: giver });
    next?.fill(2);
    await setImmediate();
    const isWaiting = !giver.query();
    hold.release();
    const values = new Set(await contents);
    using last = next ?? new DeviceBuffer(MiB, { resource: small, stream: giver });
    expect(last.ptr).toBe(ptr);
    expect(values).toEqual(new Set([1]));
    if (next !== undefined) expect(isWaiting).toBe(true);
  });

  test("does not make the giver's stream wait for the taker", async () => {
    const attached = attachBuffer(detachBuffer(given()), { stream: taker });
    const hold = taker.hold();
    attached.dispose();
    await home();
    using other = given();
    other.fill(1);
    const hasRun = giver.synchronize().then(() => true);
    const isFree = await Promise.race([hasRun, setTimeout(5000, false)]);
    hold.release();
    expect(isFree).toBe(true);
  });

  test('is there when memory runs out', () => {
    const buffer = given(4 * MiB);
    attachBuffer(detachBuffer(buffer), { stream: taker }).dispose();
    using next = given(4 * MiB);
    expect(next.byteLength).toBe(4 * MiB);
  });

  test('returns when its taker is collected', async () => {
    attachBuffer(detachBuffer(given()), { stream: taker }).fill(1);
    reclaimUnreachableBuffers('major');
    await home();
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  test('may be handed on, in the order of every stream, and returns to where it came from', async () => {
    const streams = Array.from({ length: 4 }, () => new Stream({ nonBlocking: true }));
    const holds = streams.map((stream) => stream.hold());
    let buffer = given();
    for (const [i, stream] of streams.entries()) {
      buffer.fill(i);
      const before = buffer;
      buffer = attachBuffer(detachBuffer(before), { stream });
      expect(before.isDisposed).toBe(true);
    }
    buffer.resize(100);
    buffer = attachBuffer(detachBuffer(buffer), { stream: taker });
    expect(buffer.byteLength).toBe(100);
    const contents = buffer.toHost();
    let waits = 0;
    for (const hold of holds.reverse()) {
      await setImmediate();
      if (!taker.query()) waits++;
      hold.release();
    }
    expect(new Set(await contents)).toEqual(new Set([3]));
    expect(waits).toBe(4);
    buffer.dispose();
    await home();
    expect(pool.statistics().allocatedBytes).toBe(0);
    for (const stream of streams) stream.dispose();
  });

  test('cannot grow, but can be moved to a resource of its taker', () => {
    using attached = attachBuffer(detachBuffer(given(256)), { stream: taker });
    attached.fill(5);
    attached.resize(100);
    expect(caught(() => attached.resize(1000))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
    expect(attached).toMatchObject({ byteLength: 100, capacityBytes: 256 });
    attached.recast(pool);
    attached.resize(1000);
    expect(valuesOf(attached).length).toBeGreaterThan(0);
    expect([...attached.toHostSync(new Uint8Array(100))].every((value) => value === 5)).toBe(true);
  });

  test('may be released and freed through its resource, once', async () => {
    const { ptr, capacityBytes, resource, stream } = attachBuffer(detachBuffer(given()), { stream: taker }).release();
    expect([resource, pool].map((each) => resource.isEqual(each))).toEqual([true, false]);
    resource.deallocate(0, capacityBytes, stream);
    expect(caught(() => resource.deallocate(ptr + 256, capacityBytes, stream))).toEqual(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(caught(() => resource.deallocate(ptr, capacityBytes - 1, stream))).toEqual(code('ERR_CISTERN_WRONG_SIZE'));
    expect(caught(() => resource.deallocate(ptr, capacityBytes, {} as Stream))).toEqual(code('ERR_INVALID_ARG_TYPE'));
    resource.deallocate(ptr, capacityBytes, stream);
    expect(caught(() => resource.deallocate(ptr, capacityBytes, stream))).toEqual(code('ERR_CISTERN_DISPOSED'));
    await home();
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  test('returns if the stream that it was given on, or taken up on, has ended', async () => {
    const first = new Stream();
    const second = new Stream();
    const buffer = new DeviceBuffer(4096, { resource: pool, stream: first });
    const attached = attachBuffer(detachBuffer(buffer), { stream: second });
    first.dispose();
    second.dispose();
    attached.dispose();
    await home();
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  test('returns although the order checker watches, which reports nothing', async () => {
    using checker = checkOrder();
    const buffer = given();
    buffer.fill(1);
    const attached = attachBuffer(detachBuffer(buffer), { stream: taker });
    attached.fill(2);
    attached.dispose();
    await home();
    using next = given();
    next.fill(3);
    expect(checker.violations).toEqual([]);
  });

  test('leaves the run of a cache that it was allocated in', async () => {
    using cache = new CachingMemoryResource(upstream);
    const message = cache.run(() => detachBuffer(new DeviceBuffer(Uint8Array.of(1, 2), { stream: giver })));
    const attached = attachBuffer(message, { stream: taker });
    expect([...attached.toHostSync()]).toEqual([1, 2]);
    attached.dispose();
    await setImmediate();
  });
});

describe('a message', () => {
  test('can be attached once', () => {
    const message = detachBuffer(given());
    using attached = attachBuffer(message, { stream: taker });
    const error = caught<Error>(() => attachBuffer(message, { stream: taker }));
    expect(error).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    expect(error.message).toBe(
      `cannot attach a buffer: message ${message.number} was already attached or discarded, or the worker that made it has ended`,
    );
    expect(attached.isDisposed).toBe(false);
  });

  test('of an earlier hand-over cannot be attached', () => {
    const first = detachBuffer(given());
    const second = detachBuffer(attachBuffer(first, { stream: taker }));
    expect(caught(() => attachBuffer(first, { stream: taker }))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    attachBuffer(second, { stream: taker }).dispose();
  });

  test('is refused if nobody made it, and the right one stays valid', () => {
    const message = detachBuffer(given());
    const forged = [
      { ...message, nonce: message.nonce + 1 },
      { ...message, number: message.number + 1 },
      { ...message, number: 0 },
    ];
    for (const each of forged) {
      const error = caught<Error>(() => attachBuffer(each, { stream: taker }));
      expect(error).toEqual(code('ERR_CISTERN_FOREIGN_MESSAGE'));
      expect(error.message).toContain(`message ${each.number} with nonce ${each.nonce}`);
      expect(caught(() => discardBuffer(each))).toEqual(code('ERR_CISTERN_FOREIGN_MESSAGE'));
    }
    attachBuffer(message, { stream: taker }).dispose();
  });

  test.each([
    undefined,
    null,
    7,
    'message',
    {},
    { kind: 'cistern-stream', number: 1, nonce: 1 },
    { kind: 'cistern-buffer', number: 1.5, nonce: 1 },
    { kind: 'cistern-buffer', number: 1, nonce: -1 },
    { kind: 'cistern-buffer', number: 1n, nonce: 1 },
    { kind: 'cistern-buffer', number: 1, nonce: 1, label: 7 },
  ])('must have the form of one: %o', (message) => {
    const error = caught<Error>(() => attachBuffer(message as BufferMessage, { stream: taker }));
    expect(error).toEqual(code('ERR_INVALID_ARG_TYPE'));
    expect(error.message).toMatch(/^message must come from a buffer that was detached or shared, got /);
    expect(caught(() => discardBuffer(message as BufferMessage))).toEqual(code('ERR_INVALID_ARG_TYPE'));
  });

  test('stays valid if attaching it fails', () => {
    const message = detachBuffer(given());
    const ended = new Stream();
    ended.dispose();
    expect(caught(() => attachBuffer(message, { stream: ended }))).toEqual(code('ERR_CISTERN_DISPOSED'));
    expect(caught(() => attachBuffer(message, {} as { stream: Stream }))).toEqual(code('ERR_INVALID_ARG_TYPE'));
    failCall('cuStreamWaitEvent');
    expect(caught(() => attachBuffer(message, { stream: taker }))).toEqual(code('ERR_CISTERN_DRIVER'));
    attachBuffer(message, { stream: taker }).dispose();
  });

  test('is refused on a stream of another device, and stays valid', () => {
    needSecondDevice();
    using stream = new Stream({ device: Device.get(1) });
    const message = detachBuffer(given());
    expect(caught(() => attachBuffer(message, { stream }))).toEqual(code('ERR_INVALID_ARG_VALUE'));
    attachBuffer(message, { stream: taker }).dispose();
    // What is known of the last message is not known of this one.
    expect(caught(() => attachBuffer(message, { stream }))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
  });

  test('of memory of another device is attached there', () => {
    needSecondDevice();
    const device = Device.get(1);
    using stream = new Stream({ device });
    const message = detachBuffer(new DeviceBuffer(Uint8Array.of(7), { resource: new CudaMemoryResource({ device }), stream }));
    expect(caught(() => attachBuffer(message, { stream: taker }))).toEqual(code('ERR_INVALID_ARG_VALUE'));
    using attached = attachBuffer(message, { stream });
    expect(attached.resource.device).toBe(device);
    expect(attached.toHostSync()).toEqual(Uint8Array.of(7));
  });

  test('is not made for memory that was wrapped', () => {
    using owner = given();
    using wrapped = wrapMemory({ ptr: owner.ptr, byteLength: owner.byteLength, stream: giver });
    expect(caught(() => detachBuffer(wrapped))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
    expect(caught(() => shareBuffer(wrapped))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
    expect(wrapped.isDisposed).toBe(false);
  });

  test('is not made if the driver records no event, and the buffer stays as it was', () => {
    using pinned = new PinnedHostMemoryResource();
    using buffer = new DeviceBuffer(4096, { resource: pinned, stream: giver });
    const view = buffer.hostView(Uint8Array);
    for (const name of ['cuEventCreate', 'cuEventRecord']) {
      failCall(name);
      expect(caught(() => detachBuffer(buffer))).toEqual(code('ERR_CISTERN_DRIVER'));
      failCall(name);
      expect(caught(() => shareBuffer(buffer))).toEqual(code('ERR_CISTERN_DRIVER'));
      expect(buffer).toMatchObject({ isDisposed: false, byteLength: 4096 });
      expect(view).toHaveLength(4096);
    }
  });

  test('that is discarded frees the memory, and cannot be attached', async () => {
    const message = detachBuffer(given());
    const hold = giver.hold();
    expect(discardBuffer(message)).toBe(true);
    expect(pool.statistics().allocatedBytes).toBe(0);
    expect(discardBuffer(message)).toBe(false);
    expect(caught(() => attachBuffer(message, { stream: taker }))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    hold.release();
  });

  test('that is attached cannot be discarded', () => {
    const message = detachBuffer(given());
    using attached = attachBuffer(message, { stream: taker });
    expect(discardBuffer(message)).toBe(false);
    expect(attached.isDisposed).toBe(false);
  });
});

describe('a pool with memory that was given away', () => {
  /** A resource on a pool that refuses its first free. */
  function refusingFirst(own: PoolMemoryResource): { readonly resource: CallbackMemoryResource; readonly frees: () => number } {
    let frees = 0;
    const resource = new CallbackMemoryResource(
      (bytes, stream) => own.allocate(bytes, stream),
      (pointer, bytes, stream) => {
        if (frees++ === 0) throw new Error('refused');
        own.deallocate(pointer, bytes, stream);
      },
    );
    return { resource, frees: () => frees };
  }

  test('takes it back once more if its free was refused when it came home', () => {
    const own = new PoolMemoryResource(upstream);
    const { resource, frees } = refusingFirst(own);
    attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: taker }).dispose();
    Device.get().synchronizeSync();
    expect(freeReturned(true)).toBe(0);
    expect(own.statistics().allocatedBytes).toBe(4096);
    own.dispose();
    expect(frees()).toBe(2);
  });

  test('takes it back once more if its free is refused meanwhile', () => {
    const own = new PoolMemoryResource(upstream);
    const { resource, frees } = refusingFirst(own);
    detachBuffer(new DeviceBuffer(4096, { resource, stream: giver }));
    own.dispose();
    expect(frees()).toBe(2);
  });

  test('waits for the work of the giver if it is memory of the host', () => {
    using pinned = new PinnedHostMemoryResource();
    const own = new PoolMemoryResource(pinned);
    using work = new DeviceBuffer(64 * MiB, { resource: upstream, stream: giver });
    for (let i = 0; i < 4; i++) work.fill(i);
    detachBuffer(new DeviceBuffer(4096, { resource: own, stream: giver }));
    own.dispose();
    expect(giver.query()).toBe(true);
    expect(pinned.reservedBytes).toBe(0);
  });

  test('takes it back when it is disposed, if nobody has attached it', () => {
    const own = new PoolMemoryResource(upstream);
    const message = detachBuffer(given(4096, own));
    own.dispose();
    expect(caught(() => attachBuffer(message, { stream: taker }))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
  });

  test('disposes a taker of this worker with its other buffers', () => {
    const own = new PoolMemoryResource(upstream);
    const attached = attachBuffer(detachBuffer(given(4096, own)), { stream: taker });
    own.dispose();
    expect(attached.isDisposed).toBe(true);
    attached.dispose();
  });

  test('waits once for the device for all takers of this worker whose streams may be gone', () => {
    const own = new PoolMemoryResource(upstream);
    const { address, destroy } = madeElsewhere();
    using foreign = Stream.fromHandle(address);
    const attached = [1, 2, 3].map(() => attachBuffer(detachBuffer(given(4096, own)), { stream: foreign }));
    destroy();
    const waits = () => driverCallCounts().byFunction['cuCtxSynchronize'] as number;
    const before = waits();
    own.dispose();
    expect(waits() - before).toBe(1);
    expect(attached.map(({ isDisposed }) => isDisposed)).toEqual([true, true, true]);
    for (const each of attached) each.dispose();
  });

  test('takes back what has come home but was not freed yet', () => {
    const own = new PoolMemoryResource(upstream);
    attachBuffer(detachBuffer(given(4096, own)), { stream: taker }).dispose();
    own.dispose();
    expect(own.statistics().allocatedBytes).toBe(0);
  });
});

describe('a refused driver call', () => {
  test('leaves the buffer with its taker if no event can be recorded', async () => {
    const attached = attachBuffer(detachBuffer(given()), { stream: taker });
    failCall('cuEventRecord');
    expect(caught(() => attached.dispose())).toEqual(code('ERR_CISTERN_DRIVER'));
    expect(attached.isDisposed).toBe(false);
    failCall('cuEventRecord');
    expect(caught(() => detachBuffer(attached))).toEqual(code('ERR_CISTERN_DRIVER'));
    expect(attached.isDisposed).toBe(false);
    attached.dispose();
  });

  test('delays the return until the stream can wait', async () => {
    const attached = attachBuffer(detachBuffer(given()), { stream: taker });
    const hold = taker.hold();
    attached.dispose();
    failCall('cuStreamWaitEvent');
    await setImmediate();
    await setImmediate();
    const { allocatedBytes } = pool.statistics();
    reclaimUnreachableBuffers('minor');
    hold.release();
    expect(allocatedBytes).toBe(4096);
    expect(pool.statistics().allocatedBytes).toBe(0);
  });
});

describe('a shared buffer', () => {
  test('counts for early collection where it is attached', async () => {
    const held = heldMemory('device', giver.device);
    const message = detachBuffer(given(4096));
    const { heldBytes } = held;
    const attached = attachBuffer(message, { stream: taker });
    expect(held.heldBytes - heldBytes).toBe(4096);
    attached.dispose();
    expect(held.heldBytes).toBe(heldBytes);
  });

  test('counts once for early collection', async () => {
    const held = heldMemory('device', giver.device);
    const { heldBytes } = held;
    using buffer = given(4096);
    shareBuffer(buffer);
    expect(held.heldBytes - heldBytes).toBe(4096);
    buffer.dispose();
    await home();
    expect(held.heldBytes).toBe(heldBytes);
  });

  test('can be attached any number of times, and is freed after the last', async () => {
    const buffer = given();
    buffer.fill(7);
    const message = shareBuffer(buffer);
    expect(shareBuffer(buffer)).toEqual(message);
    expect(buffer.isDisposed).toBe(false);
    const attached = [0, 1, 2].map(() => attachBuffer(structuredClone(message), { stream: taker }));
    for (const each of [buffer, ...attached]) expect(valuesOf(each)).toEqual([7]);
    attached[0]?.dispose();
    buffer.dispose();
    await setImmediate();
    expect(pool.statistics().allocatedBytes).toBe(4096);
    expect(caught(() => attachBuffer(message, { stream: taker }))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    attached[2]?.dispose();
    attached[1]?.dispose();
    await home();
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  test('can be attached after others have given it back', () => {
    const buffer = given();
    const message = shareBuffer(buffer);
    for (let i = 0; i < 30; i++) attachBuffer(message, { stream: taker }).dispose();
    expect(buffer.isDisposed).toBe(false);
    buffer.dispose();
  });

  test('is read-only', () => {
    using buffer = given();
    const message = shareBuffer(buffer);
    using attached = attachBuffer(message, { stream: taker });
    using source = given();
    for (const each of [buffer, attached]) {
      expect(caught(() => each.fill(1))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
      expect(caught(() => each.copyFrom(source))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
      expect(caught(() => detachBuffer(each))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
      expect(caught(() => each.resize(8192))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
    }
  });

  test('waits for every taker before its memory is used again', async () => {
    const streams = Array.from({ length: 12 }, () => new Stream({ nonBlocking: true }));
    const buffer = given(4 * MiB);
    buffer.fill(1);
    const message = shareBuffer(buffer);
    const holds = streams.map((stream) => {
      const attached = attachBuffer(message, { stream });
      const hold = stream.hold();
      const contents = attached.toHost({ byteLength: 256 });
      attached.dispose();
      return { hold, contents };
    });
    buffer.dispose();
    await home();
    using next = given(4 * MiB);
    next.fill(2);
    let waits = 0;
    // The last one to run is neither the first taker nor the last.
    for (const [i, { hold }] of [...holds.slice(6), ...holds.slice(0, 6)].entries()) {
      // Long enough for work that does not wait to finish.
      if (i === 11) await setTimeout(30);
      if (!giver.query()) waits++;
      hold.release();
    }
    expect(waits).toBe(12);
    for (const { contents } of holds) expect(new Set(await contents)).toEqual(new Set([1]));
    for (const stream of streams) stream.dispose();
  });

  test('may have been attached itself, and is then shared by its taker', async () => {
    const attached = attachBuffer(detachBuffer(given()), { stream: taker });
    attached.fill(3);
    const message = shareBuffer(attached);
    using other = attachBuffer(message, { stream: giver });
    attached.dispose();
    expect(valuesOf(other)).toEqual([3]);
  });

  test('keeps its memory if its message is discarded', () => {
    using buffer = given();
    const message = shareBuffer(buffer);
    expect(discardBuffer(message)).toBe(true);
    expect(caught(() => attachBuffer(message, { stream: taker }))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    expect(buffer.isDisposed).toBe(false);
  });
});
