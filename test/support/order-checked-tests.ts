import { afterEach, beforeEach, expect } from 'vitest';
import { checkOrder } from '../../src/index.js';

/** Checks stream order during each test of a file, which must find nothing. */
export function checkOrderInEachTest(): void {
  let checker: ReturnType<typeof checkOrder>;
  beforeEach(() => {
    checker = checkOrder();
  });
  afterEach(() => {
    const { violations } = checker;
    checker[Symbol.dispose]();
    expect(violations).toEqual([]);
  });
}
