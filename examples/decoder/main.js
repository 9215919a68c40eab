// A toy decoder on cistern's memory: GEMMs by cuBLAS and three kernels compiled by NVRTC, both called through koffi, its step captured for 51
// batch sizes. Prints four numbers; with_torch.py has those of PyTorch. `node main.js --help` lists the sizes. It needs a GPU; without cuBLAS, a kernel
// of its own multiplies, and without NVRTC, PTX that nvcc made is used.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import {
  CudaMemoryResource,
  currentBackend,
  Device,
  DeviceBuffer,
  formatBytes,
  MiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  parseBytes,
  Stream,
  VirtualMemoryResource,
} from 'cistern';
import { GraphMemoryResource } from 'cistern/graphs';
import { AdmittingResourceAdaptor, SpillableBuffer, SpillingResourceAdaptor, sleepResource, wakeResource } from 'cistern/serving';
import { batchSizes, Decoder } from './decoder.js';
import { referenceToken } from './reference.js';

const { values } = parseArgs({
  options: {
    layers: { type: 'string', default: '2' },
    width: { type: 'string', default: '64' },
    tokens: { type: 'string', default: '8' },
    batch: { type: 'string', default: '64' },
    requests: { type: 'string', default: '32' },
    cache: { type: 'string', default: '2MiB' },
    sleep: { type: 'string', default: '64MiB' },
    workspace: { type: 'string', default: '4MiB' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(`usage: node main.js [--layers 2] [--width 64] [--tokens 8] [--batch 64] [--requests 32] [--cache 2MiB] [--sleep 64MiB] [--workspace 4MiB] [--json]

--tokens     how many each request gets
--batch      the rows of the batch whose tokens a second are measured
--requests   how many share a device with room for half of their caches, of --cache each
--sleep      the memory that sleeps and wakes
--workspace  what cuBLAS gets`);
  process.exit();
}
if (currentBackend() === 'software') {
  console.log('there is no GPU here, and the software device runs no kernels');
  process.exit();
}
const [layers, width, tokens, batch, requests] = ['layers', 'width', 'tokens', 'batch', 'requests'].map((name) => Number(values[name]));
const device = Device.get();
device.synchronizeSync(); // from now on, cistern has the context in which the kernels are loaded
const { Kernel } = await import('../kernels/cuda.js');
const { Cublas, Nvrtc } = await import('./libraries.js');

const stream = new Stream({ nonBlocking: true });
const pool = new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents: 'deferred' });
const graphs = new GraphMemoryResource(new VirtualMemoryResource(), { fallback: pool });

// What is installed decides how kernels are compiled and matrices multiplied.
const nvrtc = Nvrtc.find();
const architecture = `sm_${device.attribute('computeCapabilityMajor')}${device.attribute('computeCapabilityMinor')}`;
const code = nvrtc?.compile(source('kernels.cu'), architecture) ?? source('kernels.ptx');
const kernel = (name, ...types) => new Kernel(device.index, code, name, types);
const [pointer, number] = ['uint64_t', 'uint32_t'];
const kernels = {
  normalize: kernel('normalize', pointer, pointer, number, number),
  attend: kernel('attend', pointer, pointer, number, number, number),
  activate: kernel('activate', pointer, number),
};
const workspace = new DeviceBuffer(parseBytes(values.workspace), { resource: pool, stream });
const cublas = Cublas.find(stream, workspace);
const parts = { kernels, multiply: multiplier(), stream, resource: pool, graphs };
await checkToken();

const decoder = new Decoder({ ...parts, layers, width });
decoder.capture();
const numbers = {
  device: device.name,
  compiledBy: nvrtc === undefined ? 'nvcc, before' : 'NVRTC',
  multipliedBy: cublas === undefined ? 'a kernel' : 'cuBLAS',
  tokensASecond: await tokensASecond(),
  graphs: batchSizes.length,
  bytesOfGraphs: graphs.statistics().reservedBytes,
  ...(await requestsWithHalfOfTheMemory()),
  ...(await sleepAndWake()),
};
if (values.json) {
  console.log(JSON.stringify(numbers));
} else {
  console.log(`on ${numbers.device}: compiled by ${numbers.compiledBy}, multiplied by ${numbers.multipliedBy}
${numbers.tokensASecond.toFixed(0)} tokens a second in a batch of ${batch}
${formatBytes(numbers.bytesOfGraphs)} for the graphs of ${numbers.graphs} batch sizes
${numbers.finished} of ${numbers.requests} requests finished, with memory for half of them; ${numbers.spills} caches left for the host meanwhile
${numbers.sleepSeconds.toFixed(3)} s to put ${formatBytes(numbers.sleepBytes)} to sleep, ${numbers.wakeSeconds.toFixed(3)} s to wake it`);
}

cublas?.dispose();
for (const each of [decoder, workspace, graphs, pool, stream]) each.dispose();

/** The product of matrices, by cuBLAS or a kernel. */
function multiplier() {
  if (cublas !== undefined) return (...product) => cublas.multiply(...product);
  const product = kernel('multiply', pointer, pointer, pointer, number, number, number, number);
  return (a, b, c, rows, inner, columns, adds) =>
    product.launch(stream, Math.ceil((rows * columns) / 256), 256, a, b, c, rows, inner, columns, Number(adds));
}

/** Whether a small decoder computes what JavaScript computes, by its graph. */
async function checkToken() {
  const small = new Decoder({ ...parts, layers: 2, width: 64 });
  small.capture();
  small.hidden.fill(0);
  small.hidden.copyFrom(new Float32Array(64).fill(1));
  const cache = new DeviceBuffer(small.cacheBytes, { resource: pool, stream });
  cache.fill(0);
  small.decode([cache.ptr]);
  const row = new Float32Array((await small.hidden.toHost()).buffer, 0, 64);
  const wrong = referenceToken(2, 64).findIndex((each, i) => !(Math.abs(each - row[i]) < 1e-3));
  if (wrong >= 0) throw new Error(`number ${wrong} of a token is wrong: ${row[wrong]}`);
  cache.dispose();
  small.dispose();
}

async function tokensASecond() {
  const caches = new DeviceBuffer(batch * decoder.cacheBytes, { resource: pool, stream });
  caches.fill(0);
  const addresses = Array.from({ length: batch }, (_, row) => caches.ptr + row * decoder.cacheBytes);
  for (let i = 0; i < 3; i++) decoder.decode(addresses);
  await stream.synchronize();
  const began = performance.now();
  for (let i = 0; i < tokens; i++) decoder.decode(addresses);
  await stream.synchronize();
  const seconds = (performance.now() - began) / 1000;
  caches.dispose();
  return (batch * tokens) / seconds;
}

/**
 * Four groups of requests share a device with room for two: three are admitted, since the host has room for the caches that nobody uses at the time,
 * and the fourth waits until one has finished. The groups decode by turns.
 */
async function requestsWithHalfOfTheMemory() {
  const bytes = Math.max(decoder.cacheBytes, parseBytes(values.cache));
  const groups = 4;
  const members = Math.ceil(requests / groups);
  const onDevice = new PoolMemoryResource(new CudaMemoryResource(), {
    initialBytes: 2 * members * bytes,
    maximumBytes: 2 * members * bytes,
  });
  const onHost = new PoolMemoryResource(new PinnedHostMemoryResource(), { initialBytes: 2 * members * bytes });
  const spilling = new SpillingResourceAdaptor(onDevice, onHost);
  const admitting = new AdmittingResourceAdaptor(spilling, { limitBytes: 3 * members * bytes });
  let turn = Promise.resolve();
  /** Runs something when what came before has ended. */
  const inTurn = (work) => {
    turn = turn.then(work);
    return turn;
  };
  let finished = 0;
  const serve = async () => {
    const grant = await admitting.reserve(members * bytes);
    await grant.run(async () => {
      const caches = [];
      for (let i = 0; i < members; i++) caches.push(await SpillableBuffer.create(bytes, { stream, resource: admitting }));
      await inTurn(() => withPins(caches, (pins) => pins.map((pin) => pin.fill(0))));
      for (let token = 0; token < tokens; token++)
        await inTurn(() => withPins(caches, (pins) => decoder.decode(pins.map((pin) => pin.ptr))));
      await stream.synchronize();
      for (const cache of caches) cache.dispose();
    });
    grant.dispose();
    finished += members;
  };
  await Promise.all(Array.from({ length: groups }, serve));
  const { spills } = spilling.statistics();
  const { admittedAfterWait } = admitting.statistics();
  for (const each of [admitting, spilling, onHost, onDevice]) each.dispose();
  return { requests: groups * members, finished, spills, admittedAfterWait };
}

/** Brings caches back, and lets them leave again afterwards. */
async function withPins(caches, use) {
  const pins = [];
  for (const cache of caches) pins.push(await cache.pin());
  use(pins);
  for (const pin of pins) pin.dispose();
}

async function sleepAndWake() {
  const bytes = parseBytes(values.sleep);
  const virtual = new VirtualMemoryResource();
  const model = new DeviceBuffer(bytes, { resource: virtual, stream });
  model.fill(7);
  await stream.synchronize();
  const slept = await sleepResource(virtual, { keep: 'host' });
  const woken = await wakeResource(virtual);
  const end = model.toHostSync(new Uint8Array(MiB), { byteOffset: bytes - MiB });
  if (end.some((byte) => byte !== 7)) throw new Error('what slept has other contents now');
  model.dispose();
  virtual.dispose();
  return { sleepBytes: bytes, sleepSeconds: slept.elapsedMilliseconds / 1000, wakeSeconds: woken.elapsedMilliseconds / 1000 };
}

function source(name) {
  return readFileSync(new URL(name, import.meta.url), 'utf8');
}
