import fc from 'fast-check';
import { expect, test } from 'vitest';
import { maximumGranularityBytes as granule, type SearchProgress, smallestMaximum } from '../../../src/tools/replay/smallest-maximum.js';

test('the result is enough, and one granule less was tried and is not, however irregular the function is', () => {
  const property = fc.property(
    fc.integer({ min: 0, max: 2000 }),
    fc.integer({ min: 0, max: 4000 }),
    fc.array(fc.integer({ min: 0, max: 4000 }), { maxLength: 20, size: 'max' }),
    (least, from, exceptions) => {
      const turned = new Set(exceptions);
      const tried = new Map<number, boolean>();
      const isEnough = (bytes: number) => {
        const result = bytes / granule >= from !== turned.has(bytes / granule);
        tried.set(bytes, result);
        return result;
      };
      const found = smallestMaximum(isEnough, least * granule, 4000 * granule);
      if (found === undefined) return tried.get(4000 * granule) === false || least > 4000;
      return tried.get(found) === true && (found === 0 || tried.get(found - granule) === false);
    },
  );
  fc.assert(property, { numRuns: 2000 });
});

test.each([
  [100, 100],
  [100, 101],
  [100, 163],
  [100, 4000],
  [0, 0],
  [0, 1],
  [500, 30],
])('a search from %d granules finds that %d are needed', (least, needed) => {
  expect(smallestMaximum((bytes) => bytes >= needed * granule, least * granule, 4000 * granule)).toBe(needed * granule);
});

test('a search gives up at the upper bound', () => {
  const tried: number[] = [];
  const never = (bytes: number) => {
    tried.push(bytes / granule);
    return false;
  };
  expect(smallestMaximum(never, 100 * granule, 1000 * granule)).toBeUndefined();
  expect(tried.at(-1)).toBe(1000);
  expect(Math.max(...tried)).toBe(1000);
  expect(smallestMaximum(() => true, 2 * granule, granule)).toBeUndefined();
});

test('a search never reports fewer replays left than still come', () => {
  const told: SearchProgress[] = [];
  smallestMaximum(
    (bytes) => bytes >= 3333 * granule,
    1000 * granule,
    4000 * granule,
    (progress) => told.push(progress),
  );
  const total = told.length;
  expect(told.map(({ tried }) => tried)).toEqual(Array.from(told, (_, i) => i + 1));
  const halving = told.slice(-6);
  for (const { tried, left } of halving) expect(left).toBeGreaterThanOrEqual(total - tried);
  expect(told.at(-1)?.left).toBeLessThanOrEqual(1);
});

test('the search ends when the time is up, with what it has found', () => {
  let attempts = 0;
  const isTimeUp = () => attempts >= 3;
  const isEnough = (bytes: number) => {
    attempts++;
    return bytes >= 101 * granule;
  };
  const found = smallestMaximum(isEnough, 100 * granule, 1000 * granule, undefined, isTimeUp);
  expect(found).toBe(101 * granule);
  attempts = 3;
  expect(smallestMaximum(isEnough, 64 * granule, 1000 * granule, undefined, isTimeUp)).toBeUndefined();
});
