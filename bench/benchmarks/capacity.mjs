/** The cost of fragmentation: the smallest pool that completes a trace. */
import { formatNumber, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} CapacityRow
 * @property {string} trace
 * @property {string} streams
 * @property {number} capacity the smallest pool that completes, over the peak of live bytes; too large by at most `precision`
 * @property {number} precision
 * @property {number} always the ratio from which on all complete
 * @property {number} peakLiveBytes
 * @property {number | undefined} rmmCapacity
 * @property {number | undefined} limit
 * @property {string} met
 */

export const name = 'capacity';
export const title =
  'Smallest pool (initial = maximum size) that completes the trace, over its peak of live bytes, in steps of 0.25 %; deferred events';

const resource = 'pool(cuda, initialBytes=SIZE, maximumBytes=SIZE, deallocationEvents=deferred)';

/** @param {Context} context @returns {Promise<CapacityRow[]>} */
export async function run(context) {
  const rows = [];
  for (const trace of context.traces) {
    for (const streams of trace.name === 'multi-stream' ? ['single', 'log'] : ['single']) {
      context.progress(`${trace.name}, streams: ${streams}`);
      const parameters = { trace: trace.path, resource, streams, precision: 0.0025 };
      const { capacity, precision, always, peakLiveBytes } = await runSubject('capacity', parameters);
      const { rmmCapacity } = context.baseline.traces[trace.name];
      const limit = rmmCapacity === undefined ? undefined : rmmCapacity * (1 + context.baseline.capacityTolerance);
      const met = verdict({ median: capacity, minimum: capacity }, limit);
      rows.push({ trace: trace.name, streams, capacity, precision, always, peakLiveBytes, rmmCapacity, limit, met });
    }
  }
  return rows;
}

/** @param {CapacityRow[]} rows */
export function format(rows) {
  return formatTable(
    ['trace', 'capacity', 'RMM pool', 'limit\n(RMM + 1 %)', 'within', 'all complete\nfrom'],
    rows.map((row) => [
      row.streams === 'single' ? row.trace : `${row.trace} (own streams)`,
      formatNumber(row.capacity, 3),
      formatNumber(row.rmmCapacity, 3),
      formatNumber(row.limit, 3),
      row.met,
      formatNumber(row.always, 3),
    ]),
  );
}
