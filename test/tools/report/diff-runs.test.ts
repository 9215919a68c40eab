import { expect, test } from 'vitest';
import { diffRuns } from '../../../src/tools/report/index.js';
import { RunWriter } from './runs.js';

const MiB = 2 ** 20;
const load = 'load (/home/app/model.ts:10:5)\nmain (/home/app/main.ts:3:1)';
const loadMoved = 'load (/ci/app/model.ts:12:5)\nmain (/ci/app/main.ts:3:1)';
const step = 'step (/home/app/train.ts:20:7)\nmain (/home/app/main.ts:4:1)';
const stepMoved = 'step (/ci/app/train.ts:25:7)\nmain (/ci/app/main.ts:4:1)';

/** The weights stay; a step frees what it allocates. */
const before = new RunWriter()
  .allocate(0x1000, 2 * MiB, { stack: load })
  .label(0x1000, 'weights')
  .allocate(0x9000, 4 * MiB, { stack: step, phase: 'step' })
  .free(0x9000, 4 * MiB)
  .allocate(0x9000, MiB, { stack: step })
  .free(0x9000, MiB)
  .finish();

/** Elsewhere on the disk, some lines further down, a step needs more, and leaks. */
const after = new RunWriter()
  .allocate(0x1000, 2 * MiB, { stack: loadMoved })
  .label(0x1000, 'weights')
  .allocate(0x9000, 4 * MiB, { stack: stepMoved, phase: 'step' })
  .label(0x9000, 'activations')
  .allocate(0xa000, 3 * MiB, { stack: stepMoved })
  .free(0xa000, 3 * MiB)
  .finish();

test('functions are the same though their lines and folders are others', () => {
  const { by, total, rows } = diffRuns(before, after);
  expect(by).toBe('function');
  expect(total).toEqual({
    name: '',
    before: { peakBytes: 6 * MiB, peakCount: 2, endBytes: 2 * MiB, endCount: 1, allocatedBytes: 7 * MiB, allocatedCount: 3 },
    after: { peakBytes: 9 * MiB, peakCount: 3, endBytes: 6 * MiB, endCount: 2, allocatedBytes: 9 * MiB, allocatedCount: 3 },
  });
  expect(rows).toEqual([
    {
      name: 'load (model.ts)',
      before: { peakBytes: 2 * MiB, peakCount: 1, endBytes: 2 * MiB, endCount: 1, allocatedBytes: 2 * MiB, allocatedCount: 1 },
      after: { peakBytes: 2 * MiB, peakCount: 1, endBytes: 2 * MiB, endCount: 1, allocatedBytes: 2 * MiB, allocatedCount: 1 },
    },
    {
      name: 'step (train.ts)',
      before: { peakBytes: 4 * MiB, peakCount: 1, endBytes: 0, endCount: 0, allocatedBytes: 5 * MiB, allocatedCount: 2 },
      after: { peakBytes: 7 * MiB, peakCount: 2, endBytes: 4 * MiB, endCount: 1, allocatedBytes: 7 * MiB, allocatedCount: 2 },
    },
  ]);
});

test('functions are the same though one run has shown files of more folders', () => {
  const seen = (...stacks: string[]) =>
    stacks.reduce((run, stack, i) => run.allocate(0x1000 * (i + 1), 256, { stack }), new RunWriter()).finish();
  const less = seen('f (/home/app/src/a.ts:1:1)');
  const more = seen('f (/home/app/src/a.ts:1:1)', 'g (/home/app/lib/b.ts:1:1)');
  for (const runs of [[less, more] as const, [more, less] as const]) {
    expect(diffRuns(...runs).rows.map(({ name }) => name)).toEqual(['f (src/a.ts)', 'g (lib/b.ts)']);
  }
});

const growth = (by: 'line' | 'label' | 'phase' | 'size') =>
  diffRuns(before, after, { by }).rows.map(({ name, before: was, after: is }) => [name, is.peakBytes - was.peakBytes]);

test('a line is another one if it moved', () => {
  expect(growth('line')).toEqual([
    ['load (model.ts:10:5)', -2 * MiB],
    ['load (model.ts:12:5)', 2 * MiB],
    ['step (train.ts:20:7)', -4 * MiB],
    ['step (train.ts:25:7)', 7 * MiB],
  ]);
});

test('labels, phases and sizes are groups too', () => {
  expect(growth('label')).toEqual([
    ['activations', 4 * MiB],
    ['no label', -MiB],
    ['weights', 0],
  ]);
  expect(growth('phase')).toEqual([
    ['no phase', 0],
    ['step', 3 * MiB],
  ]);
  expect(growth('size')).toEqual([
    ['1 MiB to 2 MiB', 0],
    ['2 MiB to 4 MiB', 3 * MiB],
    ['4 MiB to 8 MiB', 0],
  ]);
});

test('accounts are groups, by the path of the scope that allocated', () => {
  const run = (bytes: number) =>
    new RunWriter().allocate(0x1000, MiB).allocate(0x10_000_000, bytes, { account: 'tenant-a/request' }).finish();
  const { rows } = diffRuns(run(MiB), run(3 * MiB), { by: 'account' });
  expect(rows.map(({ name, before: was, after: is }) => [name, was.endBytes, is.endBytes])).toEqual([
    ['no account', MiB, MiB],
    ['tenant-a/request', MiB, 3 * MiB],
  ]);
});

test('functions without names are told apart by their lines', () => {
  const run = (line: number) => new RunWriter().allocate(0x1000, MiB, { stack: `<anonymous> (/app/a.ts:${line}:1)` }).finish();
  expect(diffRuns(run(1), run(2)).rows.map(({ name }) => name)).toEqual(['<anonymous> (a.ts:1:1)', '<anonymous> (a.ts:2:1)']);
});

test('without stacks in both, the groups are labels, and without labels sizes', () => {
  const plain = new RunWriter().allocate(0x1000, MiB).finish();
  const labelled = new RunWriter().allocate(0x1000, MiB).label(0x1000, 'a').finish();
  expect(diffRuns(before, labelled).by).toBe('label');
  expect(diffRuns(before, plain).by).toBe('size');
});

test('allocations of zero bytes and frees of what was never allocated change no sums', () => {
  const run = new RunWriter().free(0x5000, MiB).allocate(0, 0).allocate(0, 0).free(0, 0).allocate(0x1000, MiB).finish();
  const { total } = diffRuns(run, run);
  expect(total.before).toEqual({ peakBytes: MiB, peakCount: 1, endBytes: MiB, endCount: 1, allocatedBytes: MiB, allocatedCount: 3 });
});

test('the layer is that nearest to the program, or the one that is named', () => {
  const run = new RunWriter('limiting', 'pool')
    .allocate(0x1000, 100, { layer: 'pool' })
    .allocate(0x1000, 60, { layer: 'limiting' })
    .finish();
  expect(diffRuns(run, run).total.before.allocatedBytes).toBe(60);
  expect(diffRuns(run, run, { layer: 'pool' }).total.after.allocatedBytes).toBe(100);
  expect(() => diffRuns(run, run, { layer: 'arena' })).toThrow('run.cistern: has no layer "arena"; there are: limiting, pool');
});

test('other options are refused', () => {
  expect(() => diffRuns(before, after, { by: 'colour' as 'line' })).toThrow('got "colour"');
});

test('two empty runs do not differ', () => {
  const empty = new RunWriter().finish();
  expect(diffRuns(empty, empty)).toMatchObject({ by: 'size', rows: [], total: { before: { peakBytes: 0 } } });
});
