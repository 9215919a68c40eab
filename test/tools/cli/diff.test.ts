import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-diff-'));
afterAll(() => rmSync(folder, { recursive: true }));

function csv(name: string, ...rows: readonly string[]): string {
  const path = join(folder, name);
  writeFileSync(path, ['Thread,Time,Action,Pointer,Size,Stream', ...rows, ''].join('\n'));
  return path;
}

const before = csv(
  'before.csv',
  '1,10:00:00:000001,allocate,0x1000,3000000,0x0',
  '1,10:00:00:000002,allocate,0x9000000,600,0x0',
  '1,10:00:00:000003,free,0x1000,3000000,0x0',
);
const after = csv(
  'after.csv',
  '1,10:00:00:000001,allocate,0x1000,2500000,0x0',
  '1,10:00:00:000002,allocate,0x9000000,600,0x0',
  '1,10:00:00:000003,allocate,0xa000000,5000,0x0',
);

test('cistern diff prints the sums and the groups that changed, those that grew first', async () => {
  const { code, stdout, stderr } = await runCistern(['diff', before, after]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout.replaceAll(folder, '')).toBe(`From /before.csv to /after.csv

bytes               before     after      change           allocations
live at the peak  2.86 MiB  2.39 MiB  -483.4 KiB  -16.5 %            3  +1
never freed          600 B  2.39 MiB   +2.39 MiB  × 4,176            3  +2
allocated         2.86 MiB  2.39 MiB  -483.4 KiB  -16.5 %            3  +1

live at the peak, by size    before     after      change           allocations
4 KiB to 8 KiB                  0 B  4.88 KiB   +4.88 KiB                     1  +1
2 MiB to 4 MiB             2.86 MiB  2.38 MiB  -488.3 KiB  -16.7 %            1

1 unchanged
`);
});

test('--measure, --limit and --json', async () => {
  const one = await runCistern(['diff', before, after, '--measure', 'end', '--limit', '1']);
  expect(one.stdout).toMatch(
    /never freed, by size +before +after +change +allocations\n2 MiB to 4 MiB +0 B +2\.38 MiB +\+2\.38 MiB +1 +\+1\n/,
  );
  expect(one.stdout).toContain('1 more with smaller changes (--limit), 1 unchanged');
  const json = JSON.parse((await runCistern(['diff', before, after, '--json'])).stdout);
  expect(json).toMatchObject({ by: 'size', total: { before: { peakBytes: 3_000_600 }, after: { peakBytes: 2_505_600 } } });
});

test('a log beside itself shows no change, and standard input is a log', async () => {
  expect((await runCistern(['diff', before, before])).stdout).toContain('live at the peak, by size: no change\n\n2 unchanged\n');
});

test('a log without allocations is told of, and a layer that does not exist is refused', async () => {
  const empty = csv('empty.csv');
  expect((await runCistern(['diff', empty, after])).stderr).toContain(`warning: ${empty} has no allocations`);
  const refused = await runCistern(['diff', before, after, '--layer', 'nope']);
  expect(refused).toMatchObject({ code: 2, stdout: '' });
  expect(refused.stderr).toContain('has no layer "nope"');
});

test('reports are the logs that they were made of', async () => {
  const pages = [];
  for (const log of [before, after]) {
    const page = log.replace('.csv', '.html');
    // A report is not a log that is kept from being overwritten.
    for (let i = 0; i < 2; i++) expect(await runCistern(['report', log, '-o', page])).toMatchObject({ code: 0 });
    pages.push(page);
  }
  const ofLogs = JSON.parse((await runCistern(['diff', before, after, '--json'])).stdout);
  expect(JSON.parse((await runCistern(['diff', ...pages, '--json'])).stdout)).toEqual(ofLogs);
});
