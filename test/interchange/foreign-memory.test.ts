import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { inspect } from 'node:util';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { ArgumentRangeError, ArgumentTypeError, DriverError, LifetimeError, UnsupportedError } from '../../src/basics/errors.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { heldMemory, uncounted } from '../../src/collector/early-collection.js';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Event } from '../../src/driver/streams/event.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { ForeignMemoryResource } from '../../src/interchange/foreign-memory-resource.js';
import { fromCudaArrayInterface, wrapMemory } from '../../src/interchange/index.js';
import type { WrapOptions } from '../../src/interchange/wrap.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { HostMemoryResource } from '../../src/resources/host-memory-resource.js';
import { ManagedMemoryResource } from '../../src/resources/managed-memory-resource.js';
import { PinnedHostMemoryResource } from '../../src/resources/pinned-host-memory-resource.js';
import { readRecordedRun } from '../../src/tools/formats/index.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import { needSecondDevice } from '../support/device-memory.js';
import { code } from '../support/errors.js';
import { runModule, wholePackage } from '../support/run-module.js';

const bytes = 4096;
let resource: CudaAsyncMemoryResource;
let stream: Stream;
let ptr: number;
let watched: number;

beforeEach(() => {
  watched = watchedBuffers().count;
  resource = new CudaAsyncMemoryResource();
  stream = new Stream();
  ptr = resource.allocate(bytes, stream);
});

afterEach(() => {
  resource.deallocate(ptr, bytes, stream);
  Device.get().synchronizeSync();
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(watched);
  stream.dispose();
  resource.dispose();
});

const ramp = (length: number) => Uint8Array.from({ length }, (_, i) => i);

/** Waits until the event loop has called a function. */
async function until(isSo: () => boolean): Promise<void> {
  for (let turn = 0; turn < 10_000 && !isSo(); turn++) await setImmediate();
  expect(isSo()).toBe(true);
}

describe('borrowed memory', () => {
  it('is used like any other, and left alone', () => {
    const buffer = wrapMemory({ ptr, byteLength: 16, stream, label: 'lent' });
    buffer.copyFrom(ramp(16));
    expect([buffer.ptr, buffer.byteLength, buffer.capacityBytes, buffer.label, buffer.stream]).toEqual([ptr, 16, 16, 'lent', stream]);
    expect(buffer.resource).toBeInstanceOf(ForeignMemoryResource);
    expect(buffer.resource).toMatchObject({ memoryKind: 'device', device: stream.device });
    expect(buffer.toHostSync()).toEqual(ramp(16));
    buffer.dispose();
    using again = wrapMemory({ ptr: BigInt(ptr), byteLength: 16, device: Device.get(), stream });
    expect(again.toHostSync()).toEqual(ramp(16));
  });

  it('can be of every kind', () => {
    for (const make of [ManagedMemoryResource, PinnedHostMemoryResource, HostMemoryResource]) {
      using lender = new make();
      using lent = new DeviceBuffer(ramp(64), { resource: lender, stream });
      using buffer = wrapMemory({ ptr: lent.ptr + 8, byteLength: 8, stream });
      expect(buffer.resource.memoryKind).toBe(lender.memoryKind);
      expect(buffer.toHostSync()).toEqual(ramp(16).subarray(8));
      if (make === ManagedMemoryResource && lender.device.attribute('concurrentManagedAccess') !== 1) continue;
      expect(buffer.hostView(Uint8Array)).toEqual(ramp(16).subarray(8));
    }
  });
});

describe('owned memory', () => {
  it('is released at once if the stream has nothing to do', () => {
    const release = vi.fn();
    const buffer = wrapMemory({ ptr, byteLength: bytes, stream, release });
    stream.synchronizeSync();
    expect(release).not.toHaveBeenCalled();
    buffer.dispose();
    expect(release).toHaveBeenCalledTimes(1);
    buffer.dispose();
    expect(release).toHaveBeenCalledTimes(1);
  });

  it('is released only after the work of the stream', async () => {
    const release = vi.fn();
    const buffer = wrapMemory({ ptr, byteLength: bytes, stream, release });
    const hold = stream.hold();
    buffer.fill(1);
    using filled = new Event();
    filled.record(stream);
    buffer.dispose();
    for (let turn = 0; turn < 20; turn++) await setImmediate();
    expect(release).not.toHaveBeenCalled();
    hold.release();
    await until(() => release.mock.calls.length > 0);
    expect(filled.query()).toBe(true);
    expect(release).toHaveBeenCalledTimes(1);
  });

  it('waits for the stream that the buffer has when it is disposed', async () => {
    using other = new Stream({ nonBlocking: true });
    const release = vi.fn();
    const buffer = wrapMemory({ ptr, byteLength: bytes, stream, release });
    buffer.setStream(other);
    using hold = other.hold();
    buffer.fill(1);
    buffer.dispose();
    stream.synchronizeSync();
    await setImmediate();
    expect(release).not.toHaveBeenCalled();
    hold.release();
    await until(() => release.mock.calls.length > 0);
  });

  it('without bytes is released at once', () => {
    const release = vi.fn();
    using buffer = wrapMemory({ ptr: 0, byteLength: 0, stream, release });
    expect(release).toHaveBeenCalledTimes(1);
    expect([buffer.ptr, buffer.byteLength]).toEqual([0, 0]);
    using other = wrapMemory({ ptr: 12, byteLength: 0, stream });
    expect(other.ptr).toBe(0);
  });

  it('can be taken out of the buffer, and freed once', () => {
    const release = vi.fn();
    const taken = wrapMemory({ ptr, byteLength: bytes, stream, release }).release();
    stream.synchronizeSync();
    expect(() => taken.resource.deallocate(ptr + 256, bytes, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(() => taken.resource.deallocate(ptr, bytes - 1, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    taken.resource.deallocate(0, 0, stream);
    expect(release).not.toHaveBeenCalled();
    DeviceBuffer.adopt(taken).dispose();
    expect(release).toHaveBeenCalledTimes(1);
    expect(() => taken.resource.deallocate(ptr, bytes, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
  });

  it('stays with the buffer if no event can be recorded', async () => {
    const release = vi.fn();
    const buffer = wrapMemory({ ptr, byteLength: bytes, stream, release });
    using hold = stream.hold();
    for (const name of ['cuEventCreate', 'cuEventRecord', 'cuStreamQuery']) {
      failCall(name, 1);
      expect(() => buffer.dispose()).toThrow(DriverError);
      expect(buffer.isDisposed).toBe(false);
    }
    hold.release();
    buffer.dispose();
    await until(() => release.mock.calls.length > 0);
    expect(release).toHaveBeenCalledTimes(1);
  });

  it('is not released early if the wait for its event fails', async () => {
    const release = vi.fn();
    const buffer = wrapMemory({ ptr, byteLength: bytes, stream, release });
    const hold = stream.hold();
    buffer.dispose();
    failCall('cuEventQuery', 1);
    await new Promise((resolve) => setTimeout(resolve, 5));
    expect(release).not.toHaveBeenCalled();
    hold.release();
    await until(() => release.mock.calls.length > 0);
  });
});

describe('memory that its resource takes back', () => {
  const setUp = () => {
    const pool = new PoolMemoryResource(new CudaAsyncMemoryResource());
    const lent = pool.allocate(bytes, stream);
    const release = vi.fn(() => pool.deallocate(lent, bytes, Stream.legacyDefault()));
    return { pool, lent, release, buffer: wrapMemory({ ptr: lent, byteLength: bytes, stream, release }) };
  };
  /** Keeps the stream busy until this thread waits for it. */
  const keepBusy = () => stream.launchHostFunction(() => {});

  it('is released at once, after a wait for its stream', () => {
    const { pool, release, buffer } = setUp();
    keepBusy();
    pool.dispose();
    expect([buffer.isDisposed, release.mock.calls.length, release.mock.results[0]?.type]).toEqual([true, 1, 'return']);
    buffer.dispose();
  });

  it('is released at once if it was to be released later', async () => {
    const { pool, release, buffer } = setUp();
    keepBusy();
    buffer.dispose();
    expect(release).not.toHaveBeenCalled();
    pool.dispose();
    expect([release.mock.calls.length, release.mock.results[0]?.type]).toEqual([1, 'return']);
    for (let turn = 0; turn < 20; turn++) await setImmediate();
    expect(release).toHaveBeenCalledTimes(1);
  });
});

describe('a wrapped buffer', () => {
  it('has the alignment of its address', () => {
    for (const [offset, alignment] of [
      [0, 256],
      [1, 1],
      [8, 8],
      [12, 4],
      [128, 128],
      [256, 256],
    ] as const) {
      using buffer = wrapMemory({ ptr: ptr + offset, byteLength: 1, stream });
      expect(buffer.alignment, `offset ${offset}`).toBe(alignment);
    }
  });

  it('counts as held memory if its memory is owned', () => {
    const held = heldMemory('device', stream.device);
    const before = held.heldBytes;
    const memory = { ptr, byteLength: bytes, stream };
    const array = { shape: [bytes], typestr: '|u1', data: [ptr, false], version: 3 } as const;
    using borrowed = wrapMemory(memory);
    using view = fromCudaArrayInterface(array, { stream });
    expect([borrowed.byteLength, view.byteLength, held.heldBytes]).toEqual([bytes, bytes, before]);
    {
      using owned = wrapMemory({ ...memory, release: () => {} });
      expect(held.heldBytes).toBe(before + owned.byteLength);
    }
    expect(held.heldBytes).toBe(before);
    expect(uncounted.dueBytes).toBe(Number.POSITIVE_INFINITY);
  });

  it('has a fixed capacity', () => {
    using buffer = wrapMemory({ ptr, byteLength: 64, stream });
    buffer.copyFrom(ramp(64));
    buffer.resize(16);
    buffer.resize(64);
    for (const grow of [() => buffer.resize(65), () => buffer.reserve(65)]) {
      expect(grow).toThrow(UnsupportedError);
      expect(grow).toThrow(/cannot allocate 65 bytes: foreign memory has only the 64 bytes at 0x/);
    }
    buffer.resize(16);
    expect(() => buffer.shrinkToFit()).toThrow(UnsupportedError);
    expect([buffer.ptr, buffer.byteLength, buffer.capacityBytes]).toEqual([ptr, 16, 64]);
    expect(buffer.resource.allocate(0, stream)).toBe(0);
  });

  it('moves to a resource and releases its memory, by recast and to', () => {
    const release = vi.fn();
    const buffer = wrapMemory({ ptr, byteLength: 64, stream, release });
    buffer.copyFrom(ramp(64));
    expect(buffer.to(stream.device)).toEqual({ buffer, isCopy: false });
    const { buffer: copy } = buffer.to('host');
    expect(copy.toHostSync()).toEqual(ramp(64));
    copy.dispose();
    expect(release).not.toHaveBeenCalled();
    buffer.recast(resource);
    stream.synchronizeSync();
    expect(buffer.resource).toBe(resource);
    expect(buffer.toHostSync()).toEqual(ramp(64));
    buffer.dispose();
  });

  it('is copied to a given resource if its memory is managed', () => {
    using managed = new ManagedMemoryResource();
    using lent = new DeviceBuffer(ramp(64), { resource: managed, stream });
    using buffer = wrapMemory({ ptr: lent.ptr, byteLength: 64, stream });
    expect(buffer.to('host')).toEqual({ buffer, isCopy: false });
    expect(() => buffer.to('host', { copy: true })).toThrow(UnsupportedError);
    const { buffer: copy, isCopy } = buffer.to('host', { copy: true, resource: managed });
    expect([isCopy, copy.toHostSync()]).toEqual([true, ramp(64)]);
    copy.dispose();
  });

  it('is refused for invalid options, and the memory stays the caller’s', () => {
    const release = vi.fn();
    const gone = new Stream();
    gone.dispose();
    const wrong: [object, new (...args: never[]) => Error][] = [
      [{ ptr: '1' }, ArgumentTypeError],
      [{ ptr: Number.NaN }, ArgumentRangeError],
      [{ ptr: -1 }, ArgumentRangeError],
      [{ ptr: 2n ** 64n }, ArgumentRangeError],
      [{ ptr: 0 }, ArgumentRangeError],
      [{ ptr: 4096 }, ArgumentRangeError],
      [{ ptr: Number.MAX_SAFE_INTEGER }, ArgumentRangeError],
      [{ byteLength: Number.NaN }, ArgumentRangeError],
      [{ byteLength: -1 }, ArgumentRangeError],
      [{ byteLength: 2 ** 52 }, ArgumentRangeError],
      [{ byteLength: undefined }, ArgumentTypeError],
      [{ stream: undefined }, ArgumentTypeError],
      [{ stream: gone }, LifetimeError],
      [{ device: 0 }, ArgumentTypeError],
      [{ release: 1 }, ArgumentTypeError],
      [{ label: 1 }, ArgumentTypeError],
      [{ alignment: 256 }, ArgumentRangeError],
    ];
    for (const [change, type] of wrong) {
      const memory = { ptr, byteLength: bytes, stream, release, ...change } as WrapOptions;
      expect(() => wrapMemory(memory), inspect(change)).toThrow(type);
    }
    expect(() => wrapMemory(undefined as never)).toThrow(ArgumentTypeError);
    expect(() => wrapMemory({ ptr: 4096, byteLength: 1, stream })).toThrow(/got 0x1000: nothing is known at 0x1000/);
    expect(release).not.toHaveBeenCalled();
  });

  it('belongs to the device of its memory', () => {
    needSecondDevice();
    const other = Device.get(1);
    using elsewhere = new Stream({ device: other });
    expect(() => wrapMemory({ ptr, byteLength: bytes, stream, device: other })).toThrow(/device must be device \d, which the memory at 0x/);
    expect(() => wrapMemory({ ptr, byteLength: bytes, stream: elsewhere })).toThrow(ArgumentRangeError);
    using pinned = new PinnedHostMemoryResource();
    using lent = new DeviceBuffer(64, { resource: pinned, stream });
    using buffer = wrapMemory({ ptr: lent.ptr, byteLength: 64, device: other, stream });
    expect(buffer.resource.device).toBe(other);
  });
});

/** Runs a module that wraps memory of its own, and prints when that is released. */
function runWithMemory(script: string) {
  return runModule(`
    import { CudaMemoryResource, DeviceBuffer, Stream } from 'cistern';
    import { wrapMemory } from 'cistern/interchange';
    const stream = new Stream();
    const memory = new CudaMemoryResource();
    const ptr = memory.allocate(1 << 20, stream);
    const release = () => console.log(stream.query() ? 'released' : 'released too early');
    const wrap = () => wrapMemory({ ptr, byteLength: 1 << 20, stream, release });
    ${script}`);
}

describe('at the end of the process', () => {
  it('memory is released after the stream’s work, and its buffer is disposed', () => {
    const result = runWithMemory(`
      const buffer = wrap();
      process.on('exit', () => {
        try {
          buffer.ptr;
        } catch (error) {
          console.log(error.message);
        }
      });
      for (let i = 0; i < 100; i++) buffer.fill(i);
    `);
    expect(result).toEqual({
      status: 0,
      signal: null,
      stdout: 'released\ncannot read the address of a buffer: the environment ends\n',
      stderr: '',
    });
  });

  it('memory whose release still waits is released', () => {
    const result = runWithMemory(`
      const buffer = wrap();
      const hold = stream.hold();
      buffer.dispose();
      process.on('exit', () => hold.release());
      process.exit();
    `);
    expect(result).toMatchObject({ status: 0, signal: null, stdout: 'released\n' });
  });

  it('an error of a release makes the process fail, and is reported', () => {
    const release = `() => { throw new Error('on purpose'); }`;
    for (const last of ['', 'buffer.dispose();', 'buffer.fill(1); buffer.dispose();']) {
      const { status, stderr } = runWithMemory(`const buffer = wrapMemory({ ptr, byteLength: 64, stream, release: ${release} }); ${last}`);
      expect([status === 0, stderr.includes('on purpose')], last).toEqual([false, true]);
    }
  });

  it('an error of a release does not keep recordings from their files', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'cistern-'));
    onTestFinished(() => rmSync(directory, { recursive: true }));
    const file = join(directory, 'recording.cistern');
    const record = `
      const recording = new Recording({ file: ${JSON.stringify(file)} });
      const recorded = new RecordingResourceAdaptor(memory, { recording });`;
    const use = `
      for (let i = 0; i < 100; i++) recorded.allocate(256, stream);
      const pointer = recorded.allocate(4096, stream);`;
    const wrapped = `
      const first = wrapMemory({ ptr, byteLength: 64, stream, release: () => { throw new Error('on purpose'); } });
      const second = wrapMemory({ ptr, byteLength: 64, stream, release: () => recorded.deallocate(pointer, 4096, stream) });`;
    for (const script of [
      `${record}${use}${wrapped}`,
      `let recorded, pointer;${wrapped}{${record.replace('const recorded', 'recorded')}${use.replace('const pointer', 'pointer')}}`,
    ]) {
      const { status, stderr } = runWithMemory(`import { Recording, RecordingResourceAdaptor } from 'cistern/recording';${script}`);
      expect([status, stderr.includes('on purpose')]).toEqual([1, true]);
      const { eventCount } = await readRecordedRun(file);
      expect(eventCount).toBe(102);
    }
  });

  it('leaves other buffers at the same address alone', () => {
    const { stdout, stderr } = runWithMemory(`
      const { CudaMemoryResource: Resource } = await import('cistern');
      const lender = new DeviceBuffer(64, { resource: new Resource(), stream });
      const buffer = wrapMemory({ ptr: lender.ptr, byteLength: 16, stream, release });
      process.on('exit', () => console.log(buffer.isDisposed, lender.isDisposed, lender.toHostSync().length));
    `);
    expect([stdout, stderr]).toEqual(['released\ntrue false 64\n', '']);
  });

  it('a worker that ends releases its memory; one that is terminated leaves it', async () => {
    const text = (end: string) => `
      const { parentPort } = require('node:worker_threads');
      import('${wholePackage}').then(({ CudaMemoryResource, Stream, wrapMemory }) => {
        const stream = new Stream();
        const memory = new CudaMemoryResource();
        const ptr = memory.allocate(4096, stream);
        globalThis.kept = wrapMemory({ ptr, byteLength: 4096, stream, release: () => parentPort.postMessage('released') });
        parentPort.postMessage('wrapped');
        ${end}
      });`;
    for (const [end, expected] of [
      ['', ['wrapped', 'released']],
      ['setInterval(() => {}, 1000);', ['wrapped']],
    ] as const) {
      const worker = new Worker(text(end), { eval: true });
      const messages: string[] = [];
      worker.on('message', (message) => {
        messages.push(message);
        if (end !== '') void worker.terminate();
      });
      await new Promise((resolve) => worker.once('exit', resolve));
      expect(messages).toEqual(expected);
    }
  });
});

it('a program in plain JavaScript sees a collected buffer’s memory released', () => {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [
      '--expose-gc',
      '--input-type=module',
      '--eval',
      `
        import { CudaMemoryResource, DeviceBuffer, Stream } from 'cistern';
        import { wrapMemory } from 'cistern/interchange';
        const stream = new Stream();
        const memory = new CudaMemoryResource();
        const ptr = memory.allocate(4096, stream);
        let released = 0;
        const drop = () => void wrapMemory({ ptr, byteLength: 4096, stream, release: () => released++ });
        drop();
        for (let round = 0; round < 10 && released === 0; round++) {
          gc();
          await new Promise(setImmediate);
        }
        console.log(released);
      `,
    ],
    { encoding: 'utf8', timeout: 100_000 },
  );
  expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: '1\n', stderr: '' });
});
