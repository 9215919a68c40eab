/** `bytes` addresses, beginning at `address`. */
export interface Extent {
  readonly address: number;
  readonly bytes: number;
}

/** The index of the last extent that begins at or below an address, or -1; extents are in order. */
export function lastAtOrBelow(extents: readonly Extent[], address: number): number {
  return lastIndex(extents, (extent) => extent.address <= address);
}

/** More make an insertion slow; fewer make the list of chunks long. */
const mostInChunk = 512;

/**
 * Disjoint extents in order of address, in chunks: in one array, extents that come in descending
 * order would take the square of their number.
 */
export class Extents<T extends Extent> {
  /** None is empty. */
  readonly #chunks: T[][] = [];

  *[Symbol.iterator](): Generator<T> {
    for (const chunk of this.#chunks) yield* chunk;
  }

  /** The extent that an address is in. */
  at(address: number): T | undefined {
    const chunk = this.#chunks[this.#chunkOf(address)];
    const extent = chunk?.[lastAtOrBelow(chunk, address)];
    return extent !== undefined && address < extent.address + extent.bytes ? extent : undefined;
  }

  /** The extents that overlap another one, in order of address. */
  *overlapping({ address, bytes }: Extent): Generator<T> {
    const end = address + bytes;
    for (let at = Math.max(0, this.#chunkOf(address)); at < this.#chunks.length; at++) {
      const chunk = this.#chunks[at] as T[];
      for (let i = Math.max(0, lastAtOrBelow(chunk, address)); i < chunk.length; i++) {
        const extent = chunk[i] as T;
        if (extent.address >= end) return;
        if (extent.address + extent.bytes > address) yield extent;
      }
    }
  }

  /** Inserts an extent, replacing the parts of others that overlap it. */
  insert(extent: T): void {
    this.cut(extent);
    const at = Math.max(0, this.#chunkOf(extent.address));
    const chunk = this.#chunks[at];
    if (chunk === undefined) this.#chunks.push([extent]);
    else this.#replace(at, lastAtOrBelow(chunk, extent.address) + 1, 0, [extent]);
  }

  /** Removes addresses. Returns each extent that overlapped them, with the remaining parts. */
  cut({ address, bytes }: Extent): { whole: T; rest: T[] }[] {
    const end = address + bytes;
    const cut: { whole: T; rest: T[] }[] = [];
    for (let at = Math.max(0, this.#chunkOf(address)); at < this.#chunks.length; at++) {
      const chunk = this.#chunks[at] as T[];
      if ((chunk[0] as T).address >= end) break;
      const below = lastAtOrBelow(chunk, address);
      const before = chunk[below];
      const from = before !== undefined && before.address + before.bytes > address ? below : below + 1;
      const to = lastAtOrBelow(chunk, end - 1) + 1;
      if (to <= from) continue;
      const pieces = chunk.slice(from, to).map((whole) => ({ whole, rest: partsOutside(whole, address, end) }));
      for (const piece of pieces) cut.push(piece);
      const chunkCount = this.#chunks.length;
      this.#replace(
        at,
        from,
        to - from,
        pieces.flatMap(({ rest }) => rest),
      );
      at += this.#chunks.length - chunkCount;
    }
    return cut;
  }

  /** The last chunk that begins at or below an address, or -1. */
  #chunkOf(address: number): number {
    return lastIndex(this.#chunks, (chunk) => (chunk[0] as T).address <= address);
  }

  #replace(at: number, from: number, count: number, extents: readonly T[]): void {
    const chunk = this.#chunks[at] as T[];
    chunk.splice(from, count, ...extents);
    if (chunk.length === 0) this.#chunks.splice(at, 1);
    else if (chunk.length > mostInChunk) this.#chunks.splice(at + 1, 0, chunk.splice(chunk.length >>> 1));
  }
}

function partsOutside<T extends Extent>(whole: T, start: number, end: number): T[] {
  const parts: T[] = [];
  if (whole.address < start) parts.push({ ...whole, bytes: start - whole.address });
  if (whole.address + whole.bytes > end) parts.push({ ...whole, address: end, bytes: whole.address + whole.bytes - end });
  return parts;
}

/** The last index at which `isBelow` holds, or -1; it holds up to there. */
function lastIndex<T>(items: readonly T[], isBelow: (item: T) => boolean): number {
  let low = 0;
  for (let high = items.length; low < high; ) {
    const middle = (low + high) >>> 1;
    if (isBelow(items[middle] as T)) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
