import { describe, expect, test } from 'vitest';
import { EventKind } from '../../../src/tools/formats/index.js';
import { type OrderedSequence, planAllocations, plannedRun } from '../../../src/tools/planning/index.js';
import { allocate, free, runOf } from '../formats/runs.js';

/** Two layers; the upper one has a phase, a label, and an allocation of zero bytes. */
const run = runOf(
  [
    { kind: EventKind.phaseBegin, first: 1, second: 0 },
    allocate(0x7000, 512, { time: 10 }),
    { kind: EventKind.label, first: 0x7000, second: 1, time: 11 },
    allocate(0x100, 4096, { layer: 1, time: 12 }),
    allocate(0, 0, { time: 13 }),
    allocate(0x9000, 256, { time: 14 }),
    free(0x7000, 512, { time: 15 }),
    allocate(0x9100, 512, { time: 16 }),
    free(0x9000, 256, { time: 17 }),
    { kind: EventKind.phaseEnd, first: 1, second: 0, time: 18 },
  ],
  {
    source: 'a log',
    layers: [
      { name: 'pool', upstream: 1 },
      { name: 'cuda', upstream: undefined },
    ],
    phases: [
      { name: '', outer: 0 },
      { name: 'step', outer: 0 },
    ],
    labels: ['', 'weights'],
  },
);

describe('a planned run', () => {
  test('has the allocations of the log where the plan puts them, and everything else', () => {
    const plan = planAllocations(run);
    const planned = plannedRun(run, plan);
    const base = planned.firsts[1] as number;
    const at = (event: number) => (planned.firsts[event] as number) - base;
    expect(planned.source).toBe('plan of 768 B, lower bound 768 B, gap 0.00 %');
    expect(Array.from(planned.kinds)).toEqual([4, 8, 1, 10, 1, 2, 1, 2, 9].map((kind, i) => (i === 0 ? EventKind.growth : kind)));
    expect(Array.from(planned.times)).toEqual([0, 0, 10, 11, 14, 15, 16, 17, 18]);
    expect([planned.firsts[0], planned.seconds[0]]).toEqual([2 ** 40, 768]);
    expect([planned.firsts[1], planned.firsts[8], at(3) - at(2)]).toEqual([1, 1, 0]);
    expect([2, 4, 6].map((event) => (planned.firsts[event] as number) - 2 ** 40)).toEqual(Array.from(plan.offsets));
    expect([planned.firsts[5], planned.firsts[7]]).toEqual([planned.firsts[2], planned.firsts[4]]);
    expect(planned.layers).toEqual([{ name: 'plan', upstream: undefined }]);
  });

  test('is refused for a plan of another program', () => {
    const plan = planAllocations(run);
    const change = (changes: Partial<OrderedSequence>) => () => plannedRun(run, { ...plan, ...changes });
    expect(change({ sizes: [512, 128, 512] })).toThrow('the plan is not one of a log: they differ in the size of allocation 1');
    expect(change({ operations: [0, 1, ~1] })).toThrow('they differ in operation 2');
    expect(change({ operations: [...Array.from(plan.operations), 3], sizes: [512, 256, 512, 256] })).toThrow('the number of allocations');
    expect(change({ operations: [...Array.from(plan.operations), ~2] })).not.toThrow();
  });
});
