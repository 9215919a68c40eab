/**
 * Operations on many blocks in one call. Their sizes and addresses are doubles in an area of the linear
 * memory, which JavaScript writes before the call and reads after it.
 */
import { addressField } from '../src/suballocation/index-layout';
import { returnArea, takeArea } from './areas';
import { allocate, freeUsed, usedBlockOf } from './free-space-index';

/** The area, and the binary logarithm of its bytes. */
let area: u32 = 0;
let order: u32 = 12;

/** The area, with room for `count` doubles, up to 2^24; or 0 if there is no memory. Its contents are lost if it grows. */
export function numbersFor(count: u32): u32 {
  if (area !== 0 && count <= 1 << (order - 3)) return area;
  let needed = order;
  while (count > 1 << (needed - 3)) needed++;
  const larger = takeArea(needed);
  if (larger === 0) return 0;
  if (area !== 0) returnArea(area, order);
  area = larger;
  order = needed;
  return area;
}

/**
 * Allocates as `allocate` does for the first `count` numbers, which are sizes in bytes, and puts the addresses in
 * their places, up to one that finds no block, or is not a whole number from 1 to 2^31 - 256. Returns how many it did.
 */
export function allocateMany(index: u32, count: i32, lane: u32, owner: i32): i32 {
  const end = area + (count << 3);
  let number = area;
  for (; number < end; number += 8) {
    const size = load<f64>(number);
    const bytes = lowBits(size);
    if (f64(bytes) !== size || bytes <= 0 || bytes > 0x7fffff00) break;
    const units = (bytes + 255) >>> 8;
    const address = allocate(index, units, (units << 8) - bytes, lane, owner);
    if (address < 0) break;
    store<f64>(number, address);
  }
  return (number - area) >>> 3;
}

/** A whole number of 32 bits as an integer, without the checks of a conversion. Of another number, anything. */
function lowBits(number: f64): i32 {
  return i32(reinterpret<i64>(number + 4503599627370496));
}

/**
 * The place of the first of `count` addresses at which no block is used with its size, which is so many numbers
 * further on, or which comes twice; or -1. Address 0 is skipped.
 */
export function firstUnused(index: u32, count: i32): i32 {
  let checked = 0;
  for (; checked < count; checked++) {
    const number = area + (checked << 3);
    const address = load<f64>(number);
    const bytes = load<f64>(number + (count << 3));
    const block = address === 0 ? 0 : usedBlockOf(index, address, bytes);
    if (block === 0 && (address !== 0 || !isSafe(bytes))) break;
    store<u32>(number, block);
    // It is not found a second time.
    if (block !== 0) store<f64>(block, -address, addressField);
  }
  for (let i = 0; i < checked; i++) {
    const block = load<u32>(area + (i << 3));
    if (block !== 0) store<f64>(block, -load<f64>(block, addressField), addressField);
  }
  return checked < count ? checked : -1;
}

/** Whether a number of bytes is one that JavaScript has exactly. */
function isSafe(bytes: f64): bool {
  return bytes >= 0 && bytes < f64(1 << 30) * f64(1 << 23) && f64(i64(bytes)) === bytes;
}

/** Frees the blocks at addresses, as in `firstUnused`, into a lane; none if that finds one. Returns what it does. */
export function freeMany(index: u32, count: i32, lane: u32): i32 {
  const unused = firstUnused(index, count);
  for (let i = 0; i < count && unused < 0; i++) {
    const block = load<u32>(area + (i << 3));
    if (block !== 0) freeUsed(index, block, lane);
  }
  return unused;
}
