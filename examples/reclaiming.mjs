// A loop that drops its buffers instead of disposing them, on an eighth of the memory that they
// need together.
//
//     node examples/reclaiming.mjs [steps]
import process from 'node:process';
import {
  CudaAsyncMemoryResource,
  configureSoftwareDevice,
  DeviceBuffer,
  formatBytes,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  ReclaimingResourceAdaptor,
  reclaimUnreachableBuffers,
  Stream,
  selectBackend,
  set,
} from 'cistern';

const steps = Number(process.argv[2] ?? 512);
const resultBytes = 2 * MiB;
const workspaceBytes = 6 * MiB;
const deviceBytes = (steps * resultBytes) / 8;

selectBackend('software');
configureSoftwareDevice({ totalBytes: deviceBytes });
const stream = new Stream();

/**
 * Results that the application keeps if it can but may drop: every eighth, so that in the end they
 * need all the memory.
 */
const cache = new Map();

/** One computation, with a temporary workspace and a result that nobody disposes. */
function compute(resource, step) {
  const workspace = resource.allocate(workspaceBytes, stream);
  set(workspace, step & 255, 1, workspaceBytes, stream); // the kernel
  resource.deallocate(workspace, workspaceBytes, stream);
  const result = new DeviceBuffer(resultBytes, { resource, stream });
  result.fill(step & 255);
  if (step % 8 === 0) cache.set(step, result);
}

/** The number of computations before the memory was exhausted. */
function loop(resource) {
  let step = 0;
  try {
    for (; step < steps; step++) compute(resource, step);
  } catch (error) {
    if (!(error instanceof OutOfMemoryError)) throw error;
  }
  cache.clear();
  return step;
}

/** The last stage, which only the application knows. */
function dropCache() {
  cache.clear();
  return reclaimUnreachableBuffers('major');
}

/** Runs with a fresh pool on the whole device. */
function withPool(run) {
  const upstream = new CudaAsyncMemoryResource();
  const pool = new PoolMemoryResource(upstream);
  try {
    run(pool);
  } finally {
    reclaimUnreachableBuffers('major');
    pool.dispose();
    upstream.dispose();
  }
}

console.log(`${steps} results of ${formatBytes(resultBytes)}, none of them disposed, on a device of ${formatBytes(deviceBytes)}`);

withPool((pool) => {
  console.log(`with a pool alone: out of memory after ${loop(pool)} steps`);
});

withPool((pool) => {
  const resource = new ReclaimingResourceAdaptor(pool, { onOutOfMemory: dropCache });
  const done = loop(resource);
  if (done !== steps) throw new Error(`out of memory after ${done} steps`);
  console.log(`with a reclaiming adaptor on the pool: all ${done} steps\n\n${resource.report()}`);
});
stream.dispose();
