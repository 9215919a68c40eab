import { setTimeout } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import type { Random } from '../../src/tools/testing/random.js';
import { Violation } from '../property/violation.js';

/** How a worker ends, and its exit status. */
const ends = {
  tidy: 0,
  leave: 0,
  'exit while held': 3,
  'exit in a host function': 3,
  'throw while held': 1,
  terminated: 1,
  'terminated while checking': 1,
} as const;

/** The same file for a module of `test/stress` and for one that is built to `build/stress-…`. */
const script = new URL('../../test/stress/worker.mjs', import.meta.url);

/**
 * Runs a worker from start to end; chance decides how it ends. @throws Violation if it ends
 * otherwise.
 */
export async function runWorker(random: Random): Promise<void> {
  const names = Object.keys(ends) as (keyof typeof ends)[];
  const end = names[random.below(names.length)] as keyof typeof ends;
  const delay = random.below(20);
  const worker = new Worker(script, { workerData: { end, seed: random.below(2 ** 30) }, execArgv: [] });
  let thrown: unknown;
  worker.on('error', (error) => {
    thrown = error;
  });
  worker.on('message', async () => {
    await setTimeout(delay);
    await worker.terminate();
  });
  const status = await new Promise((resolve) => {
    worker.once('exit', resolve);
  });
  const isThrown = end === 'throw while held' && (thrown as Error | undefined)?.message === 'meant';
  if (status === ends[end] && (isThrown || thrown === undefined)) return;
  throw new Violation(`a worker that is to end with ${ends[end]} (${end}) ends with ${status}; ${thrown}`, { cause: thrown });
}
