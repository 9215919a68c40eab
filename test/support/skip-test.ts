import { TestRunner } from 'vitest';

/** Skips the rest of the test that runs now. */
export function skipTest(reason: string): void {
  TestRunner.getCurrentTest()?.context.skip(reason);
}
