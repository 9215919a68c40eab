import { expect, test } from 'vitest';
import { brokenVariants, explore } from './sleep-model.mjs';

test.each([
  { leaves: 1, pages: 2, writes: 2, refusals: 2, calls: 3 },
  { leaves: 2, pages: 1, writes: 2, refusals: 1, calls: 3 },
])('memory that sleeps and wakes loses nothing, and nothing meets a page that is not there: $leaves leaves, $pages pages', (bounds) => {
  const { fault, states } = explore(bounds);
  expect(fault).toBeUndefined();
  expect(states).toBeGreaterThan(5000);
});

test.each(Object.entries(brokenVariants))('the model finds what is wrong if %s', (variant, bounds) => {
  expect(explore(bounds, variant).fault).toBeDefined();
});
