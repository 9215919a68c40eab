/**
 * Finds the smallest resource that completes a trace, by trying every size on a grid from the peak
 * of live bytes upwards. More memory is not always better: a slightly larger one may fail again,
 * since it cuts its blocks elsewhere. Bisection would therefore give any of several answers, and
 * the size from which on all complete is reported as well.
 */
import { loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';

/** @typedef {import('../../src/index.js').MemoryResource} MemoryResource */

/** All sizes up to this far above the last failing one must complete. */
const margin = 0.05;

/**
 * @typedef {object} CapacityParameters
 * @property {string} trace the path of the log
 * @property {string} resource a specification, in which SIZE stands for its bytes
 * @property {import('../../src/tools/replay/index.js').ReplayStreams} streams
 * @property {number} precision the step of the grid, as a share of the peak of live bytes
 */

const { trace, resource, streams, precision } = /** @type {CapacityParameters} */ (parameters());
const cistern = await loadCistern();
const log = await cistern.readAllocationLog(trace);

/** Ends a replay at the first failing allocation, instead of continuing without it. */
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
  const specification = resource.replaceAll('SIZE', String(bytes));
  const createStack = () => cistern.ResourceStack.of(new FirstFailureEnds(cistern.createResource(specification)));
  replays++;
  try {
    cistern.replayLog(log, createStack, { streams, repeat: 1 });
    return true;
  } catch (error) {
    if (error instanceof cistern.ReplayError && error.cause instanceof Exhausted) return false;
    throw error;
  }
}

/** @type {number | undefined} */
let least;
let always = 1;
for (let step = 0; least === undefined || 1 + step * precision < always + margin; step++) {
  const ratio = 1 + step * precision;
  if (completes(ratio)) least ??= ratio;
  else always = ratio + precision;
}
report({ capacity: least, always, precision, peakLiveBytes: log.peakLiveBytes, replays });
