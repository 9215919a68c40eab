import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  configureSoftwareDevice,
  copy,
  copyFromHost,
  copySync,
  copyToHost,
  copyToHostSync,
  Device,
  DeviceBuffer,
  DriverError,
  type MemoryResource,
  MiB,
  PeerAccessError,
  PoolMemoryResource,
  Stream,
  set,
  setSync,
  UnsupportedError,
  VirtualMemoryResource,
} from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { policies } from '../support/stream-order.js';

let first: Device;
let second: Device;
/** A stream of the first device. */
let near: Stream;
/** A stream of the second device. */
let far: Stream;

beforeEach(() => {
  first = Device.get(0);
  second = Device.get(1);
  near = new Stream({ device: first, nonBlocking: true });
  far = new Stream({ device: second, nonBlocking: true });
});

afterEach(() => {
  near.dispose();
  far.dispose();
  if (second.canAccessPeer(first))
    for (const [of, to] of [
      [first, second],
      [second, first],
    ] as const)
      of.disablePeerAccess(to);
});

/** What has device memory on the first device. */
const kinds = {
  'plain memory': () => new CudaMemoryResource(),
  'memory of a driver pool': () => new CudaAsyncMemoryResource(),
  'virtual memory': () => new VirtualMemoryResource({ reservationBytes: 64 * MiB }),
  'a pool on plain memory': () => new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB }),
};

const lacksAccess = expect.objectContaining({
  name: 'PeerAccessError',
  code: 'ERR_CISTERN_NO_PEER_ACCESS',
  device: 1,
  memoryDevice: 0,
  message: expect.stringContaining('Device.get(1).enablePeerAccess(Device.get(0))'),
});

function allocated(resource: MemoryResource, bytes = 4096): number {
  const pointer = resource.allocate(bytes, near);
  setSync(pointer, 7, 1, bytes, near);
  return pointer;
}

describe('which devices reach each other', () => {
  test('a device says', () => {
    expect(second.canAccessPeer(first)).toBe(true);
    expect(first.canAccessPeer(first)).toBe(false);
    expect(() => first.canAccessPeer(1 as never)).toThrow(ArgumentTypeError);
  });

  test('access is enabled and disabled in one direction', () => {
    expect(second.disablePeerAccess(first)).toBe(false);
    expect(second.enablePeerAccess(first)).toBe(true);
    expect(second.enablePeerAccess(first)).toBe(false);
    expect(first.disablePeerAccess(second)).toBe(false);
    expect(second.disablePeerAccess(first)).toBe(true);
    expect(second.disablePeerAccess(first)).toBe(false);
  });

  test('a device is not its own peer', () => {
    const code = expect.objectContaining({
      code: 'ERR_INVALID_ARG_VALUE',
      message: 'peer must be a different device, got device 0 itself',
    });
    expect(() => first.enablePeerAccess(first)).toThrow(code);
    expect(() => first.disablePeerAccess(first)).toThrow(code);
    expect(() => first.enablePeerAccess(null as never)).toThrow(ArgumentTypeError);
  });

  test('access that the driver refuses is not given', () => {
    configureSoftwareDevice({ peers: 'none' });
    try {
      expect(second.canAccessPeer(first)).toBe(false);
      expect(() => second.enablePeerAccess(first)).toThrow(UnsupportedError);
      expect(() => second.enablePeerAccess(first)).toThrow('device 1 cannot be given access to memory of device 0');
      const pointer = allocated(new CudaMemoryResource());
      expect(() => setSync(pointer, 1, 1, 16, far)).toThrow(lacksAccess);
      configureSoftwareDevice({ peers: [[1, 0]] });
      expect(second.enablePeerAccess(first)).toBe(true);
      configureSoftwareDevice({ peers: [] });
      setSync(pointer, 1, 1, 16, far); // what was given stays
      new CudaMemoryResource().deallocate(pointer, 4096, near);
    } finally {
      configureSoftwareDevice({ peers: 'all' });
    }
  });

  test.each([[[[0, 0]]], [[[0, 8]]], [[[0]]], ['some'], [[['0', 1]]]])('the pairs %j are refused', (peers) => {
    expect(() => configureSoftwareDevice({ peers: peers as never })).toThrow(ArgumentRangeError);
  });
});

describe.each(Object.entries(kinds))('%s', (_name, make) => {
  let resource: MemoryResource;
  let pointer: number;

  beforeEach(() => {
    resource = make();
    pointer = allocated(resource);
  });

  afterEach(() => {
    resource.deallocate(pointer, 4096, near);
    near.synchronizeSync();
    resource[Symbol.dispose]();
  });

  test('is refused to streams of a device without access, and nothing is queued', async () => {
    const bytes = new Uint8Array(16);
    expect(() => setSync(pointer, 1, 1, 16, far)).toThrow(lacksAccess);
    expect(() => copyFromHost(pointer, bytes, far)).toThrow(lacksAccess);
    expect(() => copyToHostSync(bytes, pointer, far)).toThrow(lacksAccess);
    await expect(copyToHost(pointer, 16, far)).rejects.toThrow(lacksAccess);
    copyToHostSync(bytes, pointer, near);
    expect([...new Set(bytes)]).toEqual([7]);
  });

  test('can be used by streams of a device with access, until it is disabled', async () => {
    second.enablePeerAccess(first);
    const bytes = new Uint8Array(16);
    setSync(pointer, 1, 1, 8, far);
    copyToHostSync(bytes, pointer, far);
    expect([...bytes]).toEqual([1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 7, 7, 7, 7]);
    copyFromHost(pointer, new Uint8Array(16).fill(3), far);
    expect(new Set(new Uint8Array(await copyToHost(pointer, 16, far)))).toEqual(new Set([3]));
    second.disablePeerAccess(first);
    expect(() => setSync(pointer, 1, 1, 8, far)).toThrow(PeerAccessError);
  });

  test('allocated while access is enabled can be used, too', () => {
    second.enablePeerAccess(first);
    const other = make();
    const later = allocated(other);
    setSync(later, 1, 1, 8, far);
    other.deallocate(later, 4096, near);
    near.synchronizeSync();
    other[Symbol.dispose]();
  });

  test('is copied to another device without access, on a stream of either', () => {
    using there = new CudaAsyncMemoryResource({ device: second });
    for (const stream of [near, far]) {
      const target = there.allocate(4096, far);
      far.synchronizeSync();
      copySync(target, pointer, 4096, stream);
      const bytes = new Uint8Array(4096);
      copyToHostSync(bytes, target, far);
      expect(new Set(bytes)).toEqual(new Set([7]));
      there.deallocate(target, 4096, far);
    }
  });

  test('is copied within its device on a stream of another', () => {
    copySync(pointer + 2048, pointer, 2048, far);
  });

  test('is copied between devices by the call for that', () => {
    using there = new CudaMemoryResource({ device: second });
    const target = there.allocate(4096, far);
    failCall('cuMemcpyPeerAsync', 1, 1);
    expect(() => copy(target, pointer, 4096, far)).toThrow(DriverError);
    copySync(target, pointer, 4096, far);
    there.deallocate(target, 4096, far);
  });
});

test('access that cannot be given to everything is given to nothing', () => {
  using pool = new CudaAsyncMemoryResource();
  const plain = new CudaMemoryResource();
  const pointer = allocated(plain);
  failCall('cuMemPoolSetAccess', 1, 101);
  expect(() => second.enablePeerAccess(first)).toThrow(DriverError);
  expect(() => setSync(pointer, 1, 1, 8, far)).toThrow(PeerAccessError);
  expect(() => new DeviceBuffer(16, { resource: pool, stream: far })).toThrow(ArgumentRangeError);
  expect(second.enablePeerAccess(first)).toBe(true);
  setSync(pointer, 1, 1, 8, far);
  plain.deallocate(pointer, 4096, near);
});

test('a pool is not made if its memory cannot be accessible as asked', () => {
  second.enablePeerAccess(first);
  failCall('cuMemPoolSetAccess', 1, 101);
  expect(() => new CudaAsyncMemoryResource()).toThrow(DriverError);
});

test('disabling waits for the work that uses the memory', () => {
  second.enablePeerAccess(first);
  const plain = new CudaMemoryResource();
  const pointer = allocated(plain);
  let ran = false;
  far.launchHostFunction(() => {
    ran = true;
  });
  second.disablePeerAccess(first);
  expect(ran).toBe(true);
  plain.deallocate(pointer, 4096, near);
});

describe('buffers on a stream of a peer', () => {
  test('are refused without access, with what to call', () => {
    using buffer = new DeviceBuffer(16, { resource: new CudaMemoryResource(), stream: near });
    expect(() => buffer.setStream(far)).toThrow(
      expect.objectContaining({
        code: 'ERR_INVALID_ARG_VALUE',
        message:
          'stream must belong to device 0, got one of device 1; call Device.get(1).enablePeerAccess(Device.get(0)) to give it access',
      }),
    );
  });

  test('work like any others, and are freed after access has ended', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, deallocationEvents: 'deferred' });
    second.enablePeerAccess(first);
    const buffer = new DeviceBuffer(4096, { resource: pool, stream: far });
    buffer.fill(5);
    expect(new Set(buffer.toHostSync())).toEqual(new Set([5]));
    buffer.resize(8192);
    second.disablePeerAccess(first);
    expect(() => buffer.fill(1)).toThrow(PeerAccessError);
    buffer.dispose();
    expect(pool.statistics().allocatedBytes).toBe(0);
  });
});

describe.each(policies)('a pool with %s events', (deallocationEvents) => {
  test('hands memory that one device has freed to another only after its work', () => {
    second.enablePeerAccess(first);
    using checker = checkOrder();
    {
      using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4096, maximumBytes: 4096, deallocationEvents });
      for (const [from, to] of [
        [far, near],
        [near, far],
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
        expect(new Set(target.toHostSync())).toEqual(new Set([3]));
        target.dispose();
      }
    }
    expect(checker.violations).toEqual([]);
  });
});

test('a driver pool hands memory that one device has freed to another only after its work', () => {
  second.enablePeerAccess(first);
  using pool = new CudaAsyncMemoryResource();
  using checker = checkOrder();
  const source = new DeviceBuffer(4096, { resource: pool, stream: far });
  const hold = far.hold();
  source.fill(2);
  source.dispose();
  const target = new DeviceBuffer(4096, { resource: pool, stream: near });
  target.fill(3);
  near.synchronizeSync();
  hold.release();
  far.synchronizeSync();
  expect(new Set(target.toHostSync())).toEqual(new Set([3]));
  target.dispose();
  expect(checker.violations).toEqual([]);
});

test('what a disposed pool had goes back only after the work of every device with access', () => {
  second.enablePeerAccess(first);
  using upstream = new CudaAsyncMemoryResource();
  const pool = new PoolMemoryResource(upstream, { initialBytes: 4096, maximumBytes: 4096 });
  using checker = checkOrder();
  const pointer = pool.allocate(4096, far);
  using hold = far.hold();
  set(pointer, 2, 1, 4096, far);
  pool.dispose();
  hold.release();
  expect(checker.violations).toEqual([]);
});

test('the order checker sees copies between devices', () => {
  using there = new CudaMemoryResource({ device: second });
  const here = new CudaMemoryResource();
  const source = here.allocate(4096, near);
  const target = there.allocate(4096, far);
  using checker = checkOrder();
  using hold = far.hold();
  copy(target, source, 4096, far);
  copy(target, source, 4096, near);
  expect(checker.violations).toEqual([
    expect.objectContaining({
      kind: 'unordered',
      earlier: expect.objectContaining({ operation: 'copy', streamId: far.id }),
      later: expect.objectContaining({ operation: 'copy', streamId: near.id }),
    }),
  ]);
  hold.release();
  far.synchronizeSync();
  near.synchronizeSync();
  here.deallocate(source, 4096, near);
  there.deallocate(target, 4096, far);
});
