import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { runTests, type SuiteResult } from '../gpu/run-suite.mjs';

const scratch = mkdtempSync(join(tmpdir(), 'cistern-suites-'));
afterAll(() => rmSync(scratch, { recursive: true }));

/** Runs a file of the fixture, of whose processes none may live on. */
async function run(name: string): Promise<SuiteResult> {
  const processes = join(scratch, `${name}-processes`);
  writeFileSync(processes, '');
  const which = ['--config', 'test/suites/fixture/vitest.config.ts', `test/suites/fixture/${name}.suite.ts`];
  const result = await runTests(which, { PROCESSES: processes }, join(scratch, `${name}-output`), 5000);
  const started = readFileSync(processes, 'utf8').split(' ').filter(Boolean).map(Number);
  await expect.poll(() => started.filter(isRunning), { timeout: 20_000 }).toEqual([]);
  return result;
}

/** Whether a process runs, rather than waits for its parent to notice its end. */
function isRunning(pid: number): boolean {
  try {
    return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

const onLinux = test.skipIf(process.platform !== 'linux');

onLinux('a suite that hangs is ended with all its processes, and fails with the name of the test that began', async () => {
  const { failures } = await run('hangs');
  expect(failures).toEqual([
    {
      file: 'test/suites/fixture/hangs.suite.ts',
      name: 'never ends',
      message: expect.stringMatching(/^began and did not end: no test began or ended for 5 s; see /),
    },
  ]);
});

onLinux('a suite whose process ends fails with the name of the test that began', async () => {
  const { failures } = await run('crashes');
  expect(failures).toContainEqual({
    file: 'test/suites/fixture/crashes.suite.ts',
    name: 'ends its process',
    message: expect.stringMatching(/^began and did not end/),
  });
});

onLinux('a process that a suite leaves behind is ended, and is no failure', async () => {
  const { passed, failures, skips } = await run('lingers');
  expect({ passed, failures, skips: [...skips] }).toEqual({ passed: 1, failures: [], skips: [['the reason', 1]] });
});

onLinux('a suite that does not start fails', async () => {
  const { passed, failures } = await run('does-not-exist');
  expect({ passed, failures }).toEqual({
    passed: 0,
    failures: [{ file: '', name: 'the suite', message: expect.stringMatching(/^vitest ended with 1; see .*; no test began$/) }],
  });
});

onLinux('a test that fails says what is captured at that time, by which test, and since when', async () => {
  const { failures } = await run('captures');
  expect(failures.map(({ name }) => name)).toEqual(['fails later', 'ends it, and fails']);
  const line =
    /captured when this test failed:\n- stream \d+, \w+, begun \d+\.\d s ago by "leaves a capture over" at .*captures\.suite\.ts:\d+/;
  expect(failures[0]?.message).toMatch(line);
  expect(failures[1]?.message).not.toContain('captured when');
});
