/** How many events the pool records. Counts, not times. */
import { formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} EventsRow
 * @property {string} trace
 * @property {string} streams
 * @property {string} events
 * @property {number} frees
 * @property {number} eventRecords of the pool; the replay's own, before a free on another stream,
 * are `replayerRecords`
 * @property {number} eventWaits
 * @property {number} replayerRecords
 * @property {number} synchronizations
 * @property {number} peakReservedBytes
 * @property {string} limit
 * @property {string} met
 */

export const name = 'events';
export const title = 'Events recorded by pool(cuda), which grows as it needs; own streams: one for each thread of arrow-etl';

/** @param {Context} context @returns {Promise<EventsRow[]>} */
export async function run(context) {
  const rows = [];
  for (const trace of context.traces) {
    for (const streams of trace.name === 'arrow-etl' ? ['single', 'thread'] : ['single']) {
      /** @type {any} */
      let eager;
      for (const events of ['null', 'eager', 'deferred', 'off']) {
        context.progress(`${trace.name}, ${events}, streams: ${streams}`);
        const isNull = events === 'null';
        const subject = isNull ? { subject: 'null' } : { subject: 'pool', events };
        const result = await runSubject('replay', { trace: trace.path, streams, repeat: 1, ...subject });
        if (events === 'eager') eager = result;
        const { frees, driver, replayer, peakReservedBytes } = result;
        const { limit, isMet } = isNull ? { limit: '-', isMet: undefined } : judge(events, streams, result, eager, context);
        rows.push({
          trace: trace.name,
          streams,
          events: isNull ? 'null resource' : events,
          frees,
          eventRecords: driver.eventRecords,
          eventWaits: driver.eventWaits,
          replayerRecords: replayer.eventRecords,
          synchronizations: driver.synchronizations,
          peakReservedBytes: peakReservedBytes ?? 0,
          limit,
          met: isMet === undefined ? '-' : isMet ? 'yes' : 'no',
        });
      }
    }
  }
  return rows;
}

/**
 * @param {string} events
 * @param {string} streams
 * @param {any} result
 * @param {any} eager
 * @param {Context} context
 * @returns {{ limit: string, isMet: boolean | undefined }}
 */
function judge(events, streams, result, eager, context) {
  const { eventRecords } = result.driver;
  if (streams === 'single') {
    const expected = events === 'eager' ? result.frees : 0;
    return { limit: `${expected}`, isMet: eventRecords === expected };
  }
  if (events !== 'deferred') return { limit: '-', isMet: undefined };
  const { deferredRecordsRatio, peakReservedTolerance } = context.baseline;
  const most = Math.floor(eager.driver.eventRecords * deferredRecordsRatio);
  const difference = Math.abs(result.peakReservedBytes / eager.peakReservedBytes - 1);
  return {
    limit: `${most}, peak of eager within ${peakReservedTolerance * 100} %`,
    isMet: eventRecords <= most && difference <= peakReservedTolerance,
  };
}

/** @param {EventsRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'trace',
      'events',
      'frees',
      'event\nrecords',
      'per\nfree',
      'event\nwaits',
      "replay's\nown records",
      'syncs',
      'peak reserved\nMiB',
      'limit',
      'within',
    ],
    rows.map((row) => [
      row.streams === 'single' ? row.trace : `${row.trace} (a stream per thread)`,
      row.events,
      String(row.frees),
      String(row.eventRecords),
      formatNumber(row.eventRecords / row.frees, 4),
      String(row.eventWaits),
      String(row.replayerRecords),
      String(row.synchronizations),
      formatNumber(row.peakReservedBytes / 2 ** 20),
      row.limit,
      row.met,
    ]),
    2,
  );
}
