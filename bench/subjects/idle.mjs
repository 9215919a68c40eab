/** Replays a trace in parts with pauses between them through a pool that returns idle memory, or does not; then times hits of that pool. */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { distFolder, loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { parameters, report } from '../support/processes.mjs';

const { trace, idleMilliseconds, parts, pauseMilliseconds, repeat } =
  /** @type {{ trace: string; idleMilliseconds?: number; parts: number; pauseMilliseconds: number; repeat: number }} */ (parameters());
const cistern = await loadCistern();
const { driverCallCounts } = await import(pathToFileURL(join(distFolder(), 'tools/testing/index.js')).href);
const log = await cistern.readAllocationLog(trace);
const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), {
  deallocationEvents: 'deferred',
  ...(idleMilliseconds === undefined ? {} : { idleMilliseconds }),
});
const stream = new cistern.Stream();
const pointers = new Float64Array(log.slotCount);
const bytes = new Float64Array(log.slotCount);
const calls = () => {
  const { allocations, frees } = driverCallCounts();
  return allocations + frees;
};

const before = calls();
let [peakBytes, weighted, elapsed, last] = [0, 0, 0, performance.now()];
/** Counts what was held since the last look. */
function look() {
  const now = performance.now();
  const held = pool.statistics().reservedBytes;
  weighted += held * (now - last);
  elapsed += now - last;
  last = now;
  peakBytes = Math.max(peakBytes, held);
}
let done = 0;
let next = log.eventCount / parts;
for (const { operations, sizes, count } of log.chunks) {
  for (let row = 0; row < count; row++) {
    const operation = /** @type {number} */ (operations[row]);
    if (operation >= 0) {
      bytes[operation] = /** @type {number} */ (sizes[row]);
      pointers[operation] = pool.allocate(/** @type {number} */ (bytes[operation]), stream);
      peakBytes = Math.max(peakBytes, pool.reservedBytes);
    } else {
      pool.deallocate(/** @type {number} */ (pointers[~operation]), /** @type {number} */ (bytes[~operation]), stream);
    }
    if (++done < next) continue;
    next += log.eventCount / parts;
    for (const end = performance.now() + pauseMilliseconds; performance.now() < end; look()) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}
look();
const driverCalls = calls() - before;

const pairs = 100_000;
const pair = () => pool.deallocate(pool.allocate(4096, stream), 4096, stream);
for (let i = 0; i < 3 * pairs; i++) pair();
const samples = Array.from({ length: repeat }, () => {
  const began = performance.now();
  for (let i = 0; i < pairs; i++) pair();
  return ((performance.now() - began) * 1e6) / pairs;
});
report({ heldBytes: weighted / elapsed, peakBytes, driverCalls, nanosecondsPerPair: figuresOf(samples) });
process.exit(0);
