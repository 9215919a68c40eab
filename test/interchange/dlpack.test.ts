import { createRequire } from 'node:module';
import { setImmediate, setTimeout } from 'node:timers/promises';
import { inspect } from 'node:util';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { CachingMemoryResource } from '../../src/adaptors/pooling/caching-memory-resource.js';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { ArgumentRangeError, ArgumentTypeError, DriverError, LifetimeError, UnsupportedError } from '../../src/basics/errors.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { freeUnreachableBuffers, watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { reclaimUnreachableBuffers } from '../../src/collector/reclaim-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Stream } from '../../src/driver/streams/stream.js';
import type { DLPackOptions } from '../../src/interchange/dlpack.js';
import { fromDLPack } from '../../src/interchange/from-dlpack.js';
import { toDLPack, wrapMemory } from '../../src/interchange/index.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { HostMemoryResource } from '../../src/resources/host-memory-resource.js';
import { ManagedMemoryResource } from '../../src/resources/managed-memory-resource.js';
import { PinnedHostMemoryResource } from '../../src/resources/pinned-host-memory-resource.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import { detachBuffer, shareBuffer } from '../../src/workers/index.js';
import { builtForTests } from '../support/built-for-tests.js';
import { code } from '../support/errors.js';
import { runModule, wholePackage } from '../support/run-module.js';

/** The addon of native/test/dlpack: a library of its own. */
interface Library {
  describe(capsule: object): Record<string, unknown>;
  /** The number of the tensor there; -1 if the capsule has none. */
  consume(capsule: object): number;
  bytes(tensor: number): number[];
  release(tensor: number): void;
  releaseOnThread(): void;
  produce(description: object): object;
  deletedCount(): number;
  forgeries(): object[];
}

let library: Library;
let libraryPath: string;
let missing: string | undefined;
let resource: CudaAsyncMemoryResource;
let stream: Stream;
let watched: number;

beforeAll(async () => {
  const built = await builtForTests('buildDLPackAddon', 'the library that speaks DLPack');
  ({ missing } = built);
  if (built.path === undefined) return;
  libraryPath = built.path;
  library = createRequire(import.meta.url)(libraryPath) as Library;
}, 120_000);

beforeEach(({ skip }) => {
  if (missing !== undefined) skip(missing);
  watched = watchedBuffers().count;
  stream = new Stream({ nonBlocking: true });
  resource = new CudaAsyncMemoryResource();
});

afterEach(async () => {
  if (missing !== undefined) return;
  await delivered();
  freeUnreachableBuffers();
  Device.get().synchronizeSync();
  expect(resource.usage().usedBytes, 'bytes that a test left behind').toBe(0);
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(watched);
  stream.dispose();
  resource.dispose();
});

/** Lets the event loop deliver what deleters announced. */
async function delivered(): Promise<void> {
  for (let turn = 0; turn < 4; turn++) await setImmediate();
}

const ramp = (length: number) => Uint8Array.from({ length }, (_, i) => i);
const bytes = { shape: [96], dtype: 'uint8' } as const;
const usedBytes = () => {
  Device.get().synchronizeSync();
  return resource.usage().usedBytes;
};

describe('toDLPack', () => {
  it('describes the array to another library', () => {
    using buffer = new DeviceBuffer(ramp(96), { resource, stream });
    const { ptr } = buffer;
    const versioned = toDLPack(buffer, { shape: [2, 3], dtype: 'float32', byteOffset: 8, readOnly: true, stream });
    expect(library.describe(versioned)).toEqual({
      ...{ isVersioned: 1, major: 1, minor: 0, flags: 1, data: ptr, deviceType: 2, deviceId: 0 },
      ...{ code: 2, bits: 32, lanes: 1, byteOffset: 8, shape: [2, 3], strides: [3, 1] },
    });
    const unversioned = toDLPack(buffer, { shape: [2, 2], strides: [1, 4], dtype: { code: 4, bits: 16, lanes: 2 }, versioned: false });
    expect(library.describe(unversioned)).toEqual({
      ...{ isVersioned: 0, data: ptr, deviceType: 2, deviceId: 0, code: 4, bits: 16, lanes: 2, byteOffset: 0 },
      ...{ shape: [2, 2], strides: [1, 4] },
    });
    const single = toDLPack(buffer, { shape: [], dtype: 'bool', stream });
    expect(library.describe(single)).toMatchObject({ shape: [], strides: [], code: 6 });
    const empty = toDLPack(buffer, { shape: [3, 0], dtype: 'complex128', byteOffset: 96, stream });
    expect(library.describe(empty)).toMatchObject({ data: 0, byteOffset: 0, shape: [3, 0] });
    for (const capsule of [versioned, unversioned, single, empty]) library.release(library.consume(capsule));
  });

  it('says which kind of memory it is', () => {
    for (const [make, deviceType] of [
      [HostMemoryResource, 1],
      [PinnedHostMemoryResource, 3],
      [ManagedMemoryResource, 13],
    ] as const) {
      using lender = new make();
      using buffer = new DeviceBuffer(ramp(96), { resource: lender, stream });
      const capsule = toDLPack(buffer, {
        shape: [4, 3],
        strides: [20, 2],
        dtype: 'uint8',
        byteOffset: 1,
        stream: deviceType === 13 ? 1 : null,
      });
      expect(library.describe(capsule)).toMatchObject({ deviceType, deviceId: 0 });
      const tensor = library.consume(capsule);
      if (deviceType === 13) Stream.legacyDefault().synchronizeSync();
      expect(library.bytes(tensor)).toEqual([1, 3, 5, 21, 23, 25, 41, 43, 45, 61, 63, 65]);
      library.release(tensor);
    }
  });

  it('makes the consumer’s stream wait for the buffer’s', async () => {
    using consumer = new Stream({ nonBlocking: true });
    using foreign = new Stream({ nonBlocking: true });
    for (const [option, waiting] of [
      [consumer, consumer],
      [foreign.nativeHandle, foreign],
      [1, Stream.legacyDefault()],
      [2n, Stream.perThreadDefault()],
      [undefined, Stream.legacyDefault()],
      [null, Stream.legacyDefault()],
    ] as const) {
      using buffer = new DeviceBuffer(96, { resource, stream });
      using hold = stream.hold();
      const capsule = toDLPack(buffer, { ...bytes, ...(option === undefined ? {} : { stream: option }) });
      expect(waiting.query(), inspect(option)).toBe(false);
      hold.release();
      waiting.synchronizeSync();
      library.release(library.consume(capsule));
    }
    using buffer = new DeviceBuffer(96, { resource, stream });
    const legacy = Stream.legacyDefault();
    // What was released above is freed after the work of its consumers.
    await delivered();
    legacy.synchronizeSync();
    using hold = stream.hold();
    const capsules = [toDLPack(buffer, { ...bytes, stream: -1 }), toDLPack(buffer, { ...bytes, stream: -1n })];
    expect(legacy.query()).toBe(true);
    hold.release();
    for (const capsule of capsules) library.release(library.consume(capsule));
  });

  it('blocks for memory that the host reads without a stream', () => {
    for (const make of [HostMemoryResource, PinnedHostMemoryResource]) {
      using lender = new make();
      using buffer = new DeviceBuffer(96, { resource: lender, stream });
      let hasRun = false;
      stream.launchHostFunction(() => {
        hasRun = true;
      });
      const capsule = toDLPack(buffer, bytes);
      expect(hasRun).toBe(true);
      library.release(library.consume(capsule));
    }
  });

  it('keeps the memory until the buffer and the consumer are done with it', async () => {
    for (const isBufferFirst of [true, false]) {
      const buffer = new DeviceBuffer(ramp(96), { resource, stream });
      const tensors = [1, 2].map(() => library.consume(toDLPack(buffer, { ...bytes, stream })));
      const release = async () => {
        for (const tensor of tensors) {
          expect(usedBytes()).toBeGreaterThan(0);
          library.release(tensor);
          await delivered();
        }
      };
      if (isBufferFirst) buffer.dispose();
      else await release();
      expect(usedBytes()).toBeGreaterThan(0);
      if (isBufferFirst) await release();
      else buffer.dispose();
      expect(usedBytes()).toBe(0);
    }
  });

  it('keeps the memory that a buffer moves out of', async () => {
    using pool = new PoolMemoryResource(resource, { initialBytes: 4096 });
    const moves = [
      (buffer: DeviceBuffer) => buffer.resize(2 ** 12),
      (buffer: DeviceBuffer) => buffer.recast(resource),
      (buffer: DeviceBuffer) => buffer.resize(0) ?? buffer.shrinkToFit(),
    ];
    for (const move of moves) {
      using buffer = new DeviceBuffer(ramp(96), { resource: pool, stream });
      const { ptr } = buffer;
      const tensor = library.consume(toDLPack(buffer, { ...bytes, stream }));
      move(buffer);
      const { allocatedBytes } = pool.statistics();
      using other = new DeviceBuffer(96, { resource: pool, stream });
      expect(other.ptr).not.toBe(ptr);
      library.release(tensor);
      await delivered();
      expect(pool.statistics().allocatedBytes).toBe(allocatedBytes);
      expect(buffer.ptr).not.toBe(ptr);
    }
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  it('orders the buffer’s stream after the consumer’s when the deleter is called', async () => {
    using consumer = new Stream({ nonBlocking: true });
    for (const isBufferFirst of [true, false]) {
      const buffer = new DeviceBuffer(ramp(96), { resource, stream });
      const tensor = library.consume(toDLPack(buffer, { ...bytes, stream: consumer }));
      stream.synchronizeSync();
      using hold = consumer.hold();
      if (isBufferFirst) buffer.dispose();
      expect(stream.query()).toBe(true);
      library.release(tensor);
      await delivered();
      expect(stream.query()).toBe(false);
      buffer.dispose();
      hold.release();
      expect(usedBytes()).toBe(0);
    }
  });

  it('waits for the device if the consumer’s stream may be gone', async () => {
    const consumer = new Stream({ nonBlocking: true });
    using buffer = new DeviceBuffer(ramp(96), { resource, stream });
    const tensor = library.consume(toDLPack(buffer, { ...bytes, stream: consumer }));
    consumer.dispose();
    let hasRun = false;
    using other = new Stream({ nonBlocking: true });
    library.release(tensor);
    other.launchHostFunction(() => {
      hasRun = true;
    });
    // Before the event loop runs the function, the deleter's call reaches it.
    await delivered();
    expect(hasRun).toBe(true);
  });

  it('tries again if the driver refuses the order', async () => {
    using consumer = new Stream({ nonBlocking: true });
    const buffer = new DeviceBuffer(ramp(96), { resource, stream });
    const tensor = library.consume(toDLPack(buffer, { ...bytes, stream: consumer }));
    buffer.dispose();
    using hold = consumer.hold();
    failCall('cuEventRecord', 1);
    library.release(tensor);
    await delivered();
    expect(stream.query()).toBe(false);
    hold.release();
    expect(usedBytes()).toBe(0);
  });

  it('frees a capsule’s memory if another thread calls the deleter', async () => {
    const buffers = Array.from({ length: 50 }, () => new DeviceBuffer(ramp(96), { resource, stream }));
    for (const buffer of buffers) library.consume(toDLPack(buffer, { ...bytes, stream }));
    for (const buffer of buffers) buffer.dispose();
    expect(usedBytes()).toBeGreaterThan(0);
    library.releaseOnThread();
    expect(usedBytes()).toBeGreaterThan(0);
    await delivered();
    expect(usedBytes()).toBe(0);
  });

  it('does not keep memory that its resource takes back', async () => {
    using cache = new CachingMemoryResource(resource);
    const buffers: DeviceBuffer[] = [];
    const tensor = cache.run(() => {
      const buffer = new DeviceBuffer(96, { resource: cache, stream });
      buffers.push(buffer);
      return library.consume(toDLPack(buffer, { ...bytes, stream }));
    });
    expect(buffers[0]?.isDisposed).toBe(true);
    buffers[0]?.dispose();
    using again = new DeviceBuffer(96, { resource: cache, stream });
    library.release(tensor);
    await delivered();
    again.fill(1);
    expect(again.toHostSync()).toEqual(new Uint8Array(96).fill(1));
  });

  it('frees at the end of its resource what a consumer still uses', async () => {
    const pool = new PoolMemoryResource(resource, { initialBytes: 4096 });
    const buffer = new DeviceBuffer(96, { resource: pool, stream });
    const tensor = library.consume(toDLPack(buffer, { ...bytes, stream }));
    buffer.dispose();
    pool.dispose();
    expect(usedBytes()).toBe(0);
    library.release(tensor);
    await delivered();
  });

  it('refuses to give the memory away meanwhile', async () => {
    using buffer = new DeviceBuffer(96, { resource, stream });
    const tensor = library.consume(toDLPack(buffer, { ...bytes, stream }));
    for (const give of [() => buffer.release(), () => detachBuffer(buffer), () => shareBuffer(buffer)]) {
      expect(give).toThrow(code('ERR_CISTERN_INVALID_STATE'));
      expect(give).toThrow(/the consumer of a DLPack tensor uses its memory/);
    }
    expect(buffer.isDisposed).toBe(false);
    library.release(tensor);
    await delivered();
    const { ptr, capacityBytes } = buffer.release();
    resource.deallocate(ptr, capacityBytes, stream);
  });

  it('exports a shared buffer only to be read', async () => {
    using buffer = new DeviceBuffer(96, { resource, stream });
    shareBuffer(buffer);
    expect(() => toDLPack(buffer, { ...bytes, stream })).toThrow(/cannot export a buffer to be written: it is shared/);
    const tensor = library.consume(toDLPack(buffer, { ...bytes, stream, readOnly: true }));
    buffer.dispose();
    await delivered();
    expect(usedBytes()).toBeGreaterThan(0);
    library.release(tensor);
    await delivered();
  });

  it('refuses what is no array, or lies outside the buffer', () => {
    using buffer = new DeviceBuffer(96, { resource, stream });
    const right = { shape: [4], dtype: 'float32' };
    const wrong: [object, new (...args: never[]) => Error][] = [
      [{ shape: undefined }, ArgumentTypeError],
      [{ shape: [-1] }, ArgumentRangeError],
      [{ shape: [Number.NaN] }, ArgumentRangeError],
      [{ shape: [25] }, ArgumentRangeError],
      [{ shape: [2 ** 50, 2 ** 50] }, ArgumentRangeError],
      [{ strides: [-1] }, ArgumentRangeError],
      [{ strides: [2 ** 52] }, ArgumentRangeError],
      [{ strides: [8] }, ArgumentRangeError],
      [{ strides: [] }, ArgumentRangeError],
      [{ byteOffset: 84 }, ArgumentRangeError],
      [{ dtype: 'float' }, ArgumentRangeError],
      [{ dtype: 'toString' }, ArgumentRangeError],
      [{ dtype: undefined }, ArgumentRangeError],
      [{ dtype: { code: 2 } }, ArgumentTypeError],
      [{ dtype: { code: 256, bits: 8 } }, ArgumentRangeError],
      [{ dtype: { code: 2, bits: 32, lanes: 65536 } }, ArgumentRangeError],
      [{ dtype: { code: 0, bits: 4 } }, UnsupportedError],
      [{ dtype: { code: 0, bits: 0 } }, UnsupportedError],
      [{ readOnly: 1 }, ArgumentTypeError],
      [{ readOnly: true, versioned: false }, ArgumentRangeError],
      [{ versioned: 'no' }, ArgumentTypeError],
      [{ stream: 0 }, ArgumentRangeError],
      [{ stream: -2 }, ArgumentRangeError],
      [{ stream: Number.NaN }, ArgumentRangeError],
      [{ stream: 'x' }, ArgumentTypeError],
      [{ shap: [] }, ArgumentRangeError],
    ];
    for (const [change, type] of wrong) {
      expect(() => toDLPack(buffer, { ...right, ...change } as DLPackOptions), inspect(change)).toThrow(type);
    }
    using host = new DeviceBuffer(96, { resource: new HostMemoryResource(), stream });
    expect(() => toDLPack(host, { ...bytes, stream })).toThrow(/stream must be -1 or left out for host memory/);
    failCall('cuStreamWaitEvent', 1);
    expect(() => toDLPack(buffer, bytes)).toThrow(DriverError);
    const gone = new DeviceBuffer(96, { resource, stream });
    gone.dispose();
    expect(() => toDLPack(gone, bytes)).toThrow(LifetimeError);
    const ended = new Stream();
    ended.dispose();
    expect(() => toDLPack(buffer, { ...bytes, stream: ended })).toThrow(LifetimeError);
  });
});

describe('fromDLPack', () => {
  it('takes a tensor of another library, versioned or not, and calls its deleter once', () => {
    for (const isVersioned of [1, 0]) {
      const before = library.deletedCount();
      const description = { isVersioned, bytes: 64, shape: [3, 4], strides: [16, 2], byteOffset: 3, flags: 3, minor: 7 };
      const tensor = fromDLPack(library.produce(description), { stream, label: 'theirs' });
      expect(tensor).toMatchObject({ shape: [3, 4], strides: [16, 2], dtype: 'uint8' });
      expect([tensor.isReadOnly, tensor.isCopied]).toEqual([isVersioned === 1, isVersioned === 1]);
      expect(tensor.version).toEqual(isVersioned === 1 ? { major: 1, minor: 7 } : undefined);
      const { buffer } = tensor;
      expect([buffer.byteLength, buffer.resource.memoryKind, buffer.label]).toEqual([39, 'host', 'theirs']);
      expect(buffer.toHostSync()).toEqual(ramp(42).subarray(3));
      expect(buffer.hostView(Uint8Array)[38]).toBe(41);
      expect(library.deletedCount()).toBe(before);
      const { ptr } = buffer;
      buffer.dispose();
      buffer.dispose();
      expect(library.deletedCount()).toBe(before + 1);
      expect(() => wrapMemory({ ptr, byteLength: 1, stream }), 'memory that is no longer lent').toThrow(ArgumentRangeError);
    }
  });

  it('takes device memory, and gives it back after the stream’s work', async () => {
    using lent = new DeviceBuffer(ramp(96), { resource, stream });
    const before = library.deletedCount();
    const capsule = library.produce({ data: lent.ptr, deviceType: 2, shape: [96] });
    const { buffer, strides, dtype } = fromDLPack(capsule, { stream });
    expect([buffer.ptr, strides, dtype]).toEqual([lent.ptr, [1], 'uint8']);
    const hold = stream.hold();
    buffer.fill(1);
    buffer.dispose();
    await delivered();
    expect(library.deletedCount()).toBe(before);
    hold.release();
    for (let turn = 0; turn < 10_000 && library.deletedCount() === before; turn++) await setImmediate();
    expect(library.deletedCount()).toBe(before + 1);
    expect(lent.toHostSync()).toEqual(new Uint8Array(96).fill(1));
  });

  it('takes a tensor of this library', async () => {
    const given = new DeviceBuffer(ramp(96), { resource, stream });
    const { buffer, shape, strides, dtype } = fromDLPack(
      toDLPack(given, { shape: [2, 3], strides: [4, 1], dtype: 'bfloat16', byteOffset: 2, stream }),
      { stream },
    );
    expect({ shape, strides, dtype }).toEqual({ shape: [2, 3], strides: [4, 1], dtype: 'bfloat16' });
    given.dispose();
    expect(buffer.toHostSync()).toEqual(ramp(16).subarray(2));
    buffer.dispose();
    await delivered();
    expect(usedBytes()).toBe(0);
  });

  it('takes a tensor without elements or without a deleter', () => {
    const before = library.deletedCount();
    const { buffer } = fromDLPack(library.produce({ shape: [4, 0] }), { stream });
    expect([buffer.byteLength, library.deletedCount()]).toEqual([0, before + 1]);
    buffer.dispose();
    for (const isVersioned of [0, 1]) {
      const lent = fromDLPack(library.produce({ isVersioned, bytes: 4, shape: [4], hasNoDeleter: 1 }), { stream });
      lent.buffer.dispose();
    }
    expect(library.deletedCount()).toBe(before + 1);
    const vectors = fromDLPack(library.produce({ shape: [0], code: 2, bits: 32, lanes: 4 }), { stream });
    vectors.buffer.dispose();
    expect(vectors.dtype).toEqual({ code: 2, bits: 32, lanes: 4 });
  });

  it('consumes a capsule once', () => {
    const capsule = library.produce({ bytes: 4, shape: [4] });
    using first = fromDLPack(capsule, { stream }).buffer;
    for (let i = 0; i < 2; i++) expect(() => fromDLPack(capsule, { stream })).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(library.consume(capsule)).toBe(-1);
    expect(first.toHostSync()).toEqual(ramp(4));
    const other = library.produce({ bytes: 4, shape: [4] });
    library.release(library.consume(other));
    expect(() => fromDLPack(other, { stream })).toThrow('cannot use a DLPack capsule: it is already consumed');
  });

  it('refuses whatever is no capsule', () => {
    const others = [undefined, null, 1, 'x', {}, [], () => {}, new Proxy({}, {}), new Proxy(library.produce({ shape: [0] }), {})];
    for (const other of [...others, ...library.forgeries()]) {
      expect(() => fromDLPack(other as object, { stream })).toThrow(ArgumentTypeError);
    }
    expect(() => fromDLPack(library.produce({ shape: [0] }), {} as never)).toThrow(ArgumentTypeError);
  });

  it('leaves a capsule as it was that it cannot use', () => {
    using lent = new DeviceBuffer(ramp(96), { resource, stream });
    const before = library.deletedCount();
    const onDevice = { data: lent.ptr, deviceType: 2, shape: [96] };
    const ended = new Stream();
    ended.dispose();
    const wrong: [object, object, new (...args: never[]) => Error][] = [
      [{ bytes: 8, shape: [-1] }, {}, ArgumentRangeError],
      [{ bytes: 8, shape: [2], strides: [-1] }, {}, ArgumentRangeError],
      [{ bytes: 8, shape: [2 ** 40, 2 ** 40] }, {}, ArgumentRangeError],
      [{ bytes: 8, shape: [2 ** 60, 0] }, {}, ArgumentRangeError],
      [{ bytes: 8, shape: [2], strides: [2 ** 62] }, {}, ArgumentRangeError],
      [{ bytes: 8, shape: [1], ndim: 65 }, {}, UnsupportedError],
      [{ bytes: 8, shape: [1], ndim: -1 }, {}, UnsupportedError],
      [{ bytes: 8, ndim: 1 }, {}, UnsupportedError],
      [{ bytes: 8, shape: [1], bits: 4 }, {}, UnsupportedError],
      [{ bytes: 8, shape: [1], lanes: 0 }, {}, UnsupportedError],
      [{ bytes: 8, shape: [1], major: 2 }, {}, UnsupportedError],
      [{ bytes: 8, shape: [1], deviceType: 10 }, {}, UnsupportedError],
      [{ bytes: 8, shape: [1] }, { label: 1 }, ArgumentTypeError],
      [{ bytes: 8, shape: [1] }, { stream: ended }, LifetimeError],
      [{ data: 0, shape: [1] }, {}, ArgumentRangeError],
      [{ data: 2 ** 60, shape: [1] }, {}, ArgumentRangeError],
      [{ ...onDevice, deviceId: 99 }, {}, ArgumentRangeError],
      [{ ...onDevice, deviceId: 1 }, {}, ArgumentRangeError],
      [{ ...onDevice, data: 4096 }, {}, ArgumentRangeError],
      [{ ...onDevice, byteOffset: 2 ** 60 }, {}, ArgumentRangeError],
      [{ ...onDevice, deviceType: 3, data: 4096 }, {}, ArgumentRangeError],
    ];
    for (const [description, options, type] of wrong) {
      const capsule = library.produce(description);
      expect(() => fromDLPack(capsule, { stream, ...options }), inspect({ ...description, ...options })).toThrow(type);
      expect(library.deletedCount()).toBe(before);
    }
  });
});

describe('at the end of an environment', () => {
  it('a capsule that nobody consumed is freed after a collection', () => {
    const result = runModule(
      `
      import { setFlagsFromString } from 'node:v8';
      import { runInNewContext } from 'node:vm';
      import { CudaAsyncMemoryResource, Device, DeviceBuffer, Stream } from 'cistern';
      import { toDLPack } from 'cistern/interchange';
      setFlagsFromString('--expose-gc');
      const gc = runInNewContext('gc');
      const stream = new Stream();
      const resource = new CudaAsyncMemoryResource();
      const drop = () => {
        for (let i = 0; i < 10; i++) {
          const buffer = new DeviceBuffer(96, { resource, stream });
          toDLPack(buffer, { shape: [96], dtype: 'uint8' });
          buffer.dispose();
        }
      };
      drop();
      Device.get().synchronizeSync();
      console.log(resource.usage().usedBytes > 0);
      for (let round = 0; round < 20 && resource.usage().usedBytes > 0; round++) {
        gc();
        await new Promise(setImmediate);
        await new Promise(setImmediate);
        Device.get().synchronizeSync();
      }
      console.log(resource.usage().usedBytes);
    `,
    );
    expect(result).toEqual({ status: 0, signal: null, stdout: 'true\n0\n', stderr: '' });
  });

  it('tensors in use do not disturb the end of the process', () => {
    for (const end of ['', 'process.exit();', 'library.releaseOnThread();', 'process.on("exit", () => library.releaseOnThread());']) {
      const result = runModule(`
        import { createRequire } from 'node:module';
        import { CudaAsyncMemoryResource, DeviceBuffer, Stream } from 'cistern';
        import { fromDLPack, toDLPack } from 'cistern/interchange';
        const library = createRequire(import.meta.url)(${JSON.stringify(libraryPath)});
        const stream = new Stream();
        const buffer = new DeviceBuffer(96, { resource: new CudaAsyncMemoryResource(), stream });
        globalThis.kept = [toDLPack(buffer, { shape: [96], dtype: 'uint8' }), library.produce({ bytes: 4, shape: [4] })];
        library.consume(toDLPack(buffer, { shape: [96], dtype: 'uint8' }));
        globalThis.theirs = fromDLPack(library.produce({ bytes: 4, shape: [4] }), { stream });
        process.on('exit', () => console.log(library.deletedCount()));
        ${end}`);
      expect(result, end).toEqual({ status: 0, signal: null, stdout: '1\n', stderr: '' });
    }
  });

  it('memory of a worker that ended is freed after the deleter’s call, and not before', async () => {
    for (const end of ['', 'process.exit();', 'setInterval(() => {}, 1000);']) {
      using probe = new CudaAsyncMemoryResource({ pool: resource.nativeHandle });
      const worker = new Worker(
        `const { parentPort, workerData } = require('node:worker_threads');
        const library = require(workerData.libraryPath);
        import('${wholePackage}').then(({ CudaAsyncMemoryResource, DeviceBuffer, Stream, toDLPack }) => {
          const resource = new CudaAsyncMemoryResource({ pool: workerData.pool });
          const stream = new Stream();
          const buffer = new DeviceBuffer(96, { resource, stream });
          const other = new DeviceBuffer(96, { resource, stream });
          globalThis.kept = [buffer, other];
          parentPort.postMessage(library.consume(toDLPack(buffer, { shape: [96], dtype: 'uint8' })));
          ${end}
        });`,
        { eval: true, workerData: { libraryPath, pool: resource.nativeHandle } },
      );
      const ended = new Promise((resolve) => worker.once('exit', resolve));
      const tensor = await new Promise<number>((resolve) => worker.once('message', resolve));
      if (end.includes('setInterval')) await worker.terminate();
      await ended;
      const reap = () => {
        new CudaAsyncMemoryResource().dispose();
        return usedBytes();
      };
      const oneBuffer = probe.allocate(96, stream);
      const both = usedBytes();
      probe.deallocate(oneBuffer, 96, stream);
      const left = reap();
      expect([left > 0, left < both], end).toEqual([true, true]);
      library.release(tensor);
      expect(reap(), end).toBe(0);
    }
  });

  it('a tensor in a worker that is terminated is deleted by another environment', async () => {
    // What other tests have dropped must not be deleted meanwhile.
    reclaimUnreachableBuffers('major');
    let before: number;
    do {
      before = library.deletedCount();
      await setTimeout(20);
    } while (library.deletedCount() !== before);
    const worker = new Worker(
      `const { parentPort, workerData } = require('node:worker_threads');
      const library = require(workerData);
      import('${wholePackage}').then(({ fromDLPack, Stream }) => {
        globalThis.kept = fromDLPack(library.produce({ bytes: 4, shape: [4] }), { stream: new Stream() });
        parentPort.postMessage('taken');
        setInterval(() => {}, 1000);
      });`,
      { eval: true, workerData: libraryPath },
    );
    await new Promise((resolve) => worker.once('message', resolve));
    await worker.terminate();
    expect(library.deletedCount()).toBe(before);
    new CudaAsyncMemoryResource().dispose();
    expect(library.deletedCount()).toBe(before + 1);
  });
});
