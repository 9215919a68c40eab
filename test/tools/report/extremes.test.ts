import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { drawnChanges, Extremes, lastAtMost } from '../../../src/tools/report/extremes.js';

const anyValues = fc.oneof(
  fc.array(fc.integer({ min: -9, max: 9 }), { minLength: 1, maxLength: 200, size: 'max' }),
  fc.array(fc.integer(), { minLength: 2000, maxLength: 5000, size: 'max' }),
);

describe('extremes', () => {
  test('are those of any range, and the first of equal ones', () => {
    fc.assert(
      fc.property(anyValues, fc.nat(), fc.nat(), (array, a, b) => {
        const values = Float64Array.from(array);
        const extremes = new Extremes(values);
        const [from, to] = [a % (values.length + 1), b % (values.length + 1)].sort((x, y) => x - y) as [number, number];
        const stretch = [...values.subarray(from, to)];
        const first = (value: number) => (stretch.length === 0 ? -1 : from + stretch.indexOf(value));
        expect(extremes.indexOfMaximum(from, to)).toBe(first(Math.max(...stretch)));
        expect(extremes.indexOfMinimum(from, to)).toBe(first(Math.min(...stretch)));
      }),
    );
  });
});

describe('the drawn changes', () => {
  const anyCurve = fc.tuple(
    fc.array(fc.record({ after: fc.constantFrom(0, 0, 1, 5, 400), value: fc.nat({ max: 1e6 }) }), {
      minLength: 1,
      maxLength: 3000,
      size: 'max',
    }),
    fc.nat({ max: 1000 }),
    fc.nat({ max: 1000 }),
    fc.integer({ min: 1, max: 80 }),
  );

  test('include the greatest and the least value of every pixel column, so that the drawing is exactly as high as the curve', () => {
    fc.assert(
      fc.property(anyCurve, ([steps, a, b, columns]) => {
        let time = 0;
        const times = Float64Array.from(steps, ({ after }) => {
          time += after;
          return time;
        });
        const values = Float64Array.from(steps, ({ value }) => value);
        const curve = new Extremes(values);
        const [from, to] = [(time * a) / 1000, (time * b) / 1000].sort((x, y) => x - y) as [number, number];
        const drawn = [...drawnChanges(times, [curve], { from, to }, columns)];
        expect(drawn).toEqual([...new Set(drawn)].sort((x, y) => x - y));
        const before = lastAtMost(times, from);
        if (before >= 0) expect(drawn[0]).toBe(before);
        for (let column = 0; column < columns; column++) {
          const start = from + ((to - from) * column) / columns;
          const end = column + 1 === columns ? to : from + ((to - from) * (column + 1)) / columns;
          const isHere = (change: number) => (times[change] as number) > start && (times[change] as number) <= end;
          const all = [...values.keys()].filter(isHere).map((change) => values[change] as number);
          // At the start of the next column, the curve has the right height.
          expect(drawn.filter(isHere).at(-1)).toBe([...values.keys()].filter(isHere).at(-1));
          const shown = drawn.filter(isHere).map((change) => values[change] as number);
          expect(Math.max(...shown)).toBe(Math.max(...all));
          expect(Math.min(...shown)).toBe(Math.min(...all));
        }
        expect(drawn.length).toBeLessThanOrEqual(3 * columns + 2);
      }),
    );
  });
});
