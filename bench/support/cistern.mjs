/** The build that is measured, on the software device. */
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** The repository's root. */
export const root = fileURLToPath(new URL('../..', import.meta.url));

/** @typedef {typeof import('../../src/index.js')} Cistern */

/** @returns {Promise<Cistern>} */
export async function loadCistern() {
  // `--dist` sets the variable, and subjects inherit it.
  const folder = process.env['CISTERN_BENCH_DIST'] ?? join(root, 'dist');
  let cistern;
  try {
    cistern = /** @type {Cistern} */ (await import(pathToFileURL(join(folder, 'index.js')).href));
  } catch (cause) {
    throw new Error(`cannot load the build in ${folder}; run "npm run build" first`, { cause });
  }
  // Address space only: nothing here touches the memory.
  cistern.configureSoftwareDevice({ totalBytes: 4 * 1024 * cistern.GiB });
  cistern.selectBackend('software');
  return cistern;
}
