import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import type { Segment } from '../../src/suballocation/blocks.js';
import { SegmentMap } from '../../src/suballocation/segment-map.js';

const base = 2 ** 40;

describe('the segments of a map', () => {
  test('are found by every address inside them, and by none outside', () => {
    const blocks = new SegmentMap<Segment>();
    // The largest block of its order, starting at the end of a cell: it reaches into three cells.
    const block = { address: base + 768, bytes: 1792 };
    blocks.add(block);
    expect([768, 1024, 2048, 2559].map((offset) => blocks.find(base + offset))).toEqual([block, block, block, block]);
    expect([0, 767, 2560, 4096].map((offset) => blocks.find(base + offset))).toEqual([undefined, undefined, undefined, undefined]);
    blocks.remove({ address: base + 768, bytes: 1792 });
    expect(blocks.find(base + 768)).toBeUndefined();
  });

  test('are found at the same cost, however many there are', () => {
    const blocks = new SegmentMap<Segment>();
    for (let i = 0; i < 10_000; i++) blocks.add({ address: base + i * 512, bytes: 256 });
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
        const blocks = new SegmentMap<Segment>();
        let list: Segment[] = [];
        let next = base;
        for (const { action, units, gap, pick } of steps) {
          if (action === 'add') {
            const block = { address: next + gap * 256, bytes: units * 256 };
            blocks.add(block);
            list = [...list, block];
            next = block.address + block.bytes;
          } else {
            const block = list[pick % Math.max(1, list.length)];
            if (block === undefined) continue;
            blocks.remove(block);
            list = list.filter((other) => other !== block);
          }
          expect(blocks.count).toBe(list.length);
          for (const bytes of [1, units * 256, 2 ** 20]) {
            for (const offset of [-bytes, 1 - bytes, -256, 0, gap * 256]) {
              const from = next + offset;
              const expected = list.some((each) => each.address < from + bytes && from < each.address + each.bytes);
              const found = blocks.overlapping(from, bytes);
              expect(found !== undefined).toBe(expected);
              if (found !== undefined) expect(found.address < from + bytes && from < found.address + found.bytes).toBe(true);
            }
          }
          for (const { address: start, bytes } of list) {
            for (const address of [start - 1, start, start + Math.floor(bytes / 2), start + bytes - 1, start + bytes]) {
              expect(blocks.find(address)).toBe(list.find((each) => address >= each.address && address < each.address + each.bytes));
            }
          }
        }
        blocks.clear();
        expect(blocks.count).toBe(0);
      }),
    );
  });
});
