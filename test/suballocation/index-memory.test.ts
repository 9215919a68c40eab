import fc from 'fast-check';
import { afterEach, describe, expect, test, vi } from 'vitest';
import type { BlockView } from '../../src/suballocation/blocks.js';
import { FreeSpaceIndex, unitBytes } from '../../src/suballocation/free-space-index.js';
import { indexModule } from '../../src/suballocation/index-module.js';

vi.mock('../../src/suballocation/index-module.js', () => import('../support/small-index-module.js'));

const base = 2 ** 40;
/** Enough to exhaust the memory several times if an index does not return what it has. */
const manyTimes = 600;

// There is little memory, and one instance of the module for all tests, so they share these.
const index = new FreeSpaceIndex();
const lane = index.addLane();
const other = index.addLane();
const full = new FreeSpaceIndex();
const filler = full.addLane();

afterEach(() => {
  for (const each of [index, full]) {
    each.removeAllSegments();
    each.validate();
  }
  for (const each of [lane, other]) index.share(each, false);
});

/** Runs something, and says whether there was memory for it. */
function succeeds(run: () => unknown): boolean {
  try {
    run();
    return true;
  } catch (error) {
    expect(error).toBeInstanceOf(RangeError);
    return false;
  }
}

function bytesOf(blocks: readonly BlockView[]): number {
  return blocks.reduce((sum, { bytes }) => sum + bytes, 0);
}

/** Adds segments of one unit to the other index until there is no memory. Returns how many. */
function fill(): number {
  let count = 0;
  while (succeeds(() => full.addSegment(2 * base + count * 2 * unitBytes, unitBytes, filler))) count++;
  return count;
}

describe('the memory of free-space indexes', () => {
  test('is returned by indexes that are destroyed', () => {
    for (let i = 0; i < manyTimes; i++) {
      const own = indexModule.createIndex();
      const lanes = [indexModule.addLane(own), indexModule.addLane(own)] as const;
      expect(Math.min(own, ...lanes)).toBeGreaterThan(0);
      // Nothing shows of an index that had this memory before.
      for (let j = 0; j < 64; j++) if (indexModule.usedBlock(own, base + j * unitBytes) !== 0) expect.fail(`at ${i}`);
      for (const [j, each] of lanes.entries()) {
        indexModule.shareLane(each, true);
        for (let k = 0; k < 8; k++) indexModule.addSegment(own, base * (1 + 8 * j + k), 16, each);
        // The table of used blocks grows.
        const used = Array.from({ length: 64 }, () => indexModule.allocate(own, 1, 0, each, 0));
        const freed = used.filter((address, k) => k % 2 === 0 && indexModule.freeAt(own, address, unitBytes, each) === 1);
        if (Math.min(...used) < 0 || freed.length !== 32) expect.fail(`at ${i}`);
      }
      indexModule.destroyIndex(own);
    }
  });

  test('is not that of another index', () => {
    // What every second one had lies beside what the others have.
    const made = Array.from({ length: 8 }, () => indexModule.createIndex());
    const kept = made.filter((_, i) => i % 2 === 1);
    for (const each of kept) {
      const only = indexModule.addLane(each);
      indexModule.addSegment(each, base, 8, only);
      expect(indexModule.allocate(each, 4, 0, only, 0)).toBe(base);
    }
    for (const each of made) if (!kept.includes(each)) indexModule.destroyIndex(each);
    const later = made.slice(kept.length).map(() => indexModule.createIndex());
    for (const each of kept) expect(indexModule.askedBytes(indexModule.usedBlock(each, base))).toBe(4 * unitBytes);
    for (const each of [...kept, ...later]) indexModule.destroyIndex(each);

    index.addSegment(base, 1000 * unitBytes, lane);
    for (let i = 0; i < 4; i++) {
      const own = indexModule.createIndex();
      const ownLane = indexModule.addLane(own);
      expect(indexModule.addSegment(own, base, 1000, ownLane)).toBe(1);
      // The tables of used blocks of both grow, and what the other had serves this one from its second time on.
      for (let j = 0; j < 100; j++) {
        expect(indexModule.allocate(own, 1, 0, ownLane, 0)).toBe(base + j * unitBytes);
        if (i === 0) index.allocate(1, 0, lane);
        index.validate();
      }
      indexModule.destroyIndex(own);
    }
  });

  test('is returned by an index that is cleared', () => {
    index.share(lane, true);
    for (let i = 0; i < manyTimes; i++) {
      for (let j = 1; j <= 4; j++) index.addSegment(base * j, 40 * unitBytes, lane);
      for (let j = 0; j < 100; j++) index.allocate(1, 0, lane);
      index.removeAllSegments();
      expect([index.usedBlocks, index.isEmpty(lane), index.laneWith(1, -1, -1), index.fullLane(-1, -1)]).toEqual([0, true, -1, -1]);
    }
  });

  test('is returned when blocks coalesce, segments are removed, and notices prove untrue', () => {
    index.share(lane, true);
    for (let i = 0; i < 10 * manyTimes; i++) {
      index.addSegment(base, 3 * unitBytes, lane);
      const blocks = [0, 1, 2].map(() => index.allocate(1, 0, lane));
      // The middle one joins both, the last one that before it, or the first one that after it.
      const order = [
        [0, 2, 1],
        [0, 1, 2],
        [2, 1, 0],
      ][i % 3] as number[];
      for (const place of order) index.free(index.usedBlock(blocks[place] as number), lane);
      const address = index.allocateAligned(1, 0, 512, lane);
      const notices = [index.laneWith(3, -1, -1), index.fullLane(lane, -1)];
      index.free(index.usedBlock(address), lane);
      const hasMoved = index.carve(3, lane, other);
      const removed = index.removeFreeSegment(other);
      if (address !== base || String(notices) !== '-1,-1' || !hasMoved || removed?.bytes !== 3 * unitBytes) expect.fail(`at ${i}`);
      // Pages that are a whole segment, its start, its end, and its middle.
      for (const [start, units, rest] of [
        [0, 4, 0],
        [0, 6, 2],
        [2, 6, 2],
        [2, 8, 4],
      ] as const) {
        index.addSegment(base + start * unitBytes, units * unitBytes, lane);
        const pages = index.removePages(lane, 4 * unitBytes, 4 * unitBytes);
        while (index.removeFreeSegment(lane) !== undefined);
        if (pages?.bytes !== (units - rest) * unitBytes || !index.isEmpty(lane)) expect.fail(`pages at ${start} of ${units}, at ${i}`);
      }
    }
  });

  test.each([
    ['an aligned allocation', () => index.allocateAligned(10, 0, 256 * unitBytes, lane)],
    ['removed pages', () => index.removePages(lane, 256 * unitBytes, 256 * unitBytes)],
  ] as const)('that %s made sure of is not taken by a notice', (_, run) => {
    for (let used = 1; used <= 2; used++) {
      for (let spare = 0; spare <= 4; spare++) {
        index.share(lane, true);
        index.addSegment(base, 1000 * unitBytes, lane);
        for (let i = 0; i < used; i++) index.allocate(1, 0, lane);
        fill();
        // Each segment had two records.
        for (let i = 0; i < spare; i++) full.removeFreeSegment(filler);
        succeeds(run);
        // A shared lane has a notice of every list, and there is no memory for all.
        index.share(lane, false);
        for (const each of [index, full]) {
          each.validate();
          each.removeAllSegments();
        }
      }
    }
  });

  test('is not needed by a shared lane, whose notices are then left out', () => {
    index.addSegment(base, 8 * unitBytes, lane);
    for (const units of [1, 2, 3]) index.addSegment(2 * base * units, units * unitBytes, lane);
    // Blocks of so many classes that their notices leave no spare ones.
    const lanes = [filler, full.addLane(), full.addLane()];
    for (const [i, each] of lanes.entries())
      for (let units = 1; units < 2 ** 20; units += 1 + (units >> 5))
        full.addSegment(base * (4 + i) + units * 2 ** 16, units * unitBytes, each);
    fill();
    for (const each of lanes) full.share(each, true);
    index.share(lane, true);
    expect([index.laneWith(8, -1, -1), index.fullLane(-1, -1)]).toEqual([-1, -1]);
    expect(() => index.allocate(4, 0, lane)).toThrow(RangeError);
    expect([index.freeBytes(lane), index.freeBytes(other)]).toEqual([14 * unitBytes, 0]);
    const address = index.allocate(8, 0, lane);
    index.free(index.usedBlock(address), lane);
    full.removeAllSegments();
    for (const each of lanes) full.share(each, false);
    index.removeAllSegments();
    index.addSegment(base, 8 * unitBytes, lane);
    expect(index.laneWith(8, -1, -1)).toBe(lane);
  });

  test('ends at any step, which then changes nothing', () => {
    const step = fc.record({
      kind: fc.constantFrom('segment', 'extend', 'pages', 'allocate', 'aligned', 'carve', 'free', 'more', 'less'),
      units: fc.integer({ min: 1, max: 40 }),
      isOther: fc.boolean(),
      pick: fc.nat(),
    });
    fc.assert(
      fc.property(fc.array(step, { minLength: 20, maxLength: 60, size: 'max' }), (steps) => {
        full.removeAllSegments();
        index.removeAllSegments();
        index.addSegment(base, 10_000 * unitBytes, lane);
        const live: number[] = [];
        let filled = fill();
        let added = 0;
        for (const { kind, units, isOther, pick } of steps) {
          const [from, to] = isOther ? [other, lane] : [lane, other];
          const before = [...index.blocks()];
          let removedBytes = 0;
          const isDone = succeeds(() => {
            let address = -1;
            if (kind === 'segment') index.addSegment(base * (3 + added++), units * unitBytes, from);
            else if (kind === 'extend') {
              const last = before.at(-1) as BlockView;
              index.extendSegment(last.address + last.bytes, units * unitBytes, from);
            } else if (kind === 'pages') removedBytes = index.removePages(from, 4 * unitBytes, units * unitBytes)?.bytes ?? 0;
            else if (kind === 'allocate') address = index.allocate(units, 0, from);
            else if (kind === 'aligned') address = index.allocateAligned(units, 0, 1024 << (units % 4), from);
            else if (kind === 'carve') index.carve(units, from, to);
            else if (kind === 'more') full.addSegment(2 * base + 2 * filled++ * unitBytes, unitBytes, filler);
            else if (kind === 'less') full.removeFreeSegment(filler);
            else if (live.length > 0) index.free(index.usedBlock(live.splice(pick % live.length, 1)[0] as number), from);
            if (address !== -1) live.push(address);
          });
          const after = [...index.blocks()];
          if (!isDone) expect(after).toEqual(before);
          const [had, has] = [bytesOf(before), bytesOf(after)] as const;
          if (isDone && (kind === 'segment' || kind === 'extend')) expect(has - had).toBe(units * unitBytes);
          if (kind === 'pages') expect(had - has).toBe(removedBytes);
          index.validate();
        }
      }),
      { numRuns: 40 },
    );
  });

  test('ends for whoever would split a block', () => {
    index.addSegment(base, 64 * unitBytes, lane);
    index.addSegment(base + 128 * unitBytes, 5 * unitBytes, other);
    fill();
    expect(() => index.allocate(3, 0, lane)).toThrow(RangeError);
    expect(() => index.allocateAligned(3, 0, 4096, lane)).toThrow(RangeError);
    expect(() => index.carve(3, lane, other)).toThrow(RangeError);
    expect(() => index.removePages(lane, 16 * unitBytes, 16 * unitBytes)).toThrow(RangeError);
    expect(() => index.extendSegment(base + 64 * unitBytes, unitBytes, lane)).toThrow(RangeError);
    expect(() => index.addSegment(base + 80 * unitBytes, unitBytes, lane)).toThrow(RangeError);
    expect(Array.from(index.blocks(), ({ bytes, lane }) => [bytes / unitBytes, lane])).toEqual([
      [64, lane],
      [5, other],
    ]);
    // What needs no more records is done.
    expect(index.carve(5, other, lane)).toBe(true);
    expect(index.allocate(64, 0, lane)).toBe(base);
    index.validate();
  });

  test('ends for segments, and returns when they are removed', () => {
    const count = fill();
    expect(count).toBeGreaterThan(1000);
    full.validate();
    // A whole block needs no record.
    const address = full.allocate(1, 0, filler);
    full.free(full.usedBlock(address), filler);
    let removed = 0;
    while (full.removeFreeSegment(filler) !== undefined) removed++;
    expect(removed).toBe(count);
    expect(fill()).toBe(count);
    full.removeAllSegments();
    expect(fill()).toBe(count);
  });

  test('is returned by an index that cannot be made, whichever of its parts there is no memory for', () => {
    const makeAll = () => {
      const made: number[] = [];
      for (let one = indexModule.createIndex(); one !== 0; one = indexModule.createIndex()) made.push(one);
      return made;
    };
    const destroy = (each: number) => indexModule.destroyIndex(each);
    const takeTables = (own: number) => {
      while (indexModule.addLane(own) !== 0);
    };
    // Its table of used blocks grows, so that it has one small area, and others have two.
    const grown = indexModule.createIndex();
    const only = indexModule.addLane(grown);
    indexModule.addSegment(grown, base, 100, only);
    for (let i = 0; i < 100; i++) indexModule.allocate(grown, 1, 0, only, 0);
    const [spare, hog] = [indexModule.createIndex(), indexModule.createIndex()];
    for (let i = 0; i < 40; i++) indexModule.addLane(spare);
    fill();
    takeTables(hog);
    destroy(spare);
    const counts = [true, false].map((isOdd) => {
      if (isOdd) destroy(grown);
      const first = makeAll();
      // There are lanes left, but no small areas.
      expect(indexModule.addLane(hog)).toBeGreaterThan(0);
      const own = first.pop() as number;
      first.forEach(destroy);
      takeTables(own);
      for (let i = 0; i < 100; i++) expect(indexModule.createIndex()).toBe(0);
      destroy(own);
      const second = makeAll();
      second.forEach(destroy);
      return [first.length + 1, second.length];
    });
    for (const [first, second] of counts) expect(second).toBe(first);
    destroy(hog);
    full.validate();
    index.validate();
  });

  test('ends for lanes and indexes', () => {
    fill();
    while (succeeds(() => index.addLane()));
    expect(() => new FreeSpaceIndex()).toThrow(RangeError);
    index.validate();
  });

  test('ends for the table of used blocks, and nothing changes', () => {
    // Enough records, and no area for the table.
    full.removeAllSegments();
    index.addSegment(base, 100_000 * unitBytes, lane);
    while (succeeds(() => index.allocate(1, 0, lane)));
    const { usedBlocks } = index;
    expect(usedBlocks).toBeGreaterThan(100);
    const freeBytes = (100_000 - usedBlocks) * unitBytes;
    expect(index.freeBytes(lane)).toBe(freeBytes);
    expect(() => index.allocateAligned(1, 0, 4096, lane)).toThrow(RangeError);
    expect(index.freeBytes(lane)).toBe(freeBytes);
    index.validate();
    index.free(index.usedBlock(base), lane);
    expect(index.allocate(1, 0, lane)).toBe(base);
  });
});
