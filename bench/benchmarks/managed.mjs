/** What moves if managed memory is used under different policies. Counts, not times. */
import { formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} ManagedRow
 * @property {string} pattern
 * @property {string} policy
 * @property {number} readBytes by the devices
 * @property {number} movedBytes between the host and devices, and between devices
 * @property {number} evictedBytes of those
 * @property {number} remoteBytes read across the bus without a move
 * @property {number} faults
 * @property {number} thrashes
 * @property {number} wrong values that were read; always 0
 */

export const name = 'managed';
export const title = 'What moves when devices of 64 MiB read managed memory that the host wrote, in two passes; MiB and counts';

const patterns = ['streaming', 'random', 'two devices'];
const policies = ['none', 'prefetch', 'preferred location', 'read-mostly'];

/** @param {Context} context @returns {Promise<ManagedRow[]>} */
export async function run(context) {
  const rows = [];
  for (const pattern of patterns) {
    for (const policy of policies) {
      context.progress(`${pattern}, ${policy}`);
      rows.push({ pattern, policy, ...(await runSubject('managed', { pattern, policy })) });
    }
  }
  return rows;
}

/** @param {ManagedRow[]} rows */
export function format(rows) {
  const mebibytes = (/** @type {number} */ bytes) => formatNumber(bytes / 2 ** 20, 0);
  return formatTable(
    ['pattern', 'policy', 'read', 'moved', 'of these\nevicted', 'read\nremotely', 'faults', 'thrashes', 'wrong'],
    rows.map((row) => [
      row.pattern,
      row.policy,
      ...[row.readBytes, row.movedBytes, row.evictedBytes, row.remoteBytes].map(mebibytes),
      ...[row.faults, row.thrashes, row.wrong].map(String),
    ]),
    2,
  );
}
