import { expect, test } from 'vitest';
import { brokenVariants, explore } from './stream-order-model.mjs';

test.each([
  { streams: 2, blocks: 1, work: 1, policies: ['eager', 'deferred', 'off'], mayEnd: true },
  { streams: 2, blocks: 1, work: 1, policies: ['off', 'fence'] },
  { streams: 2, blocks: 2, work: 1, policies: ['deferred', 'off'] },
  { streams: 3, blocks: 1, work: 1, policies: ['deferred'] },
])('no memory is given to a stream before work that uses it: $streams streams, $blocks blocks, $policies', (bounds) => {
  const { fault, states } = explore(bounds);
  expect(fault).toBeUndefined();
  expect(states).toBeGreaterThan(50);
});

test.each(Object.entries(brokenVariants))('the model finds what is wrong if %s', (variant, bounds) => {
  expect(explore(bounds, variant).fault).toBeDefined();
});
