/** No block, or no address. */
export const none = -1;

/** What a pointer is to an index of blocks. */
export type AddressClass = 'used' | 'free' | 'inside' | 'foreign';

/** A range that was added to an index as a whole. */
export interface Segment {
  readonly address: number;
  readonly bytes: number;
}

/** One block, as an index lists them. */
export interface BlockView {
  readonly address: number;
  readonly bytes: number;
  /** Negative for a used block. */
  readonly lane: number;
  /** Whether it is the first of its segment. */
  readonly isHead: boolean;
}

/** What an address is among blocks, for an error message: linear in their number. */
export function classifyAddress(address: number, blocks: Iterable<BlockView>): AddressClass {
  for (const { address: start, bytes, lane } of blocks) {
    if (address < start || address >= start + bytes) continue;
    if (lane >= 0) return 'free';
    return address === start ? 'used' : 'inside';
  }
  return 'foreign';
}
