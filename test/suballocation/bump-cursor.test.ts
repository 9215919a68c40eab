import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BumpCursor } from '../../src/suballocation/bump-cursor.js';

const base = 2 ** 40;

describe('a bump cursor', () => {
  test('has nothing to hand out without a block', () => {
    const cursor = new BumpCursor();
    expect(cursor.allocate(256)).toBe(-1);
    expect(cursor.allocateAligned(256, 4096)).toBe(-1);
    expect(cursor.isLive(0, 256)).toBe(false);
    cursor.validate();
  });

  test('hands out a block up to its last byte, and not beyond', () => {
    const cursor = new BumpCursor();
    cursor.addBlock(base, 1024);
    expect([cursor.allocate(256), cursor.allocate(1024), cursor.allocate(768), cursor.allocate(256)]).toEqual([base, -1, base + 256, -1]);
    expect(cursor.usedBytes).toBe(1024);
  });

  test('skips to an aligned address, and counts what it skips as used', () => {
    const cursor = new BumpCursor();
    cursor.addBlock(base, 8192);
    cursor.allocate(256);
    expect(cursor.allocateAligned(4096, 4096)).toBe(base + 4096);
    expect(cursor.usedBytes).toBe(8192);
    expect(cursor.allocateAligned(256, 256)).toBe(-1);
    cursor.validate();
  });

  test('goes back within its last block', () => {
    const cursor = new BumpCursor();
    cursor.addBlock(base, 1024);
    cursor.allocate(256);
    const { blockCount, top } = cursor;
    cursor.allocate(512);
    expect(cursor.rewind(blockCount, top)).toEqual([]);
    expect([cursor.allocate(768), cursor.usedBytes]).toEqual([base + 256, 1024]);
  });

  test('goes back into an earlier block, and removes those after it', () => {
    const cursor = new BumpCursor();
    cursor.addBlock(base, 1024);
    cursor.allocate(512);
    const { blockCount, top } = cursor;
    cursor.addBlock(base + 4096, 1024);
    cursor.allocate(256);
    cursor.addBlock(base + 8192, 1024);
    expect(cursor.rewind(blockCount, top)).toEqual([base + 4096, base + 8192]);
    expect(cursor.allocate(512)).toBe(base + 512);
    expect(cursor.rewind(0, 0)).toEqual([base]);
    expect(cursor.allocate(256)).toBe(-1);
    cursor.validate();
  });

  test('knows what it handed out from its last block', () => {
    const cursor = new BumpCursor();
    cursor.addBlock(base, 1024);
    cursor.allocate(512);
    expect(cursor.isLive(base, 512)).toBe(true);
    expect(cursor.isLive(base + 256, 256)).toBe(true);
    expect(cursor.isLive(base + 255, 1)).toBe(false);
    expect(cursor.isLive(base + 256, 257)).toBe(false);
    expect(cursor.isLive(base - 256, 512)).toBe(false);
  });

  test('agrees with a list of ranges after any steps', () => {
    const step = fc.record({
      action: fc.constantFrom('allocate', 'allocate', 'aligned', 'add', 'mark', 'rewind'),
      units: fc.integer({ min: 1, max: 40 }),
      order: fc.integer({ min: 8, max: 13 }),
      pick: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80, size: 'max' }), (steps) => {
        const cursor = new BumpCursor();
        let blocks: { start: number; end: number }[] = [];
        let ranges: { start: number; end: number }[] = [];
        let marks: { position: [number, number]; blocks: typeof blocks; ranges: typeof ranges }[] = [];
        let next = base;
        for (const { action, units, order, pick } of steps) {
          if (action === 'add') {
            cursor.addBlock(next, units * 256);
            blocks = [...blocks, { start: next, end: next + units * 256 }];
            next += units * 256 + (pick % 3) * 256;
          } else if (action === 'mark') {
            marks.push({ position: [cursor.blockCount, cursor.top], blocks, ranges });
          } else if (action === 'rewind') {
            const mark = marks[pick % Math.max(1, marks.length)];
            if (mark === undefined) continue;
            marks = marks.slice(0, marks.indexOf(mark) + 1);
            expect(cursor.rewind(...mark.position)).toEqual(blocks.slice(mark.blocks.length).map(({ start }) => start));
            ({ blocks, ranges } = mark);
          } else {
            const alignment = action === 'aligned' ? 2 ** order : 256;
            const bytes = units * 256;
            const address = action === 'aligned' ? cursor.allocateAligned(bytes, alignment) : cursor.allocate(bytes);
            const last = blocks.at(-1);
            const lowest = Math.max(last?.start ?? 0, ...ranges.filter(({ start }) => start >= (last?.start ?? 0)).map(({ end }) => end));
            const expected = Math.ceil(lowest / alignment) * alignment;
            const fits = last !== undefined && expected + bytes <= last.end;
            expect(address).toBe(fits ? expected : -1);
            if (fits) ranges = [...ranges, { start: address, end: address + bytes }];
          }
          cursor.validate();
          for (const { start, end } of ranges) {
            const block = blocks.findIndex((each) => each.start <= start && start < each.end);
            expect(cursor.topOf(block)).toBeGreaterThanOrEqual(end);
          }
          const tops = blocks.map(({ start, end }) =>
            Math.max(start, ...ranges.filter((r) => r.start >= start && r.end <= end).map((r) => r.end)),
          );
          expect(cursor.usedBytes).toBe(tops.reduce((sum, top, i) => sum + top - (blocks[i]?.start ?? 0), 0));
        }
      }),
    );
  });
});
