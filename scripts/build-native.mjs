// Builds what CMakeLists.txt describes, with cmake-js: `node scripts/build-native.mjs [TARGET]
// [--out FOLDER] [--define NAME=VALUE …]`. Without a target it is the addon, which goes to
// build/Release/cistern.node. A folder holds one configuration.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import process, { argv, env, execPath, platform } from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const require = createRequire(import.meta.url);
const root = realpathSync(fileURLToPath(new URL('..', import.meta.url)));

const needs = 'it, a C++17 compiler, and make or ninja (Debian: apt install cmake g++ make)';

/** The reason why nothing was built, in a sentence. */
class BuildError extends Error {}

/**
 * Builds a target, or what has changed of it.
 * @param {object} [options]
 * @param {string} [options.target]
 * @param {string} [options.folder]
 * @param {Readonly<Record<string, string>>} [options.definitions] options of CMakeLists.txt
 * @param {string} [options.directory] the folder with CMakeLists.txt
 * @param {boolean} [options.isQuiet] whether the output is shown only if building fails
 * @returns {string} the folder with what was built
 * @throws {Error} if building fails, with the code ENOENT if there is no CMake
 */
export function buildNative({ target = 'addon', folder = 'build', definitions = {}, directory = root, isQuiet = false } = {}) {
  if (spawnSync('cmake', ['--version']).status !== 0)
    throw Object.assign(new BuildError(`CMake is not on PATH; building needs ${needs}`), { code: 'ENOENT' });
  const path = resolve(directory, folder);
  mkdirSync(path, { recursive: true });
  const out = realpathSync(path);
  const generator = generatorFor(out, directory);
  const common = ['--directory', directory, '--out', out, '--log-level', 'warn', ...(generator ? ['--generator', generator] : [])];
  const defined = Object.entries(definitions).map(([name, value]) => `--CD${name}=${value}`);
  cmakeJs(['configure', ...common, ...defined, '--', '--log-level=WARNING'], isQuiet);
  cmakeJs(['build', ...common, '--target', target, '--parallel', String(availableParallelism())], isQuiet);
  return join(out, 'Release');
}

/**
 * The generator of CMake that a folder is configured for: the usual one may be another by now, if
 * ninja was installed. In a copy of a folder CMake would build the original, so its configuration is
 * removed.
 */
function generatorFor(out, directory) {
  const usual = platform === 'win32' ? (env.CMAKE_GENERATOR ?? 'MinGW Makefiles') : undefined;
  const cacheFile = join(out, 'CMakeCache.txt');
  if (!existsSync(cacheFile)) return usual;
  const cache = readFileSync(cacheFile, 'utf8');
  const entry = (name) => new RegExp(`^${name}:INTERNAL=(.*)$`, 'm').exec(cache)?.[1];
  if (entry('CMAKE_HOME_DIRECTORY') === directory && entry('CMAKE_CACHEFILE_DIR') === out) return entry('CMAKE_GENERATOR') ?? usual;
  for (const name of ['CMakeCache.txt', 'CMakeFiles']) rmSync(join(out, name), { recursive: true, force: true });
  return usual;
}

function cmakeJs(args, isQuiet) {
  const program = join(dirname(require.resolve('cmake-js/package.json')), 'bin', 'cmake-js');
  const stdio = isQuiet ? 'pipe' : 'inherit';
  const { status, error, stdout, stderr } = spawnSync(execPath, [program, ...args], {
    cwd: root,
    stdio,
    encoding: 'utf8',
    maxBuffer: 2 ** 26,
  });
  if (error !== undefined) throw error;
  if (status !== 0) throw new BuildError(`cmake-js ${args[0]} failed${isQuiet ? `:\n${stdout}${stderr}` : ''}`);
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { out: { type: 'string' }, define: { type: 'string', multiple: true, default: [] } },
  });
  try {
    const definitions = Object.fromEntries(values.define.map((text) => text.split(/=(.*)/s, 2)));
    buildNative({ target: positionals[0], folder: values.out && resolve(values.out), definitions });
  } catch (error) {
    if (!(error instanceof BuildError)) throw error;
    console.error(`cistern: ${error.message}`);
    process.exitCode = 1;
  }
}
