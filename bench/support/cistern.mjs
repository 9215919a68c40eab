/** The build that is measured, on the software device or with `--device cuda` on a GPU. */
import { readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** The repository's root. */
export const root = fileURLToPath(new URL('../..', import.meta.url));

/**
 * Everything that the package exports, from all entries that benchmarks use.
 * @typedef {typeof import('../../src/index.js') & typeof import('../../src/graphs/index.js') & typeof import('../../src/interchange/index.js') &
 *   typeof import('../../src/plans/index.js') & typeof import('../../src/processes/index.js') & typeof import('../../src/recording/index.js') &
 *   typeof import('../../src/serving/index.js') & typeof import('../../src/workers/index.js') & typeof import('../../src/tools/formats/index.js') &
 *   typeof import('../../src/tools/planning/index.js') & typeof import('../../src/tools/replay/index.js') & typeof import('../../src/tools/report/index.js') &
 *   typeof import('../../src/tools/testing/index.js')} Cistern
 */

/** What no benchmark uses. */
const unused = ['./include', './package.json', './watch'];

/** The build that is measured. */
export function distFolder() {
  // `--dist` sets the variable, and subjects inherit it.
  return process.env['CISTERN_BENCH_DIST'] ?? join(root, 'dist');
}

/** The entries of the package that a build belongs to. @param {string} folder @returns {string[]} */
function entriesOf(folder) {
  const { exports } = JSON.parse(readFileSync(join(folder, '../package.json'), 'utf8'));
  return Object.keys(exports)
    .filter((name) => !unused.includes(name))
    .map((name) => join(folder, relative('dist', exports[name].default)));
}

/** Imports it, and configures nothing. @returns {Promise<Cistern>} */
export async function importCistern() {
  const folder = distFolder();
  try {
    const modules = await Promise.all(entriesOf(folder).map((path) => import(pathToFileURL(path).href)));
    return /** @type {Cistern} */ (Object.assign({}, ...modules));
  } catch (cause) {
    throw new Error(`cannot load the build in ${folder}; run "npm run build" first`, { cause });
  }
}

/** @returns {Promise<Cistern>} */
export async function loadCistern() {
  const cistern = await importCistern();
  // `--device` sets the variable, and subjects inherit it.
  const backend = process.env['CISTERN_BENCH_DEVICE'] === 'cuda' ? 'cuda' : 'software';
  // Address space only: nothing here touches the memory.
  if (backend === 'software') cistern.configureSoftwareDevice({ totalBytes: 4 * 1024 * cistern.GiB });
  cistern.selectBackend(backend);
  return cistern;
}
