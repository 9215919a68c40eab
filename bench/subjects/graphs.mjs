/** What graphs hold, by the library and as they are captured; and the times of captures and launches. */
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { parameters, report } from '../support/processes.mjs';

/**
 * @typedef {object} GraphsParameters
 * @property {string} [trace] the path of a log, for bytes
 * @property {string} [subject] whose time is measured, without a log
 * @property {number} share the share of the log, in its middle, that is one step
 * @property {readonly number[]} batches the sizes of batches, of which the greatest has the sizes of the log
 * @property {number} factor by which the sizes of the log are enlarged
 * @property {number} repeat
 */

const { trace, subject = '', share, batches, factor, repeat } = /** @type {GraphsParameters} */ (parameters());
const cistern = await loadCistern();
report(trace === undefined ? timesOf(subject) : bytesOf(await stepOf(trace)));

/** @typedef {{ operations: number[], sizes: number[], isScaled: boolean[] }} Step */

/** A step of a log: what is requested within it, and what of that is freed within it. @param {string} path @returns {Promise<Step>} */
async function stepOf(path) {
  const log = await cistern.readAllocationLog(path);
  const [from, to] = [(log.eventCount * (1 - share)) / 2, (log.eventCount * (1 + share)) / 2].map(Math.round);
  /** @type {Step} */
  const step = { operations: [], sizes: [], isScaled: [] };
  /** @type {Map<number, number>} */
  const live = new Map();
  for (let i = 0; i < log.eventCount; i++) {
    const { action, bytes, slot } = log.event(i);
    if (bytes === 0) continue;
    const known = live.get(slot);
    if (action === 'free') {
      live.delete(slot);
      if (known === undefined) continue;
      step.isScaled[known] = true;
      if (i < to) step.operations.push(~known);
    } else if (i >= from && i < to) {
      const number = step.sizes.push(bytes) - 1;
      step.operations.push(number);
      // What the log never frees is not of the batch: a weight.
      step.isScaled[number] = false;
      live.set(slot, number);
    }
  }
  return step;
}

/** @param {Step} step @param {number} scale */
function scaled({ operations, sizes, isScaled }, scale) {
  const scaledSizes = sizes.map((bytes, i) => (isScaled[i] ? Math.max(512, Math.ceil((bytes * scale) / 512) * 512) : bytes));
  const streams = sizes.map(() => 0);
  const freed = new Set(operations.filter((operation) => operation < 0).map((operation) => ~operation));
  return { operations, sizes: scaledSizes, streams, freeStreams: sizes.map((_, i) => (freed.has(i) ? 0 : -1)) };
}

/** @typedef {ReturnType<typeof scaled>} Sequence */

/** @param {Step} step */
function bytesOf(step) {
  const most = Math.max(...batches);
  const graphs = batches.toSorted((a, b) => b - a).map((batch) => scaled(step, (factor * batch) / most));
  const descending = cistern.planGraphs(graphs, { timeLimitMilliseconds: 1000 });
  const ascending = cistern.planGraphs(graphs.toReversed(), { timeLimitMilliseconds: 0 });
  const ascendingGraphs = graphs.toReversed();
  const captured = [
    { upstream: 'virtual', order: 'largest first', ...captureAll('virtual', graphs) },
    { upstream: 'virtual', order: 'smallest first', ...captureAll('virtual', ascendingGraphs) },
    { upstream: 'cuda', order: 'largest first', ...captureAll('cuda', graphs) },
    { upstream: 'cuda', order: 'smallest first', ...captureAll('cuda', ascendingGraphs) },
    { upstream: 'cuda', order: 'smallest first, all warmed up before', ...captureAll('cuda', ascendingGraphs, true) },
  ];
  const { lowerBoundBytes, poolsBytes, sharedPoolBytes, plannedApartBytes, plannedBytes } = descending;
  return {
    graphs: graphs.length,
    allocations: step.sizes.length,
    lowerBoundBytes,
    poolsBytes,
    sharedPoolDescendingBytes: sharedPoolBytes,
    sharedPoolAscendingBytes: ascending.sharedPoolBytes,
    plannedApartBytes,
    plannedBytes,
    captured,
  };
}

/**
 * What a resource for graphs holds after all are captured, each after its warm-up, or all after all warm-ups.
 * @param {'virtual' | 'cuda'} kind
 * @param {Sequence[]} sequences
 */
function captureAll(kind, sequences, isWarmedUpBefore = false) {
  const upstream = kind === 'cuda' ? new cistern.CudaMemoryResource() : new cistern.VirtualMemoryResource();
  const fallback = new cistern.CudaMemoryResource();
  const graphs = new cistern.GraphMemoryResource(upstream, { planner: cistern.planAllocations, fallback });
  const stream = new cistern.Stream({ nonBlocking: true });
  /** @param {Sequence} sequence @param {number} i */
  const warmUp = (sequence, i) => {
    /** @type {number[]} */
    let left = [];
    graphs.warmUp(`graph ${i}`, () => {
      left = pass(graphs, sequence, stream);
    });
    for (const [number, pointer] of left.entries()) if (pointer > 0) graphs.deallocate(pointer, sequence.sizes[number], stream);
  };
  if (isWarmedUpBefore) sequences.forEach(warmUp);
  const kept = sequences.map((sequence, i) => {
    if (!isWarmedUpBefore) warmUp(sequence, i);
    return graphs.capture(stream, () => pass(graphs, sequence, stream), { name: `graph ${i}` });
  });
  const { reservedBytes, plannedCaptures } = graphs.statistics();
  if (plannedCaptures !== kept.length) throw new Error(`${plannedCaptures} of ${kept.length} captures followed their plans`);
  for (const graph of kept) graph.dispose();
  graphs.dispose();
  stream.dispose();
  fallback.dispose();
  const { granularityBytes = 1 } = /** @type {{ granularityBytes?: number }} */ (upstream);
  upstream.dispose();
  return { reservedBytes, granularityBytes };
}

/**
 * Runs a sequence; returns the addresses of what it does not free, and 0 for the rest.
 * @param {import('../../src/index.js').MemoryResource} resource
 * @param {Sequence} sequence
 * @param {import('../../src/index.js').Stream} stream
 */
function pass(resource, { operations, sizes }, stream) {
  const pointers = new Array(sizes.length).fill(0);
  for (const operation of operations) {
    if (operation >= 0) pointers[operation] = resource.allocate(sizes[operation], stream);
    else {
      resource.deallocate(pointers[~operation], sizes[~operation], stream);
      pointers[~operation] = 0;
    }
  }
  return pointers;
}

/** What one process measures, so that V8 compiles the code of each subject for it alone. @param {string} subject */
function timesOf(subject) {
  const count = 10_000;
  const liveCount = 8;
  const bytes = Array.from({ length: count }, (_, i) => 512 * (1 + ((i * 7) % 64)));
  const upstream = new cistern.VirtualMemoryResource();
  const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), { initialBytes: cistern.MiB * 64 });
  const stream = new cistern.Stream({ nonBlocking: true });
  const planned = new cistern.GraphMemoryResource(upstream, { planner: cistern.planAllocations, fallback: pool });
  const searching = new cistern.GraphMemoryResource(upstream, { fallback: pool });
  if (subject === 'launches') return { launches: launches(planned, stream, pool.allocate(4096, stream)) };
  const pointers = new Float64Array(count);
  /** Each allocation is filled, and freed after some more. @param {Pick<import('../../src/index.js').MemoryResource, 'allocate' | 'deallocate'>} resource */
  const step = (resource) => {
    for (let i = 0; i < count + liveCount; i++) {
      if (i < count) {
        pointers[i] = resource.allocate(bytes[i], stream);
        cistern.set(pointers[i], 1, 1, 256, stream);
      }
      if (i >= liveCount) resource.deallocate(pointers[i - liveCount], bytes[i - liveCount], stream);
    }
  };
  planned.warmUp('step', () => step(planned));
  // Kept: its addresses are used again.
  const first = planned.capture(stream, () => step(planned), { name: 'step' });
  const addresses = pointers.slice();
  let next = 0;
  /** Gives the same addresses, and does nothing else. */
  const known = { allocate: () => addresses[next++], deallocate: () => {} };
  const withKnown = () => {
    next = 0;
    step(known);
  };
  /** @type {Record<string, () => unknown>} */
  const runs = {
    planned: () => planned.capture(stream, () => step(planned), { name: 'step' }),
    searching: () => searching.capture(stream, () => step(searching)),
    'not captured, from a pool': () => step(pool),
    'captured, the same addresses without a resource': () => stream.capture(withKnown),
  };
  const run = runs[subject];
  /** @type {number[]} */
  const samples = [];
  for (let i = 0; i < repeat + 30; i++) {
    const began = performance.now();
    const result = run();
    const milliseconds = performance.now() - began;
    if (result instanceof cistern.Graph) result.dispose();
    stream.synchronizeSync();
    if (i >= 30) samples.push(milliseconds);
  }
  first.dispose();
  return { milliseconds: figuresOf(samples) };
}

/**
 * Launches of a graph with one fill, bare and with memory, of one allocation and of many.
 * @param {import('../../src/index.js').GraphMemoryResource} graphs
 * @param {import('../../src/index.js').Stream} stream
 * @param {number} block
 */
function launches(graphs, stream, block) {
  const fill = () => cistern.set(block, 1, 1, 256, stream);
  /** @param {number} count */
  const withMemory = (count) => () => {
    for (let i = 0; i < count; i++) graphs.deallocate(graphs.allocate(4096, stream), 4096, stream);
    fill();
  };
  const subjects = [
    { subject: 'bare', exec: stream.capture(fill).instantiate() },
    { subject: '1 allocation', exec: graphs.capture(stream, withMemory(1), { name: 'one' }).instantiate() },
    { subject: '1000 allocations', exec: graphs.capture(stream, withMemory(1000), { name: 'many' }).instantiate() },
  ].map((each) => ({ ...each, samples: /** @type {number[]} */ ([]) }));
  const count = 500;
  for (let i = 0; i < repeat + 2; i++) {
    for (const { exec, samples } of subjects) {
      const began = performance.now();
      for (let n = 0; n < count; n++) exec.launch(stream);
      const microseconds = ((performance.now() - began) / count) * 1000;
      stream.synchronizeSync();
      if (i >= 2) samples.push(microseconds);
    }
  }
  return subjects.map(({ subject, samples }) => ({ subject, microseconds: figuresOf(samples) }));
}
