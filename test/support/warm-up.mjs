/**
 * A GPU's driver loads the code that fills and copies memory, and takes device memory for it, at the first use: before tests
 * count bytes.
 */
export function warmUp({ CudaMemoryResource, copy, Stream, set }) {
  const stream = new Stream({ nonBlocking: true });
  const memory = new CudaMemoryResource();
  const pointer = memory.allocate(1024, stream);
  for (const bytes of [1, 4]) set(pointer, 1, bytes, 512 / bytes, stream);
  copy(pointer, pointer + 512, 256, stream);
  stream.synchronizeSync();
  memory.deallocate(pointer, 1024, stream);
  stream.dispose();
}
