import { setImmediate, setTimeout } from 'node:timers/promises';

/** Collects all garbage, and runs what waits for that. */
export async function collectGarbage(): Promise<void> {
  (globalThis as unknown as { gc(): void }).gc();
  for (let turn = 0; turn < 3; turn++) await setImmediate();
}

/**
 * Collects garbage until something is so, for ten seconds at most: a compilation in the background or a
 * value left in a register can keep an object over some collections, on a busy machine for a while.
 */
export async function collectGarbageUntil(isSo: () => boolean): Promise<void> {
  for (const end = performance.now() + 10_000; !isSo() && performance.now() < end; ) {
    await collectGarbage();
    await setTimeout(10);
  }
}
