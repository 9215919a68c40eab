import { expect, test } from 'vitest';
import { proveRings } from './ring-programs.js';

test('random tasks that wait for memory of several resources all end', async () => {
  const counts = await proveRings(150, 4301);
  expect(counts.refused).toBeGreaterThan(20);
  expect(counts.nested).toBeGreaterThan(100);
});
