import { describe, expect, test } from 'vitest';
import { AddressesOfGraphs } from '../../src/graphs/addresses-of-graphs.js';
import type { CapturedMemory } from '../../src/graphs/captured-memory.js';
import { code } from '../support/errors.js';

/** What is asked of the memory of a graph. */
const memory = () => ({ pointers: [] as number[] }) as unknown as CapturedMemory;

describe('of two graphs with the same address', () => {
  function shared() {
    const addresses = new AddressesOfGraphs();
    const [first, second] = [memory(), memory()];
    addresses.add(512, 256, first);
    addresses.add(512, 1024, second);
    addresses.add(4096, 256, second);
    return { addresses, first, second };
  }

  test('each has what it allocated there, and an address of one alone is of no other', () => {
    const { addresses, first, second } = shared();
    expect([addresses.has(512), addresses.has(4096), addresses.has(256)]).toEqual([true, true, false]);
    const of = (owner: CapturedMemory) =>
      [addresses.isOf(owner, 512), addresses.isOf(owner, 512, 256), addresses.isOf(owner, 512, 1024), addresses.isOf(owner, 4096)] as const;
    expect([of(first), of(second)]).toEqual([
      [true, true, false, false],
      [true, false, true, true],
    ]);
    expect(addresses.isOf(first, 256)).toBe(false);
    expect([addresses.isOnlyOf(second, 512), addresses.isOnlyOf(second, 4096), addresses.isOnlyOf(first, 4096)]).toEqual([
      false,
      true,
      false,
    ]);
  });

  test('a free means the latest of its size that was not given up, or that of the graph that ends', () => {
    const { addresses, first, second } = shared();
    addresses.add(512, 256, second);
    const means = (ending?: CapturedMemory) => addresses.meantBy(512, 256, ending, 'cannot free it');
    expect([means().memory, means(first).memory, addresses.isHeld(512, 2048), addresses.isHeld(256, 256)]).toEqual([
      second,
      first,
      false,
      false,
    ]);
    means().isGivenUp = true;
    expect([means().memory === first, addresses.isHeld(512, 256)]).toEqual([true, true]);
    means().isGivenUp = true;
    expect(addresses.isHeld(512, 256)).toBe(false);
    expect(() => means()).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    expect(() => addresses.meantBy(512, 2048, undefined, 'cannot free it')).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    // It is not known which of the two was given up, so that what is left can be given up once more.
    addresses.forget(first);
    expect([addresses.isHeld(512, 256), addresses.isHeld(512, 1024), addresses.isOnlyOf(second, 512)]).toEqual([false, true, true]);
  });

  test('the end of one that was not given up lets that of the other be given up once more', () => {
    const { addresses, first, second } = shared();
    addresses.add(512, 256, second);
    addresses.meantBy(512, 256, undefined, 'cannot free it').isGivenUp = true;
    addresses.forget(first);
    expect(addresses.meantBy(512, 256, undefined, 'cannot free it').memory).toBe(second);
    addresses.forget(second);
    expect([addresses.has(512), addresses.has(4096)]).toEqual([false, false]);
  });

  test('the end of one gives up nothing else of the other, and nothing where it has none', () => {
    const { addresses, first, second } = shared();
    addresses.meantBy(512, 1024, undefined, 'cannot free it').isGivenUp = true;
    addresses.meantBy(4096, 256, undefined, 'cannot free it').isGivenUp = true;
    addresses.forget(first);
    // It had another size there, and nothing at the other address.
    expect([addresses.isHeld(512, 256), addresses.isHeld(512, 1024), addresses.isHeld(4096, 256)]).toEqual([false, false, false]);
    expect(addresses.isOnlyOf(second, 512)).toBe(true);
  });

  test('one that was given up gives none to the other when it ends', () => {
    const { addresses, first, second } = shared();
    addresses.add(512, 256, second);
    for (let time = 0; time < 2; time++) addresses.meantBy(512, 256, undefined, 'cannot free it').isGivenUp = true;
    addresses.forget(first);
    expect(addresses.isHeld(512, 256)).toBe(false);
  });

  test('each of several that are left can be given up, as often as its size', () => {
    const { addresses, first, second } = shared();
    for (const owner of [first, second, second]) addresses.add(512, 256, owner);
    const giveUp = () => {
      addresses.meantBy(512, 256, undefined, 'cannot free it').isGivenUp = true;
    };
    giveUp();
    giveUp();
    // Two of the first had not been given up: both that were are then given up once more.
    addresses.forget(first);
    giveUp();
    giveUp();
    expect(giveUp).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
  });
});
