import fc from 'fast-check';
import { expect, test } from 'vitest';
import { UpstreamBlocks } from '../../src/adaptors/pooling/upstream-blocks.js';
import { type DevicePointer, GiB, MiB, OutOfMemoryError, Stream, VirtualMemoryResource } from '../../src/index.js';
import { LiveAllocations, rememberedSoFar } from '../../src/ownership/bulk-frees.js';
import { code } from '../support/errors.js';
import { SpyResource } from '../support/spy-resource.js';

const stream = new Stream({ nonBlocking: true });
const page = 2 * MiB;

/** Three adjacent blocks of two pages each, and what an observer was told since, in pages. */
function threeBlocks() {
  const upstream = new VirtualMemoryResource({ reservationBytes: GiB });
  const blocks = new UpstreamBlocks(upstream);
  const [start] = [1, 2, 3].map(() => blocks.allocate(2 * page, stream)) as [number, number, number];
  const seen: string[] = [];
  const held = new Map<number, number>();
  const note = (what: string, pointer: number, bytes: number) => seen.push(`${what} ${(pointer - start) / page}+${bytes / page}`);
  blocks.observe(
    {
      isDone: false,
      grew: (pointer, bytes) => {
        note('grew', pointer, bytes);
        held.set((pointer - start) / page, bytes / page);
      },
      releases: (pointer, bytes) => {
        note('releases', pointer, bytes);
        expect(held.get((pointer - start) / page)).toBe(bytes / page);
        held.delete((pointer - start) / page);
      },
      ended: () => seen.push('ended'),
    },
    stream,
  );
  seen.length = 0;
  const ranges = () => [...held].sort(([a], [b]) => a - b);
  return { upstream, blocks, start, seen, ranges, at: (pages: number) => start + pages * page };
}

test('a whole block goes back as it came', () => {
  const { upstream, blocks, seen, at } = threeBlocks();
  blocks.deallocate({ address: at(2), bytes: 2 * page }, stream);
  expect(seen).toEqual(['releases 2+2']);
  expect([blocks.reservedBytes, upstream.reservedBytes]).toEqual([4 * page, 4 * page]);
  expect([at(0), at(2), at(4)].map((pointer) => blocks.hasBlockAt(pointer))).toEqual([true, false, true]);
});

test('a range within a block leaves a block on either side', () => {
  const { upstream, blocks, ranges, at } = threeBlocks();
  blocks.deallocate({ address: at(0), bytes: page }, stream);
  blocks.deallocate({ address: at(5), bytes: page }, stream);
  expect(ranges()).toEqual([
    [1, 1],
    [2, 2],
    [4, 1],
  ]);
  expect([0, 1, 2, 4, 5].map((pages) => blocks.hasBlockAt(at(pages)))).toEqual([false, true, true, true, false]);
  expect([blocks.reservedBytes, upstream.reservedBytes]).toEqual([4 * page, 4 * page]);
});

test('a range over several blocks takes parts of the outer ones and all of those between', () => {
  const { upstream, blocks, seen, ranges, at } = threeBlocks();
  blocks.deallocate({ address: at(1), bytes: 4 * page }, stream);
  expect(ranges()).toEqual([
    [0, 1],
    [5, 1],
  ]);
  expect(seen.at(-1)).toBe('releases 1+4');
  expect([0, 1, 2, 4, 5].map((pages) => blocks.hasBlockAt(at(pages)))).toEqual([true, false, false, false, true]);
  expect([blocks.reservedBytes, upstream.reservedBytes]).toEqual([2 * page, 2 * page]);
});

test('what is left of a block counts as being as old as the block', () => {
  const { blocks, at } = threeBlocks();
  const later = Number.MAX_SAFE_INTEGER;
  expect(blocks.hadBefore(at(1), later)).toBe(true);
  blocks.deallocate({ address: at(1), bytes: 4 * page }, stream);
  expect([0, 1, 4, 5].map((pages) => blocks.hadBefore(at(pages), later))).toEqual([true, false, false, true]);
  expect([0, 5].map((pages) => blocks.hadBefore(at(pages), 0))).toEqual([false, false]);
});

test('a range that the upstream refuses stays one block, and everything is still held', () => {
  const { upstream, blocks, ranges, at } = threeBlocks();
  expect(() => blocks.deallocate({ address: at(1), bytes: page / 2 }, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
  expect([blocks.reservedBytes, upstream.reservedBytes]).toEqual([6 * page, 6 * page]);
  expect(ranges().reduce((sum, [, pages]) => sum + pages, 0)).toBe(6);
  expect(blocks.hasBlockAt(at(1))).toBe(true);
});

/** Pages without memory, of which it hands out the first that are free; it looks at the blocks during each call. */
class Pages extends SpyResource {
  readonly isTaken = new Array<boolean>(48).fill(false);
  /** Whether the next call is refused. */
  isRefusing = false;
  during: (() => void) | undefined;

  override allocate(bytes: number): DevicePointer {
    this.during?.();
    const count = bytes / page;
    const start = this.isTaken.findIndex((_, i) => i + count <= this.isTaken.length && !this.isTaken.slice(i, i + count).includes(true));
    if (this.isRefusing || start < 0) throw new OutOfMemoryError('no more', { requestedBytes: bytes, path: ['Pages'] });
    this.isTaken.fill(true, start, start + count);
    return GiB + start * page;
  }

  override deallocate(pointer: DevicePointer, bytes: number): void {
    this.during?.();
    if (this.isRefusing) throw new Error('refused');
    const start = (pointer - GiB) / page;
    expect(this.isTaken.slice(start, start + bytes / page)).not.toContain(false);
    this.isTaken.fill(false, start, start + bytes / page);
  }
}

test('the blocks of an upstream agree with a model of single pages, whatever comes, goes or is refused', () => {
  const step = fc.record({
    kind: fc.constantFrom(
      'allocate',
      'allocate',
      'allocate',
      'deallocate',
      'deallocate',
      'refuse',
      'double',
      'reset',
      'late',
      'keep',
      'observe',
    ),
    pages: fc.integer({ min: 1, max: 12 }),
    pick: fc.nat(),
    isRefused: fc.integer({ min: 0, max: 4 }).map((one) => one === 0),
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 50, size: 'max' }), (steps) => {
      const upstream = new Pages();
      const blocks = new UpstreamBlocks(upstream);
      const live = new LiveAllocations<string>();
      /** By the first page of a block. */
      let model = new Map<number, { pages: number; remembered: number }>();
      let [peak, growths, refused, ended] = [0, 0, Number.POSITIVE_INFINITY, 0];
      const late: number[] = [];
      const observers: { held: Map<number, number>; isDone: boolean }[] = [];
      const observe = () => {
        const held = new Map<number, number>();
        const observer = {
          held,
          isDone: false,
          grew: (pointer: number, bytes: number) => {
            expect(held.has((pointer - GiB) / page)).toBe(false);
            held.set((pointer - GiB) / page, bytes / page);
          },
          releases: (pointer: number, bytes: number) => {
            expect(held.get((pointer - GiB) / page)).toBe(bytes / page);
            held.delete((pointer - GiB) / page);
          },
          ended: () => ended++,
        };
        blocks.observe(observer, stream);
        observers.push(observer);
      };
      observe();
      const reserved = () => [...model.values()].reduce((sum, block) => sum + block.pages, 0);
      for (const { kind, pages, pick, isRefused } of steps) {
        const before = reserved();
        upstream.isRefusing = isRefused;
        // Allocations that are remembered later than some blocks, and earlier than others.
        live.add(2 ** 46 + page * live.count, page, '');
        if (kind === 'allocate') {
          upstream.during = () => expect([blocks.reservedBytes, blocks.claimedBytes]).toEqual([before * page, (before + pages) * page]);
          let start = 0;
          try {
            start = (blocks.allocate(pages * page, stream) - GiB) / page;
          } catch (error) {
            expect(error).toBeInstanceOf(OutOfMemoryError);
            expect(blocks.claimedBytes).toBe(before * page);
            continue;
          }
          model.set(start, { pages, remembered: rememberedSoFar() });
          growths++;
          peak = Math.max(peak, before + pages);
          if (pages >= refused) refused = Number.POSITIVE_INFINITY;
        } else if (kind === 'deallocate') {
          // Pages that are held, of one block or of several that touch.
          const owners = new Array<number>(upstream.isTaken.length).fill(-1);
          for (const [start, block] of model) owners.fill(start, start, start + block.pages);
          const taken = owners.flatMap((owner, i) => (owner < 0 ? [] : [i]));
          if (taken.length === 0) continue;
          const first = taken[pick % taken.length] as number;
          const until = owners.findIndex((owner, i) => i > first && (owner < 0 || i >= first + pages));
          const end = until < 0 ? owners.length : until;
          const range = { address: GiB + first * page, bytes: (end - first) * page };
          upstream.during = () => expect(blocks.reservedBytes).toBe((before - (end - first)) * page);
          const cut = new Map<number, { pages: number; remembered: number }>();
          let remembered = 0;
          for (const [start, block] of model) {
            const blockEnd = start + block.pages;
            if (start < Math.min(first, blockEnd)) cut.set(start, { ...block, pages: Math.min(first, blockEnd) - start });
            if (blockEnd > Math.max(end, start)) cut.set(Math.max(end, start), { ...block, pages: blockEnd - Math.max(end, start) });
            if (start < end && blockEnd > first) remembered = Math.max(remembered, block.remembered);
          }
          if (isRefused) {
            expect(() => blocks.deallocate(range, stream)).toThrow('refused');
            cut.set(first, { pages: end - first, remembered });
          } else {
            blocks.deallocate(range, stream);
            refused += end - first;
          }
          model = cut;
        } else if (kind === 'refuse') {
          blocks.refuse(pages * page, new OutOfMemoryError('no more', { requestedBytes: page, path: [] }));
          refused = Math.min(refused, pages);
        } else if (kind === 'double') {
          blocks.doubleRefused();
          refused *= 2;
        } else if (kind === 'reset') {
          blocks.resetPeakReservedBytes();
          peak = before;
        } else if (kind === 'late') {
          blocks.addLate({ address: GiB + pick * page, bytes: page });
          late.push(pick);
        } else if (kind === 'keep') {
          expect(blocks.takeLate().map(({ address }) => (address - GiB) / page)).toEqual(late.splice(0));
        } else if (kind === 'observe') {
          // One that is done is told nothing more once another one comes.
          (observers[pick % observers.length] as { isDone: boolean }).isDone = true;
          observe();
        }
        upstream.during = undefined;
        expect([blocks.reservedBytes, blocks.claimedBytes]).toEqual([reserved() * page, reserved() * page]);
        expect([blocks.peakReservedBytes, blocks.growths]).toEqual([peak * page, growths]);
        expect(blocks.outsideLanes.map(({ address }) => (address - GiB) / page)).toEqual(late);
        for (let count = 1; count <= 24; count++) expect(blocks.isRefused(count * page)).toBe(count >= refused);
        const sorted = [...model].sort(([a], [b]) => a - b);
        for (const { held, isDone } of observers) {
          if (!isDone) expect([...held].sort(([a], [b]) => a - b)).toEqual(sorted.map(([start, block]) => [start, block.pages]));
        }
        for (let i = 0; i < upstream.isTaken.length; i++) {
          const [, around] = sorted.findLast(([start, block]) => start <= i && i < start + block.pages) ?? [];
          expect(blocks.hasBlockAt(GiB + i * page)).toBe(model.has(i));
          const { remembered = Number.MAX_SAFE_INTEGER - 1 } = around ?? {};
          const seen = [0, remembered, remembered + 1].map((number) => blocks.hadBefore(GiB + i * page, number));
          expect(seen).toEqual([false, false, around !== undefined]);
        }
      }
      // At the end everything goes back, what was refused at the second try.
      upstream.during = undefined;
      upstream.isRefusing = true;
      blocks.leave([...model].map(([start, block]) => ({ address: GiB + start * page, bytes: block.pages * page })));
      if (model.size > 0) expect(() => blocks.giveBackLeft(stream)).toThrow('refused');
      expect(ended).toBe(0);
      expect(blocks.reservedBytes).toBe(reserved() * page);
      upstream.isRefusing = false;
      // One that is asked meanwhile has not ended while a block is on its way.
      upstream.during = () => {
        upstream.during = undefined;
        blocks.giveBackLeft(stream);
        expect(ended).toBe(0);
      };
      blocks.giveBackLeft(stream);
      blocks.giveBackLeft(stream);
      expect([blocks.reservedBytes, ended, upstream.isTaken.includes(true)]).toEqual([
        0,
        observers.filter(({ isDone }) => !isDone).length,
        false,
      ]);
    }),
    { numRuns: 60 },
  );
});
