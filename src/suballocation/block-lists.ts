/**
 * Free lists of whole blocks of any size, in several lanes. Blocks are neither split nor coalesced:
 * a request gets a block of exactly its size or, if it asks for that, the smallest that is large
 * enough.
 *
 * Purpose. A cache passes the blocks of one pass to the next, which asks for the same sizes again;
 * a bump allocator takes its blocks here and returns them. Lanes are those of stream ordering, as
 * in the free-space index; this file knows integers only.
 *
 * Data structure. Each size that a block has gets a number (its class); when the last block of a
 * size goes, its number is free for the next new size. A free block is in one doubly linked list,
 * by lane and class. The block freed last is taken first, because it is the most likely to be in a
 * CPU or GPU cache.
 *
 *     classes   4 KiB -> 0    1 MiB -> 1    6 MiB -> 2
 *     lane 0    heads [ a -> b | . | c ]
 *     lane 1    heads [ . | d | . ]
 *
 * Invariants: Σ bytes(free) + Σ bytes(used) = Σ bytes(added) - Σ bytes(removed); a block is in
 * exactly the list of its lane and class, or used; freeCount(lane) = Σ lengths of its lists; the
 * address map holds every block, free or used; a size has a class exactly while some block has that
 * size.
 *
 * Cost: allocating an exact size, freeing, adding and `removeUsed` take constant time.
 * `allocateAtLeast` is linear in the number of sizes of all blocks, free or used; `transfer` is
 * linear in that and in what it moves. `removeFreeSegment` looks at the sizes in turn, and next
 * time continues where it stopped, so removing many blocks looks at each size about once.
 */
import { ALLOCATION_ALIGNMENT, alignUp } from '../basics/units.js';
import { AddressMap } from './address-map.js';
import { type AddressClass, type BlockView, classifyAddress, none, type Segment } from './blocks.js';

/** A block is identified by the offset of its record, which has this many fields. */
export const blockFields = 4;
const fields = blockFields;
const classField = 0;
/**
 * The lane of a free block; `~slack` of a used one, where slack is the number of its bytes that
 * were not requested, less than 2 GiB; or `spareMark`.
 */
const stateField = 1;
/** In a free block: the one before it in its list. In a used block: its owner. */
const previousField = 2;
const nextField = 3;

const spareMark = -0x80000000;

export class BlockLists {
  #blocks = new Int32Array(0);
  /** Indexed by block / fields. */
  #addresses = new Float64Array(0);
  #spare = none;
  /**
   * Every block, by its address. Blocks are never split, so allocating and freeing do not change
   * it.
   */
  readonly #byAddress = new AddressMap();
  #usedBlocks = 0;
  /** Class numbers by size; a size is looked up like an address. */
  readonly #classNumbers = new AddressMap();
  readonly #classBytes: number[] = [];
  /** By class: the number of blocks, free or used. */
  readonly #classBlocks: number[] = [];
  /** Every class ever used. The first ones, as many as there are sizes, have blocks. */
  readonly #classes: number[] = [];
  /** By class: its place in `#classes`. */
  readonly #classPlaces: number[] = [];
  /** The place in `#classes` where `removeFreeSegment` continues. */
  #nextPlace = 0;
  /** By lane: the first free block of each class. */
  readonly #heads: Int32Array[] = [];
  readonly #freeCounts: number[] = [];
  #classCapacity = 8;

  /** A block serves only its own size. */
  readonly isExact = true;

  /** Adds an empty lane. */
  addLane(): number {
    this.#freeCounts.push(0);
    return this.#heads.push(new Int32Array(this.#classCapacity).fill(none)) - 1;
  }

  /** Whether a lane has no free block. */
  isEmpty(lane: number): boolean {
    return this.#freeCounts[lane] === 0;
  }

  /** The number of used blocks. */
  get usedBlocks(): number {
    return this.#usedBlocks;
  }

  /** Adds a block that is free in a lane. `bytes` is a multiple of 256. */
  addSegment(address: number, bytes: number, lane: number): void {
    if (this.#spare === none) this.#growBlocks();
    const block = this.#spare;
    this.#spare = this.#blocks[block + nextField] as number;
    const number = this.#classOf(bytes);
    (this.#classBlocks[number] as number)++;
    this.#blocks[block + classField] = number;
    this.#addresses[block / fields] = address;
    this.#byAddress.insert(address, block);
    this.#insertFree(block, lane);
  }

  /**
   * Takes a free block of exactly `bytes` bytes, a multiple of 256, out of a lane. Returns its
   * address, or -1. `slack` is the number of its bytes that were not requested. `owner` is any
   * 32-bit number; `ownerOf` returns it.
   */
  allocate(bytes: number, slack: number, lane: number, owner = none): number {
    const block = this.take(bytes, slack, lane, owner);
    return block === none ? none : this.addressOf(block);
  }

  /** As `allocate`, but returns the block, or -1. */
  take(bytes: number, slack: number, lane: number, owner = none): number {
    const number = this.#classNumbers.get(bytes);
    if (number === none) return none;
    const block = (this.#heads[lane] as Int32Array)[number] as number;
    if (block !== none) this.#use(block, slack, lane, owner);
    return block;
  }

  /** Takes a block for `bytes` bytes, at least 1, as `allocate` does. Every block begins at a multiple of 256. */
  cut(bytes: number, _alignment: number, lane: number, owner: number): number {
    const rounded = alignUp(bytes, ALLOCATION_ALIGNMENT);
    return this.allocate(rounded, rounded - bytes, lane, owner);
  }

  /**
   * Takes the smallest free block of at least `bytes` bytes out of a lane. Returns its address, or
   * -1.
   */
  allocateAtLeast(bytes: number, lane: number): number {
    const heads = this.#heads[lane] as Int32Array;
    let best = none;
    let bestBytes = Number.POSITIVE_INFINITY;
    for (let place = 0; place < this.#classNumbers.count; place++) {
      const number = this.#classes[place] as number;
      const size = this.#classBytes[number] as number;
      if (size < bytes || size >= bestBytes || heads[number] === none) continue;
      best = heads[number] as number;
      bestBytes = size;
    }
    if (best === none) return none;
    this.#use(best, 0, lane, none);
    return this.addressOf(best);
  }

  /** The used block that starts at an address, or -1. */
  usedBlock(address: number): number {
    const block = this.#byAddress.get(address);
    return block !== none && (this.#blocks[block + stateField] as number) < 0 ? block : none;
  }

  /** Whether a block starts at an address, free or used. */
  hasBlock(address: number): boolean {
    return this.#byAddress.get(address) !== none;
  }

  /** Where a block starts. */
  addressOf(block: number): number {
    return this.#addresses[block / fields] as number;
  }

  /** The size of a block. */
  blockBytes(block: number): number {
    return this.#classBytes[this.#blocks[block + classField] as number] as number;
  }

  /** The requested bytes of a used block. */
  askedBytes(block: number): number {
    return this.blockBytes(block) - ~(this.#blocks[block + stateField] as number);
  }

  /** The owner that a used block was allocated for. */
  ownerOf(block: number): number {
    return this.#blocks[block + previousField] as number;
  }

  /** Frees a used block into a lane. */
  free(block: number, lane: number): void {
    this.#usedBlocks--;
    this.#insertFree(block, lane);
  }

  /** Moves every free block of one lane to another. */
  transfer(from: number, to: number): void {
    for (let place = 0; this.#freeCounts[from] !== 0; place++) {
      for (;;) {
        const block = (this.#heads[from] as Int32Array)[this.#classes[place] as number] as number;
        if (block === none) break;
        this.#removeFree(block, from);
        this.#insertFree(block, to);
      }
    }
  }

  /** Removes a free block of a lane, of at most `maximumBytes`, and returns it. */
  removeFreeSegment(lane: number, maximumBytes = Number.POSITIVE_INFINITY): Segment | undefined {
    const heads = this.#heads[lane] as Int32Array;
    const count = this.#classNumbers.count;
    // Look at none if none can fit.
    for (let left = maximumBytes <= 0 || this.isEmpty(lane) ? 0 : count; left > 0; left--) {
      if (this.#nextPlace >= count) this.#nextPlace = 0;
      const number = this.#classes[this.#nextPlace] as number;
      const block = heads[number] as number;
      if (block !== none && (this.#classBytes[number] as number) <= maximumBytes) {
        this.#removeFree(block, lane);
        return this.#drop(block);
      }
      this.#nextPlace++;
    }
    return undefined;
  }

  /** Removes a used block and returns it. */
  removeUsed(block: number): Segment {
    this.#usedBlocks--;
    return this.#drop(block);
  }

  /** Removes every block, used or free. */
  removeAllSegments(): Segment[] {
    const segments = [...this.blocks()].map(({ address, bytes }) => ({ address, bytes }));
    for (let block = 0; block < this.#blocks.length; block += fields) {
      const state = this.#blocks[block + stateField] as number;
      if (state === spareMark) continue;
      if (state >= 0) this.#removeFree(block, state);
      else this.#usedBlocks--;
      this.#drop(block);
    }
    return segments;
  }

  /** The bytes that are free in a lane. Linear in its blocks. */
  freeBytes(lane: number): number {
    let bytes = 0;
    for (const block of this.blocks()) if (block.lane === lane) bytes += block.bytes;
    return bytes;
  }

  /** The bytes of a lane's largest free block. */
  largestFreeBytes(lane: number): number {
    const heads = this.#heads[lane] as Int32Array;
    let largest = 0;
    for (let place = 0; place < this.#classNumbers.count; place++) {
      const number = this.#classes[place] as number;
      if (heads[number] !== none) largest = Math.max(largest, this.#classBytes[number] as number);
    }
    return largest;
  }

  /** What an address refers to, for an error message. Linear in the number of blocks. */
  classify(address: number): AddressClass {
    return classifyAddress(address, this.blocks());
  }

  /** Every block. */
  *blocks(): Generator<BlockView> {
    for (let block = 0; block < this.#blocks.length; block += fields) {
      const state = this.#blocks[block + stateField] as number;
      if (state === spareMark) continue;
      yield {
        address: this.#addresses[block / fields] as number,
        bytes: this.blockBytes(block),
        lane: Math.max(none, state),
        isHead: true,
      };
    }
  }

  /** Throws if an invariant does not hold. For tests. Linear in everything. */
  validate(): void {
    this.#byAddress.validate();
    this.#classNumbers.validate();
    const counts = this.#heads.map(() => 0);
    const classBlocks = this.#classBlocks.map(() => 0);
    let used = 0;
    let all = 0;
    for (let block = 0; block < this.#blocks.length; block += fields) {
      const state = this.#blocks[block + stateField] as number;
      if (state === spareMark) continue;
      all++;
      const number = this.#blocks[block + classField] as number;
      classBlocks[number] = (classBlocks[number] as number) + 1;
      if (this.#byAddress.get(this.addressOf(block)) !== block) fail(`block ${block} is not in the address map`);
      if (state >= 0) {
        if (state >= counts.length) fail(`block ${block} is in no lane, but ${state}`);
        counts[state] = (counts[state] as number) + 1;
      } else {
        used++;
        if (this.askedBytes(block) < 0) fail(`used block ${block} was asked for with ${this.askedBytes(block)} bytes`);
      }
    }
    if (used !== this.#usedBlocks) fail(`${used} used blocks, but counts ${this.#usedBlocks}`);
    if (all !== this.#byAddress.count) fail(`${all} blocks, but ${this.#byAddress.count} in the address map`);
    for (const [number, count] of classBlocks.entries()) {
      if (this.#classBlocks[number] !== count) fail(`class ${number} counts ${this.#classBlocks[number]} blocks, has ${count}`);
      const place = this.#classPlaces[number] as number;
      if (this.#classes[place] !== number) fail(`class ${number} is not at its place ${place}`);
      if (place < this.#classNumbers.count !== count > 0) fail(`class ${number} has ${count} blocks, but place ${place}`);
      if (count > 0 && this.#classNumbers.get(this.#classBytes[number] as number) !== number)
        fail(`class ${number} is not that of its size`);
    }
    for (const [lane, count] of counts.entries()) {
      if (this.#freeCounts[lane] !== count) fail(`lane ${lane} counts ${this.#freeCounts[lane]} blocks, has ${count}`);
      if (this.#validateLists(lane) !== count) fail(`lane ${lane} has ${count} blocks, not all of them in its lists`);
    }
  }

  /** Returns how many blocks the lists of a lane hold. */
  #validateLists(lane: number): number {
    let count = 0;
    for (const number of this.#classBytes.keys()) {
      let previous = none;
      for (let block = (this.#heads[lane] as Int32Array)[number] as number; block !== none; count++) {
        if (this.#blocks[block + stateField] !== lane) fail(`block ${block} is in a list of lane ${lane}, but not free in it`);
        if (this.#blocks[block + classField] !== number) fail(`block ${block} is in the wrong list`);
        if (this.#blocks[block + previousField] !== previous) fail(`block ${block} does not point back`);
        previous = block;
        block = this.#blocks[block + nextField] as number;
      }
    }
    return count;
  }

  #classOf(bytes: number): number {
    const known = this.#classNumbers.get(bytes);
    if (known !== none) return known;
    const place = this.#classNumbers.count;
    const number = this.#classes[place] ?? place;
    this.#classes[place] = number;
    this.#classPlaces[number] = place;
    this.#classBytes[number] = bytes;
    this.#classBlocks[number] = 0;
    this.#classNumbers.insert(bytes, number);
    if (number === this.#classCapacity) {
      this.#classCapacity *= 2;
      for (const [lane, heads] of this.#heads.entries()) {
        const grown = new Int32Array(this.#classCapacity).fill(none);
        grown.set(heads);
        this.#heads[lane] = grown;
      }
    }
    return number;
  }

  /**
   * Frees the number of a size that no block has any more, by swapping it with the last one in use.
   */
  #dropClass(number: number): void {
    this.#classNumbers.remove(this.#classBytes[number] as number);
    const place = this.#classPlaces[number] as number;
    const lastPlace = this.#classNumbers.count;
    const last = this.#classes[lastPlace] as number;
    this.#classes[place] = last;
    this.#classPlaces[last] = place;
    this.#classes[lastPlace] = number;
    this.#classPlaces[number] = lastPlace;
  }

  #use(block: number, slack: number, lane: number, owner: number): void {
    this.#removeFree(block, lane);
    this.#blocks[block + stateField] = ~slack;
    this.#blocks[block + previousField] = owner;
    this.#usedBlocks++;
  }

  #insertFree(block: number, lane: number): void {
    const blocks = this.#blocks;
    const heads = this.#heads[lane] as Int32Array;
    const number = blocks[block + classField] as number;
    const first = heads[number] as number;
    blocks[block + stateField] = lane;
    blocks[block + previousField] = none;
    blocks[block + nextField] = first;
    if (first !== none) blocks[first + previousField] = block;
    heads[number] = block;
    (this.#freeCounts[lane] as number)++;
  }

  #removeFree(block: number, lane: number): void {
    const blocks = this.#blocks;
    const previous = blocks[block + previousField] as number;
    const next = blocks[block + nextField] as number;
    if (next !== none) blocks[next + previousField] = previous;
    if (previous !== none) blocks[previous + nextField] = next;
    else (this.#heads[lane] as Int32Array)[blocks[block + classField] as number] = next;
    (this.#freeCounts[lane] as number)--;
  }

  /** Frees the record of a block that is in no list. */
  #drop(block: number): Segment {
    const segment = { address: this.addressOf(block), bytes: this.blockBytes(block) };
    const number = this.#blocks[block + classField] as number;
    if (--(this.#classBlocks[number] as number) === 0) this.#dropClass(number);
    this.#byAddress.remove(segment.address);
    this.#blocks[block + stateField] = spareMark;
    this.#blocks[block + nextField] = this.#spare;
    this.#spare = block;
    return segment;
  }

  #growBlocks(): void {
    const length = this.#blocks.length;
    const blocks = new Int32Array(Math.max(64 * fields, length * 2));
    blocks.set(this.#blocks);
    for (let block = length; block < blocks.length; block += fields) {
      blocks[block + stateField] = spareMark;
      blocks[block + nextField] = block + fields < blocks.length ? block + fields : none;
    }
    const addresses = new Float64Array(blocks.length / fields);
    addresses.set(this.#addresses);
    this.#blocks = blocks;
    this.#addresses = addresses;
    this.#spare = length;
  }
}

function fail(message: string): never {
  throw new Error(`block lists: ${message}`);
}
