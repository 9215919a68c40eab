// All checks of a change: `npm run check`. Steps whose tools are missing are skipped with a message.
// `npm run check -- types tests` runs only the named steps, `npm run check -- quick` those that take
// minutes together, which every run of CI repeats after the tests.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { delimiter, isAbsolute, join } from 'node:path';
import process, { argv, chdir, env, exit, stdout } from 'node:process';
import { fileURLToPath } from 'node:url';
import { checkConcept, checkCudaHeader, cudaHeaders } from './check-cuda-header.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), 'cistern-check-'));
const compiler = env.CXX ?? 'c++';
const runSuite = ['vitest', 'run', '--project', 'unit', '--project', 'gc', '--project', 'browser'];
/** By name: the suites that reach native code and start no other process. */
const nativeSuites = {
  driver: 'test/driver/',
  conformance: 'test/conformance/',
  adaptors: 'test/adaptors/',
  graphs: 'test/graphs/',
  plans: 'test/plans/',
  serving: 'test/serving/',
  interchange: 'test/interchange/',
  workers: 'test/workers/',
  processes: 'test/processes/',
  buffers: 'test/buffers/',
  resources: 'test/resources/',
  gc: 'test/gc/dropped',
};

chdir(root);
process.on('exit', () => rmSync(scratch, { recursive: true }));
env.PATH = `${join(root, 'node_modules', '.bin')}${delimiter}${env.PATH}`;

class Failure extends Error {}
class Skipped extends Error {}

/** Runs a command and returns its output; throws an error with the output if the command fails. */
function run(command, args, environment = {}) {
  const { status, error, stdout, stderr } = spawnSync(command, args, {
    encoding: 'utf8',
    env: { ...env, ...environment },
    maxBuffer: 2 ** 28,
  });
  if (error !== undefined) throw new Failure(error.message);
  if (status !== 0) throw new Failure(`$ ${[command, ...args].join(' ')}\n${stdout}${stderr}`);
  return stdout;
}

function isThere(command) {
  return spawnSync(command, ['--version']).status === 0;
}

/** Skips a step if programs cannot be built or run with a sanitizer here. */
function needSanitizer(sanitizer) {
  if (!isThere(compiler)) throw new Skipped(`${compiler} is not installed`);
  const source = join(scratch, 'probe.cc');
  const program = join(scratch, `probe-${sanitizer}`);
  writeFileSync(source, 'int main() { return 0; }\n');
  const built = spawnSync(compiler, [`-fsanitize=${sanitizer}`, source, '-o', program]).status === 0;
  if (!built || spawnSync(program).status !== 0) throw new Skipped(`${compiler} has no working ${sanitizer} sanitizer here`);
}

/** Builds the targets of a preset of CMake. */
function buildPreset(preset) {
  if (!isThere('cmake') || !isThere(compiler)) throw new Skipped(`cmake or ${compiler} is not installed`);
  run('cmake', ['--preset', preset]);
  run('cmake', ['--build', '--preset', preset, '--parallel', String(availableParallelism())]);
  return join(root, 'build-presets', preset, 'Release');
}

function nativeTests(preset) {
  if (preset !== 'warnings') needSanitizer(preset);
  buildPreset(preset);
  run('ctest', ['--preset', preset]);
}

function sanitizedAddon(suite) {
  needSanitizer('address');
  const library = spawnSync(compiler, ['-print-file-name=libasan.so'], { encoding: 'utf8' }).stdout.trim();
  if (!isAbsolute(library)) throw new Skipped(`${compiler} has no libasan.so that could be loaded into Node`);
  run(runSuite[0], [...runSuite.slice(1), suite], {
    CISTERN_ADDON: join(buildPreset('address'), 'cistern.node'),
    LD_PRELOAD: library,
    ASAN_OPTIONS: 'detect_leaks=0:allocator_may_return_null=1',
    UBSAN_OPTIONS: 'print_stacktrace=1',
  });
}

function packed() {
  const [{ filename }] = JSON.parse(run('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', scratch]));
  const tarball = join(scratch, filename);
  run('publint', ['run', tarball, '--strict']);
  run('attw', [tarball, '--profile', 'esm-only']);
}

function clangFormat() {
  if (!isThere('clang-format')) throw new Skipped('clang-format is not installed');
  const files = ['native', 'bench'].flatMap((folder) => readdirSync(folder, { recursive: true }).map((file) => join(folder, file)));
  run('clang-format', ['--dry-run', '--Werror', ...files.filter((file) => /\.(cc|h)$/.test(file))]);
}

function cudaHeader() {
  const headers = cudaHeaders();
  if (headers === undefined) throw new Skipped('no cuda.h in CUDA_HOME or /usr/local/cuda');
  try {
    checkCudaHeader(headers);
    checkConcept(headers);
  } catch (error) {
    throw new Failure(error.message);
  }
}

/**
 * Runs the suites for a CUDA device over the strict driver, which uses all the freedom that CUDA's
 * documentation leaves.
 */
function overStrictDriver(...options) {
  if (process.platform !== 'linux') throw new Skipped('the strict driver is for Linux');
  if (!isThere('cmake')) throw new Skipped('cmake is not installed');
  run('node', ['test/gpu/run-matrix.mjs', ...options]);
}

const steps = {
  lint: () => {
    run('node', ['scripts/levels.mjs']);
    run('biome', ['check', '--error-on-warnings', '.']);
  },
  types: () => {
    for (const project of ['tsconfig.json', 'src/tools/pages', 'test/browser']) {
      // What was right the last time is not looked at again.
      const known = join('node_modules', '.cache', `types-${project.replaceAll('/', '-')}.tsbuildinfo`);
      run('tsc', ['-p', project, '--incremental', '--tsBuildInfoFile', known]);
    }
  },
  'clang-format': clangFormat,
  // All that is native, with every warning an error.
  warnings: () => buildPreset('warnings'),
  build: () => run('npm', ['run', 'build']),
  unused: () => run('knip', []),
  package: packed,
  docs: () => {
    run('typedoc', []);
    run('node', ['scripts/site-links.mjs']);
    run('node', ['scripts/site-search.mjs']);
    run('node', ['scripts/site-pages.mjs']);
  },
  api: () => run('node', ['scripts/api-report.mjs', '--check']),
  tests: () => run('vitest', ['run', ...['apart', 'together', 'gc', 'browser'].flatMap((name) => ['--project', name])]),
  'cuda-header': cudaHeader,
  'strict-driver-suite': () => overStrictDriver('--settings', 'usual', '--suites', 'driver'),
  // What runs on a machine with a GPU, which is there for minutes: it must not fail for a reason that shows here.
  visit: () => {
    if (process.platform !== 'linux') throw new Skipped('the strict driver is for Linux');
    if (!isThere('cmake')) throw new Skipped('cmake is not installed');
    run('node', ['test/gpu/try-visit.mjs']);
  },
  'strict-driver': () => overStrictDriver('--settings', 'usual,strictest'),
  'native-tests': () => nativeTests('warnings'),
  'native-tests-address': () => nativeTests('address'),
  'native-tests-thread': () => nativeTests('thread'),
  ...Object.fromEntries(Object.entries(nativeSuites).map(([name, suite]) => [`sanitized-addon-${name}`, () => sanitizedAddon(suite)])),
};

const groups = {
  // What a change breaks most easily where no test looks.
  quick: ['lint', 'types', 'clang-format', 'warnings', 'unused', 'package', 'api', 'docs', 'cuda-header', 'strict-driver-suite', 'visit'],
  'sanitized-addon': Object.keys(nativeSuites).map((name) => `sanitized-addon-${name}`),
};

const names = argv.length > 2 ? argv.slice(2).flatMap((name) => groups[name] ?? name) : Object.keys(steps);
const unknown = names.filter((name) => !Object.hasOwn(steps, name));
if (unknown.length > 0) {
  console.error(
    `there is no step ${unknown.join(', ')}; the steps are ${Object.keys(steps).join(', ')}, and ${Object.entries(groups)
      .map(([name, parts]) => `${name} for ${parts.join(', ')}`)
      .join('; ')}`,
  );
  exit(2);
}
let failures = 0;
let skipped = 0;
const started = performance.now();
for (const name of names) {
  stdout.write(`${name.padEnd(28)}`);
  const begun = performance.now();
  const seconds = () => `${((performance.now() - begun) / 1000).toFixed(1)} s`;
  try {
    steps[name]();
    console.log(`ok ${seconds()}`);
  } catch (error) {
    if (error instanceof Skipped) {
      skipped++;
      console.log(`skipped: ${error.message}`);
      continue;
    }
    failures++;
    console.log(`FAILED ${seconds()}\n\n${error instanceof Failure ? error.message : error.stack}`);
  }
}
const total = ((performance.now() - started) / 1000).toFixed(0);
console.log(`\n${names.length - skipped - failures} steps passed, ${failures} failed, ${skipped} skipped, in ${total} s`);
exit(failures);
