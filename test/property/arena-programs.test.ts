import { expect, test } from 'vitest';
import { loadThreads, proveArenas } from './arena-programs.js';

const { buildThreads, isMissingTool } = await import(new URL('../../scripts/build-for-tests.mjs', import.meta.url).href);

/** The long form is `npm run prove -- --arenas`. */
const programs = 100;

test('random programs of pools, arenas and native threads on the same superblocks share no block, and lose none', async ({ skip }) => {
  let path: string;
  try {
    path = buildThreads();
  } catch (error) {
    if (!isMissingTool(error)) throw error;
    skip(`the addon with threads of its own cannot be built here: ${(error as Error).message}`);
    return;
  }
  const counts = await proveArenas(programs, 29_001, loadThreads(path));
  expect(counts.programs).toBe(programs);
  // They did enough to be meaningful.
  for (const [what, count] of Object.entries(counts)) expect([what, count >= programs]).toEqual([what, true]);
}, 300_000);
