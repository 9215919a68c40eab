import { TestRunner } from 'vitest';

export const needsSecondDevice = 'there is no second device';

/** Skips the rest of the test that runs now. */
export function skipTest(reason: string): void {
  TestRunner.getCurrentTest()?.context.skip(reason);
}
