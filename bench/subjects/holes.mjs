/**
 * Allocates and frees among many free holes. `RunHoles` in bench_native.cc builds and measures the
 * same.
 */
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { NullResource } from '../support/null-resource.mjs';
import { seededNumbers, shuffle } from '../support/numbers.mjs';
import { parameters, report } from '../support/processes.mjs';

const blockBytes = 4096;
const separatorBytes = 256;
const burst = 25;
const steps = 100_000;

/**
 * @typedef {object} HolesParameters
 * @property {'pool' | 'null'} subject
 * @property {import('../../src/index.js').DeallocationEvents} [events]
 * @property {number} holes
 * @property {number} repeat
 */

const { subject, events = 'deferred', holes, repeat } = /** @type {HolesParameters} */ (parameters());
const cistern = await loadCistern();
const stream = new cistern.Stream({ nonBlocking: true });
const random = seededNumbers();
const holeSizes = Float64Array.from({ length: holes }, () => mixedSize(12));
const mixedSizes = Float64Array.from({ length: 4096 }, () => mixedSize(8));
const resource = createResource();
makeHoles();

/** @type {{ pair: number[], allocate: number[], free: number[], mixedPair: number[] }} */
const samples = { pair: [], allocate: [], free: [], mixedPair: [] };
const pointers = new Float64Array(burst);
for (let i = 0; i <= repeat; i++) {
  const pair = measurePairs();
  const [allocate, free] = measureBursts();
  const mixedPair = measureMixedPairs();
  // The first warms up.
  if (i === 0) continue;
  samples.pair.push(pair);
  samples.allocate.push(allocate);
  samples.free.push(free);
  samples.mixedPair.push(mixedPair);
}
report(Object.fromEntries(Object.entries(samples).map(([name, values]) => [name, figuresOf(values)])));

/**
 * A size from 256 bytes to 256 * 2^orders; each order is equally frequent. With 12, up to 1 MiB, a
 * third of the holes is too small for the block.
 * @param {number} orders
 */
function mixedSize(orders) {
  return Math.floor(2 ** (8 + orders * random()));
}

function createResource() {
  const upstream = new cistern.CudaMemoryResource();
  if (subject === 'null') return new NullResource(upstream.device);
  // Exactly the size of the holes and what lies between them: there is no other free memory.
  const initialBytes = holeSizes.reduce((sum, bytes) => sum + Math.ceil(bytes / 256) * 256 + separatorBytes, 0);
  return new cistern.PoolMemoryResource(upstream, { initialBytes, maximumBytes: initialBytes, deallocationEvents: events });
}

/** Blocks of mixed sizes, each followed by a small one; then the former are freed in random order. */
function makeHoles() {
  const blocks = new Float64Array(holes);
  for (let i = 0; i < holes; i++) {
    blocks[i] = resource.allocate(holeSizes[i], stream);
    resource.allocate(separatorBytes, stream);
  }
  const order = Int32Array.from({ length: holes }, (_, i) => i);
  shuffle(order, random);
  for (const i of order) resource.deallocate(blocks[i], holeSizes[i], stream);
}

/** Nanoseconds for one allocation and its free. */
function measurePairs() {
  const start = performance.now();
  for (let i = 0; i < steps; i++) resource.deallocate(resource.allocate(blockBytes, stream), blockBytes, stream);
  return ((performance.now() - start) * 1e6) / steps;
}

/** The same with sizes up to 64 KiB, so that each pair uses another hole. */
function measureMixedPairs() {
  const start = performance.now();
  for (let i = 0; i < steps; i++) {
    const bytes = mixedSizes[i % mixedSizes.length];
    resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
  }
  return ((performance.now() - start) * 1e6) / steps;
}

/** Nanoseconds for an allocation, and for a free, in bursts. */
function measureBursts() {
  let allocating = 0;
  let freeing = 0;
  const rounds = steps / burst;
  for (let round = 0; round < rounds; round++) {
    const start = performance.now();
    for (let i = 0; i < burst; i++) pointers[i] = resource.allocate(blockBytes, stream);
    const middle = performance.now();
    for (let i = 0; i < burst; i++) resource.deallocate(pointers[i], blockBytes, stream);
    freeing += performance.now() - middle;
    allocating += middle - start;
  }
  return [(allocating * 1e6) / steps, (freeing * 1e6) / steps];
}
