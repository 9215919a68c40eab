import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { afterAll, describe, expect, test } from 'vitest';
import { runCommand } from '../../../src/tools/cli/program.js';
import { explainFailure, type ReplayResult, readAllocationLog } from '../../../src/tools/replay/index.js';
import { arrowEtl, logText, row } from '../formats/logs.js';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
afterAll(() => rmSync(folder, { recursive: true }));

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

const small = file('small.csv', logText(row('allocate', 1, 1000), row('allocate', 2, 3000), row('free', 1, 1000), row('free', 2, 3000)));

describe('cistern replay', () => {
  test('records what each stack does with --timeline, one file per stack', async () => {
    const timeline = join(folder, 'timeline.cistern');
    const stacks = ['--resource', 'cuda', '--resource', `pool(cuda, maximumBytes=3KiB)`];
    const { code, stdout } = await runCistern(['replay', small, ...stacks, '--timeline', timeline]);
    const [first, second] = [1, 2].map((number) => join(folder, `timeline-${number}.cistern`)) as [string, string];
    expect(stdout).toBe(`${first}: cuda\n${second}: pool(cuda, maximumBytes=3KiB), 1 allocations failed\n`);
    expect(code).toBe(1);
    expect((await readAllocationLog(first)).allocationCount).toBe(2);
    expect((await readAllocationLog(second)).failureCount).toBe(1);
  });

  test('compares the default stacks on the bundled log', async () => {
    const { code, stdout, stderr } = await runCistern(['replay', arrowEtl, '--repeat', '1']);
    expect(stderr).toBe('');
    expect(code).toBe(0);
    expect(stdout).toMatch(/^examples\/traces\/arrow-etl\.csv\.gz: 194,854 events, threads: 8, streams: 1, at most 608\.5 MiB live$/m);
    const rows = stdout.trimEnd().split('\n').slice(-5);
    expect(rows.map((line) => line.split(/ {2,}/).slice(0, 2))).toEqual([
      ['cuda', '-'],
      ['cuda-async', '-'],
      ['pool(cuda, deallocationEvents=eager)', 'eager'],
      ['pool(cuda, deallocationEvents=deferred)', 'deferred'],
      ['pool(cuda, deallocationEvents=off)', 'off'],
    ]);
    for (const line of rows) expect(line).toMatch(/ 608\.5 MiB .* 0 B$/);
  });

  test('prints JSON with an object per stack and nothing else', async () => {
    const { code, stdout } = await runCistern([
      'replay',
      small,
      '--json',
      '--resource',
      'cuda',
      '--resource',
      'pool(host, deallocationEvents=off)',
      '--repeat',
      '2',
    ]);
    expect(code).toBe(0);
    const results = JSON.parse(stdout) as ReplayResult[];
    expect(results).toHaveLength(2);
    expect(results[0]).toEqual({
      resource: 'cuda',
      events: null,
      streams: 'log',
      streamCount: 1,
      operations: 4,
      repetitions: 2,
      nanosecondsPerOperation: { median: expect.any(Number), minimum: expect.any(Number) },
      peakLiveBytes: 4000,
      peakReservedBytes: 4000,
      highWaterBytes: expect.any(Number),
      failures: 0,
      firstFailure: null,
      leakedBytes: 0,
      logLeakedBytes: 0,
      driver: { allocations: 2, frees: 2, eventRecords: 0, eventWaits: 0, synchronizations: 0 },
      replayer: { eventRecords: 0, eventWaits: 0 },
    });
    expect(results[1]).toMatchObject({ resource: 'pool(host, deallocationEvents=off)', events: 'off' });
  });

  test('maps threads to streams', async () => {
    const log = file('threads.csv', logText(row('allocate', 1, 8, { thread: 1 }), row('free', 1, 8, { thread: 2 })));
    const { stdout } = await runCistern(['replay', log, '--json', '--resource', 'host', '--streams', 'thread']);
    expect(JSON.parse(stdout)[0]).toMatchObject({ streams: 'thread', streamCount: 2, replayer: { eventRecords: 1, eventWaits: 1 } });
  });

  test('names the event that ran out of memory, and exits with 1', async () => {
    const { code, stdout, stderr } = await runCistern(['replay', small, '--json', '--resource', 'limiting(host, limitBytes=2KiB)']);
    expect(code).toBe(1);
    expect(JSON.parse(stdout)[0]).toMatchObject({ failures: 1, leakedBytes: 0, firstFailure: { line: 3, event: 1, bytes: 3000 } });
    expect(stderr).toMatch(
      /^error: limiting\(host, limitBytes=2KiB\): 1 allocations failed, the first at .*small\.csv, line 3 \(event 1, 3000 bytes, stream 0x0\): /,
    );
  });

  test('stays within the memory of the software device, and goes on with the next stack', async () => {
    const { code, stdout, stderr } = await runCistern([
      ...['replay', small, '--device', 'software', '--device-memory', '1MiB'],
      ...['--resource', 'pool(cuda, initialBytes=1GiB)', '--resource', 'cuda'],
    ]);
    expect(code).toBe(1);
    expect(stdout).toMatch(/with 1 MiB/);
    expect(stdout).toMatch(/^pool\(cuda, initialBytes=1GiB\) +failed: ERR_CISTERN_OUT_OF_MEMORY$/m);
    expect(stdout).toMatch(/^cuda +- +[\d.]+/m);
    expect(stderr).toMatch(/^error: pool\(cuda, initialBytes=1GiB\): /);
  });

  test('says what to do if memory runs out', async () => {
    const limited = await runCistern(['replay', small, '--resource', 'limiting(host, limitBytes=2KiB)', '--repeat', '1']);
    expect(limited.stderr).toMatch(
      /^hint: "cistern replay .*small\.csv --resource 'limiting\(host, limitBytes=2KiB\)' --until-failure" shows why, .*$/m,
    );
    const device = ['--device', 'software', '--repeat', '1', '--device-memory'];
    const large = file('large.csv', logText(row('allocate', 1, 8192), row('free', 1, 8192)));
    const tooSmall = await runCistern(['replay', large, '--resource', 'cuda', ...device, '4KiB']);
    expect(tooSmall.stderr).toMatch(
      /^hint: the log needs at least 8 KiB, but the device has only 4 KiB: give it more with --device-memory$/m,
    );
    const tooMuch = await runCistern(['replay', small, '--resource', 'pool(cuda, initialBytes=1GiB)', ...device, '1MiB']);
    expect(tooMuch.stderr).toMatch(/^hint: the stack requests more in one piece than the device's 1 MiB: try a smaller initial size$/m);
  });

  test('prints Markdown', async () => {
    const { code, stdout } = await runCistern(['replay', small, '--resource', 'host', '--format', 'markdown', '--repeat', '1']);
    expect(code).toBe(0);
    const lines = stdout.trimEnd().split('\n');
    expect(lines[3]).toMatch(/^\| resource \| events \| ns\/op median \|/);
    expect(lines[4]).toMatch(/^\| :-+ \| :-+ \| -+: \|/);
    expect(lines[5]).toMatch(/^\| host +\| - +\| .* 0 B \|$/);
  });

  test('explains the first failure with --until-failure, and names what would have prevented it', async () => {
    const args = [
      'replay',
      small,
      '--until-failure',
      '--resource',
      'pool(host, initialBytes=1KiB, maximumBytes=3840)',
      '--resource',
      'host',
    ];
    const { code, stdout, stderr } = await runCistern(args);
    expect([code, stderr]).toEqual([1, '']);
    expect(stdout).toMatch(/^pool\(host, initialBytes=1KiB, maximumBytes=3840\): out of memory at line 3$/m);
    expect(stdout).toMatch(/small\.csv, line 3 \(event 1\), the log's streams: 2\.93 KiB \(3000 bytes\) on stream 0x0$/m);
    expect(stdout).toMatch(/^Live: 1000 B in 1 allocations\n.*\n0x0 +1000 B +1$/m);
    expect(stdout).toMatch(/^PoolMemoryResource +1 KiB +1 +1 KiB +0 B +0 B +0 B$/m);
    expect(stdout).toMatch(/^a larger maximum +pool\(.*\) +served +completed$/m);
    expect(stdout).toMatch(/^host: completes the log\.$/m);
    const markdown = await runCistern([...args, '--format', 'markdown']);
    expect(markdown.stdout).toMatch(/^### pool\(host, initialBytes=1KiB, maximumBytes=3840\): out of memory at line 3\n\n/m);
    expect(markdown.stdout).toMatch(/^\| a larger maximum \| pool\(.*\) +\| served +\| completed +\|$/m);
  });

  test("explains it as JSON, identical to the library's result", async () => {
    const args = ['replay', small, '--until-failure', '--json', '--resource', 'limiting(host, limitBytes=2KiB)', '--resource', 'host'];
    const { code, stdout } = await runCistern(args);
    expect(code).toBe(1);
    const explanation = explainFailure(await readAllocationLog(small), 'limiting(host, limitBytes=2KiB)');
    expect(JSON.parse(stdout)).toEqual([JSON.parse(JSON.stringify(explanation)), { resource: 'host', failure: null }]);
  });

  test('exits with 0 with --until-failure if nothing fails', async () => {
    const { code, stderr } = await runCistern(['replay', small, '--until-failure', '--resource', 'host']);
    expect([code, stderr]).toEqual([0, '']);
  });

  test('warns about allocations that the log never frees, and about its failures', async () => {
    const log = file('leaky.csv', logText('1,00:00:00.000000,allocate failure,(nil),5,0', row('allocate', 1, 2048)));
    const { code, stderr } = await runCistern(['replay', log, '--resource', 'host']);
    expect(code).toBe(0);
    expect(stderr).toBe(
      `warning: ${log} reports 1 failed allocations, which are skipped\nwarning: ${log} never frees 1 allocations (2 KiB); they are freed at the end\n`,
    );
  });

  test('writes a log that can itself be replayed', async () => {
    const copy = join(folder, 'copy.csv');
    expect(await runCistern(['replay', small, '--resource', `logging(host, file="${copy}")`])).toMatchObject({ code: 0, stderr: '' });
    expect(readFileSync(copy, 'utf8').split('\n')).toHaveLength(6);
    expect((await runCistern(['replay', copy, '--resource', 'host'])).code).toBe(0);
  });

  test('a file whose name is like an option has a way to be named', async () => {
    file('-name.cistern', '');
    const before = process.cwd();
    process.chdir(folder);
    try {
      const { stderr } = await runCistern(['replay', '-name.cistern']);
      expect(stderr).toContain('hint: write ./-name.cistern if you mean the file of that name\n');
      expect((await runCistern(['replay', '-nobody.cistern'])).stderr).not.toContain('hint:');
    } finally {
      process.chdir(before);
    }
  });

  const loop = join(folder, 'loop.cistern');
  symlinkSync(loop, loop);

  test.each([
    [['replay', file('typo.csv', logText(row('alocate', 1, 1)))], /^error: .*typo\.csv, line 2: the action must be/],
    [['replay', file('empty.csv', '')], /^error: .*empty\.csv: is empty$/m],
    [['replay', file('header.csv', logText())], /^error: .*header\.csv: has no events to replay$/m],
    [['replay', join(folder, 'missing.csv')], /^error: .*missing\.csv does not exist$/m],
    [
      ['replay', 'https://example.org/run.cistern'],
      /^error: https:.* does not exist\nhint: this takes the path of a file, not a URL: download the file first\n$/,
    ],
    [['replay', loop], /^error: .*loop\.cistern cannot be followed: symbolic links there lead to one another, or are too many\n$/],
    [['replay', folder], /^error: .*: is a directory$/m],
    [
      ['replay', small, '--resource', 'poool(cuda)'],
      /^error: there is no resource kind "poool", did you mean pool\?; kinds: .*\n {2}poool\(cuda\)\n {2}\^{5}\n$/,
    ],
    [['replay', small, '--resource', 'pool(cuda, initialBytes=2, maximumBytes=1)'], /^error: pool cannot be constructed: maximumBytes/],
    [['replay', small, '--streams', 'two'], /Allowed choices are log, thread, single/],
    [['replay', small, '--json', '--format', 'markdown'], /cannot be used with option '--format/],
    [['replay', small, '--until-failure', '--repeat', '2'], /cannot be used with option '--repeat/],
    [['replay', join(folder, 'smal.csv')], /^error: .*smal\.csv does not exist\nhint: did you mean .*small\.csv\?\n$/],
    [
      ['replay', file('prose.txt', 'Dear diary,\n')],
      /^error: .*prose\.txt, line 1: .*\nhint: a log is a recording, .* a memory snapshot or a profiler's trace from PyTorch/,
    ],
    [['replay', small, '--repeat', '0'], /It must be an integer from 1/],
    [['replay', small, '--repeat', '1.5'], /It must be an integer from 1/],
    [['replay', small, '--layer', 'nope'], /^error: .*small\.csv: has no layer "nope"; there are: rmm$/m],
    [['replay', small, '--device-memory', 'much'], /It must be a size such as 512MiB/],
    [['replay', small, '--device-memory', '2'], /It needs a unit, such as 2MiB, or 2B for bytes/],
    [['replay', small, '--device-memory', '2B'], /It must be at least 4 KiB/],
    [['help', 'nope'], /^error: unknown command 'nope'/],
    [['help', 'repla'], /unknown command 'repla'.*Did you mean replay/s],
    [['replay', small, '--device', 'gpu'], /Allowed choices are auto, cuda, software/],
    [['replay'], /missing required argument 'log'/],
    [['replay', small, small], /too many arguments/],
    [['relay', small], /unknown command 'relay'.*Did you mean replay/s],
    [[], /Usage: cistern/],
  ])('refuses %j: exits with 2, says why, prints no result', async (args, message) => {
    const { code, stdout, stderr } = await runCistern(args);
    expect(stderr).toMatch(message);
    expect([code, stdout]).toEqual([2, '']);
  });

  test('fails if the requested device is missing', async () => {
    const { code, stdout, stderr } = await runCistern(['replay', small, '--device', 'cuda'], undefined, { LD_LIBRARY_PATH: '' });
    if (code === 0) return;
    expect([code, stdout]).toEqual([1, '']);
    expect(stderr).toMatch(/^error: no CUDA device can be used: /);
  });

  test('dies from an interrupt at once and prints nothing', async () => {
    const run = await runCistern(['replay', arrowEtl, '--repeat', '1000000', '--resource', 'host'], (child) => {
      setTimeout(() => child.kill('SIGINT'), 700);
    });
    expect(run).toEqual({ code: null, signal: 'SIGINT', stdout: '', stderr: '' });
  });

  test('ends quietly if nobody reads its output', async () => {
    const { code, stderr } = await runCistern(['replay', small, '--json'], (child) => child.stdout?.destroy());
    expect([code, stderr]).toEqual([0, '']);
  });

  test('shows a progress bar on a terminal, and leaves the terminal as it was', async () => {
    class Sink extends Writable {
      text = '';
      isTTY = true;
      columns = 120;
      override _write(chunk: Buffer, _: string, done: () => void): void {
        this.text += chunk.toString();
        done();
      }
      cursorTo(): boolean {
        return true;
      }
      clearLine(): boolean {
        return true;
      }
      moveCursor(): boolean {
        return true;
      }
    }
    const stderr = new Sink();
    const stdout = new Sink();
    expect(await runCommand(['replay', small, '--resource', 'host', '--json'], { stdout, stderr })).toBe(0);
    expect(stderr.text).toMatch(/reading \[.*\] 100% [\d.]+ [KM]?i?B\/s, 0 s left 4 events/);
    expect(stderr.text).toMatch(/replaying \[.*\] \d+% [\d,]+ events\/s, \d+ s left host/);
    // No hidden cursor, no line wrapping turned off.
    expect(stderr.text).not.toContain('\x1b[?');
    expect(JSON.parse(stdout.text)).toHaveLength(1);
  });
});
