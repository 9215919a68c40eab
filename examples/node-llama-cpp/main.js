// Models of node-llama-cpp and buffers of cistern share one limit. `node main.js` uses a stand-in; with node-llama-cpp installed,
// `node main.js model.gguf` loads that model. `npx cistern run -- node main.js` shows and limits the same from outside.
import { argv } from 'node:process';
import { CudaMemoryResource, DeviceBuffer, formatBytes, MiB, PoolMemoryResource, Stream } from 'cistern';
import { AdmittingResourceAdaptor } from 'cistern/serving';
import { SharedLimitOrchestrator } from './orchestrator.js';

const modelPath = argv[2];
const { getLlama } = await import(modelPath === undefined ? './stand-in.js' : 'node-llama-cpp');

const limit = { limitBytes: (modelPath === undefined ? 256 : 8192) * MiB, shared: 'gpu' };
const pool = new PoolMemoryResource(new CudaMemoryResource());
const resource = new AdmittingResourceAdaptor(pool, limit);
const stream = new Stream();

const llama = await getLlama();
const orchestrator = SharedLimitOrchestrator.install(llama, limit);
const used = () => `${formatBytes(resource.statistics().committedBytes)} of ${formatBytes(limit.limitBytes)}`;

const model = await llama.loadModel({ modelPath: modelPath ?? 'small.gguf', bytes: 96 * MiB });
console.log(`a model is loaded: ${used()}`);

const vectors = new DeviceBuffer(128 * MiB, { resource, stream });
console.log(`and cistern has a buffer: ${used()}`);

if (modelPath === undefined) {
  // Too much for what is left, and node-llama-cpp says so before it loads anything.
  await llama
    .loadModel({ modelPath: 'large.gguf', bytes: 64 * MiB })
    .catch(({ name }) => console.log(`a second model is refused: ${name}`));
  // Or it waits until somebody returns memory.
  const second = orchestrator.whenFree(64 * MiB, () => llama.loadModel({ modelPath: 'large.gguf', bytes: 64 * MiB }));
  vectors.dispose();
  await (await second).dispose();
  console.log('or waits for the buffer, and is loaded');
}
vectors.dispose();
await model.dispose();
console.log(`in the end: ${used()}`);
