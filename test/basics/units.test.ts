import { describe, expect, it } from 'vitest';
import { formatCount, isPowerOfTwo } from '../../src/basics/units.js';

describe('isPowerOfTwo', () => {
  const powers = Array.from({ length: 53 }, (_, exponent) => 2 ** exponent);

  it('accepts every power of two below 2^53', () => {
    expect(powers.filter((power) => !isPowerOfTwo(power))).toEqual([]);
  });

  it('refuses sums and neighbours of powers of two', () => {
    const sums = powers.flatMap((power) => powers.filter((other) => other < power).map((other) => power + other));
    const neighbours = powers.slice(2).flatMap((power) => [power - 1, power + 1]);
    expect([...sums, ...neighbours].filter(isPowerOfTwo)).toEqual([]);
  });

  it.each([0, -1, -2, -(2 ** 31), 0.5, 1.5, 2 ** 53, 2 ** 64, Number.NaN, Number.POSITIVE_INFINITY])('refuses %d', (value) => {
    expect(isPowerOfTwo(value)).toBe(false);
  });
});

describe('formatCount', () => {
  it.each([
    [0, '0'],
    [7, '7'],
    [999, '999'],
    [1000, '1,000'],
    [194854, '194,854'],
    [1_000_000, '1,000,000'],
    [Number.MAX_SAFE_INTEGER, '9,007,199,254,740,991'],
  ])('writes %d as %s', (count, text) => {
    expect(formatCount(count)).toBe(text);
  });
});
