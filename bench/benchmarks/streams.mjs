/** The memory that it costs if several streams share a pool or an arena. */
import { formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} StreamsRow
 * @property {string} resource
 * @property {string} events
 * @property {number} capacity the smallest one that completes, over the peak of live bytes; too large by at most `precision`
 * @property {number} always the ratio from which on all complete
 * @property {number} precision
 * @property {number} peakLiveBytes
 * @property {number} synchronizations of the smallest one from which on all complete, in one replay
 * @property {number} eventRecords
 * @property {number} leakedBytes
 */

export const name = 'streams';
export const title =
  'Smallest pool and arena that completes arrow-etl on a stream for each thread, over its peak of live bytes, in steps of 2 %';

const precision = 0.02;
const resources = ['pool(cuda, maximumBytes=SIZE)', 'pool(cuda, initialBytes=SIZE, maximumBytes=SIZE)', 'arena(cuda, arenaBytes=SIZE)'];

/** @param {Context} context @returns {Promise<StreamsRow[]>} */
export async function run(context) {
  const trace = context.traces.find((each) => each.name === 'arrow-etl');
  if (trace === undefined) {
    context.skip('streams: arrow-etl is not among the traces');
    return [];
  }
  const log = await context.cistern.readAllocationLog(trace.path);
  const rows = [];
  for (const text of resources) {
    for (const events of ['eager', 'deferred', 'off']) {
      context.progress(`${text}, ${events}`);
      const resource = text.replace(/\)$/, `, deallocationEvents=${events})`);
      const { capacity, always, peakLiveBytes } = await runSubject('capacity', {
        trace: trace.path,
        resource,
        streams: 'thread',
        precision,
      });
      const bytes = Math.ceil((peakLiveBytes * always) / 256) * 256;
      const createStack = () => context.cistern.createResourceStack(resource.replaceAll('SIZE', String(bytes)));
      const { driver, failures, leakedBytes } = context.cistern.replayLog(log, createStack, { streams: 'thread', repeat: 1 });
      if (failures > 0) throw new Error(`${failures} allocations failed in ${resource} with ${bytes} bytes`);
      const { synchronizations, eventRecords } = driver;
      rows.push({
        resource: text,
        events,
        capacity,
        always,
        precision,
        peakLiveBytes,
        synchronizations,
        eventRecords,
        leakedBytes: leakedBytes ?? 0,
      });
    }
  }
  return rows;
}

/** @param {StreamsRow[]} rows */
export function format(rows) {
  return formatTable(
    ['resource', 'events', 'smallest', 'all complete\nfrom', 'event records\nthere', 'syncs\nthere', 'leaked\nbytes'],
    rows.map((row) => [
      row.resource,
      row.events,
      formatNumber(row.capacity, 2),
      formatNumber(row.always, 2),
      String(row.eventRecords),
      String(row.synchronizations),
      String(row.leakedBytes),
    ]),
    2,
  );
}
