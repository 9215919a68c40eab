/** The cost that a layer adds to each operation. */
import { combined, formatNumber, formatRatio, formatSpread, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} LayersRow
 * @property {string} trace
 * @property {string} layer
 * @property {Figures} nanosecondsPerOperation
 * @property {{ median: number, minimum: number } | undefined} added over the null resource
 * @property {number | undefined} rmmAdded
 * @property {number | undefined} limit
 * @property {string} met
 */

export const name = 'layers';
export const title = 'ns per operation that a layer adds to a resource that does nothing; logging and recording to a file';

const layers = /** @type {const} */ ([
  'null',
  'limiting',
  'statistics',
  'aligned',
  'aligned to 512',
  'rounding (multiple)',
  'rounding (top bits)',
  'accounting',
  'accounting (request of a tenant)',
  'admitting (outside of grants)',
  'tracking',
  'logging',
  'recording',
]);
/** @typedef {(typeof layers)[number]} Layer */

/** @param {Context} context @returns {Promise<LayersRow[]>} */
export async function run(context) {
  const trace = context.traces.find((each) => each.name === 'dl-training') ?? context.traces[0];
  if (trace === undefined) return [];
  if (trace.name !== 'dl-training') context.skip(`layers: on ${trace.name}, since dl-training is not there`);
  /** @type {Map<string, Figures[]>} */
  const results = new Map();
  /** @param {string} subject @param {Figures} figures */
  const add = (subject, figures) => results.set(subject, [...(results.get(subject) ?? []), figures]);
  for (let round = 0; round < context.rounds; round++) {
    for (const subject of layers) {
      context.progress(`${subject}, round ${round + 1} of ${context.rounds}`);
      add(subject, (await runSubject('replay', { trace: trace.path, subject, repeat: context.repeat })).nanosecondsPerOperation);
    }
    if (context.native.isAvailable) add('null in C++', await context.replayNatively('null', trace));
  }
  const nothing = combined(results.get('null') ?? []);
  return [...results].map(([layer, figures]) => {
    const nanosecondsPerOperation = combined(figures);
    const rmmAdded = context.baseline.layers[layer];
    const limit = context.baseline.layerLimits[layer];
    if (layer.startsWith('null')) return { trace: trace.name, layer, nanosecondsPerOperation, added: undefined, rmmAdded, limit, met: '-' };
    const added = { median: nanosecondsPerOperation.median - nothing.median, minimum: nanosecondsPerOperation.minimum - nothing.minimum };
    return { trace: trace.name, layer, nanosecondsPerOperation, added, rmmAdded, limit, met: verdict(added, limit) };
  });
}

/** @param {LayersRow[]} rows */
export function format(rows) {
  return formatTable(
    ['trace', 'layer', 'median', 'minimum', 'spread', 'added\n(medians)', 'added\n(minima)', 'RMM C++\nadds', 'x RMM', 'limit', 'within'],
    rows.map((row) => [
      row.trace,
      row.layer,
      formatNumber(row.nanosecondsPerOperation.median),
      formatNumber(row.nanosecondsPerOperation.minimum),
      formatSpread(row.nanosecondsPerOperation),
      formatNumber(row.added?.median),
      formatNumber(row.added?.minimum),
      formatNumber(row.rmmAdded, 0),
      row.added === undefined ? '-' : formatRatio(row.added.median, row.rmmAdded),
      formatNumber(row.limit, 0),
      row.met,
    ]),
    2,
  );
}
