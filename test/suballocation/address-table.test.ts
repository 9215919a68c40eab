import fc from 'fast-check';
import { expect, test } from 'vitest';
import { AddressTable } from '../../src/suballocation/address-table.js';

const step = fc.record({ call: fc.constantFrom('set', 'delete'), address: fc.nat(30).map((i) => 2 ** 40 + 256 * i) });

test('has what a map of the same addresses has', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
      const table = new AddressTable<number>();
      const model = new Map<number, number>();
      for (const [value, { call, address }] of steps.entries()) {
        if (call === 'set') {
          table.set(address, value);
          model.set(address, value);
        } else {
          expect(table.delete(address)).toBe(model.delete(address));
        }
        expect([table.size, table.has(address), table.get(address)]).toEqual([model.size, model.has(address), model.get(address)]);
      }
      expect(new Map(table)).toEqual(model);
      expect([...table.values()].sort()).toEqual([...model.values()].sort());
    }),
  );
});

test('may be changed while it is walked through: what was removed is left out', () => {
  const table = new AddressTable<string>();
  for (const [i, name] of ['a', 'b', 'c'].entries()) table.set(256 * i, name);
  const met: string[] = [];
  for (const [address, name] of table) {
    met.push(name);
    table.delete(address);
    table.delete(256);
  }
  expect([met, table.size]).toEqual([['a', 'c'], 0]);
});
