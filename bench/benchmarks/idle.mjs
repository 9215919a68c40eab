/** What a pool holds if a program pauses, and what it costs to return what is idle. */
import { combined, formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} IdleRow
 * @property {string} trace
 * @property {'without' | 'with'} option `idleMilliseconds`
 * @property {readonly number[]} heldBytes on average over time, of each process
 * @property {readonly number[]} peakBytes
 * @property {readonly number[]} driverCalls that allocate or free
 * @property {import('../support/figures.mjs').Figures} nanosecondsPerPair of a hit and its free
 */

export const name = 'idle';
export const title = 'What pool(cuda) holds of traces in 20 parts with pauses of 400 ms, MiB, without idleMilliseconds and with 100 ms';
export const traces = ['arrow-etl', 'torch-owlv2-inference', 'torch-ddp-training'];

const pauses = { parts: 20, pauseMilliseconds: 400 };

/** @param {Context} context @returns {Promise<IdleRow[]>} */
export async function run(context) {
  const rows = [];
  for (const trace of context.traces.filter((each) => traces.includes(each.name))) {
    /** @type {Record<'without' | 'with', any[]>} */
    const results = { without: [], with: [] };
    for (let round = 0; round < context.rounds; round++) {
      context.progress(`${trace.name}, round ${round + 1}`);
      const parameters = { trace: trace.path, ...pauses, repeat: context.repeat };
      results.without.push(await runSubject('idle', parameters));
      results.with.push(await runSubject('idle', { ...parameters, idleMilliseconds: 100 }));
    }
    for (const option of /** @type {const} */ (['without', 'with'])) {
      const all = (/** @type {string} */ key) => results[option].map((each) => each[key]);
      rows.push({
        trace: trace.name,
        option,
        heldBytes: all('heldBytes'),
        peakBytes: all('peakBytes'),
        driverCalls: all('driverCalls'),
        nanosecondsPerPair: combined(all('nanosecondsPerPair')),
      });
    }
  }
  return rows;
}

/** @param {IdleRow[]} rows */
export function format(rows) {
  return formatTable(
    ['trace', 'idle\nmemory', 'held', 'at the\npeak', 'driver\ncalls', 'ns a pair\nmedian', 'minimum'],
    rows.map(({ trace, option, heldBytes, peakBytes, driverCalls, nanosecondsPerPair }) => [
      trace,
      option === 'with' ? 'returns' : 'stays',
      range(heldBytes.map((bytes) => bytes / 2 ** 20)),
      range(peakBytes.map((bytes) => bytes / 2 ** 20)),
      range(driverCalls),
      formatNumber(nanosecondsPerPair.median),
      formatNumber(nanosecondsPerPair.minimum),
    ]),
    2,
  );
}

/** The smallest and the largest of the processes. @param {readonly number[]} values */
export function range(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)].map((value) => formatNumber(value, 0));
  return least === most ? String(least) : `${least} to ${most}`;
}
