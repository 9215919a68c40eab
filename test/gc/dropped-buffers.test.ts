import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { LifetimeError } from '../../src/basics/errors.js';
import { GiB, MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { type BufferLeak, watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { reclaimUnreachableBuffers } from '../../src/collector/reclaim-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { native } from '../../src/driver/native.js';
import { Stream } from '../../src/driver/streams/stream.js';
import type { MemoryResource } from '../../src/memory-resource.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { PinnedHostMemoryResource } from '../../src/resources/pinned-host-memory-resource.js';
import { attachBuffer, detachBuffer, shareBuffer } from '../../src/workers/index.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';
import { needSmallDevice } from '../support/device-memory.js';
import { madeElsewhere } from '../support/stream-order.js';
import { collectGarbage } from './collection.js';

let stream: Stream;
let addresses: AddressCountingResource;
const warnings: Error[] = [];
const onWarning = (warning: Error) => void warnings.push(warning);

beforeEach(() => {
  stream = new Stream();
  addresses = new AddressCountingResource();
  warnings.length = 0;
  process.on('warning', onWarning);
});

afterEach(async () => {
  await collectGarbage();
  process.off('warning', onWarning);
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(0);
  // A destroyed pool of the driver returns its memory once the device is seen to be idle.
  Device.get().synchronizeSync();
});

function drop(count: number, bytes: number, resource: MemoryResource = addresses): void {
  for (let i = 0; i < count; i++) new DeviceBuffer(bytes, { resource, stream });
}

describe('a buffer dropped without dispose', () => {
  it('lives as long as a view of it, and is freed after that', async () => {
    const resource = new PinnedHostMemoryResource();
    const views = [new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource, stream }).hostView(Uint8Array)];
    await collectGarbage();
    await collectGarbage();
    expect(watchedBuffers().count).toBe(1);
    expect(views[0]).toEqual(Uint8Array.of(1, 2, 3));
    views.length = 0;
    await collectGarbage();
    await collectGarbage();
    expect(watchedBuffers().count).toBe(0);
    expect(resource.reservedBytes).toBe(0);
  });

  it('is freed on its stream after a collection', async () => {
    drop(3, 1000);
    expect(addresses.frees).toHaveLength(0);
    await collectGarbage();
    expect(addresses.live.size).toBe(0);
    expect(addresses.frees.map((free) => free.stream)).toEqual([stream, stream, stream]);
    expect(warnings).toEqual([]);
  });

  it('is freed after every collection, not only the first', async () => {
    for (let round = 1; round <= 5; round++) {
      drop(10, 1000);
      await collectGarbage();
      expect(addresses.frees).toHaveLength(10 * round);
    }
  });

  it('is freed although it survived a collection, and no buffer was created since', async () => {
    const held = Array.from({ length: 10 }, () => new DeviceBuffer(1000, { resource: addresses, stream }));
    await collectGarbage();
    expect(addresses.frees).toHaveLength(0);
    held.length = 0;
    await collectGarbage();
    expect(addresses.frees).toHaveLength(10);
  });

  it('is freed with its latest memory, stream and resource', async () => {
    using other = new Stream();
    (() => {
      const buffer = new DeviceBuffer(0, { resource: addresses, stream });
      buffer.resize(10);
      buffer.resize(0);
      buffer.reserve(500);
      buffer.setStream(other);
    })();
    await collectGarbage();
    expect(addresses.frees.map(({ bytes, stream }) => [bytes, stream])).toEqual([
      [10, stream],
      [500, other],
    ]);
  });

  it('is freed although its stream and its resource were dropped with it', async () => {
    const device = Device.get();
    const before = device.memoryInfo().freeBytes;
    (() => {
      const resource = new CudaMemoryResource();
      const dropped = new Stream();
      new DeviceBuffer(64 * MiB, { resource, stream: dropped });
    })();
    expect(device.memoryInfo().freeBytes).toBeLessThan(before);
    await collectGarbage();
    expect(device.memoryInfo().freeBytes).toBe(before);
    expect(warnings).toEqual([]);
  });

  it('is freed although its stream was disposed, after one wait for all', async () => {
    drop(2, 1000);
    stream.dispose();
    const waits = vi.spyOn(stream.device, 'synchronizeSync');
    await collectGarbage();
    expect(waits).toHaveBeenCalledTimes(1);
    waits.mockRestore();
    expect(addresses.frees.map((free) => free.stream)).toEqual([Stream.legacyDefault(), Stream.legacyDefault()]);
    expect(warnings).toEqual([]);
  });

  it.each([
    ['a pool', () => new PoolMemoryResource(new CudaMemoryResource())],
    ['a driver’s pool', () => new CudaAsyncMemoryResource()],
  ])('is freed although its stream was created elsewhere and destroyed without notice, into %s', async (_, make) => {
    const resource = make();
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    (() => {
      new DeviceBuffer(1000, { resource, stream: unannounced });
    })();
    foreign.destroy();
    await collectGarbage();
    expect(warnings).toEqual([]);
    if (resource instanceof PoolMemoryResource) expect(resource.statistics().allocatedBytes).toBe(0);
    unannounced.dispose();
    resource.dispose();
  });

  it('is not freed again if it was disposed, and a live one is not freed', async () => {
    using live = new DeviceBuffer(100, { resource: addresses, stream });
    (() => {
      const buffer = new DeviceBuffer(1000, { resource: addresses, stream });
      buffer.dispose();
    })();
    await collectGarbage();
    reclaimUnreachableBuffers('major');
    expect(addresses.frees.map((free) => free.bytes)).toEqual([1000]);
    expect(addresses.live.has(live.ptr)).toBe(true);
  });

  it('is not freed before a copy out of it has completed', async () => {
    using hold = stream.hold();
    const data = Uint8Array.from({ length: 1000 }, (_, i) => i);
    using resource = new CudaAsyncMemoryResource();
    let pending: Promise<Uint8Array> | undefined = (() => new DeviceBuffer(data, { resource, stream }).toHost())();
    await collectGarbage();
    using next = new DeviceBuffer(1000, { resource, stream });
    next.fill(1);
    hold.release();
    expect(await pending).toEqual(data);
    pending = undefined;
    await collectGarbage();
  });

  it('is freed by a minor collection in the same job', () => {
    drop(100, 1000);
    expect(reclaimUnreachableBuffers('minor')).toBeGreaterThanOrEqual(99_000);
  });
});

describe('a buffer that takes over the watch of a disposed one', () => {
  const make = () => new DeviceBuffer(1000, { resource: addresses, stream });

  /** Sweeps twice, so that nothing is spare. */
  function giveUpSpare(): void {
    for (let sweep = 0; sweep < 2; sweep++) reclaimUnreachableBuffers('minor');
    expect(watchedBuffers().spare).toBe(0);
  }

  it.each<[string, (buffer: DeviceBuffer) => void]>([
    ['disposed', (buffer) => buffer.dispose()],
    [
      'released',
      (buffer) => {
        const { ptr, capacityBytes } = buffer.release();
        addresses.deallocate(ptr, capacityBytes, stream);
      },
    ],
  ])('is freed when it is dropped, although the program keeps the %s one', async (_, end) => {
    const ended = Array.from({ length: 10 }, make);
    for (const buffer of ended) end(buffer);
    expect(watchedBuffers().spare).toBeGreaterThanOrEqual(10);
    drop(10, 1000);
    await collectGarbage();
    expect(addresses.frees).toHaveLength(20);
    expect(ended.every((buffer) => buffer.isDisposed)).toBe(true);
  });

  it('is kept after a failed free of the disposed one', async () => {
    const kept = make();
    addresses.beforeFree = () => {
      throw new Error('no');
    };
    expect(() => kept.dispose()).toThrow('no');
    addresses.beforeFree = undefined;
    drop(10, 1000);
    await collectGarbage();
    expect([...addresses.live.keys()]).toEqual([kept.ptr]);
    kept.dispose();
  });

  it('does not keep the resource of the disposed one', async () => {
    const resources = Array.from({ length: 10 }, () => {
      const resource = new AddressCountingResource();
      new DeviceBuffer(1000, { resource, stream }).dispose();
      return new WeakRef(resource);
    });
    await setImmediate();
    expect(watchedBuffers().spare).toBeGreaterThan(0);
    await collectGarbage();
    expect(resources.filter((resource) => resource.deref() !== undefined)).toHaveLength(0);
  });

  it('needs no native call, except one in 64 times', () => {
    giveUpSpare();
    const watch = vi.spyOn(native(), 'watch');
    for (let i = 0; i < 640; i++) make().dispose();
    expect(watch).toHaveBeenCalledTimes(10);
    watch.mockRestore();
  });

  it('is found by a minor collection, although what is watched once survived some', () => {
    giveUpSpare();
    const old = make();
    for (let i = 0; i < 4; i++) reclaimUnreachableBuffers('minor');
    old.dispose();
    for (let i = 0; i < 63; i++) make().dispose();
    drop(1, 1000);
    expect(reclaimUnreachableBuffers('minor')).toBe(1000);
  });

  it('leaves nothing behind once collections found that nobody took it', async () => {
    const buffers = Array.from({ length: 100 }, make);
    for (const buffer of buffers) buffer.dispose();
    const { spare } = watchedBuffers();
    expect(spare).toBeGreaterThanOrEqual(100);
    const unwatch = vi.spyOn(native(), 'unwatch');
    for (let round = 0; round < 2; round++) await collectGarbage();
    expect(watchedBuffers().spare).toBe(0);
    expect(unwatch).toHaveBeenCalledTimes(spare);
    unwatch.mockRestore();
  });

  it('stays ready between sweeps if it was taken meanwhile', () => {
    giveUpSpare();
    const rounds = 5;
    for (let round = 0; round < rounds; round++) {
      const buffers = Array.from({ length: 10 }, make);
      for (const buffer of buffers) buffer.dispose();
      reclaimUnreachableBuffers('minor');
      expect(watchedBuffers().spare).toBe(10);
    }
  });
});

describe('a resource that refuses to free what was dropped', () => {
  it('is reported once, and the rest is freed', async () => {
    addresses.beforeFree = (pointer) => {
      if (pointer % 512 === 0) throw new Error(`no`);
    };
    drop(10, 256);
    await collectGarbage();
    expect(addresses.live.size).toBe(5);
    expect(warnings.map((warning) => [warning.message, (warning as { code?: string }).code])).toEqual([
      ['the memory of an unreachable buffer could not be freed: no, and 4 more', 'CISTERN_UNREACHABLE_BUFFER'],
    ]);
    await collectGarbage();
    expect(warnings).toHaveLength(1);
    addresses.beforeFree = undefined;
    await collectGarbage();
    expect(addresses.live.size).toBe(0);
  });

  it('is retried by the next sweep, after a host function in which it could not wait', async () => {
    using resource = new CudaMemoryResource();
    const before = resource.reservedBytes;
    drop(4, MiB, resource);
    let freedBytes = 0;
    stream.launchHostFunction(() => {
      freedBytes += reclaimUnreachableBuffers('major');
    });
    stream.synchronizeSync();
    expect(freedBytes).toBe(0);
    expect(reclaimUnreachableBuffers('major')).toBe(4 * MiB);
    expect(resource.reservedBytes).toBe(before);
  });

  it('is not retried if the memory is no longer its own', async () => {
    let calls = 0;
    addresses.beforeFree = () => {
      calls++;
      throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', 'no');
    };
    drop(1, 256);
    await collectGarbage();
    await collectGarbage();
    expect([calls, warnings.length]).toEqual([1, 1]);
  });

  it('is retried once for each buffer by every sweep, although it collects garbage each time', async () => {
    let calls = 0;
    addresses.beforeFree = () => {
      // If the loop never ends by itself, it must end here.
      if (++calls < 100) reclaimUnreachableBuffers('major');
      throw new Error('no');
    };
    drop(4, 256);
    try {
      reclaimUnreachableBuffers('major');
      expect(calls).toBe(4);
      reclaimUnreachableBuffers('major');
      expect(calls).toBe(8);
      // These collections also cause a sweep once this job is over; what is collected in that sweep
      // causes none.
      for (let turn = 0; turn < 20; turn++) await setImmediate();
      expect(calls).toBe(12);
    } finally {
      addresses.beforeFree = undefined;
    }
    await collectGarbage();
    expect(addresses.live.size).toBe(0);
  });

  it('may create buffers and collect garbage itself meanwhile', () => {
    drop(100, 1000);
    const made: DeviceBuffer[] = [];
    let depth = 0;
    addresses.beforeFree = () => {
      if (depth > 0 || made.length >= 20) return;
      depth++;
      made.push(new DeviceBuffer(10, { resource: addresses, stream }));
      drop(5, 1000);
      reclaimUnreachableBuffers('minor');
      depth--;
    };
    reclaimUnreachableBuffers('minor');
    addresses.beforeFree = undefined;
    expect(made).toHaveLength(20);
    expect(made.every((buffer) => addresses.live.get(buffer.ptr) === 10)).toBe(true);
    for (const buffer of made) buffer.dispose();
    reclaimUnreachableBuffers('major');
    expect(warnings).toEqual([]);
  });
});

describe('a loop that allocates and drops 1,000 buffers of 64 MiB on a device of 1 GiB', () => {
  beforeEach(needSmallDevice);

  const stacks: [string, () => MemoryResource & Disposable][] = [
    ['CudaMemoryResource', () => new CudaMemoryResource()],
    ['CudaAsyncMemoryResource', () => new CudaAsyncMemoryResource()],
    ['an eager pool', () => new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes: 1 * GiB, deallocationEvents: 'eager' })],
    ['a pool without events', () => new PoolMemoryResource(new CudaAsyncMemoryResource(), { deallocationEvents: 'off' })],
  ];

  async function loop(resource: MemoryResource, yields: boolean, streams: readonly Stream[]): Promise<void> {
    for (let i = 0; i < 1000; i++) {
      const buffer = new DeviceBuffer(64 * MiB, { resource, stream: streams[i % streams.length] as Stream });
      if (buffer.ptr === 0) throw new Error('no memory');
      if (yields && i % 10 === 9) await setImmediate();
    }
  }

  it.each(stacks)('runs to the end over %s, yielding now and then', async (_, make) => {
    using resource = make();
    await loop(resource, true, [stream]);
    await collectGarbage();
  });

  it.each(stacks)('runs to the end over %s, in one job', async (_, make) => {
    using resource = make();
    await loop(resource, false, [stream]);
    await collectGarbage();
  });

  it.each(stacks)('runs to the end over %s, in one job, on three streams', async (_, make) => {
    using resource = make();
    using second = new Stream();
    using third = new Stream({ nonBlocking: true });
    await loop(resource, false, [stream, second, third]);
    await collectGarbage();
  });
});

describe('100,000 small buffers', () => {
  it('created and dropped do not grow the table', async () => {
    drop(100_000, 256);
    await collectGarbage();
    for (let round = 0; round < 3; round++) {
      drop(100_000, 256);
      await collectGarbage();
      expect(watchedBuffers().count).toBe(0);
    }
    expect(addresses.frees).toHaveLength(400_000);
    expect(watchedBuffers().slots).toBeLessThan(150_000);
  });

  it('created and disposed use one slot', () => {
    const { slots } = watchedBuffers();
    for (let i = 0; i < 100_000; i++) new DeviceBuffer(256, { resource: addresses, stream }).dispose();
    expect(watchedBuffers()).toMatchObject({ count: 0, slots: Math.max(slots, 1) });
  });

  it('dropped in one long job do not fill the table', () => {
    for (let i = 0; i < 1_000_000; i++) new DeviceBuffer(256, { resource: addresses, stream });
    expect(watchedBuffers().slots).toBeLessThan(500_000);
  });
});

describe('leak detection', () => {
  it('publishes what was dropped and where it was created, but nothing that was disposed', async () => {
    const leaks: BufferLeak[] = [];
    const listener = (message: unknown) => void leaks.push(message as BufferLeak);
    function makesLeak(): number {
      return new DeviceBuffer(1000, { resource: addresses, stream, label: 'weights' }).ptr;
    }
    subscribe('cistern:leak', listener);
    try {
      const pointer = makesLeak();
      new DeviceBuffer(10, { resource: addresses, stream }).dispose();
      new DeviceBuffer(0, { resource: addresses, stream });
      await collectGarbage();
      const createdAt = expect.stringContaining('makesLeak');
      expect(leaks).toEqual([{ pointer, bytes: 1000, memoryKind: 'device', createdAt, label: 'weights' }]);
      expect(leaks[0]?.createdAt?.split('\n')[0]).toMatch(/^ {4}at makesLeak .*dropped-buffers\.test\.ts/);
    } finally {
      unsubscribe('cistern:leak', listener);
    }
    expect(addresses.live.size).toBe(0);
  });

  it('has no stack for a buffer that was created before anybody subscribed', async () => {
    drop(1, 1000);
    const leaks: BufferLeak[] = [];
    const listener = (message: unknown) => void leaks.push(message as BufferLeak);
    subscribe('cistern:leak', listener);
    await collectGarbage();
    unsubscribe('cistern:leak', listener);
    expect(leaks).toMatchObject([{ bytes: 1000, createdAt: undefined }]);
  });
});

it.each<[string, (buffer: DeviceBuffer) => DeviceBuffer]>([
  [
    'shared',
    (buffer) => {
      shareBuffer(buffer);
      return buffer;
    },
  ],
  ['attached', (buffer) => attachBuffer(detachBuffer(buffer), { stream })],
])('finds a dropped buffer that was %s when memory runs out', async (_, make) => {
  using upstream = new CudaMemoryResource();
  using pool = new PoolMemoryResource(upstream, { initialBytes: MiB, maximumBytes: MiB });
  let held: DeviceBuffer | undefined = make(new DeviceBuffer(MiB, { resource: pool, stream }));
  // Only a major collection finds it then.
  for (let i = 0; i < 2; i++) reclaimUnreachableBuffers('major');
  expect(held.byteLength).toBe(MiB);
  held = undefined;
  await setImmediate();
  new DeviceBuffer(MiB, { resource: pool, stream }).dispose();
});
