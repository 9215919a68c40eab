import { spawnSync } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, describe, expect, test } from 'vitest';
import { arrowEtl, logText, row } from '../formats/logs.js';
import { hasPython, pickleWithPython, pythonNote } from '../formats/pytorch-snapshot/snapshots.js';
import { runCistern, startCistern } from './run-cistern.js';

const folder = await mkdtemp(join(tmpdir(), 'cistern-report-command-'));
afterAll(() => rm(folder, { recursive: true }));

describe('standard input', () => {
  test.each([
    ['report', ['-o', join(folder, 'stdin.html')], 'stdin.html: 3 events'],
    ['replay', ['--resource', 'cuda', '--repeat', '1'], 'standard input: 3 events'],
    ['fit', ['--resource', 'cuda', '--repeat', '1'], 'standard input: 3 events'],
    ['plan', [], 'standard input: 2 allocations in 768 B'],
    ['convert', [join(folder, 'stdin.cistern')], 'stdin.cistern: 3 events as recording'],
  ])('is read by cistern %s if the log is -', async (command, args, wanted) => {
    const text = gzipSync(logText(row('allocate', 1, 512), row('allocate', 2, 256), row('free', 1, 512)));
    const { code, stdout } = await runCistern([command, '-', ...args], undefined, {}, {}, text);
    expect(stdout).toContain(wanted);
    expect(code).toBe(0);
  });

  test.each([
    ['report', ['-o', join(folder, 'wrong.html')]],
    ['replay', ['--resource', 'cuda']],
    ['fit', ['--resource', 'cuda']],
    ['plan', []],
    ['diff', ['-']],
    ['convert', [join(folder, 'wrong.cistern')]],
  ])('is named by cistern %s if it is no log', async (command, args) => {
    const { code, stderr } = await runCistern([command, '-', ...args], undefined, {}, {}, Buffer.from('no log'));
    expect([code, stderr]).toEqual([2, expect.stringMatching(/^error: standard input(, line 1)?: is /)]);
  });
});

test('a folder as standard input is no empty log', () => {
  const descriptor = openSync(folder, 'r');
  const { status, stderr } = spawnSync(process.execPath, ['dist/tools/cli/main.js', 'plan', '-'], {
    encoding: 'utf8',
    stdio: [descriptor, 'pipe', 'pipe'],
  });
  closeSync(descriptor);
  expect([status, stderr]).toEqual([2, 'error: standard input is a folder\n']);
});

describe('cistern report', () => {
  test('writes a page about one log and says what is in it', async () => {
    const output = join(folder, 'arrow.html');
    const { code, stdout, stderr } = await runCistern([
      'report',
      arrowEtl,
      '-o',
      output,
      '--title',
      'Arrow & <ETL>',
      '--time-limit',
      '500ms',
    ]);
    expect(stderr).toBe('');
    expect(stdout).toMatch(/arrow\.html: 194,854 events in \d+\.\d KiB\n$/);
    expect(code).toBe(0);
    expect(await readFile(output, 'utf8')).toContain('<title>Arrow &amp; &lt;ETL&gt;</title>');
  });

  test('puts several logs into one page, whose title names them', async () => {
    const [first, second] = [join(folder, 'first.csv'), join(folder, 'second.csv')];
    await writeFile(first, logText(row('allocate', 1, 256)));
    await writeFile(second, logText(row('allocate', 1, 512), row('free', 1, 512)));
    const output = join(folder, 'both.html');
    const { code, stdout } = await runCistern(['report', first, second, '--output', output]);
    expect([code, stdout]).toEqual([0, expect.stringContaining('3 events')]);
    const html = await readFile(output, 'utf8');
    expect(html.match(/class="run"/g)).toHaveLength(2);
    expect(html).toContain('<title>first.csv, second.csv</title>');
  });

  test('shows a plan beside the log: one that it computes, or one of cistern plan', async () => {
    const log = join(folder, 'planned.csv');
    await writeFile(log, logText(row('allocate', 1, 512), row('allocate', 2, 256), row('free', 1, 512), row('allocate', 3, 512)));
    const output = join(folder, 'planned.html');
    const computed = await runCistern(['report', log, '--plan', '-o', output]);
    expect([computed.code, computed.stdout]).toEqual([0, expect.stringContaining('4 events')]);
    const html = await readFile(output, 'utf8');
    expect(html).toContain('"source":"plan of 768 B, lower bound 768 B, gap 0.00 %"');
    expect(html).toContain('<title>planned.csv</title>');
    const plan = join(folder, 'plan.json');
    await runCistern(['plan', log, '-o', plan]);
    const read = await runCistern(['report', log, '--plan', plan, '-o', output]);
    expect([read.code, await readFile(output, 'utf8')]).toEqual([0, html]);
    const both = await runCistern(['report', log, log, '--plan', plan, '-o', output]);
    expect([both.code, both.stderr]).toEqual([2, expect.stringContaining('--plan needs exactly one log')]);
    const other = await runCistern(['report', arrowEtl, '--plan', plan, '-o', output]);
    expect([other.code, other.stderr]).toEqual([2, expect.stringContaining('the plan is not one of')]);
  });

  test.skipIf(!hasPython)(`says what the graphs of a snapshot hold, unless it may take no time${pythonNote}`, async () => {
    const log = join(folder, 'graphs.pickle');
    const segment = (pool: number, bytes: number) =>
      `{'device': 0, 'address': ${pool * 2 ** 30}, 'total_size': ${bytes}, 'stream': 0, 'segment_pool_id': (${pool}, 0), 'frames': [], 'blocks': [{'size': ${bytes}, 'state': 'active_allocated', 'frames': []}]}`;
    await pickleWithPython(log, `{'segments': [${segment(1, 12 * 2 ** 20)}, ${segment(2, 24 * 2 ** 20)}], 'device_traces': [[]]}`, 4);
    const output = join(folder, 'graphs.html');
    const { code, stderr } = await runCistern(['report', log, '-o', output, '--time-limit', '200ms']);
    expect([code, stderr]).toEqual([0, '']);
    const html = await readFile(output, 'utf8');
    expect(html).toContain(`{"name":"${log}: private pool 2,0","allocationCount":1,"peakLiveBytes":25165824`);
    expect(html).toContain('"poolsBytes":37748736,"sharedPoolBytes":37748736,"plannedApartBytes":37748736,"plannedBytes":25165824}');
    await runCistern(['report', log, '-o', output, '--plan', '--time-limit', '200ms']);
    expect(await readFile(output, 'utf8')).toContain('"plannedBytes":25165824}');
    await runCistern(['report', log, '-o', output, '--time-limit', '0s']);
    expect(await readFile(output, 'utf8')).toContain('"graphs":null');
  });

  test('says what other stacks need, unless it may take no time for that', async () => {
    const log = join(folder, 'fitted.csv');
    await writeFile(log, logText(row('allocate', 1, 512), row('allocate', 2, 256), row('free', 1, 512)));
    const output = join(folder, 'fitted.html');
    const fitsIn = async () => JSON.parse(/"fits":(\[.*?\])/.exec(await readFile(output, 'utf8'))?.[1] ?? '');
    expect(await runCistern(['report', log, '-o', output])).toMatchObject({ code: 0, stderr: '' });
    const fits = await fitsIn();
    expect(fits.map(({ resource }: { resource: string }) => resource)).toContain('pool(cuda, deallocationEvents=deferred)');
    expect(fits[0]).toEqual({
      resource: 'cuda',
      fitted: 'limiting(cuda, limitBytes=768)',
      smallestMaximumBytes: 768,
      overheadRatio: 0,
      isComplete: true,
    });
    expect(await runCistern(['report', log, '-o', output, '--time-limit', '0s'])).toMatchObject({
      code: 0,
      stderr: `note: replaced the existing file ${output}\n`,
    });
    expect(await fitsIn()).toEqual([]);
  });

  test.each([
    [2 ** 40, true],
    [2 ** 50, false],
  ])('needs no device that has the memory of the log: sizes of %d bytes', async (bytes, isFitted) => {
    const log = join(folder, `${bytes}.csv`);
    await writeFile(log, logText(row('allocate', 1, bytes), row('free', 1, bytes), ...[2, 3, 4].map((i) => row('allocate', i, bytes))));
    const output = join(folder, `${bytes}.html`);
    const { code, stdout, stderr } = await startCistern(['report', log, '-o', output]);
    expect([code, stdout, stderr]).toEqual([0, expect.stringContaining('5 events'), '']);
    const fits = JSON.parse(/"fits":(\[.*?\])/.exec(await readFile(output, 'utf8'))?.[1] ?? '');
    expect(fits[0]?.smallestMaximumBytes).toBe(isFitted ? 3 * bytes : undefined);
  });

  test('says that a log is empty', async () => {
    const log = join(folder, 'empty.csv');
    await writeFile(log, logText());
    const report = await runCistern(['report', log, '-o', join(folder, 'empty.html')]);
    expect([report.code, report.stderr]).toEqual([
      0,
      expect.stringMatching(/^warning: .*empty\.csv has no allocations: the program allocated/),
    ]);
    const replay = await runCistern(['replay', log]);
    expect([replay.code, replay.stderr]).toEqual([
      2,
      expect.stringMatching(/has no events to replay\nhint: the program allocated nothing/),
    ]);
  });

  test('warns if a log ends early, and shows the events before that', async () => {
    const log = join(folder, 'cut.csv');
    await writeFile(log, logText(row('allocate', 1, 256), row('allocate', 2, 256)).slice(0, -20));
    const { code, stdout, stderr } = await runCistern(['report', log, '-o', join(folder, 'cut.html')]);
    expect(stderr).toMatch(/^warning: .*cut\.csv ends early, at byte \d+: .*; the report shows only the events before that\n$/);
    expect([code, stdout]).toEqual([0, expect.stringContaining('cut.html: 1 events')]);
  });

  test('says what to do if a log cannot be read, and writes nothing', async () => {
    const output = join(folder, 'none.html');
    const missing = await runCistern(['report', 'examples/traces/arrow-etl.csv.gy', '-o', output]);
    expect(missing.code).toBe(2);
    expect(missing.stderr).toContain('did you mean examples/traces/arrow-etl.csv.gz?');
    const noLog = await runCistern(['report', 'package.json', '-o', output]);
    expect(noLog.code).toBe(2);
    expect(noLog.stderr).toMatch(/^error: .*package\.json/);
    const noFolder = await runCistern(['report', arrowEtl, '-o', join(folder, 'missing', 'report.html')]);
    expect(noFolder.code).toBe(2);
    expect(noFolder.stderr).toContain('missing');
    expect((await readdir(folder)).filter((name) => name.includes('none') || name.includes('partial'))).toEqual([]);
  });

  test('leaves no half-written page when it is interrupted', async () => {
    const output = join(folder, 'interrupted.html');
    const { signal } = await runCistern(['report', ...Array<string>(8).fill(arrowEtl), '-o', output, '--time-limit', '0s'], (child) => {
      setTimeout(() => child.kill('SIGINT'), 700);
    });
    if (signal === 'SIGINT') expect((await readdir(folder)).filter((name) => name.includes('interrupted'))).toEqual([]);
  });

  test('has examples in its help', async () => {
    const { code, stdout } = await runCistern(['report', '--help']);
    expect(code).toBe(0);
    expect(stdout).toContain('$ cistern report pool.cistern arena.cistern -o both.html');
  });
});
