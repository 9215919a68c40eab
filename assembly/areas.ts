/**
 * Hands out areas of the linear memory, each of a power of two of bytes. A returned area serves the
 * next request of its size. The memory never shrinks. It grows by an eighth at least: JavaScript gets a
 * new `ArrayBuffer` for every growth, which V8 counts as a whole new memory until it collects the old.
 */

/** Linear memory ends here, so that every pointer is positive as an `i32`. */
const end: u32 = 0x7fff0000;
const pageBits = 16;

/** By the binary logarithm of the size: the first returned area; each holds a pointer to the next. */
const returned: usize = memory.data(32 * 4, 4);
let top: u32 = u32(__heap_base);

/** Returns an area of 2^order bytes, aligned to 64, or 0 if the memory cannot grow. Not cleared. */
export function takeArea(order: u32): u32 {
  const list = returned + (order << 2);
  const first = load<u32>(list);
  if (first !== 0) {
    store<u32>(list, load<u32>(first));
    return first;
  }
  const bytes: u32 = 1 << order;
  const start = (top + 63) & ~63;
  if (bytes > end || start > end - bytes) return 0;
  const needed = start + bytes;
  const held = u32(memory.size()) << pageBits;
  if (needed > held && !hasGrown(needed - held, held)) return 0;
  top = needed;
  return start;
}

function hasGrown(missing: u32, held: u32): bool {
  const pages = i32((missing + 0xffff) >>> pageBits);
  const ample = i32(min(held >>> 3, end - held) >>> pageBits);
  return (ample > pages && memory.grow(ample) >= 0) || memory.grow(pages) >= 0;
}

/** Returns an area to its list. */
export function returnArea(area: u32, order: u32): void {
  const list = returned + (order << 2);
  store<u32>(area, load<u32>(list));
  store<u32>(list, area);
}
