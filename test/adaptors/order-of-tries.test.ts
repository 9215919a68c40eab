/**
 * The order in which memory is looked for must not change unnoticed: with it change addresses, waits and calls
 * of the upstream. If it is meant to change, put the digests that the failure shows here,
 * and say in `docs/design/009-pooling-resources.md` what changed and why.
 */
import { describe, expect, test } from 'vitest';
import { runRandomCalls, subjects } from '../support/random-calls.js';
import { policies } from '../support/stream-order.js';

const seeds = 4;
const steps = 400;

/** By kind: for each policy, the beginnings of the digests of the seeds. */
const expected: Readonly<Record<string, readonly string[]>> = {
  pool: ['520b 35c3 0264 81c2', 'e299 0d64 2873 9ce8', '5db8 3bbc 625a b97c'],
  'pool with an initial block': ['5ee1 c2b6 d9d0 19b0', 'f8d8 ad33 8361 0852', 'dcea 351a 2b09 9aa2'],
  'pool with a maximum': ['51f1 3519 3829 c854', '328f e639 f630 81e4', 'ed95 3eea abef bd57'],
  'pool in pages': ['d77f 0db4 5047 9602', '4a70 5c25 25c4 e058', '1cf5 2b5f 45ad ec28'],
  'pool in pages with a maximum': ['a92e 9d4c 9655 2648', 'e21e 6ddc 3169 f3c6', '090c 5161 9ae1 6858'],
  'pool on a pool': ['78fa 511c 5cdc a516', 'aa81 2a15 8e37 9a9e', 'a776 d504 ab0b fa85'],
  arena: ['3b38 fd87 dcbc 3293', '5501 8105 6b6f 37d0', '1d4e 18d2 dce5 ed46'],
  'fixed-size': ['d14d a5d3 9115 4b52', '68d3 e452 e8e9 bae1', '4b22 1af9 9e9a b085'],
  'fixed-size with a maximum': ['d407 6e09 9955 a26e', '1f9b d34b 4d09 aab6', 'f3f4 8ddc 117e 8040'],
  binning: ['88e6 114f 34d0 e4e2', 'c659 7590 c429 0d6b', '6243 d3f2 3dc2 95ae'],
  monotonic: ['ab0f 35cc 6cf8 5fd4', '14aa cfc1 9c5f 1e41', 'cb5e cfc1 cc23 7d0b'],
  'monotonic with a fallback': ['f143 2fd1 d50c cf65', '3358 513a 094b 99f9', '366f 513a 4c77 50bd'],
  caching: ['b981 edce 2669 e0ac', '3e71 73aa 67cb 0176', '6438 18ea 1c22 8d20'],
  'caching with a maximum': ['2893 edce 2669 faa7', '8a11 73aa 67cb a877', 'fed2 18ea 1c22 04d3'],
  'planned, learning': ['70fe cf55 855f a48c', '70fe cf55 1807 a48c', '70fe cf55 1807 a48c'],
};

describe.each(Object.keys(subjects))('the calls of %s stay the same in random programs', (kind) => {
  test.each(policies.map((policy, i) => [policy, i] as const))('under %s', (policy, i) => {
    const digests: string[] = [];
    const counts: Record<string, number> = {};
    for (let seed = 1; seed <= seeds; seed++) {
      const run = runRandomCalls(kind, policy, seed, steps);
      digests.push(run.digest.slice(0, 4));
      for (const [call, count] of Object.entries(run.counts)) counts[call] = (counts[call] ?? 0) + count;
    }
    expect(counts['gives']).toBeGreaterThan(100);
    expect(digests.join(' ')).toBe(expected[kind]?.[i]);
  });
});
