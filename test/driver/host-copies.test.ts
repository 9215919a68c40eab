import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  CudaMemoryResource,
  configureSoftwareDevice,
  copy,
  copyFromHost,
  copyToHost,
  copyToHostSync,
  DeviceBuffer,
  HostMemoryResource,
  MiB,
  PinnedHostMemoryResource,
  Stream,
  set,
} from '../../src/index.js';

const bytes = 1000;

/**
 * Queues a copy into host memory while the stream is held, which does not block, and releases the
 * stream. Nothing stalls a stream from then on, so that the driver itself copies again, and the
 * stream has some milliseconds of work before that copy.
 */
function writeLater(host: number, stream: Stream, device: CudaMemoryResource): () => void {
  const work = 64 * MiB;
  const [source, busy] = [device.allocate(bytes, stream), device.allocate(work, stream)];
  using hold = stream.hold();
  for (let i = 0; i < 4; i++) set(busy, i, 1, work, stream);
  set(source, 5, 1, bytes, stream);
  copy(host, source, bytes, stream);
  hold.release();
  return () => {
    device.deallocate(source, bytes, stream);
    device.deallocate(busy, work, stream);
  };
}

test.each<[string, (host: number, stream: Stream, device: CudaMemoryResource) => Promise<Uint8Array> | Uint8Array]>([
  [
    'to the device',
    (host, stream, device) => {
      const target = device.allocate(bytes, stream);
      copy(target, host, bytes, stream);
      const found = new Uint8Array(bytes);
      copyToHostSync(found, target, stream);
      device.deallocate(target, bytes, stream);
      return found;
    },
  ],
  ['to JavaScript', async (host, stream) => new Uint8Array(await copyToHost(host, bytes, stream))],
  [
    'to JavaScript at once',
    (host, stream) => {
      const found = new Uint8Array(bytes);
      copyToHostSync(found, host, stream);
      return found;
    },
  ],
  [
    'into a host view at once',
    (host, stream) => {
      using other = new Stream();
      using resource = new PinnedHostMemoryResource();
      using buffer = new DeviceBuffer(bytes, { resource, stream: other });
      const view = buffer.hostView(Uint8Array);
      copyToHostSync(view, host, stream);
      return view.slice();
    },
  ],
  [
    'to the device, on a stream that waits for the other',
    (host, stream, device) => {
      using other = new Stream();
      const target = device.allocate(bytes, other);
      // Both streams are ordered with the default stream, and so with each other.
      set(target, 0, 1, bytes, Stream.legacyDefault());
      copy(target, host, bytes, other);
      const found = new Uint8Array(bytes);
      copyToHostSync(found, target, other);
      device.deallocate(target, bytes, other);
      stream.synchronizeSync();
      return found;
    },
  ],
])('a copy from host memory %s contains the writes queued there before it', async (_, read) => {
  using stream = new Stream();
  using device = new CudaMemoryResource();
  using resource = new HostMemoryResource();
  const host = resource.allocate(bytes, stream);
  const end = writeLater(host, stream, device);
  const found = await read(host, stream, device);
  expect([...new Set(found)]).toEqual([5]);
  end();
  resource.deallocate(host, bytes, stream);
});

describe('a device that uses ordinary host memory itself, later, as with heterogeneous memory management', () => {
  const stream = new Stream();
  const device = new CudaMemoryResource();
  const work = 64 * MiB;
  let busy: number;

  beforeAll(() => {
    busy = device.allocate(work, stream);
    configureSoftwareDevice({ pageableMemoryAccess: true });
  });
  afterAll(() => {
    configureSoftwareDevice({ pageableMemoryAccess: false });
    device.deallocate(busy, work, stream);
    stream.dispose();
  });

  /** Some milliseconds of work. */
  const delay = () => {
    for (let i = 0; i < 4; i++) set(busy, i, 1, work, stream);
  };

  test.each([64, 65_536, 2 * MiB, 65 * MiB])('an array of %i bytes may change once a copy from it has returned', (size) => {
    const target = device.allocate(size, stream);
    for (let i = 0; i < 2; i++) {
      const source = new Uint8Array(size).fill(1);
      delay();
      copyFromHost(target, source, stream);
      source.fill(2);
      const found = new Uint8Array(size);
      copyToHostSync(found, target, stream);
      expect(found.findIndex((byte) => byte !== 1)).toBe(-1);
    }
    device.deallocate(target, size, stream);
  });

  test.each([bytes, 2 * MiB])('a copy of %i bytes from host memory reads what an earlier copy writes there', (size) => {
    using resource = new HostMemoryResource();
    const host = resource.allocate(size, stream);
    const [source, target] = [device.allocate(size, stream), device.allocate(size, stream)];
    for (let value = 1; value < 5; value++) {
      set(source, value, 1, size, stream);
      delay();
      copy(host, source, size, stream);
      copy(target, host, size, stream);
      const found = new Uint8Array(size);
      copyToHostSync(found, target, stream);
      expect(found.findIndex((byte) => byte !== value)).toBe(-1);
    }
    for (const pointer of [source, target]) device.deallocate(pointer, size, stream);
    resource.deallocate(host, size, stream);
  });
});
