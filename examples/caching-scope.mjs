// A training loop that never frees its temporaries. What does it need with a caching scope around
// each pass, and without?
//
//     node examples/caching-scope.mjs [passes]
import process from 'node:process';
import { CachingMemoryResource, CudaMemoryResource, DeviceBuffer, MiB, reclaimUnreachableBuffers, Stream, withResource } from 'cistern';
import { driverCallCounts } from 'cistern/testing';

const passes = Number(process.argv[2] ?? 200);
const layerBytes = [4, 3, 2, 2, 1, 1].map((size) => size * MiB);
/**
 * Every layer has an activation, its gradient, and as much scratch for each. A pass frees nothing.
 */
const passBytes = 4 * layerBytes.reduce((sum, bytes) => sum + bytes, 0);

/** Forward, backward and update. Library code: it receives no resource, and drops what it made. */
async function trainOnce(weights, stream, step) {
  const temporary = (bytes) => new DeviceBuffer(bytes, { stream });
  const activations = layerBytes.map((bytes, layer) => {
    const scratch = temporary(bytes);
    const activation = temporary(bytes);
    activation.fill((step + layer) & 255, { byteLength: 4096 }); // the kernel, which also reads the weights
    scratch.copyFrom(weights[layer], { byteLength: 4096 });
    return activation;
  });
  for (const [layer, activation] of [...activations.entries()].reverse()) {
    const gradient = temporary(activation.byteLength);
    const scratch = temporary(activation.byteLength);
    scratch.copyFrom(activation, { byteLength: 4096 });
    gradient.copyFrom(scratch, { byteLength: 4096 });
    weights[layer].copyFrom(gradient, { byteLength: 4096 }); // the update
  }
  const [loss] = await weights[0].toHost({ byteLength: 1 });
  return loss;
}

/** The loop, with each pass in `scope`. */
async function train(upstream, scope) {
  const stream = new Stream();
  const weights = layerBytes.map((bytes) => new DeviceBuffer(bytes, { stream, resource: upstream }));
  const weightBytes = upstream.reservedBytes;
  upstream.resetPeakReservedBytes();
  let losses = 0;
  let before = driverCallCounts();
  const start = performance.now();
  for (let step = 0; step < passes; step++) {
    if (step === 1) before = driverCallCounts(); // from the second pass on
    losses += await scope(() => trainOnce(weights, stream, step));
  }
  const milliseconds = performance.now() - start;
  const after = driverCallCounts();
  for (const buffer of weights) buffer.dispose();
  stream.dispose();
  const peakBytes = upstream.peakReservedBytes - weightBytes;
  return {
    losses,
    row: {
      'peak MiB': Math.round(peakBytes / MiB),
      'as passes': Number((peakBytes / passBytes).toFixed(1)),
      'upstream calls per pass': Number(((after.allocations + after.frees - before.allocations - before.frees) / (passes - 1)).toFixed(1)),
      'ms per pass': Number((milliseconds / passes).toFixed(2)),
    },
  };
}

const upstream = new CudaMemoryResource();
const cache = new CachingMemoryResource(upstream, { name: 'training', deallocationEvents: 'deferred' });
const cached = await train(upstream, (pass) => cache.run(pass));
const { name, hits, misses, freeBlocks, busyBlocks } = cache.statistics();
cache.dispose();
const dropped = await train(upstream, (pass) => withResource(upstream, pass));
reclaimUnreachableBuffers('major');
upstream.dispose();

if (dropped.losses !== cached.losses) throw new Error(`the loops disagree: ${dropped.losses} and ${cached.losses}`);
console.log(`${passes} passes, each of which makes ${layerBytes.length * 4} buffers of ${passBytes / MiB} MiB together and frees none:`);
console.table({ 'dropped to the garbage collector': dropped.row, 'in a caching scope': cached.row });
console.log(`The cache '${name}': ${misses} misses, ${hits} hits, ${freeBlocks} blocks free, ${busyBlocks} busy.`);
