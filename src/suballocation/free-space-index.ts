/**
 * Finds free ranges by size in constant time, in several lanes; splits them, and coalesces
 * neighbours when they are freed. The structure lives in WebAssembly (`assembly/`), which changes it
 * at half the cost; this class calls it, and reads it to list and to validate blocks.
 *
 * Purpose. A pooling resource (a pool, an arena) splits memory from its upstream (segments) into
 * blocks of any size. A lane is a set of free blocks that are searched together; the
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
 * fraction of a percent of true best fit on the traces in bench/, at a constant cost. `takeLowest`
 * chooses by address instead.
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

import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { type AddressClass, type BlockView, classifyAddress, none, type Segment } from './blocks.js';
import {
  addressField,
  bucketsField,
  bucketsOrderField,
  divisionBits,
  divisions,
  firstBlockField,
  firstLaneField,
  firstSegmentField,
  groupBitsField,
  groupShift,
  groups,
  headsField,
  isSharedField,
  lastBlockField,
  lastSegmentField,
  listBitsField,
  maximumUnits,
  nextField,
  nextFreeField,
  nextLaneField,
  nextNoticeField,
  nextSegmentField,
  nextUsedField,
  noticeBitsField,
  noticeLaneField,
  noticesField,
  previousField,
  previousFreeField,
  previousSegmentField,
  quickKeeping,
  quickListsBytes,
  quickListsField,
  quickModeField,
  segmentCountField,
  sizeField,
  stateField,
  unitBits,
  usedCountField,
} from './index-layout.js';
import { indexModule } from './index-module.js';

export { maximumUnits, unitBits };

/** Bytes of one unit, 2^unitBits: the alignment of every block. A literal, so that compilers can inline it. */
export const unitBytes = 256;

const { memory, allocate, ownerOf, askedBytes, free, freeAt, usedBlock, usedBlockOf } = indexModule;

let doubles = new Float64Array(memory.buffer);

/** A view of the linear memory. When that grows, its buffer is replaced, and views of the one before have no elements. */
function linearDoubles(): Float64Array {
  // Asking for the buffer takes longer than an allocation.
  if (doubles.length === 0) doubles = new Float64Array(memory.buffer);
  return doubles;
}

/** The index of the first double of an area for `count` numbers. */
function areaFor(count: number): number {
  const area = indexModule.numbersFor(count);
  if (area === 0) throw outOfMemory();
  return area >> 3;
}

function writePairs(addresses: Float64Array, sizes: Float64Array): void {
  const count = addresses.length;
  const start = areaFor(2 * count);
  linearDoubles().set(addresses, start);
  linearDoubles().set(sizes, start + count);
}

/** Frees the linear memory of indexes that were collected. */
const collected = new FinalizationRegistry<number>((index) => indexModule.destroyIndex(index));

export class FreeSpaceIndex {
  readonly #index: number;
  /** The size of every block, or a divisor of it. */
  #granuleBytes = unitBytes;
  /** The bytes of a page, if segments grow in place. */
  #pageBytes = 0;

  constructor() {
    compileAhead();
    this.#index = indexModule.createIndex();
    if (this.#index === 0) throw outOfMemory();
    collected.register(this, this.#index, this);
  }

  /**
   * Returns its memory now, which the collector otherwise does: V8 does not count it, and looks for garbage too late if many
   * indexes live briefly. The index must not be used any more.
   */
  [Symbol.dispose](): void {
    collected.unregister(this);
    indexModule.destroyIndex(this.#index);
  }

  /**
   * Keeps up to 16 freed blocks of at most 1 MiB whole, for requests of exactly their sizes, while such
   * requests come. By default, it first watches whether they do. Every other operation on free blocks than
   * an allocation coalesces them first.
   */
  useQuickLists(isAtOnce = false): void {
    indexModule.useQuickLists(this.#index, isAtOnce);
  }

  /** Lets `cut` make blocks of one size, a multiple of 256. */
  cutBlocksOf(bytes: number): void {
    this.#granuleBytes = bytes;
  }

  /**
   * Lets segments grow in place: an added segment becomes part of those that it touches, so that
   * blocks coalesce across them, and any free pages can be removed. `pageBytes` is a power of two.
   * Adding then takes time in proportion to the segments, and removing to the blocks.
   */
  growInPlace(pageBytes: number): void {
    this.#pageBytes = pageBytes;
  }

  /** Whether it does. */
  get growsInPlace(): boolean {
    return this.#pageBytes > 0;
  }

  /**
   * From now on, `allocate` splits blocks at low addresses, if no block of the request's size is found. Small blocks then lie
   * in fewer pages, and large ones are split sooner.
   */
  takeLowest(): void {
    indexModule.takeLowest(this.#index);
  }

  /** Adds an empty lane. */
  addLane(): number {
    const lane = indexModule.addLane(this.#index);
    if (lane === 0) throw outOfMemory();
    return lane;
  }

  /** Whether a lane has no free block. */
  isEmpty(lane: number): boolean {
    return indexModule.isEmpty(this.#index, lane) === 1;
  }

  /** Sets whether `laneWith` and `fullLane` can find a lane. They cannot find a new lane. */
  share(lane: number, isShared: boolean): void {
    indexModule.shareLane(lane, isShared);
  }

  /**
   * A shared lane, other than these two, that has a free block of `units` units; or -1. Chooses the
   * lane with the smallest class of blocks, and examines only a few lanes in the request's own
   * class.
   */
  laneWith(units: number, own: number, second: number, passed = 0): number {
    return indexModule.laneWith(this.#index, units, own, second, passed) || none;
  }

  /** A shared lane, other than these two, with the largest class of blocks; or -1 if all are empty. */
  fullLane(own: number, second: number, passed = 0): number {
    return indexModule.fullLane(this.#index, own, second, passed) || none;
  }

  /** The number of used blocks. */
  get usedBlocks(): number {
    indexModule.joinQuick(this.#index);
    return new Reader().word(this.#index, usedCountField);
  }

  /**
   * Adds a range to a lane as one free block. `bytes` is a multiple of 256 and at most
   * `maximumUnits` units.
   */
  addSegment(address: number, bytes: number, lane: number): void {
    if (this.#pageBytes > 0) this.extendSegment(address, bytes, lane);
    else if (indexModule.addSegment(this.#index, address, bytes / unitBytes, lane) === 0) throw outOfMemory();
  }

  /**
   * As `addSegment`, but the range becomes part of the segments that it touches, so that blocks
   * coalesce across. Linear in the number of segments.
   */
  extendSegment(address: number, bytes: number, lane: number): void {
    if (indexModule.extendSegment(this.#index, address, bytes / unitBytes, lane) === 0) throw outOfMemory();
  }

  /**
   * Removes free pages of a lane, of `pageBytes` each (a power of two), adjacent ones and at most
   * `maximumBytes`; returns them, or undefined if no page is wholly free. Linear in the number of
   * blocks.
   */
  removePages(lane: number, pageBytes: number, maximumBytes: number): Segment | undefined {
    const most = Math.min(Math.floor(maximumBytes / unitBytes), maximumUnits);
    const address = most < 1 ? none : indexModule.removePages(this.#index, lane, pageBytes / unitBytes, most);
    if (address < none) throw outOfMemory();
    return address === none ? undefined : { address, bytes: indexModule.removedUnits() * unitBytes };
  }

  /**
   * The bytes that are free in a lane at the end of the segment with the highest addresses. Linear in
   * the number of segments.
   */
  freeTailBytes(lane: number): number {
    return indexModule.freeTail(this.#index, lane) * unitBytes;
  }

  /**
   * Takes `units` units (at least 1) from a lane's free blocks and returns the address, or -1 if no
   * block of the lane is large enough. `slack` is the number of bytes that were not requested, less
   * than 2 GiB. `owner` is any 32-bit number; `ownerOf` returns it.
   */
  allocate(units: number, slack: number, lane: number, owner: number = none): number {
    const address = allocate(this.#index, units, slack, lane, owner);
    if (address < none) throw outOfMemory();
    return address;
  }

  /**
   * Lets every `allocate` also take blocks from this lane if its own has none. There is at most one such lane.
   */
  openLane(lane: number | undefined): void {
    indexModule.openLane(this.#index, lane ?? 0);
  }

  /**
   * Makes a lane the reserve of the index. From other lanes, `allocate` then takes a block of more than
   * `largestFit` units that is larger than the request only if the reserve has no smaller one for it;
   * and if more than `plentyBytes` are used, only if it is at most a quarter larger (a sixteenth from
   * 1 MiB on).
   */
  keepReserve(lane: number, largestFit: number, plentyBytes: number): void {
    indexModule.keepReserve(this.#index, lane, largestFit, plentyBytes / unitBytes);
  }

  /**
   * Whether a lane has a block of `units` units, or only slightly more, as `allocate` accepts when memory is
   * scarce.
   */
  hasClose(units: number, lane: number): boolean {
    return indexModule.hasClose(this.#index, units, lane) === 1;
  }

  /** Whether more than `plentyBytes` of `keepReserve` are used. */
  get isScarce(): boolean {
    return indexModule.isScarce(this.#index) === 1;
  }

  /** Whether `carve`, or `allocate` in an index without a reserve, would find a block of this size. */
  canAllocate(units: number, lane: number): boolean {
    return indexModule.canAllocate(this.#index, units, lane) === 1;
  }

  /**
   * Takes a block for `bytes` bytes, at least 1, from a lane, at a multiple of `alignment`, a power of two
   * from 256. Returns its address, or -1.
   */
  cut(bytes: number, alignment: number, lane: number, owner: number): number {
    const units = Math.ceil(bytes / this.#granuleBytes) * (this.#granuleBytes / unitBytes);
    const slack = units * unitBytes - bytes;
    if (alignment === unitBytes) return this.allocate(units, slack, lane, owner);
    return this.allocateAligned(units, slack, alignment, lane, owner);
  }

  /**
   * As `cut`, but finds a block if any fits, even one behind the first few of its size class. Linear in
   * the number of blocks of that class and above.
   */
  search(bytes: number, alignment: number, lane: number, owner: number): number {
    const units = Math.ceil(bytes / unitBytes);
    return this.allocateAligned(units, units * unitBytes - bytes, alignment, lane, owner);
  }

  /** As `allocate`, at a multiple of `alignment`, a power of two above 256. */
  allocateAligned(units: number, slack: number, alignment: number, lane: number, owner: number = none): number {
    const address = indexModule.allocateAligned(this.#index, units, slack, alignment, lane, owner);
    if (address < none) throw outOfMemory();
    return address;
  }

  /** The used block that starts at an address, for `askedBytes` and `free`, or -1. */
  usedBlock(address: number): number {
    return usedBlock(this.#index, address) || none;
  }

  /** The used block that starts at an address, if it was requested with `bytes` bytes; or -1. */
  usedBlockOf(address: number, bytes: number): number {
    return usedBlockOf(this.#index, address, bytes) || none;
  }

  /** The requested bytes of a used block. */
  askedBytes(block: number): number {
    return askedBytes(block);
  }

  /** The owner that a used block was allocated for. */
  ownerOf(block: number): number {
    return ownerOf(block);
  }

  /** Frees a used block into a lane, and coalesces it with free neighbours of that lane. */
  free(block: number, lane: number): void {
    free(this.#index, block, lane);
  }

  /**
   * Frees the used block that starts at an address, if it was requested with `bytes` bytes, a 32-bit
   * number. Returns whether it did.
   */
  freeAt(address: number, bytes: number, lane: number): boolean {
    return freeAt(this.#index, address, bytes, lane) === 1;
  }

  /**
   * Allocates blocks for up to 2^23 sizes in bytes, up to the first for which there is none, or which is not a whole
   * number from 1 to 2^31 - 256. Puts their addresses into `addresses`, and returns how many there are.
   */
  allocateMany(sizes: Float64Array, lane: number, owner: number, addresses: Float64Array): number {
    const start = areaFor(2 * sizes.length); // so that `freeMany` can undo it
    linearDoubles().set(sizes, start);
    const done = indexModule.allocateMany(this.#index, sizes.length, lane, owner);
    const results = linearDoubles();
    // `subarray` makes an object, which takes as long as a loop over so many numbers.
    if (done > 64) addresses.set(results.subarray(start, start + done));
    else for (let i = 0; i < done; i++) addresses[i] = results[start + i] as number;
    return done;
  }

  /**
   * The place of the first of up to 2^23 addresses that has no used block of its size, or occurs twice; or -1.
   * Address 0 is skipped.
   */
  firstUnused(addresses: Float64Array, sizes: Float64Array): number {
    writePairs(addresses, sizes);
    return indexModule.firstUnused(this.#index, addresses.length);
  }

  /**
   * Frees the blocks at many addresses into a lane, or none if `firstUnused` finds one. Returns the result of
   * `firstUnused`.
   */
  freeMany(addresses: Float64Array, sizes: Float64Array, lane: number): number {
    writePairs(addresses, sizes);
    return indexModule.freeMany(this.#index, addresses.length, lane);
  }

  /** Moves every free block of one lane to another, coalescing neighbours. */
  transfer(from: number, to: number): void {
    indexModule.transfer(this.#index, from, to);
  }

  /**
   * Moves the free blocks of the lane that has fewer to the other, coalescing neighbours. Returns
   * whether the lanes have changed places: the user of `to` must then use the lane `from`, which
   * has all of the memory, and vice versa. Linear in the number of blocks that move.
   */
  join(from: number, to: number): boolean {
    return indexModule.join(this.#index, from, to) === 1;
  }

  /**
   * Moves `units` units of a free block from one lane to another, coalescing neighbours there. Returns
   * whether there was such a block.
   */
  carve(units: number, from: number, to: number): boolean {
    const moved = indexModule.carve(this.#index, units, from, to);
    if (moved < 0) throw outOfMemory();
    return moved === 1;
  }

  /** Removes a wholly free segment of a lane, of at most `maximumBytes`, and returns it. */
  removeFreeSegment(lane: number, maximumBytes = Number.POSITIVE_INFINITY): Segment | undefined {
    if (this.#pageBytes > 0) return this.removePages(lane, this.#pageBytes, maximumBytes);
    const most = Math.min(Math.floor(maximumBytes / unitBytes), maximumUnits);
    // Look at none if none can fit.
    if (most < 1 || this.isEmpty(lane)) return undefined;
    const block = indexModule.findFreeSegment(this.#index, lane, most);
    if (block === 0) return undefined;
    const read = new Reader();
    const removed = { address: read.address(block), bytes: read.word(block, sizeField) * unitBytes };
    indexModule.removeSegment(this.#index, block);
    return removed;
  }

  /** Removes every segment, whether or not it is in use. The index is then empty. */
  removeAllSegments(): Segment[] {
    const segments: Segment[] = [];
    for (const { address, bytes, isHead } of this.blocks()) {
      if (isHead) segments.push({ address, bytes });
      else (segments[segments.length - 1] as { bytes: number }).bytes += bytes;
    }
    indexModule.clear(this.#index);
    return segments;
  }

  /** The bytes that are free in a lane. Linear in its blocks. */
  freeBytes(lane: number): number {
    return indexModule.freeUnits(this.#index, lane) * unitBytes;
  }

  /** The bytes of all used blocks. */
  get usedBytes(): number {
    return indexModule.usedUnits(this.#index) * unitBytes;
  }

  /** The bytes of a lane's largest free block. Linear in the blocks of one list. */
  largestFreeBytes(lane: number): number {
    return indexModule.largestFreeUnits(this.#index, lane) * unitBytes;
  }

  /** What an address refers to, for an error message. Linear in the number of blocks. */
  classify(address: number): AddressClass {
    return classifyAddress(address, this.blocks());
  }

  /** Every block of every segment, in address order within a segment. Must not change meanwhile. */
  *blocks(): Generator<BlockView> {
    indexModule.joinQuick(this.#index);
    const read = new Reader();
    for (const segment of this.#segments(read)) {
      for (const block of this.#blocksOf(read, segment)) {
        const state = read.word(block, stateField);
        yield {
          address: read.address(block),
          bytes: read.word(block, sizeField) * unitBytes,
          lane: Math.max(none, state),
          isHead: read.word(block, previousField) < 0,
        };
      }
    }
  }

  /** Throws if an invariant does not hold. For tests. Linear in everything. */
  validate(): void {
    this.#validateQuickLists(new Reader());
    indexModule.joinQuick(this.#index);
    const read = new Reader();
    const lanes = this.#lanes(read);
    const freeUnits = new Map(lanes.map((lane) => [lane, 0]));
    let used = 0;
    let segments = 0;
    let previousSegment = 0;
    for (const segment of this.#segments(read)) {
      segments++;
      if (read.word(segment, previousSegmentField) !== previousSegment) fail(`segment ${segment} does not point back`);
      previousSegment = segment;
      let previous = ~segment;
      let expected = read.address(read.word(segment, firstBlockField));
      for (const block of this.#blocksOf(read, segment)) {
        const state = read.word(block, stateField);
        const size = read.word(block, sizeField);
        if (read.address(block) !== expected) fail(`block ${block} does not begin where the one before it ends`);
        if (read.word(block, previousField) !== previous) fail(`block ${block} does not point back`);
        if (size < 1) fail(`block ${block} has ${size} units`);
        if (state < 0) {
          used++;
          if (usedBlock(this.#index, expected) !== block) fail(`used block ${block} is not in the table of used blocks`);
        } else {
          const units = freeUnits.get(state);
          if (units === undefined) fail(`block ${block} is in no lane, but ${state}`);
          if (previous >= 0 && read.word(previous, stateField) === state) fail(`block ${block} was not joined`);
          freeUnits.set(state, units + size);
        }
        previous = block;
        expected += size * unitBytes;
      }
      if (read.word(segment, lastBlockField) !== previous) fail(`segment ${segment} does not end with its last block`);
    }
    if (read.word(this.#index, lastSegmentField) !== previousSegment) fail('the segments do not end with the last one');
    if (read.word(this.#index, segmentCountField) !== segments) fail(`${segments} segments, but counts others`);
    this.#validateTable(read, used);
    this.#validateNotices(read, lanes);
    for (const lane of lanes) {
      const listed = this.#validateLists(read, lane);
      const held = freeUnits.get(lane);
      if (listed !== held) fail(`lane ${lane} lists ${listed} units, its segments hold ${held}`);
    }
  }

  /** Checks that blocks in quick lists are free. */
  #validateQuickLists(read: Reader): void {
    if (read.word(this.#index, quickModeField) !== quickKeeping) return;
    for (let field = quickListsField; field < quickListsField + quickListsBytes; field += 4) {
      const block = read.word(this.#index, field);
      if (block === 0) continue;
      if (read.word(block, stateField) < 0) fail(`block ${block} is used, but in a quick list`);
      if (usedBlock(this.#index, read.address(block)) !== 0) fail(`block ${block} is in a quick list, but found as used`);
    }
  }

  /** `used` is the number of used blocks, each of which the table finds. */
  #validateTable(read: Reader, used: number): void {
    const buckets = read.word(this.#index, bucketsField);
    const end = 1 << read.word(this.#index, bucketsOrderField);
    let count = 0;
    for (let bucket = 0; bucket < end; bucket += 4) {
      for (let block = read.word(buckets, bucket); block !== 0; block = read.word(block, nextUsedField)) count++;
    }
    const counted = read.word(this.#index, usedCountField);
    if (used !== counted || used !== count) fail(`${used} used blocks, but counts ${counted}, and ${count} in the table`);
    if (count * 4 > end) fail(`${count} used blocks in ${end / 4} buckets`);
  }

  /** Returns the units in the lists of a lane. */
  #validateLists(read: Reader, lane: number): number {
    this.#validateBits(read, lane);
    let units = 0;
    for (const list of this.#filledLists(read, lane)) {
      let previous = 0;
      for (let block = read.word(lane, headsField + 4 * list); block !== 0; block = read.word(block, nextFreeField)) {
        const size = read.word(block, sizeField);
        if (read.word(block, stateField) !== lane) fail(`block ${block} is in a list of lane ${lane}, but not free in it`);
        if (classOf(size) !== list) fail(`block ${block} is in the wrong list`);
        if (read.word(block, previousFreeField) !== previous) fail(`block ${block} does not point back in its list`);
        previous = block;
        units += size;
      }
    }
    return units;
  }

  /** A list of a lane, or of notices, is empty exactly if its bit is clear. */
  #validateBits(read: Reader, table: number): void {
    for (let group = 0; group < groups; group++) {
      let filled = 0;
      for (let place = 0; place < divisions; place++) {
        if (read.word(table, headsField + 4 * ((group << divisionBits) + place)) !== 0) filled |= 1 << place;
      }
      const bits = read.word(table, listBitsField + (group << groupShift));
      if (bits !== filled) fail(`table ${table}, group ${group}: lists ${filled} are not empty, but bits ${bits}`);
      const bit = (read.word(table, groupBitsField) >>> group) & 1;
      if ((bits !== 0) !== (bit === 1)) fail(`table ${table}: bit of group ${group}`);
    }
  }

  /** The lists of a table that are not empty, by their bits, which have been validated. */
  *#filledLists(read: Reader, table: number): Generator<number> {
    for (let group = 0; group < groups; group++) {
      for (let bits = read.word(table, listBitsField + (group << groupShift)); bits !== 0; bits &= bits - 1)
        yield (group << divisionBits) + 31 - Math.clz32(bits & -bits);
    }
  }

  /** A lane has at most one notice for a list, and knows it; every list of a shared lane that is not empty has one. */
  #validateNotices(read: Reader, lanes: readonly number[]): void {
    const notices = read.word(this.#index, noticesField);
    this.#validateBits(read, notices);
    /** By lane: a bit for each list of which there is a notice, by group. */
    const found = new Map(lanes.map((lane) => [lane, new Int32Array(groups)]));
    for (const list of this.#filledLists(read, notices)) {
      for (let notice = read.word(notices, headsField + 4 * list); notice !== 0; notice = read.word(notice, nextNoticeField)) {
        const lane = read.word(notice, noticeLaneField);
        const bits = found.get(lane);
        if (bits === undefined) fail(`a notice of list ${list} names lane ${lane}, which does not exist`);
        const bit = 1 << (list & (divisions - 1));
        if (((bits[list >>> divisionBits] as number) & bit) !== 0) fail(`list ${list} has two notices of lane ${lane}`);
        bits[list >>> divisionBits] = (bits[list >>> divisionBits] as number) | bit;
      }
    }
    for (const [lane, bits] of found) {
      for (const [group, noticed] of bits.entries()) {
        const known = read.word(lane, noticeBitsField + (group << groupShift));
        if (noticed !== known) fail(`lane ${lane}, group ${group}: notices ${noticed}, but knows ${known}`);
        if (read.word(lane, isSharedField) === 0) continue;
        const missing = read.word(lane, listBitsField + (group << groupShift)) & ~noticed;
        if (missing !== 0) fail(`lane ${lane} is shared, but has no notices ${missing} of group ${group}`);
      }
    }
  }

  #lanes(read: Reader): number[] {
    const lanes: number[] = [];
    for (let lane = read.word(this.#index, firstLaneField); lane !== 0; lane = read.word(lane, nextLaneField)) lanes.push(lane);
    return lanes;
  }

  *#segments(read: Reader): Generator<number> {
    let segment = read.word(this.#index, firstSegmentField);
    for (; segment !== 0; segment = read.word(segment, nextSegmentField)) yield segment;
  }

  *#blocksOf(read: Reader, segment: number): Generator<number> {
    let block = read.word(segment, firstBlockField);
    for (; block > 0; block = read.word(block, nextField)) yield block;
  }
}

/** Reads the linear memory, until it grows. */
class Reader {
  readonly #words = new Int32Array(memory.buffer);
  readonly #doubles = new Float64Array(memory.buffer);

  word(pointer: number, field: number): number {
    return this.#words[(pointer + field) >> 2] as number;
  }

  address(block: number): number {
    return this.#doubles[(block + addressField) >> 3] as number;
  }
}

/** The list for blocks of a size. */
function classOf(units: number): number {
  if (units < divisions) return units;
  const shift = 31 - divisionBits - Math.clz32(units);
  return (shift << divisionBits) + (units >>> shift);
}

/** The linear memory has 2 GiB at most: 16 million blocks and more. */
function outOfMemory(): RangeError {
  return new RangeError(`the free-space indexes cannot grow beyond ${memory.buffer.byteLength} bytes of host memory`);
}

function fail(message: string): never {
  throw new Error(`free-space index: ${message}`);
}

let isCompiled = false;

/**
 * V8 compiles a function of the module when it is first called, which takes longer than the call itself: 190 us for those of
 * a first allocation. They are called here, for an index that serves nothing, when the first resource that needs an index is
 * constructed, so that no allocation of a program waits for it. The first call does it.
 */
function compileAhead(): void {
  if (isCompiled) return;
  isCompiled = true;
  const index = indexModule.createIndex();
  if (index === 0) return;
  const from = indexModule.addLane(index);
  const to = indexModule.addLane(index);
  indexModule.useQuickLists(index, false);
  if (from !== 0 && to !== 0 && indexModule.addSegment(index, 0, 2, from) !== 0) {
    indexModule.openLane(index, from);
    const address = indexModule.allocate(index, 1, 0, to, 0);
    indexModule.freeAt(index, address, ALLOCATION_ALIGNMENT, to);
    indexModule.transfer(index, from, to);
  }
  indexModule.destroyIndex(index);
}
