/** Replaces random blocks of 256 B to 64 KiB among many that are live. */
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { seededNumbers } from '../support/numbers.mjs';
import { parameters, report } from '../support/processes.mjs';

const { events, live, repeat } = /** @type {{ events: import('../../src/index.js').DeallocationEvents, live: number, repeat: number }} */ (
  parameters()
);
const cistern = await loadCistern();
const random = seededNumbers();
const sizes = Float64Array.from({ length: 1 << 16 }, () => Math.floor(2 ** (8 + 8 * random())));
const places = Uint32Array.from({ length: 1 << 20 }, () => Math.floor(random() * live));
// The mean size is 12 KiB, so the pool never grows.
const initialBytes = Math.max(live * 32 * 1024, 64 * cistern.MiB);
const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), { initialBytes, deallocationEvents: events });
const stream = new cistern.Stream({ nonBlocking: true });
const blocks = new Float64Array(live);
const held = new Uint32Array(live);
let next = 0;
let at = 0;
for (let place = 0; place < live; place++) allocate(place);
// Every block is replaced about twice before the first sample.
replace(Math.max(2 * live, 400_000));
const samples = Array.from({ length: repeat }, () => {
  const steps = 200_000;
  const start = performance.now();
  replace(steps);
  return ((performance.now() - start) * 1e6) / (2 * steps);
});
report({ nanosecondsPerOperation: figuresOf(samples) });

/** @param {number} place */
function allocate(place) {
  held[place] = next++ & 0xffff;
  blocks[place] = pool.allocate(sizes[held[place]], stream);
}

/** @param {number} steps */
function replace(steps) {
  for (let i = 0; i < steps; i++) {
    const place = places[at++ & 0xfffff];
    pool.deallocate(blocks[place], sizes[held[place]], stream);
    allocate(place);
  }
}
