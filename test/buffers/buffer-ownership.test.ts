import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { ArgumentRangeError, ArgumentTypeError, DriverError, LifetimeError } from '../../src/basics/errors.js';
import { MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import type { HostData } from '../../src/buffers/transfers/buffer-contents.js';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Event } from '../../src/driver/streams/event.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { fromDLPack } from '../../src/interchange/from-dlpack.js';
import { toDLPack, wrapMemory } from '../../src/interchange/index.js';
import type { DeallocationFence, MemoryResource } from '../../src/memory-resource.js';
import { CallbackMemoryResource } from '../../src/resources/callback-memory-resource.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { ManagedMemoryResource } from '../../src/resources/managed-memory-resource.js';
import { driverCallCounts } from '../../src/tools/testing/driver-call-counts.js';
import { detachBuffer, discardBuffer, shareBuffer } from '../../src/workers/index.js';
import { code } from '../support/errors.js';
import { policies } from '../support/stream-order.js';

let stream: Stream;
let resource: CudaAsyncMemoryResource;
let watched: number;

beforeEach(() => {
  watched = watchedBuffers().count;
  stream = new Stream();
  resource = new CudaAsyncMemoryResource();
});

afterEach(() => {
  Device.get().synchronizeSync();
  expect(resource.usage().usedBytes, 'bytes that a test left behind').toBe(0);
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(watched);
  stream.dispose();
  resource.dispose();
});

/** Part of ES2024; the sources are compiled for an older library. */
type ResizableArrayBuffer = ArrayBuffer & { resize(byteLength: number): void };

function resizable(byteLength: number): ResizableArrayBuffer {
  return Reflect.construct(ArrayBuffer, [byteLength, { maxByteLength: byteLength }]);
}

const ramp = (length: number) => Uint8Array.from({ length }, (_, i) => i);

describe('toHost with an array', () => {
  it('fills it in the order of the stream', async () => {
    using buffer = new DeviceBuffer(ramp(16), { resource, stream });
    const target = new Uint16Array(4);
    const filled = buffer.toHost(target, { byteOffset: 8 });
    buffer.fill(0xff);
    expect(await filled).toBe(target);
    expect(new Uint8Array(target.buffer)).toEqual(ramp(16).subarray(8));
    expect(await buffer.toHost(new Uint8Array(0))).toEqual(new Uint8Array(0));
  });

  it('refuses an array that is too long, or is transferred before or meanwhile', async () => {
    using buffer = new DeviceBuffer(ramp(16), { resource, stream });
    await expect(buffer.toHost(new Uint8Array(17))).rejects.toThrow(ArgumentRangeError);
    await expect(buffer.toHost(new Uint8Array(9), { byteOffset: 8 })).rejects.toThrow(ArgumentRangeError);
    const array = new Uint8Array(16);
    const copy = buffer.toHost(array);
    structuredClone(array.buffer, { transfer: [array.buffer] });
    await expect(copy).rejects.toMatchObject({ name: 'RangeError', code: 'ERR_INVALID_ARG_VALUE' });
    await expect(buffer.toHost(array)).rejects.toThrow(ArgumentTypeError);
    const view = new DataView(array.buffer.slice === undefined ? array.buffer : new ArrayBuffer(4));
    structuredClone(view.buffer, { transfer: [view.buffer] });
    for (const gone of [array, view]) {
      expect(() => buffer.toHostSync(gone)).toThrow(ArgumentTypeError);
      expect(() => buffer.copyFrom(gone)).toThrow(ArgumentTypeError);
    }
  });
});

it('arrays and buffers are not ranges', async () => {
  using buffer = new DeviceBuffer(ramp(16), { resource, stream });
  for (const wrong of [new ArrayBuffer(4), new SharedArrayBuffer(4), buffer] as never[]) {
    await expect(buffer.toHost(wrong)).rejects.toThrow(ArgumentTypeError);
  }
  for (const wrong of [new Uint8Array(4), new DataView(new ArrayBuffer(4)), new ArrayBuffer(4), buffer] as never[]) {
    expect(() => buffer.fill(0, wrong)).toThrow(ArgumentTypeError);
    expect(() => buffer.copyFrom(ramp(1), wrong)).toThrow(ArgumentTypeError);
    expect(() => buffer.toHostSync(new Uint8Array(1), wrong)).toThrow(ArgumentTypeError);
    await expect(buffer.toHost(new Uint8Array(1), wrong)).rejects.toThrow(ArgumentTypeError);
  }
  expect(buffer.toHostSync()).toEqual(ramp(16));
});

describe('a copy of device memory', () => {
  it('runs from a buffer, after what is queued on either stream', () => {
    using other = new Stream({ nonBlocking: true });
    using source = new DeviceBuffer(16, { resource, stream: other });
    using hold = other.hold();
    source.copyFrom(ramp(16));
    using copy = new DeviceBuffer(source, { resource, stream });
    source.fill(0);
    hold.release();
    expect(copy.toHostSync()).toEqual(ramp(16));
    other.synchronizeSync();
  });

  it('runs from an address, in the order of the stream', () => {
    using source = new DeviceBuffer(ramp(16), { resource, stream });
    using copy = new DeviceBuffer({ ptr: source.ptr + 4, byteLength: 8 }, { resource, stream, capacityBytes: 16 });
    expect(copy.toHostSync()).toEqual(ramp(12).subarray(4));
    copy.copyFrom({ ptr: source.ptr, byteLength: 16 }, { sourceByteOffset: 14, byteLength: 2 });
    expect([...copy.toHostSync().subarray(0, 2)]).toEqual([14, 15]);
    expect(() => copy.copyFrom({ ptr: copy.ptr + 1, byteLength: 4 })).toThrow(ArgumentRangeError);
  });

  it('is refused for anything that is not memory, or is disposed', () => {
    const make = (source: object) => new DeviceBuffer(source as DeviceBuffer, { resource, stream });
    const gone = new DeviceBuffer(16, { resource, stream });
    gone.dispose();
    expect(() => make(gone)).toThrow(LifetimeError);
    expect(() => make({ ptr: 'x', byteLength: 1 })).toThrow(ArgumentTypeError);
    expect(() => make({ ptr: 256 })).toThrow(ArgumentTypeError);
    expect(() => make({ byteLength: 1 })).toThrow(ArgumentTypeError);
    expect(() => make({ ptr: 256, byteLength: 1 })).toThrow(DriverError);
  });
});

describe('release and adopt', () => {
  it('move memory from buffer to buffer, with its contents', () => {
    const first = new DeviceBuffer(ramp(16), { resource, stream, capacityBytes: 1024 });
    const { ptr } = first;
    const allocation = first.release();
    expect(allocation).toEqual({ ptr, byteLength: 16, capacityBytes: 1024, alignment: 256, resource, stream });
    expect(first.isDisposed).toBe(true);
    first.dispose();
    expect(() => first.release()).toThrow(LifetimeError);
    using second = DeviceBuffer.adopt({ ...allocation, label: 'second' });
    expect([second.ptr, second.byteLength, second.capacityBytes, second.label]).toEqual([ptr, 16, 1024, 'second']);
    expect(second.toHostSync()).toEqual(ramp(16));
    second.resize(2048);
    expect(second.toHostSync().subarray(0, 16)).toEqual(ramp(16));
  });

  it('take over what the resource allocated, and leave it for the resource to free', () => {
    const bytes = 4096;
    using buffer = DeviceBuffer.adopt({ ptr: resource.allocate(bytes, stream), byteLength: bytes, resource, stream });
    buffer.fill(1);
    const { ptr, capacityBytes } = buffer.release();
    resource.deallocate(ptr, capacityBytes, stream);
  });

  it('refuse invalid allocations', () => {
    const right = { ptr: 4096, byteLength: 16, resource, stream };
    const wrong: [object, new (...args: never[]) => Error][] = [
      [{ ptr: -1 }, ArgumentRangeError],
      [{ ptr: 0 }, ArgumentRangeError],
      [{ byteLength: 0 }, ArgumentRangeError],
      [{ capacityBytes: 15 }, ArgumentRangeError],
      [{ resource: {} }, ArgumentTypeError],
      [{ stream: undefined }, ArgumentTypeError],
      [{ stream: new Stream({ device: Device.get(1) }) }, ArgumentRangeError],
    ];
    for (const [change, type] of wrong) expect(() => DeviceBuffer.adopt({ ...right, ...change })).toThrow(type);
    expect(() => DeviceBuffer.adopt(null as never)).toThrow(ArgumentTypeError);
    DeviceBuffer.adopt({ ...right, ptr: 0, byteLength: 0 }).dispose();
  });
});

describe('memory that a buffer owns', () => {
  const refusal = code('ERR_CISTERN_INVALID_STATE');
  const adopt = (buffer: DeviceBuffer, from: MemoryResource = buffer.resource) =>
    DeviceBuffer.adopt({ ptr: buffer.ptr, byteLength: buffer.byteLength, resource: from, stream });

  it('is not adopted, whether its buffer has allocated or adopted it, and whatever else is allocated', () => {
    using first = new DeviceBuffer(256, { resource, stream });
    expect(() => adopt(first)).toThrow(refusal);
    expect(() => adopt(first)).toThrow(`cannot adopt 0x${first.ptr.toString(16)}: a buffer owns this memory already`);
    const others = Array.from({ length: 200 }, () => new DeviceBuffer(256, { resource, stream }));
    expect(() => adopt(first)).toThrow(refusal);
    for (const other of others) expect(() => adopt(other)).toThrow(refusal);
    for (const other of others) other.dispose();
    const { ptr, capacityBytes } = first.release();
    using adopted = DeviceBuffer.adopt({ ptr, byteLength: 256, capacityBytes, resource, stream });
    expect(() => adopt(adopted)).toThrow(refusal);
  });

  it('is adopted again once its buffer is disposed and somebody else has it', () => {
    using pool = new PoolMemoryResource(resource);
    const first = DeviceBuffer.adopt({ ptr: pool.allocate(256, stream), byteLength: 256, resource: pool, stream });
    const { ptr } = first;
    first.dispose();
    expect(pool.allocate(256, stream)).toBe(ptr);
    using second = DeviceBuffer.adopt({ ptr, byteLength: 256, resource: pool, stream });
    expect(second.ptr).toBe(ptr);
  });

  it('is not adopted from a resource that is equal, although it is wrapped', () => {
    using cuda = new CudaMemoryResource();
    using equal = new CudaMemoryResource();
    using buffer = new DeviceBuffer(256, { resource: cuda, stream });
    using _view = wrapMemory({ ptr: buffer.ptr, byteLength: 256, stream });
    const release = () => {};
    const { ptr } = buffer;
    const borrowed = wrapMemory({ ptr, byteLength: 256, stream, release });
    expect(() => adopt(buffer, equal)).toThrow(refusal);
    borrowed.dispose();
    expect(() => adopt(buffer, equal)).toThrow(refusal);
  });

  it('is not adopted while another worker, or the consumer of a tensor, has it', async () => {
    const given = new DeviceBuffer(256, { resource, stream });
    const again = { ptr: given.ptr, byteLength: 256, resource, stream };
    const message = detachBuffer(given);
    expect(() => DeviceBuffer.adopt(again)).toThrow(refusal);
    discardBuffer(message);
    const shared = new DeviceBuffer(256, { resource, stream });
    shareBuffer(shared);
    expect(() => adopt(shared, resource)).toThrow(refusal);
    shared.dispose();
    const exported = new DeviceBuffer(256, { resource, stream });
    const kept = { ...again, ptr: exported.ptr };
    const { buffer: tensor } = fromDLPack(toDLPack(exported, { shape: [256], dtype: 'uint8', stream }), { stream });
    exported.dispose();
    expect(() => DeviceBuffer.adopt(kept)).toThrow(refusal);
    tensor.dispose();
    await expect.poll(() => resource.usage().usedBytes).toBe(0);
  });

  it('may begin where that of a resource above begins', () => {
    using buffer = new DeviceBuffer(1024, { resource, stream });
    const within = new CallbackMemoryResource(
      () => buffer.ptr,
      () => {},
    );
    using part = DeviceBuffer.adopt({ ptr: within.allocate(256, stream), byteLength: 256, resource: within, stream });
    expect(part.ptr).toBe(buffer.ptr);
    expect(() => adopt(part)).toThrow(refusal);
    expect(() => adopt(buffer)).toThrow(refusal);
  });
});

describe('fences', () => {
  it('reach the resource', () => {
    const fences: unknown[] = [];
    const noting: MemoryResource = {
      memoryKind: 'device',
      device: resource.device,
      allocate: (bytes, on, alignment) => resource.allocate(bytes, on, alignment),
      deallocate: (pointer, bytes, on, fence?: DeallocationFence) => {
        fences.push(fence);
        resource.deallocate(pointer, bytes, on);
      },
      isEqual: (other) => other === noting,
      [Symbol.dispose]() {},
    };
    using event = new Event();
    const make = () => new DeviceBuffer(16, { resource: noting, stream });
    const buffer = make();
    buffer.resize(32, 'off');
    buffer.reserve(64, 'deferred');
    buffer.shrinkToFit('eager');
    event.record(stream);
    buffer.dispose(event);
    make().dispose('off');
    make().dispose();
    expect(fences).toEqual(['off', 'deferred', 'eager', event, 'off', undefined]);
  });

  it('that are invalid are refused, and the buffer stays', () => {
    using event = new Event();
    using buffer = new DeviceBuffer(16, { resource, stream });
    expect(() => buffer.dispose('soon' as never)).toThrow(ArgumentRangeError);
    expect(() => buffer.dispose(event)).toThrow(ArgumentRangeError);
    event.record(stream);
    expect(() => buffer.resize(32, event as never)).toThrow(ArgumentRangeError);
    expect([buffer.isDisposed, buffer.capacityBytes]).toEqual([false, 16]);
  });

  it('save an event for each buffer', () => {
    using pool = new PoolMemoryResource(resource, { initialBytes: 1 * MiB });
    using event = new Event();
    const buffers = Array.from({ length: 10 }, () => new DeviceBuffer(256, { resource: pool, stream }));
    const before = driverCallCounts().eventRecords;
    event.record(stream);
    for (const buffer of buffers) buffer.dispose(event);
    expect(driverCallCounts().eventRecords - before).toBe(1);
  });
});

describe('the stream of another device', () => {
  it('is refused if it cannot free the memory, which stays', () => {
    using other = new Stream({ device: Device.get(1) });
    using pool = new PoolMemoryResource(resource);
    for (const each of [resource, pool, new CudaMemoryResource()]) {
      using buffer = new DeviceBuffer(16, { resource: each, stream });
      expect(() => buffer.setStream(other)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
      expect(buffer.stream).toBe(stream);
      expect(() => new DeviceBuffer(16, { resource: each, stream: other })).toThrow(ArgumentRangeError);
    }
  });

  it('is accepted if every device can access the memory', () => {
    using other = new Stream({ device: Device.get(1) });
    const managed = new ManagedMemoryResource();
    const before = managed.reservedBytes;
    const buffer = new DeviceBuffer(ramp(16), { resource: managed, stream });
    stream.synchronizeSync();
    buffer.setStream(other);
    expect(buffer.toHostSync()).toEqual(ramp(16));
    buffer.dispose();
    expect(managed.reservedBytes).toBe(before);
  });
});

describe.each(policies)('a pool of managed memory with %s events', (deallocationEvents) => {
  it('serves the streams of two devices, in order', () => {
    using managed = new ManagedMemoryResource();
    const before = managed.reservedBytes;
    using first = new Stream({ nonBlocking: true });
    using second = new Stream({ device: Device.get(1), nonBlocking: true });
    const pool = new PoolMemoryResource(managed, { initialBytes: 4096, maximumBytes: 4096, deallocationEvents });
    for (const [from, to] of [
      [first, second],
      [second, first],
    ] as const) {
      const source = new DeviceBuffer(4096, { resource: pool, stream: from });
      source.fill(1);
      const hold = from.hold();
      source.fill(2);
      const { ptr } = source;
      source.dispose();
      if (deallocationEvents === 'off') hold.release();
      const target = new DeviceBuffer(4096, { resource: pool, stream: to });
      target.fill(3);
      expect(target.ptr).toBe(ptr);
      hold.release();
      from.synchronizeSync();
      expect(target.toHostSync().every((byte) => byte === 3)).toBe(true);
      target.dispose();
    }
    pool.validate();
    pool.dispose();
    expect(managed.reservedBytes).toBe(before);
  });
});

it('plain memory freed on the stream of another device is freed after the work of that stream', () => {
  const managed = new ManagedMemoryResource();
  using other = new Stream({ device: Device.get(1), nonBlocking: true });
  let ran = false;
  const pointer = managed.allocate(4096, other);
  other.launchHostFunction(() => {
    ran = true;
  });
  managed.deallocate(pointer, 4096, other);
  expect(ran).toBe(true);
});

describe('a buffer that is changed while its resource looks for memory', () => {
  let meanwhile: (() => void) | undefined;
  const changing = () =>
    new CallbackMemoryResource(
      (bytes, on) => {
        const act = meanwhile;
        meanwhile = undefined;
        act?.();
        return resource.allocate(bytes, on);
      },
      (pointer, bytes, on) => resource.deallocate(pointer, bytes, on),
    );

  it.each<[string, (buffer: DeviceBuffer) => void, (buffer: DeviceBuffer) => void]>([
    ['grown within its capacity, is not shrunk below its length', (buffer) => buffer.shrinkToFit(), (buffer) => buffer.resize(1000)],
    ['moved, does not move back', (buffer) => buffer.reserve(2000), (buffer) => buffer.reserve(4000)],
    ['shrunk, is not read beyond its end', (buffer) => buffer.reserve(2000), (buffer) => buffer.shrinkToFit()],
    [
      'put on another stream, is not freed on the old one',
      (buffer) => buffer.reserve(2000),
      (buffer) => buffer.setStream(Stream.legacyDefault()),
    ],
  ])('%s', (_, call, change) => {
    using memory = changing();
    using buffer = new DeviceBuffer(ramp(100), { resource: memory, stream, capacityBytes: 1000 });
    meanwhile = () => change(buffer);
    expect(() => call(buffer)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
    expect(buffer.capacityBytes).toBeGreaterThanOrEqual(buffer.byteLength);
    expect(buffer.toHostSync().subarray(0, 100)).toEqual(ramp(100));
  });

  it.each<[string, () => HostData | DeviceBuffer, (source: never) => void, string]>([
    [
      'a buffer that is shrunk',
      () => new DeviceBuffer(ramp(100), { resource, stream }),
      (source: DeviceBuffer) => {
        source.resize(10);
        source.shrinkToFit();
      },
      'ERR_INVALID_ARG_VALUE',
    ],
    [
      'a buffer that is disposed',
      () => new DeviceBuffer(100, { resource, stream }),
      (source: DeviceBuffer) => source.dispose(),
      'ERR_CISTERN_DISPOSED',
    ],
    [
      'an ArrayBuffer that is shortened',
      () => resizable(100),
      (source: ResizableArrayBuffer) => source.resize(50),
      'ERR_INVALID_ARG_VALUE',
    ],
    [
      'an array that is shortened',
      () => new Uint8Array(resizable(100), 0, 100),
      ({ buffer }: Uint8Array<ResizableArrayBuffer>) => buffer.resize(50),
      'ERR_INVALID_ARG_VALUE',
    ],
    [
      'an array that is transferred',
      () => new Uint8Array(100),
      ({ buffer }: Uint8Array<ArrayBuffer>) => structuredClone(buffer, { transfer: [buffer] }),
      'ERR_INVALID_ARG_VALUE',
    ],
  ])('is not created from %s meanwhile', (_, make, change, expected) => {
    using memory = changing();
    const source = make();
    meanwhile = () => change(source as never);
    expect(() => new DeviceBuffer(source, { resource: memory, stream })).toThrow(expect.objectContaining({ code: expected }));
    if (source instanceof DeviceBuffer) source.dispose();
  });

  it('is created from a buffer that moved meanwhile', () => {
    using memory = changing();
    using source = new DeviceBuffer(ramp(100), { resource, stream });
    meanwhile = () => source.resize(4000);
    using copy = new DeviceBuffer(source, { resource: memory, stream });
    expect(copy.toHostSync()).toEqual(ramp(100));
  });

  it('and released, leaves the memory to the caller', () => {
    using memory = changing();
    const buffer = new DeviceBuffer(ramp(100), { resource: memory, stream });
    let released: ReturnType<DeviceBuffer['release']> | undefined;
    meanwhile = () => {
      released = buffer.release();
    };
    expect(() => buffer.resize(1000)).toThrow(LifetimeError);
    resource.deallocate(released?.ptr as number, 100, stream);
  });
});

it('memory that could not be freed in a host function is freed in the next turn of the event loop', async () => {
  const plain = new CudaMemoryResource();
  const before = plain.reservedBytes;
  const stock: number[] = [];
  const stocking = new CallbackMemoryResource(
    (bytes, on) => stock.pop() ?? plain.allocate(bytes, on),
    (pointer, bytes, on) => plain.deallocate(pointer, bytes, on),
  );
  const buffer = new DeviceBuffer(MiB, { resource: stocking, stream });
  stock.push(plain.allocate(2 * MiB, stream));
  stream.launchHostFunction(() => expect(() => buffer.resize(2 * MiB)).toThrow(DriverError));
  stream.synchronizeSync();
  expect(plain.reservedBytes - before).toBe(3 * MiB);
  await setImmediate();
  await setImmediate();
  expect(plain.reservedBytes - before).toBe(1 * MiB);
  buffer.dispose();
});

it('says at which addresses a copy would overlap', () => {
  using buffer = new DeviceBuffer(ramp(16), { resource, stream });
  const [from, to] = [buffer.ptr + 4, buffer.ptr].map((pointer) => `0x${pointer.toString(16)}`);
  expect(() => buffer.copyFrom({ ptr: buffer.ptr + 4, byteLength: 8 })).toThrow(`got 8 bytes from ${from} to ${to}`);
});

it('checks the policy of a free whose stream has ended, or that has nothing left to free', () => {
  const ended = new Stream();
  const buffer = new DeviceBuffer(100, { resource, stream: ended });
  ended.dispose();
  for (const isDisposed of [false, true]) {
    expect(() => buffer.dispose('nonsense' as never)).toThrow(ArgumentRangeError);
    expect(buffer.isDisposed).toBe(isDisposed);
    buffer.dispose('eager');
  }
});
