/** Requests that come faster than memory for them: without admission, with retries, with it, and with it and the host. */
import { formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} ServingRow
 * @property {string} trace
 * @property {number} share the device over the peak of all requests that run at once
 * @property {'retries' | 'admission' | 'returns' | 'spill' | 'spill by cost' | 'claims'} mode
 * @property {number} factor of the device that claims may be, in the model of these
 * @property {number} margin the share of the device that is not promised, since a pool cannot use it for every request
 * @property {number} failed requests
 * @property {number} repeated attempts that found no memory
 * @property {number} turns
 * @property {number} waitingTurns those in which a request waited for memory
 * @property {number} used mean share of the device that is allocated in these
 * @property {number} committed mean share that is allocated or promised in these
 * @property {number} waitMedian in turns, as the others
 * @property {number} wait99
 * @property {number} waitWorst
 * @property {number} spilledBytes
 * @property {number} bytes of the device
 * @property {number} milliseconds
 */

export const name = 'serving';
export const title =
  '2,000 requests, each a part of a log, 64 at once, on a device smaller than their peak; times in turns, in which each request makes one call; a pool over virtual memory';

export const traces = ['arrow-etl', 'torch-ddp-training', 'torch-owlv2-inference'];
const requests = 2000;
const atOnce = 64;
const shares = [0.5, 0.75, 1];
const steps = 0.05;
const most = 0.3;
/** Sizes are divided by this where buffers leave, since their contents are copied. */
const spillScale = 16;
/** How much of the device may be claimed, in the model of waits at each allocation. */
const factors = [1, 1.25, 1.5, 2, 3];

/** @param {Context} context @returns {Promise<ServingRow[]>} */
export async function run(context) {
  /** @type {ServingRow[]} */
  const rows = [];
  for (const trace of context.traces.filter((each) => traces.includes(each.name))) {
    const common = { trace: trace.path, requests, atOnce };
    const { peakBytes } = await runSubject('serving', { ...common, mode: 'unlimited', bytes: 0, margin: 0, scale: 1 });
    for (const share of shares) {
      const bytes = Math.ceil((peakBytes * share) / 2 ** 20) * 2 ** 20;
      /** @param {ServingRow['mode']} mode @param {number} margin @param {number} scale */
      const serve = async (mode, margin, scale = 1) => {
        context.progress(`${trace.name}, ${share}, ${mode}, ${margin}`);
        const given = { ...common, mode, bytes: Math.ceil(bytes / scale), margin, scale };
        const row = { trace: trace.name, share, mode, margin, factor: 1, bytes: given.bytes, ...(await runSubject('serving', given)) };
        return /** @type {ServingRow} */ (row);
      };
      rows.push(await serve('retries', 0));
      for (const [mode, scale] of /** @type {const} */ ([
        ['admission', 1],
        ['returns', 1],
        ['spill', spillScale],
        ['spill by cost', spillScale],
      ])) {
        let row = await serve(mode, 0, scale);
        rows.push(row);
        // The least margin with which every promise is kept.
        for (let margin = steps; row.failed > 0 && margin <= most; margin += steps) row = await serve(mode, margin, scale);
        if (row !== rows.at(-1)) rows.push(row);
      }
      for (const factor of factors) {
        const given = { ...common, bytes, factor };
        rows.push({ trace: trace.name, share, mode: 'claims', margin: 0, bytes, factor, ...(await runSubject('claims', given)) });
      }
    }
  }
  return rows;
}

/** @type {Record<ServingRow['mode'], (row: ServingRow) => string>} */
const modes = {
  retries: () => 'tries again',
  admission: () => 'waits',
  returns: () => 'waits, and returns\nwhat it will not need',
  spill: () => 'makes others leave,\nleast recently used',
  'spill by cost': () => 'makes others leave,\nby cost of return',
  claims: ({ factor }) => `model: waits at each\nallocation, claims x ${factor}`,
};

/** @param {ServingRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'trace',
      'device',
      'a request for which\nthere is no memory',
      'not\npromised',
      'failed',
      'repeated',
      'turns',
      'with\nwaits',
      'allocated\nin these',
      'or\npromised',
      'wait\nmedian',
      '99 %',
      'worst',
      'left, of the\ndevice',
    ],
    rows.map((row) => [
      row.trace,
      formatNumber(row.share, 2),
      modes[row.mode](row),
      formatNumber(row.margin, 2),
      String(row.failed),
      String(row.repeated),
      String(row.turns),
      String(row.waitingTurns),
      formatNumber(row.used, 2),
      formatNumber(row.committed, 2),
      String(row.waitMedian),
      String(row.wait99),
      String(row.waitWorst),
      row.mode.startsWith('spill') ? formatNumber(row.spilledBytes / row.bytes, 1) : '',
    ]),
    3,
  );
}
