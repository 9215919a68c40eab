import { setImmediate } from 'node:timers/promises';

/** Collects all garbage, and runs what waits for that. */
export async function collectGarbage(): Promise<void> {
  (globalThis as unknown as { gc(): void }).gc();
  for (let turn = 0; turn < 3; turn++) await setImmediate();
}

/**
 * Collects garbage until something is so, at most ten times: a compilation in the background or a
 * value left in a register can keep an object over one collection, but not over all of them.
 */
export async function collectGarbageUntil(isSo: () => boolean): Promise<void> {
  for (let round = 0; round < 10 && !isSo(); round++) await collectGarbage();
}
