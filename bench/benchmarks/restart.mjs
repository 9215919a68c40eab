/** How long a server takes to start with 2 GiB of weights in place, over a start without any. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { distFolder } from '../support/cistern.mjs';
import { figuresOf, formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} RestartRow
 * @property {'wall' | 'cpu'} time milliseconds from the start of the process until it is ready
 * @property {import('../support/figures.mjs').Figures} bare
 * @property {import('../support/figures.mjs').Figures} inPlace
 * @property {number} ratio of the medians
 * @property {number} leastRatio of the minima
 */

export const name = 'restart';
export const title = 'ms until a server is ready: without weights, and with 2 GiB of them in a region of cistern keep';

/** @param {Context} context @returns {Promise<RestartRow[]>} */
export async function run(context) {
  if (process.platform !== 'linux') {
    context.skip('restart: regions need Linux');
    return [];
  }
  const folder = mkdtempSync(join(tmpdir(), 'cistern-bench-'));
  process.env['CISTERN_KEEP'] = join(folder, 'keep.sock');
  const keep = spawn(process.execPath, [join(distFolder(), 'tools/cli/main.js'), 'keep'], { stdio: ['ignore', 'ignore', 'pipe'] });
  const bytes = 2 ** 31;
  /** @type {Record<'nothing' | 'weights', any[]>} */
  const results = { nothing: [], weights: [] };
  try {
    await once(/** @type {import('node:stream').Readable} */ (keep.stderr), 'data');
    await runSubject('restart', { bytes, has: 'weights' });
    for (let i = 0; i < context.rounds * context.repeat; i++) {
      context.progress(`start ${i + 1}`);
      for (const has of /** @type {const} */ (['nothing', 'weights'])) {
        const result = await runSubject('restart', { bytes, has });
        if (has === 'weights' && (result.wasWritten || result.value !== 7)) throw new Error('the weights were not in place');
        results[has].push(result);
      }
    }
  } finally {
    keep.kill();
    rmSync(folder, { recursive: true });
    delete process.env['CISTERN_KEEP'];
  }
  return [/** @type {const} */ (['wall', 'sinceStart']), /** @type {const} */ (['cpu', 'cpu'])].map(([time, key]) => {
    const bare = figuresOf(results.nothing.map((each) => each[key]));
    const inPlace = figuresOf(results.weights.map((each) => each[key]));
    return { time, bare, inPlace, ratio: inPlace.median / bare.median, leastRatio: inPlace.minimum / bare.minimum };
  });
}

/** @param {RestartRow[]} rows @param {Context} context */
export function format(rows, { baseline }) {
  return formatTable(
    ['time', 'without\nmedian', 'minimum', '2 GiB in place\nmedian', 'minimum', 'ratio of\nmedians', 'of minima', 'limit'],
    rows.map(({ time, bare, inPlace, ratio, leastRatio }) => [
      time,
      ...[bare.median, bare.minimum, inPlace.median, inPlace.minimum].map((value) => formatNumber(value)),
      formatNumber(ratio, 2),
      formatNumber(leastRatio, 2),
      formatNumber(baseline.restartRatio, 2),
    ]),
  );
}
