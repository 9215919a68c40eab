/** `bytes` addresses, beginning at `address`. */
export interface Extent {
  readonly address: number;
  readonly bytes: number;
}

/** The index of the last extent that begins at or below an address, or -1; extents are in order. */
export function lastAtOrBelow(extents: readonly Extent[], address: number): number {
  let low = 0;
  for (let high = extents.length; low < high; ) {
    const middle = (low + high) >>> 1;
    if ((extents[middle] as Extent).address <= address) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Inserts an extent into ordered, disjoint extents, replacing the parts that overlap it. */
export function insertExtent<T extends Extent>(extents: T[], extent: T): void {
  cutExtents(extents, extent);
  extents.splice(lastAtOrBelow(extents, extent.address) + 1, 0, extent);
}

/**
 * Removes addresses from extents. Returns each extent that overlapped them, with the remaining
 * parts.
 */
export function cutExtents<T extends Extent>(extents: T[], { address, bytes }: Extent): { whole: T; rest: T[] }[] {
  const end = address + bytes;
  const below = lastAtOrBelow(extents, address);
  const before = extents[below];
  const from = before !== undefined && before.address + before.bytes > address ? below : below + 1;
  const to = lastAtOrBelow(extents, end - 1) + 1;
  if (to <= from) return [];
  const pieces = extents.slice(from, to).map((whole) => {
    const rest: T[] = [];
    if (whole.address < address) rest.push({ ...whole, bytes: address - whole.address });
    if (whole.address + whole.bytes > end) rest.push({ ...whole, address: end, bytes: whole.address + whole.bytes - end });
    return { whole, rest };
  });
  extents.splice(from, to - from, ...pieces.flatMap(({ rest }) => rest));
  return pieces;
}
