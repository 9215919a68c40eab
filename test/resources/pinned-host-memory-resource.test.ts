import { existsSync, readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  copyToHostSync,
  createResourceStack,
  DeviceBuffer,
  DriverError,
  GiB,
  KiB,
  MiB,
  OutOfMemoryError,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  pointerInfo,
  Stream,
  setSync,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { forbidsRegistration } from '../support/direct-faults.mjs';
import { isGpu } from '../support/real-gpu.js';
import { runModule } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

let stream: Stream;
beforeEach(() => {
  stream = new Stream({ nonBlocking: true });
});
afterEach(() => stream.dispose());

/** The calls of the driver that `use` makes for memory that it registers, allocates and frees. */
function callsOf(use: () => void): Record<string, number> {
  const names = ['cuMemHostAlloc', 'cuMemFreeHost', 'cuMemHostRegister', 'cuMemHostUnregister'];
  const before = driverCallCounts().byFunction;
  use();
  const after = driverCallCounts().byFunction;
  const counts = names.map((name) => [name, (after[name] as number) - (before[name] as number)] as const);
  return Object.fromEntries(counts.filter(([, count]) => count > 0));
}

describe('PinnedHostMemoryResource with populateThreads', () => {
  test('has memory of the node that is closest to its device', () => {
    const maps = '/proc/self/numa_maps';
    if (!existsSync(maps)) skipTest('the system does not tell where memory is');
    if (isGpu) skipTest('a machine with a GPU may have one node, or its process a policy');
    using resource = new PinnedHostMemoryResource({ populateThreads: 2 });
    const pointer = resource.allocate(8 * MiB, stream);
    const lines = readFileSync(maps, 'utf8').split('\n');
    resource.deallocate(pointer, 8 * MiB, stream);
    expect(lines.find((line) => line.startsWith(`${pointer.toString(16)} `))).toMatch(/ prefer:0 .*N0=/);
  });

  test.each([1, 2, 128])('has pinned host memory of zeros, with %d threads', async (populateThreads) => {
    using resource = new PinnedHostMemoryResource({ populateThreads });
    const bytes = 70 * MiB + 5;
    using buffer = new DeviceBuffer(bytes, { resource, stream });
    expect(pointerInfo(buffer.ptr)).toMatchObject({ memoryKind: 'pinned-host' });
    expect(resource.memoryKind).toBe('pinned-host');
    expect(Buffer.from(buffer.hostView(Uint8Array)).equals(Buffer.alloc(bytes))).toBe(true);
    await buffer.fill(7);
    using copy = new DeviceBuffer(buffer, { stream });
    expect(Buffer.from(await copy.toHost()).equals(Buffer.alloc(bytes, 7))).toBe(true);
  });

  test('registers each allocation as a whole, and below a pool its first block', () => {
    expect(
      callsOf(() => {
        using resource = new PinnedHostMemoryResource({ populateThreads: 2 });
        using pool = new PoolMemoryResource(resource, { initialBytes: 70 * MiB });
        pool.deallocate(pool.allocate(60 * MiB, stream), 60 * MiB, stream);
        pool.deallocate(pool.allocate(KiB, stream), KiB, stream);
      }),
    ).toEqual({ cuMemHostRegister: 1, cuMemHostUnregister: 1 });
    expect(
      callsOf(() => {
        using resource = new PinnedHostMemoryResource();
        resource.deallocate(resource.allocate(KiB, stream), KiB, stream);
      }),
    ).toEqual({ cuMemHostAlloc: 1, cuMemFreeHost: 1 });
  });

  test('keeps nothing if the driver refuses to register, and says whether it is out of memory', () => {
    using resource = new PinnedHostMemoryResource({ populateThreads: 2 });
    const { reservedBytes } = resource;
    const { rss } = process.memoryUsage();
    failCall('cuMemHostRegister', 1, 2);
    expect(() => resource.allocate(256 * MiB, stream)).toThrow(OutOfMemoryError);
    failCall('cuMemHostRegister', 1, 712);
    expect(() => resource.allocate(256 * MiB, stream)).toThrow(DriverError);
    expect(resource.reservedBytes).toBe(reservedBytes);
    expect(process.memoryUsage().rss - rss).toBeLessThan(128 * MiB);
  });

  test('keeps the memory if the driver refuses to let go of it', () => {
    using resource = new PinnedHostMemoryResource({ populateThreads: 2 });
    const pointer = resource.allocate(MiB, stream);
    failCall('cuMemHostUnregister', 1, 999);
    expect(() => resource.deallocate(pointer, MiB, stream)).toThrow(DriverError);
    setSync(pointer, 3, 1, MiB, stream);
    const kept = new Uint8Array(MiB);
    copyToHostSync(kept, pointer, stream);
    expect(kept[MiB - 1]).toBe(3);
    resource.deallocate(pointer, MiB, stream);
  });

  test('tries again to free what a held stream and a refusal have kept', () => {
    using resource = new PinnedHostMemoryResource({ populateThreads: 2 });
    const pointer = resource.allocate(256 * MiB, stream);
    const { rss } = process.memoryUsage();
    const hold = stream.hold();
    resource.deallocate(pointer, 256 * MiB, stream);
    hold.release();
    failCall('cuMemHostUnregister', 1, 999);
    const unregistered = () =>
      callsOf(() => {
        const other = resource.allocate(KiB, stream);
        resource.deallocate(other, KiB, stream);
      })['cuMemHostUnregister'];
    unregistered();
    expect(failCall('cuMemHostUnregister', 0)).toBe(false);
    unregistered();
    expect(rss - process.memoryUsage().rss).toBeGreaterThan(128 * MiB);
    expect(unregistered()).toBe(1);
  });

  test.skipIf(forbidsRegistration)('gives back the memory of an ended worker', () => {
    const program = `
      import { once } from 'node:events';
      import { Worker } from 'node:worker_threads';
      import { MiB, PinnedHostMemoryResource, Stream } from 'cistern';
      import { driverCallCounts } from 'cistern/testing';
      new Stream().dispose();
      const worker = new Worker(\`
        import { parentPort } from 'node:worker_threads';
        import { MiB, PinnedHostMemoryResource, Stream } from 'cistern';
        new PinnedHostMemoryResource({ populateThreads: 2 }).allocate(256 * MiB, new Stream());
        parentPort.postMessage('allocated');
        setInterval(() => {}, 1000);
      \`, { eval: true });
      await once(worker, 'message');
      await worker.terminate();
      const { rss } = process.memoryUsage();
      const resource = new PinnedHostMemoryResource({ populateThreads: 2 });
      const stream = new Stream();
      for (let i = 0; i < 2; i++) resource.deallocate(resource.allocate(MiB, stream), MiB, stream);
      console.log(rss - process.memoryUsage().rss > 128 * MiB);
    `;
    expect(runModule(program, deviceUnderTest)).toEqual({ status: 0, signal: null, stdout: 'true\n', stderr: '' });
  });

  test('is out of memory, and alive, if more is asked for than the machine has', () => {
    using resource = new PinnedHostMemoryResource({ populateThreads: 2 });
    for (const bytes of [1024 * GiB, 2 ** 52]) {
      expect(callsOf(() => expect(() => resource.allocate(bytes, stream)).toThrow(OutOfMemoryError))).toEqual({});
    }
  });

  test('is written in a specification', () => {
    using stack = createResourceStack('pool(pinned-host(populateThreads=2), initialBytes=1MiB)');
    expect(callsOf(() => stack.dispose())).toEqual({ cuMemHostUnregister: 1 });
  });

  test.each([-1, 1.5, 129, Number.NaN])('refuses %d threads', (populateThreads) => {
    expect(() => new PinnedHostMemoryResource({ populateThreads })).toThrow(ArgumentRangeError);
  });

  test('refuses threads that are no number', () => {
    expect(() => new PinnedHostMemoryResource({ populateThreads: '2' as unknown as number })).toThrow(ArgumentTypeError);
  });

  test('needs devices that have registered memory at the addresses of the host', () => {
    if (process.env['STRICT_DRIVER_CONTROL'] === undefined) skipTest('only the strict driver can have other addresses');
    const program = `
      import { MiB, PinnedHostMemoryResource, Stream } from 'cistern';
      const stream = new Stream();
      for (const each of [new PinnedHostMemoryResource(), new PinnedHostMemoryResource({ populateThreads: 0 })]) {
        each.deallocate(each.allocate(16 * MiB, stream), 16 * MiB, stream);
      }
      try {
        new PinnedHostMemoryResource({ populateThreads: 2 });
      } catch (error) {
        console.log(error.code, error.message);
      }
    `;
    const { stdout } = runModule(program, { ...deviceUnderTest, STRICT_DRIVER_REGISTERED_POINTERS: '0' });
    expect(stdout).toMatch(/^ERR_CISTERN_NOT_SUPPORTED populateThreads needs .* canUseHostPointerForRegisteredMemory of device 0 is 0/);
  });
});
