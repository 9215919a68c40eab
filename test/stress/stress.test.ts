import { expect, test } from 'vitest';
import { createResourceStack } from '../../src/index.js';
import { stackScenarios } from '../sweep/stack-scenarios.js';
import { type Soaked, soak } from './soak.js';

// Resources of the traffic are in use at the same time: one global arena has one size.
test('all stacks of the traffic can be made at once', () => {
  const stacks = stackScenarios().map(({ name }) => createResourceStack(name));
  for (const stack of stacks) stack[Symbol.dispose]();
});

test('a round begins its workers once its programs have ended', async () => {
  let soaked: Soaked | undefined;
  const programsBefore: (number | undefined)[] = [];
  const onWorker = () => programsBefore.push(soaked?.programs.programs);
  process.on('worker', onWorker);
  const onRound = (after: Soaked) => {
    soaked = after;
  };
  const { programs, violations } = await soak({ seed: 1, goesOn: (done) => done < 2, onRound });
  process.off('worker', onWorker);
  expect(violations).toEqual([]);
  expect(programsBefore).toEqual([undefined, programs.programs]);
}, 120_000);

// The long form is `npm run stress`, which also measures growth.
test('some rounds of everything leave the state as before', async () => {
  const rounds = 3;
  const { violations, traffic, programs, ...soaked } = await soak({ seed: 1, goesOn: (done) => done < rounds });
  expect(violations.map(String)).toEqual([]);
  expect(soaked).toMatchObject({ rounds, checkedRounds: 1, workers: rounds, scenarios: 8 * rounds });
  const { comparisons, hostFunctions, dropped, refusals } = traffic;
  for (const count of [comparisons, hostFunctions, dropped, refusals, programs.reuses]) expect(count).toBeGreaterThan(rounds);
}, 120_000);
