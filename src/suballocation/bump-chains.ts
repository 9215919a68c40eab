/**
 * Whole blocks in lanes; a cursor allocates from those in chains. The index of a bump allocator for
 * several streams.
 *
 * Data structure. Free blocks are in the lists of their lane, as in `BlockLists`; a used block is
 * in exactly one chain. Every lane with allocations has a chain. A chain also notes the other lanes
 * on which some of its memory was freed, because that memory must not be reused before a wait for
 * those lanes.
 *
 *     lane 1   free [ 2 MiB ]   chain [ 2 MiB ][ 4 MiB | cursor ]   awaits lane 2
 *     lane 2   free [ ]         chain [ 2 MiB | cursor ]
 *
 * When the stream of a lane ends, its chain moves to the lane of ended streams and serves no more
 * allocations. It is removed with its last block.
 *
 * Invariants: the used blocks are exactly those of the chains; a chain without a block is the
 * current one of its lane, and awaits nothing.
 */
import { BlockLists } from './block-lists.js';
import { leastBlockBytes, type Segment } from './blocks.js';
import { BumpCursor } from './bump-cursor.js';
import { SegmentMap } from './segment-map.js';

/** The used blocks of one lane. */
export class BumpChain {
  readonly cursor = new BumpCursor();
  /** The lane that the blocks return to. */
  lane: number;
  /** Other lanes to wait for before the memory is reused. */
  readonly awaited = new Set<number>();

  constructor(lane: number) {
    this.lane = lane;
  }
}

/** A used block. */
export interface BumpBlock extends Segment {
  readonly chain: BumpChain;
  /** The block's index in the chain, from 0. */
  readonly number: number;
}

/** A position of a chain's cursor. */
export interface BumpPosition {
  readonly chain: BumpChain;
  readonly blockCount: number;
  readonly top: number;
}

export class BumpChains extends BlockLists {
  /** By lane: the chain that allocations of the lane come from. */
  readonly #current: (BumpChain | undefined)[] = [];
  readonly #chains = new Set<BumpChain>();
  readonly #blocks = new SegmentMap<BumpBlock>();

  /** The chain that allocations of a lane come from. */
  chainOf(lane: number): BumpChain {
    const known = this.#current[lane];
    if (known !== undefined) return known;
    const chain = new BumpChain(lane);
    this.#current[lane] = chain;
    this.#chains.add(chain);
    return chain;
  }

  /** The used block that an address lies in, or undefined. */
  blockAt(address: number): BumpBlock | undefined {
    return this.#blocks.find(address);
  }

  /** Takes a block that has room for `bytes` bytes at any start address. */
  override cut(bytes: number, alignment: number, lane: number): number {
    return this.allocateAtLeast(leastBlockBytes(bytes, alignment), lane);
  }

  /** Adds a used block to a chain. */
  extend(chain: BumpChain, address: number): void {
    const bytes = this.blockBytes(this.usedBlock(address));
    this.#blocks.add({ address, bytes, chain, number: chain.cursor.blockCount });
    chain.cursor.addBlock(address, bytes);
  }

  /** The bytes allocated from all chains. */
  get usedBytes(): number {
    return [...this.#chains].reduce((sum, { cursor }) => sum + cursor.usedBytes, 0);
  }

  /** The cursor positions of the chains with allocations. */
  positions(): BumpPosition[] {
    return [...this.#chains]
      .filter(({ cursor }) => cursor.isUsed)
      .map((chain) => ({ chain, blockCount: chain.cursor.blockCount, top: chain.cursor.top }));
  }

  /** Whether the cursors are at these positions, so that `positions` would return the same. */
  isAt(positions: readonly BumpPosition[]): boolean {
    let count = 0;
    for (const chain of this.#chains) {
      const { cursor } = chain;
      if (!cursor.isUsed) continue;
      const known = positions[count++];
      if (known?.chain !== chain || known.blockCount !== cursor.blockCount || known.top !== cursor.top) return false;
    }
    return count === positions.length;
  }

  /**
   * The cursor positions that free everything allocated since `positions`; unchanged chains are
   * left out. A chain that becomes empty may keep its first block if it is the current one of its
   * lane.
   */
  stepsBackTo(positions: readonly BumpPosition[], keepsFirstBlock: boolean): BumpPosition[] {
    const steps: BumpPosition[] = [];
    const known = new Map(positions.map((position) => [position.chain, position]));
    for (const chain of this.#chains) {
      const { blockCount, top } = chain.cursor;
      const step = known.get(chain) ?? this.#emptied(chain, keepsFirstBlock);
      if (step.blockCount < blockCount || step.top < top) steps.push(step);
    }
    return steps;
  }

  /** The cursor positions that free blocks without allocations. */
  stepsOutOfUnusedBlocks(): BumpPosition[] {
    return this.stepsBackTo([], false).filter(({ chain }) => !chain.cursor.isUsed);
  }

  /**
   * Takes a step back: frees the blocks beyond it into the chain's lane. The caller has already
   * waited for everything that the chain awaits.
   */
  stepBack({ chain, blockCount, top }: BumpPosition): void {
    for (const start of chain.cursor.rewind(blockCount, top)) {
      const block = this.usedBlock(start);
      this.#blocks.remove({ address: start, bytes: this.blockBytes(block) });
      this.free(block, chain.lane);
    }
    if (chain.awaited.size > 0) chain.awaited.clear();
    this.#forgetIfEnded(chain);
  }

  isAwaited(lane: number): boolean {
    return [...this.#chains].some(({ cursor, lane: own, awaited }) => cursor.blockCount > 0 && (own === lane || awaited.has(lane)));
  }

  redirect(from: number, to: number): void {
    this.#current[from] = undefined;
    for (const chain of this.#chains) {
      if (chain.lane === from) chain.lane = to;
      if (chain.awaited.delete(from)) chain.awaited.add(to);
      this.#forgetIfEnded(chain);
    }
  }

  override removeAllSegments() {
    this.#chains.clear();
    this.#blocks.clear();
    this.#current.length = 0;
    return super.removeAllSegments();
  }

  override validate(): void {
    super.validate();
    const starts = [...this.#chains].flatMap(({ cursor }) => cursor.starts);
    if (new Set(starts).size !== starts.length) fail('a block is in two chains');
    if (starts.length !== this.usedBlocks) fail(`${this.usedBlocks} used blocks, but ${starts.length} in chains`);
    for (const start of starts) if (this.usedBlock(start) === -1) fail(`the block at ${start} is in a chain, but not used`);
    if (this.#blocks.count !== starts.length) fail(`${starts.length} blocks in chains, but ${this.#blocks.count} can be found`);
    for (const chain of this.#chains) {
      chain.cursor.validate();
      for (const [number, start] of chain.cursor.starts.entries()) {
        const found = this.blockAt(start);
        if (found?.chain !== chain || found.number !== number) fail(`the block at ${start} is not found by its address`);
      }
      if (chain.cursor.blockCount > 0) continue;
      if (this.#current[chain.lane] !== chain) fail(`a chain of lane ${chain.lane} has no block and is not its current one`);
      if (chain.awaited.size > 0) fail(`the chain of lane ${chain.lane} has no block, but awaits others`);
    }
  }

  #emptied(chain: BumpChain, keepsFirstBlock: boolean): BumpPosition {
    const first = chain.cursor.starts[0];
    const isKept = keepsFirstBlock && first !== undefined && this.#current[chain.lane] === chain;
    return isKept ? { chain, blockCount: 1, top: first } : { chain, blockCount: 0, top: 0 };
  }

  #forgetIfEnded(chain: BumpChain): void {
    if (chain.cursor.blockCount > 0 || this.#current[chain.lane] === chain) return;
    this.#chains.delete(chain);
  }
}

function fail(message: string): never {
  throw new Error(`bump chains: ${message}`);
}
