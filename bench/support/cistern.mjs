/** The build that is measured, on the software device or with `--device cuda` on a GPU. */
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** The repository's root. */
export const root = fileURLToPath(new URL('../..', import.meta.url));

/**
 * Everything that the package exports, from all entries.
 * @typedef {typeof import('../../src/index.js') & typeof import('../../src/tools/formats/index.js') & typeof import('../../src/tools/replay/index.js') &
 *   typeof import('../../src/tools/report/index.js') & typeof import('../../src/tools/planning/index.js')} Cistern
 */

const entries = ['index.js', 'formats/index.js', 'replay/index.js', 'report/index.js', 'planning/index.js'];

/** The build that is measured. */
export function distFolder() {
  // `--dist` sets the variable, and subjects inherit it.
  return process.env['CISTERN_BENCH_DIST'] ?? join(root, 'dist');
}

/** @returns {Promise<Cistern>} */
export async function loadCistern() {
  const folder = distFolder();
  let cistern;
  try {
    const modules = await Promise.all(entries.map((entry) => import(pathToFileURL(join(folder, entry)).href)));
    cistern = /** @type {Cistern} */ (Object.assign({}, ...modules));
  } catch (cause) {
    throw new Error(`cannot load the build in ${folder}; run "npm run build" first`, { cause });
  }
  // `--device` sets the variable, and subjects inherit it.
  const backend = process.env['CISTERN_BENCH_DEVICE'] === 'cuda' ? 'cuda' : 'software';
  // Address space only: nothing here touches the memory.
  if (backend === 'software') cistern.configureSoftwareDevice({ totalBytes: 4 * 1024 * cistern.GiB });
  cistern.selectBackend(backend);
  return cistern;
}
