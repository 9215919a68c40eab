import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { isSoftwareDevice } from '../support/processes.js';
import { skipTest } from '../support/skip-test.js';

test('a writer, a reader or cistern keep that is killed at any step loses no region, and leaves none half committed', () => {
  if (process.platform !== 'linux') skipTest('Linux only');
  if (!isSoftwareDevice) skipTest('it starts hundreds of processes, each of which would open the device');
  const program = fileURLToPath(new URL('kills.mjs', import.meta.url));
  const { status, stdout } = spawnSync(process.execPath, [program, '100', '1', '30'], { encoding: 'utf8', timeout: 110_000 });
  expect([status, stdout]).toEqual([0, expect.stringMatching(/^no fault: .*"writers":[1-9].*"readers":[1-9]/)]);
});
