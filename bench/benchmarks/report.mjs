/** The cost of `cistern report` for a million events: to write, store, open and zoom. */
import { findChromium } from '../support/chromium.mjs';
import { formatNumber, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */
/** @typedef {import('../support/figures.mjs').Figures} Figures */

/**
 * @typedef {object} ReportRow
 * @property {string} trace
 * @property {number} events
 * @property {number} bytes the size of the page
 * @property {Figures} writeMilliseconds
 * @property {Figures | undefined} firstPaintMilliseconds
 * @property {Figures | undefined} openMilliseconds until every view has been drawn
 * @property {Figures | undefined} longestFrameMilliseconds while the wheel turns over the map
 * @property {Figures | undefined} medianFrameMilliseconds
 * @property {string} sizeMet
 * @property {string} openMet
 */

export const name = 'report';
export const title =
  'The report of a log: time to write it, its size, and in Chromium the time to open it and the frames while zooming; milliseconds';

export const traces = ['random', 'dataframe', 'small-hot', 'arrow-etl'];

/** @param {Context} context @returns {Promise<ReportRow[]>} */
export async function run(context) {
  const limits = context.baseline.report;
  const chromium = findChromium();
  if (chromium === undefined) context.skip('the report in a browser: no Chromium was found; set CHROMIUM_PATH');
  const rows = [];
  for (const trace of context.traces.filter((each) => traces.includes(each.name))) {
    context.progress(trace.name);
    const figures = await runSubject('report', { trace: trace.path, chromium, repeat: Math.min(3, context.repeat) });
    const { bytes, openMilliseconds } = figures;
    rows.push({
      trace: trace.name,
      ...figures,
      sizeMet: verdict({ median: bytes, minimum: bytes }, limits.bytes),
      openMet: openMilliseconds === undefined ? '-' : verdict(openMilliseconds, limits.openMilliseconds),
    });
  }
  return rows;
}

/** @param {ReportRow[]} rows */
export function format(rows) {
  const both = (/** @type {Figures | undefined} */ figures) =>
    figures === undefined ? '-' : `${formatNumber(figures.median, 0)} (${formatNumber(figures.minimum, 0)})`;
  return formatTable(
    ['trace', 'events', 'write', 'MB', 'within', 'first\npaint', 'open', 'within', 'frame,\nlongest', 'frame,\nmedian'],
    rows.map((row) => [
      row.trace,
      row.events.toLocaleString('en-US'),
      both(row.writeMilliseconds),
      formatNumber(row.bytes / 1e6, 2),
      row.sizeMet,
      both(row.firstPaintMilliseconds),
      both(row.openMilliseconds),
      row.openMet,
      both(row.longestFrameMilliseconds),
      both(row.medianFrameMilliseconds),
    ]),
  );
}
