/** What JavaScript adds to the driver's own pool: the same calls from here and from C++. */
import { combined, formatNumber, formatSpread, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} AsyncRow
 * @property {string} calls
 * @property {Figures} nanosecondsPerCall
 * @property {Figures} nullResource
 * @property {Figures | undefined} native
 * @property {{ median: number, minimum: number } | undefined} added over native
 * @property {number} limit for `added`
 * @property {string} met
 */

export const name = 'async';
export const title = 'CudaAsyncMemoryResource on the software device, 4 KiB, ns per call, and the same driver calls from C++';

const descriptions = {
  pairs: 'allocate and free in turn',
  allocateMany: 'allocate 1000',
  freeMany: 'free 1000 in order',
  allocateScattered: 'allocate 1000, freed scattered',
  freeScattered: 'free 1000 scattered',
  churn: 'free and allocate among 1000',
};

/** @param {Context} context @returns {Promise<AsyncRow[]>} */
export async function run(context) {
  /** @type {any[]} */
  const resources = [];
  /** @type {any[]} */
  const nulls = [];
  /** @type {any[]} */
  const natives = [];
  for (let round = 0; round < context.rounds; round++) {
    context.progress(`round ${round + 1} of ${context.rounds}`);
    resources.push(await runSubject('async', { subject: 'async', repeat: context.repeat }));
    nulls.push(await runSubject('async', { subject: 'null', repeat: context.repeat }));
    if (context.native.isAvailable) natives.push(await context.native.run('software-async', undefined, context.repeat));
  }
  const limit = context.baseline.asyncOverhead;
  return Object.entries(descriptions).map(([key, calls]) => {
    const nanosecondsPerCall = combined(resources.map((result) => result[key]));
    const nullResource = combined(nulls.map((result) => result[key]));
    if (natives.length === 0) return { calls, nanosecondsPerCall, nullResource, native: undefined, added: undefined, limit, met: '-' };
    const native = combined(natives.map((result) => result[key]));
    const added = { median: nanosecondsPerCall.median - native.median, minimum: nanosecondsPerCall.minimum - native.minimum };
    return { calls, nanosecondsPerCall, nullResource, native, added, limit, met: verdict(added, limit) };
  });
}

/** @param {AsyncRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'calls',
      'median',
      'minimum',
      'spread',
      'null\nJS',
      'C++\nmedian',
      'C++\nminimum',
      'added\n(medians)',
      'added\n(minima)',
      'limit',
      'within',
    ],
    rows.map((row) => [
      row.calls,
      formatNumber(row.nanosecondsPerCall.median),
      formatNumber(row.nanosecondsPerCall.minimum),
      formatSpread(row.nanosecondsPerCall),
      formatNumber(row.nullResource.median),
      formatNumber(row.native?.median),
      formatNumber(row.native?.minimum),
      formatNumber(row.added?.median),
      formatNumber(row.added?.minimum),
      formatNumber(row.limit, 0),
      row.met,
    ]),
  );
}
