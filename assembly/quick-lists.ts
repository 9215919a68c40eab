/**
 * Freed blocks that wait, as they are, for a request of exactly their size, in an index that is told to
 * use such lists. Programs free and allocate the same few sizes again and again; such a block need not be
 * coalesced, entered into a free list, split again and entered into the table of used blocks, in which
 * it stays meanwhile.
 *
 *     hash(3 units)   [ entry, entry,   .  ,   .   ]   the last freed first
 *     hash(8 units)   [ entry,   .  ,   .  ,   .   ]
 *
 * There are four lists, of four entries each. A fifth entry pushes out the oldest; a large request
 * empties all lists first, and so does one for which neither its lane nor the open lane has a block: at
 * most 16 blocks are not coalesced, and none when memory is short.
 *
 * Other requests are placed around what waits, and that costs memory. So the lists first only watch: an
 * entry is then a size that was freed into a lane, and every block is coalesced at once. Each request
 * that an entry serves, or would serve, earns credit, and each entry that leaves unused costs more.
 *
 *     watching   with much credit, the lists begin to keep blocks
 *     keeping    an entry is a block
 *     resting    from when the credit is spent, for many frees; then the lists watch again, without
 *                credit: an entry that leaves unused before any has earned makes them rest again
 *
 * A program whose sizes do not come back is therefore served as if there were no lists.
 */
import {
  quickCreditField,
  quickKeeping,
  quickListsBytes,
  quickListsField,
  quickModeField,
  sizeField,
  stateField,
} from '../src/suballocation/index-layout';

const listBits = 2;
const listBytesBits = 4;
const listBytes: u32 = 1 << listBytesBits;

/** An index that was not told to use its lists: it rests always. */
const never: u32 = 0;
const watching: u32 = 1;
const keeping: u32 = quickKeeping;

const firstCredit: i32 = 24;
/** With how much credit the lists begin to keep blocks. */
const enough: i32 = 36;
/** The most credit. */
const creditLimit: i32 = 64;
/** What an entry costs that leaves its list unused. */
const price: i32 = 4;
/** How many frees pass before the lists watch again. */
const pause: i32 = 1 << 16;
/** The most units of a block in a list: 1 MiB. */
const largestQuick: i32 = 4096;
/** From this many units on, a request empties the lists: 4 MiB. */
const largeRequest: i32 = 16384;

/** Lets an index use its lists: at once, or if it pays. */
export function useQuickLists(index: u32, isAtOnce: bool): void {
  store<u32>(index, isAtOnce ? keeping : watching, quickModeField);
  store<i32>(index, firstCredit, quickCreditField);
}

/** Lets an index rest. There is no block in its lists. */
export function restQuick(index: u32): void {
  memory.fill(index + quickListsField, 0, quickListsBytes);
  const isUsed = load<u32>(index, quickModeField) !== never;
  if (isUsed) store<u32>(index, watching, quickModeField);
  store<i32>(index, isUsed ? -pause : i32.MIN_VALUE, quickCreditField);
}

/** What is left of a rest: less than 0 while an index rests. */
export function restOf(index: u32): i32 {
  return load<i32>(index, quickCreditField);
}

/** Counts a free during the rest. */
export function shortenRest(index: u32, rest: i32): void {
  store<i32>(index, rest + 1, quickCreditField);
}

/** Whether freed blocks wait in the lists. */
export function keepsQuick(index: u32): bool {
  return load<u32>(index, quickModeField) === keeping;
}

export function isSmall(units: i32): bool {
  return units <= largestQuick;
}

export function isLarge(units: i32): bool {
  return units >= largeRequest;
}

/** Enters a block freed into a lane. Returns the one that it pushes out, or 0. */
export function addQuick(index: u32, block: u32, lane: u32): u32 {
  store<u32>(block, lane | 1, stateField);
  return enter(listOf(index, load<i32>(block, sizeField)), block);
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
  if (!keepsQuick(index)) return 0;
  for (let list = index + quickListsField; list < index + quickListsField + quickListsBytes; list += listBytes) {
    const block = load<u32>(list);
    if (block === 0) continue;
    removeEntry(list, list);
    return block;
  }
  return 0;
}

/** Pays for an entry that leaves its list unused. Returns whether that was the last credit. */
export function payUnused(index: u32): bool {
  const credit = max(load<i32>(index, quickCreditField) - price, 0);
  store<i32>(index, credit, quickCreditField);
  return credit === 0;
}

/** Sees a free of a small size while the index watches. */
export function watchFree(index: u32, units: i32, lane: u32): void {
  if (load<u32>(index, quickModeField) === never || (enter(listOf(index, units), lane + units) !== 0 && payUnused(index))) restQuick(index);
}

/** Sees a request while the index watches. */
export function watchRequest(index: u32, units: i32, lane: u32): void {
  if (isLarge(units)) {
    watchLarge(index);
    return;
  }
  const list = listOf(index, units);
  for (let entry = list; entry < list + listBytes; entry += 4) {
    if (load<u32>(entry) !== lane + units) continue;
    removeEntry(list, entry);
    const credit = load<i32>(index, quickCreditField) + 1;
    store<i32>(index, credit, quickCreditField);
    if (credit < enough) return;
    memory.fill(index + quickListsField, 0, quickListsBytes);
    store<u32>(index, keeping, quickModeField);
    return;
  }
}

/** The lists would be emptied. */
function watchLarge(index: u32): void {
  for (let entry = index + quickListsField; entry < index + quickListsField + quickListsBytes; entry += 4) {
    if (load<u32>(entry) === 0) continue;
    store<u32>(entry, 0);
    if (!payUnused(index)) continue;
    restQuick(index);
    return;
  }
}

/** The lane that a block in a list was freed into. */
export function laneOfQuick(block: u32): u32 {
  return load<u32>(block, stateField) & ~1;
}

/** Whether a block is in a list: then it is in the table of used blocks, but not used. */
export function isInQuickList(block: u32): bool {
  return load<i32>(block, stateField) >= 0;
}

/** Makes an entry the first of a list. Returns the one that it pushes out, or 0. */
function enter(list: u32, entry: u32): u32 {
  const oldest = load<u32>(list, 12);
  store<u32>(list, load<u32>(list, 8), 12);
  store<u32>(list, load<u32>(list, 4), 8);
  store<u32>(list, load<u32>(list), 4);
  store<u32>(list, entry);
  return oldest;
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
