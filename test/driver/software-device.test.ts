import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  advise,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  configureSoftwareDevice,
  copy,
  copyToHostSync,
  Device,
  DriverError,
  Event,
  GiB,
  ManagedAsyncMemoryResource,
  ManagedMemoryResource,
  MiB,
  managedRangeAttributes,
  OutOfMemoryError,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  prefetch,
  Stream,
  set,
  UnsupportedError,
} from '../../src/index.js';
import { managedActivity, resetManagedActivity, residentBytes } from '../../src/machine/index.js';
import { driverCallCounts, driverFunctionNames, failCall, setCallLatency } from '../../src/tools/testing/index.js';

describe('the software device', () => {
  let plain: CudaMemoryResource;
  let stream: Stream;
  beforeEach(() => {
    plain = new CudaMemoryResource();
    stream = new Stream();
  });
  afterEach(() => {
    for (const name of driverFunctionNames()) {
      setCallLatency(name, 0);
      failCall(name, 0);
    }
    configureSoftwareDevice({ totalBytes: GiB, concurrentManagedAccess: true, migrationNanoseconds: 0 });
    stream.dispose();
    plain.dispose();
  });

  // The fuzzer of the native boundary found this: cistern, which copies in the driver's place while
  // a stream is held, read and wrote past the end.
  test('refuses a copy across several allocations of pinned memory, held or not', () => {
    const page = 4096;
    const pinned = new PinnedHostMemoryResource();
    const pieces = Array.from({ length: 64 }, () => pinned.allocate(page, stream)).sort((a, b) => a - b);
    const target = pinned.allocate(2 * page, stream);
    const first = pieces.find((piece, i) => pieces[i + 1] === piece + page) as number;
    expect(first, 'no two pieces lie next to each other').toBeDefined();
    const refusals = [() => copy(target, first, 2 * page, stream), () => copy(first, target, 2 * page, stream)];
    for (const refusal of refusals) expect(refusal).toThrow(DriverError);
    using hold = stream.hold();
    for (const refusal of refusals) expect(refusal).toThrow(DriverError);
    copy(target + page, first, page, stream);
    hold.release();
    stream.synchronizeSync();
    for (const piece of pieces) pinned.deallocate(piece, page, stream);
    pinned.deallocate(target, 2 * page, stream);
  });

  test('leaves an event unchanged if it cannot be destroyed, so that the call can be repeated', () => {
    const event = new Event();
    event.record(stream);
    failCall('cuEventDestroy', 1, 999);
    expect(() => event.dispose()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER', driverStatus: 999 }));
    event.synchronizeSync();
    event.dispose();
    expect(() => event.query()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });

  test('takes its number and memory from the environment', () => {
    expect(Device.count()).toBe(2);
    expect(Device.get(0).totalBytes).toBe(GiB);
    expect(Device.get(1).uuid).not.toBe(Device.get(0).uuid);
  });

  test('has separate memory for each device', () => {
    using far = new CudaMemoryResource({ device: Device.get(1) });
    const pointer = far.allocate(512 * MiB, stream);
    expect(Device.get(0).memoryInfo().freeBytes - Device.get(1).memoryInfo().freeBytes).toBeGreaterThanOrEqual(512 * MiB);
    expect(() => plain.deallocate(pointer, 512 * MiB, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }));
    far.deallocate(pointer, 512 * MiB, stream);
  });

  test('runs out of memory at its total, which can be changed', () => {
    configureSoftwareDevice({ totalBytes: 256 * MiB });
    const pointer = plain.allocate(200 * MiB, stream);
    expect(() => plain.allocate(100 * MiB, stream)).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_OUT_OF_MEMORY',
        requestedBytes: 100 * MiB,
        availableBytes: 56 * MiB,
        path: ['device memory of device 0'],
      }),
    );
    expect(() => configureSoftwareDevice({ totalBytes: 100 * MiB })).toThrow(DriverError);
    configureSoftwareDevice({ totalBytes: 512 * MiB });
    plain.deallocate(plain.allocate(300 * MiB, stream), 300 * MiB, stream);
    plain.deallocate(pointer, 200 * MiB, stream);
  });

  test.each([
    { totalBytes: 0 },
    { totalBytes: 1.5 },
    { totalBytes: 2 ** 43 },
    { devices: 0 },
    { devices: 9 },
    { migrationNanoseconds: -1 },
  ])('refuses the settings %o', (settings) => {
    expect(() => configureSoftwareDevice(settings as { devices: number })).toThrow(RangeError);
  });

  test('cannot change the number of devices once one is in use', () => {
    expect(() => configureSoftwareDevice({ devices: 3 })).toThrow(DriverError);
  });

  describe('moves pages of managed memory', () => {
    const page = 2 * MiB;
    let managed: ManagedMemoryResource;
    let pointer: number;
    beforeEach(() => {
      managed = new ManagedMemoryResource();
      pointer = managed.allocate(4 * page, stream);
      resetManagedActivity();
    });
    afterEach(() => managed.deallocate(pointer, 4 * page, stream));

    test('when an operation on them runs, not when it is queued', () => {
      const device = Device.get();
      using hold = stream.hold();
      set(pointer, 1, 1, page, stream);
      prefetch(pointer + page, page, 'host', stream);
      expect(residentBytes(pointer, 4 * page, device)).toBe(0);
      hold.release();
      stream.synchronizeSync();
      expect([device, 'host' as const].map((each) => residentBytes(pointer, 4 * page, each))).toEqual([page, page]);
      expect(managedActivity(device)).toMatchObject({ residentBytes: page, faults: 1, bytesFromHost: 0 });
      set(pointer + page, 1, 1, 1, stream);
      stream.synchronizeSync();
      expect(managedActivity(device)).toMatchObject({
        residentBytes: 2 * page,
        peakResidentBytes: 2 * page,
        faults: 2,
        bytesFromHost: page,
      });
      expect(managedActivity('host')).toMatchObject({ residentBytes: 0, peakResidentBytes: page });
      resetManagedActivity();
      expect(managedActivity(device)).toMatchObject({ residentBytes: 2 * page, faults: 0, bytesFromHost: 0, thrashes: 0 });
    });

    test('at a cost that can be set', () => {
      configureSoftwareDevice({ migrationNanoseconds: 5_000_000 });
      prefetch(pointer, 4 * page, 'host', stream);
      stream.synchronizeSync();
      const begun = performance.now();
      prefetch(pointer, 4 * page, Device.get(), stream);
      stream.synchronizeSync();
      expect(performance.now() - begun).toBeGreaterThanOrEqual(20);
    });

    test('to make room for an allocation', () => {
      configureSoftwareDevice({ totalBytes: 16 * MiB });
      set(pointer, 1, 1, 4 * page, stream);
      stream.synchronizeSync();
      const { freeBytes } = Device.get().memoryInfo();
      const bytes = freeBytes + 2 * page;
      plain.deallocate(plain.allocate(bytes, stream), bytes, stream);
      expect(managedActivity(Device.get())).toMatchObject({ evictions: 2, evictedBytes: 2 * page, residentBytes: 2 * page });
    });

    test('so that twice the memory of the device passes through it, with its contents', () => {
      configureSoftwareDevice({ totalBytes: 64 * MiB });
      const count = 64;
      const large = managed.allocate(count * page, stream);
      for (let i = 0; i < count; i++) set(large + i * page, i + 1, 1, page, stream);
      stream.synchronizeSync();
      expect(managedActivity(Device.get())).toMatchObject({ evictions: 32, residentBytes: 64 * MiB, peakResidentBytes: 64 * MiB });
      const bytes = new Uint8Array(page);
      for (let i = 0; i < count; i++) {
        copyToHostSync(bytes, large + i * page, stream);
        expect(Buffer.alloc(page, i + 1).equals(bytes)).toBe(true);
      }
      expect(managedActivity(Device.get())).toMatchObject({ evictions: 96, bytesFromHost: 128 * MiB, thrashes: 64 });
      managed.deallocate(large, count * page, stream);
      expect(managedActivity(Device.get()).residentBytes).toBe(0);
    });

    test('and does not count other memory', () => {
      expect(residentBytes(256, 1, 'host')).toBe(0);
      expect(() => managedActivity('moon' as 'host')).toThrow(RangeError);
      expect(() => residentBytes(-1, 1, 'host')).toThrow(RangeError);
    });
  });

  test('can lack concurrent managed access: then nothing is prefetched, and advice may not name a device', () => {
    using managed = new ManagedMemoryResource();
    const pointer = managed.allocate(MiB, stream);
    configureSoftwareDevice({ concurrentManagedAccess: false });
    const device = Device.get();
    expect(device.attribute('concurrentManagedAccess')).toBe(0);
    prefetch(pointer, MiB, device, stream);
    expect(managedRangeAttributes(pointer, MiB).lastPrefetchLocation).toBeUndefined();
    expect(() => advise(pointer, MiB, 'set-preferred-location', device)).toThrow(DriverError);
    advise(pointer, MiB, 'set-preferred-location', 'host');
    managed.deallocate(pointer, MiB, stream);
  });

  test.each([1, 801])('can refuse a pool of managed memory, as drivers before CUDA 13 do', (status) => {
    failCall('cuMemPoolCreate', 1, status);
    expect(() => new ManagedAsyncMemoryResource()).toThrow(UnsupportedError);
    failCall('cuMemPoolCreate', 1, 2);
    expect(() => new ManagedAsyncMemoryResource()).toThrow(DriverError);
  });

  test('tells whether a requested failure has happened', () => {
    expect(failCall('cuMemAlloc', 2)).toBe(false);
    plain.deallocate(plain.allocate(4096, stream), 4096, stream);
    expect(failCall('cuMemAlloc', 1)).toBe(true);
    expect(() => plain.allocate(4096, stream)).toThrow(OutOfMemoryError);
    expect(failCall('cuMemAlloc', 0)).toBe(false);
  });

  test('fails the nth next call, once, without a change of state', () => {
    failCall('cuMemAlloc', 2);
    const first = plain.allocate(4096, stream);
    const before = plain.reservedBytes;
    expect(() => plain.allocate(4096, stream)).toThrow(OutOfMemoryError);
    expect(plain.reservedBytes).toBe(before);
    const third = plain.allocate(4096, stream);
    plain.deallocate(first, 4096, stream);
    plain.deallocate(third, 4096, stream);
  });

  test.each([
    ['cuMemAlloc', () => plain.allocate(1, stream)],
    ['cuMemAllocFromPoolAsync', () => new CudaAsyncMemoryResource().allocate(1, stream)],
    ['cuStreamCreateWithPriority', () => new Stream()],
    ['cuEventCreate', () => new Event()],
    ['cuEventRecord', () => new Event().record(stream)],
    ['cuStreamWaitEvent', () => stream.wait(new Event())],
    ['cuStreamSynchronize', () => stream.synchronizeSync()],
    ['cuStreamQuery', () => stream.query()],
    ['cuMemPoolCreate', () => new CudaAsyncMemoryResource()],
  ] as const)('makes a failing %s an error with its status', (name, call) => {
    failCall(name, 1, 700);
    expect(call).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_DRIVER', driverStatus: 700, driverName: 'CUDA_ERROR_ILLEGAL_ADDRESS' }),
    );
    expect(call).not.toThrow();
  });

  test('leaves no stream behind if its id cannot be read', () => {
    const destroyed = () => driverCallCounts().byFunction['cuStreamDestroy'] as number;
    const before = destroyed();
    failCall('cuStreamGetId', 1, 700);
    expect(() => new Stream()).toThrow(expect.objectContaining({ driverStatus: 700 }));
    expect(destroyed()).toBe(before + 1);
  });

  test('treats a failed recording as the end of the previous one', async () => {
    using event = new Event();
    using pool = new PoolMemoryResource(plain, { initialBytes: MiB });
    const pointer = pool.allocate(MiB, stream);
    event.record(stream);
    const { version } = event;
    const waiting = event.synchronize();
    failCall('cuEventRecord', 1, 700);
    expect(() => event.record(stream)).toThrow(DriverError);
    expect(event.version).toBeGreaterThan(version);
    expect(event.recordedOn).toBeUndefined();
    expect(() => pool.deallocate(pointer, MiB, stream, event)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
    event.record(stream);
    pool.deallocate(pointer, MiB, stream, event);
    await waiting;
  });

  test('names a status that CUDA does not name', () => {
    failCall('cuMemAlloc', 1, 998);
    expect(() => plain.allocate(1, stream)).toThrow(expect.objectContaining({ driverStatus: 998, driverName: 'CUDA_ERROR_UNNAMED' }));
  });

  test('keeps memory live if its free fails', () => {
    const pointer = plain.allocate(4096, stream);
    failCall('cuMemFree', 1, 719);
    expect(() => plain.deallocate(pointer, 4096, stream)).toThrow(DriverError);
    plain.deallocate(pointer, 4096, stream);
  });

  test('leaves an event with its recording if recording it again fails', async () => {
    using event = new Event();
    using hold = stream.hold();
    event.record(stream);
    const done = event.synchronize();
    failCall('cuEventRecord', 1, 719);
    expect(() => event.record(stream)).toThrow(DriverError);
    expect(event.query()).toBe(false);
    hold.release();
    await done;
    expect(event.query()).toBe(true);
  });

  test('delays a call by the given latency', () => {
    using event = new Event();
    setCallLatency('cuEventRecord', 2_000_000);
    const start = performance.now();
    for (let i = 0; i < 5; i++) event.record(stream);
    expect(performance.now() - start).toBeGreaterThanOrEqual(10);
    setCallLatency('cuEventRecord', 0);
    const again = performance.now();
    for (let i = 0; i < 5; i++) event.record(stream);
    expect(performance.now() - again).toBeLessThan(5);
  });

  test('refuses invalid injections', () => {
    expect(() => failCall('cuNothing')).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
    expect(() => setCallLatency('cuNothing', 5)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
    expect(() => setCallLatency('cuMemAlloc', -1)).toThrow(RangeError);
    expect(() => failCall('cuMemAlloc', -1)).toThrow(RangeError);
    expect(() => failCall('cuMemAlloc', 1, 0)).toThrow(RangeError);
  });
});
