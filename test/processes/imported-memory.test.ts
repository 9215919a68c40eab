/** What a resource of memory of another process does by itself; `other-processes.test.ts` has the processes. */

import { setTimeout } from 'node:timers/promises';
import { inspect } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { heldMemory } from '../../src/collector/early-collection.js';
import { freeUnreachableBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { interpose, mailbox, NativeStatus } from '../../src/driver/native.js';
import { CudaMemoryResource, Device, DeviceBuffer, type DevicePointer, Event, MiB, Stream } from '../../src/index.js';
import { ImportedMemory } from '../../src/processes/imported-memory.js';
import { openBuffer } from '../../src/processes/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { caught, code } from '../support/errors.js';

const bytes = MiB;
/** How many imports were opened. */
let opened: number;
/** The numbers of the imports that were closed. */
let closed: number[];
/** How many times the driver refuses. */
let refusals: number;
let upstream: CudaMemoryResource;
let stream: Stream;
let pointer: DevicePointer;
let memory: ImportedMemory;

beforeEach(() => {
  opened = 0;
  closed = [];
  refusals = 0;
  upstream = new CudaMemoryResource();
  stream = new Stream();
  pointer = upstream.allocate(bytes, stream);
  memory = new ImportedMemory({ number: 5, pointer, byteLength: bytes, bytes, alignment: 256, device: Device.get() });
  interpose(() => ({
    openImport: () => {
      [NativeStatus.success, 6, pointer, bytes, bytes, 0, 256].forEach((value, i) => {
        mailbox[i] = value;
      });
      opened++;
    },
    closeImport: (number) => {
      if (refusals > 0) {
        refusals--;
        mailbox[0] = 1;
        return;
      }
      closed.push(number);
      mailbox[0] = NativeStatus.success;
    },
  }));
});

afterEach(() => {
  interpose();
  upstream.deallocate(pointer, bytes, stream);
  stream.dispose();
});

test('a buffer of it is not counted as memory of this process, and closes it when it is disposed', () => {
  const held = heldMemory('device', Device.get());
  const { heldBytes } = held;
  const buffer = DeviceBuffer.adopt({ ptr: pointer, byteLength: bytes, resource: memory, stream });
  expect(held.heldBytes).toBe(heldBytes);
  buffer.fill(1);
  stream.synchronizeSync();
  expect(closed).toEqual([]);
  buffer.dispose();
  expect(closed).toEqual([5]);
});

describe('a buffer is opened', () => {
  const handle = new Uint8Array(56);

  test('on a stream, and earlier events of the stream do not cover it', () => {
    using event = new Event();
    event.record(stream);
    expect(stream.identity.receivedAt).toBeLessThan(event.version);
    const buffer = openBuffer(handle, { stream });
    expect(stream.identity.receivedAt).toBe(event.version);
    expect(buffer).toMatchObject({ ptr: pointer, byteLength: bytes, stream });
    stream.synchronizeSync();
    buffer.dispose();
    expect(closed).toEqual([6]);
  });

  test.each([
    undefined,
    null,
    'handle',
    { type: 'Buffer' },
    { data: [1] },
    { type: 'Other', data: [...handle] },
    { type: 'Buffer', data: [1n] },
  ])('with bytes only: %o', (value) => {
    expect(caught<Error>(() => openBuffer(value as never, { stream }))).toMatchObject({
      code: 'ERR_INVALID_ARG_TYPE',
      message: expect.stringMatching(/^handle must be the bytes that export of a buffer returned, got /),
    });
    expect(opened).toBe(0);
  });

  test.each([
    ['ERR_INVALID_ARG_TYPE', () => ({})],
    ['ERR_INVALID_ARG_TYPE', () => ({ stream, label: 7 })],
    ['ERR_INVALID_ARG_VALUE', () => ({ stream, maxBites: 1 })],
    [
      'ERR_CISTERN_DISPOSED',
      () => {
        const ended = new Stream();
        ended.dispose();
        return { stream: ended };
      },
    ],
  ])('with valid options only: %s', (expected, options) => {
    expect(caught(() => openBuffer(handle, options() as never))).toEqual(code(expected));
    expect(opened).toBe(0);
  });
});

describe('its memory is unmapped', () => {
  const looks = () => setTimeout(150);

  test('once the work of the freeing stream has run', async () => {
    const hold = stream.hold();
    memory.deallocate(pointer, bytes, stream);
    await looks();
    expect(closed).toEqual([]);
    refusals = 2;
    hold.release();
    while (closed.length === 0) await setTimeout(1);
    await looks();
    expect(closed).toEqual([5]);
  });

  test('later, if it cannot be now', async () => {
    refusals = 3;
    memory.deallocate(pointer, bytes, stream);
    expect(closed).toEqual([]);
    while (closed.length === 0) await setTimeout(1);
  });

  test('never if the device is in error', async () => {
    const hold = stream.hold();
    memory.deallocate(pointer, bytes, stream);
    failCall('cuEventQuery', 1, 700);
    expect(freeUnreachableBuffers()).toBe(0);
    hold.release();
    await looks();
    expect(closed).toEqual([]);
  });
});

test('it frees nothing but its memory, once', () => {
  memory.deallocate(0, bytes, stream);
  expect(caught(() => memory.deallocate(1, bytes, stream))).toEqual(code('ERR_CISTERN_FOREIGN_POINTER'));
  expect(caught(() => memory.deallocate(pointer, bytes - 1, stream))).toEqual(code('ERR_CISTERN_WRONG_SIZE'));
  expect(caught(() => memory.deallocate(pointer, bytes, {} as Stream))).toEqual(code('ERR_INVALID_ARG_TYPE'));
  expect(closed).toEqual([]);
  memory.deallocate(pointer, bytes, stream);
  expect(caught(() => memory.deallocate(pointer, bytes, stream))).toEqual(code('ERR_CISTERN_DOUBLE_FREE'));
  expect(closed).toEqual([5]);
});

test('it cannot allocate, is equal to itself only, and shows what it is', () => {
  expect(caught(() => memory.allocate(256))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
  expect(memory.isEqual(memory)).toBe(true);
  expect(memory.isEqual(upstream)).toBe(false);
  expect(inspect(memory)).toBe("ImportedMemory { device: 0, memoryKind: 'device' }");
});
