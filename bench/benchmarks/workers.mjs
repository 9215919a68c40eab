/**
 * One arena for all workers, beside a pool in each, beside one pool of the driver, and, if
 * `CISTERN_PEERS` names its program, beside RMM's pool, which threads share under its mutex.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { formatNumber } from '../support/figures.mjs';
import { Peers } from '../support/peers.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} WorkersRow
 * @property {string} stack
 * @property {number} capacity the smallest memory that completes, over the peak of live bytes; too large by at most `precision`
 * @property {number} precision
 * @property {Record<number, number>} nanoseconds by number of workers: time over all operations of all workers; NaN if memory ran out
 */

export const name = 'workers';
export const title =
  'arrow-etl split by its threads over 4 workers: smallest memory for all, over its peak of live bytes, in steps of 4 %; and ns of wall time per operation';

const precision = 0.04;
const most = 3;
const workers = 4;
/** Events of a worker in a turn, if they take turns. */
const windowEvents = 1000;
const repeat = 10;
/** Memory over the peak of live bytes, if time is measured. */
const roomy = 4;
const peerTimeout = 300_000;
const counts = [1, 2, 4];
const stacks = /** @type {const} */ (['global-arena', 'pools', 'driver-pool']);
const titles = {
  'global-arena': 'a pool in each worker on one global arena',
  pools: 'a pool in each worker',
  'driver-pool': 'one pool of the driver',
  'rmm-pool': "RMM's pool in C++, shared by threads",
};

/** @param {Context} context @returns {Promise<WorkersRow[]>} */
export async function run(context) {
  const trace = context.traces.find((each) => each.name === 'arrow-etl');
  if (trace === undefined) {
    context.skip('workers: arrow-etl is not among the traces');
    return [];
  }
  const log = await context.cistern.readAllocationLog(trace.path);
  const { peakLiveBytes } = log;
  const peaks = peaksOf(log);
  const rows = [];
  for (const stack of stacks) {
    rows.push(
      await measure(context, stack, peakLiveBytes, stack === 'pools' ? peaks : undefined, (parameters) =>
        runSubject('workers', { trace: trace.path, stack, ...parameters }),
      ),
    );
  }
  const peers = new Peers();
  if (!peers.isAvailable) {
    context.skip(`${titles['rmm-pool']}: CISTERN_PEERS names no program (bench/README.md)`);
    return rows;
  }
  const folder = mkdtempSync(join(tmpdir(), 'cistern-bench-workers-'));
  try {
    const csv = join(folder, 'arrow-etl.csv');
    writeFileSync(csv, trace.path.endsWith('.gz') ? gunzipSync(readFileSync(trace.path)) : readFileSync(trace.path));
    rows.push(
      await measure(context, 'rmm-pool', peakLiveBytes, undefined, ({ window, ...options }) =>
        peers.run('workers', 'pool', csv, { ...options, window: window ?? 0 }, peerTimeout),
      ),
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
  return rows;
}

/**
 * @param {Context} context
 * @param {keyof typeof titles} stack
 * @param {number} peakLiveBytes
 * @param {Float64Array | undefined} peaks of each worker, if each has its own memory
 * @param {(parameters: { workers: number, bytes: number, repeat: number, window?: number, only?: number }) => Promise<any>} runWorkers
 * @returns {Promise<WorkersRow>}
 */
async function measure(context, stack, peakLiveBytes, peaks, runWorkers) {
  /** @param {number} [only] */
  const least = async (only) => {
    for (let ratio = only === undefined || peaks === undefined ? 1 : peaks[only] / peakLiveBytes; ratio < most; ratio += precision) {
      context.progress(`${stack}, ${formatNumber(ratio, 2)}`);
      const bytes = Math.ceil((peakLiveBytes * ratio) / 2 ** 20) * 2 ** 20;
      const { completed } = await runWorkers({ workers, bytes, repeat: 1, window: windowEvents, ...(only === undefined ? {} : { only }) });
      if (completed) return ratio;
    }
    return Number.NaN;
  };
  let capacity = 0;
  // A pool that a worker has for itself needs what that worker needs alone.
  if (peaks === undefined) capacity = await least();
  else for (let only = 0; only < workers; only++) capacity += await least(only);
  /** @type {Record<number, number>} */
  const nanoseconds = {};
  for (const count of counts) {
    context.progress(`${stack}, ${count} workers`);
    const samples = [];
    for (let round = 0; round < context.rounds; round++) {
      const bytes = roomy * Math.ceil(peakLiveBytes / 2 ** 20) * 2 ** 20;
      const { completed, nanoseconds: each } = await runWorkers({ workers: count, bytes, repeat });
      samples.push(completed ? each : Number.NaN);
    }
    nanoseconds[count] = Math.min(...samples);
  }
  return { stack, capacity, precision, nanoseconds };
}

/**
 * The peaks of live bytes of the parts that workers replay.
 * @param {import('../../src/tools/replay/index.js').AllocationLog} log
 */
function peaksOf(log) {
  const ownerOf = new Uint8Array(log.slotCount);
  const live = new Float64Array(workers);
  const peaks = new Float64Array(workers);
  for (const { count, operations, sizes, threads } of log.chunks) {
    for (let row = 0; row < count; row++) {
      const operation = operations[row];
      const slot = operation >= 0 ? operation : ~operation;
      if (operation >= 0) ownerOf[slot] = threads[row] % workers;
      const owner = ownerOf[slot];
      live[owner] += operation >= 0 ? sizes[row] : -sizes[row];
      peaks[owner] = Math.max(peaks[owner], live[owner]);
    }
  }
  return peaks;
}

/** @param {WorkersRow[]} rows */
export function format(rows) {
  return formatTable(
    ['stack', 'smallest', ...counts.map((count) => `ns/op\n${count} worker${count === 1 ? '' : 's'}`)],
    rows.map(({ stack, capacity, nanoseconds }) => [
      titles[/** @type {keyof typeof titles} */ (stack)],
      formatNumber(capacity, 2),
      ...counts.map((count) => formatNumber(nanoseconds[count], 0)),
    ]),
  );
}
