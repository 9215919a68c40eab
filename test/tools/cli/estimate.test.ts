import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-estimate-'));
afterAll(() => rmSync(folder, { recursive: true }));
const path = (name: string) => join(folder, name);

/** Weights of 1 MiB, and 100,000 bytes for each sample of a batch. */
function batch(size: number): string {
  const bytes = size * 100_000;
  const rows = [
    'Thread,Time,Action,Pointer,Size,Stream',
    '1,10:00:00:000001,allocate,0x1000,1048576,0x0',
    `1,10:00:00:000002,allocate,0x9000000,${bytes},0x0`,
    `1,10:00:00:000003,free,0x9000000,${bytes},0x0`,
    '1,10:00:00:000004,free,0x1000,1048576,0x0',
  ];
  writeFileSync(path(`${size}.csv`), `${rows.join('\n')}\n`);
  return path(`${size}.csv`);
}

const logs = [batch(8), batch(16), batch(32)];

test('cistern estimate prints what another value needs, and writes its log', async () => {
  const { code, stdout, stderr } = await runCistern(['estimate', ...logs, '--values', '8,16,32', '--at', '64', '-o', path('64.csv')]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout.replaceAll(folder, '')).toBe(`value  live at the peak      bytes
    8          1.76 MiB  1,848,576  /8.csv
   16          2.53 MiB  2,648,576  /16.csv
   32          4.05 MiB  4,248,576  /32.csv
   64          7.10 MiB  7,448,576  estimated

From 8, 16 alone, the estimate for 32 would have been 4.05 MiB: 0.0 % too much.

/64.csv: the log at 64
`);
  const fitted = JSON.parse((await runCistern(['fit', path('64.csv'), '--resource', 'pool(cuda)', '--json'])).stdout);
  expect(fitted).toMatchObject({ operations: 4, peakLiveBytes: 7_448_576 });
});

test('--memory finds the largest value that fits', async () => {
  const run = async (memory: string) => await runCistern(['estimate', ...logs.slice(0, 2), '--values', '8,16', '--memory', memory]);
  expect((await run('10MiB')).stdout).toMatch(/\n +94 +9\.96 MiB +10,448,576 +estimated\n\nThe largest value that fits into 10 MiB is 94/);
  expect((await run('1MiB')).stdout).toContain('Not even the value 1 fits into 1 MiB.');
  const same = ['estimate', logs[0] as string, logs[0] as string, '--values', '1,2', '--memory', '1GiB', '--json'];
  expect(JSON.parse((await runCistern(same)).stdout)).toMatchObject({ largestValue: null, estimate: null, check: null });
});

test('arguments that do not fit together are refused', async () => {
  const refused = async (...args: string[]) => {
    const { code, stdout, stderr } = await runCistern(['estimate', ...args]);
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    return stderr;
  };
  const [first, second] = logs as [string, string];
  expect(await refused(first, second, '--values', '8', '--at', '3')).toContain('--values has 1 numbers for 2 logs');
  expect(await refused(first, second, '--values', '8,16')).toContain('nothing to estimate: give --at or --memory');
  for (const wrong of ['8,x', '8,0', `8,${'9'.repeat(400)}`])
    expect(await refused(first, second, '--values', wrong, '--at', '3')).toContain('It must be a number above 0, and at most 2^53 - 1.');
  expect(await refused(first, second, '--at', '3')).toContain("required option '--values <numbers>' not specified");
  expect(await refused(first, '--values', '8', '--at', '3')).toContain('an estimate needs at least two logs, got 1');
  expect(await refused(first, second, '--values', '8,16', '--at', '3', '-o', path('log.txt'))).toContain('does not say what to write');
  const nothing = [first, second, '--values', '8,16', '--memory', '1MiB', '-o', path('none.csv')];
  expect(await refused(...nothing)).toContain('no value to write a log for: give --at');
});
