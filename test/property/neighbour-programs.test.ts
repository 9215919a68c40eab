import { expect, test } from 'vitest';
import { proveNeighbours } from './neighbour-programs.js';

/** The long form is `npm run prove -- --neighbours`. */
const programs = 100;

test('random programs with several stacks on one device get memory from each other in stream order', async () => {
  const counts = await proveNeighbours(programs, 691_805_010);
  expect(counts.programs).toBe(programs);
  for (const [what, count] of Object.entries(counts)) expect([what, count > 0]).toEqual([what, true]);
}, 300_000);
