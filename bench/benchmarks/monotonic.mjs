/** The cost of an allocation and a free if all memory is freed at once. */
import { combined, formatNumber, formatSpread, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} MonotonicRow
 * @property {string} subject
 * @property {Figures} allocate
 * @property {Figures} free
 * @property {Figures | undefined} rewind
 * @property {{ allocate: number, free: number } | undefined} limits
 * @property {{ allocate: string, free: string }} met
 */

export const name = 'monotonic';
export const title = 'ns for an allocation and a free, 1000 in a row, of 256 B to 64 KiB; and for a rewind after them; the loop included';

const subjects = /** @type {const} */ (['monotonic', 'pool', 'null']);

/** @param {Context} context @returns {Promise<MonotonicRow[]>} */
export async function run(context) {
  /** @type {Map<string, any[]>} */
  const results = new Map();
  for (let round = 0; round < context.rounds; round++) {
    for (const subject of subjects) {
      context.progress(`${subject}, round ${round + 1} of ${context.rounds}`);
      results.set(subject, [...(results.get(subject) ?? []), await runSubject('monotonic', { subject, repeat: context.repeat })]);
    }
  }
  return subjects.map((subject) => {
    /** @param {'allocate' | 'free' | 'rewind'} key */
    const figures = (key) => combined((results.get(subject) ?? []).map((result) => result[key]));
    const [allocate, free] = [figures('allocate'), figures('free')];
    const limits = subject === 'monotonic' ? context.baseline.monotonic : undefined;
    return {
      subject,
      allocate,
      free,
      rewind: subject === 'monotonic' ? figures('rewind') : undefined,
      limits,
      met: { allocate: verdict(allocate, limits?.allocate), free: verdict(free, limits?.free) },
    };
  });
}

/** @param {MonotonicRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'subject',
      'allocate\nmedian',
      'minimum',
      'spread',
      'limit',
      'within',
      'free\nmedian',
      'minimum',
      'spread',
      'limit',
      'within',
      'rewind\nmedian',
    ],
    rows.map(({ subject, allocate, free, rewind, limits, met }) => [
      subject,
      formatNumber(allocate.median),
      formatNumber(allocate.minimum),
      formatSpread(allocate),
      formatNumber(limits?.allocate, 0),
      met.allocate,
      formatNumber(free.median),
      formatNumber(free.minimum),
      formatSpread(free),
      formatNumber(limits?.free, 0),
      met.free,
      formatNumber(rewind?.median, 0),
    ]),
  );
}
