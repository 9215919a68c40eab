/**
 * Freed blocks that wait, as they are, for a request of exactly their size, in an index that is told to
 * keep some. Programs free and allocate the same few sizes again and again; such a block need not be
 * coalesced, entered into a free list, split again and entered into the table of used blocks, in which
 * it stays meanwhile.
 *
 *     hash(3 units)   [ block, block,   .  ,   .   ]   the last freed first
 *     hash(8 units)   [ block,   .  ,   .  ,   .   ]
 *
 * There are four lists, of four blocks each. A fifth block pushes out the oldest, and before a lane is
 * found to have no block for a request, all lists are emptied: at most 16 blocks are not coalesced, and
 * none when memory is short. Yet other requests are served around these blocks, so memory is more
 * fragmented than without.
 *
 * If sizes do not come back, the lists only delay what must be done anyway. So each request that a list
 * serves earns credit, and each block that leaves unused costs some. Without credit, blocks are
 * coalesced at once; after many frees the lists get another chance.
 */
import { quickCreditField, quickListsBytes, quickListsField, sizeField, stateField } from '../src/suballocation/index-layout';

const listBits = 2;
const listBytesBits = 4;
const listBytes: u32 = 1 << listBytesBits;

const firstCredit: i32 = 32;
const creditLimit: i32 = 64;
/** What a block costs that leaves its list unused. */
const price: i32 = 2;
/** How many frees pass before the lists are tried again. */
const pause: i32 = 1 << 16;
/** The most units of a block in a list: 1 MiB. */
const largestQuick: i32 = 4096;

/** Lets an index use its lists. */
export function useQuickLists(index: u32): void {
  store<i32>(index, firstCredit, quickCreditField);
}

/** Whether an index was told to use its lists. */
export function hasQuickLists(index: u32): bool {
  return load<i32>(index, quickCreditField) !== 0;
}

/** Whether there may be blocks in the lists. */
export function usesQuickLists(index: u32): bool {
  return load<i32>(index, quickCreditField) > 0;
}

/** Whether a block that is freed enters a list. Counts the frees until the lists are used again. */
export function isQuick(index: u32, block: u32): bool {
  const credit = load<i32>(index, quickCreditField);
  if (credit > 0) return load<i32>(block, sizeField) <= largestQuick;
  if (credit < 0) store<i32>(index, credit === -1 ? firstCredit : credit + 1, quickCreditField);
  return false;
}

/** Enters a block freed into a lane. Returns the one that it pushes out, or 0. */
export function addQuick(index: u32, block: u32, lane: u32): u32 {
  const list = listOf(index, load<i32>(block, sizeField));
  const oldest = load<u32>(list, 12);
  store<u32>(list, load<u32>(list, 8), 12);
  store<u32>(list, load<u32>(list, 4), 8);
  store<u32>(list, load<u32>(list), 4);
  store<u32>(list, block);
  store<u32>(block, lane | 1, stateField);
  return oldest;
}

/** Takes a block of exactly `units` units that was freed into a lane; or returns 0. */
export function takeQuick(index: u32, units: i32, lane: u32): u32 {
  const list = listOf(index, units);
  for (let entry = list; entry < list + listBytes; entry += 4) {
    const block = load<u32>(entry);
    if (block === 0) return 0;
    if (load<i32>(block, sizeField) !== units || load<u32>(block, stateField) !== (lane | 1)) continue;
    removeEntry(list, entry);
    const credit = load<i32>(index, quickCreditField);
    if (credit < creditLimit) store<i32>(index, credit + 1, quickCreditField);
    return block;
  }
  return 0;
}

/** Takes any block out of the lists, or returns 0. */
export function anyQuick(index: u32): u32 {
  // An index that was not told to use its lists has no credit, ever.
  if (load<i32>(index, quickCreditField) === 0) return 0;
  for (let list = index + quickListsField; list < index + quickListsField + quickListsBytes; list += listBytes) {
    const block = load<u32>(list);
    if (block === 0) continue;
    removeEntry(list, list);
    return block;
  }
  return 0;
}

/** Counts a block that left its list unused, and returns the lane that it was freed into. */
export function laneOfUnused(index: u32, block: u32): u32 {
  const credit = load<i32>(index, quickCreditField);
  if (credit > 0) store<i32>(index, credit > price ? credit - price : -pause, quickCreditField);
  return load<u32>(block, stateField) & ~1;
}

/** Whether a block is in a list: then it is in the table of used blocks, but not used. */
export function isInQuickList(block: u32): bool {
  return load<i32>(block, stateField) >= 0;
}

/** The entries of a list that are in use are the first ones. */
function removeEntry(list: u32, entry: u32): void {
  const last = list + listBytes - 4;
  for (; entry < last; entry += 4) store<u32>(entry, load<u32>(entry, 4));
  store<u32>(last, 0);
}

function listOf(index: u32, units: i32): u32 {
  return index + quickListsField + (((u32(units) * 0x9e3779b1) >>> (32 - listBits)) << listBytesBits);
}
