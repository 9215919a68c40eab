/**
 * Runs the suites over the strict driver in each of its settings:
 * `npm run test:strict -- [--settings a,b] [--suites c,d]`. Prints a table of what passed, and the
 * failures below it. Exits with 0 only if nothing failed and the driver's log reports no misuse.
 */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { buildKernels, buildStrictDriver } from '../../scripts/build-for-tests.mjs';
import { faultsIn, strictDriverEnvironment } from '../../scripts/over-strict-driver.mjs';
import { failureLines, isGood, runSuite, skippedOf } from './run-suite.mjs';
import { gpuSuites } from './suites.mjs';

/**
 * Names for settings of native/strict_driver/settings.h. Settings not given keep their default
 * there.
 */
const allSettings = {
  usual: {},
  strictest: { ALLOC_SYNCS: 1, LOCKS_WHILE_WAITING: 1, FIXED_DEFAULT_IDS: 1, KERNELS: 1 },
  'allocations wait': { ALLOC_SYNCS: 1 },
  'locks while waiting': { LOCKS_WHILE_WAITING: 1 },
  // A stream then stands still in a host function, so that several can stand still only if host
  // functions run concurrently.
  'no stream memory operations': { STREAM_MEMORY_OPERATIONS: 0, SERIAL_CALLBACKS: 0 },
  'callbacks side by side': { SERIAL_CALLBACKS: 0 },
  'no pauses': { DELAY_US: 0 },
  'long pauses': { DELAY_US: 2000, SEED: 7 },
  'copies from pageable memory do not wait': { PAGEABLE_WAITS: 0 },
  'reads pageable memory itself': { HOST_PAGE_TABLES: 1 },
  kernels: { KERNELS: 1 },
  'one device': { DEVICES: 1 },
  'driver 12.0': { VERSION: 12000 },
  'driver 12.1': { VERSION: 12010 },
  'driver 12.2': { VERSION: 12020 },
  'driver 12.8': { VERSION: 12080 },
  'no cuStreamWaitValue32': { MISSING: 'cuStreamWaitValue32', SERIAL_CALLBACKS: 0 },
  'no pools': { POOLS: 0 },
  'no concurrent managed access': { CONCURRENT_MANAGED: 0 },
  'managed memory is told to be host memory': { MANAGED_TYPE: 1 },
  'managed memory is told to be unified': { MANAGED_TYPE: 4, PINNED_HAS_RANGE: 0 },
  'handles are not reused': { REUSE_HANDLES: 0 },
};

/** Suites in which tests use memory out of order on purpose, to see whether that is found. */
const misusesMemory = new Set(['driver', 'adaptors', 'buffers']);

const { values } = parseArgs({ options: { settings: { type: 'string' }, suites: { type: 'string' } } });
const settings = chosen('settings', Object.keys(allSettings));
const suites = chosen('suites', Object.keys(gpuSuites));

const scratch = mkdtempSync(join(tmpdir(), 'cistern-strict-'));
const folder = buildStrictDriver();
const kernels = buildKernels();
const problems = [];
console.log(`| settings | ${suites.join(' | ')} |\n|${' --- |'.repeat(suites.length + 1)}`);
for (const name of settings) {
  process.stdout.write(`| ${name} |`);
  for (const suite of suites) {
    const log = join(scratch, `${name}-${suite}`.replaceAll(' ', '-'));
    const driverLog = `${log}.driver`;
    const environment = { ...strictDriverEnvironment(folder, driverLog, allSettings[name]), CISTERN_KERNELS: kernels };
    const result = await runSuite(suite, environment, log);
    const misuses = faultsIn(driverLog, misusesMemory.has(suite) ? ['MISUSE'] : undefined);
    const skipped = skippedOf(result);
    const failed = result.failures.length;
    process.stdout.write(
      ` ${result.passed}${skipped > 0 ? `, ${skipped} skipped` : ''}${isGood(result) ? '' : `, **${failed} failed**`} |`,
    );
    const lines = [...failureLines(result), ...misuses.slice(0, 5).map((line) => `  ${line}`)];
    if (lines.length > 0) problems.push(`${name}, ${suite}:`, ...lines);
  }
  process.stdout.write('\n');
}
if (problems.length > 0) console.log(`\n${problems.join('\n')}`);
console.log(`\nwhat the tests printed: ${scratch}`);
process.exit(problems.length === 0 ? 0 : 1);

function chosen(option, all) {
  if (values[option] === undefined) return all;
  const names = values[option].split(',');
  const unknown = names.filter((name) => !all.includes(name));
  if (unknown.length === 0) return names;
  console.error(`--${option}: there is no ${unknown.join(', ')}; there are ${all.join(', ')}`);
  process.exit(2);
}
