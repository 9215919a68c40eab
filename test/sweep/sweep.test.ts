import { describe, expect, test } from 'vitest';
import { allScenarios } from './scenarios.js';
import { sweep } from './sweep.js';

// `npm run sweep` makes every call fail, with every status; here it is one call of each function in
// each scenario.
describe('if a driver call or a host function fails', () => {
  test.each(allScenarios())('nothing leaks or breaks: $name', async (scenario) => {
    const { problems, errors, recoveries } = await sweep(scenario, { seed: 1 });
    expect(problems).toEqual([]);
    expect(errors + recoveries).toBeGreaterThan(0);
  });
});
