/**
 * The operations of the free-space index. What they do, and what the structure looks like, is
 * described in `src/suballocation/free-space-index.ts`, which calls them.
 *
 * An operation that needs memory obtains all of it before it changes anything, and returns
 * `noMemory` or false if there is none. One that looks at the free blocks of a lane, other than
 * `allocate`, empties the quick lists first.
 */
import {
  addressField,
  firstBlockField,
  firstLaneField,
  firstSegmentField,
  fitField,
  groupBitsField,
  isSharedField,
  laneNoticesField,
  largestFitField,
  lastBlockField,
  lastSegmentField,
  listBitsField,
  lowestFit,
  maximumUnits,
  nextCandidateField,
  nextField,
  nextFreeField,
  nextLaneField,
  nextSegmentField,
  noticesField,
  openLaneField,
  ownerField,
  plentyField,
  previousField,
  previousSegmentField,
  segmentCountField,
  sizeField,
  stateField,
  tableBytes,
  unitBits,
  usedCountField,
  usedUnitsField,
} from '../src/suballocation/index-layout';
import { returnArea, takeArea } from './areas';
import { classOf, firstOf, largestList, nextList } from './class-lists';
import {
  addFree,
  anyFree,
  findAligned,
  findFree,
  findLow,
  findLowest,
  followingFree,
  hasFewer,
  largeUnits,
  misalignment,
  removeFree,
  resizeFree,
} from './lanes';
import {
  addQuick,
  anyQuick,
  isInQuickList,
  isLarge,
  isSmall,
  keepsQuick,
  laneOfQuick,
  payUnused,
  restOf,
  restQuick,
  shortenRest,
  takeQuick,
  watchFree,
  watchRequest,
} from './quick-lists';
import { hasRecords, hasSpareRecord, returnRecord, returnTable, takeRecord, takeTable } from './records';
import { clearNotices, findShared, largestShared, setShared } from './shared-lanes';
import {
  addUsed,
  clearBuckets,
  createBuckets,
  findUsed,
  hasBucket,
  hasSpareBucket,
  linkTo,
  removeLinked,
  removeUsed,
  returnBuckets,
} from './used-blocks';

export { useQuickLists } from './quick-lists';

const none: f64 = -1;
const noMemory: f64 = -2;
const indexOrder: u32 = 8;

/** Returns a new index, or 0 if there is no memory for it. */
export function createIndex(): u32 {
  const index = takeArea(indexOrder);
  if (index === 0) return 0;
  memory.fill(index, 0, 1 << indexOrder);
  const notices = takeTable();
  if (notices === 0 || !createBuckets(index)) {
    if (notices !== 0) returnTable(notices);
    returnArea(index, indexOrder);
    return 0;
  }
  store<u32>(index, notices, noticesField);
  restQuick(index);
  return index;
}

/** Returns all memory of an index, which must not be used any more. */
export function destroyIndex(index: u32): void {
  returnBlocks(index);
  returnBuckets(index);
  clearNotices(load<u32>(index, noticesField));
  returnTable(load<u32>(index, noticesField));
  for (let lane = load<u32>(index, firstLaneField); lane !== 0; ) {
    const next = load<u32>(lane, nextLaneField);
    returnTable(lane);
    lane = next;
  }
  returnArea(index, indexOrder);
}

/** Adds an empty lane and returns it, or 0 if there is no memory. */
export function addLane(index: u32): u32 {
  const lane = takeTable();
  if (lane === 0) return 0;
  store<u32>(lane, load<u32>(index, firstLaneField), nextLaneField);
  store<u32>(lane, load<u32>(index, noticesField), laneNoticesField);
  store<u32>(index, lane, firstLaneField);
  return lane;
}

export function isEmpty(index: u32, lane: u32): bool {
  joinQuick(index);
  return load<u32>(lane, groupBitsField) === 0;
}

/** Says whether other streams may take from a lane. A new lane is not shared. */
export function shareLane(lane: u32, isShared: bool): void {
  setShared(lane, isShared);
}

/** A shared lane other than two in which `allocate` succeeds, or 0 if none of a few has such a block. Passes over the first ones. */
export function laneWith(index: u32, units: i32, own: u32, second: u32, passed: i32): u32 {
  joinQuick(index);
  return findShared(load<u32>(index, noticesField), units, own, second, passed);
}

/** A shared lane other than two that is not empty, of those with the largest blocks; or 0. Passes over the first ones. */
export function fullLane(index: u32, own: u32, second: u32, passed: i32): u32 {
  joinQuick(index);
  return largestShared(load<u32>(index, noticesField), own, second, passed);
}

/** Returns false if there is no memory. */
export function addSegment(index: u32, address: f64, units: i32, lane: u32): bool {
  if (!hasRecords(2)) return false;
  const block = takeRecord();
  store<i32>(block, units, sizeField);
  store<f64>(block, address, addressField);
  addSegmentRecord(index, block, block);
  addFree(block, units, lane);
  return true;
}

/**
 * As `addSegment`, but the range joins the segments that it touches, unless that makes one of more
 * than `maximumUnits`. Linear in the segments.
 */
export function extendSegment(index: u32, address: f64, units: i32, lane: u32): bool {
  if (!hasRecords(1)) return false;
  const end = address + bytesOf(units);
  let before: u32 = 0;
  let after: u32 = 0;
  for (let segment = load<u32>(index, firstSegmentField); segment !== 0; segment = load<u32>(segment, nextSegmentField)) {
    if (endOf(load<u32>(segment, lastBlockField)) === address) before = segment;
    if (load<f64>(load<u32>(segment, firstBlockField), addressField) === end) after = segment;
  }
  if (after !== 0 && unitsBetween(address, after) > maximumUnits) after = 0;
  const joined = after === 0 ? i64(units) : unitsBetween(address, after);
  if (before !== 0 && unitsBetween(load<f64>(load<u32>(before, firstBlockField), addressField), before) + joined > maximumUnits) before = 0;
  if (before === 0 && after === 0) return addSegment(index, address, units, lane);
  const block = takeRecord();
  store<i32>(block, units, sizeField);
  store<f64>(block, address, addressField);
  const previous: i32 = before !== 0 ? load<u32>(before, lastBlockField) : ~after;
  const next: i32 = after !== 0 ? load<u32>(after, firstBlockField) : ~before;
  if (before !== 0 && after !== 0) {
    const last = load<u32>(after, lastBlockField);
    store<i32>(last, ~before, nextField);
    store<u32>(before, last, lastBlockField);
    removeSegmentRecord(index, after);
  }
  link(previous, block);
  linkNext(block, next);
  addJoined(block, lane);
  return true;
}

/**
 * Removes whole pages of a power of two of units from a free block of a lane, at most `maximum`
 * units, from its end; and returns their address, or `none` or `noMemory`. `removedUnits` says how
 * many they were. The segment ends before them, and what is after them becomes a segment of its
 * own. Linear in the segment's blocks.
 */
export function removePages(index: u32, lane: u32, pageUnits: i32, maximum: i32): f64 {
  joinQuick(index);
  for (let list = largestList(lane); list >= i32(classOf(pageUnits)); list--) {
    for (let block = firstOf(lane, list); block !== 0; block = load<u32>(block, nextFreeField)) {
      const start = i64(load<f64>(block, addressField)) >> unitBits;
      const size = load<i32>(block, sizeField);
      const end = (start + size) & ~i64(pageUnits - 1);
      const first = max((start + pageUnits - 1) & ~i64(pageUnits - 1), end - (i64(maximum) & ~i64(pageUnits - 1)));
      if (first >= end) continue;
      if (!hasRecords(2)) return noMemory;
      removed = i32(end - first);
      removeFree(block, size, lane);
      cutOut(index, block, i32(first - start), removed, lane);
      return f64(first << unitBits);
    }
  }
  return none;
}

let removed: i32 = 0;

/** The units that the last call of `removePages` removed. */
export function removedUnits(): i32 {
  return removed;
}

/** The free units of a lane at the end of the segment with the highest addresses. Linear in the segments. */
export function freeTail(index: u32, lane: u32): i32 {
  joinQuick(index);
  let highest: u32 = 0;
  for (let segment = load<u32>(index, firstSegmentField); segment !== 0; segment = load<u32>(segment, nextSegmentField)) {
    const block = load<u32>(segment, lastBlockField);
    if (highest === 0 || load<f64>(block, addressField) > load<f64>(highest, addressField)) highest = block;
  }
  return highest !== 0 && load<u32>(highest, stateField) === lane ? load<i32>(highest, sizeField) : 0;
}

/**
 * Returns an address, `none` or `noMemory`. In an index with a reserve, a loose fit counts as none
 * (`keepReserve`).
 */
export function allocate(index: u32, units: i32, slack: i32, lane: u32, owner: i32): f64 {
  if (restOf(index) >= 0) {
    if (isSmall(units) || isLarge(units)) return allocateQuickly(index, units, slack, lane, owner);
  }
  if (load<u32>(index, fitField) !== 0) return allocateByFit(index, units, slack, lane, owner);
  const block = findFree(lane, units);
  if (block === 0) return allocateOtherwise(index, units, slack, lane, owner);
  if (!hasSpareBucket(index)) return allocateWithMore(index, block, units, slack, lane, owner);
  if (!hasSpareRecord()) return allocateWithMore(index, block, units, slack, lane, owner);
  return use(index, block, units, slack, lane, owner);
}

/** As `allocate`, for a small or large request while the quick lists do not rest. */
function allocateQuickly(index: u32, units: i32, slack: i32, lane: u32, owner: i32): f64 {
  let block: u32 = 0;
  if (!keepsQuick(index)) watchRequest(index, units, lane);
  else if (isLarge(units)) joinAllUnused(index);
  else block = takeQuick(index, units, lane);
  if (block !== 0) {
    store<i32>(block, ~slack, stateField);
    store<i32>(block, owner, ownerField);
    return load<f64>(block, addressField);
  }
  if (load<u32>(index, fitField) !== 0) return allocateByFit(index, units, slack, lane, owner);
  block = findFree(lane, units);
  if (block !== 0) return allocateWithMore(index, block, units, slack, lane, owner);
  return allocateOtherwise(index, units, slack, lane, owner);
}

/** A free block of a lane with at least `units` units, as an index without a reserve chooses it; or 0. */
function findFit(index: u32, lane: u32, units: i32): u32 {
  return load<u32>(index, fitField) === lowestFit ? findLowest(lane, units) : findFree(lane, units);
}

/** As `allocate`, if the lane has no block. */
function allocateOtherwise(index: u32, units: i32, slack: i32, lane: u32, owner: i32): f64 {
  const open = load<u32>(index, openLaneField);
  const block = open === 0 ? 0 : findFit(index, open, units);
  if (block !== 0) return allocateWithMore(index, block, units, slack, open, owner);
  return joinQuick(index) ? allocate(index, units, slack, lane, owner) : none;
}

/** Lets every `allocate` take from a lane what its own does not have. There is one such lane, or none (0). */
export function openLane(index: u32, lane: u32): void {
  store<u32>(index, lane, openLaneField);
}

/** As `allocate`, in an index that takes the lowest blocks, or that has a reserve. */
function allocateByFit(index: u32, units: i32, slack: i32, lane: u32, owner: i32): f64 {
  const reserve = load<u32>(index, fitField);
  const takesLowest = reserve === lowestFit;
  const block = takesLowest ? findLowest(lane, units) : findLow(lane, units);
  // With a reserve, nothing is kept elsewhere.
  if (block === 0) return allocateOtherwise(index, units, slack, lane, owner);
  if (!takesLowest && reserve !== lane && isLoose(index, block, units, reserve)) return none;
  return allocateWithMore(index, block, units, slack, lane, owner);
}

/** Uses a free block, and obtains the memory first that this may take. */
function allocateWithMore(index: u32, block: u32, units: i32, slack: i32, lane: u32, owner: i32): f64 {
  if (!hasBucket(index)) return noMemory;
  if (load<i32>(block, sizeField) !== units && !hasRecords(1)) return noMemory;
  return use(index, block, units, slack, lane, owner);
}

export function canAllocate(index: u32, units: i32, lane: u32): bool {
  joinQuick(index);
  return findFree(lane, units) !== 0;
}

/** Lets `allocate` take the lowest of the first few blocks that fit, instead of the smallest. */
export function takeLowest(index: u32): void {
  store<u32>(index, lowestFit, fitField);
}

/**
 * Makes a lane the index's reserve: `allocate` then takes only close fits from other lanes. A loose one,
 * a block of more than `largestFit` units that is larger than the request, is left alone if the reserve
 * has a smaller block for the request; and if memory is scarce, that is, if more than `plenty` units are
 * used, unless it is at most a little larger.
 */
export function keepReserve(index: u32, lane: u32, largestFit: i32, plenty: f64): void {
  store<u32>(index, lane, fitField);
  store<i32>(index, largestFit, largestFitField);
  store<f64>(index, plenty, plentyField);
}

export function isScarce(index: u32): bool {
  return f64(load<i64>(index, usedUnitsField)) > load<f64>(index, plentyField);
}

/** Whether a lane has a block for a request that is at most a little larger. */
export function hasClose(index: u32, units: i32, lane: u32): bool {
  joinQuick(index);
  const block = findLow(lane, units);
  return block !== 0 && isClose(load<i32>(block, sizeField), units);
}

function isLoose(index: u32, block: u32, units: i32, reserve: u32): bool {
  const least = max(units, load<i32>(index, largestFitField));
  const size = load<i32>(block, sizeField);
  if (size <= least) return false;
  if (isScarce(index)) return !isClose(size, least);
  // By class only: this is on the way of most allocations that split a block.
  const list = nextList(reserve, classOf(least));
  return list >= 0 && u32(list) < classOf(size);
}

/** Whether a block is at most a quarter larger than needed, or a sixteenth if it is large. */
function isClose(size: i32, units: i32): bool {
  return size - units <= units >>> (units < largeUnits ? 2 : 4);
}

/** As `allocate`, at a multiple of an alignment in bytes, a power of two. */
export function allocateAligned(index: u32, units: i32, slack: i32, alignment: f64, lane: u32, owner: i32): f64 {
  joinQuick(index);
  // Any block this large has an aligned address with enough space after it.
  const sufficient = i64(units) + (i64(alignment) >> unitBits) - 1;
  let block = sufficient <= maximumUnits ? findFit(index, lane, i32(sufficient)) : 0;
  if (block === 0) block = findAligned(lane, units, alignment);
  if (block === 0) return none;
  if (!hasRecords(2) || !hasBucket(index)) return noMemory;
  const misaligned = misalignment(load<f64>(block, addressField), alignment);
  if (misaligned !== 0) {
    const skipped = i32((i64(alignment) - misaligned) >> unitBits);
    addFree(cutFront(block, load<i32>(block, sizeField), skipped, lane), skipped, lane);
  }
  return use(index, block, units, slack, lane, owner);
}

/** The used block that starts at an address, or 0. */
export function usedBlock(index: u32, address: f64): u32 {
  const block = findUsed(index, address);
  return block === 0 || isInQuickList(block) ? 0 : block;
}

export function askedBytes(block: u32): f64 {
  return f64(asked(block));
}

function asked(block: u32): i64 {
  return (i64(load<i32>(block, sizeField)) << unitBits) - i64(~load<i32>(block, stateField));
}

export function ownerOf(block: u32): i32 {
  return load<i32>(block, ownerField);
}

/** Frees a used block into a lane. */
export function free(index: u32, block: u32, lane: u32): void {
  removeUsed(index, block, load<f64>(block, addressField));
  addJoined(block, lane);
}

/** As `usedBlock`, if so many bytes were asked for. */
export function usedBlockOf(index: u32, address: f64, bytes: f64): u32 {
  const block = usedBlock(index, address);
  return block !== 0 && askedBytes(block) === bytes ? block : 0;
}

/** Frees the block that starts at an address, if so many bytes, less than 2 GiB, were asked for. Returns whether it did. */
export function freeAt(index: u32, address: f64, bytes: i32, lane: u32): bool {
  const link = linkTo(index, address);
  const block = load<u32>(link);
  if (block === 0) return false;
  if (isInQuickList(block)) return false;
  if (asked(block) !== i64(bytes)) return false;
  if (freeIfQuick(index, block, lane)) return true;
  removeLinked(index, block, link);
  addJoined(block, lane);
  return true;
}

/** Frees a used block into a lane, as `freeAt` does. */
export function freeUsed(index: u32, block: u32, lane: u32): void {
  if (!freeIfQuick(index, block, lane)) free(index, block, lane);
}

/** Enters a block that is freed into a quick list, if it is to and they do not rest. Returns whether it did. */
function freeIfQuick(index: u32, block: u32, lane: u32): bool {
  const rest = restOf(index);
  if (rest >= 0) return freeQuickly(index, block, lane);
  shortenRest(index, rest);
  return false;
}

/** Enters a block that is freed into a quick list, if it is to. */
function freeQuickly(index: u32, block: u32, lane: u32): bool {
  const units = load<i32>(block, sizeField);
  if (!isSmall(units)) return false;
  if (!keepsQuick(index)) {
    watchFree(index, units, lane);
    return false;
  }
  const oldest = addQuick(index, block, lane);
  if (oldest !== 0) joinUnused(index, oldest);
  return true;
}

/** Empties the quick lists. Returns whether there was anything in them. */
export function joinQuick(index: u32): bool {
  let block = anyQuick(index);
  if (block === 0) return false;
  for (; block !== 0; block = anyQuick(index)) coalesce(index, block);
  return true;
}

/** Coalesces a block that left its quick list unused, and all others if that took the last credit. */
function joinUnused(index: u32, block: u32): void {
  coalesce(index, block);
  if (!payUnused(index)) return;
  joinQuick(index);
  restQuick(index);
}

/** Empties the quick lists before a large request. */
function joinAllUnused(index: u32): void {
  for (let block = anyQuick(index); block !== 0; block = anyQuick(index)) joinUnused(index, block);
}

/** Coalesces a block that left its quick list. */
function coalesce(index: u32, block: u32): void {
  const lane = laneOfQuick(block);
  removeUsed(index, block, load<f64>(block, addressField));
  addJoined(block, lane);
}

/** Moves every free block of one lane to another, coalescing neighbours. */
export function transfer(index: u32, from: u32, to: u32): void {
  joinQuick(index);
  for (let block = anyFree(from); block !== 0; block = anyFree(from)) {
    removeFree(block, load<i32>(block, sizeField), from);
    addJoined(block, to);
  }
}

/**
 * Brings the free blocks of two lanes together. Those of the lane that has fewer move, so that a
 * block moves at most log n times among n blocks. Returns whether they are in `from` now: the two
 * lanes have then exchanged all else, and each must take the other's place.
 */
export function join(index: u32, from: u32, to: u32): bool {
  joinQuick(index);
  if (!hasFewer(to, from)) {
    transfer(index, from, to);
    return false;
  }
  transfer(index, to, from);
  const isShared = load<u32>(to, isSharedField) !== 0;
  setShared(to, load<u32>(from, isSharedField) !== 0);
  setShared(from, isShared);
  return true;
}

/**
 * Moves `units` units of a free block to another lane. Returns 1 if there was one, 0 if not, -1 if there
 * is no memory.
 */
export function carve(index: u32, units: i32, from: u32, to: u32): i32 {
  joinQuick(index);
  let block = findLow(from, units);
  if (block === 0) return 0;
  const size = load<i32>(block, sizeField);
  if (size > units) {
    if (!hasRecords(1)) return -1;
    block = cutFront(block, size, units, from);
  } else {
    removeFree(block, size, from);
  }
  addJoined(block, to);
  return 1;
}

/**
 * Returns the only block of a segment that is wholly free in a lane and has at most `maximumUnits`
 * units, or 0.
 */
export function findFreeSegment(index: u32, lane: u32, maximum: i32): u32 {
  joinQuick(index);
  let segment = load<u32>(index, nextCandidateField);
  for (let left = load<u32>(index, segmentCountField); left > 0; left--) {
    if (segment === 0) segment = load<u32>(index, firstSegmentField);
    const block = load<u32>(segment, firstBlockField);
    const isFound =
      block === load<u32>(segment, lastBlockField) && load<u32>(block, stateField) === lane && load<i32>(block, sizeField) <= maximum;
    if (isFound) {
      store<u32>(index, segment, nextCandidateField);
      return block;
    }
    segment = load<u32>(segment, nextSegmentField);
  }
  store<u32>(index, segment, nextCandidateField);
  return 0;
}

/** Removes a segment, of which this is the only block, and which is free. */
export function removeSegment(index: u32, block: u32): void {
  removeFree(block, load<i32>(block, sizeField), load<u32>(block, stateField));
  removeSegmentRecord(index, ~load<i32>(block, previousField));
  returnRecord(block);
}

/** Removes every segment. */
export function clear(index: u32): void {
  joinQuick(index);
  returnBlocks(index);
  clearBuckets(index);
  clearNotices(load<u32>(index, noticesField));
  store<u32>(index, 0, usedCountField);
  store<i64>(index, 0, usedUnitsField);
  store<u32>(index, 0, firstSegmentField);
  store<u32>(index, 0, lastSegmentField);
  store<u32>(index, 0, nextCandidateField);
  store<u32>(index, 0, segmentCountField);
  for (let lane = load<u32>(index, firstLaneField); lane !== 0; lane = load<u32>(lane, nextLaneField)) {
    store<u32>(lane, 0, groupBitsField);
    memory.fill(lane + listBitsField, 0, tableBytes - listBitsField);
  }
}

/** The units that are free in a lane. Linear in its blocks. */
export function freeUnits(index: u32, lane: u32): f64 {
  joinQuick(index);
  let units: i64 = 0;
  for (let block = anyFree(lane); block !== 0; block = followingFree(lane, block)) units += load<i32>(block, sizeField);
  return f64(units);
}

/** The units of all used blocks. */
export function usedUnits(index: u32): f64 {
  joinQuick(index);
  return f64(load<i64>(index, usedUnitsField));
}

/** The units of a lane's largest free block. Linear in the blocks of one list. */
export function largestFreeUnits(index: u32, lane: u32): i32 {
  joinQuick(index);
  const list = largestList(lane);
  let largest = 0;
  if (list < 0) return largest;
  for (let block = firstOf(lane, list); block !== 0; block = load<u32>(block, nextFreeField)) {
    largest = max(largest, load<i32>(block, sizeField));
  }
  return largest;
}

/** Turns the first units of a free block into a used block, after `hasBucket` and `hasRecords`, and returns its address. */
function use(index: u32, found: u32, units: i32, slack: i32, lane: u32, owner: i32): f64 {
  const size = load<i32>(found, sizeField);
  let block = found;
  if (size === units) removeFree(block, units, lane);
  else block = cutFront(found, size, units, lane);
  store<i32>(block, ~slack, stateField);
  store<i32>(block, owner, ownerField);
  const address = load<f64>(block, addressField);
  addUsed(index, block, address);
  return address;
}

/**
 * Splits the first `units` units off a free block into a block of their own, in no list. The free
 * block keeps its record for the rest.
 */
function cutFront(free: u32, size: i32, units: i32, lane: u32): u32 {
  const block = takeRecord();
  const address = load<f64>(free, addressField);
  const previous = load<i32>(free, previousField);
  store<i32>(block, units, sizeField);
  store<i32>(block, free, nextField);
  store<f64>(block, address, addressField);
  link(previous, block);
  store<i32>(free, block, previousField);
  store<f64>(free, address + bytesOf(units), addressField);
  resizeFree(free, size, size - units, lane);
  return block;
}

/**
 * Makes a block that is in no list a free one of a lane: it is coalesced with free neighbours of
 * the lane, or else enters a list itself.
 */
function addJoined(block: u32, lane: u32): void {
  const size = load<i32>(block, sizeField);
  const previous = load<i32>(block, previousField);
  const next = load<i32>(block, nextField);
  const previousLane = previous > 0 ? load<u32>(previous, stateField) : 0;
  const nextLane = next > 0 ? load<u32>(next, stateField) : 0;
  if (previousLane === lane) {
    let joined = size;
    let last = next;
    if (nextLane === lane) {
      const nextSize = load<i32>(next, sizeField);
      joined += nextSize;
      removeFree(next, nextSize, lane);
      last = load<i32>(next, nextField);
      returnRecord(next);
    }
    const previousSize = load<i32>(previous, sizeField);
    linkNext(previous, last);
    returnRecord(block);
    resizeFree(previous, previousSize, previousSize + joined, lane);
  } else if (nextLane === lane) {
    const nextSize = load<i32>(next, sizeField);
    store<f64>(next, load<f64>(block, addressField), addressField);
    link(previous, next);
    returnRecord(block);
    resizeFree(next, nextSize, nextSize + size, lane);
  } else {
    addFree(block, size, lane);
  }
}

/** Adds a segment with these blocks at its ends. */
function addSegmentRecord(index: u32, first: u32, last: u32): void {
  const segment = takeRecord();
  const previous = load<u32>(index, lastSegmentField);
  store<u32>(segment, previous, previousSegmentField);
  store<u32>(segment, 0, nextSegmentField);
  if (previous !== 0) store<u32>(previous, segment, nextSegmentField);
  else store<u32>(index, segment, firstSegmentField);
  store<u32>(index, segment, lastSegmentField);
  store<u32>(index, load<u32>(index, segmentCountField) + 1, segmentCountField);
  link(~segment, first);
  linkNext(last, ~segment);
}

function removeSegmentRecord(index: u32, segment: u32): void {
  const previous = load<u32>(segment, previousSegmentField);
  const next = load<u32>(segment, nextSegmentField);
  if (previous !== 0) store<u32>(previous, next, nextSegmentField);
  else store<u32>(index, next, firstSegmentField);
  if (next !== 0) store<u32>(next, previous, previousSegmentField);
  else store<u32>(index, previous, lastSegmentField);
  if (load<u32>(index, nextCandidateField) === segment) store<u32>(index, next, nextCandidateField);
  store<u32>(index, load<u32>(index, segmentCountField) - 1, segmentCountField);
  returnRecord(segment);
}

/**
 * Takes units out of a block that is in no list, after the first `before` ones. What is left of the
 * block on either side becomes free in a lane.
 */
function cutOut(index: u32, block: u32, before: i32, units: i32, lane: u32): void {
  const size = load<i32>(block, sizeField);
  let previous = load<i32>(block, previousField);
  let next = load<i32>(block, nextField);
  const after = size - before - units;
  if (after > 0) {
    const rest = takeRecord();
    store<i32>(rest, after, sizeField);
    store<f64>(rest, load<f64>(block, addressField) + bytesOf(before + units), addressField);
    linkNext(rest, next);
    addFree(rest, after, lane);
    next = rest;
  }
  if (before > 0) {
    store<i32>(block, before, sizeField);
    addFree(block, before, lane);
    previous = block;
  } else {
    returnRecord(block);
  }
  if (next < 0 && previous < 0) {
    removeSegmentRecord(index, ~previous);
  } else if (next < 0) {
    linkNext(previous, next);
  } else if (previous < 0) {
    link(previous, next);
  } else {
    let last: u32 = next;
    while (load<i32>(last, nextField) > 0) last = load<i32>(last, nextField);
    const segment = load<i32>(last, nextField);
    linkNext(previous, segment);
    addSegmentRecord(index, next, last);
  }
}

/** Lets a block precede another one or, if `next` is negative, end a segment. */
function linkNext(block: u32, next: i32): void {
  store<i32>(block, next, nextField);
  if (next < 0) store<u32>(~next, block, lastBlockField);
  else store<i32>(next, block, previousField);
}

function bytesOf(units: i32): f64 {
  return f64(i64(units) << unitBits);
}

/** The address after a block. */
function endOf(block: u32): f64 {
  return load<f64>(block, addressField) + bytesOf(load<i32>(block, sizeField));
}

/** The units from an address to the end of a segment. */
function unitsBetween(address: f64, segment: u32): i64 {
  return i64(endOf(load<u32>(segment, lastBlockField)) - address) >> unitBits;
}

/** Lets a block follow another one or, if `previous` is negative, begin a segment. */
function link(previous: i32, block: u32): void {
  store<i32>(block, previous, previousField);
  if (previous < 0) store<u32>(~previous, block, firstBlockField);
  else store<u32>(previous, block, nextField);
}

/** Returns the records of all blocks and segments. */
function returnBlocks(index: u32): void {
  for (let segment = load<u32>(index, firstSegmentField); segment !== 0; ) {
    for (let block = load<i32>(segment, firstBlockField); block > 0; ) {
      const next = load<i32>(block, nextField);
      returnRecord(block);
      block = next;
    }
    const next = load<u32>(segment, nextSegmentField);
    returnRecord(segment);
    segment = next;
  }
}
