import { expect, test } from 'vitest';
import { UpstreamBlocks } from '../../src/adaptors/upstream-blocks.js';
import { GiB, MiB, Stream, VirtualMemoryResource } from '../../src/index.js';
import { code } from '../support/errors.js';

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
