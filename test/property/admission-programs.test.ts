import { expect, test } from 'vitest';
import { proveAdmission } from './admission-programs.js';

/** The long form is `npm run prove -- --admission`. */
const programs = 150;

test('random programs are promised what the model promises, in its order, and no request is forgotten', async () => {
  const counts = await proveAdmission(programs, 28_001);
  expect(counts.programs).toBe(programs);
  // They did enough to be meaningful.
  for (const [what, count] of Object.entries(counts)) expect([what, count > programs / 4]).toEqual([what, true]);
}, 300_000);
