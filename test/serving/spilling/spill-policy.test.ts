import { expect, test } from 'vitest';
import { spillPolicies, type spillPolicyWords } from '../../../src/serving/spilling/spill-policy.js';

test.each<[(typeof spillPolicyWords)[number], number, number, number, number]>([
  // The last use, and nothing else.
  ['least-recently-used', 1000, 3, 5, 7],
  // Above what has left: the uses, times what a byte costs, which is double where the copy takes as long as its beginning.
  ['cost-of-return', 250_000, 3, 5, 11],
  ['cost-of-return', 125_000, 2, 0, 6],
  ['cost-of-return', 1, 1, 1, 250_002],
])('%s: a buffer of %i bytes with %i uses ranks, above %i, at %i', (policy, bytes, uses, leftRank, rank) => {
  expect(spillPolicies[policy].rank({ bytes, uses, lastUse: 7, label: undefined }, leftRank)).toBe(rank);
});
