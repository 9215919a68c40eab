import { expect, test } from 'vitest';
import { currentBackend } from '../../src/index.js';
import { proveSpill } from './spill-programs.js';

/** The long form is `npm run prove -- --spill`. */
const programs = 60;

test('random programs find the contents of every buffer, wherever it has been, and nobody waits for ever', async () => {
  const counts = await proveSpill(programs, 28_101);
  expect(counts.programs).toBe(programs);
  // They did enough to be meaningful.
  const isReal = currentBackend() !== 'software';
  for (const [what, count] of Object.entries(counts)) {
    // Only the software device fails at calls of choice.
    if (what === 'failures' && isReal) continue;
    expect([what, count > 0]).toEqual([what, true]);
  }
}, 300_000);
