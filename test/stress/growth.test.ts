import { describe, expect, test } from 'vitest';
import { Random } from '../../src/tools/testing/random.js';
import { growthOf, minimumRounds, trend } from './growth.js';

const rounds = 300;
const noise = new Random(5);
const series = (value: (round: number) => number, length = rounds) => Array.from({ length }, (_, round) => value(round) + noise.below(20));
const growth = (values: readonly number[]) => growthOf('it', values, 50, String);

describe('the trend of a series', () => {
  test('is the change over the last two thirds', () => {
    expect(trend(Array.from({ length: 300 }, (_, round) => 3 * round))).toEqual({ change: 3 * 199, rounds: 200 });
  });

  test('leaves out at least twenty rounds', () => {
    expect(trend(Array.from({ length: 42 }, (_, round) => (round < 20 ? 0 : round)))).toEqual({ change: 21, rounds: 22 });
  });

  test('is found in a series of any length', () => {
    const long = trend(series((round) => round, 10_000));
    expect(long?.change).toBeGreaterThan(6500);
    expect(long?.change).toBeLessThan(6800);
  });

  test('is undefined for a few rounds', () => {
    expect(trend(series(() => 0, minimumRounds - 1))).toBeUndefined();
    expect(growth(series((round) => 1000 * round, minimumRounds - 1))).toBeUndefined();
    expect(growth(series((round) => 1000 * round, minimumRounds))).toMatch(/^it grows: by /);
  });
});

describe('something grows', () => {
  test('that increases slightly in each round', () => {
    expect(growth(Array.from({ length: 90 }, (_, round) => round))).toBe(
      'it grows: by 59 in the last 60 rounds (median slope); 50 are allowed',
    );
    expect(growth(series((round) => 100 + round / 2))).toMatch(/^it grows: by /);
  });

  test.each<[string, (round: number) => number]>([
    ['stays', () => 100],
    ['shrinks', (round) => -round],
    ['grows at first', (round) => Math.min(round, rounds / 3) * 10],
    ['takes one step', (round) => (round < rounds / 2 ? 0 : 1000)],
    ['is far off now and then', (round) => (round % 7 === 0 ? 10 * round : 0)],
    ['grows by no more than is allowed', (round) => round / 8],
  ])('but not what %s', (_, value) => {
    expect(growth(series(value))).toBeUndefined();
  });
});
