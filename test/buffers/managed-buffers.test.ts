/**
 * Moving and copying buffers: each case that PyTorch's RFC-0023 lists for tensors, and those of its
 * discussion. Without a GPU it runs on two software devices, whose account of pages it checks too.
 */
import { constants } from 'node:buffer';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import {
  ArgumentTypeError,
  advise,
  type BufferTransfer,
  CudaMemoryResource,
  configureSoftwareDevice,
  currentBackend,
  Device,
  DeviceBuffer,
  DriverError,
  FallbackResourceAdaptor,
  GiB,
  HostMemoryResource,
  KiB,
  LifetimeError,
  LimitingResourceAdaptor,
  ManagedAsyncMemoryResource,
  ManagedMemoryResource,
  type MemoryLocation,
  type MemoryResource,
  MiB,
  managedRangeAttributes,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  PrefetchResourceAdaptor,
  pointerInfo,
  resetCurrentResource,
  Stream,
  setCurrentResource,
  UnsupportedError,
  withResource,
} from '../../src/index.js';
import { residentBytes } from '../../src/machine/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { needSecondDevice } from '../support/device-memory.js';
import { skipTest } from '../support/skip-test.js';

const bytes = 4 * MiB;
let device: Device;
let stream: Stream;
let managed: ManagedMemoryResource;
let plain: CudaMemoryResource;
const numbers = Float32Array.from({ length: bytes / 4 }, (_, i) => i);

beforeEach(() => {
  device = Device.get();
  stream = new Stream();
  managed = new ManagedMemoryResource();
  plain = new CudaMemoryResource();
});

afterEach(() => {
  stream.dispose();
  managed.dispose();
  plain.dispose();
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(0);
});

function needSoftwareDevice(): void {
  if (currentBackend() !== 'software') skipTest('a GPU cannot be made to fail');
}

function needConcurrentAccess(): void {
  if (device.attribute('concurrentManagedAccess') !== 1) skipTest('the device and the host cannot use managed memory at the same time');
}

/** Where the buffer's bytes are, on a device that tells. */
function expectAt(buffer: DeviceBuffer, location: MemoryLocation): void {
  if (currentBackend() === 'software') expect(residentBytes(buffer.ptr, buffer.byteLength, location)).toBe(buffer.byteLength);
}

function contents(buffer: DeviceBuffer): Float32Array {
  return new Float32Array(buffer.toHostSync().buffer);
}

/** Compares bytes: an assertion about each element takes seconds. */
function expectNumbers(array: Float32Array, first = 0): void {
  const bytesOf = (view: Float32Array) => Buffer.from(view.buffer, view.byteOffset + 4 * first, view.byteLength - 4 * first);
  expect(bytesOf(array).equals(bytesOf(numbers))).toBe(true);
}

const bufferOf = (resource: MemoryResource) => new DeviceBuffer(numbers, { resource, stream, label: 'weights' });

describe('a buffer of managed memory', () => {
  beforeEach(needConcurrentAccess);

  test('moves to a device and to the host: the same buffer, the same memory', () => {
    using buffer = bufferOf(managed);
    const { ptr } = buffer;
    expect(buffer.to('host')).toEqual({ buffer, isCopy: false });
    expect(stream.query()).toBe(true);
    expectAt(buffer, 'host');
    expectNumbers(buffer.hostView(Float32Array));
    expect(buffer.to(device)).toEqual({ buffer, isCopy: false });
    stream.synchronizeSync();
    expectAt(buffer, device);
    expect(buffer.ptr).toBe(ptr);
    expectNumbers(contents(buffer));
    expect(managedRangeAttributes(ptr, bytes)).toMatchObject({ lastPrefetchLocation: 0, preferredLocation: undefined });
  });

  test('is told by its memory and not by its resource', () => {
    using limited = new LimitingResourceAdaptor(managed, { limitBytes: bytes });
    using resource = new FallbackResourceAdaptor(limited, plain);
    using first = bufferOf(resource);
    using second = bufferOf(resource);
    expect(first.to('host')).toEqual({ buffer: first, isCopy: false });
    const { buffer: copy, isCopy } = second.to('host');
    expect(isCopy).toBe(true);
    expect(pointerInfo(copy.ptr).memoryKind).toBe('pinned-host');
    expectNumbers(copy.hostView(Float32Array));
    copy.dispose();
  });

  test('goes to the stream that is given, and so does its copy', () => {
    using other = new Stream();
    using buffer = bufferOf(managed);
    using copy = buffer.to(device, { copy: true, stream: other }).buffer;
    expect([buffer.stream, copy.stream]).toEqual([stream, other]);
    using there = bufferOf(plain);
    expect(there.to(device, { stream: other })).toEqual({ buffer: there, isCopy: false });
    expect(there.stream).toBe(other);
    using onHost = there.to('host', { stream }).buffer;
    expect(onHost.stream).toBe(stream);
    buffer.to(device, { stream: other });
    expect(buffer.stream).toBe(other);
    expectNumbers(contents(copy));
  });

  test('moves to the host without waiting for other streams', () => {
    using other = new Stream();
    using buffer = bufferOf(managed);
    using hold = other.hold();
    buffer.to('host');
    expect(other.query()).toBe(false);
    hold.release();
  });

  test('moves if it is a byte long, and stays as it is if it is empty', () => {
    using byte = new DeviceBuffer(1, { resource: managed, stream });
    byte.to(device);
    expect(managedRangeAttributes(byte.ptr, 1).lastPrefetchLocation).toBe(0);
    using empty = new DeviceBuffer(0, { resource: managed, stream });
    expect(empty.to(device, { preferredLocation: true })).toEqual({ buffer: empty, isCopy: false });
  });

  test('is preferred at the location if that is asked for', () => {
    using buffer = bufferOf(managed);
    buffer.to(device, { preferredLocation: true });
    expect(managedRangeAttributes(buffer.ptr, bytes).preferredLocation).toBe(0);
    buffer.to('host', { preferredLocation: true });
    expect(managedRangeAttributes(buffer.ptr, bytes).preferredLocation).toBe('host');
  });

  test('is copied if that is asked for, in memory of its own resource', () => {
    using buffer = bufferOf(managed);
    using copy = buffer.to('host', { copy: true }).buffer;
    expect(copy).not.toBe(buffer);
    expect(copy).toMatchObject({ resource: managed, byteLength: bytes, label: 'weights' });
    expect(copy.ptr).not.toBe(buffer.ptr);
    expectAt(copy, 'host');
    buffer.fill(0);
    expectNumbers(copy.hostView(Float32Array));
  });

  test('does not block on its way to the host if the caller waits', () => {
    using buffer = bufferOf(managed);
    stream.synchronizeSync();
    using hold = stream.hold();
    expect(buffer.to('host', { nonBlocking: true })).toEqual({ buffer, isCopy: false });
    expect(stream.query()).toBe(false);
    expect(() => buffer.hostView(Float32Array, { whenBusy: 'refuse' })).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }),
    );
    hold.release();
    stream.synchronizeSync();
    expectNumbers(buffer.hostView(Float32Array, { whenBusy: 'refuse' }));
  });

  test('is not returned if a host function disposes it during the wait', () => {
    using pool = new PoolMemoryResource(managed);
    const buffer = bufferOf(pool);
    stream.launchHostFunction(() => buffer.dispose());
    expect(() => buffer.to('host')).toThrow(LifetimeError);
  });

  test('does not block on its way to a device', () => {
    using buffer = bufferOf(managed);
    using hold = stream.hold();
    buffer.to(device);
    expect(stream.query()).toBe(false);
    hold.release();
  });

  test('resolves once it is there', async () => {
    using buffer = bufferOf(managed);
    const hold = stream.hold();
    let result: BufferTransfer<DeviceBuffer> | undefined;
    const moved = buffer.toAsync('host').then((each) => {
      result = each;
    });
    await new Promise(setImmediate);
    expect(result).toBeUndefined();
    hold.release();
    await moved;
    expect(result).toEqual({ buffer, isCopy: false });
    expectAt(buffer, 'host');
    await buffer.toAsync(device);
    expectAt(buffer, device);
  });

  test('stays usable where it was, which brings it back', () => {
    using buffer = bufferOf(managed);
    buffer.to(device);
    buffer.to('host');
    buffer.fill(255, { byteLength: 4 });
    stream.synchronizeSync();
    if (currentBackend() === 'software') expect(residentBytes(buffer.ptr, 4, device)).toBe(4);
    expect(buffer.hostView(Uint32Array, { length: 2 })).toEqual(Uint32Array.of(0xffffffff, new Uint32Array(numbers.buffer)[1] as number));
  });

  test('shares its bytes with whoever had it before: a move makes no second buffer', () => {
    using buffer = bufferOf(managed);
    const { buffer: moved } = buffer.to('host');
    moved.hostView(Float32Array)[0] = -1;
    expect(contents(buffer)[0]).toBe(-1);
  });

  test('moves between devices, on the stream of either', () => {
    needSecondDevice();
    const other = Device.get(1);
    using there = new Stream({ device: other });
    using buffer = bufferOf(managed);
    const { ptr } = buffer;
    buffer.to(other);
    stream.synchronizeSync();
    expectAt(buffer, other);
    expect(buffer.to(device, { stream: there })).toEqual({ buffer, isCopy: false });
    expect(buffer.stream).toBe(there);
    there.synchronizeSync();
    expectAt(buffer, device);
    buffer.to(other);
    buffer.fill(0, { byteLength: 4 });
    there.synchronizeSync();
    expectAt(buffer, other);
    expect(buffer.ptr).toBe(ptr);
    expectNumbers(contents(buffer), 1);
  });

  test('moves after the work of the stream that it leaves', () => {
    using next = new Stream();
    using buffer = bufferOf(managed);
    const hold = stream.hold();
    buffer.fill(9);
    buffer.to('host', { stream: next, nonBlocking: true });
    expect(next.query()).toBe(false);
    hold.release();
    expect(buffer.hostView(Uint8Array, { length: 3 })).toEqual(Uint8Array.of(9, 9, 9));
  });

  test('is copied if anything other than its location changes', () => {
    using buffer = bufferOf(managed);
    using pinned = new PinnedHostMemoryResource();
    const { buffer: copy, isCopy } = buffer.to('host', { resource: pinned });
    expect(isCopy).toBe(true);
    expectNumbers(copy.hostView(Float32Array));
    copy.dispose();
    // As a conversion of the elements does.
    using halves = new DeviceBuffer(Float64Array.from(buffer.hostView(Float32Array)), { resource: managed, stream });
    halves.to('host');
    expect(halves.hostView(Float64Array, { length: 3 })).toEqual(Float64Array.of(0, 1, 2));
    expectNumbers(buffer.hostView(Float32Array));
  });

  test.each(['cuMemPrefetchAsync', 'cuMemAdvise'])('stays on its stream if the driver refuses %s', (call) => {
    needSoftwareDevice();
    using next = new Stream();
    using buffer = bufferOf(managed);
    failCall(call, 1, 999);
    expect(() => buffer.to(device, { stream: next, preferredLocation: true })).toThrow(DriverError);
    expect(failCall(call, 0)).toBe(false);
    expect(buffer.stream).toBe(stream);
    // Its stream waits for a prefetch that was queued on the other one.
    using hold = next.hold();
    failCall(call, 1, 999);
    expect(() => buffer.to(device, { stream: next, preferredLocation: true })).toThrow(DriverError);
    expect(stream.query()).toBe(false);
    hold.release();
    expectNumbers(contents(buffer));
  });

  test('of no bytes goes anywhere', () => {
    using buffer = new DeviceBuffer(0, { resource: managed, stream });
    expect(buffer.to('host')).toEqual({ buffer, isCopy: false });
    expect(buffer.hostView(Float32Array)).toHaveLength(0);
  });
});

describe('a buffer of other memory', () => {
  test('is copied to the host, in pinned memory, and back', () => {
    using buffer = bufferOf(plain);
    const { buffer: copy, isCopy } = buffer.to('host');
    expect(isCopy).toBe(true);
    expect(copy.resource.memoryKind).toBe('pinned-host');
    expectNumbers(copy.hostView(Float32Array));
    using back = copy.to(device, { resource: plain }).buffer;
    expect(back.resource).toBe(plain);
    expectNumbers(contents(back));
    copy.dispose();
  });

  test('stays if it is there, unless a copy is asked for', () => {
    using buffer = bufferOf(plain);
    expect(buffer.to(device)).toEqual({ buffer, isCopy: false });
    using copy = buffer.to(device, { copy: true, resource: plain }).buffer;
    expect(copy.ptr).not.toBe(buffer.ptr);
    using host = new DeviceBuffer(numbers, { resource: new HostMemoryResource(), stream });
    expect(host.to('host')).toEqual({ buffer: host, isCopy: false });
  });

  test('is copied to another device, for its default stream', () => {
    needSecondDevice();
    const other = Device.get(1);
    using buffer = bufferOf(plain);
    using copy = buffer.to(other).buffer;
    expect(copy.stream.device).toBe(other);
    expect(copy.resource.device).toBe(other);
    expectNumbers(contents(copy));
  });

  test('has copies on its own stream, if that can use their memory, and of its own device', () => {
    using buffer = bufferOf(plain);
    using copy = buffer.to(device, { copy: true }).buffer;
    expect(copy.stream).toBe(stream);
    needSecondDevice();
    const other = Device.get(1);
    using there = new Stream({ device: other });
    using resource = new CudaMemoryResource({ device: other });
    using far = new DeviceBuffer(numbers, { resource, stream: there });
    using onHost = far.to('host').buffer;
    expect([onHost.resource.device, onHost.stream]).toEqual([other, there]);
    using pinned = new PinnedHostMemoryResource();
    using near = far.to('host', { resource: pinned }).buffer;
    expect(near.stream).toBe(there);
    expectNumbers(contents(near));
  });

  test('cannot be copied to a resource elsewhere', () => {
    using buffer = bufferOf(plain);
    const badValue = expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' });
    expect(() => buffer.to('host', { resource: new CudaMemoryResource() })).toThrow(badValue);
    expect(() => buffer.to(device, { resource: new PinnedHostMemoryResource() })).toThrow(badValue);
    expect(() => buffer.to('moon' as 'host')).toThrow(badValue);
    for (const name of ['copy', 'nonBlocking', 'preferredLocation']) {
      for (const value of [1, null, 'true']) {
        expect(() => buffer.to('host', { [name]: value })).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
        expect(() => buffer.to('host', { [name]: value })).toThrow(`${name} must be a boolean`);
      }
    }
    const noStream = { stream: {} as Stream };
    expect(() => buffer.to(device, noStream)).toThrow('stream must be a Stream');
    expect(buffer.stream).toBe(stream);
  });

  test('cannot be copied to what is no resource', () => {
    using buffer = bufferOf(plain);
    using moving = bufferOf(managed);
    const badType = expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE', message: expect.stringContaining('resource must be') });
    for (const resource of [{}, 5, null] as unknown as MemoryResource[]) {
      expect(() => buffer.to('host', { resource })).toThrow(badType);
      expect(() => moving.to(device, { resource })).toThrow(badType);
    }
  });
});

describe('recast', () => {
  test('makes a buffer one of managed memory, and back, with its contents', () => {
    using buffer = bufferOf(plain);
    const { ptr } = buffer;
    const liveBytes = plain.reservedBytes;
    buffer.recast(managed);
    expect(buffer).toMatchObject({ resource: managed, byteLength: bytes, capacityBytes: bytes, label: 'weights', stream });
    expect(buffer.ptr).not.toBe(ptr);
    expect(plain.reservedBytes).toBe(liveBytes - bytes);
    expectNumbers(contents(buffer));
    buffer.recast(plain);
    expect(buffer.resource).toBe(plain);
    expectNumbers(contents(buffer));
  });

  test('gives a buffer of the same resource another stream, in stream order', () => {
    using next = new Stream();
    using buffer = bufferOf(plain);
    const { ptr } = buffer;
    using hold = stream.hold();
    buffer.fill(3);
    buffer.recast(plain, { stream: next });
    expect(buffer).toMatchObject({ ptr, stream: next });
    expect(next.query()).toBe(false);
    hold.release();
    expect(buffer.toHostSync().subarray(0, 2)).toEqual(Uint8Array.of(3, 3));
    for (const bad of [{}, null] as unknown as Stream[]) expect(() => buffer.recast(plain, { stream: bad })).toThrow(TypeError);
    next.dispose();
    expect(() => buffer.recast(plain, { stream: next })).toThrow(LifetimeError);
    buffer.setStream(stream);
    expect(() => buffer.recast(plain, { stream: next })).toThrow(LifetimeError);
    expect(buffer.stream).toBe(stream);
  });

  test('does nothing for the same resource', () => {
    using buffer = bufferOf(plain);
    const { ptr } = buffer;
    buffer.recast(plain);
    expect(buffer.ptr).toBe(ptr);
  });

  test('runs in stream order, also onto another stream', () => {
    using next = new Stream();
    using buffer = bufferOf(managed);
    const hold = stream.hold();
    buffer.fill(3);
    buffer.recast(new PoolMemoryResource(managed), { stream: next });
    expect(buffer.stream).toBe(next);
    expect(next.query()).toBe(false);
    hold.release();
    expect(buffer.toHostSync().subarray(0, 4)).toEqual(Uint8Array.of(3, 3, 3, 3));
  });

  test('leaves the buffer as it was if there is no memory', () => {
    using buffer = bufferOf(managed);
    const { ptr } = buffer;
    using small = new PoolMemoryResource(plain, { maximumBytes: 64 * KiB });
    expect(() => buffer.recast(small)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY' }));
    expect(buffer).toMatchObject({ ptr, resource: managed });
    expectNumbers(contents(buffer));
  });

  test('needs a buffer', () => {
    const buffer = bufferOf(plain);
    buffer.dispose();
    expect(() => buffer.recast(managed)).toThrow(LifetimeError);
    expect(() => buffer.to('host')).toThrow(LifetimeError);
    expect(() => buffer.hostView(Float32Array)).toThrow(LifetimeError);
  });
});

describe('managed memory as the default', () => {
  test('is of a class of any context, and of nothing else', () => {
    needConcurrentAccess();
    using buffer = new DeviceBuffer(numbers, { resource: managed, stream });
    const foreign = runInNewContext('Float32Array') as Float32ArrayConstructor;
    const view = buffer.hostView(foreign);
    expect(view).toBeInstanceOf(foreign);
    expect([...view]).toEqual([...numbers]);
    class TypedArray {}
    for (const type of [Array, DataView, class extends Float32Array {}, class extends TypedArray {}, 'Float32Array', undefined]) {
      expect(() => buffer.hostView(type as never)).toThrow(ArgumentTypeError);
    }
  });

  test('can be switched on and off in one program, and holds in a scope', async () => {
    const make = () => new DeviceBuffer(KiB, { stream });
    using before = make();
    expect(before.resource.memoryKind).toBe('device');
    const previous = setCurrentResource(managed);
    using during = make();
    expect(during.resource).toBe(managed);
    expect(setCurrentResource(previous)).toBe(managed);
    using after = make();
    expect(after.resource).toBe(before.resource);
    resetCurrentResource();
    await withResource(managed, async () => {
      await new Promise(setImmediate);
      using inside = make();
      expect(inside.resource).toBe(managed);
    });
    using outside = make();
    expect(outside.resource.memoryKind).toBe('device');
    // What was made meanwhile stays what it is.
    expect(during.to(device).isCopy).toBe(false);
  });
});

describe('a host view', () => {
  test.each([
    ['managed', () => managed],
    ['pinned', () => new PinnedHostMemoryResource()],
    ['ordinary host', () => new HostMemoryResource()],
    ['pooled managed', () => new PoolMemoryResource(managed)],
  ])('shows the bytes of %s memory, and writes reach the device', (_kind, make) => {
    needConcurrentAccess();
    using buffer = bufferOf(make());
    const view = buffer.hostView(Float32Array, { byteOffset: 4, length: 2 });
    expect(view).toEqual(Float32Array.of(1, 2));
    view[1] = 7;
    expect(buffer.hostView(Float32Array).buffer).toBe(view.buffer);
    expect(contents(buffer).subarray(0, 4)).toEqual(Float32Array.of(0, 1, 7, 3));
  });

  // Without a hold, with which copies take another way.
  test.each<[string, () => MemoryResource]>([
    ['managed', () => managed],
    ['pinned', () => new PinnedHostMemoryResource()],
    ['pooled managed', () => new PoolMemoryResource(managed)],
  ])('of %s memory was read once a copy from it returns, and can be filled by one', async (_kind, make) => {
    needConcurrentAccess();
    const resource = make();
    const size = 64 * KiB;
    using busy = new DeviceBuffer(64 * MiB, { resource: plain, stream });
    using filled = new DeviceBuffer(size, { resource: plain, stream });
    using target = new DeviceBuffer(size, { resource: plain, stream });
    using before = new Stream();
    const source = new DeviceBuffer(size, { resource, stream: before });
    const view = source.hostView(Uint8Array);
    const keepBusy = () => {
      for (let i = 0; i < 4; i++) busy.fill(i);
    };
    const onlyValue = (buffer: DeviceBuffer) => [...new Set(buffer.toHostSync())];

    view.fill(1);
    filled.fill(1);
    keepBusy();
    filled.copyFrom(view);
    view.fill(9);
    expect(onlyValue(filled)).toEqual([1]);

    view.fill(2);
    keepBusy();
    using constructed = new DeviceBuffer(view.subarray(size / 2), { resource: plain, stream });
    view.fill(9);
    expect(onlyValue(constructed)).toEqual([2]);

    keepBusy();
    filled.fill(3);
    expect(new Set(filled.toHostSync(view))).toEqual(new Set([3]));
    keepBusy();
    filled.fill(4);
    expect(new Set(await filled.toHost(view))).toEqual(new Set([4]));

    keepBusy();
    target.copyFrom(view);
    source.dispose();
    using next = new DeviceBuffer(size, { resource, stream: before });
    next.hostView(Uint8Array).fill(9);
    expect(onlyValue(target)).toEqual([4]);
  });

  test('of a large source was read too', () => {
    needConcurrentAccess();
    const size = 65 * MiB;
    using source = new DeviceBuffer(size, { resource: managed, stream });
    using target = new DeviceBuffer(size, { resource: plain, stream });
    const view = source.hostView(Uint8Array);
    view[size - 1] = 1;
    target.copyFrom(view);
    view[size - 1] = 9;
    expect(target.toHostSync(new Uint8Array(1), { byteOffset: size - 1 })).toEqual(Uint8Array.of(1));
  });

  test('shows any part of a buffer that is longer than an array can be', () => {
    needConcurrentAccess();
    const size = 5 * GiB;
    const buffer = new DeviceBuffer(size, { resource: managed, stream });
    const at = (byteOffset: number) => buffer.hostView(Uint32Array, { byteOffset, length: 2 });
    const offsets = [0, 3 * GiB, 4 * GiB - 4, 4 * GiB + 4, size - 8];
    const views = offsets.map(at);
    for (const [i, view] of views.entries()) view.fill(i);
    expect(offsets.map((byteOffset) => at(byteOffset)[1])).toEqual([0, 1, 2, 3, 4]);
    expect(at(8).buffer).toBe(views[0]?.buffer);
    const last = buffer.toHostSync(new Uint32Array(1), { byteOffset: size - 8 });
    expect(last[0]).toBe(4);
    if (constants.MAX_LENGTH < size) expect(() => buffer.hostView(Uint8Array)).toThrow(UnsupportedError);
    buffer.dispose();
    expect(views.map((view) => view.length)).toEqual([0, 0, 0, 0, 0]);
  });

  test('has no bytes once the memory is freed, moves or is given away', () => {
    needConcurrentAccess();
    const ends: ((buffer: DeviceBuffer) => void)[] = [
      (buffer) => buffer.dispose(),
      (buffer) => buffer.resize(2 * bytes),
      (buffer) => buffer.recast(plain),
      (buffer) => {
        const { ptr, capacityBytes, resource } = buffer.release();
        resource.deallocate(ptr, capacityBytes, stream);
      },
    ];
    for (const end of ends) {
      using buffer = bufferOf(managed);
      const view = buffer.hostView(Float32Array);
      expect(view).toHaveLength(numbers.length);
      end(buffer);
      expect([view.length, view[0], view.buffer.byteLength]).toEqual([0, undefined, 0]);
    }
  });

  test('has no bytes after a refused free; the buffer keeps its memory and gives a new one', () => {
    needConcurrentAccess();
    needSoftwareDevice();
    const ends = [(each: DeviceBuffer) => each.dispose(), (each: DeviceBuffer) => each.recast(plain)];
    for (const end of ends) {
      using buffer = bufferOf(managed);
      const { ptr } = buffer;
      const view = buffer.hostView(Float32Array);
      failCall('cuMemFree', 1, 999);
      expect(() => end(buffer)).toThrow(DriverError);
      expect(failCall('cuMemFree', 0)).toBe(false);
      expect(buffer).toMatchObject({ ptr, byteLength: bytes, resource: managed, isDisposed: false });
      expect(view).toHaveLength(0);
      expectNumbers(buffer.hostView(Float32Array));
    }
  });

  test('cannot be taken along by another thread', () => {
    needConcurrentAccess();
    using buffer = bufferOf(managed);
    const view = buffer.hostView(Uint8Array);
    try {
      structuredClone(view.buffer, { transfer: [view.buffer] });
    } catch {} // Newer versions of Node refuse; older ones copy.
    expect(view).toHaveLength(bytes);
  });

  test('cannot be moved to another array', () => {
    needConcurrentAccess();
    using buffer = new DeviceBuffer(64, { resource: managed, stream });
    const { buffer: array } = buffer.hostView(Uint8Array);
    for (const name of ['transfer', 'transferToFixedLength']) expect(() => Reflect.get(array, name).call(array)).toThrow(UnsupportedError);
    expect(array.byteLength).toBe(64);
  });

  test('needs memory that the host can use', () => {
    using buffer = bufferOf(plain);
    expect(() => buffer.hostView(Float32Array)).toThrow(UnsupportedError);
  });

  test('needs a class of typed arrays, and whole elements inside the buffer', () => {
    using buffer = new DeviceBuffer(10, { resource: managed, stream });
    expect(() => buffer.hostView(DataView as unknown as typeof Uint8Array)).toThrow(TypeError);
    expect(() => buffer.hostView(Buffer as unknown as typeof Uint8Array)).toThrow(TypeError);
    const refused = [{}, { byteOffset: 2, length: 1 }, { length: 3 }, { byteOffset: 12, length: 0 }, { length: 1.5 }];
    for (const options of refused) expect(() => buffer.hostView(Float32Array, options)).toThrow(RangeError);
    expect(() => buffer.hostView(Float32Array, { length: null as unknown as number })).toThrow(TypeError);
    expect(() => buffer.hostView(Uint8Array, { whenBusy: 'never' as 'wait' })).toThrow(RangeError);
  });

  test('waits for a host function, which may dispose the buffer', () => {
    needConcurrentAccess();
    using pool = new PoolMemoryResource(managed);
    const buffer = bufferOf(pool);
    stream.launchHostFunction(() => buffer.dispose());
    expect(() => buffer.hostView(Float32Array)).toThrow(LifetimeError);
  });
});

describe('coherent devices', () => {
  /** The other tests run on devices that are not. */
  beforeEach(() => {
    if (currentBackend() === 'software') configureSoftwareDevice({ coherent: true });
    if (device.attribute('pageableMemoryAccessUsesHostPageTables') !== 1) skipTest("the device does not use the host's page tables");
  });
  afterEach(() => {
    if (currentBackend() === 'software') configureSoftwareDevice({ coherent: false });
  });

  test('move ordinary host memory', () => {
    using buffer = bufferOf(new HostMemoryResource());
    const { ptr } = buffer;
    expect(buffer.to(device, { preferredLocation: true })).toEqual({ buffer, isCopy: false });
    expectNumbers(contents(buffer));
    expect(buffer.to('host')).toEqual({ buffer, isCopy: false });
    expect(stream.query()).toBe(true);
    expect(buffer.ptr).toBe(ptr);
    expectNumbers(contents(buffer));
  });

  test('order the move, and the change of streams, like those of managed memory', () => {
    using buffer = bufferOf(new HostMemoryResource());
    stream.synchronizeSync();
    using other = new Stream();
    using hold = stream.hold();
    expect(buffer.to(device, { stream: other })).toEqual({ buffer, isCopy: false });
    expect(other.query()).toBe(false);
    hold.release();
    other.synchronizeSync();
  });

  test('copy host memory if asked to', () => {
    using buffer = bufferOf(new HostMemoryResource());
    using copy = buffer.to(device, { copy: true }).buffer;
    expect(pointerInfo(copy.ptr).memoryKind).toBe('device');
    expectNumbers(contents(copy));
  });

  test('take advice about host memory, and refuse it for memory of a device', () => {
    using buffer = bufferOf(new HostMemoryResource());
    advise(buffer.ptr, bytes, 'set-accessed-by', device);
    using other = bufferOf(plain);
    expect(() => advise(other.ptr, bytes, 'set-accessed-by', device)).toThrow(DriverError);
  });

  test('let the host see managed memory where it is', () => {
    needSoftwareDevice();
    using buffer = bufferOf(managed);
    buffer.to(device);
    expectNumbers(buffer.hostView(Float32Array));
    expectAt(buffer, device);
  });
});

describe('a device without concurrent managed access', () => {
  beforeEach(() => {
    if (currentBackend() !== 'software') skipTest('a GPU cannot lose concurrent managed access');
    configureSoftwareDevice({ concurrentManagedAccess: false });
  });
  afterEach(() => {
    if (currentBackend() === 'software') configureSoftwareDevice({ concurrentManagedAccess: true });
  });

  test('has no pools of managed memory', () => {
    expect(() => new ManagedAsyncMemoryResource()).toThrow(UnsupportedError);
  });

  test('lets managed memory move by itself, and makes no host view of it', () => {
    using buffer = bufferOf(managed);
    expect(buffer.to(device)).toEqual({ buffer, isCopy: false });
    expect(buffer.to('host')).toEqual({ buffer, isCopy: false });
    expectNumbers(contents(buffer));
    expect(() => buffer.hostView(Float32Array)).toThrow(UnsupportedError);
    expect(() => buffer.to(device, { preferredLocation: true })).toThrow(UnsupportedError);
    using pinned = bufferOf(new PinnedHostMemoryResource());
    expectNumbers(pinned.hostView(Float32Array));
  });

  test('can be preferred for memory that is not managed, which ignores it', () => {
    using buffer = bufferOf(plain);
    expect(buffer.to(device, { preferredLocation: true })).toEqual({ buffer, isCopy: false });
    using pinned = bufferOf(new PinnedHostMemoryResource());
    using copy = pinned.to(device, { preferredLocation: true, resource: plain }).buffer;
    expectNumbers(contents(copy));
    const { reservedBytes } = managed;
    expect(() => pinned.to(device, { preferredLocation: true, resource: managed })).toThrow(UnsupportedError);
    expect(managed.reservedBytes).toBe(reservedBytes);
  });

  test.each([0, 1])('makes the host wait for everything that device %i does', (index) => {
    if (index === 1) needSecondDevice();
    using other = new Stream({ device: Device.get(index) });
    using buffer = bufferOf(managed);
    using scratch = new DeviceBuffer(64 * MiB, { resource: new CudaMemoryResource({ device: other.device }), stream: other });
    for (let i = 0; i < 8; i++) scratch.fill(i);
    buffer.to('host');
    expect(other.query()).toBe(true);
  });

  test.each([0, 1])('resolves once device %i has done everything, for the host', async (index) => {
    if (index === 1) needSecondDevice();
    using other = new Stream({ device: Device.get(index) });
    using buffer = bufferOf(managed);
    stream.synchronizeSync();
    using hold = other.hold();
    let isThere = false;
    const moved = buffer.toAsync('host').then(() => {
      isThere = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(isThere).toBe(false);
    hold.release();
    await moved;
    expect(other.query()).toBe(true);
    expectNumbers(contents(buffer));
  });
});

describe('a pool of managed memory', () => {
  test('gives memory to another stream, of any device, once its users are past', () => {
    needSecondDevice();
    using pool = new PoolMemoryResource(managed, { initialBytes: bytes, maximumBytes: bytes });
    using there = new Stream({ device: Device.get(1) });
    using hold = stream.hold();
    const first = new DeviceBuffer(bytes, { resource: pool, stream });
    const { ptr } = first;
    first.fill(1);
    first.dispose();
    using second = new DeviceBuffer(bytes, { resource: pool, stream: there });
    expect(second.ptr).toBe(ptr);
    second.fill(2);
    expect(there.query()).toBe(false);
    hold.release();
    expect(second.toHostSync().every((value) => value === 2)).toBe(true);
  });

  test('keeps a preferred location for the next buffer, unless it is withdrawn', () => {
    needConcurrentAccess();
    using pool = new PoolMemoryResource(managed, { initialBytes: bytes, maximumBytes: bytes });
    const first = bufferOf(pool);
    const { ptr } = first;
    first.to(device, { preferredLocation: true });
    first.dispose();
    using second = bufferOf(pool);
    expect(second.ptr).toBe(ptr);
    expect(managedRangeAttributes(ptr, bytes).preferredLocation).toBe(0);
    advise(ptr, bytes, 'unset-preferred-location');
    expect(managedRangeAttributes(ptr, bytes).preferredLocation).toBeUndefined();
  });

  test('moves memory to the device as it hands it out, if that is asked for', () => {
    needConcurrentAccess();
    using pool = new PoolMemoryResource(managed);
    using resource = new PrefetchResourceAdaptor(pool);
    using buffer = new DeviceBuffer(bytes, { resource, stream });
    stream.synchronizeSync();
    expectAt(buffer, device);
    expect(managedRangeAttributes(buffer.ptr, bytes).lastPrefetchLocation).toBe(0);
  });

  test('of the driver, serves buffers that move and have views, or is refused with a typed error', () => {
    needConcurrentAccess();
    const make = () => new ManagedAsyncMemoryResource();
    if (currentBackend() !== 'software') {
      try {
        make().dispose();
      } catch (error) {
        expect(error).toBeInstanceOf(UnsupportedError);
        skipTest('the driver has no pools of managed memory');
      }
    }
    using resource = make();
    using buffer = bufferOf(resource);
    buffer.to('host');
    expectNumbers(buffer.hostView(Float32Array));
    buffer.to(device);
    stream.synchronizeSync();
    expectAt(buffer, device);
    buffer.recast(plain);
    expectNumbers(contents(buffer));
    expect(resource.usage().usedBytes).toBe(0);
  });
});
