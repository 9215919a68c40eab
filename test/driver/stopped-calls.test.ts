import { expect, it } from 'vitest';
import { ArgumentRangeError, DriverError } from '../../src/basics/errors.js';
import { MiB } from '../../src/basics/units.js';
import { copyFromHost, copyIntoHost, copyToHostSync, set } from '../../src/driver/memory/transfer.js';
import { Event } from '../../src/driver/streams/event.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';

// Resizable array buffers, which the types of ES2023 do not know.
interface Resizable extends ArrayBuffer {
  resize(byteLength: number): void;
}
const Resizable = ArrayBuffer as unknown as new (byteLength: number, options: { maxByteLength: number }) => Resizable;

it('a host function that ends the stream does not end the wait for it', () => {
  const stream = new Stream();
  const ran: string[] = [];
  stream.launchHostFunction(() => {
    ran.push('first');
    stream.launchHostFunction(() => ran.push('third'));
    stream.dispose();
  });
  stream.launchHostFunction(() => ran.push('second'));
  stream.synchronizeSync();
  expect(ran.slice(0, 2)).toEqual(['first', 'second']);
  expect(stream.isDisposed).toBe(true);
  stream.device.synchronizeSync();
  expect(ran).toEqual(['first', 'second', 'third']);
});

it('a host function that ends the event does not end the wait for it', () => {
  using stream = new Stream();
  const event = new Event();
  let ran = 0;
  stream.launchHostFunction(() => {
    ran++;
    event.dispose();
  });
  stream.launchHostFunction(() => void ran++);
  event.record(stream);
  event.synchronizeSync();
  expect([ran, event.handle]).toEqual([2, -1]);
});

it('a host function that records the event again does not prolong the wait for it', () => {
  using stream = new Stream();
  using other = new Stream({ nonBlocking: true });
  using event = new Event();
  using hold = other.hold();
  stream.launchHostFunction(() => event.record(other));
  event.record(stream);
  event.synchronizeSync();
  expect(event.query()).toBe(false);
  hold.release();
  event.synchronizeSync();
  expect(event.query()).toBe(true);
});

it('a refused wait in a host function does not restart a copy', () => {
  using resource = new CudaMemoryResource();
  using stream = new Stream();
  const pointer = resource.allocate(4, stream);
  copyFromHost(pointer, Uint8Array.of(1, 2, 3, 4), stream);
  stream.launchHostFunction(() => {
    set(pointer, 9, 1, 4, stream);
    expect(() => stream.synchronizeSync()).toThrow(DriverError);
    expect(() => copyToHostSync(new Uint8Array(4), pointer, stream)).toThrow(DriverError);
  });
  const bytes = new Uint8Array(4);
  copyToHostSync(bytes, pointer, stream);
  expect([...bytes]).toEqual([1, 2, 3, 4]);
  copyToHostSync(bytes, pointer, stream);
  expect([...bytes]).toEqual([9, 9, 9, 9]);
  resource.deallocate(pointer, 4, stream);
});

it('a host function that ends the stream does not end a copy from it', () => {
  using resource = new CudaMemoryResource();
  const stream = new Stream();
  const pointer = resource.allocate(4, stream);
  copyFromHost(pointer, Uint8Array.of(1, 2, 3, 4), stream);
  stream.launchHostFunction(() => stream.dispose());
  const bytes = new Uint8Array(4);
  copyToHostSync(bytes, pointer, stream);
  expect([...bytes]).toEqual([1, 2, 3, 4]);
  resource.deallocate(pointer, 4, Stream.legacyDefault());
});

it.each([
  ['transferred', (array: Uint8Array<ArrayBuffer>) => structuredClone(array.buffer, { transfer: [array.buffer] })],
  ['shortened', (array: Uint8Array<ArrayBuffer>) => (array.buffer as Resizable).resize(100)],
])('a copy to an array that is %s meanwhile is refused, and leaks no memory', (_, shorten) => {
  const length = 8 * MiB;
  const array = () => new Uint8Array(new Resizable(length, { maxByteLength: length }));
  using resource = new CudaMemoryResource();
  using stream = new Stream();
  const pointer = resource.allocate(length, stream);
  const pass = () => {
    const bytes = array();
    stream.launchHostFunction(() => shorten(bytes));
    expect(() => copyToHostSync(bytes, pointer, stream)).toThrow(
      expect.objectContaining({ name: 'RangeError', code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('8388608 bytes') }),
    );
  };
  pass();
  const before = process.memoryUsage().rss;
  for (let i = 0; i < 30; i++) pass();
  expect((process.memoryUsage().rss - before) / MiB).toBeLessThan(100);
  resource.deallocate(pointer, length, stream);
});

it('a view that ends up beyond its shortened memory is refused too', () => {
  using resource = new CudaMemoryResource();
  using stream = new Stream();
  const pointer = resource.allocate(8, stream);
  const view = new DataView(new Resizable(16, { maxByteLength: 16 }), 8, 8);
  stream.launchHostFunction(() => (view.buffer as Resizable).resize(4));
  expect(() => copyToHostSync(view, pointer, stream)).toThrow(ArgumentRangeError);
  resource.deallocate(pointer, 8, stream);
});

it('an asynchronous copy fills an array, unless the array is transferred meanwhile', async () => {
  using resource = new CudaMemoryResource();
  using stream = new Stream();
  const pointer = resource.allocate(4, stream);
  copyFromHost(pointer, Uint8Array.of(1, 2, 3, 4), stream);
  const whole = new Uint8Array(6);
  const part = new DataView(whole.buffer, 1, 4);
  const first = copyIntoHost(part, pointer, stream);
  set(pointer, 9, 1, 4, stream);
  await first;
  expect([...whole]).toEqual([0, 1, 2, 3, 4, 0]);
  const gone = new Uint8Array(4);
  const second = copyIntoHost(gone, pointer, stream);
  structuredClone(gone.buffer, { transfer: [gone.buffer] });
  await expect(second).rejects.toThrow(ArgumentRangeError);
  await expect(copyIntoHost(new Uint8Array(1024), pointer, stream)).rejects.toThrow(DriverError);
  await copyIntoHost(new Uint8Array(0), pointer, stream);
  resource.deallocate(pointer, 4, stream);
});
