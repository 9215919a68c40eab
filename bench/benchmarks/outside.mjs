/** What `cistern run` adds to the driver's calls of a program that does not use cistern. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildOutside } from '../../scripts/build-for-tests.mjs';
import { distFolder } from '../support/cistern.mjs';
import { combined, formatNumber, formatSpread, verdict } from '../support/figures.mjs';
import { runJson } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} OutsideRow
 * @property {string} calls
 * @property {string} stacks
 * @property {Figures} alone
 * @property {Figures} recorded
 * @property {{ median: number, minimum: number }} added
 * @property {number | undefined} limit for `added`
 * @property {string} met
 */

export const name = 'outside';
export const title = 'ns for an allocation of 4 KiB, for its free, and for another call, of a program in C++: alone, and under cistern run';

const descriptions = {
  plain: 'cuMemAlloc',
  plainFree: 'cuMemFree',
  async: 'cuMemAllocAsync',
  asyncFree: 'cuMemFreeAsync',
  other: 'cuCtxSetCurrent',
};
const callsOfSample = 2000;

/** @param {Context} context @returns {Promise<OutsideRow[]>} */
export async function run(context) {
  let folder;
  try {
    folder = buildOutside();
  } catch (error) {
    context.skip(`outside: ${String(error)}`);
    return [];
  }
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-bench-'));
  const program = ['env', `LD_LIBRARY_PATH=${folder}`, join(folder, 'client'), 'bench', String(callsOfSample)];
  const command = [join(distFolder(), 'tools', 'cli', 'main.js'), 'run', '-q', '-f', '-o', join(scratch, 'run.cistern')];
  /** @type {Record<string, any[]>} */
  const results = { alone: [], none: [], each: [] };
  try {
    for (let round = 0; round < context.rounds; round++) {
      context.progress(`round ${round + 1} of ${context.rounds}`);
      results.alone.push(await runJson(program[0], program.slice(1)));
      results.none.push(await runJson(process.execPath, [...command, '--no-stacks', '--', ...program]));
      results.each.push(await runJson(process.execPath, [...command, '--', ...program]));
    }
  } finally {
    rmSync(scratch, { recursive: true });
  }
  const { outsideAdded } = context.baseline;
  return ['none', 'each'].flatMap((stacks) =>
    Object.entries(descriptions).map(([key, calls]) => {
      const alone = combined(results.alone.map((result) => result[key]));
      const recorded = combined(results[stacks].map((result) => result[key]));
      const added = { median: recorded.median - alone.median, minimum: recorded.minimum - alone.minimum };
      const limit = key === 'other' ? outsideAdded.other : stacks === 'none' ? outsideAdded.call : undefined;
      return { calls, stacks, alone, recorded, added, limit, met: verdict(added, limit) };
    }),
  );
}

/** @param {OutsideRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'calls',
      'stacks',
      'alone\nmedian',
      'minimum',
      'recorded\nmedian',
      'minimum',
      'spread',
      'added\n(medians)',
      'added\n(minima)',
      'limit',
      'within',
    ],
    rows.map(({ calls, stacks, alone, recorded, added, limit, met }) => [
      calls,
      stacks,
      formatNumber(alone.median),
      formatNumber(alone.minimum),
      formatNumber(recorded.median),
      formatNumber(recorded.minimum),
      formatSpread(recorded),
      formatNumber(added.median),
      formatNumber(added.minimum),
      formatNumber(limit, 0),
      met,
    ]),
  );
}
