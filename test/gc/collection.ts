import { setImmediate, setTimeout } from 'node:timers/promises';

/** Collects all garbage, and runs what waits for that. */
export async function collectGarbage(): Promise<void> {
  (globalThis as unknown as { gc(): void }).gc();
  for (let turn = 0; turn < 3; turn++) await setImmediate();
}

/** Collects garbage until something is so, for three seconds at most. */
export async function collectGarbageUntil(isSo: () => boolean): Promise<void> {
  for (const end = performance.now() + 3000; !isSo() && performance.now() < end; ) {
    await collectGarbage();
    await setTimeout(10);
  }
}
