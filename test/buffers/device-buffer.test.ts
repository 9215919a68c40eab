import { setTimeout } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ArgumentRangeError, ArgumentTypeError, DriverError, LifetimeError, OutOfMemoryError } from '../../src/basics/errors.js';
import { MiB } from '../../src/basics/units.js';
import type { DeviceBufferOptions } from '../../src/buffers/create-memory.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { HostMemoryResource } from '../../src/resources/host-memory-resource.js';
import { ManagedMemoryResource } from '../../src/resources/managed-memory-resource.js';
import { PinnedHostMemoryResource } from '../../src/resources/pinned-host-memory-resource.js';
import { driverCallCounts } from '../../src/tools/testing/driver-call-counts.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import { AddressCountingResource } from './address-counting-resource.js';

let stream: Stream;
let resource: CudaAsyncMemoryResource;
let addresses: AddressCountingResource;

beforeEach(() => {
  stream = new Stream();
  resource = new CudaAsyncMemoryResource();
  addresses = new AddressCountingResource();
});

afterEach(() => {
  stream.dispose();
  resource.dispose();
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(0);
});

const ramp = (length: number, first = 0) => Uint8Array.from({ length }, (_, i) => first + i);

describe('construction', () => {
  it('allocates the requested bytes', () => {
    using buffer = new DeviceBuffer(1000, { resource: addresses, stream });
    expect(buffer.byteLength).toBe(1000);
    expect(buffer.capacityBytes).toBe(1000);
    expect(addresses.live.get(buffer.ptr)).toBe(1000);
    expect(buffer.resource).toBe(addresses);
    expect(buffer.stream).toBe(stream);
    expect(buffer.alignment).toBe(256);
    expect(buffer.isDisposed).toBe(false);
  });

  it('allocates nothing for a length of 0', () => {
    using buffer = new DeviceBuffer(0, { resource: addresses, stream });
    expect([buffer.ptr, buffer.byteLength, buffer.capacityBytes]).toEqual([0, 0, 0]);
    expect(addresses.live.size).toBe(0);
    expect(buffer.toHostSync()).toEqual(new Uint8Array(0));
    buffer.fill(1);
    buffer.copyFrom(new Uint8Array(0));
  });

  it('allocates the capacity if it is larger', () => {
    using buffer = new DeviceBuffer(10, { resource: addresses, stream, capacityBytes: 4096 });
    expect([buffer.byteLength, buffer.capacityBytes, addresses.liveBytes]).toEqual([10, 4096, 4096]);
  });

  it('keeps the alignment when it moves', () => {
    using buffer = new DeviceBuffer(0, { resource: addresses, stream, alignment: 4096 });
    buffer.resize(10);
    expect(addresses.lastAlignment).toBe(4096);
    expect(buffer.alignment).toBe(4096);
  });

  it.each([
    ['a Uint8Array', () => ramp(16)],
    ['a view into the middle of another', () => ramp(48, -16).subarray(16, 32)],
    ['a DataView', () => new DataView(ramp(16).buffer)],
    ['a Buffer', () => Buffer.from(ramp(16))],
    ['an ArrayBuffer', () => ramp(16).buffer],
    ['a wider typed array', () => new Float64Array(ramp(16).buffer)],
    ['a SharedArrayBuffer', () => new Uint8Array(new SharedArrayBuffer(16)).map((_, i) => i)],
  ])('copies %s', (_, make) => {
    using buffer = new DeviceBuffer(make(), { resource, stream });
    expect(buffer.toHostSync()).toEqual(ramp(16));
  });

  it('has read the host data when it returns', () => {
    using hold = stream.hold();
    const data = ramp(100);
    using buffer = new DeviceBuffer(data, { resource, stream });
    data.fill(0);
    hold.release();
    expect(buffer.toHostSync()).toEqual(ramp(100));
  });

  it('frees the memory if the copy is refused', () => {
    const before = resource.reservedBytes;
    failCall('cuMemcpyAsync', 1, 1);
    try {
      expect(() => new DeviceBuffer(ramp(100), { resource, stream })).toThrow(DriverError);
    } finally {
      failCall('cuMemcpyAsync', 0);
    }
    stream.synchronizeSync();
    resource.trim(stream);
    expect(resource.reservedBytes).toBe(before);
  });

  it.each<[string, unknown, object, new (...args: never[]) => Error, string]>([
    ['a negative length', -1, {}, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['a fractional length', 1.5, {}, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['a length of NaN', Number.NaN, {}, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['an infinite length', Number.POSITIVE_INFINITY, {}, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['a length above 2^53', 2 ** 53, {}, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['a bigint', 10n, {}, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['an ordinary array', [1, 2], {}, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['null', null, {}, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['no resource', 1, { resource: null }, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['an invalid resource', 1, { resource: {} }, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['no stream', 1, { stream: undefined }, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['an invalid stream', 1, { stream: { handle: 1 } }, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['a capacity below the length', 10, { capacityBytes: 9 }, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['a fractional capacity', 10, { capacityBytes: 10.5 }, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['an alignment that is not a power of two', 10, { alignment: 300 }, ArgumentRangeError, 'ERR_OUT_OF_RANGE'],
    ['an alignment that is not a number', 10, { alignment: '256' }, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
    ['a label that is not a string', 10, { label: 5 }, ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'],
  ])('refuses %s', (_, source, options, type, code) => {
    const make = () => new DeviceBuffer(source as number, { resource: addresses, stream, ...options } as DeviceBufferOptions);
    expect(make).toThrow(type);
    expect(make).toThrow(expect.objectContaining({ code }));
    expect(addresses.live.size).toBe(0);
  });

  it('refuses to be created without options, on a disposed stream, from a disposed resource', () => {
    expect(() => new DeviceBuffer(1, undefined as never)).toThrow(ArgumentTypeError);
    const disposedStream = new Stream();
    disposedStream.dispose();
    expect(() => new DeviceBuffer(1, { resource, stream: disposedStream })).toThrow(LifetimeError);
    resource.dispose();
    expect(() => new DeviceBuffer(1, { resource, stream })).toThrow(LifetimeError);
  });

  it("refuses the arguments of RMM's constructor", () => {
    const resource = new CudaMemoryResource();
    const live = watchedBuffers().count;
    expect(() => Reflect.construct(DeviceBuffer, [64, stream, resource])).toThrow(
      expect.objectContaining({
        code: 'ERR_INVALID_ARG_TYPE',
        message: expect.stringContaining('options, such as { stream, resource }, but also got a third argument: '),
      }),
    );
    expect(watchedBuffers().count).toBe(live);
  });

  it('refuses an alignment that the resource does not support', () => {
    expect(() => new DeviceBuffer(1, { resource, stream, alignment: 512 })).toThrow(ArgumentRangeError);
  });

  it('runs out of memory if the resource does', () => {
    const make = () => new DeviceBuffer(2 ** 45, { resource, stream });
    expect(make).toThrow(OutOfMemoryError);
    expect(make).toThrow(expect.objectContaining({ requestedBytes: 2 ** 45 }));
    using after = new DeviceBuffer(1 * MiB, { resource, stream });
    expect(after.byteLength).toBe(1 * MiB);
  });
});

describe('resize, reserve and shrinkToFit', () => {
  it('keeps the memory up to the capacity', () => {
    using buffer = new DeviceBuffer(ramp(100), { resource, stream, capacityBytes: 200 });
    const { ptr } = buffer;
    buffer.resize(200);
    buffer.resize(50);
    expect([buffer.ptr, buffer.byteLength, buffer.capacityBytes]).toEqual([ptr, 50, 200]);
    expect(buffer.toHostSync()).toEqual(ramp(50));
  });

  it('moves the contents beyond the capacity, and frees the old memory on the stream', () => {
    using buffer = new DeviceBuffer(0, { resource: addresses, stream });
    buffer.resize(100);
    const { ptr } = buffer;
    expect(() => buffer.resize(200)).toThrow(DriverError);
    expect([buffer.ptr, buffer.byteLength, buffer.capacityBytes, addresses.liveBytes]).toEqual([ptr, 100, 100, 100]);

    using real = new DeviceBuffer(ramp(100), { resource, stream });
    real.resize(300);
    expect([real.byteLength, real.capacityBytes]).toEqual([300, 300]);
    expect(real.toHostSync().subarray(0, 100)).toEqual(ramp(100));
  });

  it('does not block: a move is queued', () => {
    using hold = stream.hold();
    using buffer = new DeviceBuffer(ramp(100), { resource, stream });
    buffer.resize(1000);
    expect(stream.query()).toBe(false);
    hold.release();
    expect(buffer.toHostSync().subarray(0, 100)).toEqual(ramp(100));
  });

  it('reserves without changing the length', () => {
    using buffer = new DeviceBuffer(ramp(100), { resource, stream });
    buffer.reserve(50);
    expect(buffer.capacityBytes).toBe(100);
    buffer.reserve(5000);
    expect([buffer.byteLength, buffer.capacityBytes]).toEqual([100, 5000]);
    expect(buffer.toHostSync()).toEqual(ramp(100));
  });

  it('shrinks to the length, or to nothing if that is 0', () => {
    using buffer = new DeviceBuffer(ramp(100), { resource, stream, capacityBytes: 1000 });
    buffer.shrinkToFit();
    expect(buffer.capacityBytes).toBe(100);
    expect(buffer.toHostSync()).toEqual(ramp(100));
    const { ptr } = buffer;
    buffer.shrinkToFit();
    expect(buffer.ptr).toBe(ptr);
    buffer.resize(0);
    expect(buffer.capacityBytes).toBe(100);
    buffer.shrinkToFit();
    expect([buffer.ptr, buffer.capacityBytes]).toEqual([0, 0]);
    buffer.resize(10);
    expect(buffer.capacityBytes).toBe(10);
  });

  it.each(['resize', 'reserve'] as const)('%s leaves the buffer unchanged if memory runs out', (method) => {
    using buffer = new DeviceBuffer(ramp(100), { resource, stream });
    const { ptr } = buffer;
    expect(() => buffer[method](2 ** 45)).toThrow(OutOfMemoryError);
    expect([buffer.ptr, buffer.byteLength, buffer.capacityBytes]).toEqual([ptr, 100, 100]);
    expect(buffer.toHostSync()).toEqual(ramp(100));
  });

  it('leaves the buffer unchanged if the resource refuses to free the old memory', () => {
    const buffer = new DeviceBuffer(100, { resource: addresses, stream });
    const { ptr } = buffer;
    buffer.resize(0);
    addresses.beforeFree = (pointer) => {
      if (pointer === ptr) throw new Error('refused');
    };
    expect(() => buffer.reserve(200)).toThrow('refused');
    expect([buffer.ptr, buffer.capacityBytes, addresses.liveBytes]).toEqual([ptr, 100, 100]);
    addresses.beforeFree = undefined;
    buffer.dispose();
    expect(addresses.liveBytes).toBe(0);
  });

  it('loses nothing if the resource refuses, in a host function', () => {
    const plain = new CudaMemoryResource();
    const before = plain.reservedBytes;
    const buffer = new DeviceBuffer(MiB, { resource: plain, stream });
    let refusal: unknown;
    stream.launchHostFunction(() => {
      try {
        buffer.resize(2 * MiB);
      } catch (error) {
        refusal = error;
      }
    });
    stream.synchronizeSync();
    expect(refusal).toMatchObject({ driverStatus: 800 });
    expect([buffer.byteLength, plain.reservedBytes - before]).toEqual([MiB, MiB]);
    buffer.dispose();
    expect(plain.reservedBytes).toBe(before);
  });

  it('loses nothing if the resource disposes the buffer meanwhile', () => {
    const buffer = new DeviceBuffer(0, { resource: addresses, stream });
    addresses.beforeAllocate = () => buffer.dispose();
    expect(() => buffer.resize(100)).toThrow(LifetimeError);
    expect(addresses.liveBytes).toBe(0);
    expect(buffer.byteLength).toBe(0);
  });

  it.each(['resize', 'reserve'] as const)('%s refuses invalid sizes', (method) => {
    using buffer = new DeviceBuffer(100, { resource, stream });
    for (const bytes of [-1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53]) {
      expect(() => buffer[method](bytes)).toThrow(ArgumentRangeError);
    }
    expect(() => buffer[method]('10' as never)).toThrow(ArgumentTypeError);
    expect([buffer.byteLength, buffer.capacityBytes]).toEqual([100, 100]);
  });
});

describe('copies', () => {
  const resources = { CudaMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource, HostMemoryResource, CudaAsyncMemoryResource };

  it.each(Object.entries(resources))('go into and out of memory of a %s', async (_, Resource) => {
    using memory = new Resource();
    using buffer = new DeviceBuffer(ramp(64), { resource: memory, stream });
    buffer.copyFrom(ramp(8, 100), { byteOffset: 4 });
    buffer.resize(100);
    buffer.resize(64);
    const expected = ramp(64);
    expected.set(ramp(8, 100), 4);
    expect(buffer.toHostSync()).toEqual(expected);
    expect(await buffer.toHost()).toEqual(expected);
    buffer.fill(7, { byteOffset: 1, byteLength: 2 });
    expect(await buffer.toHost({ byteLength: 4 })).toEqual(Uint8Array.of(0, 7, 7, 3));
  });

  it('take a part of the host data', () => {
    using buffer = new DeviceBuffer(8, { resource, stream });
    buffer.fill(0xff);
    buffer.copyFrom(Float32Array.of(1, 2, 3), { byteOffset: 4, sourceByteOffset: 8 });
    buffer.copyFromSync(ramp(10).buffer, { sourceByteOffset: 3, byteLength: 2 });
    const bytes = buffer.toHostSync();
    expect(bytes.subarray(0, 4)).toEqual(Uint8Array.of(3, 4, 0xff, 0xff));
    expect(new DataView(bytes.buffer).getFloat32(4, true)).toBe(3);
  });

  it('have read the host data when they return', () => {
    using buffer = new DeviceBuffer(4, { resource, stream });
    using hold = stream.hold();
    const data = ramp(4);
    buffer.copyFrom(data);
    data.fill(9);
    hold.release();
    expect(buffer.toHostSync()).toEqual(ramp(4));
  });

  it('fill a given array, from an offset', () => {
    using buffer = new DeviceBuffer(Float64Array.of(1, 2, 3, 4), { resource, stream });
    const target = new Float64Array(2);
    expect(buffer.toHostSync(target, { byteOffset: 16 })).toBe(target);
    expect(target).toEqual(Float64Array.of(3, 4));
    expect(new Float64Array(buffer.toHostSync(undefined, { byteOffset: 24 }).buffer)).toEqual(Float64Array.of(4));
  });

  it('see the contents at the time they were queued, even of a buffer that is disposed since', async () => {
    using hold = stream.hold();
    const buffer = new DeviceBuffer(ramp(16), { resource, stream });
    const first = buffer.toHost();
    buffer.fill(9);
    const second = buffer.toHost({ byteOffset: 12 });
    buffer.dispose();
    using next = new DeviceBuffer(16, { resource, stream });
    next.fill(1);
    hold.release();
    expect(await first).toEqual(ramp(16));
    expect(await second).toEqual(Uint8Array.of(9, 9, 9, 9));
  });

  it('run between buffers, and within one', () => {
    using source = new DeviceBuffer(ramp(16), { resource, stream });
    using target = new DeviceBuffer(16, { resource, stream });
    target.fill(0);
    source.copyTo(target, { byteOffset: 8, sourceByteOffset: 2, byteLength: 4 });
    expect(target.toHostSync()).toEqual(Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 0, 0, 0, 0));
    target.copyFrom(target, { byteOffset: 0, sourceByteOffset: 8, byteLength: 8 });
    expect(target.toHostSync().subarray(0, 4)).toEqual(Uint8Array.of(2, 3, 4, 5));
    target.copyFromSync(source);
    expect(target.toHostSync()).toEqual(ramp(16));
  });

  it('record no event between buffers on one stream', () => {
    using source = new DeviceBuffer(ramp(16), { resource, stream });
    using target = new DeviceBuffer(16, { resource, stream });
    const before = driverCallCounts();
    target.copyFrom(source);
    const after = driverCallCounts();
    expect([after.eventRecords, after.eventWaits]).toEqual([before.eventRecords, before.eventWaits]);
  });

  it('wait for pending writes to the source on another stream', () => {
    using other = new Stream({ nonBlocking: true });
    using source = new DeviceBuffer(16, { resource, stream: other });
    using target = new DeviceBuffer(16, { resource, stream });
    source.fill(0);
    using hold = other.hold();
    source.copyFrom(ramp(16));
    target.copyFrom(source);
    hold.release();
    expect(target.toHostSync()).toEqual(ramp(16));
  });

  it('keep the source from being overwritten before they have read it', async () => {
    using other = new Stream({ nonBlocking: true });
    using source = new DeviceBuffer(ramp(16), { resource, stream: other });
    using target = new DeviceBuffer(16, { resource, stream });
    using hold = stream.hold();
    target.copyFrom(source);
    source.fill(0);
    await setTimeout(20);
    expect(other.query()).toBe(false);
    hold.release();
    expect(target.toHostSync()).toEqual(ramp(16));
    expect(source.toHostSync()).toEqual(new Uint8Array(16));
  });

  it('run between devices', () => {
    const device = Device.get(1);
    using otherResource = new CudaAsyncMemoryResource({ device });
    using otherStream = new Stream({ device });
    using source = new DeviceBuffer(ramp(16), { resource: otherResource, stream: otherStream });
    using target = new DeviceBuffer(16, { resource, stream });
    target.copyFrom(source);
    expect(target.toHostSync()).toEqual(ramp(16));
  });

  it('refuse ranges that do not fit, and change nothing', () => {
    using buffer = new DeviceBuffer(ramp(16), { resource, stream, capacityBytes: 64 });
    using small = new DeviceBuffer(ramp(4), { resource, stream });
    const refused: (() => unknown)[] = [
      () => buffer.copyFrom(ramp(17)),
      () => buffer.copyFrom(ramp(8), { byteOffset: 9 }),
      () => buffer.copyFrom(ramp(8), { byteOffset: -1 }),
      () => buffer.copyFrom(ramp(8), { byteOffset: 0.5 }),
      () => buffer.copyFrom(ramp(8), { sourceByteOffset: 9 }),
      () => buffer.copyFrom(ramp(8), { byteLength: 9 }),
      () => buffer.copyFrom(ramp(8), { byteLength: Number.NaN }),
      () => buffer.copyFrom(small, { byteLength: 5 }),
      () => buffer.copyTo(small),
      () => buffer.copyFrom(buffer),
      () => buffer.copyFrom(buffer, { byteOffset: 1, byteLength: 2 }),
      () => buffer.toHostSync(new Uint8Array(17)),
      () => buffer.toHostSync(new Uint8Array(4), { byteOffset: 13 }),
      () => buffer.fill(1, { byteOffset: 17 }),
      () => buffer.fill(1, { byteOffset: 1, byteLength: 16 }),
      () => buffer.fill(256),
      () => buffer.fill(-1),
      () => buffer.fill(1.5),
    ];
    for (const call of refused) expect(call, String(call)).toThrow(ArgumentRangeError);
    expect(buffer.toHostSync()).toEqual(ramp(16));
    expect(small.toHostSync()).toEqual(ramp(4));
  });

  it('refuse arguments of another type', async () => {
    using buffer = new DeviceBuffer(16, { resource, stream });
    expect(() => buffer.copyFrom([1] as never)).toThrow(ArgumentTypeError);
    expect(() => buffer.copyTo(ramp(16) as never)).toThrow(ArgumentTypeError);
    expect(() => buffer.copyFrom(ramp(1), { byteOffset: '1' as never })).toThrow(ArgumentTypeError);
    expect(() => buffer.toHostSync(new ArrayBuffer(4) as never)).toThrow(ArgumentTypeError);
    expect(() => buffer.fill('1' as never)).toThrow(ArgumentTypeError);
    await expect(buffer.toHost({ byteOffset: 17 })).rejects.toThrow(ArgumentRangeError);
    for (const wrong of [null, { byteOffset: 5n }, { byteOffset: {} }] as never[]) {
      expect(() => buffer.copyFrom(ramp(1), wrong)).toThrow(ArgumentTypeError);
      expect(() => buffer.toHostSync(undefined, wrong)).toThrow(ArgumentTypeError);
      expect(() => buffer.fill(1, wrong)).toThrow(ArgumentTypeError);
      await expect(buffer.toHost(wrong)).rejects.toThrow(ArgumentTypeError);
    }
  });

  it('do not fail if the event that they waited for cannot be destroyed', () => {
    using other = new Stream({ nonBlocking: true });
    using source = new DeviceBuffer(ramp(16), { resource, stream: other });
    using target = new DeviceBuffer(16, { resource, stream });
    failCall('cuEventDestroy', 1, 999);
    target.copyFrom(source);
    expect(failCall('cuEventDestroy', 0)).toBe(false);
    expect(target.toHostSync()).toEqual(ramp(16));
  });

  it('have read the source when they return if its stream cannot be made to wait', () => {
    using other = new Stream({ nonBlocking: true });
    using source = new DeviceBuffer(ramp(16), { resource, stream: other });
    using target = new DeviceBuffer(16, { resource, stream });
    let hasRun = false;
    stream.launchHostFunction(() => {
      hasRun = true;
    });
    failCall('cuEventCreate', 2);
    try {
      target.copyFrom(source);
      expect(hasRun).toBe(true);
      expect(stream.query()).toBe(true);
    } finally {
      failCall('cuEventCreate', 0);
    }
    source.fill(9);
    expect(target.toHostSync()).toEqual(ramp(16));
  });
});

describe('streams', () => {
  it('are where the memory is freed', () => {
    using other = new Stream();
    const buffer = new DeviceBuffer(10, { resource: addresses, stream });
    buffer.setStream(other);
    expect(buffer.stream).toBe(other);
    buffer.dispose();
    expect(addresses.frees.map((free) => free.stream)).toEqual([other]);
  });

  it('are refused if they are invalid or disposed', () => {
    using buffer = new DeviceBuffer(10, { resource: addresses, stream });
    const disposedStream = new Stream();
    disposedStream.dispose();
    expect(() => buffer.setStream(disposedStream)).toThrow(LifetimeError);
    expect(() => buffer.setStream({} as never)).toThrow(ArgumentTypeError);
    expect(buffer.stream).toBe(stream);
  });

  it('may be disposed before the buffer, which is then freed after the device’s work', () => {
    const before = driverCallCounts();
    const early = new Stream();
    const buffer = new DeviceBuffer(10, { resource: addresses, stream: early });
    early.dispose();
    expect(() => buffer.fill(1)).toThrow(LifetimeError);
    expect(() => buffer.resize(5)).toThrow(LifetimeError);
    buffer.dispose();
    expect(addresses.frees.map((free) => free.stream)).toEqual([Stream.legacyDefault()]);
    expect(driverCallCounts().synchronizations - before.synchronizations).toBe(1);
  });

  it('of a real resource may be disposed before the buffer', () => {
    const early = new Stream();
    const buffer = new DeviceBuffer(ramp(1000), { resource, stream: early });
    early.synchronizeSync();
    early.dispose();
    buffer.setStream(stream);
    expect(buffer.toHostSync()).toEqual(ramp(1000));
    const next = new Stream();
    buffer.setStream(next);
    next.dispose();
    buffer.dispose();
    Stream.legacyDefault().synchronizeSync();
    resource.trim(Stream.legacyDefault());
    expect(resource.reservedBytes).toBe(0);
  });
});

describe('disposal', () => {
  it('frees once', () => {
    const buffer = new DeviceBuffer(10, { resource: addresses, stream });
    buffer.dispose();
    buffer.dispose();
    buffer[Symbol.dispose]();
    expect(addresses.frees).toHaveLength(1);
    expect(buffer.isDisposed).toBe(true);
  });

  it('ends every use', async () => {
    const buffer = new DeviceBuffer(10, { resource, stream });
    using other = new DeviceBuffer(10, { resource, stream });
    buffer.dispose();
    expect([buffer.byteLength, buffer.capacityBytes, buffer.stream, buffer.resource]).toEqual([0, 0, stream, resource]);
    const uses: (() => unknown)[] = [
      () => buffer.ptr,
      () => buffer.resize(1),
      () => buffer.reserve(1),
      () => buffer.shrinkToFit(),
      () => buffer.setStream(stream),
      () => buffer.copyFrom(ramp(1)),
      () => buffer.copyFromSync(ramp(1)),
      () => buffer.copyTo(other),
      () => other.copyFrom(buffer),
      () => buffer.toHostSync(),
      () => buffer.fill(0),
    ];
    for (const use of uses) expect(use, String(use)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    await expect(buffer.toHost()).rejects.toThrow(LifetimeError);
  });

  it('can be retried if the resource refuses', () => {
    const plain = new CudaMemoryResource();
    const before = plain.reservedBytes;
    const buffer = new DeviceBuffer(MiB, { resource: plain, stream });
    const { ptr } = buffer;
    let refusal: unknown;
    stream.launchHostFunction(() => {
      try {
        buffer.dispose();
      } catch (error) {
        refusal = error;
      }
    });
    stream.synchronizeSync();
    expect(refusal).toMatchObject({ driverStatus: 800 });
    expect([buffer.isDisposed, buffer.ptr, buffer.byteLength, buffer.capacityBytes]).toEqual([false, ptr, MiB, MiB]);
    expect(watchedBuffers().count).toBe(1);
    buffer.dispose();
    expect(buffer.isDisposed).toBe(true);
    expect(plain.reservedBytes).toBe(before);
  });

  it('finds the buffer disposed while the resource frees', () => {
    const buffer = new DeviceBuffer(10, { resource: addresses, stream });
    const seen: unknown[] = [];
    addresses.beforeFree = () => {
      seen.push(buffer.isDisposed, buffer.byteLength, buffer.capacityBytes);
      buffer.dispose();
      expect(() => buffer.resize(20)).toThrow(LifetimeError);
    };
    buffer.dispose();
    expect(seen).toEqual([true, 0, 0]);
    expect(addresses.frees).toHaveLength(1);
  });

  it('passes on that the resource can no longer free the memory, and is complete even so', () => {
    const buffer = new DeviceBuffer(10, { resource, stream });
    resource.deallocate(buffer.ptr, 10, stream);
    expect(() => buffer.dispose()).toThrow(LifetimeError);
    expect(buffer.isDisposed).toBe(true);
    buffer.dispose();
  });
});

it('says what a buffer may be made of, and what may be copied into one', () => {
  expect(() => new DeviceBuffer('1MiB' as never, { stream, resource })).toThrow('source must be a number of bytes, a typed array, ');
  using buffer = new DeviceBuffer(16, { stream, resource });
  expect(() => buffer.copyFrom(16 as never)).toThrow('source must be a typed array, ');
});
