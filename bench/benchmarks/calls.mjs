/** How many calls of the driver operations make. Counts, not times: what they cost is for a GPU to say. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildStrictDriver } from '../../scripts/build-for-tests.mjs';
import { strictDriverEnvironment } from '../../scripts/over-strict-driver.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */
/** @typedef {{ operation: string, calls: number, by: Record<string, number> }} CallsRow */

export const name = 'calls';
export const title = 'Calls of the driver, over the strict driver with two devices, without cuEventQuery, which polls';

/** @param {Context} context @returns {Promise<CallsRow[]>} */
export async function run(context) {
  if (process.platform !== 'linux') {
    context.skip('calls: the strict driver is for Linux');
    return [];
  }
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-calls-'));
  const log = join(scratch, 'log');
  writeFileSync(log, '');
  const environment = strictDriverEnvironment(buildStrictDriver(), log, { TRACE: 1, DELAY_US: 0 });
  Object.assign(process.env, environment);
  try {
    const { operations } = await runSubject('calls', {});
    return Object.entries(/** @type {Record<string, Record<string, number>>} */ (operations)).map(([operation, by]) => ({
      operation,
      calls: Object.values(by).reduce((sum, count) => sum + count, 0),
      by,
    }));
  } finally {
    for (const key of Object.keys(environment)) delete process.env[key];
    rmSync(scratch, { recursive: true });
  }
}

/** @param {readonly CallsRow[]} rows */
export function format(rows) {
  const text = (/** @type {Record<string, number>} */ by) =>
    Object.entries(by)
      .sort(([, x], [, y]) => y - x)
      .map(([call, count]) => `${call} ${count}`)
      .join(', ');
  return formatTable(
    ['operation', 'calls', 'of which'],
    rows.map(({ operation, calls, by }) => [operation, String(calls), text(by)]),
    3,
  );
}
