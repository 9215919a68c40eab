/**
 * Finds the segment that contains an address, or that shares bytes with a range, among segments that
 * do not overlap.
 *
 * Purpose. A free in a bump allocator names an address anywhere in a segment, and memory from an
 * upstream must not overlap memory that it allocated before. This file knows integers only.
 *
 * Data structure. One map for each binary order of size. A segment of at least 2^order bytes, but
 * less than twice that, is in the map of its order, under the cell of 2^order bytes that it starts
 * in. No other segment of the order can start in that cell, and the segment reaches at most two cells
 * further.
 *
 *     order 10   cells    |   0   |   1   |   2   |   3   |
 *                segment      [ ========= ]                  1.5 KiB, at cell 0; its addresses are in cells 0 to 2
 *
 * Cost: adding and removing take constant time. Finding takes constant time per order, of which
 * there are at most 45. Looking for an overlap does too, except for orders much smaller than the
 * range: there it looks at the cells of the range or at all segments, whichever are fewer.
 */
import type { Segment } from './blocks.js';

export class SegmentMap<S extends Segment> {
  /** By order, then by cell. */
  readonly #cells: (Map<number, S> | undefined)[] = [];

  add(segment: S): void {
    const order = orderOf(segment.bytes);
    const cells = this.#cells[order] ?? new Map<number, S>();
    this.#cells[order] = cells;
    cells.set(cellOf(segment.address, order), segment);
  }

  /** Removes a segment that was added. */
  remove({ address, bytes }: Segment): void {
    const order = orderOf(bytes);
    this.#cells[order]?.delete(cellOf(address, order));
  }

  clear(): void {
    this.#cells.length = 0;
  }

  /** The segment that contains an address, or undefined. */
  find(address: number): S | undefined {
    return this.overlapping(address, 1);
  }

  /** A segment that shares at least one of the bytes from an address on, or undefined. */
  overlapping(address: number, bytes: number): S | undefined {
    const end = address + bytes;
    for (let order = 0; order < this.#cells.length; order++) {
      const cells = this.#cells[order];
      if (cells === undefined || cells.size === 0) continue;
      const first = cellOf(address, order) - 2;
      const last = cellOf(end - 1, order);
      if (last - first < cells.size) {
        for (let cell = first; cell <= last; cell++) {
          const segment = cells.get(cell);
          if (segment !== undefined && sharesBytes(segment, address, end)) return segment;
        }
      } else {
        for (const segment of cells.values()) if (sharesBytes(segment, address, end)) return segment;
      }
    }
    return undefined;
  }

  /** The number of segments. */
  get count(): number {
    return this.#cells.reduce((sum, cells) => sum + (cells?.size ?? 0), 0);
  }
}

function sharesBytes(segment: Segment, start: number, end: number): boolean {
  return segment.address < end && start < segment.address + segment.bytes;
}

function orderOf(bytes: number): number {
  return Math.floor(Math.log2(bytes));
}

function cellOf(address: number, order: number): number {
  return Math.floor(address / 2 ** order);
}
