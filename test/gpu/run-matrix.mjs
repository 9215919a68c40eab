/**
 * Runs the suites over the strict driver in each of its settings: `npm run test:strict`, or with
 * `-- [--settings a,b] [--suites c,d] [--save]` in some; `a+b` is one run in both settings; `--save` enters the counts in docs/proof.md. `-- SUITE …` runs these in the usual settings. Prints
 * what passed and what failed after each suite, and a table at the end. Exits with 0 only if nothing
 * failed and the driver's log reports no misuse.
 */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { buildKernels, buildStrictDriver } from '../../scripts/build-for-tests.mjs';
import { faultsIn, strictDriverEnvironment } from '../../scripts/over-strict-driver.mjs';
import { saveFigures } from '../../scripts/proof-figures.mjs';
import { isMisuseOnPurpose } from './misuse-on-purpose.mjs';
import { failureLines, runSuite, skippedOf } from './run-suite.mjs';
import { gpuSuites } from './suites.mjs';

/**
 * Names for settings of native/strict_driver/settings.h. Settings not given keep their default
 * there.
 */
const allSettings = {
  usual: {},
  strictest: { ALLOC_SYNCS: 1, LOCKS_WHILE_WAITING: 1, FIXED_DEFAULT_IDS: 1, KERNELS: 1 },
  'allocations wait': { ALLOC_SYNCS: 1 },
  'frees do not wait': { FREE_SYNCS: 0 },
  'frees do not wait and long pauses': { FREE_SYNCS: 0, DELAY_US: 2000, SEED: 3 },
  'locks while waiting': { LOCKS_WHILE_WAITING: 1 },
  // A stream then stands still in a host function, so that several can stand still only if host
  // functions run concurrently.
  'no stream memory operations': { STREAM_MEMORY_OPERATIONS: 0, SERIAL_CALLBACKS: 0 },
  'callbacks side by side': { SERIAL_CALLBACKS: 0 },
  'no pauses': { DELAY_US: 0 },
  'long pauses': { DELAY_US: 2000, SEED: 7 },
  'copies from pageable memory do not wait': { PAGEABLE_WAITS: 0 },
  'uses pageable memory itself': { PAGEABLE_ACCESS: 1 },
  "uses the host's page tables": { HOST_PAGE_TABLES: 1 },
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
  'pinned memory is managed, as with confidential computing': { PINNED_IS_MANAGED: 1, SERIAL_CALLBACKS: 0 },
  'handles are not reused': { REUSE_HANDLES: 0 },
  'captures: mild': { MILD_CAPTURES: 1, KERNELS: 1 },
};

/** Suites in which tests use memory out of order on purpose, to see whether that is found. */
const misusesMemory = new Set(['driver', 'adaptors', 'buffers']);

const { values, positionals } = parseArgs({
  options: { settings: { type: 'string' }, suites: { type: 'string' }, save: { type: 'boolean', default: false } },
  allowPositionals: true,
});
const suites = chosen('suite', values.suites?.split(',') ?? positionals, Object.keys(gpuSuites));
const settings = (values.settings?.split(',') ?? (positionals.length > 0 ? ['usual'] : Object.keys(allSettings))).map((name) => ({
  name: name.replaceAll('+', ' + '),
  values: together(chosen('setting', name.split('+'), Object.keys(allSettings))),
}));

const scratch = mkdtempSync(join(tmpdir(), 'cistern-strict-'));
const folder = buildStrictDriver();
const kernels = buildKernels();
const rows = [`| settings | ${suites.join(' | ')} | seconds |`, `|${' --- |'.repeat(suites.length + 2)}`];
let isGoodSoFar = true;
for (const { name, values: settingsOfRow } of settings) {
  const row = [];
  const started = performance.now();
  for (const suite of suites) {
    const log = join(scratch, `${name}-${suite}`.replaceAll(' ', '-'));
    const driverLog = `${log}.driver`;
    const environment = { ...strictDriverEnvironment(folder, driverLog, settingsOfRow), CISTERN_KERNELS: kernels };
    const result = await runSuite(suite, environment, log);
    const misuses = faultsIn(driverLog, misusesMemory.has(suite) ? ['MISUSE'] : undefined).filter(
      (line) => !isMisuseOnPurpose(suite, line),
    );
    const skipped = skippedOf(result);
    const failed = result.failures.length;
    row.push(`${result.passed}${skipped > 0 ? `, ${skipped} skipped` : ''}${failed > 0 ? `, **${failed} failed**` : ''}`);
    // Printed at once, so that a run that is cut off still has its counts.
    console.log(`${name}, ${suite}: ${row.at(-1)}, ${result.seconds.toFixed(0)} s`);
    for (const line of [...failureLines(result), ...misuses.slice(0, 5).map((line) => `  ${line}`)]) console.log(line);
    if (values.save) saveFigures('strict-driver', [{ settings: name, [suite]: row.at(-1) }]);
    isGoodSoFar &&= failed === 0 && misuses.length === 0;
  }
  rows.push(`| ${name} | ${row.join(' | ')} | ${((performance.now() - started) / 1000).toFixed(0)} |`);
}
console.log(`\n${rows.join('\n')}\n\nwhat the tests printed: ${scratch}`);
process.exit(isGoodSoFar ? 0 : 1);

/** The values of several settings, none of which may contradict another. */
function together(names) {
  const values = {};
  for (const name of names) {
    for (const [key, value] of Object.entries(allSettings[name])) {
      if ((values[key] ?? value) !== value) {
        console.error(`the settings ${names.join(' and ')} contradict each other in ${key}`);
        process.exit(2);
      }
      values[key] = value;
    }
  }
  return values;
}

/** @returns {string[]} the names, or all if there are none */
function chosen(what, names, all) {
  const unknown = names.filter((name) => !all.includes(name));
  if (unknown.length === 0) return names.length === 0 ? all : names;
  console.error(`there is no ${what} ${unknown.join(', ')}; there are ${all.join(', ')}`);
  process.exit(2);
}
