/**
 * Finds used blocks by their addresses.
 *
 * Data structure: a hash table with chains. A bucket is the first block of a chain, and the blocks of
 * a chain are linked through the field that only free blocks need otherwise, so the table itself
 * has 4 to 8 bytes for each block, and a look-up touches little but the block that is sought.
 *
 *     bucket(a) = the topmost bits of the 32 bits of a / 256 · 2^32 / φ
 *     buckets   [ . | a -> c | b | . ]
 *
 * Blocks start at multiples of 256, so the low eight bits carry no information. The topmost bits of
 * the product (Fibonacci hashing) are far apart for neighbouring addresses, and for most other
 * series.
 *
 * Invariant: there are at least as many buckets as blocks.
 * Cost: expected constant time.
 */
import {
  addressField,
  bucketShiftField,
  bucketsField,
  bucketsOrderField,
  nextUsedField,
  sizeField,
  unitBits,
  usedCountField,
  usedUnitsField,
} from '../src/suballocation/index-layout';
import { returnArea, takeArea } from './areas';

/** An index begins with 64 buckets of 4 bytes. */
const firstOrder: u32 = 8;

/** Makes an index's table an empty one. Returns whether there was memory for it. */
export function createBuckets(index: u32): bool {
  const buckets = takeArea(firstOrder);
  if (buckets === 0) return false;
  memory.fill(buckets, 0, 1 << firstOrder);
  setBuckets(index, buckets, firstOrder);
  return true;
}

/** Empties an index's table. */
export function clearBuckets(index: u32): void {
  memory.fill(load<u32>(index, bucketsField), 0, 1 << load<u32>(index, bucketsOrderField));
}

export function returnBuckets(index: u32): void {
  returnArea(load<u32>(index, bucketsField), load<u32>(index, bucketsOrderField));
}

/** Makes room for one more block. Returns false if there is no memory. */
export function hasBucket(index: u32): bool {
  const order = load<u32>(index, bucketsOrderField);
  return load<u32>(index, usedCountField) << 2 < u32(1) << order || grow(index, order);
}

/** Adds a block, after `hasBucket`. */
export function addUsed(index: u32, block: u32, address: f64): void {
  const bucket = bucketOf(index, address);
  store<u32>(block, load<u32>(bucket), nextUsedField);
  store<u32>(bucket, block);
  store<u32>(index, load<u32>(index, usedCountField) + 1, usedCountField);
  store<f64>(index, load<f64>(index, usedUnitsField) + f64(load<i32>(block, sizeField)), usedUnitsField);
}

/** The used block that starts at an address, or 0. */
export function findUsed(index: u32, address: f64): u32 {
  let block = load<u32>(bucketOf(index, address));
  while (block !== 0 && load<f64>(block, addressField) !== address) block = load<u32>(block, nextUsedField);
  return block;
}

/** Removes a block that starts at an address. */
export function removeUsed(index: u32, block: u32, address: f64): void {
  const bucket = bucketOf(index, address);
  const next = load<u32>(block, nextUsedField);
  let previous = load<u32>(bucket);
  if (previous === block) {
    store<u32>(bucket, next);
  } else {
    while (load<u32>(previous, nextUsedField) !== block) previous = load<u32>(previous, nextUsedField);
    store<u32>(previous, next, nextUsedField);
  }
  store<u32>(index, load<u32>(index, usedCountField) - 1, usedCountField);
  store<f64>(index, load<f64>(index, usedUnitsField) - f64(load<i32>(block, sizeField)), usedUnitsField);
}

function grow(index: u32, order: u32): bool {
  const larger = takeArea(order + 1);
  if (larger === 0) return false;
  const bytes: u32 = 1 << order;
  memory.fill(larger, 0, 2 * bytes);
  const buckets = load<u32>(index, bucketsField);
  setBuckets(index, larger, order + 1);
  for (let old: u32 = 0; old < bytes; old += 4) {
    for (let block = load<u32>(buckets + old); block !== 0; ) {
      const next = load<u32>(block, nextUsedField);
      const bucket = bucketOf(index, load<f64>(block, addressField));
      store<u32>(block, load<u32>(bucket), nextUsedField);
      store<u32>(bucket, block);
      block = next;
    }
  }
  returnArea(buckets, order);
  return true;
}

function setBuckets(index: u32, buckets: u32, order: u32): void {
  store<u32>(index, buckets, bucketsField);
  store<u32>(index, order, bucketsOrderField);
  store<u32>(index, 32 + 2 - order, bucketShiftField);
}

/** The pointer to the bucket of an address. */
function bucketOf(index: u32, address: f64): u32 {
  const hash = u32(i64(address) >> unitBits) * 0x9e3779b1;
  return load<u32>(index, bucketsField) + ((hash >>> load<u32>(index, bucketShiftField)) << 2);
}
