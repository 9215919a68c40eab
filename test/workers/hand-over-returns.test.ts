import { setImmediate, setTimeout } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import { AlignedResourceAdaptor } from '../../src/adaptors/pass-through/aligned-resource-adaptor.js';
import { CachingMemoryResource } from '../../src/adaptors/pooling/caching-memory-resource.js';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { freeUnreachableBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { CallbackMemoryResource } from '../../src/resources/callback-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { HostMemoryResource } from '../../src/resources/host-memory-resource.js';
import { PinnedHostMemoryResource } from '../../src/resources/pinned-host-memory-resource.js';
import { driverCallCounts } from '../../src/tools/testing/driver-call-counts.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import type { BufferMessage } from '../../src/workers/hand-over.js';
import { attachBuffer, detachBuffer, discardBuffer, shareBuffer } from '../../src/workers/index.js';
import { freeReturned } from '../../src/workers/take-returned-memory.js';
import { needSecondDevice } from '../support/device-memory.js';
import { allocationsMayWait } from '../support/direct-faults.mjs';
import { caught, code } from '../support/errors.js';
import { skipTest } from '../support/skip-test.js';
import { madeElsewhere } from '../support/stream-order.js';

/** Waits until the event loop has freed what has come home. */
async function home({ reservedBytes }: { readonly reservedBytes: number }, resource: { readonly reservedBytes: number }): Promise<void> {
  for (let turn = 0; turn < 200 && resource.reservedBytes > reservedBytes; turn++) await setTimeout(5);
}

// A free of host memory waits for its stream on the host.
describe.each([
  ['pinned', () => new PinnedHostMemoryResource()],
  ['host', () => new HostMemoryResource()],
] as const)('%s memory', (_, make) => {
  test("comes home once the taker's work has run, and not before", async () => {
    if (allocationsMayWait) skipTest('an allocation of this driver waits for the stream that the test holds');
    using resource = make();
    using giver = new Stream({ nonBlocking: true });
    using taker = new Stream({ nonBlocking: true });
    const before = { reservedBytes: resource.reservedBytes };
    const attached = [1, 2].map(() => {
      return attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: taker });
    });
    const hold = taker.hold();
    attached[0]?.fill(1);
    for (const buffer of attached) buffer.dispose();
    // None of these may wait for the taker.
    for (let turn = 0; turn < 5; turn++) await setImmediate();
    detachBuffer(new DeviceBuffer(4096, { resource, stream: giver }));
    const { reservedBytes } = resource;
    hold.release();
    expect(reservedBytes).toBe(before.reservedBytes + 3 * 4096);
    await home({ reservedBytes: before.reservedBytes + 4096 }, resource);
    expect(resource.reservedBytes).toBe(before.reservedBytes + 4096);
  });

  test('comes home by itself, however long its taker takes', async () => {
    using resource = make();
    using giver = new Stream({ nonBlocking: true });
    using taker = new Stream({ nonBlocking: true });
    const before = { reservedBytes: resource.reservedBytes };
    const attached = attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: taker });
    const hold = taker.hold();
    attached.dispose();
    await setTimeout(20);
    hold.release();
    await home(before, resource);
    expect(resource.reservedBytes).toBe(before.reservedBytes);
  });

  test("does not wait for later work of the giver's stream", async () => {
    using resource = make();
    using giver = new Stream({ nonBlocking: true });
    using taker = new Stream({ nonBlocking: true });
    const before = { reservedBytes: resource.reservedBytes };
    attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: taker }).dispose();
    taker.synchronizeSync();
    const hold = giver.hold();
    await home(before, resource);
    hold.release();
    // Less if the test before was skipped halfway, and its buffers come home now.
    expect(resource.reservedBytes).toBeLessThanOrEqual(before.reservedBytes);
  });
});

describe('memory of the host', () => {
  test('that comes home does not wait for what came home before, and is in use', async () => {
    using resource = new PinnedHostMemoryResource();
    using giver = new Stream({ nonBlocking: true });
    using busy = new Stream({ nonBlocking: true });
    using idle = new Stream({ nonBlocking: true });
    const before = { reservedBytes: resource.reservedBytes };
    const attached = [busy, idle].map((stream) =>
      attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream }),
    );
    giver.synchronizeSync();
    const hold = busy.hold();
    for (const each of attached) each.dispose();
    idle.synchronizeSync();
    const freedBytes = freeReturned(false);
    hold.release();
    expect(freedBytes).toBe(4096);
    await home(before, resource);
  });

  test('comes home to a sweep although it is in use, and is then waited for', () => {
    using resource = new PinnedHostMemoryResource();
    using upstream = new CudaMemoryResource();
    using giver = new Stream({ nonBlocking: true });
    using taker = new Stream({ nonBlocking: true });
    using work = new DeviceBuffer(64 * MiB, { resource: upstream, stream: taker });
    const attached = attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: taker });
    for (let i = 0; i < 4; i++) work.fill(i);
    attached.dispose();
    expect(freeUnreachableBuffers()).toBe(4096);
    expect(taker.query()).toBe(true);
  });
});

describe('memory that comes home after its stream has ended', () => {
  const frees: { readonly stream: Stream; readonly free: () => void }[] = [];
  /** A resource that notes on which streams it is told to free, and frees when the test has ended. */
  const noting = (upstream: CudaMemoryResource | PinnedHostMemoryResource) =>
    new CallbackMemoryResource(
      (bytes, stream) => upstream.allocate(bytes, stream),
      (pointer, bytes, stream) => {
        frees.push({ stream, free: () => upstream.deallocate(pointer, bytes, stream) });
      },
      { memoryKind: upstream.memoryKind, device: upstream.device },
    );
  afterEach(() => {
    for (const { free } of frees.splice(0)) free();
  });

  /** Gives 4096 bytes of a resource to a taker and back; the giver has ended. Returns the streams of the frees. */
  function streamsOf(
    device: Device,
    returns: readonly { readonly resource: CallbackMemoryResource; readonly isBusy: boolean }[],
    mayWait = false,
  ): Stream[] {
    using taker = new Stream({ device, nonBlocking: true });
    using busy = new Stream({ device, nonBlocking: true });
    const giver = new Stream({ device, nonBlocking: true });
    const attached = returns.map(({ resource, isBusy }) => {
      return attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: isBusy ? busy : taker });
    });
    giver.dispose();
    device.synchronizeSync();
    const hold = busy.hold();
    for (const each of attached) each.dispose();
    taker.synchronizeSync();
    const freedBytes = freeReturned(mayWait);
    hold.release();
    expect(freedBytes).toBe(4096 * returns.length);
    return frees.map(({ stream }) => stream);
  }

  test('is freed on one stream if its taker has work, and on another one if nobody uses it any more', () => {
    using plain = new CudaMemoryResource();
    using pinned = new PinnedHostMemoryResource();
    const [device, host] = [noting(plain), noting(pinned)];
    const streams = streamsOf(plain.device, [
      { resource: device, isBusy: true },
      { resource: host, isBusy: false },
      { resource: device, isBusy: false },
      { resource: device, isBusy: true },
    ]);
    expect(streams[0]).not.toBe(streams[1]);
    expect(streams.slice(2)).toEqual([streams[1], streams[0]]);
    // Work on the legacy default stream must not wait for that of a taker.
    for (const each of streams) expect(each).toMatchObject({ isNonBlocking: true, device: plain.device });
  });

  test('is freed on the same two if it is of the host, and has to wait', () => {
    using pinned = new PinnedHostMemoryResource();
    const host = noting(pinned);
    const [first, second] = streamsOf(
      Device.get(),
      [
        { resource: host, isBusy: true },
        { resource: host, isBusy: false },
      ],
      true,
    );
    expect(first).not.toBe(second);
  });

  test('is freed on a stream of its own device, or after a wait for it if the driver makes no stream', () => {
    needSecondDevice();
    const device = Device.get(1);
    using plain = new CudaMemoryResource({ device });
    const resource = noting(plain);
    const giver = new Stream({ device, nonBlocking: true });
    attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource, stream: giver })), { stream: giver }).dispose();
    giver.dispose();
    device.synchronizeSync();
    // The first return of the device would make the stream.
    failCall('cuStreamCreateWithPriority');
    expect(freeReturned(false)).toBe(4096);
    const [first, second] = streamsOf(device, [{ resource, isBusy: false }]);
    expect(first?.device).toBe(device);
    expect(second?.device).toBe(device);
    expect(first).not.toBe(second);
  });
});

describe('memory of a run of a cache', () => {
  test('leaves the run if it is detached elsewhere while the run goes on', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    using stream = new Stream({ nonBlocking: true });
    let buffer: DeviceBuffer | undefined;
    let resolve = () => {};
    const promise = new Promise<void>((resolved) => {
      resolve = resolved;
    });
    const run = cache.run(async () => {
      buffer = new DeviceBuffer(MiB, { stream });
      new DeviceBuffer(MiB, { stream });
      await promise;
    });
    const message = detachBuffer(buffer as DeviceBuffer);
    resolve();
    await run;
    using attached = attachBuffer(message, { stream });
    expect(attached.byteLength).toBe(MiB);
    attached.dispose();
    await setTimeout(5);
  });

  test('leaves the run if an adaptor above the cache has aligned it', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    using resource = new AlignedResourceAdaptor(cache, { alignment: 4096 });
    using stream = new Stream({ nonBlocking: true });
    const messages = cache.run(() => {
      new DeviceBuffer(256, { stream });
      const buffers = [1, 2, 3].map(() => new DeviceBuffer(1024, { resource, stream }));
      return buffers.map((buffer) => detachBuffer(buffer));
    });
    const attached = messages.map((message) => attachBuffer(message, { stream }));
    expect(attached.map(({ byteLength }) => byteLength)).toEqual([1024, 1024, 1024]);
    for (const buffer of attached) buffer.dispose();
    stream.synchronizeSync();
    discardBuffer(detachBuffer(new DeviceBuffer(256, { resource: upstream, stream })));
  });
});

describe('memory that has come home', () => {
  const calls = () => {
    const {
      cuStreamWaitEvent: waits = 0,
      cuEventRecord: records = 0,
      cuCtxSynchronize: synchronizations = 0,
    } = driverCallCounts().byFunction;
    return { waits, records, synchronizations };
  };

  /** Gives memory of a pool away on a stream and takes it back; its taker has no work left. Returns the driver's calls of the return. */
  function returnOf(pool: PoolMemoryResource, giver: Stream, meanwhile = () => {}): ReturnType<typeof calls> {
    using taker = new Stream({ nonBlocking: true });
    attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource: pool, stream: giver })), { stream: taker }).dispose();
    Device.get().synchronizeSync();
    meanwhile();
    const before = calls();
    expect(freeUnreachableBuffers()).toBe(4096);
    const after = calls();
    return {
      waits: after.waits - before.waits,
      records: after.records - before.records,
      synchronizations: after.synchronizations - before.synchronizations,
    };
  }

  test("is its stream's again, which waits for nothing", () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { maximumBytes: 1 * MiB, initialBytes: 1 * MiB, deallocationEvents: 'deferred' });
    using giver = new Stream({ nonBlocking: true });
    expect(returnOf(pool, giver)).toEqual({ waits: 0, records: 0, synchronizations: 0 });
    const before = calls();
    const all = pool.allocate(1 * MiB, giver);
    expect(calls()).toEqual(before);
    pool.deallocate(all, 1 * MiB, giver);
  });

  test('is freed without a wait or an event if its stream has ended', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' });
    using taker = new Stream({ nonBlocking: true });
    const giver = new Stream({ nonBlocking: true });
    attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource: pool, stream: giver })), { stream: taker }).dispose();
    giver.dispose();
    Device.get().synchronizeSync();
    const before = calls();
    expect(freeUnreachableBuffers()).toBe(4096);
    expect(calls()).toEqual(before);
  });

  test('is freed without a wait or an event if its stream is of somebody who does not announce its end', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' });
    const { address, destroy } = madeElsewhere();
    using giver = Stream.fromHandle(address);
    expect(returnOf(pool, giver, destroy)).toEqual({ waits: 0, records: 0, synchronizations: 0 });
  });

  test('is counted by the sweep that frees it', () => {
    using upstream = new CudaMemoryResource();
    using giver = new Stream({ nonBlocking: true });
    using taker = new Stream({ nonBlocking: true });
    const messages = [4096, 512].map((bytes) => detachBuffer(new DeviceBuffer(bytes, { resource: upstream, stream: giver })));
    const attached = messages.map((message) => attachBuffer(message, { stream: taker }));
    for (const each of attached) each.dispose();
    Device.get().synchronizeSync();
    expect(freeUnreachableBuffers()).toBe(4608);
    expect(freeUnreachableBuffers()).toBe(0);
    expect(upstream.reservedBytes).toBe(0);
  });
});

describe('an attached buffer', () => {
  test('of memory of the host may be on a stream of another device', () => {
    needSecondDevice();
    using pinned = new PinnedHostMemoryResource();
    using giver = new Stream({ nonBlocking: true });
    using taker = new Stream({ device: Device.get(1), nonBlocking: true });
    using attached = attachBuffer(detachBuffer(new DeviceBuffer(Uint8Array.of(9), { resource: pinned, stream: giver })), {
      stream: taker,
    });
    expect(attached.toHostSync()).toEqual(Uint8Array.of(9));
  });

  test('without memory keeps its label and its alignment', () => {
    using stream = new Stream({ nonBlocking: true });
    const given = new DeviceBuffer(0, { resource: new CudaMemoryResource(), stream, label: 'none', alignment: 4096 });
    using attached = attachBuffer(detachBuffer(given), { stream });
    expect(attached).toMatchObject({ byteLength: 0, capacityBytes: 0, label: 'none', alignment: 4096 });
    const message = detachBuffer(new DeviceBuffer(0, { resource: new CudaMemoryResource(), stream }));
    expect(message).not.toHaveProperty('label');
    using unlabelled = attachBuffer(message, { stream });
    expect(unlabelled.label).toBeUndefined();
    // Its memory is of this worker then.
    unlabelled.resize(256);
    expect(unlabelled.toHostSync()).toHaveLength(256);
  });

  test('keeps its memory, whatever other buffers of its resource do', async () => {
    using upstream = new CudaMemoryResource();
    using giver = new Stream({ nonBlocking: true });
    using taker = new Stream({ nonBlocking: true });
    using attached = attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource: upstream, stream: giver })), { stream: taker });
    const { resource } = attached;
    const message = detachBuffer(new DeviceBuffer(0, { resource, stream: taker }));
    attachBuffer(message, { stream: taker }).dispose();
    expect(caught(() => attachBuffer(message, { stream: taker }))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    using empty = new DeviceBuffer(0, { resource, stream: taker });
    expect(caught(() => shareBuffer(empty))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
    expect(upstream.reservedBytes).toBe(4096);
    attached.dispose();
    await home({ reservedBytes: 0 }, upstream);
    expect(upstream.reservedBytes).toBe(0);
  });

  test('is what one reading of the message says', () => {
    using upstream = new CudaMemoryResource();
    using stream = new Stream({ nonBlocking: true });
    const messages = [256, 1 * MiB].map((bytes) => detachBuffer(new DeviceBuffer(bytes, { resource: upstream, stream })));
    let reads = 0;
    const changing = {
      ...messages[0],
      get number() {
        return messages[Math.min(1, reads++)]?.number;
      },
    };
    using attached = attachBuffer(changing as BufferMessage, { stream });
    expect([attached.capacityBytes, reads]).toEqual([256, 1]);
    discardBuffer(messages[1] as BufferMessage);
  });
});
