// The memory of all threads: a pool for each, which takes superblocks from one block, and a limit and
// statistics that all of them share by name.
import { createResourceStack, Stream } from 'cistern';

const specification =
  process.env.MEMORY ??
  'limiting(statistics(pool(global-arena(name=jobs, arenaBytes=64MiB), deallocationEvents=deferred), shared=jobs), limitBytes=16MiB, shared=jobs)';

export const stack = createResourceStack(specification);
export const stream = new Stream({ nonBlocking: true });

/** What all threads have allocated now, and the most that they had. */
export function sharedBytes() {
  return stack.layers[1].sharedStatistics().bytes;
}

/** Disposes what this thread has. The block goes back to the driver with the last thread. */
export function disposeMemory() {
  stack.dispose();
  stream.dispose();
}
