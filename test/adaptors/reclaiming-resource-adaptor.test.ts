import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  Device,
  DeviceBuffer,
  DriverError,
  LifetimeError,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  ReclaimingResourceAdaptor,
  type ReclaimStage,
  StatisticsResourceAdaptor,
  Stream,
} from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';
import { needSmallDevice } from '../support/device-memory.js';
import { caught } from '../support/errors.js';
import { TwoWayResource } from '../support/two-way-resource.js';

const everyStage: readonly ReclaimStage[] = ['settle', 'trim', 'minor-collection', 'major-collection', 'callback'];
const outOfMemory = expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
let stream: Stream;
let addresses: AddressCountingResource;
let tries: number;

beforeEach(() => {
  stream = new Stream();
  addresses = new AddressCountingResource();
  addresses.limitBytes = 1000;
  tries = 0;
  addresses.beforeAllocate = () => tries++;
});

afterEach(() => stream.dispose());

function timing(resource: ReclaimingResourceAdaptor, stage: ReclaimStage) {
  const found = resource.timings().stages.find((timing) => timing.stage === stage);
  if (found === undefined) throw new Error(`there is no stage ${stage}`);
  return found;
}

function drop(count: number, bytes: number, resource: MemoryResource): void {
  for (let i = 0; i < count; i++) new DeviceBuffer(bytes, { resource, stream });
}

/**
 * Small allocations come from a pool, large ones directly from the same device; the pool keeps 512
 * MiB of the device's 1 GiB, and returns none unless it is trimmed.
 */
function deviceWithFullPool(): { resource: TwoWayResource } & Disposable {
  const device = new CudaMemoryResource();
  const pool = new PoolMemoryResource(device, { keepBytes: 512 * MiB });
  const resource = new TwoWayResource(pool, device, 512 * MiB);
  return { resource, [Symbol.dispose]: () => pool.dispose() };
}

describe('while there is memory', () => {
  test('no stage runs, no clock is read, and nothing is collected', () => {
    const onOutOfMemory = vi.fn(() => true);
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory, softLimitBytes: 1000 });
    const clock = vi.spyOn(performance, 'now');
    for (let i = 0; i < 10; i++) resource.deallocate(resource.allocate(1000, stream), 1000, stream);
    expect(clock).not.toHaveBeenCalled();
    clock.mockRestore();
    expect(onOutOfMemory).not.toHaveBeenCalled();
    expect(resource.timings()).toMatchObject({ allocations: 10, exhaustions: 0, softCollections: 0 });
    expect(resource.timings().stages.every(({ calls }) => calls === 0)).toBe(true);
  });

  test('live bytes are counted as requested', () => {
    const resource = new ReclaimingResourceAdaptor(addresses);
    const seen: number[] = [];
    addresses.beforeAllocate = () => seen.push(resource.liveBytes);
    const pointer = resource.allocate(900, stream);
    expect(seen).toEqual([900]);
    expect(() => resource.allocate(101, stream)).toThrow(outOfMemory);
    expect(() => resource.deallocate(pointer, 899, stream)).toThrow(LifetimeError);
    expect(resource.liveBytes).toBe(900);
    resource.deallocate(pointer, 900, stream);
    expect(resource.liveBytes).toBe(0);
    using device = new CudaAsyncMemoryResource();
    const other = new ReclaimingResourceAdaptor(device);
    other.deallocate(0, 5, stream);
    expect(other.liveBytes).toBe(0);
  });
});

describe('each stage alone saves an allocation that no other could', () => {
  test('settle: a free that is queued on a stream', () => {
    needSmallDevice();
    using other = new CudaAsyncMemoryResource({ releaseThresholdBytes: 0 });
    using device = new CudaMemoryResource();
    using releasing = new Stream({ nonBlocking: true });
    const fill = () => {
      const pointer = other.allocate(600 * MiB, stream);
      // The driver's pool cannot give it back before the stream has reached the free. An allocation
      // does not wait for a held stream.
      const hold = stream.hold();
      releasing.launchHostFunction(() => hold.release());
      other.deallocate(pointer, 600 * MiB, stream);
    };
    const without = everyStage.filter((stage) => stage !== 'settle');
    fill();
    expect(() => new ReclaimingResourceAdaptor(device, { stages: without }).allocate(600 * MiB, stream)).toThrow(outOfMemory);
    const resource = new ReclaimingResourceAdaptor(device, { stages: ['settle'] });
    resource.deallocate(resource.allocate(600 * MiB, stream), 600 * MiB, stream);
    expect(timing(resource, 'settle')).toMatchObject({ calls: 1, rescues: 1 });
  });

  test('settle: what a host function frees', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['settle'] });
    const pointer = resource.allocate(1000, stream);
    stream.launchHostFunction(() => resource.deallocate(pointer, 1000, stream));
    resource.allocate(1000, stream);
    expect(timing(resource, 'settle').rescues).toBe(1);
    expect(resource.liveBytes).toBe(1000);
  });

  test('trim: memory kept by a resource beside the one that ran out', () => {
    needSmallDevice();
    using stack = deviceWithFullPool();
    stack.resource.deallocate(stack.resource.allocate(512 * MiB, stream), 512 * MiB, stream);
    const without = everyStage.filter((stage) => stage !== 'trim');
    expect(() => new ReclaimingResourceAdaptor(stack.resource, { stages: without }).allocate(600 * MiB, stream)).toThrow(outOfMemory);
    const resource = new ReclaimingResourceAdaptor(stack.resource, { stages: ['trim'] });
    resource.deallocate(resource.allocate(600 * MiB, stream), 600 * MiB, stream);
    expect(timing(resource, 'trim')).toMatchObject({ calls: 1, rescues: 1, recoveredBytes: 512 * MiB });
  });

  test('minor collection: recently dropped buffers', () => {
    drop(10, 100, addresses);
    const without = everyStage.filter((stage) => !stage.endsWith('collection'));
    expect(() => new ReclaimingResourceAdaptor(addresses, { stages: without }).allocate(900, stream)).toThrow(outOfMemory);
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['minor-collection'] });
    resource.allocate(900, stream);
    const { calls, rescues, recoveredBytes } = timing(resource, 'minor-collection');
    expect([calls, rescues]).toEqual([1, 1]);
    expect(recoveredBytes).toBeGreaterThanOrEqual(900);
  });

  test('major collection: buffers that outlived minor collections', () => {
    const kept = Array.from({ length: 10 }, () => new DeviceBuffer(100, { resource: addresses, stream }));
    const minor = new ReclaimingResourceAdaptor(addresses, { stages: ['minor-collection'] });
    for (let i = 0; i < 3; i++) expect(() => minor.allocate(900, stream)).toThrow(outOfMemory);
    kept.length = 0;
    expect(() => minor.allocate(900, stream)).toThrow(outOfMemory);
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['major-collection'] });
    resource.allocate(900, stream);
    expect(timing(resource, 'major-collection')).toMatchObject({ calls: 1, rescues: 1 });
  });

  test('callback: memory that only the application knows of', () => {
    const cache = addresses.allocate(1000, stream);
    const asked: unknown[] = [];
    const resource = new ReclaimingResourceAdaptor(addresses, {
      onOutOfMemory: (...asking) => {
        asked.push(...asking);
        addresses.deallocate(cache, 1000, stream);
        return 1000;
      },
    });
    resource.allocate(900, stream);
    expect(asked).toEqual([900, stream]);
    expect(timing(resource, 'callback')).toMatchObject({ calls: 1, rescues: 1, recoveredBytes: 1000 });
  });
});

describe('the stages', () => {
  test('run in their order, in whatever order they are given, and the error says what each recovered', () => {
    const upstream = new StatisticsResourceAdaptor(addresses);
    addresses.allocate(300, stream);
    const resource = new ReclaimingResourceAdaptor(upstream, { stages: everyStage.toReversed(), onOutOfMemory: () => 7 });
    const error = caught<OutOfMemoryError>(() => resource.allocate(900, stream));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error.stages).toEqual([
      { stage: 'settle', recoveredBytes: 0 },
      { stage: 'trim', recoveredBytes: 0 },
      { stage: 'minor-collection', recoveredBytes: 0 },
      { stage: 'major-collection', recoveredBytes: 0 },
      { stage: 'callback', recoveredBytes: 7 },
      { stage: 'settle', after: 'callback', recoveredBytes: 0 },
      { stage: 'trim', after: 'callback', recoveredBytes: 0 },
    ]);
    expect(error).toMatchObject({
      message:
        'no 900 bytes are left; reclaiming recovered too little: settle 0 B, trim 0 B, minor-collection 0 B, major-collection 0 B, callback 7 B, settle after callback 0 B, trim after callback 0 B',
      requestedBytes: 900,
      path: ['ReclaimingResourceAdaptor', 'StatisticsResourceAdaptor', 'addresses'],
      cause: { message: 'no 900 bytes are left', path: ['StatisticsResourceAdaptor', 'addresses'] },
    });
    expect(Object.isFrozen(error.stages)).toBe(true);
  });

  test("keep the upstream's limits in the error", () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes: 1 * MiB });
    expect(caught<OutOfMemoryError>(() => new ReclaimingResourceAdaptor(pool).allocate(2 * MiB, stream))).toMatchObject({
      limitBytes: 1 * MiB,
      availableBytes: 0,
      path: ['ReclaimingResourceAdaptor', 'PoolMemoryResource'],
    });
  });

  test('do not ask the upstream again if certainly nothing was recovered', () => {
    const stages = ['trim', 'minor-collection', 'major-collection', 'callback'] as const;
    const resource = new ReclaimingResourceAdaptor(addresses, { stages, onOutOfMemory: () => false });
    expect(() => resource.allocate(1001, stream)).toThrow(outOfMemory);
    expect(tries).toBe(1);
  });

  test('ask the upstream again if recovery is uncertain', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['settle', 'callback'], onOutOfMemory: () => true });
    addresses.beforeAllocate = () => {
      throw new OutOfMemoryError(`nothing at try ${++tries}`, { requestedBytes: 1, path: [] });
    };
    expect(caught<OutOfMemoryError>(() => resource.allocate(1, stream)).cause).toMatchObject({ message: 'nothing at try 3' });
    expect(tries).toBe(3);
  });

  test('end with the first that helps', () => {
    const onOutOfMemory = vi.fn(() => true);
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory });
    const pointer = resource.allocate(1000, stream);
    stream.launchHostFunction(() => resource.deallocate(pointer, 1000, stream));
    resource.allocate(1000, stream);
    expect(resource.timings().stages.map(({ calls }) => calls)).toEqual([1, 0, 0, 0, 0]);
  });

  test('settle and trim again when a collection freed memory in the wrong place', () => {
    needSmallDevice();
    using stack = deviceWithFullPool();
    const resource = new ReclaimingResourceAdaptor(stack.resource, { stages: ['trim', 'major-collection'] });
    drop(1, 512 * MiB, resource);
    // Buffers that the stack still refers to are not collected.
    drop(1, 0, resource);
    resource.deallocate(resource.allocate(600 * MiB, stream), 600 * MiB, stream);
    expect(timing(resource, 'major-collection')).toMatchObject({ calls: 1, rescues: 0, recoveredBytes: 512 * MiB });
    expect(timing(resource, 'trim')).toMatchObject({ calls: 2, rescues: 1, recoveredBytes: 512 * MiB });
  });

  test('count bytes once that pass through several resources on their way back', () => {
    using device = new CudaAsyncMemoryResource();
    using pool = new PoolMemoryResource(device);
    pool.deallocate(pool.allocate(64 * MiB, stream), 64 * MiB, stream);
    const resource = new ReclaimingResourceAdaptor(pool, { stages: ['settle', 'trim'] });
    const error = caught<OutOfMemoryError>(() => resource.allocate(2 ** 41, stream));
    expect(error.stages.map(({ recoveredBytes }) => recoveredBytes)).toEqual([0, 64 * MiB]);
    expect(device.reservedBytes).toBe(0);
  });

  test("count bytes once that a driver's pool cannot give back before it is waited for", async () => {
    using device = new CudaAsyncMemoryResource();
    using pool = new PoolMemoryResource(device);
    const fill = () => pool.deallocate(pool.allocate(64 * MiB, stream), 64 * MiB, stream);
    const resource = new ReclaimingResourceAdaptor(pool, { stages: ['settle', 'trim', 'major-collection'] });
    const recovered = () => timing(resource, 'trim').recoveredBytes;
    fill();
    stream.launchHostFunction(() => void caught<OutOfMemoryError>(() => resource.allocate(2 ** 41, stream)));
    stream.synchronizeSync();
    expect(recovered() + device.reservedBytes).toBe(64 * MiB);
    caught<OutOfMemoryError>(() => resource.allocate(2 ** 41, stream));
    expect([recovered(), device.reservedBytes]).toEqual([64 * MiB, 0]);
    fill();
    await expect(resource.allocateAsync(2 ** 41, stream)).rejects.toThrow(OutOfMemoryError);
    expect([recovered(), device.reservedBytes]).toEqual([128 * MiB, 0]);
  });

  test('count bytes once that two equal resources know of', () => {
    const device = new CudaMemoryResource();
    const cache = device.allocate(64 * MiB, stream);
    const onOutOfMemory = () => {
      device.deallocate(cache, 64 * MiB, stream);
      return true;
    };
    const resource = new ReclaimingResourceAdaptor(new TwoWayResource(device, new CudaMemoryResource()), {
      onOutOfMemory,
      stages: ['callback'],
    });
    const error = caught<OutOfMemoryError>(() => resource.allocate(2 ** 41, stream));
    expect(error.stages).toEqual([{ stage: 'callback', recoveredBytes: 64 * MiB }]);
  });

  test('run after those of a resource of the same kind below', () => {
    const inner = new ReclaimingResourceAdaptor(addresses, { stages: ['trim'] });
    const error = caught<OutOfMemoryError>(() => new ReclaimingResourceAdaptor(inner, { stages: ['settle'] }).allocate(1001, stream));
    expect(error.stages.map(({ stage }) => stage)).toEqual(['trim', 'settle']);
    expect(error.path).toEqual(['ReclaimingResourceAdaptor', 'ReclaimingResourceAdaptor', 'addresses']);
  });

  test('leave layers on another device alone', () => {
    using other = new PoolMemoryResource(new CudaMemoryResource({ device: Device.get(1) }));
    const resource = new ReclaimingResourceAdaptor(new TwoWayResource(addresses, other), { stages: ['trim'] });
    addresses.limitBytes = 0;
    expect(caught<OutOfMemoryError>(() => resource.allocate(1, stream)).stages).toEqual([{ stage: 'trim', recoveredBytes: 0 }]);
  });

  test('do not run if the upstream fails for another reason, first or later', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['settle'] });
    addresses.beforeAllocate = () => {
      throw new Error(`broken ${++tries}`);
    };
    expect(() => resource.allocate(1, stream)).toThrow('broken 1');
    addresses.beforeAllocate = () => {
      if (tries++ > 1) throw new Error('broken later');
    };
    expect(() => resource.allocate(1001, stream)).toThrow('broken later');
    expect(resource.liveBytes).toBe(0);
    expect(timing(resource, 'settle').calls).toBe(1);
  });

  test("throw the driver's error if a wait fails", () => {
    const resource = new ReclaimingResourceAdaptor(addresses);
    failCall('cuCtxSynchronize', 1, 700);
    expect(() => resource.allocate(1001, stream)).toThrow(DriverError);
    expect(resource.allocate(1000, stream)).not.toBe(0);
  });

  test('run without waiting inside a host function', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes: 1 * MiB });
    pool.deallocate(pool.allocate(512, stream), 512, stream);
    const { reservedBytes } = pool;
    const resource = new ReclaimingResourceAdaptor(pool);
    let error: OutOfMemoryError | undefined;
    stream.launchHostFunction(() => {
      error = caught<OutOfMemoryError>(() => resource.allocate(2 * MiB, stream));
    });
    stream.synchronizeSync();
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error?.stages.map(({ stage, recoveredBytes }) => [stage, recoveredBytes])).toEqual([
      ['settle', 0],
      ['trim', 0],
      ['minor-collection', 0],
      ['major-collection', 0],
    ]);
    expect(pool.reservedBytes).toBe(reservedBytes);
    pool.validate();
  });

  test('do not use a resource that their code disposed', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, {
      onOutOfMemory: () => {
        resource.dispose();
        return true;
      },
    });
    expect(() => resource.allocate(1001, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(resource.liveBytes).toBe(0);
  });
});

describe('the callback', () => {
  test('may allocate from the same resource, which does not start the stages again', () => {
    const inner: unknown[] = [];
    const onOutOfMemory = vi.fn(() => {
      if (inner.length > 0) throw new Error('called again');
      inner.push(undefined);
      inner.push(
        caught<OutOfMemoryError>(() => resource.allocate(2000, stream)),
        resource.allocate(400, stream),
      );
      return true;
    });
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory });
    expect(() => resource.allocate(1001, stream)).toThrow(outOfMemory);
    expect(onOutOfMemory).toHaveBeenCalledTimes(1);
    expect(inner[1]).toMatchObject({ requestedBytes: 2000, stages: [], path: ['ReclaimingResourceAdaptor', 'addresses'] });
    expect(resource.liveBytes).toBe(400);
  });

  test('may allocate asynchronously, which does not start the stages again either', async () => {
    let inner: Promise<number> | undefined;
    const onOutOfMemory = vi.fn(() => {
      inner = resource.allocateAsync(2000, stream);
      return false;
    });
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory });
    expect(() => resource.allocate(1001, stream)).toThrow(outOfMemory);
    await expect(inner).rejects.toMatchObject({ requestedBytes: 2000, stages: [] });
    expect(onOutOfMemory).toHaveBeenCalledTimes(1);
  });

  test('may create a buffer of the same resource', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, {
      onOutOfMemory: () => {
        expect(() => new DeviceBuffer(2000, { resource, stream })).toThrow(outOfMemory);
        new DeviceBuffer(200, { resource, stream }).dispose();
        return false;
      },
    });
    expect(() => resource.allocate(1001, stream)).toThrow(outOfMemory);
    expect(addresses.live.size).toBe(0);
  });

  test('that throws makes the allocation throw its error, and the next one has its stages again', () => {
    const failure = new Error('the cache is locked');
    const onOutOfMemory = vi.fn((): boolean => {
      throw failure;
    });
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory });
    for (let i = 1; i <= 2; i++) {
      expect(() => resource.allocate(1001, stream)).toThrow(failure);
      expect(timing(resource, 'callback').calls).toBe(i);
    }
    expect(resource.liveBytes).toBe(0);
    expect(resource.allocate(1000, stream)).not.toBe(0);
  });

  test.each([
    ['nothing', undefined, 'ERR_INVALID_ARG_TYPE', 'onOutOfMemory must return a number or a boolean, got undefined'],
    [
      'a promise',
      Promise.resolve(5),
      'ERR_INVALID_ARG_TYPE',
      'onOutOfMemory must return a number or a boolean, got an instance of Promise',
    ],
    ['a negative number', -1, 'ERR_OUT_OF_RANGE', 'the result of onOutOfMemory must be an integer from 0 to 2^53 - 1, got -1'],
  ])('must not return %s', (_, answer, code, message) => {
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory: () => answer as number });
    expect(() => resource.allocate(1001, stream)).toThrow(expect.objectContaining({ code, message }));
  });
});

describe('a soft limit', () => {
  test('starts a collection before the memory runs out', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { softLimitBytes: 500 });
    drop(5, 100, resource);
    expect(resource.liveBytes).toBe(500);
    resource.allocate(100, stream);
    expect(resource.liveBytes).toBeLessThanOrEqual(200);
    expect(resource.timings()).toMatchObject({ softCollections: 1, exhaustions: 0 });
    expect(timing(resource, 'minor-collection').recoveredBytes).toBeGreaterThanOrEqual(400);
    expect(timing(resource, 'major-collection').calls).toBe(0);
  });

  test('runs a major collection after a minor one that recovered too little', () => {
    const kept = Array.from({ length: 5 }, () => new DeviceBuffer(100, { resource: addresses, stream }));
    for (let i = 0; i < 3; i++) expect(() => new DeviceBuffer(1000, { resource: addresses, stream })).toThrow(outOfMemory);
    for (const buffer of kept) buffer.dispose();
    const resource = new ReclaimingResourceAdaptor(addresses, { softLimitBytes: 500 });
    resource.allocate(500, stream);
    resource.allocate(100, stream);
    expect(timing(resource, 'minor-collection').calls).toBe(1);
    expect(timing(resource, 'major-collection').calls).toBe(1);
  });

  test('refuses nothing', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { softLimitBytes: 100 });
    for (let i = 0; i < 10; i++) expect(resource.allocate(100, stream)).not.toBe(0);
    expect(resource.liveBytes).toBe(1000);
    expect(resource.timings().exhaustions).toBe(0);
  });

  test('does not collect again before an eighth more is live, if little was recovered', () => {
    addresses.limitBytes = 1e6;
    const resource = new ReclaimingResourceAdaptor(addresses, { softLimitBytes: 8000 });
    const collections: number[] = [];
    for (let i = 0; i < 200; i++) {
      const { softCollections } = resource.timings();
      resource.allocate(100, stream);
      if (resource.timings().softCollections > softCollections) collections.push(resource.liveBytes);
    }
    expect(collections).toEqual([8100, 9200, 10_400, 11_800, 13_300, 15_000, 16_900, 19_100]);
  });

  test('does not collect on every pass of a loop that frees and allocates around it', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { softLimitBytes: 500 });
    resource.allocate(300, stream);
    for (let i = 0; i < 100; i++) resource.deallocate(resource.allocate(250, stream), 250, stream);
    expect(resource.timings().softCollections).toBe(1);
  });

  test('applies again after a collection that recovered much', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { softLimitBytes: 500 });
    for (let i = 0; i < 100; i++) {
      drop(1, 100, resource);
      expect(resource.liveBytes).toBeLessThanOrEqual(700);
    }
    expect(resource.timings().softCollections).toBeGreaterThan(10);
    expect(resource.timings().exhaustions).toBe(0);
  });

  test('can be a share of the device', () => {
    expect(new ReclaimingResourceAdaptor(addresses, { softLimitFraction: 0.25 }).softLimitBytes).toBe(Device.get().totalBytes / 4);
    expect(new ReclaimingResourceAdaptor(addresses).softLimitBytes).toBe(Number.POSITIVE_INFINITY);
  });

  test('does not run during another collection', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { softLimitBytes: 500 });
    drop(6, 100, addresses);
    let nested = 0;
    addresses.limitBytes = 1e6;
    addresses.beforeFree = () => {
      resource.allocate(60, stream);
      nested++;
    };
    resource.allocate(400, stream);
    resource.allocate(101, stream);
    expect(nested).toBeGreaterThanOrEqual(5);
    expect(resource.liveBytes).toBe(501 + 60 * nested);
    expect(resource.timings().softCollections).toBe(1);
  });
});

describe('asynchronously', () => {
  test('available memory is returned without a turn of the event loop', async () => {
    const resource = new ReclaimingResourceAdaptor(addresses);
    let turned = false;
    const turn = setImmediate().then(() => {
      turned = true;
    });
    expect(await resource.allocateAsync(1000, stream)).not.toBe(0);
    expect(turned).toBe(false);
    await turn;
  });

  test('the device is waited for without blocking', async () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['settle'] });
    const pointer = resource.allocate(1000, stream);
    using hold = stream.hold();
    stream.launchHostFunction(() => resource.deallocate(pointer, 1000, stream));
    const next = resource.allocateAsync(1000, stream);
    for (let i = 0; i < 5; i++) await setImmediate();
    hold.release();
    expect(await next).not.toBe(0);
    expect(timing(resource, 'settle')).toMatchObject({ calls: 1, rescues: 1 });
  });

  test('memory that others free in a turn of the event loop is found, whatever the stage recovered', async () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { stages: ['minor-collection'] });
    const pointer = resource.allocate(1000, stream);
    const next = resource.allocateAsync(1000, stream);
    expect(addresses.live.has(pointer)).toBe(true);
    resource.deallocate(pointer, 1000, stream);
    expect(await next).not.toBe(0);
  });

  test('allocations by others during the wait have stages of their own', async () => {
    const onOutOfMemory = vi.fn(() => false);
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory });
    const first = resource.allocateAsync(1001, stream);
    expect(caught<OutOfMemoryError>(() => resource.allocate(1002, stream)).stages).toHaveLength(5);
    expect(onOutOfMemory).toHaveBeenCalledTimes(1);
    await expect(first).rejects.toMatchObject({ requestedBytes: 1001, stages: everyStage.map((stage) => ({ stage })) });
    expect(onOutOfMemory).toHaveBeenCalledTimes(2);
  });

  test('several at a time each get what there is', async () => {
    const resource = new ReclaimingResourceAdaptor(addresses);
    const pointer = resource.allocate(1000, stream);
    stream.launchHostFunction(() => resource.deallocate(pointer, 1000, stream));
    const results = await Promise.allSettled([1, 2, 3].map(() => resource.allocateAsync(500, stream)));
    expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'fulfilled', 'rejected']);
    expect(resource.liveBytes).toBe(1000);
  });

  test('invalid arguments and a resource disposed in the meantime reject', async () => {
    const resource = new ReclaimingResourceAdaptor(addresses);
    await expect(resource.allocateAsync(-1, stream)).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    const pending = resource.allocateAsync(1001, stream);
    resource.dispose();
    await expect(pending).rejects.toMatchObject({ code: 'ERR_CISTERN_DISPOSED' });
  });
});

describe('the timings', () => {
  test('are a frozen copy that adds up', () => {
    const resource = new ReclaimingResourceAdaptor(addresses, { onOutOfMemory: () => false });
    const pointer = resource.allocate(1000, stream);
    stream.launchHostFunction(() => resource.deallocate(pointer, 1000, stream));
    resource.allocate(1000, stream);
    expect(() => resource.allocate(1, stream)).toThrow(outOfMemory);
    const timings = resource.timings();
    expect(timings).toMatchObject({ allocations: 3, exhaustions: 2, softCollections: 0 });
    expect(timings.stages.map(({ stage, calls, rescues }) => [stage, calls, rescues])).toEqual([
      ['settle', 2, 1],
      ['trim', 1, 0],
      ['minor-collection', 1, 0],
      ['major-collection', 1, 0],
      ['callback', 1, 0],
    ]);
    for (const { calls, milliseconds, averageMilliseconds, share } of timings.stages) {
      expect(milliseconds).toBeGreaterThan(0);
      expect(averageMilliseconds).toBe(milliseconds / calls);
      expect(share).toBe(milliseconds / timings.elapsedMilliseconds);
    }
    expect(Object.isFrozen(timings) && Object.isFrozen(timings.stages) && timings.stages.every(Object.isFrozen)).toBe(true);
  });

  test('start again after a reset', () => {
    const resource = new ReclaimingResourceAdaptor(addresses);
    const { elapsedMilliseconds } = resource.timings();
    expect(() => resource.allocate(1001, stream)).toThrow(outOfMemory);
    while (resource.timings().elapsedMilliseconds < elapsedMilliseconds + 2);
    const before = resource.timings().elapsedMilliseconds;
    resource.resetTimings();
    const timings = resource.timings();
    expect(timings.elapsedMilliseconds).toBeLessThan(before);
    expect(timings).toMatchObject({ allocations: 0, exhaustions: 0 });
    expect(timings.stages.map(({ calls, milliseconds }) => [calls, milliseconds])).toEqual(Array(4).fill([0, 0]));
  });

  test('are a table, with one call', () => {
    const resource = new ReclaimingResourceAdaptor(addresses);
    expect(() => resource.allocate(1001, stream)).toThrow(outOfMemory);
    expect(resource.report()).toMatch(/^settle +1 +[\d.]+ .s +[\d.]+ % +[\d.]+ .s +0 B +0$/m);
  });
});

test('a specification can name it', () => {
  using stack = createResourceStack('reclaiming(pool(cuda), softLimitBytes=64MiB, deallocationEvents=deferred)');
  const resource = stack.resource as ReclaimingResourceAdaptor;
  expect(resource).toBeInstanceOf(ReclaimingResourceAdaptor);
  expect([resource.softLimitBytes, resource.deallocationEvents]).toEqual([64 * MiB, 'deferred']);
  using shared = createResourceStack('reclaiming(cuda, softLimitFraction=0.5)');
  expect((shared.resource as ReclaimingResourceAdaptor).softLimitBytes).toBe(Device.get().totalBytes / 2);
});

test.each([
  [{ stages: 'trim' }, 'ERR_INVALID_ARG_TYPE', 'stages must be an array, got "trim"'],
  [{ stages: ['trim', 'wait'] }, 'ERR_INVALID_ARG_VALUE', /^a stage must be 'settle', .*, got "wait"$/],
  [{ onOutOfMemory: true }, 'ERR_INVALID_ARG_TYPE', 'onOutOfMemory must be a function, got true'],
  [{ softLimitBytes: 1.5 }, 'ERR_OUT_OF_RANGE', 'softLimitBytes must be an integer from 0 to 2^53 - 1, got 1.5'],
  [{ softLimitFraction: '50%' }, 'ERR_INVALID_ARG_TYPE', 'softLimitFraction must be a number, got "50%"'],
  [{ softLimitFraction: 0 }, 'ERR_OUT_OF_RANGE', 'softLimitFraction must be above 0 and at most 1, got 0'],
  [{ softLimitFraction: 1.1 }, 'ERR_OUT_OF_RANGE', 'softLimitFraction must be above 0 and at most 1, got 1.1'],
  [{ softLimitFraction: Number.NaN }, 'ERR_OUT_OF_RANGE', 'softLimitFraction must be above 0 and at most 1, got NaN'],
  [
    { softLimitBytes: 1, softLimitFraction: 0.5 },
    'ERR_INVALID_ARG_VALUE',
    'softLimitFraction must not be given together with softLimitBytes, got 0.5',
  ],
  [{ softLimitBytes: 1, stages: ['trim'] }, 'ERR_INVALID_ARG_VALUE', 'stages must include a collection if there is a soft limit, got none'],
])('refuses the options %o', (options, code, message) => {
  const error = caught<OutOfMemoryError>(() => new ReclaimingResourceAdaptor(addresses, options as never));
  expect(error).toMatchObject({ code, message: typeof message === 'string' ? message : expect.stringMatching(message) });
});
