import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { printed, runModule, wholePackage } from '../../support/run-module.js';
import { arrowEtl, logText, row } from '../formats/logs.js';
import { runCistern, startCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-summary-'));
afterAll(() => rmSync(folder, { recursive: true }));
const log = join(folder, 'log.csv');
writeFileSync(log, logText(row('allocate', 0x100, 1024), row('allocate', 0x1000, 4096), row('free', 0x100, 1024)));

describe('cistern summary', () => {
  test('prints the figures of a log', async () => {
    const { code, stdout, stderr } = await startCistern(['summary', log]);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(/^allocations +2, failed: 0$/m);
    expect(stdout).toMatch(/^peak +5 KiB$/m);
    expect(stdout).toMatch(/^leak +4 KiB in 1 allocations$/m);
    expect(stdout).toMatch(/^never freed, by size .*\n.*4 KiB +1$/m);
  });

  test('prints them as JSON, equal to those of a report', async () => {
    const { layer, layers, exceeded, eventCount } = JSON.parse((await runCistern(['summary', arrowEtl, '--json'])).stdout);
    expect(exceeded).toEqual([]);
    expect(eventCount).toBe(194_854);
    expect(layer).toEqual(layers[0]);
    const output = join(folder, 'report.html');
    const report = await runCistern(['report', arrowEtl, '--json', '--time-limit', '0s', '-o', output]);
    expect(JSON.parse(report.stdout)[0].layers).toEqual(layers);
    expect(readFileSync(output, 'utf8')).toMatch(/^<!doctype html>/i);
  });

  test.each([
    ['peak=8GiB,leak=4KiB,fragmentation=100%,failures=0', 0, ''],
    ['peak=5120,leak=4095', 1, 'error: leak is 4 KiB, above 4.00 KiB\n'],
    ['leaks=0', 1, 'error: leaks is 1, above 0\n'],
    ['peak=1KiB,allocations=1', 1, 'error: peak is 5 KiB, above 1 KiB\nerror: allocations is 2, above 1\n'],
  ])('with --fail-above %s exits with %i', async (thresholds, status, errors) => {
    const { code, stderr } = await runCistern(['summary', log, '--fail-above', thresholds]);
    expect({ code, stderr }).toEqual({ code: status, stderr: errors });
  });

  test.each([
    ['speed=1', /a threshold is peak, .*got "speed=1"/],
    ['peak', /a threshold is peak, .*got "peak"/],
    ['peak=lots', /peak must be a size such as 8GiB, or 0, got "lots"/],
    ['fragmentation=200%', /fragmentation must be a share such as 20%, got "200%"/],
    ['constructor=1', /a threshold is peak/],
  ])('refuses the threshold %s', async (thresholds, message) => {
    const { code, stderr } = await runCistern(['summary', log, '--fail-above', thresholds]);
    expect(code).toBe(2);
    expect(stderr).toMatch(message);
  });

  test('of a recording that was cut in its header has no events', async () => {
    const recording = join(folder, 'whole.cistern');
    const body = `import { DeviceBuffer, Stream } from '${wholePackage}'; new DeviceBuffer(1, { stream: new Stream() }).dispose();`;
    expect(runModule(body, { CISTERN_LOG_FILE: recording })).toEqual(printed());
    const cut = join(folder, 'cut.cistern');
    writeFileSync(cut, readFileSync(recording).subarray(0, 100));
    const { code, stdout, stderr } = await startCistern(['summary', cut]);
    expect([code, stderr]).toEqual([0, expect.stringMatching(/ends in its header/)]);
    expect(stdout).toMatch(/^allocations +0, failed: 0$/m);
  });

  test('exits with 2 if there is no log', async () => {
    expect((await runCistern(['summary', join(folder, 'none.csv'), '--fail-above', 'leak=0'])).code).toBe(2);
  });
});

describe('a resource that held much more than was in use', () => {
  /** What `summary` prints of a program in which a resource is asked for 30 sizes, one after the other. */
  async function summaryOf(resource: string): Promise<string> {
    const recording = join(folder, `${resource.length}.cistern`);
    const body = `
      import { CachingMemoryResource, CudaMemoryResource, DeviceBuffer, MiB, PoolMemoryResource, Stream, withResource } from '${wholePackage}';
      const stream = new Stream();
      const resource = ${resource};
      const run = resource.run?.bind(resource) ?? ((action) => action());
      for (let i = 1; i <= 30; i++) run(() => new DeviceBuffer(i * MiB, { stream, resource }).dispose());
    `;
    expect(runModule(body, { CISTERN_LOG_FILE: recording })).toEqual(printed());
    return (await startCistern(['summary', recording])).stdout;
  }

  test('gets an advice', async () => {
    expect(await summaryOf('new CachingMemoryResource(new CudaMemoryResource())')).toMatch(
      /^advice +it held 465 MiB for at most 30 MiB in use, because it keeps a block for each size .*: a maximum \(maximumBytes\) limits that/m,
    );
  });

  test.each([
    ['with a maximum near that', 'new CachingMemoryResource(new CudaMemoryResource(), { maximumBytes: 32 * MiB })'],
    ['that keeps nothing', 'new CudaMemoryResource()'],
  ])('but one %s gets none', async (_, resource) => {
    expect(await summaryOf(resource)).not.toMatch(/^advice/m);
  });
});

test('the workflow in the guide runs, and fails when a process leaks', async () => {
  const guide = readFileSync('docs/guides/ci.md', 'utf8');
  const [, command = ''] = /run: npx (cistern summary .*)$/m.exec(guide) ?? [];
  const [, name = ''] = /CISTERN_LOG_FILE: ([^,]+),/.exec(guide) ?? [];
  // As the shell would find the logs of two processes.
  const logs = ['1', '2'].map((process) => join(folder, name.replace('%p', process)));
  const right = logText(row('allocate', 0x100, 1024), row('free', 0x100, 1024));
  for (const each of logs) writeFileSync(each, right);
  const args = command
    .split(' ')
    .slice(1)
    .flatMap((word) => (word === name.replace('%p', '*') ? logs : word));
  expect(args).toContain(logs[1]);
  expect(await runCistern(args)).toMatchObject({ code: 0, stderr: '' });
  writeFileSync(logs[0] as string, logText(row('allocate', 0x100, 4096)));
  expect(await runCistern(args)).toMatchObject({ code: 1, stderr: `error: ${logs[0]}: leak is 4 KiB, above 0 B\n` });
  const { stdout, code } = await runCistern([...args, '--json']);
  const summaries = JSON.parse(stdout) as { exceeded: object[] }[];
  expect([code, summaries.map(({ exceeded }) => exceeded.length)]).toEqual([1, [1, 0]]);
});
