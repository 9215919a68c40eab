import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { FreeSpaceIndex, maximumUnits, unitBytes } from '../../src/suballocation/free-space-index.js';
import { StepCounter } from '../support/steps.js';

vi.mock('../../src/suballocation/index-module.js', () => import('../support/counted-index-module.js'));

const base = 2 ** 40;

function indexOf(units: number): { index: FreeSpaceIndex; lane: number } {
  const index = new FreeSpaceIndex();
  const lane = index.addLane();
  index.addSegment(base, units * unitBytes, lane);
  return { index, lane };
}

function free(index: FreeSpaceIndex, address: number, lane: number): void {
  index.free(index.usedBlock(address), lane);
}

/**
 * The steps to add a number of segments of one unit, each used at once, and to remove them when
 * every second one is free.
 */
function stepsOfSegments(count: number): { adding: number; removing: number } {
  using counter = new StepCounter();
  const index = new FreeSpaceIndex();
  const lane = index.addLane();
  const adding = counter.during(() => {
    for (let i = 0; i < count; i++) {
      index.addSegment(base + i * 2 * unitBytes, unitBytes, lane);
      index.allocate(1, 0, lane);
    }
  });
  for (let i = 0; i < count; i += 2) free(index, base + i * 2 * unitBytes, lane);
  let removed = 0;
  const removing = counter.during(() => {
    while (index.removeFreeSegment(lane) !== undefined) removed++;
  });
  expect(removed).toBe(Math.ceil(count / 2));
  return { adding, removing };
}

/** The least units of each class. */
function sizeOfEachClass(): number[] {
  const sizes = Array.from({ length: 63 }, (_, i) => i + 1);
  for (let shift = 1; shift <= 25; shift++) for (let i = 32; i < 64; i++) sizes.push(i * 2 ** shift);
  return sizes;
}

/** Units relative to the base, for short expectations. */
function at(address: number): number {
  return (address - base) / unitBytes;
}

describe('a free-space index', () => {
  test('serves a segment from its low end', () => {
    const { index, lane } = indexOf(100);
    expect(at(index.allocate(10, 0, lane))).toBe(0);
    expect(at(index.allocate(20, 0, lane))).toBe(10);
    index.validate();
  });

  test('serves the last unit, and then nothing', () => {
    const { index, lane } = indexOf(100);
    expect(index.allocate(99, 0, lane)).toBeGreaterThan(0);
    expect(at(index.allocate(1, 0, lane))).toBe(99);
    expect(index.allocate(1, 0, lane)).toBe(-1);
    expect(index.isEmpty(lane)).toBe(true);
    index.validate();
  });

  test('coalesces a freed block with the one before, the one after, and both', () => {
    const { index, lane } = indexOf(40);
    const [a, b, c, d] = [10, 10, 10, 10].map((units) => index.allocate(units, 0, lane)) as [number, number, number, number];
    free(index, a, lane);
    free(index, c, lane);
    index.validate();
    free(index, b, lane);
    index.validate();
    expect(index.largestFreeBytes(lane)).toBe(30 * unitBytes);
    free(index, d, lane);
    expect(index.largestFreeBytes(lane)).toBe(40 * unitBytes);
    index.validate();
  });

  test('moves part of a block to another lane, where it coalesces with its neighbours', () => {
    const { index, lane } = indexOf(40);
    const other = index.addLane();
    expect(index.carve(10, lane, other)).toBe(true);
    expect(index.carve(10, lane, other)).toBe(true);
    index.validate();
    expect(index.freeBytes(lane)).toBe(20 * unitBytes);
    expect(index.largestFreeBytes(other)).toBe(20 * unitBytes);
    expect(index.carve(21, lane, other)).toBe(false);
    expect(index.carve(10, lane, other)).toBe(true);
    expect(index.freeBytes(lane)).toBe(10 * unitBytes);
    index.validate();
  });

  test('moves a whole block if it has just the size', () => {
    const { index, lane } = indexOf(20);
    const other = index.addLane();
    expect(index.carve(20, lane, other)).toBe(true);
    expect(index.isEmpty(lane)).toBe(true);
    expect(index.freeBytes(other)).toBe(20 * unitBytes);
    index.validate();
  });

  describe('that takes the lowest blocks', () => {
    /** Blocks of these sizes in a lane, in the order of their addresses, none of which touch; added in that order, or from the last on. */
    function indexWith(sizes: readonly number[], isReversed = false) {
      const index = new FreeSpaceIndex();
      const lane = index.addLane();
      const places = [...sizes.entries()];
      for (const [place, units] of isReversed ? places.reverse() : places) index.addSegment((place + 1) * 2 ** 32, units * unitBytes, lane);
      index.takeLowest();
      return { index, lane };
    }

    test.each([
      [[5000, 40, 20, 300], false],
      [[5000, 40, 20, 300], true],
      [[20, 40, 300, 5000], false],
      [[20, 40, 300, 5000], true],
    ])('splits the lowest one, however large it is (%s, reversed: %s)', (sizes, isReversed) => {
      const { index, lane } = indexWith(sizes, isReversed);
      expect(index.allocate(15, 0, lane)).toBe(2 ** 32);
      expect(index.allocate(5, 0, lane)).toBe(2 ** 32 + 15 * unitBytes);
      expect(index.allocateAligned(15, 0, 512, lane)).toBe((sizes[0] === 20 ? 2 : 1) * 2 ** 32 + (sizes[0] === 20 ? 0 : 20 * unitBytes));
      index.validate();
    });

    test('looks at one block of each of the next eight classes, and at eight of the own class', () => {
      const sizesAbove = (count: number) => [...Array.from({ length: count }, (_, i) => 300 + 16 * i).reverse()];
      for (const [count, place] of [
        [8, 1],
        [9, 2],
      ] as const) {
        const { index, lane } = indexWith(sizesAbove(count));
        expect(index.allocate(100, 0, lane)).toBe(place * 2 ** 32);
      }
      for (const [tooSmall, place] of [
        [7, 1],
        [8, 2],
      ] as const) {
        // The block that fits was added first, and so is the last of its list.
        const { index, lane } = indexWith([2010, 5000, ...Array.from({ length: tooSmall }, () => 2000)]);
        expect(index.allocate(2005, 0, lane)).toBe(place * 2 ** 32);
      }
    });

    test('empties the quick lists for a large request', () => {
      const { index, lane } = indexWith([20_000, 20_000]);
      index.useQuickLists(true);
      index.freeAt(index.allocate(10, 0, lane), 10 * unitBytes, lane);
      expect(index.allocate(19_995, 0, lane)).toBe(2 ** 32);
      index.validate();
    });

    test.each([20, 200, 20_000])('splits none if a block has the size of the request, %s units', (units) => {
      const { index, lane } = indexWith([2 * units, units + 1, units, units - 1]);
      expect(index.allocate(units, 0, lane)).toBe(3 * 2 ** 32);
      expect(index.allocate(units, 0, lane)).toBe(2 ** 32);
      index.validate();
    });

    test.each([false, true])(
      'splits the lowest one of the own class, too, and passes over those that are too small (reversed: %s)',
      (isReversed) => {
        const { index, lane } = indexWith([2003, 2005, 2004, 2006], isReversed);
        expect(index.allocate(2004, 0, lane)).toBe(3 * 2 ** 32);
        expect(index.allocate(2004, 0, lane)).toBe(2 * 2 ** 32);
        expect(index.allocate(2004, 0, lane)).toBe(4 * 2 ** 32);
        expect(index.allocate(2004, 0, lane)).toBe(-1);
      },
    );

    test('takes a number of steps that does not grow with the number of free blocks', () => {
      const stepsWith = (count: number) => {
        const { index, lane } = indexWith(Array.from({ length: count }, (_, i) => 100 + (i % 977)));
        using counter = new StepCounter();
        return counter.during(() => {
          for (let i = 0; i < 100; i++) index.allocate(99, 0, lane);
        });
      };
      expect(stepsWith(20_000)).toBeLessThan(1.5 * stepsWith(2000));
      const { index, lane } = indexWith([...Array.from({ length: 20_000 }, () => 2000), 3000]);
      using counter = new StepCounter();
      expect(counter.during(() => index.allocate(2005, 0, lane))).toBeLessThan(200);
    });

    test('takes waiting blocks of the quick lists first, and the lowest of the open lane', () => {
      const { index, lane } = indexWith([64, 32]);
      index.useQuickLists(true);
      const first = index.allocate(10, 0, lane);
      const second = index.allocate(10, 0, lane);
      index.allocate(10, 0, lane);
      index.freeAt(first, 10 * unitBytes, lane);
      index.freeAt(second, 10 * unitBytes, lane);
      expect(index.allocate(10, 0, lane)).toBe(second);
      const empty = index.addLane();
      index.openLane(lane);
      expect(index.allocate(5, 0, empty)).toBe(2 ** 32 + 30 * unitBytes);
      expect(index.allocate(30, 0, empty)).toBe(2 * 2 ** 32);
    });
  });

  describe('with a reserve', () => {
    /** Blocks of these sizes in a lane and in the reserve, none of which touch. */
    function indexWithReserve(own: readonly number[], reserved: readonly number[], plenty: number) {
      const index = new FreeSpaceIndex();
      const [lane, reserve] = [index.addLane(), index.addLane()] as const;
      for (const [place, units] of own.entries()) index.addSegment((place + 1) * 2 ** 32, units * unitBytes, lane);
      for (const [place, units] of reserved.entries()) index.addSegment((place + 1001) * 2 ** 32, units * unitBytes, reserve);
      index.keepReserve(reserve, 128, plenty * unitBytes);
      return { index, lane, reserve };
    }

    test('leaves a block alone if the reserve has a smaller one for the request', () => {
      const { index, lane, reserve } = indexWithReserve([1000], [500], 1e6);
      expect(index.allocate(200, 0, lane)).toBe(-1);
      expect(index.allocate(501, 0, lane)).toBeGreaterThan(0);
      // 499 units are left, a class below the reserve's.
      expect(index.allocate(200, 0, lane)).toBeGreaterThan(0);
      expect(index.allocate(200, 0, reserve)).toBeGreaterThan(0);
    });

    test('takes a block that is small or has the very size, whatever the reserve has', () => {
      const { index, lane } = indexWithReserve([128, 1000], [129, 999], 0);
      expect(index.allocate(1, 0, lane)).toBe(2 ** 32);
      expect(index.isScarce).toBe(true);
      expect(index.allocate(1000, 0, lane)).toBe(2 * 2 ** 32);
    });

    test.each([
      [1000, 1250],
      [8000, 8500],
    ])('takes %s units only from a block of up to %s if memory is scarce', (units, most) => {
      const { index, lane, reserve } = indexWithReserve([most + 1], [], 0);
      expect(index.hasClose(units, reserve)).toBe(false);
      index.allocate(1, 0, reserve);
      expect(index.isScarce).toBe(false);
      index.addSegment(2 ** 48, unitBytes, reserve);
      index.allocate(1, 0, reserve);
      expect(index.isScarce).toBe(true);
      expect(index.hasClose(units, lane)).toBe(false);
      expect(index.allocate(units, 0, lane)).toBe(-1);
      index.addSegment(2 ** 31, most * unitBytes, lane);
      expect(index.hasClose(units, lane)).toBe(true);
      expect(index.allocate(units, 0, lane)).toBe(2 ** 31);
      expect(index.allocateAligned(units, 0, 256, lane)).toBe(2 ** 32);
    });

    test('takes from the reserve whatever is large enough, even if memory is scarce', () => {
      const { index, reserve } = indexWithReserve([], [10, 2000], 0);
      index.allocate(10, 0, reserve);
      expect(index.isScarce).toBe(true);
      expect(index.allocate(1000, 0, reserve)).toBe(1002 * 2 ** 32);
    });

    test('takes a large request from the lowest address among blocks up to half larger, unless one fits exactly', () => {
      const { index, lane } = indexWithReserve([9001, 7500, 6000, 5600, 5500], [], 1e6);
      expect(index.allocate(5600, 0, lane)).toBe(4 * 2 ** 32);
      expect(index.allocate(5000, 0, lane)).toBe(2 * 2 ** 32);
      expect(index.allocate(8000, 0, lane)).toBe(2 ** 32);
    });

    test('takes a block that is at most half larger than the smallest at a lower address, but no larger one', () => {
      const { index, lane } = indexWithReserve([9000, 8250, 5500], [], 1e6);
      expect(index.allocate(5000, 0, lane)).toBe(2 * 2 ** 32);
    });

    test('takes a small request from the smallest block, at whatever address', () => {
      const { index, lane } = indexWithReserve([4000, 3000], [], 1e6);
      expect(index.allocate(2500, 0, lane)).toBe(2 * 2 ** 32);
    });

    test('examines a bounded number of blocks for a large request', () => {
      const stepsAmong = (count: number) => {
        using counter = new StepCounter();
        const { index, lane } = indexWithReserve(
          Array.from({ length: count }, (_, place) => 5000 + (place % 2000)),
          [],
          1e9,
        );
        return counter.during(() => index.allocate(4999, 0, lane));
      };
      expect(stepsAmong(2000)).toBeLessThan(1.5 * stepsAmong(200));
    });

    test('counts what is used', () => {
      const { index, lane } = indexWithReserve([100], [], 50);
      const first = index.allocate(50, 0, lane);
      expect(index.isScarce).toBe(false);
      const [second, third] = [index.allocate(1, 0, lane), index.allocate(1, 0, lane)];
      expect(index.isScarce).toBe(true);
      index.free(index.usedBlock(second), lane);
      expect(index.isScarce).toBe(true);
      index.free(index.usedBlock(third), lane);
      expect(index.isScarce).toBe(false);
      index.allocate(1, 0, lane);
      index.freeAt(first, 50 * unitBytes, lane);
      index.removeAllSegments();
      index.addSegment(2 ** 40, 51 * unitBytes, lane);
      index.allocate(50, 0, lane);
      expect(index.isScarce).toBe(false);
    });
  });

  test('coalesces across a range that extends a segment, at its end, at its start, and between two', () => {
    const index = new FreeSpaceIndex();
    const lane = index.addLane();
    const [a, b, c, d] = [0, 10, 20, 30].map((units) => base + units * unitBytes) as [number, number, number, number];
    index.addSegment(b, 10 * unitBytes, lane);
    index.extendSegment(a, 10 * unitBytes, lane);
    expect(index.largestFreeBytes(lane)).toBe(20 * unitBytes);
    index.addSegment(d, 10 * unitBytes, lane);
    expect([...index.blocks()].length).toBe(2);
    index.extendSegment(c, 10 * unitBytes, lane);
    index.validate();
    expect([...index.blocks()]).toMatchObject([{ address: a, bytes: 40 * unitBytes }]);
    expect(index.freeTailBytes(lane)).toBe(40 * unitBytes);
  });

  test('does not make a segment larger than a block can be', () => {
    const index = new FreeSpaceIndex();
    const lane = index.addLane();
    index.addSegment(base, maximumUnits * unitBytes, lane);
    index.extendSegment(base + maximumUnits * unitBytes, unitBytes, lane);
    index.validate();
    expect([...index.blocks()].length).toBe(2);
  });

  test('does not make a segment of several blocks larger than a block can be', () => {
    const { index, lane } = indexOf(maximumUnits - 5);
    index.allocate(10, 0, lane);
    index.extendSegment(base + (maximumUnits - 5) * unitBytes, 6 * unitBytes, lane);
    index.validate();
    expect(Array.from(index.blocks()).filter(({ isHead }) => isHead).length).toBe(2);
  });

  // Before the range, the range, after it, and the segments that come of them.
  test.each([
    [0, 1, maximumUnits, [1, maximumUnits]],
    [0, 1, maximumUnits - 1, [maximumUnits]],
    [maximumUnits - 1, 1, 0, [maximumUnits]],
    [10, 10, maximumUnits - 15, [10, maximumUnits - 5]],
    [1, maximumUnits - 2, 1, [maximumUnits]],
    [1, maximumUnits - 1, 1, [1, maximumUnits]],
  ])('joins %s, %s and %s units as far as a segment can have them', (before, units, after, expected) => {
    const index = new FreeSpaceIndex();
    const lane = index.addLane();
    const at = (units: number) => base + units * unitBytes;
    if (before > 0) index.addSegment(base, before * unitBytes, lane);
    if (after > 0) index.addSegment(at(before + units), after * unitBytes, lane);
    index.extendSegment(at(before), units * unitBytes, lane);
    index.validate();
    const sizes = Array.from(index.blocks(), ({ bytes }) => bytes / unitBytes);
    expect(sizes.sort((a, b) => a - b)).toEqual(expected);
  });

  test('removes pages from the middle of a segment, from its end, and all of it', () => {
    const index = new FreeSpaceIndex();
    const lane = index.addLane();
    index.addSegment(base, 64 * unitBytes, lane);
    const used = index.allocate(20, 0, lane);
    expect(index.removePages(lane, 16 * unitBytes, 16 * unitBytes)).toEqual({ address: base + 48 * unitBytes, bytes: 16 * unitBytes });
    index.validate();
    index.extendSegment(base + 48 * unitBytes, 16 * unitBytes, lane);
    expect(index.removePages(lane, 16 * unitBytes, 1000 * unitBytes)).toEqual({ address: base + 32 * unitBytes, bytes: 32 * unitBytes });
    expect(index.removePages(lane, 16 * unitBytes, 1000 * unitBytes)).toBeUndefined();
    index.validate();
    index.free(index.usedBlock(used), lane);
    expect(index.removePages(lane, 16 * unitBytes, 15 * unitBytes)).toBeUndefined();
    expect(index.removePages(lane, 16 * unitBytes, 1000 * unitBytes)).toEqual({ address: base, bytes: 32 * unitBytes });
    expect([...index.blocks()]).toEqual([]);
    index.validate();
  });

  test.each(Array.from({ length: 17 }, (_, start) => start))('removes whole pages of 16 units from a block that begins at %s', (start) => {
    const index = new FreeSpaceIndex();
    const lane = index.addLane();
    index.addSegment(base + start * unitBytes, 50 * unitBytes, lane);
    const [first, end] = [Math.ceil(start / 16) * 16, Math.floor((start + 50) / 16) * 16];
    const removed = index.removePages(lane, 16 * unitBytes, 1000 * unitBytes);
    expect(removed).toEqual({ address: base + first * unitBytes, bytes: (end - first) * unitBytes });
    expect(index.freeBytes(lane)).toBe((50 - (end - first)) * unitBytes);
    index.validate();
  });

  test('removes a page that is a whole block', () => {
    const { index, lane } = indexOf(16);
    expect(index.removePages(lane, 16 * unitBytes, 16 * unitBytes)).toEqual({ address: base, bytes: 16 * unitBytes });
    expect(index.isEmpty(lane)).toBe(true);
  });

  test('does not coalesce across segments that happen to touch', () => {
    const { index, lane } = indexOf(10);
    index.addSegment(base + 10 * unitBytes, 10 * unitBytes, lane);
    expect(index.allocate(11, 0, lane)).toBe(-1);
    index.validate();
  });

  test('does not coalesce across lanes until one is moved to the other', () => {
    const { index, lane } = indexOf(20);
    const other = index.addLane();
    const a = index.allocate(10, 0, lane);
    const b = index.allocate(10, 0, lane);
    free(index, a, lane);
    free(index, b, other);
    index.validate();
    expect(index.allocate(20, 0, lane)).toBe(-1);
    index.transfer(other, lane);
    index.validate();
    expect(index.isEmpty(other)).toBe(true);
    expect(at(index.allocate(20, 0, lane))).toBe(0);
  });

  test('joins two lanes by moving the blocks of the one that has fewer', () => {
    const { index, lane } = indexOf(60);
    const other = index.addLane();
    const blocks = [10, 10, 10, 10, 10, 10].map((units) => index.allocate(units, 0, lane));
    for (const i of [0, 2, 4]) free(index, blocks[i] as number, lane);
    free(index, blocks[1] as number, other);
    index.share(lane, true);
    expect(index.join(other, lane)).toBe(false);
    index.validate();
    expect([index.freeBytes(lane), index.freeBytes(other)]).toEqual([40 * unitBytes, 0]);
    free(index, blocks[3] as number, other);
    index.validate();
    // 0 to 2 and 4 are in the lane, 3 in the other: the lane has more.
    expect(index.join(lane, other)).toBe(true);
    index.validate();
    expect([index.freeBytes(lane), index.freeBytes(other)]).toEqual([50 * unitBytes, 0]);
    expect(at(index.allocate(50, 0, lane))).toBe(0);
    free(index, base, lane);
    // What was shared is the lane that everybody else knew by that number.
    expect(index.laneWith(1, -1, -1)).toBe(-1);
    free(index, blocks[5] as number, other);
    index.validate();
    expect(index.laneWith(1, -1, -1)).toBe(other);
  });

  test.each([
    ['of one class', [5, 5, 5], [5, 5]],
    ['of several classes', [5, 6, 7], [5, 5]],
    ['of one unit', [1, 1], [1]],
    ['of one unit, against larger ones', [1, 1, 1], [40, 50]],
    ['in lists that are far apart', [1, 900_000, 900_000], [3, 7]],
    ['in one list, against two lists', [5, 5, 5], [5, 9]],
  ])('counts the blocks of two lanes that it joins, %s', (_name, more, fewer) => {
    const make = () => {
      const index = new FreeSpaceIndex();
      const lanes = [more, fewer].map((sizes, i) => {
        const lane = index.addLane();
        for (const [j, units] of sizes.entries()) index.addSegment(base * (10 * i + j + 1), units * unitBytes, lane);
        return lane;
      });
      return { index, lanes: lanes as [number, number] };
    };
    const { index, lanes } = make();
    const [a, b] = lanes;
    index.share(b, true);
    expect(index.join(a, b)).toBe(true);
    index.validate();
    expect([index.isEmpty(a), index.isEmpty(b)]).toEqual([false, true]);
    expect([index.fullLane(-1, -1), index.fullLane(a, -1)]).toEqual([a, -1]);
    const other = make();
    expect(other.index.join(other.lanes[1], other.lanes[0])).toBe(false);
    other.index.validate();
    expect(other.lanes.map((lane) => other.index.isEmpty(lane))).toEqual([false, true]);
  });

  test('joins two lanes with as many blocks each by moving those of the first', () => {
    const { index, lane } = indexOf(20);
    const other = index.addLane();
    const blocks = [10, 10].map((units) => index.allocate(units, 0, lane));
    free(index, blocks[0] as number, lane);
    free(index, blocks[1] as number, other);
    expect(index.join(other, lane)).toBe(false);
    index.validate();
    expect([index.freeBytes(lane), index.freeBytes(other)]).toEqual([20 * unitBytes, 0]);
  });

  test('takes the smaller of two blocks that fit', () => {
    const { index, lane } = indexOf(1000);
    const blocks = [500, 1, 100, 1].map((units) => index.allocate(units, 0, lane));
    free(index, blocks[0] as number, lane);
    free(index, blocks[2] as number, lane);
    expect(at(index.allocate(90, 0, lane))).toBe(501);
    index.validate();
  });

  test.each([
    [10, 10],
    [40, 40],
    [10, 9],
    [40, 39],
  ])('takes that block of %s units for %s that was freed last', (units, wanted) => {
    const { index, lane } = indexOf(1000);
    const blocks = Array.from({ length: 10 }, () => index.allocate(units, 0, lane));
    index.allocate(1000 - 10 * units, 0, lane);
    for (const i of [2, 6, 4]) free(index, blocks[i] as number, lane);
    expect(index.allocate(wanted, 0, lane)).toBe(blocks[4]);
    index.validate();
  });

  test.each([
    [[100, 100, 100], 100, 0],
    [[100, 100, 100], 90, 0],
    [[101, 100, 100], 100, 1],
    [[101, 101, 100], 90, 2],
    [[65, 64, 65], 60, 1],
    [[65, 65, 65], 60, 0],
  ])('of blocks of %s units takes the smallest for %s, the lowest of several', (sizes, wanted, expected) => {
    for (const order of [
      [0, 1, 2],
      [2, 1, 0],
      [1, 0, 2],
      [1, 2, 0],
    ]) {
      const index = new FreeSpaceIndex();
      const lane = index.addLane();
      for (const i of order) index.addSegment(base * (i + 1), (sizes[i] as number) * unitBytes, lane);
      expect(index.allocate(wanted, 0, lane)).toBe(base * (expected + 1));
    }
  });

  test('serves the largest block that there can be', () => {
    const { index, lane } = indexOf(maximumUnits);
    expect(index.allocate(maximumUnits, 0, lane)).toBe(base);
    free(index, base, lane);
    index.keepReserve(index.addLane(), 0, 2 ** 40 * unitBytes);
    expect(index.allocate(5000, 0, lane)).toBe(base);
    index.validate();
  });

  test('finds nothing in an empty lane between two that have a block of every class', () => {
    const index = new FreeSpaceIndex();
    const lanes = Array.from({ length: 5 }, () => index.addLane());
    for (const [i, units] of sizeOfEachClass().entries()) {
      for (const place of [0, 2, 4]) index.addSegment(base * (5 * i + place + 1), units * unitBytes, lanes[place] as number);
    }
    const before = lanes.map((lane) => index.freeBytes(lane));
    for (const empty of [lanes[1], lanes[3]] as number[]) {
      index.transfer(empty, lanes[0] as number);
      expect([index.allocate(1, 0, empty), index.removePages(empty, unitBytes, 100 * unitBytes)]).toEqual([-1, undefined]);
      expect([index.largestFreeBytes(empty), index.carve(1, empty, lanes[2] as number)]).toEqual([0, false]);
    }
    expect(lanes.map((lane) => index.freeBytes(lane))).toEqual(before);
    index.validate();
  });

  test('takes a block of the same class only if it is large enough', () => {
    const { index, lane } = indexOf(10_000);
    const small = index.allocate(4096, 0, lane);
    index.allocate(1, 0, lane);
    free(index, small, lane);
    expect(at(index.allocate(4097, 0, lane))).toBe(4097);
    expect(at(index.allocate(4096, 0, lane))).toBe(0);
  });

  test.each([
    [40, 63],
    [63, 64],
    [64, 65],
    [4030, 4032],
    [4096, 4097],
  ])('has nothing in a block of %s units for %s', (units, wanted) => {
    const { index, lane } = indexOf(units);
    expect(index.canAllocate(wanted, lane)).toBe(false);
    expect(index.allocate(wanted, 0, lane)).toBe(-1);
    expect(index.allocate(units, 0, lane)).toBe(base);
    index.validate();
  });

  test('remembers the exact requested size', () => {
    const { index, lane } = indexOf(10);
    const address = index.allocate(2, 255, lane);
    expect(index.askedBytes(index.usedBlock(address))).toBe(257);
    expect(index.usedBlock(address + unitBytes)).toBe(-1);
  });

  test('finds and frees a block only with the size that was asked for', () => {
    const { index, lane } = indexOf(10);
    const address = index.allocate(2, 255, lane);
    for (const bytes of [256, 258, 512])
      expect([index.usedBlockOf(address, bytes), index.freeAt(address, bytes, lane)]).toEqual([-1, false]);
    expect(index.usedBlockOf(address, 257)).toBe(index.usedBlock(address));
    expect([index.freeAt(address, 257, lane), index.freeAt(address, 257, lane), index.usedBlockOf(address, 257)]).toEqual([
      true,
      false,
      -1,
    ]);
    index.validate();
  });

  test('finds used blocks in few steps, however far apart they are', () => {
    for (const units of [1, 8, 4096, 2 ** 20]) {
      using counter = new StepCounter();
      const { index, lane } = indexOf(1000 * units);
      const addresses = Array.from({ length: 1000 }, () => index.allocate(units, 0, lane));
      const steps = counter.during(() => {
        for (const address of addresses) index.usedBlock(address);
      });
      expect(steps / addresses.length).toBeLessThan(7.8);
    }
  });

  test('knows what is free at the end of the segment with the highest addresses', () => {
    const index = new FreeSpaceIndex();
    const [lane, other] = [index.addLane(), index.addLane()];
    expect(index.freeTailBytes(lane)).toBe(0);
    index.addSegment(2 * base, 5 * unitBytes, lane);
    index.addSegment(base, 7 * unitBytes, lane);
    expect([index.freeTailBytes(lane), index.freeTailBytes(other)]).toEqual([5 * unitBytes, 0]);
    index.allocate(5, 0, lane);
    expect(index.freeTailBytes(lane)).toBe(0);
  });

  test('tells used, free, inner and foreign addresses apart', () => {
    const { index, lane } = indexOf(10);
    const address = index.allocate(2, 0, lane);
    expect(index.classify(address)).toBe('used');
    expect(index.classify(address + unitBytes)).toBe('inside');
    expect(index.classify(address + 2 * unitBytes)).toBe('free');
    expect(index.classify(address + 10 * unitBytes)).toBe('foreign');
  });

  test('returns aligned addresses, and keeps the memory before them free', () => {
    const { index, lane } = indexOf(64);
    index.allocate(1, 0, lane);
    const address = index.allocateAligned(4, 0, 4096, lane);
    expect(address % 4096).toBe(0);
    index.validate();
    expect(at(index.allocate(15, 0, lane))).toBe(1);
  });

  test('finds a block that fits an alignment only because of its address', () => {
    const { index, lane } = indexOf(32);
    index.allocate(16, 0, lane);
    expect(at(index.allocateAligned(16, 0, 4096, lane))).toBe(16);
    expect(index.isEmpty(lane)).toBe(true);
    index.validate();
  });

  // The alignment is 16 units.
  test.each([
    [0, 8, 4, 0],
    [0, 8, 9, undefined],
    [12, 8, 4, 16],
    [12, 8, 5, undefined],
    [15, 5, 4, 16],
    [15, 5, 5, undefined],
    [12, 500, 4, 16],
  ])('in a block at %s of %s units finds an aligned address for %s: %s', (start, size, units, expected) => {
    const index = new FreeSpaceIndex();
    const lane = index.addLane();
    index.addSegment(base + start * unitBytes, size * unitBytes, lane);
    expect(index.allocateAligned(units, 0, 4096, lane)).toBe(expected === undefined ? -1 : base + expected * unitBytes);
    index.validate();
  });

  // Such alignments in units, and what would be large enough for any address, have more than 32 bits.
  test.each([38, 39, 40, 41, 48].map((exponent) => 2 ** exponent))('finds only what fits an alignment of %s', (alignment) => {
    const { index, lane } = indexOf(20);
    for (let units = 1; units <= 20; units++) index.addSegment(2 ** 48 + (100 * units - 2) * unitBytes, units * unitBytes, lane);
    expect(index.allocateAligned(10, 0, alignment, lane)).toBe(base % alignment === 0 ? base : -1);
    index.addSegment(2 ** 49 - 10 * unitBytes, 20 * unitBytes, lane);
    expect(index.allocateAligned(10, 0, alignment, lane)).toBe(2 ** 49);
    index.validate();
  });

  test('takes the smaller of two blocks of a class for an alignment', () => {
    const { index, lane } = indexOf(4100);
    index.addSegment(2 * base, 4120 * unitBytes, lane);
    expect(index.allocateAligned(4000, 0, 4096, lane)).toBe(base);
  });

  test('has nothing aligned in a block that is a unit too small', () => {
    const { index, lane } = indexOf(19);
    index.allocate(1, 0, lane);
    expect(index.allocateAligned(4, 0, 4096, lane)).toBe(-1);
    expect(at(index.allocateAligned(3, 0, 4096, lane))).toBe(16);
    index.validate();
  });

  test('removes only wholly free segments', () => {
    const { index, lane } = indexOf(10);
    index.addSegment(2 * base, 10 * unitBytes, lane);
    const address = index.allocate(10, 0, lane);
    const segment = index.removeFreeSegment(lane);
    expect(segment?.bytes).toBe(10 * unitBytes);
    expect(segment?.address).not.toBe(address);
    expect(index.removeFreeSegment(lane)).toBeUndefined();
    index.validate();
    index.addSegment(3 * base, 10 * unitBytes, lane);
    index.validate();
  });

  test.each([0, 1])('does not remove a segment of two blocks if block %s is used', (used) => {
    const { index, lane } = indexOf(10);
    const blocks = [index.allocate(5, 0, lane), index.allocate(5, 0, lane)];
    free(index, blocks[1 - used] as number, lane);
    expect(index.removeFreeSegment(lane)).toBeUndefined();
    free(index, blocks[used] as number, lane);
    expect(index.removeFreeSegment(lane)?.bytes).toBe(10 * unitBytes);
    index.validate();
  });

  test('removes every wholly free segment that is small enough, wherever it stopped before', () => {
    const { index, lane } = indexOf(10);
    const other = index.addLane();
    for (const units of [30, 20, 40, 20]) index.addSegment(base * (index.usedBlocks + units), units * unitBytes, lane);
    index.addSegment(base * 50, 20 * unitBytes, other);
    const removed = (maximumUnits: number) => (index.removeFreeSegment(lane, maximumUnits * unitBytes)?.bytes ?? 0) / unitBytes;
    expect(removed(0)).toBe(0);
    expect(removed(30)).toBe(10);
    expect(removed(20)).toBe(20);
    expect(removed(20)).toBe(20);
    expect(removed(20)).toBe(0);
    index.validate();
    index.addSegment(base, 5 * unitBytes, lane);
    index.validate();
    expect([removed(40), removed(40), removed(40)].sort((a, b) => a - b)).toEqual([5, 30, 40]);
    expect(removed(40)).toBe(0);
    expect(index.isEmpty(other)).toBe(false);
    index.validate();
  });

  test('adds and removes many segments at a cost linear in their number', () => {
    const [few, many] = [stepsOfSegments(1000), stepsOfSegments(4000)];
    expect(many.adding).toBeLessThan(6 * few.adding);
    expect(many.removing).toBeLessThan(6 * few.removing);
  });

  test('looks at no segment if nothing is free or nothing is wanted', () => {
    using counter = new StepCounter();
    const index = new FreeSpaceIndex();
    const [lane, empty] = [index.addLane(), index.addLane()];
    for (let i = 0; i < 100; i++) index.addSegment(base + i * 2 * unitBytes, unitBytes, lane);
    expect(counter.during(() => index.removeFreeSegment(lane, 255))).toBeLessThan(10);
    expect(counter.during(() => index.removeFreeSegment(empty))).toBeLessThan(10);
  });

  test('predicts whether an allocation succeeds, without looking at every block', () => {
    const stepsAmong = (count: number) => {
      using counter = new StepCounter();
      const index = new FreeSpaceIndex();
      const lane = index.addLane();
      // All of one class. Only the first is large enough, and more blocks precede it in the list
      // than are examined.
      for (let i = 0; i < count; i++) index.addSegment(base * (i + 1), (i === 0 ? 4220 : 4200) * unitBytes, lane);
      let canAllocate = true;
      const steps = counter.during(() => {
        canAllocate = index.canAllocate(4210, lane);
      });
      expect(canAllocate).toBe(false);
      expect(index.allocate(4210, 0, lane)).toBe(-1);
      expect(index.carve(4210, lane, index.addLane())).toBe(false);
      expect(index.canAllocate(4200, lane)).toBe(true);
      return steps;
    };
    expect(stepsAmong(400)).toBe(stepsAmong(40));
  });

  describe('with quick lists', () => {
    function quickIndexOf(units: number): { index: FreeSpaceIndex; lane: number } {
      const { index, lane } = indexOf(units);
      index.useQuickLists(true);
      return { index, lane };
    }

    /** Which of the four lists blocks of a size have. */
    function listOf(units: number): number {
      return Math.imul(units, 0x9e3779b1) >>> 30;
    }

    /** Allocates and frees blocks of sizes that do not come back. */
    function freeMany(index: FreeSpaceIndex, lane: number, count: number): void {
      for (let i = 0; i < count; i++) index.freeAt(index.allocate(1 + (i % 97), 0, lane), (1 + (i % 97)) * unitBytes, lane);
    }

    test('finds what waits in them, whoever looks', () => {
      const look: ((index: FreeSpaceIndex, lane: number, other: number) => unknown)[] = [
        (index, lane) => !index.isEmpty(lane),
        (index, lane) => index.laneWith(16, -1, -1) === lane,
        (index, lane) => index.fullLane(-1, -1) === lane,
        (index) => index.usedBlocks === 0,
        (index, lane) => index.removePages(lane, 16 * unitBytes, 16 * unitBytes)?.address === base,
        (index, lane) => index.freeTailBytes(lane) === 16 * unitBytes,
        (index, lane) => index.hasClose(16, lane),
        (index, lane) => index.canAllocate(16, lane),
        (index, lane) => index.allocate(15, 0, lane) === base,
        (index, lane) => index.allocateAligned(16, 0, 4096, lane) === base,
        (index, lane) => index.removeFreeSegment(lane)?.bytes === 16 * unitBytes,
        (index, lane) => index.freeBytes(lane) === 16 * unitBytes,
        (index, lane) => index.largestFreeBytes(lane) === 16 * unitBytes,
        (index, lane, other) => index.carve(16, lane, other),
        (index, lane, other) => {
          index.transfer(lane, other);
          return index.freeBytes(other) === 16 * unitBytes;
        },
        (index, lane, other) => {
          const hasExchanged = index.join(lane, other);
          return index.freeBytes(hasExchanged ? lane : other) === 16 * unitBytes;
        },
        (index, lane) => {
          index.removeAllSegments();
          index.addSegment(base, 16 * unitBytes, lane);
          return index.allocate(16, 0, lane) === base && index.allocate(16, 0, lane) === -1;
        },
      ];
      for (const [place, finds] of look.entries()) {
        const { index, lane } = quickIndexOf(16);
        const other = index.addLane();
        index.share(lane, true);
        expect(index.freeAt(index.allocate(16, 0, lane), 16 * unitBytes, lane)).toBe(true);
        expect([place, finds(index, lane, other)]).toEqual([place, true]);
        index.validate();
      }
    });

    test('serves the block of a size that was freed last, as it is', () => {
      const { index, lane } = quickIndexOf(100);
      const [first, second, third] = [10, 10, 10].map((units) => index.allocate(units, 0, lane)) as [number, number, number];
      for (const address of [third, first, second]) expect(index.freeAt(address, 10 * unitBytes, lane)).toBe(true);
      expect([10, 10, 10].map((units) => index.allocate(units, 0, lane))).toEqual([second, first, third]);
      index.validate();
    });

    test('serves each of four sizes in a list, whichever was freed last', () => {
      for (const order of [
        [0, 1, 2, 3],
        [3, 2, 1, 0],
        [2, 0, 3, 1],
      ]) {
        const { index, lane } = quickIndexOf(1000);
        const sizes = [1, 6, 9, 14].filter((units) => listOf(units) === listOf(1));
        const addresses = sizes.map((units) => index.allocate(units, 0, lane));
        addresses.forEach((address, i) => {
          index.freeAt(address, (sizes[i] as number) * unitBytes, lane);
        });
        for (const i of order.filter((each) => each < sizes.length)) expect(index.allocate(sizes[i] as number, 0, lane)).toBe(addresses[i]);
        index.validate();
      }
    });

    test('keeps four blocks in each of four lists', () => {
      const { index, lane } = quickIndexOf(100);
      const sizes = [2, 4, 1, 3];
      expect(sizes.map(listOf)).toEqual([0, 1, 2, 3]);
      const addresses = sizes.map((units) => [0, 1, 2, 3].map(() => index.allocate(units, 0, lane)));
      for (const [i, list] of addresses.entries()) for (const each of list) index.freeAt(each, (sizes[i] as number) * unitBytes, lane);
      const again = sizes.map((units) => [0, 1, 2, 3].map(() => index.allocate(units, 0, lane)));
      expect(again).toEqual(addresses.map((list) => list.toReversed()));
    });

    test('coalesces the oldest of five blocks in a list', () => {
      const { index, lane } = quickIndexOf(100);
      const addresses = [0, 1, 2, 3, 4, 5].map(() => index.allocate(10, 0, lane));
      for (const address of addresses.slice(0, 5)) index.freeAt(address, 10 * unitBytes, lane);
      expect([10, 10, 10, 10, 9].map((units) => at(index.allocate(units, 0, lane)))).toEqual([40, 30, 20, 10, 0]);
    });

    test('asks for what a block is used for, and forgets what it was used for', () => {
      const { index, lane } = quickIndexOf(100);
      const address = index.allocate(10, 100, lane, 5);
      index.freeAt(address, 10 * unitBytes - 100, lane);
      expect(index.allocate(10, 7, lane, 6)).toBe(address);
      const block = index.usedBlock(address);
      expect([index.askedBytes(block), index.ownerOf(block)]).toEqual([10 * unitBytes - 7, 6]);
    });

    test('knows that what waits is not used', () => {
      const { index, lane } = quickIndexOf(100);
      const address = index.allocate(10, 0, lane);
      index.freeAt(address, 10 * unitBytes, lane);
      expect(index.usedBlock(address)).toBe(-1);
      expect(index.freeAt(address, 10 * unitBytes, lane)).toBe(false);
      // Its lane, where a used block has its slack, does not count as bytes.
      expect(index.freeAt(address, 10 * unitBytes + lane + 2, lane)).toBe(false);
      expect(index.usedBlocks).toBe(0);
    });

    test('coalesces before a lane is found to have nothing', () => {
      const { index, lane } = quickIndexOf(100);
      const addresses = [50, 50].map((units) => index.allocate(units, 0, lane));
      for (const address of addresses) index.freeAt(address, 50 * unitBytes, lane);
      expect(at(index.allocate(100, 0, lane))).toBe(0);
    });

    test('serves no lane with what was freed into another', () => {
      const { index, lane } = quickIndexOf(10);
      const other = index.addLane();
      const address = index.allocate(10, 0, lane);
      index.freeAt(address, 10 * unitBytes, lane);
      expect(index.allocate(10, 0, other)).toBe(-1);
      expect(index.allocate(10, 0, lane)).toBe(address);
    });

    test('shows what waits as free, coalesced', () => {
      const { index, lane } = quickIndexOf(100);
      const addresses = [20, 30].map((units) => index.allocate(units, 0, lane));
      index.freeAt(addresses[0] as number, 20 * unitBytes, lane);
      index.freeAt(addresses[1] as number, 30 * unitBytes, lane);
      expect([...index.blocks()]).toEqual([{ address: base, bytes: 100 * unitBytes, lane, isHead: true }]);
    });

    /** Whether two neighbours that are freed wait for requests of their size, rather than being coalesced. */
    function isWaiting(index: FreeSpaceIndex, lane: number): boolean {
      const [first, second] = [index.allocate(10, 0, lane), index.allocate(10, 0, lane)];
      const after = index.allocate(1, 0, lane);
      for (const address of [first, second]) index.freeAt(address, 10 * unitBytes, lane);
      const address = index.allocate(20, 0, lane);
      const wasCoalesced = address === first;
      index.freeAt(address, 20 * unitBytes, lane);
      index.freeAt(after, unitBytes, lane);
      return !wasCoalesced;
    }

    /** Frees and allocates a size again and again. */
    function repeat(index: FreeSpaceIndex, lane: number, count: number): void {
      for (let i = 0; i < count; i++) index.freeAt(index.allocate(5, 0, lane), 5 * unitBytes, lane);
    }

    function rest(index: FreeSpaceIndex, lane: number, frees: number): void {
      for (let i = 0; i < frees; i++) index.freeAt(index.allocate(5000, 0, lane), 5000 * unitBytes, lane);
    }

    /** Frees sizes of one list that are not asked for again: the first four have room, each other one pushes one out. */
    function freeUnasked(index: FreeSpaceIndex, lane: number, count: number, list = 3): void {
      const sizes = Array.from({ length: 200 }, (_, i) => 30 + i).filter((units) => listOf(units) === list);
      for (const units of sizes.slice(0, count)) index.freeAt(index.allocate(units, 0, lane), units * unitBytes, lane);
    }

    function emptied(index: FreeSpaceIndex, lane: number): void {
      index.removeAllSegments();
      index.addSegment(base, 40_000 * unitBytes, lane);
    }

    test('rests if sizes do not come back, and then watches before it keeps blocks again', () => {
      const { index, lane } = quickIndexOf(40_000);
      expect(isWaiting(index, lane)).toBe(true);
      freeMany(index, lane, 200);
      emptied(index, lane);
      repeat(index, lane, 100);
      expect(isWaiting(index, lane)).toBe(false);
      rest(index, lane, 2 ** 15);
      repeat(index, lane, 100);
      expect(isWaiting(index, lane)).toBe(false);
      rest(index, lane, 2 ** 15);
      emptied(index, lane);
      expect(isWaiting(index, lane)).toBe(false);
      repeat(index, lane, 100);
      expect(isWaiting(index, lane)).toBe(true);
      index.validate();
    });

    test.each([
      [11, false],
      [12, true],
    ])('having watched %i requests of sizes that were freed, keeps blocks: %s', (served, keeps) => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      repeat(index, lane, 1 + served);
      expect(isWaiting(index, lane)).toBe(keeps);
    });

    test.each([
      [5, true],
      [6, false],
    ])('goes on watching after %i sizes that did not come back: %s', (unused, watches) => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      freeUnasked(index, lane, 4 + unused);
      repeat(index, lane, 100);
      expect(isWaiting(index, lane)).toBe(watches);
    });

    test('watches each of four sizes in a list', () => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      const sizes = [1, 6, 9, 14].filter((units) => listOf(units) === listOf(1));
      for (let round = 0; round < 4; round++) {
        const addresses = sizes.map((units) => index.allocate(units, 0, lane));
        for (const [i, address] of addresses.entries()) index.freeAt(address, (sizes[i] as number) * unitBytes, lane);
      }
      expect(isWaiting(index, lane)).toBe(true);
    });

    test.each([
      [5, true],
      [6, false],
    ])('goes on watching if a large request comes after %i sizes that did not come back: %s', (unused, watches) => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      freeUnasked(index, lane, 4);
      for (const units of [2, 7].slice(0, unused - 4)) index.freeAt(index.allocate(units, 0, lane), units * unitBytes, lane);
      expect([2, 7].map(listOf)).toEqual([0, 1]);
      index.freeAt(index.allocate(16_384, 0, lane), 16_384 * unitBytes, lane);
      repeat(index, lane, 100);
      expect(isWaiting(index, lane)).toBe(watches);
    });

    test.each([
      [27, false],
      [28, true],
    ])('pays for four sizes before a large request, and then, having watched %i more that came back, keeps blocks: %s', (served, keeps) => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      freeUnasked(index, lane, 4);
      index.freeAt(index.allocate(16_384, 0, lane), 16_384 * unitBytes, lane);
      freeUnasked(index, lane, 4);
      repeat(index, lane, 1 + served);
      expect(isWaiting(index, lane)).toBe(keeps);
    });

    test.each([
      [6, true],
      [7, false],
    ])('goes on keeping blocks after four were served and %i left unused: %s', (unused, keeps) => {
      const { index, lane } = quickIndexOf(40_000);
      repeat(index, lane, 5);
      freeUnasked(index, lane, 4 + unused);
      expect(isWaiting(index, lane)).toBe(keeps);
      index.validate();
      expect(index.freeBytes(lane)).toBe(40_000 * unitBytes);
    });

    test('goes on watching while others look at free blocks', () => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      repeat(index, lane, 7);
      expect(index.freeBytes(lane)).toBe(40_000 * unitBytes);
      index.validate();
      repeat(index, lane, 6);
      expect(isWaiting(index, lane)).toBe(true);
    });

    test.each([
      [35, false],
      [36, true],
    ])('has no credit and has watched no size after a rest: with %i requests served, keeps blocks: %s', (served, keeps) => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      freeUnasked(index, lane, 10, listOf(5));
      rest(index, lane, 2 ** 16 + 1);
      repeat(index, lane, 1 + served);
      expect(isWaiting(index, lane)).toBe(keeps);
    });

    test.each([
      [15, 1, true],
      [16, 0, false],
      [16, 1, true],
      [17, 1, false],
    ])('whatever it has earned, once %i blocks have left unused and then %i was served, keeps blocks: %s', (unused, served, keeps) => {
      const { index, lane } = quickIndexOf(40_000);
      repeat(index, lane, 200);
      freeUnasked(index, lane, 4 + Math.min(unused, 15));
      repeat(index, lane, served);
      freeUnasked(index, lane, unused - 15);
      expect(isWaiting(index, lane)).toBe(keeps);
    });

    test('watches no request of another lane', () => {
      const { index, lane } = indexOf(40_000);
      const other = index.addLane();
      index.addSegment(2 * base, 40_000 * unitBytes, other);
      index.useQuickLists();
      for (let i = 0; i < 50; i++) index.freeAt(index.allocate(5, 0, other), 5 * unitBytes, lane);
      expect(isWaiting(index, lane)).toBe(false);
    });

    test.each([
      [4096, true],
      [4097, false],
      [16_384, false],
    ])('keeps blocks of %i units: %s', (units, keeps) => {
      const { index, lane } = quickIndexOf(80_000);
      const [first, second] = [index.allocate(units, 0, lane), index.allocate(units, 0, lane)];
      index.allocate(1, 0, lane);
      for (const address of [first, second]) index.freeAt(address, units * unitBytes, lane);
      expect(index.allocate(2 * units, 0, lane) !== first).toBe(keeps);
    });

    test.each([
      [16_383, false],
      [16_384, true],
    ])('coalesces what waits before a request of %i units: %s', (units, coalesces) => {
      const { index, lane } = quickIndexOf(40_000);
      const [first, second] = [10, 10, 1].map((each) => index.allocate(each, 0, lane)) as [number, number];
      for (const address of [first, second]) index.freeAt(address, 10 * unitBytes, lane);
      index.allocate(units, 0, lane);
      expect(index.allocate(20, 0, lane) === first).toBe(coalesces);
    });

    test('coalesces what waits before a large request, and pays for it', () => {
      const { index, lane } = quickIndexOf(40_000);
      for (let i = 0; i < 20; i++) {
        const [first, second] = [8192, 100].map((units) => index.allocate(units, 0, lane)) as [number, number];
        index.freeAt(second, 100 * unitBytes, lane);
        index.freeAt(first, 8192 * unitBytes, lane);
        const large = index.allocate(30_000, 0, lane);
        index.freeAt(large, 30_000 * unitBytes, lane);
        emptied(index, lane);
      }
      expect(isWaiting(index, lane)).toBe(false);
    });

    test('does not keep blocks while large requests come between', () => {
      const { index, lane } = indexOf(40_000);
      index.useQuickLists();
      for (let i = 0; i < 20; i++) {
        repeat(index, lane, 1);
        rest(index, lane, 1);
        index.freeAt(index.allocate(16_384, 0, lane), 16_384 * unitBytes, lane);
      }
      expect(isWaiting(index, lane)).toBe(false);
    });

    test('keeps nothing in an index that was not told to', () => {
      const { index, lane } = indexOf(40_000);
      rest(index, lane, 2 ** 16);
      repeat(index, lane, 1000);
      expect(isWaiting(index, lane)).toBe(false);
    });

    test('loses no byte, and hands none out twice, after any steps', () => {
      const step = fc.record({ isFree: fc.boolean(), units: fc.integer({ min: 1, max: 12 }), pick: fc.nat(), lane: fc.nat({ max: 1 }) });
      fc.assert(
        fc.property(fc.array(step, { maxLength: 300, size: 'max' }), (steps) => {
          const { index, lane } = quickIndexOf(150);
          const lanes = [lane, index.addLane()];
          index.addSegment(2 * base, 100 * unitBytes, lanes[1] as number);
          const live: { address: number; units: number }[] = [];
          let free = 250;
          for (const { isFree, units, pick, lane: which } of steps) {
            const number = lanes[which] as number;
            if (isFree && live.length > 0) {
              const [range] = live.splice(pick % live.length, 1) as [{ address: number; units: number }];
              expect(index.freeAt(range.address, range.units * unitBytes, number)).toBe(true);
              free += range.units;
              continue;
            }
            const address = index.allocate(units, 0, number);
            if (address === -1) {
              expect(index.largestFreeBytes(number)).toBeLessThan(units * unitBytes);
              continue;
            }
            const end = address + units * unitBytes;
            expect(live.filter((range) => address < range.address + range.units * unitBytes && range.address < end)).toEqual([]);
            live.push({ address, units });
            free -= units;
          }
          index.validate();
          expect(lanes.reduce((sum, number) => sum + index.freeBytes(number), 0)).toBe(free * unitBytes);
          expect(index.usedBlocks).toBe(live.length);
        }),
        { numRuns: 200 },
      );
    });
  });

  describe('an open lane', () => {
    test('serves what a lane does not have, once its own memory is used', () => {
      const { index, lane } = indexOf(10);
      const other = index.addLane();
      index.addSegment(2 * base, 20 * unitBytes, other);
      index.openLane(other);
      expect([10, 15, 5].map((units) => index.allocate(units, 0, lane))).toEqual([base, 2 * base, 2 * base + 15 * unitBytes]);
      expect(index.allocate(1, 0, lane)).toBe(-1);
      index.free(index.usedBlock(2 * base), lane);
      expect([index.freeBytes(lane), index.freeBytes(other)]).toEqual([15 * unitBytes, 0]);
      index.validate();
    });

    test('is not used any more once it is closed', () => {
      const { index, lane } = indexOf(10);
      const other = index.addLane();
      index.addSegment(2 * base, 20 * unitBytes, other);
      index.openLane(other);
      index.openLane(undefined);
      expect(index.allocate(15, 0, lane)).toBe(-1);
    });
  });

  describe('a shared lane', () => {
    const share = (count: number, unitsOf: (i: number) => number) => {
      const index = new FreeSpaceIndex();
      const lanes = Array.from({ length: count }, () => index.addLane());
      for (const [i, lane] of lanes.entries()) {
        index.share(lane, true);
        if (unitsOf(i) > 0) index.addSegment(base * (i + 1), unitsOf(i) * unitBytes, lane);
      }
      index.validate();
      return { index, lanes };
    };

    test('is found by a block of any class', () => {
      const sizes = sizeOfEachClass();
      expect([sizes.length, sizes.at(-1)]).toEqual([863, 63 * 2 ** 25]);
      const [index, later] = [new FreeSpaceIndex(), new FreeSpaceIndex()];
      const [lane, laterLane] = [index.addLane(), later.addLane()];
      index.share(lane, true);
      const found = sizes.map((units, i) => {
        index.addSegment(base * (i + 1), units * unitBytes, lane);
        later.addSegment(base * (i + 1), units * unitBytes, laterLane);
        return index.laneWith(units, -1, -1);
      });
      expect(found).toEqual(sizes.map(() => lane));
      expect(later.fullLane(-1, -1)).toBe(-1);
      later.share(laterLane, true);
      for (const [i, units] of [...sizes.entries()].reverse()) {
        if (later.laneWith(units, -1, -1) !== laterLane || later.fullLane(-1, -1) !== laterLane)
          expect.fail(`${units} units are not found`);
        expect(later.allocate(units, 0, laterLane)).toBe(base * (i + 1));
      }
      for (const each of [index, later]) {
        each.validate();
        each.removeAllSegments();
        each.validate();
      }
    });

    test('is found again when what it had comes back', () => {
      const { index, lanes } = share(1, () => 0);
      const [lane] = lanes as [number];
      const sizes = [3, 35, 40, 64, 72, 700, 4000];
      for (const [i, units] of sizes.entries()) index.addSegment(base * (i + 1), units * unitBytes, lane);
      const addresses = sizes.map((units) => index.allocate(units, 0, lane));
      expect(index.fullLane(-1, -1)).toBe(-1);
      index.validate();
      for (const [i, units] of sizes.entries()) {
        free(index, addresses[i] as number, lane);
        expect([index.laneWith(units, -1, -1), index.fullLane(-1, -1)]).toEqual([lane, lane]);
        index.validate();
      }
    });

    test('is found among many that had such a block once, and then at no cost', () => {
      using counter = new StepCounter();
      const { index, lanes } = share(100, () => 10);
      const [first] = lanes as [number];
      for (const lane of lanes) if (lane !== first) index.allocate(10, 0, lane);
      expect(index.laneWith(10, -1, -1)).toBe(first);
      expect(counter.during(() => index.laneWith(10, -1, -1))).toBeLessThan(20);
      index.allocate(10, 0, first);
      expect(index.laneWith(10, -1, -1)).toBe(-1);
      expect(counter.during(() => index.laneWith(1, -1, -1))).toBeLessThan(20);
      index.validate();
    });

    test('is found in a larger class if others of that class are excluded', () => {
      const { index, lanes } = share(4, (i) => [10, 20, 30, 40][i] as number);
      const [a, b, c, d] = lanes as [number, number, number, number];
      expect([index.laneWith(5, a, b), index.laneWith(5, a, -1), index.laneWith(15, c, b)]).toEqual([c, b, d]);
      expect([index.fullLane(d, c), index.fullLane(d, -1)]).toEqual([b, c]);
    });

    test('is looked for in few lanes that have only smaller blocks of the class', () => {
      const stepsAmong = (count: number) => {
        using counter = new StepCounter();
        const { index, lanes } = share(count, () => 4200);
        const steps = counter.during(() => expect(index.laneWith(4210, -1, -1)).toBe(-1));
        expect(index.laneWith(4200, -1, -1)).toBe(lanes.at(-1));
        return steps;
      };
      expect(stepsAmong(400)).toBe(stepsAmong(40));
    });

    test('is found by what it has, the smallest class first', () => {
      const { index, lanes } = share(4, (i) => [100, 10, 1000, 0][i] as number);
      const place = (lane: number) => lanes.indexOf(lane);
      expect([5, 10, 11, 100, 1000, 1001].map((units) => place(index.laneWith(units, -1, -1)))).toEqual([1, 1, 0, 0, 2, -1]);
      expect(place(index.fullLane(-1, -1))).toBe(2);
    });

    test('is not found by the streams that own it', () => {
      const { index, lanes } = share(3, () => 10);
      const [a, b, c] = lanes as [number, number, number];
      expect([index.laneWith(10, a, b), index.laneWith(10, c, b), index.fullLane(a, c)]).toEqual([c, a, b]);
    });

    test('is not found while it is not shared, nor if what it had is used', () => {
      const { index, lanes } = share(2, () => 10);
      const [a, b] = lanes as [number, number];
      index.share(a, false);
      expect([index.laneWith(10, b, -1), index.fullLane(b, -1)]).toEqual([-1, -1]);
      index.share(a, true);
      index.validate();
      expect(index.laneWith(10, b, -1)).toBe(a);
      const address = index.allocate(10, 0, a);
      expect([index.laneWith(1, b, -1), index.fullLane(b, -1)]).toEqual([-1, -1]);
      free(index, address, a);
      index.validate();
      expect(index.laneWith(10, b, -1)).toBe(a);
    });

    test('is known once, however often it is shared', () => {
      const { index, lanes } = share(1, () => 10);
      const [lane] = lanes as [number];
      for (const isShared of [false, true, true, false, true]) {
        index.share(lane, isShared);
        index.validate();
      }
      expect(index.laneWith(10, -1, -1)).toBe(lane);
    });

    test('is the largest of the others, whatever was found for the same stream before', () => {
      const { index, lanes } = share(6, (i) => [5000, 10, 3000, 2000, 0, 0][i] as number);
      const [own, small, largest, middle, late, other] = lanes as [number, number, number, number, number, number];
      const full = (second = -1) => index.fullLane(own, second);
      expect([full(), full()]).toEqual([largest, largest]);
      index.transfer(largest, own);
      expect([full(), full(middle), full()]).toEqual([middle, small, middle]);
      index.transfer(middle, own);
      expect(full()).toBe(small);
      // Memory that comes to a lane, and a lane that is shared again.
      index.addSegment(base * 100, 4000 * unitBytes, late);
      expect(full()).toBe(late);
      index.share(late, false);
      expect(full()).toBe(small);
      index.share(late, true);
      expect([full(), index.fullLane(late, -1), full()]).toEqual([late, own, late]);
      index.transfer(late, other);
      expect(full()).toBe(other);
      index.transfer(other, own);
      index.transfer(small, own);
      expect([full(), full()]).toEqual([-1, -1]);
      // What the asking lane had is another's.
      index.transfer(own, small);
      expect([full(), index.fullLane(small, -1)]).toEqual([small, -1]);
      index.removeAllSegments();
      index.addSegment(base, unitBytes, late);
      expect(full()).toBe(late);
      index.validate();
    });

    test('is found in few steps again and again, although the asking lane has many sizes', () => {
      using counter = new StepCounter();
      const { index, lanes } = share(102, (i) => (i < 2 ? 0 : 1));
      const own = lanes[0] as number;
      const blocks = Array.from({ length: 100 }, (_, i) => (i + 2) * 100);
      for (const [i, units] of blocks.entries()) index.addSegment(base * (200 + i), units * unitBytes, own);
      index.fullLane(own, -1);
      let steps = 0;
      for (let i = 0; i < 100; i++) {
        // As blocks of the asking lane are joined, they get larger.
        index.addSegment(base * (400 + i), 10_100 * (i + 1) * unitBytes, own);
        steps += counter.during(() => index.fullLane(own, -1));
      }
      expect(steps).toBeLessThan(100 * 40);
    });

    test('is found although blocks of its class are too small elsewhere', () => {
      const { index, lanes } = share(3, (i) => [4100, 4200, 4110][i] as number);
      expect(index.laneWith(4150, -1, -1)).toBe(lanes[1]);
    });

    test('is found although the first blocks of its class are too small', () => {
      const { index, lanes } = share(1, () => 0);
      const [lane] = lanes as [number];
      // 4096 to 4223 units are one class, and what came last is first in its list.
      const add = (i: number, units: number) => index.addSegment(base * (i + 1), units * unitBytes, lane);
      add(0, 4200);
      for (let i = 1; i <= 7; i++) add(i, 4100);
      expect(index.laneWith(4150, -1, -1)).toBe(lane);
      expect(index.laneWith(4200, -1, -1)).toBe(lane);
      expect(index.laneWith(4201, -1, -1)).toBe(-1);
      add(8, 4100);
      expect(index.laneWith(4150, -1, -1)).toBe(-1);
    });

    test('is found at a cost that does not grow with the number of lanes', () => {
      const stepsAmong = (count: number) => {
        const { index, lanes } = share(count, (i) => (i === 0 ? 300 : 64));
        using counter = new StepCounter();
        const [first] = lanes as [number];
        return counter.during(() => {
          for (let i = 0; i < 100; i++) {
            expect(index.laneWith(200, -1, -1)).toBe(first);
            free(index, index.allocate(200, 0, first), first);
          }
        });
      };
      expect(stepsAmong(1000)).toBe(stepsAmong(10));
    });
  });

  test('removes every segment at the end, including used ones', () => {
    const { index, lane } = indexOf(10);
    index.addSegment(2 * base, 20 * unitBytes, lane);
    index.allocate(5, 0, lane);
    expect(index.removeAllSegments()).toEqual([
      { address: base, bytes: 10 * unitBytes },
      { address: 2 * base, bytes: 20 * unitBytes },
    ]);
    index.validate();
    expect(index.allocate(1, 0, lane)).toBe(-1);
  });

  test('can be used again after every segment was removed', () => {
    const { index, lane } = indexOf(10);
    for (const units of [20, 30]) index.addSegment(base * units, units * unitBytes, lane);
    expect(index.removeFreeSegment(lane, 10 * unitBytes)).toBeDefined();
    index.removeAllSegments();
    index.validate();
    index.addSegment(base, 10 * unitBytes, lane);
    index.validate();
    expect(index.removeFreeSegment(lane)).toEqual({ address: base, bytes: 10 * unitBytes });
  });

  test('does not grow with segments that come and go', () => {
    const stepsAfter = (count: number) => {
      using counter = new StepCounter();
      const { index, lane } = indexOf(10);
      for (let i = 1; i <= count; i++) {
        index.addSegment(2 * base, 20 * unitBytes, lane);
        expect(index.removeFreeSegment(lane, 20 * unitBytes)).toBeDefined();
      }
      return counter.during(() => {
        for (const _block of index.blocks());
      });
    };
    expect(stepsAfter(1000)).toBe(stepsAfter(10));
  });
});
