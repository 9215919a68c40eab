import { describe, expect, test } from 'vitest';
import { LearntCaptures } from '../../src/graphs/learnt-captures.js';
import type { Planner } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { page, sequenceOf } from '../support/plans.js';

describe('what captures of a name have allocated', () => {
  test('is known only if there is a planner', () => {
    const learnt = new LearntCaptures(undefined, 100);
    learnt.learn('step', sequenceOf('+1 -0'), page);
    expect([learnt.isPlanning, learnt.knows('step'), learnt.planFor('step'), learnt.largestNeed()]).toEqual([
      false,
      false,
      undefined,
      { bytes: 0, alignment: page },
    ]);
  });

  test('is planned when the plan is asked for, once, with the alignment that was asked for', () => {
    const asked: number[] = [];
    const planner: Planner = (sequences, options) => {
      asked.push(options?.alignmentBytes as number);
      return planAllocations(sequences, options);
    };
    const learnt = new LearntCaptures(planner, 100);
    learnt.learn('step', sequenceOf('+3 -0'), 4 * page);
    expect([learnt.isPlanning, learnt.knows('step'), learnt.knows('other'), learnt.madePlan('step')]).toEqual([
      true,
      true,
      false,
      undefined,
    ]);
    expect(learnt.planFor('step')?.plan).toMatchObject({ totalBytes: 4 * page, alignmentBytes: 4 * page });
    expect(learnt.planFor('step')?.plan).toBe(learnt.madePlan('step'));
    expect([asked, learnt.planFor('other')]).toEqual([[4 * page], undefined]);
  });

  test('needs as much as the largest plan, with the greatest alignment of all', () => {
    const learnt = new LearntCaptures(planAllocations, 100);
    learnt.learn('large', sequenceOf('+8 -0'), page);
    learnt.learn('aligned', sequenceOf('+1 -0'), 2 * page);
    learnt.learn('nothing', sequenceOf(''), 16 * page);
    expect(learnt.largestNeed()).toEqual({ bytes: 8 * page, alignment: 2 * page });
    expect([learnt.planFor('nothing'), learnt.planningError]).toEqual([undefined, undefined]);
  });

  test('keeps the error of the planner until a plan is made', () => {
    let error: Error | undefined = new Error('no plan');
    const planner: Planner = (sequences, options) => {
      if (error !== undefined) throw error;
      return planAllocations(sequences, options);
    };
    const learnt = new LearntCaptures(planner, 100);
    learnt.learn('step', sequenceOf('+1 -0'), page);
    expect([learnt.planFor('step'), learnt.planningError]).toEqual([undefined, error]);
    error = undefined;
    expect([learnt.planFor('step')?.plan.totalBytes, learnt.planningError]).toEqual([page, undefined]);
  });

  test('is forgotten of the name that was used longest ago, above 1,024 names', () => {
    const learnt = new LearntCaptures(planAllocations, 100);
    for (let name = 0; name < 1024; name++) learnt.learn(String(name), sequenceOf('+1 -0'), page);
    learnt.planFor('0');
    learnt.learn('1024', sequenceOf('+1 -0'), page);
    expect(['0', '1', '2', '1024'].map((name) => learnt.knows(name))).toEqual([true, false, true, true]);
  });
});
