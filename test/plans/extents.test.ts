import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type Extent, Extents } from '../../src/plans/extents.js';

interface Named extends Extent {
  readonly name: number;
}

const few = fc.record({ isInsert: fc.boolean(), address: fc.nat(60), bytes: fc.integer({ min: 1, max: 30 }) });
/** Enough for several chunks. */
const many = fc.record({ isInsert: fc.constant(true), address: fc.nat(20_000), bytes: fc.integer({ min: 1, max: 4 }) });

/** The names that addresses have, address by address. */
function addressesOf(extents: Iterable<Named>): Map<number, number> {
  const names = new Map<number, number>();
  for (const { address, bytes, name } of extents) for (let at = address; at < address + bytes; at++) names.set(at, name);
  return names;
}

describe('extents', () => {
  test.each([
    ['few', few, 40, 300],
    ['many', many, 3000, 10],
  ] as const)('have each address that was inserted and not cut since: %s', (_, step, maxLength, numRuns) => {
    fc.assert(
      fc.property(fc.array(step, { minLength: maxLength / 2, maxLength }), (steps) => {
        const extents = new Extents<Named>();
        const model = new Map<number, number>();
        for (const [name, { isInsert, address, bytes }] of steps.entries()) {
          const inside = Array.from({ length: bytes }, (_, i) => address + i);
          if (isInsert) {
            const names = new Set(inside.flatMap((at) => model.get(at) ?? []));
            expect(new Set([...extents.overlapping({ address, bytes })].map((each) => each.name))).toEqual(names);
            extents.insert({ address, bytes, name });
          } else {
            const names = new Set(inside.flatMap((at) => model.get(at) ?? []));
            const overlapping = [...extents.overlapping({ address, bytes })];
            const cut = extents.cut({ address, bytes });
            expect(overlapping).toEqual(cut.map(({ whole }) => whole));
            expect(new Set(cut.map(({ whole }) => whole.name))).toEqual(names);
            for (const { whole, rest } of cut) {
              const left = addressesOf([whole]);
              for (const at of inside) left.delete(at);
              expect(addressesOf(rest)).toEqual(left);
            }
          }
          for (const at of inside)
            if (isInsert) model.set(at, name);
            else model.delete(at);
          expect(extents.at(address)?.name).toBe(model.get(address));
        }
        expect(addressesOf(extents)).toEqual(model);
        const starts = [...extents].map(({ address }) => address);
        expect(starts).toEqual(starts.toSorted((a, b) => a - b));
      }),
      { numRuns },
    );
  });

  // In one array, each would move all others: this would take many minutes.
  test('are inserted in descending order, and cut from the front, without moving all others', () => {
    const extents = new Extents<Extent>();
    const count = 2 ** 20;
    for (let address = count - 1; address >= 0; address--) extents.insert({ address: 2 * address, bytes: 1 });
    for (let address = 0; address < count / 2; address++) extents.cut({ address: 2 * address, bytes: 1 });
    expect([...extents]).toHaveLength(count / 2);
  });
});
