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
  pool: ['7d87 35c3 42df a364', '1f3b 0d64 cffd 0b13', '24f0 3bbc 30e4 a778'],
  'pool with an initial block': ['d043 c2b6 4758 8017', '6532 ad33 3d13 761d', 'e68e 351a 2960 f6ce'],
  'pool with a maximum': ['2845 3519 99ac aa87', 'bdcf e639 298c 62ac', 'b865 3eea b8a0 6c01'],
  'pool in pages': ['e62d 0db4 0b88 4bab', 'c44e 5c25 ebb8 3f25', '8a70 2b5f f374 41af'],
  'pool in pages with a maximum': ['57e6 9d4c fabe 9403', 'e4c5 6ddc 70c4 df27', '095f 5161 223e 5c10'],
  'pool on a pool': ['ddc1 511c d07e 6b84', '6ae5 2a15 c005 2f26', '6696 d504 a3bd 2a51'],
  arena: ['2ca5 fd87 09ac aa32', 'fd11 8105 213d 5690', 'a3ef 18d2 d1b5 6545'],
  'fixed-size': ['f853 a5d3 2a92 9ffe', 'f3d1 e452 80d3 a34e', 'b548 1af9 3df3 495a'],
  'fixed-size with a maximum': ['2404 6e09 707c 3de4', '6a1b d34b bf6a aca4', '50f1 1c33 6c67 aa69'],
  binning: ['bd8d 114f 3ce7 ff08', '9631 7590 f0b8 e014', '6d07 d3f2 0eb3 85aa'],
  monotonic: ['1d45 35cc 6899 5fd4', '7960 cfc1 5a2a 1e41', 'cb5e cfc1 40a9 7d0b'],
  'monotonic with a fallback': ['0437 2fd1 83ea 5106', 'ba82 513a a1ee 22b1', 'b477 513a cb15 06fc'],
  caching: ['f6e8 edce f0af 028d', 'c860 73aa b258 deda', 'a9ac 18ea fd66 c597'],
  'caching with a maximum': ['7d8d edce f0af 8eb5', '4448 73aa b258 3b16', 'aef9 18ea fd66 f012'],
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
