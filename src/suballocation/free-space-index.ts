/**
 * Finds free ranges by size in constant time, in several lanes; splits them, and coalesces
 * neighbours when they are freed.
 *
 * Purpose. A pooling resource (a pool, an arena) splits what it got from its upstream (segments)
 * into blocks of any size. A lane is a set of free blocks that are searched together; the
 * stream-ordering layer gives every stream its own lanes. This file knows integers only: addresses,
 * sizes, lane numbers.
 *
 * Data structure. Two-level segregated fit. Every segment is a chain of blocks in address order
 * without gaps; a free block is also in one free list of its lane, by size class. Two levels of
 * bitmaps show which lists are not empty.
 *
 *     segment   [ used 3 | free 5, lane 0 | used 1 | free 2, lane 1 | free 9, lane 0 ]
 *                                                        `- not coalesced: other lanes
 *     lane 0    groups …0110   class 5 -> block   class 9 -> block -> block
 *
 * Sizes are counted in units of 256 bytes. Below 64 units every class holds one size; above, each
 * power of two is divided into 32 classes, so the sizes in a class differ by at most 1/32.
 *
 * Fit. The blocks of the request's own class may be too small: up to `scanLimit` of them are
 * examined, and the smallest that fits is taken. If none fits, the next non-empty class serves,
 * again with the smallest of the first few, the lowest address among equals. That comes within a
 * fraction of a percent of true best fit on the traces in bench/, at a constant cost.
 *
 * Invariants: Σ size(free) + Σ size(used) = Σ size(segments); no two neighbours in a segment are
 * free in the same lane; a list is empty exactly if its bit is clear.
 *
 * Cost: allocating and freeing take constant time, whatever the number of blocks; an alignment
 * above 256 may have to look at all of them. `transfer` is linear in what it moves. Adding a
 * segment takes constant time. So does removing one if most are free; otherwise it looks at the
 * segments in turn, and next time continues where it stopped, so removing many looks at each
 * segment about once.
 *
 * Source: M. Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems" (2004),
 * with lanes and the bounded scan added.
 */
import { AddressMap } from './address-map.js';
import { type AddressClass, type BlockView, classifyAddress, none, type Segment } from './blocks.js';

/** Bytes of one unit: the alignment of every block. */
export const unitBytes = 256;
/** The binary logarithm of `unitBytes`. */
export const unitBits = 8;
/** The largest block and segment, in units: 512 GiB - 256 B. */
export const maximumUnits = 0x7fffffff;

const divisionBits = 5;
const divisions = 1 << divisionBits;
/** Group 0 holds the exact classes; group g > 0 the sizes from 2^(divisionBits + g - 1). */
const groups = 31 - divisionBits + 1;
const classes = groups * divisions;

// A lane is identified by the offset of its table in #tables: one word of bits for the groups, a
// word of bits for the lists of each group, the list heads.
const listBitsField = 1;
const headsField = listBitsField + groups;
const laneFields = headsField + classes;
/** Lists below this hold blocks of one size only. */
const exactClasses = 2 * divisions;
const scanLimit = 8;

// A block is identified by the offset of its record in #blocks. A record fills half a cache line:
// six 32-bit fields, and its address as a double.
const fields = 8;
const sizeField = 0;
/** The block before this one; `~segment`, which is negative, in the first block of a segment. */
const previousField = 1;
const nextField = 2;
/** Of a free block: the previous one in its list. Of a used block: its owner. */
const previousFreeField = 3;
const nextFreeField = 4;
/**
 * The lane of a free block; `~slack` of a used one, where slack is the number of bytes that nobody
 * asked for, less than 2 GiB; or `spareMark`.
 */
const stateField = 5;
/** The address of block b is at b / 2 + 3 in #addresses. */
const addressField = 3;

const spareMark = -0x80000000;

export class FreeSpaceIndex {
  #blocks = new Int32Array(0);
  #addresses = new Float64Array(0);
  #spare = none;
  #used = new AddressMap();

  /** First block of each segment by segment number, or none. */
  readonly #segmentHeads: number[] = [];
  /** The numbers of removed segments. */
  readonly #vacantSegments: number[] = [];
  /** The segment where `removeFreeSegment` continues. */
  #nextSegment = 0;

  #tables = new Int32Array(4 * laneFields);
  #laneCount = 0;

  /** Adds an empty lane. */
  addLane(): number {
    const lane = this.#laneCount++ * laneFields;
    if (lane === this.#tables.length) this.#tables = grown(this.#tables, lane * 2);
    this.#tables.fill(none, lane + headsField, lane + laneFields);
    return lane;
  }

  /** Whether a lane has no free block. */
  isEmpty(lane: number): boolean {
    return this.#tables[lane] === 0;
  }

  /** The number of used blocks. */
  get usedBlocks(): number {
    return this.#used.count;
  }

  /**
   * Adds a range to a lane as one free block. `bytes` is a multiple of 256 and at most
   * `maximumUnits` units.
   */
  addSegment(address: number, bytes: number, lane: number): void {
    if (this.#spare === none) this.#growBlocks();
    const block = this.#spare;
    this.#spare = this.#blocks[block + nextField] as number;
    this.#blocks[block + sizeField] = bytes / unitBytes;
    this.#addresses[(block >> 1) + addressField] = address;
    const segment = this.#vacantSegments.pop() ?? this.#segmentHeads.length;
    this.#segmentHeads[segment] = block;
    this.#blocks[block + previousField] = ~segment;
    this.#blocks[block + nextField] = none;
    this.#insertFree(block, lane);
  }

  /**
   * Takes `units` units (at least 1) from a lane's free blocks and returns the address, or -1 if no
   * block of the lane is large enough. `slack` is the number of bytes that nobody asked for, less
   * than 2 GiB. `owner` is any 32-bit number; `ownerOf` returns it.
   */
  allocate(units: number, slack: number, lane: number, owner = none): number {
    const block = this.#find(units, lane);
    return block === none ? none : this.#use(block, units, slack, lane, owner);
  }

  /** Whether `allocate` and `carve` would find a block of this size. */
  canAllocate(units: number, lane: number): boolean {
    return this.#find(units, lane) !== none;
  }

  /** As `allocate`, at a multiple of `alignment`, a power of two above 256. */
  allocateAligned(units: number, slack: number, alignment: number, lane: number, owner = none): number {
    // Any block this large has an aligned address with enough space after it.
    const sufficient = units + alignment / unitBytes - 1;
    let block = sufficient <= maximumUnits ? this.#find(sufficient, lane) : none;
    if (block === none) block = this.#findAligned(units, alignment, lane);
    if (block === none) return none;
    const misaligned = this.#address(block) % alignment;
    if (misaligned !== 0) this.#insertFree(this.#cutFront(block, (alignment - misaligned) / unitBytes, lane), lane);
    return this.#use(block, units, slack, lane, owner);
  }

  /** The used block that starts at an address, for `askedBytes` and `free`, or -1. */
  usedBlock(address: number): number {
    return this.#used.get(address);
  }

  /** The bytes that were asked for when a used block was allocated. */
  askedBytes(block: number): number {
    const blocks = this.#blocks;
    return (blocks[block + sizeField] as number) * unitBytes - ~(blocks[block + stateField] as number);
  }

  /** The owner that a used block was allocated for. */
  ownerOf(block: number): number {
    return this.#blocks[block + previousFreeField] as number;
  }

  /** Frees a used block into a lane, and coalesces it with free neighbours of that lane. */
  free(block: number, lane: number): void {
    this.#used.remove(this.#address(block));
    this.#insertJoined(block, lane);
  }

  /** Moves every free block of one lane to another, coalescing neighbours. */
  transfer(from: number, to: number): void {
    const tables = this.#tables;
    while (tables[from] !== 0) {
      const group = lowestBit(tables[from] as number);
      const list = group * divisions + lowestBit(tables[from + listBitsField + group] as number);
      const block = tables[from + headsField + list] as number;
      this.#removeFree(block, from);
      this.#insertJoined(block, to);
    }
  }

  /**
   * Moves a free block of at least `units` units from one lane to another, coalescing neighbours
   * there. The rest above `units` stays where it is, unless it is smaller than `leastRest` units.
   * Returns whether there was such a block.
   */
  carve(units: number, leastRest: number, from: number, to: number): boolean {
    let block = this.#find(units, from);
    if (block === none) return false;
    if ((this.#blocks[block + sizeField] as number) - units >= leastRest) block = this.#cutFront(block, units, from);
    else this.#removeFree(block, from);
    this.#insertJoined(block, to);
    return true;
  }

  /** Removes a wholly free segment of a lane, of at most `maximumBytes`, and returns it. */
  removeFreeSegment(lane: number, maximumBytes = Number.POSITIVE_INFINITY): Segment | undefined {
    const count = this.#segmentHeads.length;
    // Look at none if none can fit.
    for (let left = maximumBytes < unitBytes || this.isEmpty(lane) ? 0 : count; left > 0; left--) {
      const segment = this.#nextSegment;
      this.#nextSegment = segment + 1 < count ? segment + 1 : 0;
      const block = this.#segmentHeads[segment] as number;
      if (block === none || this.#blocks[block + stateField] !== lane || this.#blocks[block + nextField] !== none) continue;
      const removed = { address: this.#address(block), bytes: (this.#blocks[block + sizeField] as number) * unitBytes };
      if (removed.bytes > maximumBytes) continue;
      this.#removeFree(block, lane);
      this.#dropBlock(block);
      this.#segmentHeads[segment] = none;
      this.#vacantSegments.push(segment);
      return removed;
    }
    return undefined;
  }

  /** Removes every segment, whether or not it is in use. The index is then empty. */
  removeAllSegments(): Segment[] {
    const segments: Segment[] = [];
    for (const { address, bytes, isHead } of this.blocks()) {
      if (isHead) segments.push({ address, bytes });
      else (segments[segments.length - 1] as { bytes: number }).bytes += bytes;
    }
    this.#segmentHeads.length = 0;
    this.#vacantSegments.length = 0;
    this.#nextSegment = 0;
    this.#used = new AddressMap();
    this.#blocks = new Int32Array(0);
    this.#addresses = new Float64Array(0);
    this.#spare = none;
    for (let lane = 0; lane < this.#laneCount * laneFields; lane += laneFields) {
      this.#tables.fill(0, lane, lane + headsField);
      this.#tables.fill(none, lane + headsField, lane + laneFields);
    }
    return segments;
  }

  /** The bytes that are free in a lane. Linear in its blocks. */
  freeBytes(lane: number): number {
    let units = 0;
    for (let list = 0; list < classes; list++) {
      for (let block = this.#tables[lane + headsField + list] as number; block !== none; ) {
        units += this.#blocks[block + sizeField] as number;
        block = this.#blocks[block + nextFreeField] as number;
      }
    }
    return units * unitBytes;
  }

  /** The bytes of a lane's largest free block. Linear in the blocks of one list. */
  largestFreeBytes(lane: number): number {
    const groupBits = this.#tables[lane] as number;
    if (groupBits === 0) return 0;
    const group = 31 - Math.clz32(groupBits);
    const list = group * divisions + 31 - Math.clz32(this.#tables[lane + listBitsField + group] as number);
    let largest = 0;
    for (let block = this.#tables[lane + headsField + list] as number; block !== none; ) {
      largest = Math.max(largest, this.#blocks[block + sizeField] as number);
      block = this.#blocks[block + nextFreeField] as number;
    }
    return largest * unitBytes;
  }

  /** What an address refers to, for an error message. Linear in the number of blocks. */
  classify(address: number): AddressClass {
    return classifyAddress(address, this.blocks());
  }

  /** Every block of every segment, in address order within a segment. */
  *blocks(): Generator<BlockView> {
    for (const head of this.#segmentHeads) {
      for (let block = head; block !== none; block = this.#blocks[block + nextField] as number) {
        yield {
          address: this.#address(block),
          bytes: (this.#blocks[block + sizeField] as number) * unitBytes,
          lane: Math.max(-1, this.#blocks[block + stateField] as number),
          isHead: block === head,
        };
      }
    }
  }

  /** Throws if an invariant does not hold. For tests. Linear in everything. */
  validate(): void {
    this.#used.validate();
    let used = 0;
    const freeUnits = new Map<number, number>();
    for (const [segment, head] of this.#segmentHeads.entries()) {
      if (head === none) continue;
      let previous = ~segment;
      let expected = this.#address(head);
      for (let block = head; block !== none; block = this.#blocks[block + nextField] as number) {
        const state = this.#blocks[block + stateField] as number;
        const size = this.#blocks[block + sizeField] as number;
        if (this.#address(block) !== expected) fail(`block ${block} does not begin where the one before it ends`);
        if (this.#blocks[block + previousField] !== previous) fail(`block ${block} does not point back`);
        if (size < 1) fail(`block ${block} has ${size} units`);
        if (state < 0) {
          used++;
          if (state === spareMark) fail(`block ${block} is spare`);
          if (this.#used.get(expected) !== block) fail(`used block ${block} is not in the address map`);
        } else {
          if (state % laneFields !== 0 || state >= this.#laneCount * laneFields) fail(`block ${block} is in no lane, but ${state}`);
          if (previous >= 0 && this.#blocks[previous + stateField] === state) fail(`block ${block} was not joined`);
          freeUnits.set(state, (freeUnits.get(state) ?? 0) + size);
        }
        previous = block;
        expected += size * unitBytes;
      }
    }
    const vacant = [...this.#segmentHeads.keys()].filter((segment) => this.#segmentHeads[segment] === none);
    const listed = [...this.#vacantSegments].sort((a, b) => a - b);
    if (listed.join() !== vacant.join()) fail(`segments ${vacant} are vacant, but ${listed} listed`);
    if (used !== this.#used.count) fail(`${used} used blocks, but ${this.#used.count} in the address map`);
    for (let lane = 0; lane < this.#laneCount * laneFields; lane += laneFields) {
      this.#validateLists(lane);
      const listed = this.freeBytes(lane) / unitBytes;
      const held = freeUnits.get(lane) ?? 0;
      if (listed !== held) fail(`lane ${lane} lists ${listed} units, its segments hold ${held}`);
    }
  }

  #validateLists(lane: number): void {
    const tables = this.#tables;
    for (let list = 0; list < classes; list++) {
      const bit = ((tables[lane + listBitsField + (list >>> divisionBits)] as number) >>> (list & (divisions - 1))) & 1;
      const head = tables[lane + headsField + list] as number;
      if ((head !== none) !== (bit === 1)) fail(`lane ${lane}, list ${list}: bit ${bit}, head ${head}`);
      let previous = none;
      for (let block = head; block !== none; block = this.#blocks[block + nextFreeField] as number) {
        if (this.#blocks[block + stateField] !== lane) fail(`block ${block} is in a list of lane ${lane}, but not free in it`);
        if (classOf(this.#blocks[block + sizeField] as number) !== list) fail(`block ${block} is in the wrong list`);
        if (this.#blocks[block + previousFreeField] !== previous) fail(`block ${block} does not point back in its list`);
        previous = block;
      }
    }
    for (let group = 0; group < groups; group++) {
      const bit = ((tables[lane] as number) >>> group) & 1;
      if ((tables[lane + listBitsField + group] !== 0) !== (bit === 1)) fail(`lane ${lane}: bit of group ${group}`);
    }
  }

  #address(block: number): number {
    return this.#addresses[(block >> 1) + addressField] as number;
  }

  /** A free block of a lane with at least `units` units, or none. */
  #find(units: number, lane: number): number {
    const tables = this.#tables;
    const list = classOf(units);
    let block = tables[lane + headsField + list] as number;
    if (block !== none) {
      if (list < exactClasses) return block;
      // Blocks of the request's own class may be smaller than the request.
      block = this.#smallestFit(block, units);
      if (block !== none) return block;
    }
    let group = list >>> divisionBits;
    // Shifted twice, because JavaScript's shift by 32 shifts by 0.
    let bits = (tables[lane + listBitsField + group] as number) & ((-1 << (list & (divisions - 1))) << 1);
    if (bits === 0) {
      const above = (tables[lane] as number) & (-2 << group);
      if (above === 0) return none;
      group = lowestBit(above);
      bits = tables[lane + listBitsField + group] as number;
    }
    block = tables[lane + headsField + (group << divisionBits) + lowestBit(bits)] as number;
    return group <= 1 ? block : this.#smallestFit(block, units);
  }

  /** The smallest of the first few blocks of a list that fit, the lowest address among equals. */
  #smallestFit(first: number, units: number): number {
    const blocks = this.#blocks;
    let best = none;
    let bestSize = maximumUnits;
    let block = first;
    for (let left = scanLimit; left > 0; left--) {
      const size = blocks[block + sizeField] as number;
      if (size >= units && size <= bestSize && (size < bestSize || this.#isBelow(block, best))) {
        best = block;
        bestSize = size;
      }
      block = blocks[block + nextFreeField] as number;
      if (block === none) break;
    }
    return best;
  }

  #isBelow(block: number, other: number): boolean {
    return other === none || this.#address(block) < this.#address(other);
  }

  /**
   * A block that fits only because of its address. Looks at every block of the lane that is large
   * enough.
   */
  #findAligned(units: number, alignment: number, lane: number): number {
    for (let list = classOf(units); list < classes; list++) {
      for (let block = this.#tables[lane + headsField + list] as number; block !== none; ) {
        const misaligned = this.#address(block) % alignment;
        const skipped = misaligned === 0 ? 0 : (alignment - misaligned) / unitBytes;
        if (skipped + units <= (this.#blocks[block + sizeField] as number)) return block;
        block = this.#blocks[block + nextFreeField] as number;
      }
    }
    return none;
  }

  /** Turns the first `units` units of a free block into a used block, and returns its address. */
  #use(free: number, units: number, slack: number, lane: number, owner: number): number {
    let block = free;
    if (this.#blocks[free + sizeField] === units) this.#removeFree(free, lane);
    else block = this.#cutFront(free, units, lane);
    this.#blocks[block + stateField] = ~slack;
    this.#blocks[block + previousFreeField] = owner;
    const address = this.#address(block);
    this.#used.insert(address, block);
    return address;
  }

  /**
   * Splits the first `units` units off a free block into a block of their own, in no list. The free
   * block keeps its record for the rest.
   */
  #cutFront(free: number, units: number, lane: number): number {
    if (this.#spare === none) this.#growBlocks();
    const block = this.#spare;
    const blocks = this.#blocks;
    const addresses = this.#addresses;
    const address = addresses[(free >> 1) + addressField] as number;
    const previous = blocks[free + previousField] as number;
    const size = blocks[free + sizeField] as number;
    this.#spare = blocks[block + nextField] as number;
    blocks[block + sizeField] = units;
    blocks[block + previousField] = previous;
    blocks[block + nextField] = free;
    addresses[(block >> 1) + addressField] = address;
    blocks[free + previousField] = block;
    addresses[(free >> 1) + addressField] = address + units * unitBytes;
    if (previous < 0) this.#segmentHeads[~previous] = block;
    else blocks[previous + nextField] = block;
    if (classOf(size) === classOf(size - units)) blocks[free + sizeField] = size - units;
    else this.#relist(free, size - units, lane);
    return block;
  }

  /**
   * Frees a block that is in no list into a lane: it is coalesced with free neighbours of the lane,
   * or else enters a list itself.
   */
  #insertJoined(block: number, lane: number): void {
    const blocks = this.#blocks;
    const size = blocks[block + sizeField] as number;
    const previous = blocks[block + previousField] as number;
    const next = blocks[block + nextField] as number;
    const joinsPrevious = previous >= 0 && blocks[previous + stateField] === lane;
    if (next !== none && blocks[next + stateField] === lane) {
      const joined = size + (blocks[next + sizeField] as number);
      this.#unlink(block, previous, next);
      if (joinsPrevious) {
        this.#removeFree(next, lane);
        this.#unlink(next, previous, blocks[next + nextField] as number);
        this.#resizeFree(previous, (blocks[previous + sizeField] as number) + joined, lane);
      } else {
        const addresses = this.#addresses;
        addresses[(next >> 1) + addressField] = addresses[(block >> 1) + addressField] as number;
        this.#resizeFree(next, joined, lane);
      }
    } else if (joinsPrevious) {
      this.#unlink(block, previous, next);
      this.#resizeFree(previous, (blocks[previous + sizeField] as number) + size, lane);
    } else {
      this.#insertFree(block, lane);
    }
  }

  /**
   * Removes a block from its segment's chain and frees its record; a neighbour takes over its
   * range.
   */
  #unlink(block: number, previous: number, next: number): void {
    const blocks = this.#blocks;
    if (next !== none) blocks[next + previousField] = previous;
    if (previous < 0) this.#segmentHeads[~previous] = next;
    else blocks[previous + nextField] = next;
    this.#dropBlock(block);
  }

  /**
   * Changes the size of a free block. It keeps its place in its list if its class stays the same.
   */
  #resizeFree(block: number, size: number, lane: number): void {
    if (classOf(this.#blocks[block + sizeField] as number) === classOf(size)) this.#blocks[block + sizeField] = size;
    else this.#relist(block, size, lane);
  }

  /** Moves a free block to the list of another size. */
  #relist(block: number, size: number, lane: number): void {
    this.#removeFree(block, lane);
    this.#blocks[block + sizeField] = size;
    this.#insertFree(block, lane);
  }

  #insertFree(block: number, lane: number): void {
    const blocks = this.#blocks;
    const tables = this.#tables;
    const list = classOf(blocks[block + sizeField] as number);
    const head = lane + headsField + list;
    const first = tables[head] as number;
    blocks[block + stateField] = lane;
    blocks[block + previousFreeField] = none;
    blocks[block + nextFreeField] = first;
    tables[head] = block;
    if (first !== none) {
      blocks[first + previousFreeField] = block;
      return;
    }
    const group = list >>> divisionBits;
    const word = lane + listBitsField + group;
    tables[word] = (tables[word] as number) | (1 << (list & (divisions - 1)));
    tables[lane] = (tables[lane] as number) | (1 << group);
  }

  #removeFree(block: number, lane: number): void {
    const blocks = this.#blocks;
    const previous = blocks[block + previousFreeField] as number;
    const next = blocks[block + nextFreeField] as number;
    if (next !== none) blocks[next + previousFreeField] = previous;
    if (previous !== none) {
      blocks[previous + nextFreeField] = next;
      return;
    }
    const tables = this.#tables;
    const list = classOf(blocks[block + sizeField] as number);
    tables[lane + headsField + list] = next;
    if (next !== none) return;
    const group = list >>> divisionBits;
    const word = lane + listBitsField + group;
    const bits = (tables[word] as number) & ~(1 << (list & (divisions - 1)));
    tables[word] = bits;
    if (bits === 0) tables[lane] = (tables[lane] as number) & ~(1 << group);
  }

  #dropBlock(block: number): void {
    const blocks = this.#blocks;
    blocks[block + stateField] = spareMark;
    blocks[block + nextField] = this.#spare;
    this.#spare = block;
  }

  #growBlocks(): void {
    const length = this.#blocks.length;
    const blocks = grown(this.#blocks, Math.max(64 * fields, length * 2));
    for (let block = length; block < blocks.length; block += fields) {
      blocks[block + stateField] = spareMark;
      blocks[block + nextField] = block + fields < blocks.length ? block + fields : none;
    }
    this.#blocks = blocks;
    this.#addresses = new Float64Array(blocks.buffer);
    this.#spare = length;
  }
}

/** The list for blocks of a size. */
function classOf(units: number): number {
  if (units < divisions) return units;
  const shift = 31 - divisionBits - Math.clz32(units);
  return (shift << divisionBits) + (units >>> shift);
}

function lowestBit(bits: number): number {
  return 31 - Math.clz32(bits & -bits);
}

function grown(array: Int32Array, length: number): Int32Array<ArrayBuffer> {
  const copy = new Int32Array(length);
  copy.set(array);
  return copy;
}

function fail(message: string): never {
  throw new Error(`free-space index: ${message}`);
}
