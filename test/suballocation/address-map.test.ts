import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { AddressMap } from '../../src/suballocation/address-map.js';

/** Few addresses, so that they collide; some do not fit a 32-bit integer. */
const address = fc
  .oneof(
    fc.nat({ max: 40 }),
    fc.nat({ max: 40 }).map((n) => 2 ** 45 + n * 65536),
  )
  .map((n) => n * 256);

describe('an address map', () => {
  test('agrees with a Map after any insertions and removals', () => {
    fc.assert(
      fc.property(fc.array(fc.record({ address, removes: fc.boolean() }), { maxLength: 200, size: 'max' }), (steps) => {
        const map = new AddressMap(1);
        const model = new Map<number, number>();
        for (const [i, step] of steps.entries()) {
          expect(map.get(step.address)).toBe(model.get(step.address) ?? -1);
          if (model.has(step.address)) {
            if (!step.removes) continue;
            if (i % 2 === 0) map.remove(step.address);
            else expect(map.take(step.address)).toBe(model.get(step.address));
            model.delete(step.address);
          } else {
            map.insert(step.address, i);
            model.set(step.address, i);
          }
          map.validate();
          expect(map.count).toBe(model.size);
        }
        for (const [key, value] of model) expect(map.get(key)).toBe(value);
      }),
    );
  });

  test.each([-1, -256, Number.NaN, 0.5])('does not hold %s, whatever its cells are marked with', (address) => {
    const map = new AddressMap();
    map.insert(256, 7);
    expect(map.get(address)).toBe(-1);
    expect(map.take(address)).toBe(-1);
    expect(map.count).toBe(1);
  });

  test('replaces the value of an address that it holds', () => {
    const map = new AddressMap(1);
    for (let i = 0; i < 100; i++) map.insert(i * 256, i);
    for (let i = 0; i < 100; i++) map.insert(i * 256, i + 1000);
    expect(map.count).toBe(100);
    for (let i = 0; i < 100; i++) expect(map.get(i * 256)).toBe(i + 1000);
    map.validate();
  });

  test('removes an address other than the one looked up last', () => {
    const map = new AddressMap();
    map.insert(256, 1);
    map.insert(512, 2);
    map.get(256);
    map.remove(512);
    expect([map.get(256), map.get(512)]).toEqual([1, -1]);
    map.validate();
  });

  test('grows beyond its initial capacity', () => {
    const map = new AddressMap(1);
    for (let i = 0; i < 10_000; i++) map.insert(i * 256, i);
    for (let i = 0; i < 10_000; i++) expect(map.get(i * 256)).toBe(i);
    map.validate();
  });
});
