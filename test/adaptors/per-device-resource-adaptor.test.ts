import { beforeEach, describe, expect, test } from 'vitest';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  Device,
  DeviceBuffer,
  MiB,
  PerDeviceResourceAdaptor,
  PoolMemoryResource,
  pointerInfo,
  type StatisticsResourceAdaptor,
  Stream,
} from '../../src/index.js';
import { fromDLPack, toDLPack } from '../../src/interchange/index.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import { attachBuffer, detachBuffer, shareBuffer } from '../../src/workers/index.js';
import { needSecondDevice } from '../support/device-memory.js';

const deviceOf = ({ ptr }: DeviceBuffer) => pointerInfo(ptr).device;

let pools: PoolMemoryResource[];
let streams: Stream[];
let resource: PerDeviceResourceAdaptor;

beforeEach(() => {
  needSecondDevice();
  const devices = [Device.get(0), Device.get(1)];
  pools = devices.map((device) => new PoolMemoryResource(new CudaMemoryResource({ device }), { initialBytes: MiB }));
  streams = devices.map((device) => new Stream({ device, nonBlocking: true }));
  resource = new PerDeviceResourceAdaptor(pools);
  return () => {
    for (const stream of streams) stream.dispose();
    for (const pool of pools) pool.dispose();
  };
});

const live = () => pools.map((pool) => pool.statistics().allocatedBytes);

test('takes memory from the resource of the stream, and frees it there', () => {
  const pointers = streams.map((stream) => resource.allocate(256, stream));
  expect(pointers.map((pointer) => pointerInfo(pointer).device)).toEqual([0, 1]);
  expect(live()).toEqual([256, 256]);
  expect(resource.allocate(0, streams[1] as Stream)).toBe(0);
  for (const [i, pointer] of pointers.entries()) resource.deallocate(pointer, 256, streams[i] as Stream);
  expect(live()).toEqual([0, 0]);
  expect(resource.resources).toEqual(pools);
  expect(resource.forDevice(Device.get(1))).toBe(pools[1]);
});

test('frees on the stream of a peer where the memory came from', () => {
  const [near, far] = streams as [Stream, Stream];
  near.device.enablePeerAccess(far.device);
  try {
    const pointer = resource.allocate(256, far);
    resource.deallocate(pointer, 256, near);
    expect(live()).toEqual([0, 0]);
  } finally {
    near.device.disablePeerAccess(far.device);
  }
});

test('keeps memory whose free is refused', () => {
  const pointer = resource.allocate(256, streams[1] as Stream);
  expect(() => resource.deallocate(pointer, 512, streams[1] as Stream)).toThrow('was allocated with');
  resource.deallocate(pointer, 256, streams[1] as Stream);
  expect(live()).toEqual([0, 0]);
});

describe('buffers', () => {
  test('have memory of the device of their stream, and grow there', () => {
    for (const [index, stream] of streams.entries()) {
      using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource, stream });
      expect(deviceOf(buffer)).toBe(index);
      buffer.resize(4096);
      expect(deviceOf(buffer)).toBe(index);
      expect([...buffer.toHostSync().subarray(0, 3)]).toEqual([1, 2, 3]);
      expect(buffer.resource).toBe(resource);
    }
    expect(live()).toEqual([0, 0]);
  });

  test('are refused streams of a device without access to their memory', () => {
    using buffer = new DeviceBuffer(16, { resource, stream: streams[1] as Stream });
    expect(() => buffer.setStream(streams[0] as Stream)).toThrow('stream must belong to device 1, got one of device 0');
  });

  test('go to the other device as copies of the same resource', () => {
    using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource, stream: streams[0] as Stream });
    expect(buffer.to(Device.get(0))).toEqual({ buffer, isCopy: false });
    const { buffer: there, isCopy } = buffer.to(Device.get(1), { resource });
    expect([deviceOf(there), isCopy, there.resource]).toEqual([1, true, resource]);
    expect(there.to(Device.get(1)).isCopy).toBe(false);
    expect([...there.toHostSync()]).toEqual([1, 2, 3]);
    there.dispose();
  });

  test('say which device their memory is on to other libraries and to other workers', () => {
    using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource, stream: streams[1] as Stream });
    const tensor = fromDLPack(toDLPack(buffer, { shape: [3], dtype: 'uint8', stream: streams[1] as Stream }), {
      stream: streams[1] as Stream,
    });
    expect(tensor.buffer.resource.device).toBe(Device.get(1));
    tensor.buffer.dispose();
    using other = new DeviceBuffer(16, { resource, stream: streams[1] as Stream });
    const attached = attachBuffer(detachBuffer(other), { stream: streams[1] as Stream });
    expect(attached.resource.device).toBe(Device.get(1));
    attached.dispose();
    using shared = new DeviceBuffer(16, { resource, stream: streams[1] as Stream });
    shareBuffer(shared);
    expect(shared.resource.device).toBe(Device.get(1));
  });
});

test('refuses what is not a list of resources of different devices', () => {
  expect(() => new PerDeviceResourceAdaptor(pools[0] as never)).toThrow(ArgumentTypeError);
  expect(() => new PerDeviceResourceAdaptor([])).toThrow('resources must have at least one resource, got none');
  expect(() => new PerDeviceResourceAdaptor([pools[0] as PoolMemoryResource, {} as never])).toThrow(ArgumentTypeError);
  expect(() => new PerDeviceResourceAdaptor([...pools, new CudaMemoryResource()])).toThrow(
    'resources must belong to different devices, got two of device 0',
  );
  const [only] = pools as [PoolMemoryResource];
  const one = new PerDeviceResourceAdaptor([only]);
  expect(() => one.allocate(16, streams[1] as Stream)).toThrow('device must have a resource (0), got device 1');
  expect(() => new DeviceBuffer(16, { resource: one, stream: streams[1] as Stream })).toThrow(ArgumentRangeError);
  expect(() => one.allocate(16, undefined as never)).toThrow(ArgumentTypeError);
});

test('ends allocation when it is disposed, and takes frees', () => {
  const pointer = resource.allocate(16, streams[1] as Stream);
  resource.dispose();
  expect(() => resource.allocate(16, streams[1] as Stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  resource.deallocate(pointer, 16, streams[1] as Stream);
});

describe('in a specification', () => {
  test('is made of the same resource for every device', () => {
    using stack = createResourceStack('per-device(statistics(pool(cuda-async, initialBytes=1%)))');
    const { resources } = stack.resource as PerDeviceResourceAdaptor;
    expect(resources.map((each) => [each.constructor.name, each.device.index])).toEqual([
      ['StatisticsResourceAdaptor', 0],
      ['StatisticsResourceAdaptor', 1],
    ]);
    expect(stack.leaves.every((leaf) => leaf instanceof CudaAsyncMemoryResource)).toBe(true);
    using buffer = new DeviceBuffer(4096, { resource: stack.resource, stream: streams[1] as Stream });
    expect(resources.map((each) => (each as StatisticsResourceAdaptor).statistics().bytes.current)).toEqual([0, buffer.byteLength]);
  });

  test('takes JSON, and begins with the device of the stack', () => {
    using stack = createResourceStack({ kind: 'per-device', upstream: { kind: 'cuda' } }, { device: Device.get(1) });
    expect((stack.resource as PerDeviceResourceAdaptor).resources.map(({ device }) => device.index)).toEqual([1, 0]);
  });

  test('leaves nothing behind if it cannot be made for a device', () => {
    const free = () => Device.get(0).memoryInfo().freeBytes;
    const before = free();
    failCall('cuMemAlloc', 2, 1);
    expect(() => createResourceStack('per-device(pool(cuda, initialBytes=1MiB))')).toThrow('CUDA_ERROR_INVALID_VALUE');
    expect(free()).toBe(before);
  });
});
