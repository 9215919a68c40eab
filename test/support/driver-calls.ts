import { counters, native } from '../../src/driver/native.js';

/**
 * A function that returns how often this environment has called a function of the driver. `driverCallCounts` counts those of
 * all functions, which takes too long for each step of a program.
 */
export function callsOf(name: string): () => number {
  const index = native().functionNames.indexOf(name);
  return () => counters()[index] as number;
}
