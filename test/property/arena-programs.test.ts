import { expect, test } from 'vitest';
import { builtForTests } from '../support/built-for-tests.js';
import { loadThreads, proveArenas } from './arena-programs.js';

/** The long form is `npm run prove -- --arenas`. */
const programs = 100;

test('random programs of pools, arenas and native threads on the same superblocks share no block, and lose none', async ({ skip }) => {
  const { path, missing } = await builtForTests('buildThreads', 'the addon with threads of its own');
  if (path === undefined) return skip(missing);
  const counts = await proveArenas(programs, 29_001, loadThreads(path));
  expect(counts.programs).toBe(programs);
  // They did enough to be meaningful.
  for (const [what, count] of Object.entries(counts)) expect([what, count >= programs]).toEqual([what, true]);
}, 300_000);
