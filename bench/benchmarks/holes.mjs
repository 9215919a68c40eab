/** How the cost of a call grows with fragmentation. */
import { combined, formatNumber, formatSpread, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} HolesRow
 * @property {string} subject
 * @property {number} holes
 * @property {Figures} pair one allocation of 4 KiB and its free
 * @property {Figures} allocate of 25 in a row
 * @property {Figures} free of 25 in a row
 * @property {Figures} mixedPair an allocation of 256 bytes to 64 KiB and its free
 * @property {number | undefined} ratio `pair` over that among the fewest holes
 * @property {number | undefined} limit for `ratio`
 * @property {string} met
 */

export const name = 'holes';
export const title =
  'One 4 KiB allocation and its free among N free holes of 256 B to 1 MiB, ns; 25 in a row; the same with mixed sizes to 64 KiB';

const counts = [100, 1000, 10_000, 100_000];

/** @param {Context} context @returns {Promise<HolesRow[]>} */
export async function run(context) {
  /** @type {Map<string, any[]>} */
  const results = new Map();
  const subjects = ['pool', 'null', ...(context.native.isAvailable ? [context.native.allocatorName] : [])];
  for (let round = 0; round < context.rounds; round++) {
    for (const holes of counts) {
      for (const subject of subjects) {
        context.progress(`${subject}, ${holes} holes`);
        const isNative = subject === context.native.allocatorName;
        const result = isNative
          ? await context.native.run('holes', String(holes), context.repeat)
          : await runSubject('holes', { subject, holes, repeat: context.repeat });
        results.set(`${subject} ${holes}`, [...(results.get(`${subject} ${holes}`) ?? []), result]);
      }
    }
  }
  return subjects.flatMap((subject) =>
    counts.map((holes) => {
      /** @param {'pair' | 'allocate' | 'free' | 'mixedPair'} key @param {number} [count] */
      const figures = (key, count = holes) => combined((results.get(`${subject} ${count}`) ?? []).map((result) => result[key]));
      const pair = figures('pair');
      const fewest = figures('pair', counts[0]);
      const ratio = pair.median / fewest.median;
      const limit = subject === 'pool' && holes === counts.at(-1) ? context.baseline.holesRatio : undefined;
      const met = verdict({ median: ratio, minimum: pair.minimum / fewest.minimum }, limit);
      return {
        subject,
        holes,
        pair,
        allocate: figures('allocate'),
        free: figures('free'),
        mixedPair: figures('mixedPair'),
        ratio,
        limit,
        met,
      };
    }),
  );
}

/** @param {HolesRow[]} rows @param {Context} context */
export function format(rows, context) {
  return formatTable(
    [
      'subject',
      'holes',
      'pair\nmedian',
      'minimum',
      'spread',
      'x 100\nholes',
      'limit',
      'within',
      '25: al-\nlocate',
      'free',
      'mixed\npair',
      'RMM C++\nallocate',
      'free',
    ],
    rows.map((row) => {
      const rmm = row.subject === 'pool' ? context.baseline.holes[String(row.holes)] : undefined;
      return [
        row.subject,
        String(row.holes),
        formatNumber(row.pair.median),
        formatNumber(row.pair.minimum),
        formatSpread(row.pair),
        formatNumber(row.ratio, 2),
        formatNumber(row.limit, 0),
        row.met,
        formatNumber(row.allocate.median),
        formatNumber(row.free.median),
        formatNumber(row.mixedPair.median),
        formatNumber(rmm?.rmmAllocate, 0),
        formatNumber(rmm?.rmmFree, 0),
      ];
    }),
  );
}
