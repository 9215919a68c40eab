import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { type AddressRange, BumpBlocks } from '../../src/suballocation/bump-blocks.js';

const base = 2 ** 40;

describe('the blocks of a bump allocator', () => {
  test('are found by every address inside them, and by none outside', () => {
    const blocks = new BumpBlocks<AddressRange>();
    // The largest block of its order, starting at the end of a cell: it reaches into three cells.
    const block = { start: base + 768, bytes: 1792 };
    blocks.add(block);
    expect([768, 1024, 2048, 2559].map((offset) => blocks.find(base + offset))).toEqual([block, block, block, block]);
    expect([0, 767, 2560, 4096].map((offset) => blocks.find(base + offset))).toEqual([undefined, undefined, undefined, undefined]);
    blocks.remove({ start: base + 768, bytes: 1792 });
    expect(blocks.find(base + 768)).toBeUndefined();
  });

  test('are found at the same cost, however many there are', () => {
    const blocks = new BumpBlocks<AddressRange>();
    for (let i = 0; i < 10_000; i++) blocks.add({ start: base + i * 512, bytes: 256 });
    const look = vi.spyOn(Map.prototype, 'get');
    try {
      for (let i = 0; i < 1000; i++) blocks.find(base + i * 512);
      expect(look.mock.calls.length).toBeLessThanOrEqual(3000);
    } finally {
      look.mockRestore();
    }
  });

  test('are found as in a list after any steps', () => {
    const step = fc.record({
      action: fc.constantFrom('add', 'add', 'remove'),
      units: fc.oneof(fc.integer({ min: 1, max: 8 }), fc.integer({ min: 1, max: 4000 })),
      gap: fc.integer({ min: 0, max: 3 }),
      pick: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60, size: 'max' }), (steps) => {
        const blocks = new BumpBlocks<AddressRange>();
        let list: AddressRange[] = [];
        let next = base;
        for (const { action, units, gap, pick } of steps) {
          if (action === 'add') {
            const block = { start: next + gap * 256, bytes: units * 256 };
            blocks.add(block);
            list = [...list, block];
            next = block.start + block.bytes;
          } else {
            const block = list[pick % Math.max(1, list.length)];
            if (block === undefined) continue;
            blocks.remove(block);
            list = list.filter((other) => other !== block);
          }
          expect(blocks.count).toBe(list.length);
          for (const { start, bytes } of list) {
            for (const address of [start - 1, start, start + Math.floor(bytes / 2), start + bytes - 1, start + bytes]) {
              expect(blocks.find(address)).toBe(list.find((each) => address >= each.start && address < each.start + each.bytes));
            }
          }
        }
        blocks.clear();
        expect(blocks.count).toBe(0);
      }),
    );
  });
});
