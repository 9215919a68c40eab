import { expect, test } from 'vitest';
import { formatProof, prove } from './prove.js';

/** The long form is `npm run prove`. */
const programs = 500;
const seed = 20_260;

test('random programs keep stream order, structures, bytes and counts', async () => {
  const proof = await prove({ programs, seed });
  expect(proof.violation, formatProof(proof, seed)).toBeUndefined();
  expect(proof.counts.programs).toBe(programs);
  // They did enough to be meaningful.
  const { refusals, reuses, synchronizations, callbacks, buffers, bufferSteps, misuses, oldFences, freesOff } = proof.counts;
  for (const count of [refusals, reuses, callbacks, buffers, bufferSteps, misuses]) expect(count).toBeGreaterThan(programs / 10);
  expect(synchronizations).toBeGreaterThan(0);
  expect(oldFences).toBeGreaterThan(0);
  expect(freesOff).toBeGreaterThan(0);
}, 300_000);
