/**
 * Finds the block that contains an address, among blocks that do not overlap.
 *
 * Purpose. A free in a bump allocator names an address anywhere in a block. This file knows
 * integers only.
 *
 * Data structure. One map for each binary order of size. A block of at least 2^order bytes, but
 * less than twice that, is in the map of its order, under the cell of 2^order bytes that it starts
 * in. No other block of the order can start in that cell, and the block reaches at most two cells
 * further.
 *
 *     order 10   cells    |   0   |   1   |   2   |   3   |
 *                block        [ ========= ]                  1.5 KiB, at cell 0; its addresses are in cells 0 to 2
 *
 * Cost: adding and removing take constant time, finding takes constant time per order, of which
 * there are at most 45.
 */

/** The addresses of a block. */
export interface AddressRange {
  readonly start: number;
  readonly bytes: number;
}

export class BumpBlocks<Block extends AddressRange> {
  /** By order, then by cell. */
  readonly #cells: (Map<number, Block> | undefined)[] = [];

  add(block: Block): void {
    const order = orderOf(block.bytes);
    const cells = this.#cells[order] ?? new Map<number, Block>();
    this.#cells[order] = cells;
    cells.set(cellOf(block.start, order), block);
  }

  /** Removes a block that was added. */
  remove({ start, bytes }: AddressRange): void {
    const order = orderOf(bytes);
    this.#cells[order]?.delete(cellOf(start, order));
  }

  clear(): void {
    this.#cells.length = 0;
  }

  /** The block that contains an address, or undefined. */
  find(address: number): Block | undefined {
    for (let order = 0; order < this.#cells.length; order++) {
      const cells = this.#cells[order];
      if (cells === undefined || cells.size === 0) continue;
      const last = cellOf(address, order);
      for (let cell = last; cell > last - 3; cell--) {
        const block = cells.get(cell);
        if (block !== undefined && address >= block.start && address < block.start + block.bytes) return block;
      }
    }
    return undefined;
  }

  /** The number of blocks. */
  get count(): number {
    return this.#cells.reduce((sum, cells) => sum + (cells?.size ?? 0), 0);
  }
}

function orderOf(bytes: number): number {
  return Math.floor(Math.log2(bytes));
}

function cellOf(address: number, order: number): number {
  return Math.floor(address / 2 ** order);
}
