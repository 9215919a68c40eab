import { expect, test } from 'vitest';
import { proveGraphs } from './graph-programs.js';

/** The long form is `npm run prove -- --graphs`. */
const programs = 400;

test('random programs with captures keep the order of their graphs, contents and bytes', async () => {
  const { counts, failure } = await proveGraphs(programs, 27_001, '', false);
  expect(failure).toBeUndefined();
  expect(counts.programs).toBe(programs);
  // They did enough to be meaningful.
  for (const count of Object.values(counts)) expect(count).toBeGreaterThan(programs / 20);
}, 300_000);
