import { TestRunner } from 'vitest';

/** Skips the rest of the current test. */
export function skipTest(reason: string): void {
  TestRunner.getCurrentTest()?.context.skip(reason);
}
