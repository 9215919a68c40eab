import { expect, test } from 'vitest';
import { type Payer, PayerNumbers } from '../../../src/serving/accounts/small-numbers.js';

test('a payer has one number while it pays, which is given to another one afterwards', () => {
  const numbers = new PayerNumbers<Payer>();
  const [a, b, c] = Array.from({ length: 3 }, () => ({ allocations: 0, place: 0 })) as [Payer, Payer, Payer];
  expect([a, a, b].map((payer) => numbers.add(payer))).toEqual([0, 0, 1]);
  expect([numbers.get(0), numbers.get(1)]).toEqual([a, b]);
  expect(numbers.remove(0)).toBe(a);
  expect(numbers.get(0)).toBe(a);
  expect(numbers.remove(0)).toBe(a);
  expect(numbers.get(0)).toBeUndefined();
  expect(numbers.add(c)).toBe(0);
  expect([numbers.get(0), numbers.get(1)]).toEqual([c, b]);
});
