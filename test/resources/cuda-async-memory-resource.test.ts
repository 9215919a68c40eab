import { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { formatPointer } from '../../src/basics/errors.js';
import { mailbox, native } from '../../src/driver/native.js';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CallbackMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  Device,
  DeviceBuffer,
  type DriverPoolMemoryResource,
  Event,
  ManagedAsyncMemoryResource,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  pointerInfo,
  Stream,
  set,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { needMemoryPools, needSecondDevice, settledFreeBytes } from '../support/device-memory.js';
import { caught } from '../support/errors.js';
import { skipTest } from '../support/skip-test.js';

describe('CudaAsyncMemoryResource', () => {
  test('says what to use instead if the driver has no pools, and nothing of the kind for another refusal', () => {
    failCall('cuMemPoolCreate', 1, 801);
    expect(() => new CudaAsyncMemoryResource()).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_NOT_SUPPORTED',
        message: 'the driver does not support pools of memory (cuMemAllocAsync): use a pool over CudaMemoryResource',
      }),
    );
    failCall('cuMemPoolCreate', 1, 1);
    expect(() => new CudaAsyncMemoryResource()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
  });

  test('is equal only to itself, since each has its own pool', () => {
    using first = new CudaAsyncMemoryResource();
    using second = new CudaAsyncMemoryResource();
    using stream = new Stream();
    expect(first.isEqual(first)).toBe(true);
    expect(first.isEqual(second)).toBe(false);
    const pointer = first.allocate(256, stream);
    expect(() => second.deallocate(pointer, 256, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }));
    first.deallocate(pointer, 256, stream);
  });

  test('records no event and waits for nothing', () => {
    using resource = new CudaAsyncMemoryResource();
    using stream = new Stream();
    const before = driverCallCounts();
    for (const fence of [undefined, 'eager', 'deferred', 'off'] as const) {
      resource.deallocate(resource.allocate(4096, stream), 4096, stream, fence);
    }
    const after = driverCallCounts();
    expect([after.eventRecords, after.eventWaits, after.synchronizations]).toEqual([
      before.eventRecords,
      before.eventWaits,
      before.synchronizations,
    ]);
    expect([after.allocations - before.allocations, after.frees - before.frees]).toEqual([4, 4]);
  });

  test('counts the calls that free it with live memory, also those that the driver refuses at first', () => {
    const calls = (name: string) => driverCallCounts().byFunction[name] as number;
    const names = ['cuMemPoolCreate', 'cuMemAllocFromPoolAsync', 'cuMemFreeAsync', 'cuMemPoolDestroy'];
    const before = names.map(calls);
    const freeBytes = settledFreeBytes();
    const resource = new CudaAsyncMemoryResource();
    using stream = new Stream();
    resource.allocate(4096, stream);
    failCall('cuMemPoolDestroy', 1);
    resource.dispose();
    const refused = names.map((name, i) => calls(name) - (before[i] as number));
    expect(refused).toEqual([1, 1, 1, 1]);
    expect(settledFreeBytes()).toBe(freeBytes);
    expect(names.map((name, i) => calls(name) - (before[i] as number))).toEqual([1, 1, 1, 2]);
  });

  test('is on the given device', () => {
    using resource = new CudaAsyncMemoryResource({ device: Device.get(1), initialBytes: 8 * MiB });
    expect(resource.device).toBe(Device.get(1));
    expect(resource.reservedBytes).toBeGreaterThanOrEqual(8 * MiB);
  });

  test('leaves nothing behind if its initial size cannot be allocated', () => {
    const freeBytes = settledFreeBytes();
    expect(() => new CudaAsyncMemoryResource({ initialBytes: 2 ** 50 })).toThrow(OutOfMemoryError);
    expect(settledFreeBytes()).toBe(freeBytes);
  });

  test('names the request, what is free, and who failed', () => {
    using resource = new CudaAsyncMemoryResource();
    using stream = new Stream();
    expect(() => resource.allocate(2 ** 40, stream)).toThrow(
      expect.objectContaining({
        requestedBytes: 2 ** 40,
        availableBytes: expect.any(Number),
        path: ['the stream-ordered pool of device 0'],
        message: expect.stringMatching(/is out of memory: 1 TiB \(1099511627776 bytes\) were asked for, .* are free$/),
      }),
    );
  });

  test('holds no more than its maximum, and says so', () => {
    needMemoryPools();
    const freeBytes = settledFreeBytes();
    using resource = new CudaAsyncMemoryResource({ maximumBytes: 96 * MiB });
    using stream = new Stream();
    const first = resource.allocate(40 * MiB, stream);
    const error = caught<OutOfMemoryError>(() => resource.allocate(80 * MiB, stream));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error).toMatchObject({ requestedBytes: 80 * MiB, limitBytes: 96 * MiB });
    expect(error.message).toMatch(/of which 40 MiB are allocated, and its maximum is 96 MiB$/);
    const second = resource.allocate(16 * MiB, stream);
    expect(resource.reservedBytes).toBeLessThanOrEqual(96 * MiB);
    resource.deallocate(first, 40 * MiB, stream);
    resource.deallocate(second, 16 * MiB, stream);
    // Freed memory serves again.
    resource.deallocate(resource.allocate(40 * MiB, stream), 40 * MiB, stream);
    resource.dispose();
    expect(settledFreeBytes()).toBe(freeBytes);
  });

  test('refuses a maximum below its initial size, or below 1', () => {
    const range = expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' });
    expect(() => new CudaAsyncMemoryResource({ maximumBytes: 0 })).toThrow(range);
    expect(() => new CudaAsyncMemoryResource({ maximumBytes: 1.5 })).toThrow(range);
    expect(() => new CudaAsyncMemoryResource({ maximumBytes: MiB, initialBytes: 2 * MiB })).toThrow(
      expect.objectContaining({ message: `maximumBytes must be at least initialBytes (${2 * MiB}), got ${MiB}` }),
    );
    // A driver may reserve blocks of 32 MiB.
    expect(() => new CudaAsyncMemoryResource({ maximumBytes: 32 * MiB, initialBytes: 32 * MiB }).dispose()).not.toThrow();
    expect(() => new CudaAsyncMemoryResource({ maximumBytes: Number.POSITIVE_INFINITY }).dispose()).not.toThrow();
  });

  test('reports its reserved and allocated bytes', () => {
    const resource = new CudaAsyncMemoryResource();
    using stream = new Stream();
    const pointer = resource.allocate(1000, stream);
    const { usedBytes, reservedBytes } = resource.usage();
    expect(usedBytes).toBeGreaterThanOrEqual(1000);
    expect(reservedBytes).toBeGreaterThanOrEqual(usedBytes);
    resource.deallocate(pointer, 1000, stream);
    stream.synchronizeSync();
    expect(resource.usage()).toMatchObject({ usedBytes: 0, peakUsedBytes: usedBytes });
    resource.trim(stream);
    expect(resource.usage().reservedBytes).toBe(0);
    resource.dispose();
    const isRefused = expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' });
    expect(() => resource.usage()).toThrow(isRefused);
    expect(() => resource.reservedBytes).toThrow(isRefused);
    expect(() => resource.peakReservedBytes).toThrow(isRefused);
    expect(() => resource.resetPeakReservedBytes()).toThrow(isRefused);
  });

  test('gives back what a stream has freed after the stream completed', () => {
    using resource = new CudaAsyncMemoryResource();
    using stream = new Stream();
    resource.deallocate(resource.allocate(4 * MiB, stream), 4 * MiB, stream);
    const { reservedBytes } = resource;
    while (!stream.query());
    expect(resource.trim(stream)).toBe(reservedBytes);
    expect(resource.reservedBytes).toBe(0);
  });

  test('can be disposed again if the driver refuses', () => {
    const freeBytes = settledFreeBytes();
    const resource = new CudaAsyncMemoryResource({ initialBytes: 1 * MiB });
    failCall('cuMemPoolDestroy', 1, 999);
    expect(() => resource.dispose()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    resource.dispose();
    expect(settledFreeBytes()).toBe(freeBytes);
  });

  test('can be disposed while its dispose frees a buffer', () => {
    using stream = new Stream();
    const resource = new CudaAsyncMemoryResource();
    using elsewhere = new CudaMemoryResource();
    const others: DeviceBuffer[] = [];
    const adaptor = new CallbackMemoryResource(
      (bytes, on) => resource.allocate(bytes, on),
      (pointer, bytes, on) => {
        resource.deallocate(pointer, bytes, on);
        resource.dispose();
        others.push(new DeviceBuffer(100, { resource: elsewhere, stream }));
      },
      { memoryKind: 'device' },
    );
    const buffers = [1000, 2000].map((bytes) => new DeviceBuffer(bytes, { resource: adaptor, stream }));
    resource.dispose();
    expect(others.map(({ isDisposed }) => isDisposed)).not.toContain(true);
    expect(buffers.map(({ isDisposed }) => isDisposed)).toEqual([true, true]);
    for (const buffer of others) buffer.dispose();
  });

  describe('that is disposed with live memory', () => {
    test('frees nothing on a stream that may be gone', () => {
      const freeBytes = settledFreeBytes();
      native().createStream(0, true, 0);
      const owner = mailbox[1] as number;
      native().streamAddress(owner);
      using stream = Stream.fromHandle(mailbox[1] as number);
      const resource = new CudaAsyncMemoryResource();
      resource.allocate(1 * MiB, stream);
      native().releaseStream(owner);
      resource.dispose();
      expect(settledFreeBytes()).toBe(freeBytes);
    });

    test.each(['the resource', 'a pool above it'])('lets every stream finish with it first: %s', (which) => {
      using writer = new Stream({ nonBlocking: true });
      using owner = new Stream({ nonBlocking: true });
      using resource = new CudaAsyncMemoryResource();
      using pool = new PoolMemoryResource(resource);
      const isPool = which !== 'the resource';
      const pointer = (isPool ? pool : resource).allocate(64 * MiB, owner);
      using event = new Event();
      event.record(owner);
      writer.wait(event);
      for (let value = 0; value < 8; value++) set(pointer, value, 1, 64 * MiB, writer);
      (isPool ? pool : resource).dispose();
      // The memory is freed here.
      Stream.legacyDefault().synchronizeSync();
      expect(writer.query()).toBe(true);
    });

    test('does not wait for a held stream, and frees it later', () => {
      const freeBytes = settledFreeBytes();
      using stream = new Stream({ nonBlocking: true });
      const resource = new CudaAsyncMemoryResource();
      resource.allocate(1 * MiB, stream);
      using hold = stream.hold();
      resource.dispose();
      expect(Device.get().memoryInfo().freeBytes).toBeLessThan(freeBytes);
      hold.release();
      expect(settledFreeBytes()).toBe(freeBytes);
    });
  });
});

describe('CudaAsyncMemoryResource on a pool that was made elsewhere', () => {
  const calls = (name: string) => driverCallCounts().byFunction[name] as number;
  // A pool is made with memory for a moment, to see of what kind it is; the driver counts a free once a synchronization has seen it.
  const settledUsedBytes = (resource: DriverPoolMemoryResource) => {
    Device.get().synchronizeSync();
    return resource.usage().usedBytes;
  };

  test('uses the default pool of the device, which other resources use too, and does not destroy it', () => {
    needMemoryPools();
    using stream = new Stream();
    const destroyed = calls('cuMemPoolDestroy');
    const first = new CudaAsyncMemoryResource({ pool: 'default' });
    using second = new CudaAsyncMemoryResource({ pool: 'default', device: Device.get() });
    expect(first.nativeHandle).toBe(second.nativeHandle);
    expect(first.isEqual(second)).toBe(false);
    const pointer = first.allocate(4096, stream);
    expect(settledUsedBytes(second)).toBe(settledUsedBytes(first));
    expect(() => second.deallocate(pointer, 4096, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }));
    first.deallocate(pointer, 4096, stream);
    first.dispose();
    expect(() => first.nativeHandle).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource: second, stream });
    expect(buffer.toHostSync()).toEqual(Uint8Array.of(1, 2, 3));
    expect(calls('cuMemPoolDestroy')).toBe(destroyed);
  });

  test('uses the current pool of the device, which is the default one unless another was set', () => {
    needMemoryPools();
    using stream = new Stream();
    using standard = new CudaAsyncMemoryResource({ pool: 'default' });
    const current = () => {
      using resource = new CudaAsyncMemoryResource({ pool: 'current' });
      return resource.nativeHandle;
    };
    expect(current()).toBe(standard.nativeHandle);
    const own = new CudaAsyncMemoryResource();
    own.makeCurrent();
    expect(current()).toBe(own.nativeHandle);
    using user = new CudaAsyncMemoryResource({ pool: 'current' });
    const pointer = user.allocate(4096, stream);
    expect(settledUsedBytes(own)).toBe(4096);
    user.deallocate(pointer, 4096, stream);
    using other = new CudaAsyncMemoryResource();
    other.makeCurrent();
    // The end of a pool that is not the current one changes nothing.
    own.dispose();
    expect(() => own.makeCurrent()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(current()).toBe(other.nativeHandle);
    other.dispose();
    expect(current()).toBe(standard.nativeHandle);
  });

  test('frees at its end what was allocated through it, and nothing else', () => {
    using stream = new Stream();
    using owner = new CudaAsyncMemoryResource();
    const guest = new CudaAsyncMemoryResource({ pool: BigInt(owner.nativeHandle) });
    const kept = owner.allocate(4096, stream);
    const left = guest.allocate(4096, stream);
    const buffer = new DeviceBuffer(4096, { resource: guest, stream });
    expect(settledUsedBytes(owner)).toBe(3 * 4096);
    guest.dispose();
    expect(buffer.isDisposed).toBe(true);
    expect(pointerInfo(left).memoryKind).toBe('unknown');
    expect(settledUsedBytes(owner)).toBe(4096);
    owner.deallocate(kept, 4096, stream);
  });

  test('keeps memory that it has allocated when the pool’s owner ends', () => {
    using stream = new Stream();
    const owner = new CudaAsyncMemoryResource();
    using guest = new CudaAsyncMemoryResource({ pool: owner.nativeHandle });
    using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource: guest, stream });
    owner.dispose();
    expect(buffer.toHostSync()).toEqual(Uint8Array.of(1, 2, 3));
  });

  test('refuses a handle that is none, and settings of the pool', () => {
    const make = (options: object) => () => new CudaAsyncMemoryResource(options);
    for (const pool of [null, true, {}, Symbol('pool')]) expect(make({ pool })).toThrow(ArgumentTypeError);
    for (const pool of ['other', '', 0, -1, 0.5, Number.NaN, 2n ** 64n]) expect(make({ pool })).toThrow(ArgumentRangeError);
    for (const option of ['initialBytes', 'maximumBytes', 'releaseThresholdBytes']) {
      expect(make({ pool: 'default', [option]: 4096 })).toThrow(`${option} must not be given with a pool`);
    }
    expect(() => new ManagedAsyncMemoryResource({ pool: 'default' } as never)).toThrow(ArgumentRangeError);
  });

  test('refuses a handle that the software device does not know', () => {
    if (Device.get().backend !== 'software') skipTest('a driver need not know whether a handle is of a pool');
    expect(() => new CudaAsyncMemoryResource({ pool: 3 })).toThrow('cannot use the memory pool with handle 3: CUDA_ERROR_INVALID_VALUE');
  });

  test('refuses a pool of managed memory, and leaves it as it was', () => {
    using owner = new ManagedAsyncMemoryResource();
    const { nativeHandle } = owner;
    expect(() => new CudaAsyncMemoryResource({ pool: nativeHandle })).toThrow(
      `pool must be a pool of device memory of device 0, got ${formatPointer(nativeHandle)}, a pool of managed memory of device 0`,
    );
    expect(settledUsedBytes(owner)).toBe(0);
  });

  test('refuses a pool of another device', () => {
    needSecondDevice();
    using owner = new CudaAsyncMemoryResource();
    const { nativeHandle } = owner;
    expect(() => new CudaAsyncMemoryResource({ pool: nativeHandle, device: Device.get(1) })).toThrow(
      `pool must be a pool of device memory of device 1, got ${formatPointer(nativeHandle)}, a pool of device memory of device 0`,
    );
  });

  test('never gives back less than nothing', () => {
    using stream = new Stream();
    using owner = new CudaAsyncMemoryResource();
    using guest = new CudaAsyncMemoryResource({ pool: owner.nativeHandle });
    expect(settledUsedBytes(guest)).toBe(0);
    expect(guest.trim(stream)).toBeGreaterThanOrEqual(0);
    expect(guest.trim(stream)).toBe(0);
  });

  test('leaves the pool alone when its worker ends', async () => {
    using stream = new Stream();
    using owner = new CudaAsyncMemoryResource();
    const pointer = owner.allocate(4096, stream);
    const worker = new Worker(
      `import('cistern').then(({ CudaAsyncMemoryResource, Stream }) => {
        const { workerData } = require('node:worker_threads');
        new CudaAsyncMemoryResource({ pool: workerData }).allocate(4096, new Stream());
        process.exit();
      });`,
      { eval: true, workerData: owner.nativeHandle },
    );
    await new Promise((resolve) => worker.once('exit', resolve));
    expect(owner.usage().usedBytes).toBeGreaterThanOrEqual(2 * 4096);
    // What the worker left is freed at a call that is slow anyway.
    new CudaAsyncMemoryResource().dispose();
    expect(settledUsedBytes(owner)).toBe(4096);
    owner.deallocate(pointer, 4096, stream);
  });
});
