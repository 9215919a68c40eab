import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CudaMemoryResource,
  currentBackend,
  Device,
  DeviceBuffer,
  KiB,
  MiB,
  OutOfMemoryError,
  PinnedAsyncMemoryResource,
  pointerInfo,
  Stream,
  UnsupportedError,
} from '../../src/index.js';
import { SpillableBuffer, SpillingResourceAdaptor } from '../../src/serving/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { skipTest } from '../support/skip-test.js';

const device = Device.get();
let stream: Stream;

beforeEach(() => {
  try {
    new PinnedAsyncMemoryResource().dispose();
  } catch (error) {
    expect(error).toBeInstanceOf(UnsupportedError);
    if (currentBackend() === 'software') throw error;
    skipTest('the driver has no pools of pinned host memory');
  }
  stream = new Stream();
});

afterEach(() => {
  stream?.dispose();
});

describe('PinnedAsyncMemoryResource', () => {
  test('has pinned host memory, which streams copy to and from in their order', async () => {
    using resource = new PinnedAsyncMemoryResource();
    expect(resource.memoryKind).toBe('pinned-host');
    using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource, stream });
    expect(pointerInfo(buffer.ptr)?.memoryKind).toBe('pinned-host');
    using copy = new DeviceBuffer(buffer, { stream });
    expect([...(await copy.toHost())]).toEqual([1, 2, 3]);
  });

  test('gives the host an array over its memory', () => {
    using resource = new PinnedAsyncMemoryResource();
    using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource, stream });
    const view = buffer.hostView(Uint8Array);
    view[0] = 9;
    expect([...buffer.toHostSync()]).toEqual([9, 2, 3]);
  });

  test('does not wait for the stream in a free, and reuses the memory in its order', () => {
    using resource = new PinnedAsyncMemoryResource();
    const hold = stream.hold();
    const pointer = resource.allocate(64 * KiB, stream);
    resource.deallocate(pointer, 64 * KiB, stream);
    expect(resource.allocate(64 * KiB, stream)).toBe(pointer);
    hold.release();
    resource.deallocate(pointer, 64 * KiB, stream);
  });

  test('serves streams of every device', () => {
    if (Device.count() < 2) skipTest('there is one device');
    using resource = new PinnedAsyncMemoryResource();
    using other = new Stream({ device: Device.get(1) });
    using buffer = new DeviceBuffer(Uint8Array.of(7), { resource, stream: other });
    expect([...buffer.toHostSync()]).toEqual([7]);
  });

  test('takes the memory of a NUMA node', () => {
    using resource = new PinnedAsyncMemoryResource({ numaNode: 0, initialBytes: 64 * KiB });
    expect(resource.reservedBytes).toBeGreaterThanOrEqual(64 * KiB);
    expect(() => new PinnedAsyncMemoryResource({ numaNode: 4711 })).toThrow(
      new UnsupportedError(
        'the driver does not support pools of pinned host memory at NUMA node 4711, which need CUDA 12.6 or newer: name a node that the machine has, or leave it out',
      ),
    );
  });

  test.each([-1, 0.5, Number.NaN, 2 ** 31])('refuses %d as a NUMA node', (numaNode) => {
    expect(() => new PinnedAsyncMemoryResource({ numaNode })).toThrow(ArgumentRangeError);
  });

  test('refuses a NUMA node that is no number', () => {
    expect(() => new PinnedAsyncMemoryResource({ numaNode: '0' as never })).toThrow(ArgumentTypeError);
  });

  test('holds no more than its maximum', () => {
    using resource = new PinnedAsyncMemoryResource({ maximumBytes: 64 * MiB });
    expect(() => resource.allocate(65 * MiB, stream)).toThrow(OutOfMemoryError);
    expect(() => new PinnedAsyncMemoryResource({ maximumBytes: 1, initialBytes: 2 })).toThrow(ArgumentRangeError);
  });

  test('is no memory of the device', () => {
    if (currentBackend() !== 'software') skipTest('others may allocate on a GPU');
    const before = device.memoryInfo().freeBytes;
    using resource = new PinnedAsyncMemoryResource({ initialBytes: 64 * MiB });
    expect(device.memoryInfo().freeBytes).toBe(before);
    expect(resource.reservedBytes).toBeGreaterThanOrEqual(64 * MiB);
  });

  test('is where spilled buffers go', async () => {
    using host = new PinnedAsyncMemoryResource();
    using resource = new SpillingResourceAdaptor(new CudaMemoryResource(), host);
    using buffer = new SpillableBuffer(Uint8Array.of(1, 2, 3), { stream, resource });
    expect(resource.spill()).toBe(3);
    using pin = await buffer.pin();
    expect([...(await pin.toHost())]).toEqual([1, 2, 3]);
  });

  test.each([1, 801])('says what a driver lacks that answers %d', (status) => {
    if (currentBackend() !== 'software') skipTest('only the software device fails on demand');
    failCall('cuMemPoolCreate', 1, status);
    expect(() => new PinnedAsyncMemoryResource()).toThrow(
      new UnsupportedError(
        'the driver does not support pools of pinned host memory, which need CUDA 12.6 or newer: use a pool over PinnedHostMemoryResource',
      ),
    );
  });
});
