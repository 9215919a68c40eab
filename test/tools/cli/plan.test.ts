import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { GraphMemoryResource } from '../../../src/graphs/index.js';
import { CudaMemoryResource, Event, Stream, VirtualMemoryResource } from '../../../src/index.js';
import { Recording, RecordingResourceAdaptor } from '../../../src/recording/index.js';
import { runCistern, startCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-plan-'));
afterAll(() => rmSync(folder, { recursive: true }));
const path = (name: string) => join(folder, name);

test('cistern plan writes a plan that cistern replay serves from', async () => {
  await runCistern(['generate', 'small-hot', '--events', '2000', '-o', path('log.csv')]);
  const planned = await runCistern(['plan', path('log.csv'), '-o', path('plan.json'), '--time-limit', '200ms', '--json']);
  const summary = JSON.parse(planned.stdout);
  expect(summary.totalBytes).toBeGreaterThanOrEqual(summary.lowerBoundBytes);
  expect(summary).toMatchObject({ isOptimal: expect.any(Boolean), attempts: expect.any(Array) });
  // The built command finds this kind when it is named.
  const replayed = await startCistern([
    'replay',
    path('log.csv'),
    '--json',
    '--repeat',
    '2',
    '--resource',
    `planned(cuda, plan=${path('plan.json')})`,
  ]);
  expect(JSON.parse(replayed.stdout)[0] ?? JSON.parse(replayed.stdout)).toMatchObject({ failures: 0 });
});

/** Records a stream that frees memory, and another that then allocates as much. */
function record(file: string, isOrdered: boolean): void {
  using recording = new Recording({ file });
  using resource = new RecordingResourceAdaptor(new CudaMemoryResource(), { recording });
  using first = new Stream({ nonBlocking: true });
  using second = new Stream({ nonBlocking: true });
  using event = new Event();
  resource.deallocate(resource.allocate(4096, first), 4096, first);
  event.record(first);
  if (isOrdered) second.wait(event);
  resource.deallocate(resource.allocate(4096, second), 4096, second);
}

test('cistern plan gives memory to another stream if the recording shows that it waited', async () => {
  for (const [isOrdered, totalBytes] of [
    [true, 4096],
    [false, 8192],
  ] as const) {
    record(path('run.cistern'), isOrdered);
    const { stdout } = await runCistern(['plan', path('run.cistern'), '--json']);
    expect(JSON.parse(stdout)).toMatchObject({ totalBytes, isOptimal: true });
  }
});

test('cistern plan of a log without allocations is as good as its lower bound', async () => {
  writeFileSync(path('empty.csv'), 'Thread,Time,Action,Pointer,Size,Stream\n');
  const { code, stdout } = await runCistern(['plan', path('empty.csv')]);
  expect([code, stdout]).toEqual([0, expect.stringMatching(/^.*0 allocations in 0 B .*the best possible.* 0 {2}0\.000 % {2}/s)]);
});

test('cistern plan solves problems of MiniMalloc', async () => {
  writeFileSync(path('problem.csv'), 'id,lower,upper,size\na,0,2,512\nb,1,3,256\nc,2,4,512\n');
  const { stdout } = await runCistern(['plan', path('problem.csv'), '--max', '768', '-o', path('solution.csv')]);
  expect(stdout).toContain('the best possible');
  expect(readFileSync(path('solution.csv'), 'utf8')).toMatch(/^id,lower,upper,size,offset\na,0,2,512,\d+\n/);
});

describe('cistern plan --graphs', () => {
  const row = (action: string, pointer: number, bytes: number) => `1,00:00:00.000000,${action},${pointer.toString(16)},${bytes},0`;
  /** A graph whose two allocations, of so many MiB, are live at the same time. */
  const graph = (name: string, first: number, second: number) => {
    const [a, b] = [first * 2 ** 20, second * 2 ** 20];
    const rows = [row('allocate', 2 ** 30, a), row('allocate', 2 ** 33, b), row('free', 2 ** 30, a)];
    writeFileSync(path(name), `Thread,Time,Action,Pointer,Size,Stream\n${rows.join('\n')}\n`);
    return path(name);
  };

  test('compares pools with planned memory, for one graph in each log', async () => {
    const logs = [graph('small.csv', 12, 30), graph('large.csv', 24, 60)];
    const { code, stdout, stderr } = await runCistern(['plan', '--graphs', ...logs, '--json', '--time-limit', '100ms']);
    expect([code, stderr]).toEqual([0, '']);
    const MiB = 2 ** 20;
    expect(JSON.parse(stdout)).toEqual({
      graphs: [
        [logs[0], 42],
        [logs[1], 84],
      ].map(([name, mebibytes]) => {
        const bytes = (mebibytes as number) * MiB;
        return { name, allocationCount: 2, peakLiveBytes: bytes, lowerBoundBytes: bytes, poolBytes: bytes, plannedBytes: bytes };
      }),
      lowerBoundBytes: 84 * MiB,
      poolsBytes: 126 * MiB,
      sharedPoolBytes: 102 * MiB,
      plannedApartBytes: 126 * MiB,
      plannedBytes: 84 * MiB,
    });
    const table = await runCistern(['plan', '--graphs', ...logs.toReversed(), '--time-limit', '100ms']);
    expect(table.stdout).toMatch(/small\.csv +2 +42 MiB +42 MiB +42 MiB +42 MiB/);
    expect(table.stdout).toMatch(/one private pool for all, captured in this order +84 MiB +88,080,384 +1\.000/);
    expect(table.stdout).toMatch(/a private pool for each +126 MiB +132,120,576 +1\.500/);
    expect(table.stdout).toMatch(/planned, one region for all +84 MiB +88,080,384 +1\.000/);
  });

  test('refuses what a single plan is for, and names a file that is not there', async () => {
    const log = graph('one.csv', 1, 1);
    for (const option of [
      ['-o', path('no.json')],
      ['--max', '1MiB'],
    ]) {
      const { code, stderr } = await runCistern(['plan', '--graphs', log, ...option]);
      expect([code, stderr]).toEqual([2, expect.stringContaining("option '--graphs' cannot be used with option")]);
    }
    const missing = await runCistern(['plan', '--graphs', path('missing.csv')]);
    expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining('missing.csv')]);
  });

  test('finds the graphs that a program has captured', async () => {
    const file = path('graphs.cistern');
    {
      using recording = new Recording({ file });
      using upstream = new VirtualMemoryResource();
      using graphs = new GraphMemoryResource(upstream);
      using resource = new RecordingResourceAdaptor(graphs, { recording });
      using stream = new Stream();
      for (const batch of [1, 2, 4]) {
        const record = () => resource.allocate(batch * 2 ** 20, stream);
        graphs.capture(stream, record, { name: `batch ${batch}` }).dispose();
      }
    }
    const { code, stdout, stderr } = await runCistern(['plan', '--graphs', file]);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(/graphs\.cistern: batch 1 +1 +1 MiB +1 MiB +2 MiB +1 MiB/);
    expect(stdout).toMatch(/graphs\.cistern: batch 4 +1 +4 MiB +4 MiB +20 MiB +4 MiB/);
    expect(stdout).toMatch(/planned, a separate block for each +7 MiB +7,340,032 +1\.750/);
    expect(stdout).toMatch(/planned, one region for all +4 MiB +4,194,304 +1\.000/);
    const page = path('graphs.html');
    expect((await runCistern(['report', file, '-o', page, '--time-limit', '1s'])).code).toBe(0);
    expect(readFileSync(page, 'utf8')).toContain('graphs.cistern: batch 2');
  });

  test('takes a layer of each recording as its graph', async () => {
    record(path('layer.cistern'), true);
    const { stdout } = await runCistern(['plan', '--graphs', path('layer.cistern'), '--layer', 'cuda', '--json']);
    expect(JSON.parse(stdout)).toMatchObject({ graphs: [{ allocationCount: 2 }], plannedBytes: 4096 });
  });
});
