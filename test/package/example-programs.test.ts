import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

/** What each program prints when it has shown its point. */
const findings: Readonly<Record<string, RegExp>> = {
  'caching-scope.mjs': /in a caching scope +│ 52 +│ 1 +│ 0 /,
  'managed-oversubscription.mjs': /every result right/,
  'monte-carlo.mjs': /deallocationEvents=eager\) +│ 0 +│ 0 +│ 10 [\s\S]*deallocationEvents=deferred\) +│ 0 +│ 0 +│ 0 /,
  'reclaiming.mjs': /out of memory after \d+ steps[\s\S]*all 512 steps/,
  'scratch-pipeline.mjs': /monotonic, a mark per tile +│ '12 MiB'/,
  'serving.mjs': /100 of 100 requests answered[\s\S]*0 B left\nfree, 4 MiB: 429, [\s\S]*paying, 9 MiB: 413, /,
  'taking-turns.mjs': /both sleep: 0 B of the device[\s\S]*6 turns, 6 of them with the right weights/,
  'training-recording.mjs': /events in 4 phases and \d+ stacks[\s\S]*cistern report /,
  'worker-pipeline.mjs': /200 buffers of 256 KiB through 4 workers, 200 of them right/,
};

test('every program in examples/ is run here', () => {
  const programs = readdirSync('examples').filter((name) => name.endsWith('.mjs'));
  expect(programs.sort()).toEqual(Object.keys(findings));
});

test.each(Object.entries(findings))('%s prints its finding', async (name, finding) => {
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [`examples/${name}`], {
    timeout: 100_000,
    env: { PATH: process.env['PATH'], CISTERN_DEVICE: 'software' },
  });
  expect(stdout).toMatch(finding);
  expect(stderr).toBe('');
});
