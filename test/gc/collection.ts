import { setImmediate } from 'node:timers/promises';

/** Collects all garbage, and runs what waits for that. */
export async function collectGarbage(): Promise<void> {
  (globalThis as unknown as { gc(): void }).gc();
  for (let turn = 0; turn < 3; turn++) await setImmediate();
}
