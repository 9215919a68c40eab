/** How fast logs are read. */
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { combined, formatNumber, formatSpread, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} ParseRow
 * @property {string} trace
 * @property {string} format
 * @property {string} reader
 * @property {number} bytes of the file
 * @property {Figures} nanosecondsPerEvent
 * @property {number} first nanoseconds per event of a process's first reading
 * @property {number} megaEventsPerSecond by the median
 * @property {number | undefined} limit in nanoseconds per event
 * @property {string} met
 */

export const name = 'parse';
export const title = 'Reading a whole log: ns per event, and millions of events per second';

/** The traces that it needs. */
export const traces = ['arrow-etl', 'dl-training'];

/** The readers of a file; `bytes` does nothing with its contents. */
const readers = /** @type {const} */ (['log', 'run', 'bytes']);
const formats = /** @type {const} */ (['csv', 'csv.gz', 'cistern']);

/** @param {Context} context @returns {Promise<ParseRow[]>} */
export async function run(context) {
  const own = context.traces.filter((trace) => traces.includes(trace.name));
  const folder = mkdtempSync(join(tmpdir(), 'cistern-bench-'));
  try {
    const files = [];
    for (const trace of own) files.push(...(await filesOf(context, trace, folder)));
    /** @type {Map<string, any[]>} */
    const results = new Map();
    for (let round = 0; round < context.rounds; round++) {
      for (const { trace, format, path, events } of files) {
        for (const reader of readers) {
          context.progress(`${trace}.${format} as ${reader}, round ${round + 1} of ${context.rounds}`);
          const key = `${trace} ${format} ${reader}`;
          const result = await runSubject('parse', { reader, path, events, repeat: context.repeat });
          results.set(key, [...(results.get(key) ?? []), result]);
        }
      }
    }
    return files.flatMap(({ trace, format, path }) =>
      readers.map((reader) => {
        const measured = results.get(`${trace} ${format} ${reader}`) ?? [];
        const nanosecondsPerEvent = combined(measured.map((result) => result.nanosecondsPerEvent));
        const limit = reader === 'log' ? context.baseline.parse[format] : undefined;
        return {
          trace,
          format,
          reader,
          bytes: statSync(path).size,
          nanosecondsPerEvent,
          first: Math.min(...measured.map((result) => result.first)),
          megaEventsPerSecond: 1000 / nanosecondsPerEvent.median,
          limit,
          met: verdict(nanosecondsPerEvent, limit),
        };
      }),
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/**
 * The same log in every format.
 * @param {Context} context
 * @param {import('../support/traces.mjs').Trace} trace
 * @param {string} folder
 */
async function filesOf(context, { name: trace, path }, folder) {
  const csv = join(folder, `${trace}.csv`);
  await context.cistern.convertLog(path, csv);
  writeFileSync(`${csv}.gz`, gzipSync(readFileSync(csv)));
  const { eventCount } = await context.cistern.convertLog(path, join(folder, `${trace}.cistern`));
  return formats.map((format) => ({ trace, format, path: join(folder, `${trace}.${format}`), events: eventCount }));
}

/** @param {ParseRow[]} rows */
export function format(rows) {
  return formatTable(
    ['trace', 'format', 'read as', 'MB', 'M events/s', 'ns\nmedian', 'minimum', 'spread', 'limit', 'within', 'first'],
    rows.map(({ trace, format: written, reader, bytes, nanosecondsPerEvent, first, megaEventsPerSecond, limit, met }) => [
      trace,
      written,
      reader,
      formatNumber(bytes / 1e6),
      formatNumber(megaEventsPerSecond),
      formatNumber(nanosecondsPerEvent.median),
      formatNumber(nanosecondsPerEvent.minimum),
      formatSpread(nanosecondsPerEvent),
      formatNumber(limit, 0),
      met,
      formatNumber(first),
    ]),
    3,
  );
}
