/**
 * The free lists of a lane, one for each size class, with two levels of bitmaps that show which are
 * not empty.
 *
 *     lane    groups …0110   class 5 -> block   class 9 -> block -> block
 *
 * A request is served from the blocks of its own class, if one of the first few fits, and otherwise
 * from the next class that has any; always with the smallest of the first few blocks that fit, the
 * lowest address among equals. An index may choose low blocks instead (`findLow`, `findLowest`).
 */
import {
  addressField,
  classes,
  divisions,
  headsField,
  isSharedField,
  maximumUnits,
  nextFreeField,
  previousFreeField,
  sizeField,
  stateField,
  unitBits,
} from '../src/suballocation/index-layout';
import { classOf, clearBit, firstOf, nextList, setBit, smallestList } from './class-lists';
import { noteList } from './notices';

/** How many blocks of a list are examined. */
const scanLimit = 8;

/** How many classes above the request's own are looked at for a low block. */
const lowClasses = 8;

/** From this many units on, a request is large: 1 MiB. */
export const largeUnits = 4096;
/** How many blocks are examined for a large request. */
const largeScanLimit = 16;

/** A free block of a lane with at least `units` units, or 0. */
export function findFree(lane: u32, units: i32): u32 {
  for (let list: i32 = classOf(units); list >= 0; list = nextList(lane, list)) {
    const first = firstOf(lane, list);
    if (first === 0) continue;
    // Below this, all blocks of a list have one size.
    if (list < 2 * divisions) return first;
    const block = smallestFit(first, units);
    if (block !== 0) return block;
  }
  return 0;
}

/**
 * As `findFree`, but of the blocks that would be split, returns the lowest: among the first few of the request's own class,
 * and the first ones of the next few classes. So small allocations lie close together, and keep fewer pages.
 */
export function findLowest(lane: u32, units: i32): u32 {
  let list: i32 = classOf(units);
  let best: u32 = 0;
  let left = scanLimit;
  for (let block = firstOf(lane, list); block !== 0 && left > 0; block = load<u32>(block, nextFreeField)) {
    const size = load<i32>(block, sizeField);
    if (size === units) return block;
    if (size > units && (best === 0 || isBelow(block, best))) best = block;
    left--;
  }
  for (left = lowClasses; left > 0; left--) {
    list = nextList(lane, list);
    if (list < 0) break;
    const block = firstOf(lane, list);
    if (best === 0 || isBelow(block, best)) best = block;
  }
  return best;
}

/**
 * As `findFree`, for a lane in which large blocks of different sizes come and go. Returns a block of
 * exactly `units` units; else the one with the lowest address among the first few that fit
 * and are at most half larger than the first one found. A large block at a low address leaves a rest
 * that is more likely to coalesce with something large again than the rest of the smallest block.
 */
export function findLow(lane: u32, units: i32): u32 {
  if (units < largeUnits) return findFree(lane, units);
  let best: u32 = 0;
  let last: i32 = classes - 1;
  let left = largeScanLimit;
  for (let list: i32 = classOf(units); list >= 0 && list <= last; list = nextList(lane, list)) {
    let here = scanLimit;
    for (let block = firstOf(lane, list); block !== 0 && here > 0; block = load<u32>(block, nextFreeField)) {
      const size = load<i32>(block, sizeField);
      if (size === units) return block;
      if (size > units) {
        if (best === 0) last = classOf(i32(min(i64(size) + (size >> 1), i64(maximumUnits))));
        if (best === 0 || isBelow(block, best)) best = block;
      }
      here--;
    }
    left -= scanLimit - here;
    if (best !== 0 && left <= 0) return best;
  }
  return best;
}

/**
 * A block that fits only because of its address, or 0. Looks at every block of the lane that is
 * large enough.
 */
export function findAligned(lane: u32, units: i32, alignment: f64): u32 {
  for (let list: i32 = classOf(units); list >= 0; list = nextList(lane, list)) {
    for (let block = firstOf(lane, list); block !== 0; block = load<u32>(block, nextFreeField)) {
      const misaligned = misalignment(load<f64>(block, addressField), alignment);
      const skipped = misaligned === 0 ? 0 : (i64(alignment) - misaligned) >> unitBits;
      if (skipped + units <= load<i32>(block, sizeField)) return block;
    }
  }
  return 0;
}

/** How many bytes an address lies above a multiple of an alignment. */
export function misalignment(address: f64, alignment: f64): i64 {
  return i64(address) & (i64(alignment) - 1);
}

/** The first free block of a lane, from which `followingFree` leads to all others; or 0. */
export function anyFree(lane: u32): u32 {
  const list = smallestList(lane);
  return list < 0 ? 0 : firstOf(lane, list);
}

/** The next free block of a lane, in its list or the first of a list above; or 0. */
export function followingFree(lane: u32, block: u32): u32 {
  const next = load<u32>(block, nextFreeField);
  if (next !== 0) return next;
  const list = nextList(lane, classOf(load<i32>(block, sizeField)));
  return list < 0 ? 0 : firstOf(lane, list);
}

/** Whether a lane has fewer free blocks than another. Linear in the number that it has, if it does. */
export function hasFewer(lane: u32, other: u32): bool {
  let block = anyFree(lane);
  let otherBlock = anyFree(other);
  while (block !== 0 && otherBlock !== 0) {
    block = followingFree(lane, block);
    otherBlock = followingFree(other, otherBlock);
  }
  return otherBlock !== 0;
}

/** Makes a block that is in no list a free one of a lane. */
export function addFree(block: u32, units: i32, lane: u32): void {
  store<u32>(block, lane, stateField);
  addToList(block, classOf(units), lane);
}

/** Takes a free block out of its list. */
export function removeFree(block: u32, units: i32, lane: u32): void {
  removeFromList(block, classOf(units), lane);
}

/** Changes the size of a free block, which keeps its place in its list if its class stays the same. */
export function resizeFree(block: u32, from: i32, to: i32, lane: u32): void {
  const list = classOf(from);
  const newList = classOf(to);
  store<i32>(block, to, sizeField);
  if (list === newList) return;
  removeFromList(block, list, lane);
  addToList(block, newList, lane);
}

/** The smallest of the first few blocks of a list that fit, the lowest address among equals; or 0. */
function smallestFit(first: u32, units: i32): u32 {
  let best: u32 = 0;
  // More than the excess of any block that fits. As a number without a sign, that of one too small is greater still.
  let least: u32 = 1 << 31;
  let left = scanLimit;
  for (let block = first; block !== 0; block = load<u32>(block, nextFreeField)) {
    const excess: u32 = load<i32>(block, sizeField) - units;
    if (excess < least) {
      best = block;
      least = excess;
    } else if (excess === least) {
      if (isBelow(block, best)) best = block;
    }
    if (--left === 0) break;
  }
  return best;
}

/** Whether one of the first few blocks of a list fits. */
export function hasFit(first: u32, units: i32): bool {
  let block = first;
  for (let left = scanLimit; left > 0 && block !== 0; left--) {
    if (load<i32>(block, sizeField) >= units) return true;
    block = load<u32>(block, nextFreeField);
  }
  return false;
}

function isBelow(block: u32, other: u32): bool {
  return load<f64>(block, addressField) < load<f64>(other, addressField);
}

function addToList(block: u32, list: u32, lane: u32): void {
  const head = lane + (list << 2);
  const first = load<u32>(head, headsField);
  store<u32>(block, 0, previousFreeField);
  store<u32>(block, first, nextFreeField);
  store<u32>(head, block, headsField);
  if (first !== 0) {
    store<u32>(first, block, previousFreeField);
    return;
  }
  setBit(lane, list);
  if (load<u32>(lane, isSharedField) !== 0) noteList(lane, list);
}

function removeFromList(block: u32, list: u32, lane: u32): void {
  const previous = load<u32>(block, previousFreeField);
  const next = load<u32>(block, nextFreeField);
  if (next !== 0) store<u32>(next, previous, previousFreeField);
  if (previous !== 0) {
    store<u32>(previous, next, nextFreeField);
    return;
  }
  store<u32>(lane + (list << 2), next, headsField);
  if (next === 0) clearBit(lane, list);
}
