/**
 * The first thing to run on a machine with a GPU: `npm run test:gpu -- [SUITE …]`, or, from a bundle
 * (scripts/bundle.mjs), `./run [SUITE …]`. Prints the device, a line for each suite, the failures, and why tests were skipped; see docs/gpu.md. Without
 * a GPU it says so and exits with 0.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { buildKernels } from '../../scripts/build-for-tests.mjs';
import { failureLines, runSuite, skippedOf } from './run-suite.mjs';
import { gpuSuites } from './suites.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(gpuSuites);
const unknown = names.filter((name) => !Object.hasOwn(gpuSuites, name));
if (unknown.length > 0) {
  console.error(`there is no suite ${unknown.join(', ')}; the suites are ${Object.keys(gpuSuites).join(', ')}`);
  process.exit(2);
}

const doctor = spawnSync(process.execPath, [join(root, 'dist', 'cli', 'main.js'), 'doctor', '--device', 'cuda'], { encoding: 'utf8' });
process.stdout.write(doctor.stdout + doctor.stderr);
if (doctor.status !== 0) {
  console.log('\nno GPU can be used here: nothing was run');
  process.exit(0);
}

const log = join(mkdtempSync(join(tmpdir(), 'cistern-gpu-')), 'output.txt');
const environment = {
  CISTERN_TEST_DEVICE: 'cuda',
  ...kernels(),
  // What the driver would load later takes device memory, of which tests count bytes.
  CUDA_MODULE_LOADING: 'EAGER',
};
const results = [];
console.log(`\n${'suite'.padEnd(13)} passed  failed  skipped  seconds`);
for (const name of names) {
  const result = await runSuite(name, environment, log);
  results.push(result);
  const { passed, failures, seconds } = result;
  const counts = [passed, failures.length, skippedOf(result), seconds.toFixed(0)].map((value, i) =>
    String(value).padStart([7, 8, 9, 9][i]),
  );
  console.log(`${name.padEnd(12)}${counts.join('')}${failures.length === 0 ? '' : '   FAILED'}`);
  for (const line of failureLines(result)) console.log(line);
}
const reasons = new Map();
for (const { skips } of results) for (const [reason, count] of skips) reasons.set(reason, (reasons.get(reason) ?? 0) + count);
if (reasons.size > 0) console.log('\nskipped:');
for (const [reason, count] of reasons) console.log(`  ${String(count).padStart(5)}  ${reason}`);
const answers = existsSync(log) ? readFileSync(log, 'utf8').match(/capture probe: .*/g) : null;
if (answers !== null) console.log(`\nwhat CUDA's documentation leaves open:\n${answers.join('\n')}`);
const isAllGood = results.every(({ failures }) => failures.length === 0);
console.log(`\n${isAllGood ? 'everything that this device can do was right' : 'something was wrong: docs/gpu.md says what to do'}`);
console.log(`what the tests printed: ${log}`);
process.exit(isAllGood ? 0 : 1);

/** Where the addon that launches kernels is. Without it, the tests that need it are skipped. */
function kernels() {
  try {
    return { CISTERN_KERNELS: buildKernels() };
  } catch (error) {
    console.log(`\nkernels: skipped, since the addon that launches them cannot be built here: ${error.message}`);
    return {};
  }
}
