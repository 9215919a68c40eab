import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { CudaMemoryResource, Event, Recording, RecordingResourceAdaptor, Stream } from '../../src/index.js';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-plan-'));
afterAll(() => rmSync(folder, { recursive: true }));
const path = (name: string) => join(folder, name);

test('cistern plan writes a plan that cistern replay serves from', async () => {
  await runCistern(['generate', 'small-hot', '--events', '2000', '-o', path('log.csv')]);
  const planned = await runCistern(['plan', path('log.csv'), '-o', path('plan.json'), '--time-limit', '200ms', '--json']);
  const summary = JSON.parse(planned.stdout);
  expect(summary.totalBytes).toBeGreaterThanOrEqual(summary.lowerBoundBytes);
  expect(summary).toMatchObject({ isOptimal: expect.any(Boolean), attempts: expect.any(Array) });
  const replayed = await runCistern([
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

test('cistern plan solves problems of MiniMalloc', async () => {
  writeFileSync(path('problem.csv'), 'id,lower,upper,size\na,0,2,512\nb,1,3,256\nc,2,4,512\n');
  const { stdout } = await runCistern(['plan', path('problem.csv'), '--max', '768', '-o', path('solution.csv')]);
  expect(stdout).toContain('the best possible');
  expect(readFileSync(path('solution.csv'), 'utf8')).toMatch(/^id,lower,upper,size,offset\na,0,2,512,\d+\n/);
});
