import { expect, test } from 'vitest';
import {
  CudaMemoryResource,
  copy,
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
