// The package's install script: builds the addon unless there is a prebuilt one for this platform.
// Fails if there is no loadable binary, so that no install succeeds without one.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { arch, env, execPath, exit, platform } from 'node:process';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const require = createRequire(import.meta.url);
const supported = ['linux-x64', 'linux-arm64'];

/** Prints what is missing and what to do, and fails. */
function fail(what, remedy) {
  console.error(`cistern: ${what}\ncistern: ${remedy}`);
  exit(1);
}

function prebuiltPath() {
  try {
    const { name, binary } = require(join(root, 'package.json'));
    // With `true` for "verify", only prebuilds/ is searched, and the result of an earlier build is
    // built again.
    return require('pkg-prebuilds').resolve(root, { name, napi_versions: binary.napi_versions }, true, false);
  } catch {
    return null;
  }
}

function isOnPath(...commands) {
  const folders = (env.PATH ?? '').split(delimiter).filter((folder) => folder !== '');
  return commands.some((command) => folders.some((folder) => existsSync(join(folder, command))));
}

function builderPath() {
  try {
    const manifest = require.resolve('cmake-js/package.json');
    return join(dirname(manifest), require(manifest).bin['cmake-js']);
  } catch {
    return null;
  }
}

function build(builder) {
  const started = performance.now();
  const jobs = String(availableParallelism());
  const result = spawnSync(execPath, [builder, 'compile', '--directory', root, '--parallel', jobs], {
    cwd: root,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
  });
  const log = join(root, 'build', 'install.log');
  const output = `${result.stdout ?? ''}${result.stderr ?? ''}${result.error === undefined ? '' : `${result.error.message}\n`}`;
  if (result.status !== 0) {
    mkdirSync(dirname(log), { recursive: true });
    writeFileSync(log, output);
    console.error(output.trimEnd().split('\n').slice(-30).join('\n'));
    fail(
      `the native addon did not build; above is the end of the output, all of it is in ${log}.`,
      'A C++17 compiler and CMake 3.18 or newer are needed (Debian: apt install cmake g++ make).',
    );
  }
  rmSync(log, { force: true });
  console.log(`cistern: built the native addon in ${((performance.now() - started) / 1000).toFixed(0)} s`);
}

function main() {
  if (env.CISTERN_SKIP_BUILD === '1') {
    console.log('cistern: CISTERN_SKIP_BUILD=1 is set, so the native addon was not built');
    return;
  }
  if (prebuiltPath() !== null) return;
  if (!supported.includes(`${platform}-${arch}`)) {
    fail(`the native addon does not build on ${platform}-${arch}.`, `Supported platforms: ${supported.join(', ')}.`);
  }
  const builder = builderPath();
  if (builder === null) {
    fail(
      'there is no prebuilt native addon for this platform, and cmake-js, which builds it, is missing.',
      'cmake-js is a dependency of the package: run npm install again to install it.',
    );
  }
  const missing = [];
  if (!isOnPath('cmake')) missing.push('cmake');
  if (!isOnPath('g++', 'clang++')) missing.push('a C++ compiler');
  if (!isOnPath('make', 'ninja')) missing.push('make or ninja');
  if (missing.length > 0) {
    fail(
      `the native addon has to be built on this machine, which lacks ${missing.join(', ')}.`,
      'Install what is missing (Debian: apt install cmake g++ make), then run npm install again.',
    );
  }
  build(builder);
}

main();
