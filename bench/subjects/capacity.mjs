/**
 * Finds the smallest pool that completes a trace, by bisection. More memory is not always better: a slightly larger pool may fail again, since it
 * cuts its blocks elsewhere. So a grid around the result is tried as well.
 */
import { loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';

/** @typedef {import('../../src/index.js').MemoryResource} MemoryResource */

/** How close the bisection comes, as a share of the peak of live bytes. */
const precision = 0.001;
const gridStep = 0.005;
const gridMargin = 0.05;

/**
 * @typedef {object} CapacityParameters
 * @property {string} trace the path of the log
 * @property {import('../../src/index.js').DeallocationEvents} events
 * @property {import('../../src/index.js').ReplayStreams} streams
 * @property {boolean} withGrid
 */

const { trace, events, streams, withGrid } = /** @type {CapacityParameters} */ (parameters());
const cistern = await loadCistern();
const log = await cistern.readAllocationLog(trace);

/** Ends a replay at the first allocation that fails, instead of going on without it. */
class Exhausted extends Error {}

/** @implements {MemoryResource} */
class FirstFailureEnds {
  /** @param {MemoryResource} upstream */
  constructor(upstream) {
    this.upstream = upstream;
    this.device = upstream.device;
    this.memoryKind = upstream.memoryKind;
  }

  /** @type {MemoryResource['allocate']} */
  allocate(bytes, stream, alignment) {
    try {
      return this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      if (error instanceof cistern.OutOfMemoryError) throw new Exhausted();
      throw error;
    }
  }

  /** @type {MemoryResource['deallocate']} */
  deallocate(pointer, bytes, stream, fence) {
    this.upstream.deallocate(pointer, bytes, stream, fence);
  }

  /** @type {MemoryResource['isEqual']} */
  isEqual(other) {
    return other === this;
  }

  [Symbol.dispose]() {}
}

let replays = 0;

/** @param {number} ratio */
function completes(ratio) {
  const bytes = Math.ceil((log.peakLiveBytes * ratio) / 256) * 256;
  const options = { initialBytes: bytes, maximumBytes: bytes, deallocationEvents: events };
  const createStack = () => {
    const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), options);
    return cistern.ResourceStack.of(new FirstFailureEnds(pool));
  };
  replays++;
  try {
    cistern.replayLog(log, createStack, { streams, repeat: 1 });
    return true;
  } catch (error) {
    if (error instanceof cistern.ReplayError && error.cause instanceof Exhausted) return false;
    throw error;
  }
}

let failing = 1;
let completing = 1;
for (let step = 0.02; !completes(completing); step *= 2) {
  failing = completing;
  completing = 1 + step;
}
while (completing - failing > precision) {
  const middle = (failing + completing) / 2;
  if (completes(middle)) completing = middle;
  else failing = middle;
}
report({ capacity: completing, precision, peakLiveBytes: log.peakLiveBytes, ...(withGrid ? tryGrid() : {}), replays });

/** The least ratio that completes, and the least from which all complete, as far as was tried. */
function tryGrid() {
  let least = completing;
  let always = completing;
  const steps = Math.ceil((completing - 1 + gridMargin) / gridStep);
  for (let step = 0; step <= steps; step++) {
    const ratio = 1 + step * gridStep;
    if (!completes(ratio)) always = Math.max(always, ratio + gridStep);
    else least = Math.min(least, ratio);
  }
  return { least, always };
}
