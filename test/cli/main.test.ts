import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { logText, row } from '../formats/logs.js';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
const log = join(folder, 'small.csv');
writeFileSync(log, logText(row('allocate', 1, 1000), row('free', 1, 1000)));
afterAll(() => rmSync(folder, { recursive: true }));

describe('on a full disk', () => {
  let full = 0;
  beforeAll(() => {
    full = openSync('/dev/full', 'w');
  });
  afterAll(() => closeSync(full));

  test.each([
    ['resources'],
    ['resources --json'],
    ['doctor'],
    ['doctor --json'],
    [`replay ${log} --resource host --repeat 1`],
    [`replay ${log} --resource host --repeat 1 --json`],
    ['--help'],
    ['--version'],
    ['replay --help'],
  ])('cistern %s reports in one line that it cannot write, and fails', async (line) => {
    const { code, signal, stderr } = await runCistern(line.split(' '), undefined, {}, { stdout: full });
    expect(stderr).toMatch(/^error: the output cannot be written: ENOSPC.*\n$/);
    expect([code, signal]).toEqual([1, null]);
  });

  test('errors that cannot be printed leave the exit status unchanged', async () => {
    const { code, stdout } = await runCistern(['replay', join(folder, 'missing.csv')], undefined, {}, { stderr: full });
    expect([code, stdout]).toEqual([2, '']);
  });
});
