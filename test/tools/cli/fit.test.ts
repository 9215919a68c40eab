import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import type { FitResult } from '../../../src/tools/replay/index.js';
import { logText, row } from '../formats/logs.js';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
const log = join(folder, 'small.csv');
writeFileSync(log, logText(row('allocate', 1, 1000), row('allocate', 9, 3000), row('free', 1, 1000), row('free', 9, 3000)));
afterAll(() => rmSync(folder, { recursive: true }));

describe('cistern fit', () => {
  test('prints an object for one stack', async () => {
    const { code, stdout, stderr } = await runCistern(['fit', log, '--resource', 'pool(host)', '--json', '--repeat', '2']);
    expect([code, stderr]).toEqual([0, '']);
    expect(JSON.parse(stdout)).toEqual({
      resource: 'pool(host)',
      fitted: 'pool(host, initialBytes=4KiB, maximumBytes=4KiB)',
      isComplete: true,
      taking: 'at-once',
      streams: 'log',
      operations: 4,
      peakLiveBytes: 4000,
      smallestMaximumBytes: 4096,
      overheadRatio: 4096 / 4000 - 1,
      maxima: {
        asNeeded: { resource: 'pool(host, maximumBytes=6KiB)', bytes: 6144, overheadRatio: 6144 / 4000 - 1 },
        atOnce: { resource: 'pool(host, initialBytes=4KiB, maximumBytes=4KiB)', bytes: 4096, overheadRatio: 4096 / 4000 - 1 },
      },
      nanosecondsPerOperation: {
        smallest: { median: expect.any(Number), minimum: expect.any(Number) },
        unlimited: { median: expect.any(Number), minimum: expect.any(Number) },
      },
      replays: expect.any(Number),
    });
  });

  test('gives a plan the size of its block, and a limit if its leaf has no maximum', async () => {
    const plan = join(folder, 'plan.json');
    await runCistern(['plan', log, '-o', plan]);
    const resources = [`planned(host, plan=${plan})`, `planned(pool(host), plan=${plan})`];
    const args = ['fit', log, '--json', '--repeat', '1', ...resources.flatMap((resource) => ['--resource', resource])];
    const { code, stdout, stderr } = await runCistern(args);
    expect([code, stderr]).toEqual([0, '']);
    const results = JSON.parse(stdout) as FitResult[];
    // 1000 bytes and 3000, each rounded up to 256.
    expect(results.map(({ fitted, smallestMaximumBytes }) => [fitted, smallestMaximumBytes])).toEqual([
      [`planned(limiting(host, limitBytes=4KiB), plan=${plan})`, 4096],
      [`planned(pool(host, maximumBytes=4KiB), plan=${plan})`, 4096],
    ]);
  });

  test('prints a list for several, with a result for each', async () => {
    const args = ['fit', log, '--resource', 'host', '--resource', 'arena(host)', '--json', '--repeat', '1', '--streams', 'single'];
    const { code, stdout } = await runCistern(args);
    expect(code).toBe(0);
    const results = JSON.parse(stdout) as FitResult[];
    expect(results.map(({ fitted, streams }) => [fitted, streams])).toEqual([
      ['limiting(host, limitBytes=4KiB)', 'single'],
      ['arena(host, arenaBytes=1MiB)', 'single'],
    ]);
  });

  test('compares stacks in a table, four by default', async () => {
    const { code, stdout, stderr } = await runCistern(['fit', log, '--repeat', '1']);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(/small\.csv: 4 events, .* at most 3\.91 KiB live, the log's streams$/m);
    const rows = stdout.trimEnd().split('\n').slice(-4);
    expect(rows.map((line) => line.split(/ {2,}/).slice(0, 7))).toEqual([
      ['pool(cuda, deallocationEvents=eager)', '4 KiB', '4096', '3.91 KiB', 'at once', '53.6 %', '2.4 %'],
      ['pool(cuda, deallocationEvents=deferred)', '4 KiB', '4096', '3.91 KiB', 'at once', '53.6 %', '2.4 %'],
      ['pool(cuda, deallocationEvents=off)', '4 KiB', '4096', '3.91 KiB', 'at once', '53.6 %', '2.4 %'],
      ['arena(cuda)', '1 MiB', '1048576', '3.91 KiB', 'at once', '-', '26114.4 %'],
    ]);
  });

  test('prints Markdown', async () => {
    const { stdout } = await runCistern(['fit', log, '--resource', 'host', '--format', 'markdown', '--repeat', '1']);
    const lines = stdout.trimEnd().split('\n');
    expect(lines[2]).toMatch(/^\| resource +\| smallest maximum +\| in bytes +\|/);
    expect(lines[3]).toMatch(/^\| :-+ \| -+: \|/);
    expect(lines[4]).toMatch(/^\| host +\| +4 KiB \| +4096 \|/);
  });

  test('exits with 1 if no maximum completes the log, and says what to do', async () => {
    const { code, stdout, stderr } = await runCistern(['fit', log, '--resource', 'fixed-size(host, blockBytes=2KiB)', '--repeat', '1']);
    expect(code).toBe(1);
    expect(stdout).toMatch(/^fixed-size\(host, blockBytes=2KiB\) +none +-/m);
    expect(stderr).toMatch(
      /^error: fixed-size\(host, blockBytes=2KiB\): no maximum completes the log\nhint: "cistern replay .* --until-failure" says why\n$/,
    );
  });

  test('stays within the memory of the software device', async () => {
    const large = join(folder, 'large.csv');
    writeFileSync(large, logText(row('allocate', 1, 3000), row('allocate', 9, 3000), row('free', 1, 3000), row('free', 9, 3000)));
    const args = ['fit', large, '--resource', 'pool(cuda)', '--device', 'software', '--device-memory', '4KiB', '--json', '--repeat', '1'];
    const { code, stdout } = await runCistern(args);
    expect(code).toBe(1);
    expect(JSON.parse(stdout)).toMatchObject({ smallestMaximumBytes: null, peakLiveBytes: 6000 });
  });

  test.each([
    [['fit', log, '--resource', 'pool(host, maximumBytes=1MiB)'], /^error: pool already has a maximum, .*: leave maximumBytes out$/m],
    [['fit', log, '--resource', 'pol(host)'], /did you mean pool\?/],
    [['fit', join(folder, 'smal.csv')], /^error: .*smal\.csv does not exist\nhint: did you mean .*small\.csv\?\n$/],
    [['fit', log, '--json', '--format', 'table'], /cannot be used with option '--format/],
    [['fit', log, '--format', 'html'], /Allowed choices are table, json, markdown/],
    [['fit'], /missing required argument 'log'/],
  ])('refuses %j', async (args, message) => {
    const { code, stdout, stderr } = await runCistern(args);
    expect(stderr).toMatch(message);
    expect([code, stdout]).toEqual([2, '']);
  });
});
