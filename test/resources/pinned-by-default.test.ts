import { availableParallelism } from 'node:os';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { mailbox } from '../../src/driver/native.js';
import {
  copyToHostSync,
  createResourceStack,
  Device,
  type DeviceAttribute,
  DeviceBuffer,
  DriverError,
  GiB,
  KiB,
  LifetimeError,
  MiB,
  OutOfMemoryError,
  PinnedHostMemoryResource,
  pointerInfo,
  Stream,
  setSync,
  VirtualMemoryResource,
} from '../../src/index.js';
import { SpillableBuffer, SpillingResourceAdaptor, sleepResource, wakeResource } from '../../src/serving/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { forbidsRegistration } from '../support/direct-faults.mjs';
import { needFaults } from '../support/real-gpu.js';
import { runModule } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';
import { slowlyCleared } from '../support/slowly-cleared.js';
import { valuesOf } from '../support/stream-order.js';

vi.mock('node:os', { spy: true });
const processors = vi.mocked(availableParallelism);

/** From so many bytes on, threads clear pinned memory. */
const large = 16 * MiB;
/** Which device is slow to clear matters for the resources, which ask for each allocation, not for the tests that made them. */
let slow: Disposable;
let stream: Stream;

beforeEach(() => {
  slow = slowlyCleared();
  stream = new Stream({ nonBlocking: true });
  processors.mockReturnValue(4);
});
afterEach(() => {
  vi.restoreAllMocks();
  for (const name of ['cuMemHostRegister', 'cuMemHostUnregister', 'cuMemHostAlloc', 'cuMemFreeHost']) failCall(name, 0);
  stream.dispose();
  slow[Symbol.dispose]();
});

/** How often memory is taken from the driver and given back, and registered and unregistered. */
function callsOf(use: () => void): number[] {
  const counts = () => {
    const { byFunction } = driverCallCounts();
    return ['cuMemHostAlloc', 'cuMemFreeHost', 'cuMemHostRegister', 'cuMemHostUnregister'].map((name) => byFunction[name] as number);
  };
  const before = counts();
  use();
  return counts().map((count, i) => count - (before[i] as number));
}

/** An allocation and its free. */
function pairOf(bytes: number, resource = new PinnedHostMemoryResource()): void {
  resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
}

/** How many threads the last allocation was given. */
const threads = () => mailbox[4];

describe('pinned memory, by default', () => {
  test.skipIf(forbidsRegistration)('is cleared by threads if it is large, and by the driver if not', () => {
    expect([callsOf(() => pairOf(large - 1)), callsOf(() => pairOf(large))]).toEqual([
      [1, 1, 0, 0],
      [0, 0, 1, 1],
    ]);
    expect(callsOf(() => pairOf(large, new PinnedHostMemoryResource({ populateThreads: 0 })))).toEqual([1, 1, 0, 0]);
    expect(callsOf(() => createResourceStack('pool(pinned-host, initialBytes=32MiB)').dispose())).toEqual([0, 0, 1, 1]);
  });

  test('has a thread for each 16 MiB and processor, 16 at most', () => {
    const resource = new PinnedHostMemoryResource();
    const threadsFor = (bytes: number, available: number) => {
      processors.mockReturnValue(available);
      const pointer = resource.allocate(bytes, stream);
      const count = threads();
      resource.deallocate(pointer, bytes, stream);
      return count;
    };
    expect([threadsFor(large - 1, 64), threadsFor(large, 64), threadsFor(3 * large - 1, 64)]).toEqual([0, 1, 2]);
    expect([threadsFor(18 * large, 64), threadsFor(18 * large, 3), threadsFor(large, 1)]).toEqual([16, 3, 1]);
  });

  test('is left to the driver where nothing is gained, or nobody knows', () => {
    const attributes = { integrated: 1, pageableMemoryAccessUsesHostPageTables: 1, hostRegisterSupported: 0 };
    for (const [name, value] of Object.entries({ ...attributes, canUseHostPointerForRegisteredMemory: 0 })) {
      const { attribute } = Device.prototype;
      using _spy = vi.spyOn(Device.prototype, 'attribute').mockImplementation(function (this: Device, asked: DeviceAttribute) {
        return asked === name ? value : attribute.call(this, asked);
      });
      expect([name, ...callsOf(() => pairOf(large))]).toEqual([name, 1, 1, 0, 0]);
    }
    const { platform } = process;
    for (const other of ['darwin', 'win32']) {
      Object.defineProperty(process, 'platform', { value: other });
      try {
        expect([other, ...callsOf(() => pairOf(large))]).toEqual([other, 1, 1, 0, 0]);
      } finally {
        Object.defineProperty(process, 'platform', { value: platform });
      }
    }
    slow[Symbol.dispose]();
    if (Device.get().backend === 'software') expect(callsOf(() => pairOf(large))).toEqual([1, 1, 0, 0]);
  });

  test.skipIf(forbidsRegistration)('is freed in the way in which it was allocated, whatever frees it', () => {
    const resources = [{}, { populateThreads: 0 }, { populateThreads: 2 }].map((options) => new PinnedHostMemoryResource(options));
    const [byDefault, ofDriver, populated] = resources as [PinnedHostMemoryResource, PinnedHostMemoryResource, PinnedHostMemoryResource];
    for (const a of resources) for (const b of resources) expect(a.isEqual(b)).toBe(true);
    const before = byDefault.reservedBytes;
    const made = [byDefault.allocate(large, stream), ofDriver.allocate(large, stream), populated.allocate(KiB, stream)] as const;
    expect(byDefault.reservedBytes - before).toBe(2 * large + KiB);
    for (const pointer of made) expect(pointerInfo(pointer)).toMatchObject({ memoryKind: 'pinned-host' });
    expect(() => ofDriver.deallocate(made[0], large - 1, stream)).toThrow(new RegExp(`${large}`));
    expect(() => ofDriver.deallocate(made[0] + 256, large, stream)).toThrow(LifetimeError);
    expect(callsOf(() => ofDriver.deallocate(made[0], large, stream))).toEqual([0, 0, 0, 1]);
    expect(callsOf(() => populated.deallocate(made[1], large, stream))).toEqual([0, 1, 0, 0]);
    expect(callsOf(() => byDefault.deallocate(made[2], KiB, stream))).toEqual([0, 0, 0, 1]);
    for (const pointer of made) expect(() => byDefault.deallocate(pointer, large, stream)).toThrow(LifetimeError);
    expect(byDefault.reservedBytes).toBe(before);
  });

  // The context's own error is what the driver then says, too.
  test.each([1, 2, 712, 999])("is the driver's own if that refuses to register it (%i)", (status) => {
    needFaults();
    const resource = new PinnedHostMemoryResource();
    const { rss } = process.memoryUsage();
    failCall('cuMemHostRegister', 1, status);
    let pointer = 0;
    expect(callsOf(() => (pointer = resource.allocate(16 * large, stream))).slice(0, 1)).toEqual([1]);
    // What was cleared for it is gone.
    if (Device.get().name.includes('oftware')) expect(process.memoryUsage().rss - rss).toBeLessThan(8 * large);
    setSync(pointer, 5, 1, 16 * large, stream);
    const last = new Uint8Array(1);
    copyToHostSync(last, pointer + 16 * large - 1, stream);
    expect(last).toEqual(Uint8Array.of(5));
    expect(callsOf(() => resource.deallocate(pointer, 16 * large, stream))).toEqual([0, 1, 0, 0]);
    // It may have been this once.
    if (!forbidsRegistration) expect(callsOf(() => pairOf(large))).toEqual([0, 0, 1, 1]);
  });

  test('fails as the driver does if that refuses both, and then keeps nothing', () => {
    needFaults();
    const resource = new PinnedHostMemoryResource();
    const { reservedBytes } = resource;
    for (const [status, kind] of [
      [2, OutOfMemoryError],
      [999, DriverError],
    ] as const) {
      failCall('cuMemHostRegister', 1, 1);
      // An allocation that finds no memory is tried again if something could be freed.
      failCall('cuMemHostAlloc', 1, status);
      expect(() => resource.allocate(large, stream)).toThrow(kind);
    }
    expect(resource.reservedBytes).toBe(reservedBytes);
  });

  test.each([800, 801])('is not registered again once the driver has said that it must not be (%i)', (status) => {
    needFaults();
    const program = `
      import { Device, MiB, PinnedHostMemoryResource, Stream } from 'cistern';
      import { driverCallCounts, failCall } from 'cistern/testing';
      Object.defineProperty(Device.get(), 'backend', { value: 'cuda' });
      const stream = new Stream();
      const resource = new PinnedHostMemoryResource();
      failCall('cuMemHostRegister', 1, ${status});
      for (let i = 0; i < 3; i++) resource.deallocate(resource.allocate(16 * MiB, stream), 16 * MiB, stream);
      const { cuMemHostAlloc, cuMemFreeHost, cuMemHostRegister } = driverCallCounts().byFunction;
      console.log(cuMemHostAlloc, cuMemFreeHost, cuMemHostRegister);
      // What was asked for is tried each time.
      const asked = new PinnedHostMemoryResource({ populateThreads: 1 });
      asked.deallocate(asked.allocate(MiB, stream), MiB, stream);
    `;
    if (forbidsRegistration) skipTest('the driver says so anyway');
    expect(runModule(program, deviceUnderTest)).toEqual({ status: 0, signal: null, stdout: '3 3 1\n', stderr: '' });
  });

  test('is asked of the driver if the machine does not have so much', () => {
    needFaults();
    const resource = new PinnedHostMemoryResource();
    // Some drivers would grant it.
    failCall('cuMemHostAlloc', 1, 2);
    expect(callsOf(() => expect(() => resource.allocate(1024 * GiB, stream)).toThrow(OutOfMemoryError))).toEqual([1, 0, 0, 0]);
  });

  test.skipIf(forbidsRegistration)('stays if the driver does not let go of it, and can be freed later', () => {
    needFaults();
    const resource = new PinnedHostMemoryResource();
    const pointer = resource.allocate(large, stream);
    failCall('cuMemHostUnregister', 1, 999);
    expect(() => resource.deallocate(pointer, large, stream)).toThrow(DriverError);
    setSync(pointer, 3, 1, large, stream);
    // While the program stalls a stream, nothing is freed.
    const hold = stream.hold();
    expect(callsOf(() => resource.deallocate(pointer, large, stream))).toEqual([0, 0, 0, 0]);
    hold.release();
    expect(callsOf(() => pairOf(KiB))).toEqual([1, 1, 0, 1]);
  });

  test.skipIf(forbidsRegistration)('of an ended worker is given back, both kinds', () => {
    const program = `
      import { once } from 'node:events';
      import { Worker } from 'node:worker_threads';
      import { MiB, PinnedHostMemoryResource, Stream } from 'cistern';
      const stream = new Stream();
      const worker = new Worker(\`
        import { parentPort } from 'node:worker_threads';
        import { Device, MiB, PinnedHostMemoryResource, Stream } from 'cistern';
        import { driverCallCounts } from 'cistern/testing';
        Object.defineProperty(Device.get(), 'backend', { value: 'cuda' });
        const resource = new PinnedHostMemoryResource();
        for (const bytes of [256 * MiB, MiB]) resource.allocate(bytes, new Stream());
        const { cuMemHostAlloc, cuMemHostRegister } = driverCallCounts().byFunction;
        parentPort.postMessage([cuMemHostAlloc, cuMemHostRegister]);
        // It ends in the midst of another.
        for (;;) resource.deallocate(resource.allocate(32 * MiB, new Stream()), 32 * MiB, new Stream());
      \`, { eval: true });
      const [counts] = await once(worker, 'message');
      await worker.terminate();
      const { rss } = process.memoryUsage();
      const resource = new PinnedHostMemoryResource();
      for (let i = 0; i < 2; i++) resource.deallocate(resource.allocate(MiB, stream), MiB, stream);
      console.log(...counts, rss - process.memoryUsage().rss > 128 * MiB);
    `;
    expect(runModule(program, deviceUnderTest)).toEqual({ status: 0, signal: null, stdout: '1 1 true\n', stderr: '' });
  });
});

describe.skipIf(forbidsRegistration)('pinned memory of both kinds', () => {
  test('has what sleeps, and what has left', async () => {
    if (Device.get().attribute('virtualMemoryManagementSupported') !== 1) skipTest('the device has no virtual memory management');
    using memory = new VirtualMemoryResource({ reservationBytes: GiB });
    const page = memory.granularityBytes;
    const [a, between, b] = [2 * large, page, page].map((bytes) => memory.allocate(bytes, stream)) as [number, number, number];
    memory.deallocate(between, page, stream);
    setSync(a, 1, 1, 2 * large, stream);
    setSync(b, 2, 1, page, stream);
    const before = driverCallCounts().byFunction;
    await sleepResource(memory, { keep: 'host' });
    await wakeResource(memory);
    const { byFunction } = driverCallCounts();
    const calls = ['cuMemHostAlloc', 'cuMemFreeHost', 'cuMemHostRegister', 'cuMemHostUnregister'];
    expect(calls.map((name) => (byFunction[name] as number) - (before[name] as number))).toEqual([1, 1, 1, 1]);
    expect([valuesOf(a, 2 * large, stream), valuesOf(b, page, stream)]).toEqual([[1], [2]]);
    memory.deallocate(a, 2 * large, stream);
    memory.deallocate(b, page, stream);
  });

  test('keeps spilled buffers next to each other', async () => {
    using host = new PinnedHostMemoryResource();
    using device = createResourceStack('pool(cuda, maximumBytes=64MiB)');
    using spilling = new SpillingResourceAdaptor(device.resource, host);
    const sizes = [large, MiB, large];
    const buffers = sizes.map((bytes) => new SpillableBuffer(bytes, { resource: spilling, stream }));
    for (const [i, buffer] of buffers.entries()) {
      using pin = await buffer.pin(stream);
      pin.fill(i + 1);
    }
    expect(spilling.spill(2 * large + MiB)).toBe(2 * large + MiB);
    for (const [i, buffer] of buffers.entries()) {
      using pin = await buffer.pin(stream);
      expect(valuesOf(pin.ptr, sizes[i] as number, stream)).toEqual([i + 1]);
    }
    for (const buffer of buffers) buffer.dispose();
  });

  test('is a view of the host, and a buffer like any other', async () => {
    using resource = new PinnedHostMemoryResource();
    using buffer = new DeviceBuffer(large, { resource, stream });
    const view = buffer.hostView(Uint8Array);
    view.fill(9);
    using copy = new DeviceBuffer(buffer, { stream });
    expect((await copy.toHost()).at(-1)).toBe(9);
    buffer.resize(large + MiB);
    expect(buffer.toHostSync().at(large - 1)).toBe(9);
  });
});
