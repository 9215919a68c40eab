/**
 * Allocates the bytes of whole blocks one after another, and frees them only in the reverse order.
 *
 * Purpose. Bump allocation for one stream: an allocation advances the cursor, a single free does
 * nothing, and a rewind moves the cursor back over everything handed out since. This file knows
 * integers only.
 *
 * Data structure. A chain of blocks in the order in which they were added. The cursor is in the
 * last one. The unused ends of the others are lost until a rewind goes back before them.
 *
 *     block 0   [ handed out ................ | lost ]
 *     block 1   [ handed out . | lost ............... ]
 *     block 2   [ handed out ....... | rest ......... ]
 *               start                top            end
 *
 * Invariants: start ≤ top ≤ end in each block; blocks do not overlap; Σ handed out = Σ (top -
 * start).
 *
 * Cost: allocating takes constant time; `rewind` is linear in the blocks that it returns.
 */
import { ALLOCATION_ALIGNMENT, alignUp } from '../basics/units.js';
import { none } from './blocks.js';

const noBlocks: readonly number[] = [];

export class BumpCursor {
  // The last block has its own fields. They are all 0 if there is no block, so that nothing fits.
  #start = 0;
  #top = 0;
  #end = 0;
  readonly #starts: number[] = [];
  readonly #ends: number[] = [];
  /** The tops of all blocks except the last. */
  readonly #tops: number[] = [];

  /** The number of blocks in the chain. */
  get blockCount(): number {
    return this.#starts.length;
  }

  /** The earliest start of the next allocation; 0 in an empty chain. */
  get top(): number {
    return this.#top;
  }

  /** Whether anything is handed out. */
  get isUsed(): boolean {
    return this.#top !== this.#start || this.#starts.length > 1;
  }

  /** The bytes that are handed out, including alignment gaps. Linear in the number of blocks. */
  get usedBytes(): number {
    return this.#starts.reduce((sum, start, block) => sum + this.topOf(block) - start, 0);
  }

  /** The size of the last block; 0 in an empty chain. */
  get lastBlockBytes(): number {
    return this.#end - this.#start;
  }

  /**
   * Hands out `bytes` bytes, a multiple of 256 above 0, from the last block. Returns their address,
   * or -1.
   */
  allocate(bytes: number): number {
    const address = this.#top;
    const top = address + bytes;
    if (top > this.#end) return none;
    this.#top = top;
    return address;
  }

  /** As `allocate`, at a multiple of `alignment`, a power of two of at least 256. */
  allocateAligned(bytes: number, alignment: number): number {
    const address = alignUp(this.#top, alignment);
    const top = address + bytes;
    if (top > this.#end) return none;
    this.#top = top;
    return address;
  }

  /**
   * Whether a range was allocated from the last block, as one allocation or several, as far as the
   * cursor can tell.
   */
  isLive(address: number, bytes: number): boolean {
    return address >= this.#start && address + bytes <= this.#top && (address & (ALLOCATION_ALIGNMENT - 1)) === 0;
  }

  /** Adds a block, and moves the cursor to its start. */
  addBlock(start: number, bytes: number): void {
    if (this.#starts.length > 0) this.#tops.push(this.#top);
    this.#starts.push(start);
    this.#ends.push(start + bytes);
    this.#start = start;
    this.#top = start;
    this.#end = start + bytes;
  }

  /**
   * Moves the cursor back to its position when the chain had `blockCount` blocks and its top was
   * `top` (0 for no blocks). Returns the starts of the blocks that it removes.
   */
  rewind(blockCount: number, top: number): readonly number[] {
    if (blockCount === this.#starts.length) {
      this.#top = top;
      return noBlocks;
    }
    const givenUp = this.#starts.splice(blockCount);
    this.#ends.length = blockCount;
    this.#tops.length = Math.max(0, blockCount - 1);
    this.#start = this.#starts[blockCount - 1] ?? 0;
    this.#end = this.#ends[blockCount - 1] ?? 0;
    this.#top = top;
    return givenUp;
  }

  /** The end of the allocated part of a block. Blocks are numbered from 0. */
  topOf(block: number): number {
    return block === this.#starts.length - 1 ? this.#top : (this.#tops[block] as number);
  }

  /** The starts of all blocks. */
  get starts(): readonly number[] {
    return this.#starts;
  }

  /** Throws if an invariant does not hold. For tests. Quadratic in the number of blocks. */
  validate(): void {
    const last = this.#starts.length - 1;
    if (this.#ends.length !== last + 1) fail(`${last + 1} starts, but ${this.#ends.length} ends`);
    if (this.#tops.length !== Math.max(0, last)) fail(`${last + 1} blocks, but ${this.#tops.length} tops before the last`);
    if (this.#start !== (this.#starts[last] ?? 0) || this.#end !== (this.#ends[last] ?? 0)) fail('the last block is another one');
    if (last === -1 && this.#top !== 0) fail(`the top of no block is ${this.#top}`);
    for (const [block, start] of this.#starts.entries()) {
      const top = this.topOf(block);
      if (start > top || top > (this.#ends[block] as number)) fail(`the top of block ${block} is outside it`);
      if ((top - start) % ALLOCATION_ALIGNMENT !== 0) fail(`the top of block ${block} is no multiple of ${ALLOCATION_ALIGNMENT}`);
      if (this.#starts.some((other, i) => i !== block && start < (this.#ends[i] as number) && other < (this.#ends[block] as number))) {
        fail(`block ${block} overlaps another`);
      }
    }
  }
}

function fail(message: string): never {
  throw new Error(`bump cursor: ${message}`);
}
