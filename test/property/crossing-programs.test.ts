import { expect, test } from 'vitest';
import { proveCrossings } from './crossing-programs.js';

test('random programs in which several features have the same memory keep its contents', async () => {
  const counts = await proveCrossings(60, 43_000);
  const steps = ['spill', 'launch', 'sleep', 'wake', 'handOver', 'tensor', 'view', 'export', 'inAccount', 'inGrant', 'inCache', 'inPass'];
  expect(steps.filter((step) => counts[step] === undefined)).toEqual([]);
});
