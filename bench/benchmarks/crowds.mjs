/** What a call costs that concerns one allocation, by how many others there are: it should not depend on them. */
import { formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */
/** @typedef {'admission' | 'statistics' | 'graphs' | 'spilling' | 'warm-up' | 'turns'} Crowd */

/**
 * @typedef {object} CrowdRow
 * @property {Crowd} crowd
 * @property {readonly Figures[]} nanoseconds by `others`
 */

export const name = 'crowds';
export const title = 'ns for a call, by how many others wait or are live';

const others = [0, 100, 1000, 10_000];

/** @type {Record<Crowd, string>} */
const calls = {
  admission: 'a pair outside grants; others wait to be admitted',
  statistics: 'statistics of admission; others wait to be admitted',
  graphs: 'a pair outside captures; others belong to graphs',
  spilling: 'a spillable buffer leaves and comes back; others are spillable',
  'warm-up': 'a pair in a warm-up; others are live in it',
  turns: 'a pair on the next stream; others are streams that have their turns',
};

/** @param {Context} context @returns {Promise<CrowdRow[]>} */
export async function run(context) {
  /** @type {CrowdRow[]} */
  const rows = [];
  for (const crowd of /** @type {Crowd[]} */ (Object.keys(calls))) {
    /** @type {Figures[]} */
    const nanoseconds = [];
    for (const count of others) {
      context.progress(`${crowd}, ${count}`);
      const result = await runSubject('crowds', { crowd, others: count, repeat: context.repeat });
      nanoseconds.push(result.nanoseconds);
    }
    rows.push({ crowd, nanoseconds });
  }
  return rows;
}

/** @param {CrowdRow[]} rows */
export function format(rows) {
  return formatTable(
    ['call', ...others.map((count) => `${count} others\nminimum`)],
    rows.map(({ crowd, nanoseconds }) => [calls[crowd], ...nanoseconds.map(({ minimum }) => formatNumber(minimum, 0))]),
  );
}
