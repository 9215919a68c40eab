import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type Ranked, RankHeap } from '../../../src/serving/spilling/rank-heap.js';

const step = fc.oneof(
  fc.record({ call: fc.constant('put' as const), item: fc.nat(20), rank: fc.nat(6) }),
  fc.record({ call: fc.constantFrom('remove' as const, 'take' as const), item: fc.nat(20), rank: fc.constant(0) }),
);

test('gives the item of the lowest rank first, whatever was put, moved and removed before', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 150 }), (steps) => {
      const items: Ranked[] = Array.from({ length: 21 }, (_, serial) => ({ rank: 0, serial, heapPlace: -1 }));
      const heap = new RankHeap<Ranked>();
      const model = new Set<Ranked>();
      const lowest = () => [...model].sort((a, b) => a.rank - b.rank || a.serial - b.serial)[0];
      for (const { call, item: number, rank } of steps) {
        const item = items[number] as Ranked;
        if (call === 'put') {
          item.rank = rank;
          heap.put(item);
          model.add(item);
        } else if (call === 'remove') {
          heap.remove(item);
          model.delete(item);
        } else {
          const first = lowest();
          expect(heap.take()).toBe(first);
          model.delete(first as Ranked);
        }
        expect(items.filter((each) => heap.has(each))).toEqual(items.filter((each) => model.has(each)));
      }
    }),
  );
});
