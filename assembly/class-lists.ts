/**
 * A table of lists, one for each size class, with two levels of bitmaps that show which are not
 * empty. A lane is such a table of free blocks.
 *
 *     groups …0110   class 5 -> block   class 9 -> block -> block
 */
import { divisionBits, divisions, groupBitsField, groupShift, headsField, listBitsField } from '../src/suballocation/index-layout';

/** The list for blocks of a size. */
export function classOf(units: i32): u32 {
  // The sizes below `divisions` are treated as those of the group above, which has as many classes as sizes.
  const shift = 31 - divisionBits - clz(units | divisions);
  return (shift << divisionBits) + (units >>> shift);
}

/** The first entry of a list, or 0. */
export function firstOf(table: u32, list: u32): u32 {
  return load<u32>(table + (list << 2), headsField);
}

/** The non-empty list of the smallest class, or -1. */
export function smallestList(table: u32): i32 {
  const groupBits = load<u32>(table, groupBitsField);
  if (groupBits === 0) return -1;
  const group = ctz(groupBits);
  return (group << divisionBits) + ctz(load<u32>(table + (group << groupShift), listBitsField));
}

/** The non-empty list of the largest class, or -1. */
export function largestList(table: u32): i32 {
  const groupBits = load<u32>(table, groupBitsField);
  if (groupBits === 0) return -1;
  const group = 31 - clz(groupBits);
  return (group << divisionBits) + 31 - clz(load<u32>(table + (group << groupShift), listBitsField));
}

/** The next list above one that is not empty, or -1. */
export function nextList(table: u32, list: u32): i32 {
  let group = list >>> divisionBits;
  // Shifted twice, because a shift by 32 shifts by 0.
  let bits = load<u32>(table + (group << groupShift), listBitsField) & ((-1 << (list & (divisions - 1))) << 1);
  if (bits === 0) {
    const above = load<u32>(table, groupBitsField) & (-2 << group);
    if (above === 0) return -1;
    group = ctz(above);
    bits = load<u32>(table + (group << groupShift), listBitsField);
  }
  return (group << divisionBits) + ctz(bits);
}

/** The list itself or the next below it that is not empty, or -1. */
export function previousList(table: u32, list: u32): i32 {
  let group = list >>> divisionBits;
  // Shifted twice, because a shift by 32 shifts by 0.
  let bits = load<u32>(table + (group << groupShift), listBitsField) & (((1 << (list & (divisions - 1))) << 1) - 1);
  if (bits === 0) {
    const below = load<u32>(table, groupBitsField) & ((1 << group) - 1);
    if (below === 0) return -1;
    group = 31 - clz(below);
    bits = load<u32>(table + (group << groupShift), listBitsField);
  }
  return (group << divisionBits) + 31 - clz(bits);
}

/** A list is not empty any more. */
export function setBit(table: u32, list: u32): void {
  const group = list >>> divisionBits;
  const word = table + (group << groupShift);
  store<u32>(word, load<u32>(word, listBitsField) | (1 << (list & (divisions - 1))), listBitsField);
  store<u32>(table, load<u32>(table, groupBitsField) | (1 << group), groupBitsField);
}

/** A list is empty. */
export function clearBit(table: u32, list: u32): void {
  const group = list >>> divisionBits;
  const word = table + (group << groupShift);
  const bits = load<u32>(word, listBitsField) & ~(1 << (list & (divisions - 1)));
  store<u32>(word, bits, listBitsField);
  if (bits === 0) store<u32>(table, load<u32>(table, groupBitsField) & ~(1 << group), groupBitsField);
}
