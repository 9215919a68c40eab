/**
 * The cost of buffers that are disposed, taken back by a cache's run, or dropped, and V8's
 * collections meanwhile.
 */
import { combined, formatNumber, formatSpread } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} BuffersRow
 * @property {string} subject
 * @property {'dispose' | 'run' | 'drop'} use
 * @property {number} bytes per buffer
 * @property {Figures} buffer
 * @property {number | undefined} added nanoseconds that a disposed buffer adds to an allocation and its free
 * @property {number} majors over all processes
 * @property {number} minors
 * @property {number} collectingShare the greatest over all processes
 * @property {number} peakShare the greatest share of the device that buffers held, over all
 * processes
 * @property {string} limit
 * @property {'yes' | 'no'} met
 */

export const name = 'buffers';
export const title = 'microseconds for one buffer made and disposed, or dropped, and garbage collections meanwhile';

const MiB = 2 ** 20;
const programs = /** @type {const} */ ([
  { use: 'dispose', bytes: 4096 },
  { use: 'dispose', bytes: 256 * MiB },
  { use: 'run', bytes: 8 * MiB },
  { use: 'drop', bytes: 64 * MiB },
]);
const subjects = /** @type {const} */ (['pool', 'null']);

/** @param {Context} context @returns {Promise<BuffersRow[]>} */
export async function run(context) {
  /** @type {Map<string, any[]>} */
  const results = new Map();
  const cases = programs.flatMap((program) => subjects.map((subject) => ({ subject, ...program })));
  for (let round = 0; round < context.rounds; round++) {
    for (const given of cases) {
      context.progress(`${given.subject}, ${given.use} ${given.bytes} B, round ${round + 1} of ${context.rounds}`);
      const key = JSON.stringify(given);
      results.set(key, [...(results.get(key) ?? []), await runSubject('buffers', { ...given, repeat: context.repeat })]);
    }
  }
  return cases.map((given) => {
    const runs = results.get(JSON.stringify(given)) ?? [];
    /** @param {string} key */
    const sum = (key) => runs.reduce((total, run) => total + run[key], 0);
    const peakShare = Math.max(...runs.map(({ peakBytes, totalBytes }) => peakBytes / totalBytes));
    const majors = sum('majors');
    // V8 makes a collection of its own now and then, while it finds the size of a process's heap.
    const isMet = given.use === 'drop' ? peakShare <= 1 : majors <= context.rounds;
    return {
      ...given,
      buffer: combined(runs.map(({ buffer }) => buffer)),
      added: given.use === 'dispose' ? Math.min(...runs.map(({ addedNanoseconds }) => addedNanoseconds)) : undefined,
      majors,
      minors: sum('minors'),
      collectingShare: Math.max(...runs.map(({ collectingShare }) => collectingShare)),
      peakShare,
      limit: given.use === 'drop' ? 'held ≤ 100 %' : `major ≤ ${context.rounds}`,
      met: isMet ? 'yes' : 'no',
    };
  });
}

/** @param {BuffersRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'use',
      'MiB',
      'subject',
      'µs\nmedian',
      'minimum',
      'spread',
      'over the\npair, ns',
      'collections\nmajor',
      '\nminor',
      'of the\ntime',
      'held of\ndevice',
      'limit',
      'within',
    ],
    rows.map(({ use, bytes, subject, buffer, added, majors, minors, collectingShare, peakShare, limit, met }) => [
      use,
      formatNumber(bytes / MiB, bytes < MiB ? 3 : 0),
      subject,
      formatNumber(buffer.median, 2),
      formatNumber(buffer.minimum, 2),
      formatSpread(buffer),
      added === undefined ? '' : formatNumber(added, 0),
      String(majors),
      String(minors),
      `${(100 * collectingShare).toFixed(1)} %`,
      `${(100 * peakShare).toFixed(0)} %`,
      limit,
      met,
    ]),
    3,
  );
}
