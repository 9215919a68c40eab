import { expect } from 'vitest';

/** What an action throws. */
export function caught<E = unknown>(action: () => unknown): E {
  try {
    action();
  } catch (error) {
    return error as E;
  }
  throw new Error('nothing was thrown');
}

/** Matches an error with a code. */
export function code(expected: string): unknown {
  return expect.objectContaining({ code: expected });
}
