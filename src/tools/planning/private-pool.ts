/**
 * How much memory PyTorch's allocator reserves for the allocations of graphs that are captured: a model
 * of one private pool, with the sizes of `CUDACachingAllocator.cpp` and its default settings.
 *
 *     request ──► rounded up to 512 B ──► smallest free block of its stream and kind that is large enough
 *                                              │ none: a segment of 2 MiB, 20 MiB, or its size in steps of 2 MiB
 *                                              ▼
 *     segment   [ used | free | used |     free      ]     free neighbours are one block
 *
 * Small requests, up to 1 MiB, have segments of their own. A block is cut if the rest is usable.
 * Segments are never returned, because graphs hold their addresses.
 */
import { alignUp, MiB } from '../../basics/units.js';
import type { OrderedSequence } from '../../plans/sequence.js';

/** Sizes are rounded up to this; of small blocks, no less may be left. */
const leastBytes = 512;
const mostSmallBytes = MiB;
const smallSegmentBytes = 2 * MiB;
const largeSegmentBytes = 20 * MiB;
/** From here on, a segment is as large as its first request, in steps of 2 MiB. */
const leastOwnSegmentBytes = 10 * MiB;
const segmentStepBytes = 2 * MiB;

interface Block {
  readonly address: number;
  bytes: number;
  /** The free blocks that it belongs to when it is free. */
  readonly free: FreeBlocks;
  isFree: boolean;
  before: Block | undefined;
  after: Block | undefined;
}

/** Free blocks of one stream and one kind, the smallest first; those of a size in order of address. */
class FreeBlocks {
  readonly isSmall: boolean;
  readonly #blocks: Block[] = [];

  constructor(isSmall: boolean) {
    this.isSmall = isSmall;
  }

  /** Removes the smallest block with at least so many bytes. */
  take(bytes: number): Block | undefined {
    return this.#blocks.splice(this.#place(bytes, 0), 1)[0];
  }

  add(block: Block): void {
    this.#blocks.splice(this.#place(block.bytes, block.address), 0, block);
  }

  remove(block: Block): void {
    this.#blocks.splice(this.#place(block.bytes, block.address), 1);
  }

  /** How many blocks come before one with these bytes at this address. */
  #place(bytes: number, address: number): number {
    let low = 0;
    let high = this.#blocks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const block = this.#blocks[middle] as Block;
      if (block.bytes < bytes || (block.bytes === bytes && block.address < address)) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

class PrivatePool {
  reservedBytes = 0;
  readonly #free = new Map<number, { readonly small: FreeBlocks; readonly large: FreeBlocks }>();

  allocate(requestedBytes: number, stream: number): Block {
    const bytes = alignUp(requestedBytes, leastBytes);
    let ofStream = this.#free.get(stream);
    if (ofStream === undefined) {
      ofStream = { small: new FreeBlocks(true), large: new FreeBlocks(false) };
      this.#free.set(stream, ofStream);
    }
    const free = bytes <= mostSmallBytes ? ofStream.small : ofStream.large;
    const block = free.take(bytes) ?? this.#grow(bytes, free);
    block.isFree = false;
    const rest = block.bytes - bytes;
    if (free.isSmall ? rest >= leastBytes : rest > mostSmallBytes) {
      block.bytes = bytes;
      const left: Block = { address: block.address + bytes, bytes: rest, free, isFree: true, before: block, after: block.after };
      if (block.after !== undefined) block.after.before = left;
      block.after = left;
      free.add(left);
    }
    return block;
  }

  deallocate(block: Block): void {
    const { before, after, free } = block;
    block.isFree = true;
    if (after?.isFree) {
      free.remove(after);
      merge(block, after);
    }
    if (before?.isFree) {
      free.remove(before);
      merge(before, block);
    }
    free.add(before?.isFree ? before : block);
  }

  #grow(bytes: number, free: FreeBlocks): Block {
    const large = bytes < leastOwnSegmentBytes ? largeSegmentBytes : alignUp(bytes, segmentStepBytes);
    const segmentBytes = free.isSmall ? smallSegmentBytes : large;
    const address = this.reservedBytes;
    this.reservedBytes += segmentBytes;
    return { address, bytes: segmentBytes, free, isFree: false, before: undefined, after: undefined };
  }
}

function merge(block: Block, after: Block): void {
  block.bytes += after.bytes;
  block.after = after.after;
  if (after.after !== undefined) after.after.before = block;
}

/**
 * The bytes that a private pool has reserved after these graphs were captured from it, in order. What a
 * graph does not free is free when the next one is captured, as if the program held it weakly.
 */
export function privatePoolBytes(graphs: readonly OrderedSequence[]): number {
  const pool = new PrivatePool();
  for (const { operations, sizes, streams } of graphs) {
    const live = new Map<number, Block>();
    for (let i = 0; i < operations.length; i++) {
      const operation = operations[i] as number;
      if (operation >= 0) {
        live.set(operation, pool.allocate(sizes[operation] as number, streams[operation] as number));
        continue;
      }
      pool.deallocate(live.get(~operation) as Block);
      live.delete(~operation);
    }
    for (const block of live.values()) pool.deallocate(block);
  }
  return pool.reservedBytes;
}
