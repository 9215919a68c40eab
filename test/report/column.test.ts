import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { packColumn, unpackColumn } from '../../src/report/column.js';

describe('a packed column', () => {
  test('gives back its integers, small and large', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(fc.nat({ max: 300 }), fc.maxSafeNat())), fc.constantFrom(1, 64, 4096), (values, unit) => {
        const column = values.map((value) => (value <= Number.MAX_SAFE_INTEGER / unit ? value * unit : value));
        const { head, bytes } = packColumn(column);
        expect([...unpackColumn(head, bytes, new Float64Array(head.count))]).toEqual(column);
      }),
    );
  });

  test('gives back what ascends, as differences', () => {
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 2 ** 40 }), { maxLength: 50 }), (values) => {
        const column = values.sort((a, b) => a - b);
        const { head, bytes } = packColumn(column, true);
        expect([...unpackColumn(head, bytes, new Float64Array(head.count))]).toEqual(column);
      }),
    );
  });

  test('takes no bytes where all values are the same, and one where they differ by few units', () => {
    expect(packColumn([7, 7, 7]).bytes.length).toBe(0);
    expect(packColumn([1 << 20, (1 << 20) + 255 * 4096, 1 << 20]).head).toMatchObject({ planes: 1 });
    expect(packColumn([1 << 20, (1 << 20) + 256 * 4096, (1 << 20) + 4096]).head).toMatchObject({ planes: 2 });
  });
});
