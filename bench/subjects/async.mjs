/**
 * Allocations and frees through the driver's stream-ordered pool. `RunSoftwareAsync` in
 * bench_native.cc makes the same calls.
 */
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { NullResource } from '../support/null-resource.mjs';
import { seededNumbers } from '../support/numbers.mjs';
import { parameters, report } from '../support/processes.mjs';

const blockBytes = 4096;
const pairs = 200_000;
const live = 1000;
const rounds = 100;
const churnSteps = 100_000;

const { subject, repeat } = /** @type {{ subject: 'async' | 'null', repeat: number }} */ (parameters());
const cistern = await loadCistern();
const stream = new cistern.Stream({ nonBlocking: true });
const resource = subject === 'async' ? new cistern.CudaAsyncMemoryResource() : new NullResource(stream.device);
const blocks = new Float64Array(live);
const inOrder = Int32Array.from({ length: live }, (_, i) => i);
const scattered = inOrder.slice();
for (let i = 0; i < live; i++) {
  const j = (i * 7919) % live;
  [scattered[i], scattered[j]] = [scattered[j], scattered[i]];
}
const random = seededNumbers();
const places = Int32Array.from({ length: churnSteps }, () => Math.floor(random() * live));

/** @type {Record<string, number[]>} */
const samples = { pairs: [], allocateMany: [], freeMany: [], allocateScattered: [], freeScattered: [], churn: [] };
for (let i = 0; i <= repeat; i++) {
  const sample = { pairs: measurePairs(), ...measureMany(inOrder, 'Many'), ...measureMany(scattered, 'Scattered'), churn: measureChurn() };
  // The first warms up.
  if (i > 0) for (const [name, value] of Object.entries(sample)) samples[name].push(value);
}
report(Object.fromEntries(Object.entries(samples).map(([name, values]) => [name, figuresOf(values)])));

/** Nanoseconds per call if each allocation is freed at once. */
function measurePairs() {
  const start = performance.now();
  for (let i = 0; i < pairs; i++) resource.deallocate(resource.allocate(blockBytes, stream), blockBytes, stream);
  return ((performance.now() - start) * 1e6) / (2 * pairs);
}

/**
 * Allocates all blocks, then frees them in the given order; the two are measured separately.
 * @param {Int32Array} order
 * @param {string} name
 */
function measureMany(order, name) {
  let allocating = 0;
  let freeing = 0;
  for (let round = 0; round < rounds; round++) {
    const start = performance.now();
    for (let i = 0; i < live; i++) blocks[i] = resource.allocate(blockBytes, stream);
    const middle = performance.now();
    for (let i = 0; i < live; i++) resource.deallocate(blocks[order[i]], blockBytes, stream);
    freeing += performance.now() - middle;
    allocating += middle - start;
  }
  const calls = rounds * live;
  return { [`allocate${name}`]: (allocating * 1e6) / calls, [`free${name}`]: (freeing * 1e6) / calls };
}

/** At random places among live blocks, frees one block at a time and allocates another one. */
function measureChurn() {
  for (let i = 0; i < live; i++) blocks[i] = resource.allocate(blockBytes, stream);
  const start = performance.now();
  for (let i = 0; i < churnSteps; i++) {
    const place = places[i];
    resource.deallocate(blocks[place], blockBytes, stream);
    blocks[place] = resource.allocate(blockBytes, stream);
  }
  const nanoseconds = (performance.now() - start) * 1e6;
  for (let i = 0; i < live; i++) resource.deallocate(blocks[i], blockBytes, stream);
  return nanoseconds / (2 * churnSteps);
}
