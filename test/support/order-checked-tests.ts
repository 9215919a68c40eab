import { afterEach, beforeEach, expect } from 'vitest';
import { type CheckOrderOptions, checkOrder } from '../../src/checking/index.js';

/** Stacks take half of the time of a test that checks many operations, so violations have them only on demand. */
export const orderChecks: CheckOrderOptions = { stacks: process.env['CISTERN_TEST_STACKS'] === '1' };

/** Checks stream order during each test of a file, which must find nothing. */
export function checkOrderInEachTest(): void {
  let checker: ReturnType<typeof checkOrder>;
  beforeEach(() => {
    checker = checkOrder(orderChecks);
  });
  afterEach(() => {
    const { violations } = checker;
    checker[Symbol.dispose]();
    expect(violations).toEqual([]);
  });
}
