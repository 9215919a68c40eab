/** What a program pays before its first allocations are fast. */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { distFolder } from '../support/cistern.mjs';
import { figuresOf, formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} StartRow
 * @property {string} subject
 * @property {number} files
 * @property {number} bytes
 * @property {Figures} import in milliseconds
 * @property {Figures} cpu in milliseconds
 * @property {Figures} constructed in microseconds: the pool
 * @property {Figures} allocated in microseconds: its first allocation
 * @property {readonly Figures[]} first in nanoseconds for an operation, in the order of `operations`
 * @property {readonly Figures[]} firstCpu the same, as CPU time of all threads
 */

export const name = 'start';
export const title = 'ms to import cistern in a fresh process, and ns for each of the first operations of a pool';

const subjects = /** @type {const} */ (['cistern', 'null']);
const operations = [100, 1000, 5000];

/** @param {Context} context @returns {Promise<StartRow[]>} */
export async function run(context) {
  /** @type {Map<string, any[]>} */
  const results = new Map(subjects.map((subject) => [subject, []]));
  const samples = context.rounds * context.repeat;
  for (let sample = 0; sample < samples; sample++) {
    for (const subject of subjects) {
      context.progress(`${subject}, process ${sample + 1} of ${samples}`);
      results.get(subject)?.push(await runSubject('start', { subject, operations }));
    }
  }
  return [...results].map(([subject, runs]) => ({
    subject,
    ...(subject === 'null' ? { files: 0, bytes: 0 } : importedFiles(join(distFolder(), 'index.js'))),
    import: figuresOf(runs.map((result) => result.import)),
    cpu: figuresOf(runs.map((result) => result.cpu)),
    constructed: figuresOf(runs.map((result) => result.constructed)),
    allocated: figuresOf(runs.map((result) => result.allocated)),
    first: operations.map((_, index) => figuresOf(runs.map((result) => result.first[index]))),
    firstCpu: operations.map((_, index) => figuresOf(runs.map((result) => result.firstCpu[index]))),
  }));
}

/** @param {StartRow[]} rows */
export function format(rows) {
  return formatTable(
    [
      'subject',
      'files',
      'KiB',
      'import\nmedian',
      'minimum',
      'CPU\nmedian',
      'minimum',
      'pool, us\nmedian',
      'minimum',
      'first, us\nmedian',
      'minimum',
      ...operations.flatMap((count) => [`first ${count}\nmedian`, 'minimum', 'CPU']),
    ],
    rows.map(({ subject, files, bytes, import: imported, cpu, constructed, allocated, first, firstCpu }) => [
      subject,
      String(files),
      formatNumber(bytes / 1024, 0),
      formatNumber(imported.median),
      formatNumber(imported.minimum),
      formatNumber(cpu.median),
      formatNumber(cpu.minimum),
      formatNumber(constructed.median, 0),
      formatNumber(constructed.minimum, 0),
      formatNumber(allocated.median, 0),
      formatNumber(allocated.minimum, 0),
      ...operations.flatMap((_, index) => [
        formatNumber(first[index]?.median, 0),
        formatNumber(first[index]?.minimum, 0),
        formatNumber(firstCpu[index]?.minimum, 0),
      ]),
    ]),
  );
}

/** The files that a module imports statically, itself included. @param {string} entry */
function importedFiles(entry) {
  const known = new Set([entry]);
  let bytes = 0;
  for (const file of known) {
    const text = readFileSync(file, 'utf8');
    bytes += Buffer.byteLength(text);
    for (const [, path] of text.matchAll(/^(?:import|export|\})(?:[^'"\n]*from)? ?['"](\.[^'"]+)['"];?$/gm)) {
      const imported = join(dirname(file), path);
      if (existsSync(imported)) known.add(imported);
    }
  }
  return { files: known.size, bytes };
}
