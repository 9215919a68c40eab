/**
 * Tries a visit over the strict driver, in seconds: `node test/gpu/try-visit.mjs [FOLDER]`, with the folder that `npm run visit` made, or with this
 * tree. The first run is cut in the middle. A test of it hangs, another one ends its process. What is left must be complete, and the next run must go on.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { buildKernels, buildStrictDriver } from '../../scripts/build-for-tests.mjs';
import { faultsIn, strictDriverEnvironment } from '../../scripts/over-strict-driver.mjs';
import { figures } from './figures.mjs';
import { fileItself, linesOf } from './run-suite.mjs';
import { rowsOf } from './seen.mjs';

const folder = process.argv[2] ?? fileURLToPath(new URL('.', import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), 'cistern-visit-'));
const driverLog = join(scratch, 'driver');
buildKernels();
const environment = {
  ...process.env,
  ...strictDriverEnvironment(buildStrictDriver(), driverLog, { KERNELS: 1 }),
  PROCESSES: join(scratch, 'processes'),
  CISTERN_VISIT_KNOWN: join(scratch, 'known.jsonl'),
};
const tests = ['test/gpu/sticky-errors.test.ts', 'test/gpu/kernels.test.ts', 'test/gpu/kernels-example.test.ts', 'trial'];
const measured = Object.keys(figures).map((name) => `figures ${name}`);
const fixtures = ['crashes', 'hangs', 'lingers'].map((name) => `test/suites/fixture/${name}.suite.ts`);
try {
  const first = visit('first');
  while (ended('first').length === 0) {
    assert.equal(first.exitCode, null, 'the first run ended before it could be cut');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  first.kill('SIGTERM');
  await once(first, 'close');
  const before = ended('first');
  assert.ok(before.length < 5, 'the first run was cut too late');

  const second = visit('second');
  await once(second, 'close');
  const after = ended('second');
  assert.deepEqual(after.slice(0, before.length), before, 'the second run knows the first');
  assert.equal(new Set(after).size, after.length, `a file ran twice: ${after.join(', ')}`);
  const rows = rowsOf(lines('second'));
  assert.deepEqual(Object.keys(rows).sort(), [...fixtures, ...tests.slice(0, -1), 'probe machine', 'probe processes', ...measured].sort());
  const counts = (path) => [rows[path].passed, rows[path].failed];
  assert.deepEqual(
    fixtures.map(counts),
    [
      [1, 1],
      [1, 1],
      [1, 0],
    ],
    'passed and failed of what crashes, hangs, and leaves a process behind',
  );
  assert.match(rows[fixtures[1]].failures[0], /^never ends: began and did not end: no test began or ended for 8 s/);
  for (const path of tests.slice(0, -1)) assert.equal(rows[path].failed, 0, path);
  for (const name of ['probe machine', 'probe processes', ...measured]) assert.equal(rows[name].answer.failed, undefined, name);
  const replayed = rows['figures comparison'].answer.rows.map(({ subject }) => subject);
  assert.deepEqual(
    replayed.filter((subject) => subject.startsWith('cistern ')),
    ['cistern pool, deferred', 'cistern pool, eager', 'cistern cuda-async'],
  );
  assert.equal(
    Object.values(rows).some(({ gpu }) => gpu !== undefined),
    false,
    'the strict driver was taken for a GPU',
  );
  assert.ok(readdirSync(join(scratch, 'second')).length <= 8);
  assert.deepEqual(faultsIn(driverLog, ['MISUSE']), []);
  console.log(`a visit was cut after ${before.length} files, and went on to all ${after.length}`);
} finally {
  rmSync(scratch, { recursive: true });
}

function visit(name) {
  mkdirSync(join(scratch, name));
  const options = ['--seconds', '100', '--longest', '8', '--probes', 'machine,processes', '--figures', 'all'];
  const env = { ...environment, OUT: join(scratch, name) };
  return spawn('sh', [join(folder, 'visit.sh'), ...options, ...tests], { env, stdio: ['ignore', 'ignore', 'inherit'] });
}

function lines(name) {
  const path = join(scratch, name, 'results.jsonl');
  return existsSync(path) ? linesOf(readFileSync(path)) : [];
}

/** The files of tests that have ended, in order. */
function ended(name) {
  return lines(name).flatMap((line) => (line.name === fileItself && line.progress === 'ended' ? line.file : []));
}
