import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ColumnWriter, type PackedColumn, packedBytes, unpackColumn } from '../../../../src/tools/formats/report/column.js';

function pack(values: readonly number[], isDelta = false): PackedColumn {
  const writer = new ColumnWriter(isDelta);
  for (const value of values) writer.add(value);
  return writer.finish();
}

/** The values as a page reads them. */
function unpack({ head, pieces }: PackedColumn): number[] {
  const bytes = Buffer.concat(pieces);
  expect(bytes.length).toBe(packedBytes(head));
  return [...unpackColumn(head, bytes, new Float64Array(head.count))];
}

describe('a packed column', () => {
  test('returns its integers, small and large', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(fc.nat({ max: 300 }), fc.maxSafeNat())), fc.constantFrom(1, 64, 4096), (values, unit) => {
        const column = values.map((value) => (value <= Number.MAX_SAFE_INTEGER / unit ? value * unit : value));
        expect(unpack(pack(column))).toEqual(column);
      }),
    );
  });

  test('returns ascending values, stored as differences', () => {
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 2 ** 40 }), { maxLength: 50 }), (values) => {
        const column = values.sort((a, b) => a - b);
        expect(unpack(pack(column, true))).toEqual(column);
      }),
    );
  });

  test('takes no bytes if all values are the same, and one byte if they differ by few units', () => {
    expect(packedBytes(pack([7, 7, 7]).head)).toBe(0);
    expect(packedBytes(pack([1 << 20, (1 << 20) + 255 * 4096, 1 << 20]).head)).toBe(3);
    expect(packedBytes(pack([1 << 20, (1 << 20) + 256 * 4096, (1 << 20) + 4096]).head)).toBe(6);
  });

  for (const isDelta of [false, true]) {
    test(`is packed in chunks, of which each has its own range: ${isDelta ? 'differences' : 'values'}`, () => {
      const values = Array.from({ length: 150_000 }, (_, i) => i * 256 + Math.floor(i / 65_536) * 2 ** 40);
      const column = pack(values, isDelta);
      expect(column.head.chunks).toHaveLength(3);
      // Comparing value by value takes the matcher seconds.
      expect(unpack(column).every((value, i) => value === values[i])).toBe(true);
      expect([...column.chunks()].map(({ length }) => length)).toEqual([65_536, 65_536, 18_928]);
      expect(packedBytes(column.head)).toBeLessThanOrEqual((isDelta ? 0 : 2) * values.length + 5 * 2 * 65_536);
      expect(unpack(column.map((value) => value / 256)).every((value, i) => value === (values[i] as number) / 256)).toBe(true);
    });
  }

  test('returns differences that sometimes descend', () => {
    const values = [5, 3, 9, 0, 70_000, 12];
    expect(unpack(pack(values, true))).toEqual(values);
  });
});
