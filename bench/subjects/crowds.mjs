/** A call that concerns one allocation, while many others are live or wait. */
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { parameters, report } from '../support/processes.mjs';

const { crowd, others, repeat } = /** @type {{ crowd: import('../benchmarks/crowds.mjs').Crowd, others: number, repeat: number }} */ (
  parameters()
);
const cistern = await loadCistern();
const { CudaMemoryResource, GraphMemoryResource, PoolMemoryResource, SpillableBuffer, SpillingResourceAdaptor } = cistern;
const bytes = 4096;
const stream = new cistern.Stream({ nonBlocking: true });
const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: cistern.GiB, deallocationEvents: 'deferred' });
const calls = 5000;

const crowds = {
  admission: waitForAdmission,
  statistics: waitForAdmission,
  graphs: keepForGraphs,
  spilling: spill,
  'warm-up': warmUp,
  turns: takeTurns,
};
await crowds[crowd]();
process.exit(0);

async function waitForAdmission() {
  const resource = new cistern.AdmittingResourceAdaptor(pool, { limitBytes: 100 * bytes });
  const grant = await resource.reserve(90 * bytes);
  for (let i = 0; i < others; i++) resource.reserve(50 * bytes).catch(() => {});
  measure(crowd === 'admission' ? () => pair(resource) : () => resource.statistics());
  grant.dispose();
}

function keepForGraphs() {
  const graphs = new GraphMemoryResource(new CudaMemoryResource(), { fallback: pool });
  /** @type {unknown[]} */
  const captured = [];
  for (let kept = 0; kept < others; kept += 40) {
    captured.push(
      graphs.capture(stream, () => Array.from({ length: Math.min(40, others - kept) }, () => graphs.kept.allocate(256, stream))),
    );
  }
  measure(() => pair(graphs));
  captured.length = 0;
}

function spill() {
  const host = new PoolMemoryResource(new cistern.PinnedHostMemoryResource(), { initialBytes: 64 * cistern.MiB });
  const resource = new SpillingResourceAdaptor(pool, host);
  const buffers = Array.from({ length: others + 1 }, () => new SpillableBuffer(256, { stream, resource }));
  let next = 0;
  // One buffer leaves and comes back.
  measure(() => {
    resource.spill(256);
    buffers[next++ % buffers.length].prefetch();
  }, 500);
}

function warmUp() {
  const graphs = new GraphMemoryResource(new CudaMemoryResource(), { planner: () => undefined, fallback: pool });
  graphs.warmUp('step', () => {
    for (let i = 0; i < others; i++) graphs.allocate(256, stream);
    measure(() => pair(graphs));
  });
}

function takeTurns() {
  const streams = [stream, ...Array.from({ length: others }, () => new cistern.Stream({ nonBlocking: true }))];
  let next = 0;
  measure(() => pair(pool, streams[next++ % streams.length]), 2 * Math.max(calls, others));
}

/** @param {import('../../src/index.js').MemoryResource} resource */
function pair(resource, on = stream) {
  resource.deallocate(resource.allocate(bytes, on), bytes, on);
}

/** @param {() => void} call @param {number} [count] */
function measure(call, count = calls) {
  const samples = Array.from({ length: repeat + 1 }, () => {
    const start = performance.now();
    for (let i = 0; i < count; i++) call();
    stream.synchronizeSync();
    return ((performance.now() - start) * 1e6) / count;
  });
  report({ nanoseconds: figuresOf(samples.slice(1)) });
}
