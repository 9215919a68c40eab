// Kernels on cistern's memory and streams, without a compiler. `node main.js` needs a GPU, and koffi: `npm install koffi`.
import { readFileSync } from 'node:fs';
import { CudaMemoryResource, currentBackend, Device, DeviceBuffer, MiB, PoolMemoryResource, Stream, VirtualMemoryResource } from 'cistern';
import { GraphMemoryResource } from 'cistern/graphs';

const device = Device.get();
if (currentBackend() === 'software') {
  console.log('there is no GPU here, and the software device runs no kernels');
  process.exit();
}
device.synchronizeSync(); // from now on, cistern has the context in which the kernel is loaded
const { Kernel } = await import('./cuda.js');

// fill(data, words, value) sets 32-bit words. `nvcc --ptx` makes such a file of a kernel in C++.
const ptx = readFileSync(new URL('../addons/step.ptx', import.meta.url), 'utf8');
const kernel = new Kernel(device.index, ptx, 'fill', ['uint64_t', 'uint64_t', 'uint32_t']);
const words = 1024;
const fill = (stream, pointer, value) => kernel.launch(stream, Math.ceil(words / 256), 256, pointer, words, value);

const stream = new Stream({ nonBlocking: true });
const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 16 * MiB, deallocationEvents: 'deferred' });

// The stream orders the kernel after whoever had the memory before, and the free after the kernel.
const buffer = new DeviceBuffer(4 * words, { resource: pool, stream });
fill(stream, buffer.ptr, 7);
console.log(`a kernel wrote ${distinct(await buffer.toHost())}`);
buffer.dispose();

// A step with scratch memory, captured once and launched often.
const graphs = new GraphMemoryResource(new VirtualMemoryResource(), { fallback: pool });
const result = new DeviceBuffer(4 * words, { resource: pool, stream });
const graph = graphs.capture(stream, () => {
  const scratch = new DeviceBuffer(4 * words, { resource: graphs, stream });
  fill(stream, scratch.ptr, 9);
  result.copyFrom(scratch);
  scratch.dispose();
});
const step = graph.instantiate();
for (let i = 0; i < 3; i++) step.launch(stream);
console.log(`a graph wrote ${distinct(await result.toHost())}`);

for (const each of [step, graph, result, graphs, pool, stream]) each.dispose();

function distinct(bytes) {
  return [...new Set(new Uint32Array(bytes.buffer))].join(', ');
}
