/** Finds the smallest pool that completes a trace. */
import { loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';

/** @typedef {import('../../src/index.js').MemoryResource} MemoryResource */

/** How close the bisection comes, as a share of the peak of live bytes. */
const precision = 0.001;

const { trace, events, streams } = /** @type {Pick<import('./replay.mjs').ReplayParameters, 'trace' | 'events' | 'streams'>} */ (
  parameters()
);
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
  const options = { initialBytes: bytes, maximumBytes: bytes, ...(events === undefined ? {} : { deallocationEvents: events }) };
  const createStack = () => {
    const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), options);
    return cistern.ResourceStack.of(new FirstFailureEnds(pool));
  };
  replays++;
  try {
    cistern.replayLog(log, createStack, { streams: streams ?? 'single', repeat: 1 });
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
report({ capacity: completing, precision, peakLiveBytes: log.peakLiveBytes, replays });
