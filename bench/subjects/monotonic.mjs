/**
 * Repeatedly allocates a step's temporaries, frees them one by one, and rewinds if the resource
 * can.
 */
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { NullResource } from '../support/null-resource.mjs';
import { seededNumbers } from '../support/numbers.mjs';
import { parameters, report } from '../support/processes.mjs';

const temporaries = 1000;
const stepsPerSample = 500;
const warmUpSamples = 3;

const { subject, repeat } = /** @type {{ subject: 'monotonic' | 'pool' | 'null', repeat: number }} */ (parameters());
const cistern = await loadCistern();
const stream = new cistern.Stream({ nonBlocking: true });
const random = seededNumbers();
const sizes = Float64Array.from({ length: temporaries }, () => Math.floor(2 ** (8 + 8 * random())));
const pointers = new Float64Array(temporaries);
const resource = createResource();
const scratch = resource instanceof cistern.MonotonicMemoryResource ? resource : undefined;
const mark = scratch?.mark();

/** @type {{ allocate: number[], free: number[], rewind: number[] }} */
const samples = { allocate: [], free: [], rewind: [] };
for (let i = 0; i < warmUpSamples + repeat; i++) {
  const sample = measure();
  if (i < warmUpSamples) continue;
  samples.allocate.push(sample.allocate);
  samples.free.push(sample.free);
  samples.rewind.push(sample.rewind);
}
report(Object.fromEntries(Object.entries(samples).map(([name, values]) => [name, figuresOf(values)])));

function createResource() {
  const upstream = new cistern.CudaMemoryResource();
  if (subject === 'null') return new NullResource(upstream.device);
  const initialBytes = 64 * cistern.MiB;
  if (subject === 'pool') return new cistern.PoolMemoryResource(upstream, { initialBytes, deallocationEvents: 'deferred' });
  return new cistern.MonotonicMemoryResource(upstream, { initialBytes });
}

/** Nanoseconds for one allocation, one free, one rewind. */
function measure() {
  let allocating = 0;
  let freeing = 0;
  let rewinding = 0;
  for (let step = 0; step < stepsPerSample; step++) {
    const start = performance.now();
    allocateAll();
    const allocated = performance.now();
    freeAll();
    const freed = performance.now();
    if (mark !== undefined) scratch?.rewind(mark);
    rewinding += performance.now() - freed;
    freeing += freed - allocated;
    allocating += allocated - start;
  }
  const calls = stepsPerSample * temporaries;
  return { allocate: (allocating * 1e6) / calls, free: (freeing * 1e6) / calls, rewind: (rewinding * 1e6) / stepsPerSample };
}

// Separate functions, so that V8 compiles each loop by itself.
function allocateAll() {
  for (let i = 0; i < temporaries; i++) pointers[i] = resource.allocate(sizes[i], stream);
}

function freeAll() {
  for (let i = 0; i < temporaries; i++) resource.deallocate(pointers[i], sizes[i], stream);
}
