/** What serving a pass from a plan costs, beside a pool and a resource that does nothing. */
import { combined, formatNumber, formatSpread, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} PlannedRow
 * @property {string} trace
 * @property {string} subject
 * @property {Figures} nanosecondsPerOperation
 * @property {{ median: number, minimum: number } | undefined} added over the null resource
 * @property {number} eventRecords
 * @property {number} highWaterRatio the span of addresses used over the peak of live bytes
 * @property {number | undefined} limit
 * @property {string} met
 */

export const name = 'planned';
export const title = 'ns per operation of a whole replay, one stream: from a plan, through a pool, and over a resource that does nothing';

export const traces = ['torch-ddp-training', 'torch-owlv2-inference'];
const subjects = /** @type {const} */ (['null', 'planned', 'pool']);
const initialFactor = 2;

/** @param {Context} context @returns {Promise<PlannedRow[]>} */
export async function run(context) {
  const rows = [];
  for (const trace of context.traces.filter((each) => traces.includes(each.name))) {
    /** @type {Map<string, any[]>} */
    const results = new Map();
    for (let round = 0; round < context.rounds; round++) {
      for (const subject of subjects) {
        context.progress(`${trace.name}: ${subject}, round ${round + 1} of ${context.rounds}`);
        const parameters = { trace: trace.path, subject, repeat: context.repeat, events: 'deferred', initialFactor };
        results.set(subject, [...(results.get(subject) ?? []), await runSubject('replay', parameters)]);
      }
    }
    /** @param {string} subject @returns {Figures} */
    const figures = (subject) => combined((results.get(subject) ?? []).map((result) => result.nanosecondsPerOperation));
    const nothing = figures('null');
    for (const subject of subjects) {
      const nanosecondsPerOperation = figures(subject);
      const { driver, highWaterBytes, peakLiveBytes } = /** @type {any[]} */ (results.get(subject))[0];
      const { median, minimum } = nanosecondsPerOperation;
      const added = subject === 'null' ? undefined : { median: median - nothing.median, minimum: minimum - nothing.minimum };
      const limit = subject === 'planned' ? context.baseline.plannedAdded : undefined;
      rows.push({
        trace: trace.name,
        subject: subject === 'pool' ? 'pool, deferred' : subject,
        nanosecondsPerOperation,
        added,
        eventRecords: driver.eventRecords,
        highWaterRatio: highWaterBytes / peakLiveBytes,
        limit,
        met: added === undefined ? '-' : verdict(added, limit),
      });
    }
  }
  return rows;
}

/** @param {PlannedRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'trace',
      'subject',
      'median',
      'minimum',
      'spread',
      'added\n(medians)',
      'added\n(minima)',
      'limit',
      'within',
      'events\nrecorded',
      'high\nwater',
    ],
    rows.map((row) => [
      row.trace,
      row.subject,
      formatNumber(row.nanosecondsPerOperation.median),
      formatNumber(row.nanosecondsPerOperation.minimum),
      formatSpread(row.nanosecondsPerOperation),
      formatNumber(row.added?.median),
      formatNumber(row.added?.minimum),
      formatNumber(row.limit, 0),
      row.met,
      String(row.eventRecords),
      row.subject === 'null' ? '-' : formatNumber(row.highWaterRatio, 3),
    ]),
    2,
  );
}
