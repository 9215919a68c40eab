import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copyFromHost,
  DeviceBuffer,
  Event,
  KiB,
  MiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';

/** How many of each: together they take tens of milliseconds. */
const counts = {
  events: 3000,
  streams: 20,
  resources: 40,
  allocations: 1000,
  copies: 500,
  fills: 16,
  hostFunctions: 100,
  holds: 100,
  buffers: 1000,
};

/**
 * Creates and ends many objects of every type, one type after another, so that even a few bytes
 * leaked per object soon exceed the normal variation of resident memory. Returns how many.
 */
export async function churn(): Promise<number> {
  using stream = new Stream({ nonBlocking: true });
  using plain = new CudaMemoryResource();
  using pinned = new PinnedHostMemoryResource();
  using ordered = new CudaAsyncMemoryResource();
  using pool = new PoolMemoryResource(ordered);
  const bytes = 4 * KiB;
  const work = 4 * MiB;

  for (let i = 0; i < counts.events; i++) {
    using event = new Event({ timing: i % 8 === 0 });
    event.record(stream);
    stream.wait(event);
  }
  for (let i = 0; i < counts.streams; i++) {
    using other = new Stream({ nonBlocking: i % 2 === 0 });
    // Only a stream with work has a thread.
    other.launchHostFunction(() => {});
    other.synchronizeSync();
  }
  for (let i = 0; i < counts.resources; i++) {
    using resource = new CudaAsyncMemoryResource();
    using pool = new PoolMemoryResource(resource, { deallocationEvents: 'off' });
    pool.deallocate(pool.allocate(bytes, stream), bytes, stream);
  }
  for (const resource of [plain, pinned, ordered, pool]) {
    for (let i = 0; i < counts.allocations; i++) resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
  }
  const target = ordered.allocate(work, stream);
  const source = new Uint8Array(bytes);
  // While the stream is held, cistern keeps the bytes for it; when it only has other work to do,
  // the driver does.
  const hold = stream.hold();
  for (let i = 0; i < counts.copies; i++) copyFromHost(target, source, stream);
  for (let i = 0; i < counts.fills; i++) set(target, i, 1, work, stream);
  hold.release();
  for (let i = 0; i < counts.copies; i++) copyFromHost(target, source, stream);
  ordered.deallocate(target, work, stream);
  for (let i = 0; i < counts.holds; i++) stream.hold().release();
  for (let i = 0; i < counts.hostFunctions; i++) stream.launchHostFunction(() => {});
  stream.synchronizeSync();
  for (let i = 0; i < counts.buffers; i++) {
    using buffer = new DeviceBuffer(bytes, { resource: pool, stream });
    buffer.fill(i % 256);
  }
  const copied = new DeviceBuffer(bytes, { resource: pool, stream });
  await Promise.all(Array.from({ length: counts.streams }, () => copied.toHost()));
  copied.dispose();
  await stream.synchronize();
  return Object.values(counts).reduce((sum, count) => sum + count);
}
