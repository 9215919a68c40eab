/**
 * Finds the block that an address lies in, among blocks that do not overlap.
 *
 * Purpose. A free in a bump allocator comes with an address anywhere in a block. This file knows integers only.
 *
 * Data structure. A map for each binary order of size. Blocks of 2^order bytes and more, but less than twice that, are in the map of the order,
 * by the cell of 2^order bytes that they start in: no other block of the order can start there, and no block reaches beyond two more cells.
 *
 *     order 10   cells    |   0   |   1   |   2   |   3   |
 *                block        [ ========= ]                  1.5 KiB, at cell 0; its addresses are in cells 0 to 2
 *
 * Cost: adding and removing take constant time, finding does for each order, of which there are 45 at most.
 */

/** The addresses that a block has. */
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

  /** The block that an address lies in, or undefined. */
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

  /** How many blocks there are. */
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
