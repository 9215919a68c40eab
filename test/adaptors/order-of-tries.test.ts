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
  pool: ['7d87 553a 0ba2 b1b1', '1f3b 71da 9bcb 23f8', '24f0 8ffc 2025 7f12'],
  'pool with an initial block': ['4d80 02b4 ae63 61b6', '3bcf 4d03 98c2 f7da', '46a7 8928 9312 ce24'],
  'pool with a maximum': ['6bc0 cf0c d377 5738', 'fac0 50b0 4474 d8c7', '6df5 98fc 2e05 2a42'],
  'pool in pages': ['e62d 5530 1c93 51e5', 'c44e e7aa 05cf d85a', '8a70 3474 9b59 41af'],
  'pool in pages with a maximum': ['d6e8 dfbc e48f 6285', '2d79 ba30 a32f 4675', 'b0b0 e415 1d99 0b7a'],
  'pool on a pool': ['ddc1 511c 8e72 6bba', '6ae5 2a15 fad2 85c6', '6696 d504 b40a 95dc'],
  arena: ['e434 3376 be43 8403', 'd7cc 7df8 6ad0 ba44', '1f2b db2a d538 15ad'],
  'fixed-size': ['e5a7 de94 cc0d be02', '3894 0407 9b6a 407c', '2426 2488 4c45 1ed2'],
  'fixed-size with a maximum': ['96de e36c 59ce dcad', '2bad e9ed 7091 aaca', 'd5ed 118f a66c 2e87'],
  binning: ['08e5 0b76 759a 87ba', '37b6 34d9 c6b2 0763', '7d1b 912a 20da 9ddd'],
  monotonic: ['3f35 d970 c5e0 b013', 'f1b7 aa7e 69b2 4729', 'ac56 aa7e 6094 db37'],
  'monotonic with a fallback': ['0437 70db a980 5106', 'ba82 185a 00d3 22b1', 'b477 185a 931c 06fc'],
  caching: ['523e 6a38 bac9 416c', '7d36 821e 899a 8878', 'e2fa 02be b680 de26'],
  'caching with a maximum': ['3c30 6a38 bac9 078c', '7032 821e 899a a1df', '304f 02be b680 8011'],
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
