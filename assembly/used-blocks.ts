/**
 * Finds used blocks by their addresses.
 *
 * Data structure: a hash table with chains. A bucket is the first block of a chain, and the blocks of
 * a chain are linked through the field that only free blocks need otherwise, so the table itself
 * has 4 to 8 bytes for each block, and a look-up touches little but the block that is sought.
 *
 *     bucket(a) = the topmost bits of the 64 bits of a · 2^64 / φ, where a is a double's bits
 *     buckets   [ . | a -> c | b | . ]
 *
 * The topmost bits of the product (Fibonacci hashing) are far apart for neighbouring addresses, and for
 * most other series.
 *
 * Invariant: there are at least as many buckets as blocks.
 * Cost: expected constant time.
 */
import {
  addressField,
  bucketCountField,
  bucketShiftField,
  bucketsField,
  bucketsOrderField,
  nextUsedField,
  sizeField,
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
  return hasSpareBucket(index) || grow(index);
}

/** Whether there is room for one more block. */
export function hasSpareBucket(index: u32): bool {
  return load<u32>(index, usedCountField) < load<u32>(index, bucketCountField);
}

/** Adds a block, after `hasBucket`. */
export function addUsed(index: u32, block: u32, address: f64): void {
  const bucket = bucketOf(index, address);
  store<u32>(block, load<u32>(bucket), nextUsedField);
  store<u32>(bucket, block);
  store<u32>(index, load<u32>(index, usedCountField) + 1, usedCountField);
  store<i64>(index, load<i64>(index, usedUnitsField) + load<i32>(block, sizeField), usedUnitsField);
}

/** The used block that starts at an address, or 0. */
export function findUsed(index: u32, address: f64): u32 {
  return load<u32>(linkTo(index, address));
}

/** The pointer to the pointer to the used block that starts at an address; or to the 0 that ends its chain. */
export function linkTo(index: u32, address: f64): u32 {
  let link = bucketOf(index, address);
  let block = load<u32>(link);
  // The bits are compared, which takes fewer instructions than comparing doubles.
  while (block !== 0) {
    if (load<i64>(block, addressField) === reinterpret<i64>(address)) break;
    link = block + nextUsedField;
    block = load<u32>(link);
  }
  return link;
}

/** Removes a block that starts at an address. */
export function removeUsed(index: u32, block: u32, address: f64): void {
  removeLinked(index, block, linkTo(index, address));
}

/** Removes a block, given the link to it. */
export function removeLinked(index: u32, block: u32, link: u32): void {
  store<u32>(link, load<u32>(block, nextUsedField));
  store<u32>(index, load<u32>(index, usedCountField) - 1, usedCountField);
  store<i64>(index, load<i64>(index, usedUnitsField) - load<i32>(block, sizeField), usedUnitsField);
}

function grow(index: u32): bool {
  const order = load<u32>(index, bucketsOrderField);
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
  store<u32>(index, 1 << (order - 2), bucketCountField);
  store<u32>(index, 64 + 2 - order, bucketShiftField);
}

/** The pointer to the bucket of an address. */
function bucketOf(index: u32, address: f64): u32 {
  const hash = reinterpret<u64>(address) * ((u64(0x9e3779b9) << 32) | 0x7f4a7c15);
  return load<u32>(index, bucketsField) + (u32(hash >>> load<u32>(index, bucketShiftField)) << 2);
}
