import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { sizeMeant } from '../../../src/basics/units.js';
import { arrowEtl, logText, row } from '../formats/logs.js';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-first-hour-'));
afterAll(() => rmSync(folder, { recursive: true }));
const log = join(folder, 'log.csv');
writeFileSync(log, logText(row('allocate', 0x100, 1024), row('free', 0x100, 1024)));

test.each([
  ['2gib', '2GiB'],
  ['5m', '5MiB'],
  ['1.5GIB', '1.5GiB'],
  ['3gb', '3GB'],
  ['2GiB', undefined],
  ['12', undefined],
  ['2 lots', undefined],
])('the size %s means %s', (text, meant) => {
  expect(sizeMeant(text)).toBe(meant);
});

test('a size with letters of the wrong case gets its right form', async () => {
  const { code, stderr } = await runCistern(['replay', log, '--device-memory', '2gib']);
  expect([code, stderr]).toEqual([2, expect.stringContaining('did you mean 2GiB?')]);
  const setting = await runCistern(['replay', log], undefined, { CISTERN_SOFTWARE_MEMORY: '5m' });
  expect(setting.stderr).toContain('(did you mean 5MiB?)');
});

test('a format that contradicts the name of the output is refused, except with --force', async () => {
  const output = join(folder, 'o.csv');
  const { code, stderr } = await runCistern(['convert', log, output, '--to', 'pytorch-snapshot']);
  expect([code, stderr]).toEqual([2, expect.stringMatching(/o\.csv" is that of rmm-csv, but --to says pytorch-snapshot/)]);
  expect(existsSync(output)).toBe(false);
  expect((await runCistern(['convert', log, output, '--to', 'pytorch-snapshot', '--force'])).code).toBe(0);
});

test.skipIf(!existsSync('/dev/full'))('a full disk is named with the file', async () => {
  const { code, stderr } = await runCistern(['convert', arrowEtl, '/dev/full', '--to', 'recording']);
  expect([code, stderr]).toEqual([2, 'error: no space left to write /dev/full\n']);
});

test.skipIf(process.platform === 'win32')('a build that is interrupted leaves nothing', { timeout: 60_000 }, async () => {
  const temporary = mkdtempSync(join(folder, 'tmp-'));
  const tools = mkdtempSync(join(folder, 'tools-'));
  // Stands for CMake: it says that it runs, and does not end by itself.
  writeFileSync(join(tools, 'cmake'), '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho configuring\nexec sleep 600\n', { mode: 0o755 });
  const environment = { TMPDIR: temporary, PATH: `${tools}:${process.env['PATH']}` };
  const { signal } = await runCistern(['build'], (child) => child.stderr?.once('data', () => child.kill('SIGINT')), environment);
  expect(signal).toBe('SIGINT');
  expect(readdirSync(temporary)).toEqual([]);
});

test('a log where a command belongs gets the commands for logs', async () => {
  const { code, stderr } = await runCistern([log]);
  expect([code, stderr]).toEqual([2, expect.stringMatching(/^error: unknown command .*\nhint: "cistern report .*log\.csv" shows a log/s)]);
  expect((await runCistern(['nothing.csv'])).stderr).not.toContain('hint');
});

test('half of a snapshot is not said to have a part that can be read', async () => {
  const snapshot = join(folder, 'half.pickle');
  writeFileSync(snapshot, Buffer.from('\x80\x02}(X\x08\0\0\0segments', 'latin1'));
  const { code, stderr } = await runCistern(['summary', snapshot]);
  expect([code, stderr]).toEqual([2, expect.stringContaining('or not a PyTorch snapshot: ')]);
  expect(stderr).not.toContain('the part of a recording');
});
