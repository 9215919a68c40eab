// Builds what only tests and benchmarks load: the strict driver (a libcuda.so.1, and the addon that
// controls it), the addon that launches kernels, one that speaks DLPack, one that uses the driver on its
// own, one that refuses host memory, the driver and programs for `cistern run`, the native side of the benchmarks, and the example addons. `node scripts/build-for-tests.mjs` builds
// them and prints their paths.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';
import { buildNative } from './build-native.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
/** What scripts/bundle.mjs makes says so in this file: everything in it is built, and nothing can be. */
const isBundle = existsSync(join(root, 'bundle.json'));

/** @returns {string} the folder with libcuda.so.1 and strict_driver.node */
export function buildStrictDriver() {
  build('strict_driver');
  return build('strict_driver_control', 'strict_driver');
}

/** @returns {string} the path of kernels.node */
export function buildKernels() {
  return join(build('kernels'), 'kernels.node');
}

/** @returns {string} the path of dlpack.node, which implements DLPack on its own */
export function buildDLPackAddon() {
  return join(build('dlpack'), 'dlpack.node');
}

/** @returns {string} the path of threads.node, whose threads call a thread-safe resource */
export function buildThreads() {
  return join(build('threads'), 'threads.node');
}

/** @returns {string} the path of foreign.node, a library that uses the driver on its own */
export function buildForeignLibrary() {
  return join(build('foreign'), 'foreign.node');
}

/** @returns {string} the path of refusal.node, which refuses host memory to the addon if it is preloaded */
export function buildRefusal() {
  return join(build('refusal'), 'refusal.node');
}

/** @returns {string} the folder with a libcuda.so.1 over the software device, and programs that use it in every way */
export function buildOutside() {
  return join(build('outside'), 'outside');
}

/** @returns {string} the path of bench_native */
export function buildNativeBenchmarks() {
  return join(build('bench_native'), 'bench_native');
}

/** @returns {string} the folder with the addons of examples/addons, built by CMake alone, as users do */
export function buildExampleAddons() {
  const folder = join(root, 'build-tests', 'addons');
  if (isBundle && existsSync(folder)) return folder;
  cmake('-S', join(root, 'examples', 'addons'), '-B', folder);
  cmake('--build', folder, '--parallel', String(availableParallelism()));
  return folder;
}

/** Whether an error of these functions says that something is not installed with which they build. */
export function isMissingTool({ code }) {
  return code === 'ENOENT' || code === 'MODULE_NOT_FOUND';
}

/** Builds a target in a folder of its own: files of tests do so at the same time. */
function build(target, name = target) {
  const built = join(root, 'build-tests', name, 'Release');
  if (isBundle && existsSync(built)) return built;
  return buildNative({ target, folder: join('build-tests', name), isQuiet: true });
}

/** @throws {Error} with the output of CMake if that fails */
function cmake(...args) {
  const { status, error, stdout, stderr } = spawnSync('cmake', args, { encoding: 'utf8', maxBuffer: 2 ** 26 });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`$ cmake ${args.join(' ')}\n${stdout}${stderr}`);
}

if (argv[1] === fileURLToPath(import.meta.url))
  console.log(
    [
      buildStrictDriver(),
      buildKernels(),
      buildDLPackAddon(),
      buildForeignLibrary(),
      buildRefusal(),
      buildOutside(),
      buildNativeBenchmarks(),
      buildExampleAddons(),
    ].join('\n'),
  );
