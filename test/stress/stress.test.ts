import { expect, test } from 'vitest';
import { createResourceStack } from '../../src/index.js';
import { stackScenarios } from '../sweep/stack-scenarios.js';
import { soak } from './soak.js';

// Resources of the traffic are in use at the same time: one global arena has one size.
test('all stacks of the traffic can be made at once', () => {
  const stacks = stackScenarios().map(({ name }) => createResourceStack(name));
  for (const stack of stacks) stack[Symbol.dispose]();
});

// The long form is `npm run stress`, which also measures growth.
test('some rounds of everything leave the state as before', async () => {
  const rounds = 3;
  const { violations, traffic, programs, ...soaked } = await soak({ seed: 1, goesOn: (done) => done < rounds });
  expect(violations.map(String)).toEqual([]);
  expect(soaked).toMatchObject({ rounds, checkedRounds: 1, workers: rounds, scenarios: 8 * rounds });
  const { comparisons, hostFunctions, dropped, refusals } = traffic;
  for (const count of [comparisons, hostFunctions, dropped, refusals, programs.reuses]) expect(count).toBeGreaterThan(rounds);
}, 120_000);
