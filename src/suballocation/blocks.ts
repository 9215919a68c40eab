import { ALLOCATION_ALIGNMENT, alignUp } from '../basics/units.js';

/** No block, or no address. */
export const none = -1;

/** What a pointer refers to in an index of blocks. */
export type AddressClass = 'used' | 'free' | 'inside' | 'foreign';

/** A range that was added to an index in one piece. */
export interface Segment {
  readonly address: number;
  readonly bytes: number;
}

/** One block in an index's listing. */
export interface BlockView {
  readonly address: number;
  readonly bytes: number;
  /** Negative for a used block. */
  readonly lane: number;
  /** Whether it is the first of its segment. */
  readonly isHead: boolean;
}

/**
 * The bytes of a block that has room for a request. Blocks begin at multiples of 256, so the first
 * aligned address may be up to `alignment - 256` bytes after the start.
 */
export function leastBlockBytes(bytes: number, alignment: number): number {
  return alignUp(bytes, ALLOCATION_ALIGNMENT) + alignment - ALLOCATION_ALIGNMENT;
}

/** What an address refers to among blocks, for an error message. Linear in their number. */
export function classifyAddress(address: number, blocks: Iterable<BlockView>): AddressClass {
  for (const { address: start, bytes, lane } of blocks) {
    if (address < start || address >= start + bytes) continue;
    if (lane >= 0) return 'free';
    return address === start ? 'used' : 'inside';
  }
  return 'foreign';
}

/** Whether an address lies in one of the segments, which are in address order. */
export function isWithin(segments: readonly Segment[], address: number): boolean {
  return segmentAround(segments, address) !== undefined;
}

/** The segment that an address lies in; the segments are in address order. */
export function segmentAround<T extends Segment>(segments: readonly T[], address: number): T | undefined {
  let low = 0;
  let high = segments.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((segments[middle] as Segment).address <= address) low = middle + 1;
    else high = middle;
  }
  const last = segments[low - 1];
  return last !== undefined && address < last.address + last.bytes ? last : undefined;
}
