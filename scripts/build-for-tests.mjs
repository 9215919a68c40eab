// Builds what only tests load: the strict driver (a libcuda.so.1, and the addon that controls it),
// the addon that launches kernels, one that speaks DLPack, and the example addons. `node
// scripts/build-for-tests.mjs` builds them and prints their paths.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
/** What scripts/bundle.mjs makes says so in this file: everything in it is built, and nothing can be. */
const isBundle = existsSync(join(root, 'bundle.json'));

/** @returns {string} the folder with libcuda.so.1 and strict_driver.node */
export function buildStrictDriver() {
  return build('strict_driver');
}

/** @returns {string} the path of kernels.node */
export function buildKernels() {
  return join(build('kernels'), 'kernels.node');
}

/** @returns {string} the path of dlpack.node, which implements DLPack on its own */
export function buildDLPackAddon() {
  return join(build('test/dlpack'), 'dlpack.node');
}

/** @returns {string} the folder with the addons of examples/addons */
export function buildExampleAddons() {
  const require = createRequire(import.meta.url);
  const folders = [
    `-DNODE_ADDON_API=${dirname(require.resolve('node-addon-api'))}`,
    `-DCISTERN=${require(join(root, 'include', 'index.cjs'))}`,
  ];
  return build('addons', join(root, 'examples', 'addons'), folders);
}

/** Whether an error of these functions says that something is not installed with which they build. */
export function isMissingTool({ code }) {
  return code === 'ENOENT' || code === 'MODULE_NOT_FOUND';
}

/** @throws {Error} with the output of CMake if that fails */
function build(name, source = join(root, 'native', name), definitions = []) {
  const folder = join(root, 'build-tests', name);
  if (isBundle) return folder;
  const headers = join(dirname(createRequire(import.meta.url).resolve('node-api-headers')), 'include');
  cmake('-S', source, '-B', folder, `-DNODE_API_HEADERS=${headers}`, ...definitions);
  cmake('--build', folder, '--parallel', '2');
  return folder;
}

function cmake(...args) {
  const { status, error, stdout, stderr } = spawnSync('cmake', args, { encoding: 'utf8', maxBuffer: 2 ** 26 });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`$ cmake ${args.join(' ')}\n${stdout}${stderr}`);
}

if (argv[1] === fileURLToPath(import.meta.url))
  console.log(`${buildStrictDriver()}\n${buildKernels()}\n${buildDLPackAddon()}\n${buildExampleAddons()}`);
