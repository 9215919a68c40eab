import { describe, expect, test } from 'vitest';
import { allScenarios } from './scenarios.js';
import { sweep } from './sweep.js';

// `npm run sweep` lets every call fail, with every status; here it is one call of each function in each scenario.
describe('where a call of the driver or of a function of the host fails', () => {
  test.each(allScenarios())('nothing leaks or breaks: $name', async (scenario) => {
    const { problems, errors, recoveries } = await sweep(scenario, { seed: 1 });
    expect(problems).toEqual([]);
    expect(errors + recoveries).toBeGreaterThan(0);
  });
});
