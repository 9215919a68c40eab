import '../../src/tools/every-kind.js';
import { inspect } from 'node:util';
import { afterAll, describe, expect, test } from 'vitest';
import { CudaMemoryResource, createResource, Device, DeviceBuffer, KiB, MiB, PoolMemoryResource, Stream, set } from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import {
  GlobalArenaMemoryResource,
  ThreadSafeArenaMemoryResource,
  type ThreadSafeArenaMemoryResourceOptions,
} from '../../src/workers/index.js';
import { code } from '../support/errors.js';
import { printed } from '../support/run-module.js';
import { runWithWorkers } from '../support/workers.js';

const stream = new Stream({ nonBlocking: true });
const other = new Stream({ nonBlocking: true });
afterAll(() => {
  stream.dispose();
  other.dispose();
});

let names = 0;
/** An arena that no other test has. */
function arena(options: ThreadSafeArenaMemoryResourceOptions = {}): ThreadSafeArenaMemoryResource {
  return new ThreadSafeArenaMemoryResource({ name: `test ${++names}`, arenaBytes: 1 * MiB, superblockBytes: 64 * KiB, ...options });
}

/** Events that this environment's calls have created and not destroyed. */
function liveEvents(): number {
  const { byFunction } = driverCallCounts();
  return (byFunction['cuEventCreate'] as number) - (byFunction['cuEventDestroy'] as number);
}

describe('a thread-safe arena', () => {
  test('counts none of its events as those of the environment, neither when they are made nor when the arena ends', () => {
    const before = liveEvents();
    const resource = arena({ deallocationEvents: 'eager' });
    for (const on of [stream, other]) resource.deallocate(resource.allocate(200 * KiB, on), 200 * KiB, on);
    resource.dispose();
    using reclaimer = new CudaMemoryResource();
    reclaimer.deallocate(reclaimer.allocate(256, stream), 256, stream);
    expect(liveEvents()).toBe(before);
  });

  test('allocates, frees, counts and shows what it is', () => {
    using resource = arena({ memoryKind: 'pinned-host', deallocationEvents: 'deferred' });
    const pointer = resource.allocate(1000, stream);
    expect(pointer % 256).toBe(0);
    expect(resource.allocate(0, stream)).toBe(0);
    expect(resource.statistics()).toEqual({
      ...{ liveBytes: 1000, liveAllocations: 1, threads: 1 },
      ...{ reservedBytes: 64 * KiB, peakReservedBytes: 64 * KiB },
    });
    expect(Object.isFrozen(resource.statistics())).toBe(true);
    const large = resource.allocate(200 * KiB, stream, 64 * KiB);
    expect(large % (64 * KiB)).toBe(0);
    expect(resource.reservedBytes).toBe(320 * KiB);
    resource.deallocate(large, 200 * KiB, stream);
    resource.deallocate(pointer, 1000, stream);
    expect(resource.statistics()).toMatchObject({ liveBytes: 0, liveAllocations: 0 });
    const { name, memoryKind, arenaBytes, superblockBytes, deallocationEvents, peakReservedBytes } = resource;
    expect({ name, memoryKind, arenaBytes, superblockBytes, deallocationEvents, peakReservedBytes }).toEqual({
      ...{ name, memoryKind: 'pinned-host', arenaBytes: 1 * MiB, superblockBytes: 64 * KiB },
      ...{ deallocationEvents: 'deferred', peakReservedBytes: 320 * KiB },
    });
    expect(inspect(resource)).toContain("deallocationEvents: 'deferred'");
    expect(String(resource)).toBe('thread-safe-arena');
    expect(resource.isEqual(resource)).toBe(true);
    using same = new ThreadSafeArenaMemoryResource({ name: resource.name });
    expect([resource.isEqual(same), same.arenaBytes]).toEqual([false, 1 * MiB]);
  });

  test('resets its peak to what it has', () => {
    using resource = arena();
    using rival = new GlobalArenaMemoryResource({ name: resource.name });
    resource.deallocate(resource.allocate(512 * KiB, stream), 512 * KiB, stream);
    rival.deallocate(rival.allocate(1 * MiB, stream), 1 * MiB, stream);
    expect([resource.reservedBytes, resource.peakReservedBytes]).toEqual([0, 512 * KiB]);
    resource.resetPeakReservedBytes();
    expect(resource.peakReservedBytes).toBe(0);
  });

  test('refuses options, arguments and pointers, and stays as it was', () => {
    using resource = arena();
    for (const deallocationEvents of ['never', 1, null] as never[]) {
      expect(() => arena({ deallocationEvents })).toThrow(/deallocationEvents must be 'eager', 'deferred', 'off', got/);
    }
    expect(() => arena({ arenaBytes: 0 })).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(() => new ThreadSafeArenaMemoryResource({ name: resource.name, superblockBytes: 4096 })).toThrow(
      'superblockBytes must be 65536',
    );
    expect(() => resource.allocate(-1, stream)).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(() => resource.allocate(1, stream, 3)).toThrow(RangeError);
    expect(() => resource.allocate(1, stream, 128 * KiB)).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(() => resource.allocate(2 * MiB, stream)).toThrow(/thread-safe arena "test \d+" is out of memory: 2 MiB/);
    const pointer = resource.allocate(1000, stream);
    expect(() => resource.deallocate(pointer, 999, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    expect(() => resource.deallocate(pointer + 256, 744, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(() => resource.deallocate(8, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(resource.statistics().liveBytes).toBe(1000);
    resource.deallocate(pointer, 1000, stream);
    expect(() => resource.deallocate(pointer, 1000, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
  });

  test('lets a stream use what another has freed once its work is done', async () => {
    for (const deallocationEvents of ['eager', 'deferred', 'off'] as const) {
      using resource = arena({ arenaBytes: 64 * KiB, memoryKind: 'pinned-host', deallocationEvents });
      const pointer = resource.allocate(64 * KiB, stream);
      using hold = deallocationEvents === 'off' ? undefined : stream.hold();
      set(pointer, 1, 1, 64 * KiB, stream);
      resource.deallocate(pointer, 64 * KiB, stream);
      expect(resource.allocate(64 * KiB, other)).toBe(pointer);
      set(pointer, 2, 1, 64 * KiB, other);
      if (hold !== undefined) expect(other.query()).toBe(false);
      hold?.release();
      await other.synchronize();
      using view = DeviceBuffer.adopt({ ptr: pointer, byteLength: 64 * KiB, resource, stream: other });
      expect(view.hostView(Uint8Array)[64 * KiB - 1]).toBe(2);
    }
  });

  test('does not wait for a stream that waits for JavaScript, but is out of memory', () => {
    using resource = arena({ arenaBytes: 64 * KiB, deallocationEvents: 'off' });
    const pointer = resource.allocate(64 * KiB, stream);
    using hold = stream.hold();
    resource.deallocate(pointer, 64 * KiB, stream);
    expect(() => resource.allocate(64 * KiB, other)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    hold.release();
    stream.synchronizeSync();
    expect(resource.allocate(64 * KiB, other)).toBe(pointer);
    resource.deallocate(pointer, 64 * KiB, other);
  });

  test('shares superblocks with the pools of its worker, in both directions', () => {
    using resource = arena();
    using global = new GlobalArenaMemoryResource({ name: resource.name });
    using pool = new PoolMemoryResource(global);
    pool.deallocate(pool.allocate(1 * MiB, stream), 1 * MiB, stream);
    const pointer = resource.allocate(1 * MiB, other);
    expect([pool.reservedBytes, resource.reservedBytes]).toEqual([0, 1 * MiB]);
    expect(() => pool.allocate(1, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    resource.deallocate(pointer, 1 * MiB, other);
    pool.deallocate(pool.allocate(1 * MiB, stream), 1 * MiB, stream);
    expect([pool.reservedBytes, resource.reservedBytes]).toEqual([1 * MiB, 0]);
    expect(global.statistics().workers).toBe(1);
  });

  test('frees after it is disposed, and allocates no more', () => {
    const resource = arena();
    const pointer = resource.allocate(1000, stream);
    resource.dispose();
    resource.dispose();
    expect(() => resource.allocate(1, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(() => resource.statistics()).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect([resource.reservedBytes, resource.peakReservedBytes]).toEqual([0, 64 * KiB]);
    resource.resetPeakReservedBytes();
    expect(resource.peakReservedBytes).toBe(0);
    expect(() => resource.deallocate(pointer, 999, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    resource.deallocate(pointer, 1000, stream);
  });

  test('does not wait for the device while a stream is captured, but is out of memory, and the capture goes on', () => {
    using resource = arena({ arenaBytes: 64 * KiB, deallocationEvents: 'off' });
    const pointer = resource.allocate(64 * KiB, stream);
    resource.deallocate(pointer, 64 * KiB, stream);
    using captured = new Stream({ nonBlocking: true });
    const graph = captured.capture(() => {
      expect(() => resource.allocate(64 * KiB, other)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
      expect(captured.captureStatus).toBe('active');
    });
    graph.dispose();
    expect(resource.allocate(64 * KiB, other)).toBe(pointer);
    resource.deallocate(pointer, 64 * KiB, other);
  });

  test('refuses a stream of another device, and a captured one', () => {
    using resource = arena();
    const pointer = resource.allocate(1000, stream);
    const graph = stream.capture(() => {
      expect(() => resource.allocate(1, stream)).toThrow(code('ERR_CISTERN_CAPTURING'));
      expect(() => resource.deallocate(pointer, 1000, stream)).toThrow(code('ERR_CISTERN_CAPTURING'));
    });
    graph.dispose();
    resource.deallocate(pointer, 1000, stream);
    if (Device.count() < 2) return;
    using far = new Stream({ device: Device.get(1) });
    expect(() => resource.allocate(1, far)).toThrow(code('ERR_INVALID_ARG_VALUE'));
  });

  test('is made from a specification', () => {
    const resource = createResource('thread-safe-arena(name=specified,arenaBytes=1MiB,superblockBytes=64KiB,deallocationEvents=off)');
    expect(resource).toMatchObject({ name: 'specified', arenaBytes: 1 * MiB, superblockBytes: 64 * KiB, deallocationEvents: 'off' });
    resource[Symbol.dispose]();
  });
});

describe('a thread-safe arena of a worker that ends', () => {
  test('gives its memory back, also that of live buffers, once a living worker needs it', () => {
    const end = runWithWorkers(`
      const keeper = new GlobalArenaMemoryResource({ name: 'ended', arenaBytes: 1 * MiB, superblockBytes: 64 * KiB });
      const stream = new Stream();
      const [worker] = start(\`
        const resource = new ThreadSafeArenaMemoryResource({ name: 'ended' });
        const stream = new Stream();
        globalThis.kept = [new DeviceBuffer(100, { resource, stream }), resource.allocate(300 * KiB, stream)];
        post(resource.reservedBytes / KiB);
        await received();
      \`);
      show(await received(worker));
      await worker.terminate();
      show(keeper.statistics().usedBytes / KiB);
      const pointer = keeper.allocate(1 * MiB, stream);
      show(keeper.statistics().usedBytes / KiB);
      keeper.deallocate(pointer, 1 * MiB, stream);
    `);
    expect(end).toEqual(printed('384', '320', '1024'));
  });
});
