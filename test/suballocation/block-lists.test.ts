import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BlockLists } from '../../src/suballocation/block-lists.js';
import { StepCounter } from '../support/steps.js';

const base = 2 ** 40;

function listsOf(sizes: readonly number[]): { lists: BlockLists; lane: number } {
  const lists = new BlockLists();
  const lane = lists.addLane();
  for (const [i, bytes] of sizes.entries()) lists.addSegment(base + i * 2 ** 30, bytes, lane);
  return { lists, lane };
}

describe('block lists', () => {
  test('serve an exact size, the block freed last first', () => {
    const { lists, lane } = listsOf([1024, 512, 1024]);
    expect(lists.allocate(256, 0, lane)).toBe(-1);
    expect(lists.allocate(768, 0, lane)).toBe(-1);
    const first = lists.allocate(1024, 24, lane);
    const second = lists.allocate(1024, 0, lane);
    expect(lists.allocate(1024, 0, lane)).toBe(-1);
    expect(lists.askedBytes(lists.usedBlock(first))).toBe(1000);
    lists.free(lists.usedBlock(second), lane);
    lists.free(lists.usedBlock(first), lane);
    expect(lists.allocate(1024, 0, lane)).toBe(first);
    lists.validate();
  });

  test('serve the smallest block that is large enough', () => {
    const { lists, lane } = listsOf([4096, 1024, 2048, 8192]);
    expect(lists.allocateAtLeast(1025, lane)).toBe(base + 2 * 2 ** 30);
    expect(lists.allocateAtLeast(1025, lane)).toBe(base);
    expect(lists.allocateAtLeast(1025, lane)).toBe(base + 3 * 2 ** 30);
    expect(lists.allocateAtLeast(1025, lane)).toBe(-1);
    lists.validate();
  });

  test('keep lanes apart until one is moved to the other', () => {
    const { lists, lane } = listsOf([1024, 2048]);
    const other = lists.addLane();
    expect(lists.isEmpty(other)).toBe(true);
    lists.free(lists.usedBlock(lists.allocate(1024, 0, lane)), other);
    expect(lists.allocate(1024, 0, lane)).toBe(-1);
    lists.transfer(other, lane);
    lists.validate();
    expect(lists.isEmpty(other)).toBe(true);
    expect(lists.allocate(1024, 0, lane)).toBe(base);
  });

  test('say what an address refers to', () => {
    const { lists, lane } = listsOf([1024, 2048]);
    lists.allocate(1024, 0, lane);
    expect(lists.classify(base)).toBe('used');
    expect(lists.classify(base + 256)).toBe('inside');
    expect(lists.classify(base + 2 ** 30 + 256)).toBe('free');
    expect(lists.classify(base + 1024)).toBe('foreign');
  });

  test('remove free blocks up to a size, and used ones', () => {
    const { lists, lane } = listsOf([4096, 1024]);
    expect(lists.removeFreeSegment(lane, 1023)).toBeUndefined();
    expect(lists.removeFreeSegment(lane, 2048)).toEqual({ address: base + 2 ** 30, bytes: 1024 });
    const used = lists.allocate(4096, 0, lane);
    expect(lists.removeFreeSegment(lane)).toBeUndefined();
    expect(lists.removeUsed(lists.usedBlock(used))).toEqual({ address: base, bytes: 4096 });
    lists.validate();
    expect([...lists.blocks()]).toEqual([]);
  });

  test('forget a size with its last block, however many sizes there were', () => {
    using counter = new StepCounter();
    const { lists, lane } = listsOf([256]);
    const kept = lists.usedBlock(lists.allocate(256, 0, lane));
    const stepsOfOne = (bytes: number) =>
      counter.during(() => {
        lists.addSegment(2 * base, bytes, lane);
        lists.removeUsed(lists.usedBlock(lists.allocateAtLeast(bytes, lane)));
      });
    const first = stepsOfOne(512);
    // Sizes in sequence, and many at the same time.
    for (let i = 3; i < 1000; i++) stepsOfOne(i * 256);
    for (let i = 3; i < 1000; i++) lists.addSegment(4 * base + i * 2 ** 20, i * 256, lane);
    lists.validate();
    while (lists.removeFreeSegment(lane) !== undefined);
    lists.validate();
    expect(stepsOfOne(1_000_000 * 256)).toBeLessThanOrEqual(first + 1);
    lists.free(kept, lane);
    expect(lists.largestFreeBytes(lane)).toBe(256);
  });

  test('keep the number of a size while a block has it', () => {
    const { lists, lane } = listsOf([1024, 1024, 2048]);
    lists.allocate(1024, 0, lane);
    lists.removeFreeSegment(lane, 1024);
    lists.validate();
    lists.addSegment(2 * base, 4096, lane);
    lists.free(lists.usedBlock(lists.usedBlock(base) === -1 ? base + 2 ** 30 : base), lane);
    lists.validate();
    expect(lists.allocate(1024, 0, lane)).toBeGreaterThan(0);
    expect(lists.allocate(4096, 0, lane)).toBe(2 * base);
  });

  test('remove many blocks at a cost linear in their number', () => {
    const stepsOfRemoving = (count: number) => {
      using counter = new StepCounter();
      const lists = new BlockLists();
      const lane = lists.addLane();
      const address = (i: number, half: number) => base + i * 2 ** 30 + half * 2 ** 29;
      // One block of every size is used, so that no size is forgotten.
      for (let i = 0; i < count; i++) lists.addSegment(address(i, 0), (i + 1) * 256, lane);
      for (let i = 0; i < count; i++) lists.allocate((i + 1) * 256, 0, lane);
      for (let i = 0; i < count; i++) lists.addSegment(address(i, 1), (i + 1) * 256, lane);
      return counter.during(() => {
        while (lists.removeFreeSegment(lane) !== undefined);
      });
    };
    expect(stepsOfRemoving(2000)).toBeLessThan(6 * stepsOfRemoving(500));
  });

  test('keep their invariants after any steps, and lose no byte', () => {
    const size = fc.integer({ min: 1, max: 40 }).map((units) => units * 256);
    const step = fc.record({
      action: fc.constantFrom('add', 'allocate', 'atLeast', 'free', 'transfer', 'remove', 'removeUsed', 'clear'),
      size,
      lane: fc.nat(2),
      pick: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 120, size: 'max' }), (steps) => {
        const lists = new BlockLists();
        const lanes = [lists.addLane(), lists.addLane(), lists.addLane()];
        const used: number[] = [];
        let held = 0;
        let next = base;
        for (const { action, size, lane: index, pick } of steps) {
          const lane = lanes[index] as number;
          const chosen = used.length === 0 ? -1 : pick % used.length;
          if (action === 'add') {
            lists.addSegment(next, size, lane);
            next += size;
            held += size;
          } else if (action === 'allocate' || action === 'atLeast') {
            const address = action === 'allocate' ? lists.allocate(size, 0, lane) : lists.allocateAtLeast(size, lane);
            if (address >= 0) used.push(address);
          } else if (action === 'free' && chosen >= 0) {
            lists.free(lists.usedBlock(used.splice(chosen, 1)[0] as number), lane);
          } else if (action === 'transfer') {
            lists.transfer(lane, (lanes[pick % 3] as number) === lane ? (lanes[(index + 1) % 3] as number) : (lanes[pick % 3] as number));
          } else if (action === 'remove') {
            held -= lists.removeFreeSegment(lane, size)?.bytes ?? 0;
          } else if (action === 'removeUsed' && chosen >= 0) {
            held -= lists.removeUsed(lists.usedBlock(used.splice(chosen, 1)[0] as number)).bytes;
          } else if (action === 'clear' && pick % 8 === 0) {
            for (const { bytes } of lists.removeAllSegments()) held -= bytes;
            used.length = 0;
          }
          lists.validate();
          expect(lists.usedBlocks).toBe(used.length);
          expect([...lists.blocks()].reduce((sum, block) => sum + block.bytes, 0)).toBe(held);
          for (const each of lanes) {
            const free = [...lists.blocks()].filter((block) => block.lane === each).map(({ bytes }) => bytes);
            expect(lists.freeBytes(each)).toBe(free.reduce((sum, bytes) => sum + bytes, 0));
            expect(lists.largestFreeBytes(each)).toBe(Math.max(0, ...free));
          }
        }
        expect(held).toBeGreaterThanOrEqual(0);
      }),
    );
  });
});
