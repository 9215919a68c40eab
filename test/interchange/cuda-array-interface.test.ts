import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ArgumentRangeError, ArgumentTypeError, DriverError, LifetimeError, UnsupportedError } from '../../src/basics/errors.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Event } from '../../src/driver/streams/event.js';
import { Stream } from '../../src/driver/streams/stream.js';
import type { CudaArrayInterface } from '../../src/interchange/cuda-array-interface.js';
import { fromCudaArrayInterface, toCudaArrayInterface } from '../../src/interchange/index.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import { shareBuffer } from '../../src/workers/index.js';

let resource: CudaAsyncMemoryResource;
let stream: Stream;
let buffer: DeviceBuffer;
let watched: number;

const ramp = (length: number) => Uint8Array.from({ length }, (_, i) => i);

beforeEach(() => {
  watched = watchedBuffers().count;
  resource = new CudaAsyncMemoryResource();
  stream = new Stream({ nonBlocking: true });
  buffer = new DeviceBuffer(ramp(96), { resource, stream });
});

afterEach(() => {
  buffer.dispose();
  Device.get().synchronizeSync();
  expect(watchedBuffers().count, 'buffers that a test left behind').toBe(watched);
  stream.dispose();
  resource.dispose();
});

describe('toCudaArrayInterface', () => {
  it('describes an array without gaps', () => {
    const { ptr } = buffer;
    expect(toCudaArrayInterface(buffer, { shape: [2, 3], typestr: '<f8' })).toEqual({
      shape: [2, 3],
      typestr: '<f8',
      data: [ptr, false],
      strides: null,
      stream: stream.nativeHandle,
      version: 3,
    });
    const described = toCudaArrayInterface(buffer, { shape: [], typestr: '|u1', byteOffset: 95, readOnly: true, stream: null });
    expect(described).toMatchObject({ shape: [], data: [ptr + 95, true], strides: null, stream: null });
    expect(toCudaArrayInterface(buffer, { shape: [2, 3], typestr: '<f8', strides: [24, 8] }).strides).toBeNull();
    expect(toCudaArrayInterface(buffer, { shape: [4, 0], typestr: '<f8', byteOffset: 96 })).toMatchObject({ data: [0, false] });
  });

  it('describes one with gaps, or with its dimensions in another order', () => {
    expect(toCudaArrayInterface(buffer, { shape: [2, 3], typestr: '<f8', strides: [8, 16] }).strides).toEqual([8, 16]);
    expect(toCudaArrayInterface(buffer, { shape: [3], typestr: '<f4', strides: [40] }).strides).toEqual([40]);
    expect(toCudaArrayInterface(buffer, { shape: [1000], typestr: '<f4', strides: [0] }).strides).toEqual([0]);
  });

  it('names the default streams as the interface does', () => {
    for (const [of, handle] of [
      [Stream.legacyDefault(), 1],
      [Stream.perThreadDefault(), 2],
    ] as const) {
      using other = new DeviceBuffer(4, { resource, stream: of });
      expect(toCudaArrayInterface(other, { shape: [1], typestr: '<f4' }).stream).toBe(handle);
    }
  });

  it('refuses what is no array, or lies outside the buffer', () => {
    const right = { shape: [4], typestr: '<f4' };
    const wrong: [object, new (...args: never[]) => Error][] = [
      [{ shape: undefined }, ArgumentTypeError],
      [{ shape: 4 }, ArgumentTypeError],
      [{ shape: ['4'] }, ArgumentTypeError],
      [{ shape: [4n] }, ArgumentTypeError],
      [{ shape: [Number.NaN] }, ArgumentRangeError],
      [{ shape: [-1] }, ArgumentRangeError],
      [{ shape: [0.5] }, ArgumentRangeError],
      [{ shape: [25] }, ArgumentRangeError],
      [{ shape: [2 ** 27, 2 ** 27] }, ArgumentRangeError],
      [{ shape: new Array(64).fill(2 ** 52) }, ArgumentRangeError],
      [{ shape: [...new Array(40).fill(2 ** 52), 0] }, ArgumentRangeError],
      [{ shape: new Array(65).fill(1) }, ArgumentRangeError],
      [{ typestr: 4 }, ArgumentTypeError],
      [{ typestr: 'f4' }, ArgumentRangeError],
      [{ typestr: '<f' }, ArgumentRangeError],
      [{ typestr: '<f0' }, ArgumentRangeError],
      [{ typestr: '<O8' }, ArgumentRangeError],
      [{ strides: [4, 4] }, ArgumentRangeError],
      [{ strides: [-4] }, ArgumentRangeError],
      [{ strides: [Number.NaN] }, ArgumentRangeError],
      [{ strides: [32] }, ArgumentRangeError],
      [{ strides: [2 ** 52] }, ArgumentRangeError],
      [{ strides: 4 }, ArgumentTypeError],
      [{ byteOffset: 81 }, ArgumentRangeError],
      [{ byteOffset: 97, shape: [0] }, ArgumentRangeError],
      [{ byteOffset: -1 }, ArgumentRangeError],
      [{ readOnly: 1 }, ArgumentTypeError],
      [{ stream: 1 }, ArgumentRangeError],
    ];
    for (const [change, type] of wrong) {
      expect(() => toCudaArrayInterface(buffer, { ...right, ...change } as never), JSON.stringify(Object.keys(change))).toThrow(type);
    }
    const gone = new DeviceBuffer(16, { resource, stream });
    gone.dispose();
    expect(() => toCudaArrayInterface(gone, right)).toThrow(LifetimeError);
  });
});

describe('toCudaArrayInterface of special arrays', () => {
  it('says that a shared buffer must not be written', () => {
    shareBuffer(buffer);
    const array = { shape: [4], typestr: '<f4' };
    for (const options of [array, { ...array, readOnly: undefined }, { ...array, readOnly: true }]) {
      expect(toCudaArrayInterface(buffer, options as never).data[1]).toBe(true);
    }
    expect(() => toCudaArrayInterface(buffer, { ...array, readOnly: false })).toThrow(
      'cannot describe a buffer as writable: it is shared, so other workers may be reading it',
    );
  });

  it('takes times with a unit, and no other units', () => {
    for (const typestr of ['<M8[ns]', '<m8[us]', '>m8[25s]', '<M8[D]', '<M8']) {
      expect(toCudaArrayInterface(buffer, { shape: [2], typestr }).typestr).toBe(typestr);
    }
    for (const typestr of ['<f8[ns]', '<M8[]', '<M8[ns', '<M8[nsx]', '<M8ns']) {
      expect(() => toCudaArrayInterface(buffer, { shape: [2], typestr }), typestr).toThrow(ArgumentRangeError);
    }
  });

  it('refuses dimensions that are too large beside a 0, and names them', () => {
    for (const shape of [
      [2 ** 52, 2 ** 52, 0],
      [0, ...new Array(40).fill(2 ** 52)],
    ]) {
      expect(() => toCudaArrayInterface(buffer, { shape, typestr: '<f4' })).toThrow(/shape must have at most 2\^53 - 1 bytes, got \[/);
    }
    expect(toCudaArrayInterface(buffer, { shape: [2 ** 40, 0], typestr: '<f4' }).strides).toBeNull();
  });
});

describe('fromCudaArrayInterface', () => {
  it('borrows the memory from the first element to the last', () => {
    const array = toCudaArrayInterface(buffer, { shape: [2, 2], typestr: '|u1', byteOffset: 8, strides: [16, 4] });
    for (const source of [
      array,
      { __cuda_array_interface__: array },
      { ...array, strides: [16, 4], data: [BigInt(buffer.ptr) + 8n, true] },
    ]) {
      using view = fromCudaArrayInterface(source as CudaArrayInterface, { stream, label: 'array' });
      expect([view.ptr, view.byteLength, view.label]).toEqual([buffer.ptr + 8, 21, 'array']);
      expect(view.toHostSync()).toEqual(ramp(29).subarray(8));
    }
    expect(buffer.toHostSync()).toEqual(ramp(96));
  });

  it('makes its stream wait for the array’s', () => {
    using other = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    buffer.fill(7);
    const array = toCudaArrayInterface(buffer, { shape: [96], typestr: '|u1' });
    using view = fromCudaArrayInterface(array, { stream: other });
    expect(other.query()).toBe(false);
    hold.release();
    expect(view.toHostSync()).toEqual(new Uint8Array(96).fill(7));
    stream.wait(recorded(other));
  });

  it('waits for the default streams, and for nothing if no stream is named', () => {
    using other = new Stream({ nonBlocking: true });
    const array = toCudaArrayInterface(buffer, { shape: [96], typestr: '|u1' });
    for (const [handle, producer] of [
      [1, Stream.legacyDefault()],
      [2n, Stream.perThreadDefault()],
    ] as const) {
      using hold = producer.hold();
      using view = fromCudaArrayInterface({ ...array, stream: handle }, { stream: other });
      expect(other.query()).toBe(false);
      hold.release();
      other.synchronizeSync();
      expect(view.byteLength).toBe(96);
    }
    using hold = stream.hold();
    for (const none of [null, undefined]) {
      using view = fromCudaArrayInterface({ ...array, stream: none as null }, { stream: other });
      expect([other.query(), view.byteLength]).toEqual([true, 96]);
    }
    hold.release();
  });

  it('takes an empty array, which has no address', () => {
    using view = fromCudaArrayInterface({ shape: [0, 4], typestr: '<f4', data: [0, false], version: 3 }, { stream });
    expect([view.ptr, view.byteLength]).toEqual([0, 0]);
  });

  it('refuses what describes no array', () => {
    const right = toCudaArrayInterface(buffer, { shape: [4], typestr: '<f4' });
    const wrong: [object, new (...args: never[]) => Error][] = [
      [{ shape: undefined }, ArgumentTypeError],
      [{ shape: [Number.NaN] }, ArgumentRangeError],
      [{ typestr: undefined }, ArgumentTypeError],
      [{ strides: [-4] }, ArgumentRangeError],
      [{ strides: [] }, ArgumentRangeError],
      [{ strides: [2 ** 53 - 1] }, ArgumentRangeError],
      [{ data: undefined }, ArgumentTypeError],
      [{ data: [buffer.ptr] }, ArgumentTypeError],
      [{ data: ['1', false] }, ArgumentTypeError],
      [{ data: [Number.NaN, false] }, ArgumentRangeError],
      [{ data: [0, false] }, ArgumentRangeError],
      [{ data: [4096, false] }, ArgumentRangeError],
      [{ version: undefined }, ArgumentTypeError],
      [{ version: 4 }, UnsupportedError],
      [{ version: Number.NaN }, UnsupportedError],
      [{ mask: {} }, UnsupportedError],
      [{ stream: 0 }, ArgumentRangeError],
      [{ stream: -1 }, ArgumentRangeError],
      [{ stream: 'x' }, ArgumentTypeError],
    ];
    for (const [change, type] of wrong) {
      const array = { ...right, ...change } as CudaArrayInterface;
      expect(() => fromCudaArrayInterface(array, { stream }), Object.keys(change).join()).toThrow(type);
    }
    for (const none of [undefined, null, 1, { __cuda_array_interface__: null }] as never[]) {
      expect(() => fromCudaArrayInterface(none, { stream })).toThrow(ArgumentTypeError);
    }
    expect(() => fromCudaArrayInterface(right, {} as never)).toThrow(ArgumentTypeError);
  });

  it('leaves nothing behind if the driver refuses the wait', () => {
    using other = new Stream({ nonBlocking: true });
    const array = toCudaArrayInterface(buffer, { shape: [4], typestr: '<f4' });
    failCall('cuStreamWaitEvent', 1);
    expect(() => fromCudaArrayInterface(array, { stream: other })).toThrow(DriverError);
    expect(watchedBuffers().count).toBe(watched + 1);
  });
});

function recorded(on: Stream): Event {
  const event = new Event();
  event.record(on);
  return event;
}
