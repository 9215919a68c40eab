/**
 * The block of a plan's allocations, and which of its places are in use.
 *
 * A place is an offset at which the plan puts allocations; at most one at a time is live there.
 *
 *     offsets   0        4096      8192
 *     asked     [ 4000 ] [ 0 ]     [ 256 ]     0: nothing is live there
 *
 * The blocks of earlier plans are kept until they have no live allocations.
 *
 * For stream ordering, a lane stands for a stream that has used the block since everything was last
 * ordered.
 */

import type { KeptMemory } from '../adaptors/pooling/keeper.js';
import { ALLOCATION_ALIGNMENT, alignUp } from '../basics/units.js';
import { AddressMap } from '../suballocation/address-map.js';
import { AddressTable } from '../suballocation/address-table.js';
import { type AddressClass, type BlockView, classifyAddress, none, type Segment } from '../suballocation/blocks.js';
import type { Plan } from './plan.js';

/** The block of an earlier plan. */
interface EarlierBlock extends Segment {
  /** How many allocations are live in it. */
  live: number;
}

export class PlannedBlock implements KeptMemory {
  /** The block from the upstream, and where the plan begins in it. */
  segment: Segment | undefined;
  base: number = none;
  #totalBytes = 0;
  #alignment = ALLOCATION_ALIGNMENT;
  /** By place. */
  offsets = new Float64Array(0);
  asked = new Float64Array(0);
  #placeAt = new AddressMap();
  /** Blocks of earlier plans; and what is live in them, by address. */
  #earlier: readonly EarlierBlock[] = [];
  #kept = new AddressTable<number>();
  /** Called when the stream of a lane has ended. */
  streamEnded: ((lane: number, ended: number) => void) | undefined;
  /** Called when the plan has a block, or none any more. */
  moved: (() => void) | undefined;
  /** By lane: whether its stream has used the block. */
  readonly #isUsed: boolean[] = [];

  /** Sets the plan. There must be no block for the one before. */
  setPlan({ offsets, totalBytes, alignmentBytes }: Plan): void {
    const distinct = [...new Set(Array.from(offsets))].sort((a, b) => a - b);
    this.offsets = Float64Array.from(distinct);
    this.asked = new Float64Array(distinct.length);
    this.#placeAt = new AddressMap(distinct.length);
    distinct.forEach((offset, place) => {
      this.#placeAt.insert(offset, place);
    });
    this.#totalBytes = totalBytes;
    this.#alignment = alignmentBytes;
  }

  /** Keeps the block only until nothing is live in it. */
  retire(): void {
    const { segment } = this;
    if (segment === undefined) return;
    let live = 0;
    this.asked.forEach((bytes, place) => {
      if (bytes === 0) return;
      this.#kept.set(this.base + (this.offsets[place] as number), bytes);
      live++;
    });
    this.#earlier = [...this.#earlier, { ...segment, live }];
    this.#clear();
  }

  /** Bytes of the blocks of earlier plans in which nothing is live. */
  get spareBytes(): number {
    let sum = 0;
    for (const { bytes, live } of this.#earlier) if (live === 0) sum += bytes;
    return sum;
  }

  /** Bytes of the blocks of earlier plans in which something is live. */
  get pinnedBytes(): number {
    let sum = 0;
    for (const { bytes, live } of this.#earlier) if (live > 0) sum += bytes;
    return sum;
  }

  /** How many allocations are live. */
  get liveCount(): number {
    return this.asked.reduce((count, bytes) => count + (bytes > 0 ? 1 : 0), this.#kept.size);
  }

  /** What to take from the upstream, so that the plan fits at its alignment. */
  get segmentBytes(): number {
    return alignUp(this.#totalBytes, ALLOCATION_ALIGNMENT) + this.#alignment - ALLOCATION_ALIGNMENT;
  }

  /** The place with an offset, or -1. */
  placeAt(offset: number): number {
    return this.#placeAt.get(offset);
  }

  contains(pointer: number): boolean {
    return (this.segment !== undefined && isIn(this.segment, pointer)) || this.#earlier.some((segment) => isIn(segment, pointer));
  }

  /** A stream uses the block from now on. */
  use(lane: number): void {
    this.#isUsed[lane] = true;
  }

  /** Everything was ordered after a stream's use. */
  forget(lane: number): void {
    this.#isUsed[lane] = false;
  }

  get isInUse(): boolean {
    return this.asked.some((bytes) => bytes > 0);
  }

  addLane(): number {
    return this.#isUsed.push(false) - 1;
  }

  isEmpty(lane: number): boolean {
    return this.#isUsed[lane] !== true;
  }

  transfer(from: number, to: number): void {
    if (this.#isUsed[from] === true) this.#isUsed[to] = true;
    this.#isUsed[from] = false;
  }

  /** The number of the lane goes to another stream. */
  redirect(from: number, to: number): void {
    this.streamEnded?.(from, to);
  }

  /** The stream of a lane may have freed memory since its last event. */
  isAwaited(lane: number): boolean {
    return this.#isUsed[lane] === true;
  }

  /** A block that comes late, for which there is another by now, is spare. */
  addSegment(address: number, bytes: number, lane: number): void {
    this.use(lane);
    if (this.segment !== undefined || bytes < this.segmentBytes) {
      this.#earlier = [...this.#earlier, { address, bytes, live: 0 }];
      return;
    }
    this.segment = { address, bytes };
    this.base = alignUp(address, this.#alignment);
    this.moved?.();
  }

  hasFreeSegment(maximumBytes: number): boolean {
    const { segment } = this;
    const isBlockFree = segment !== undefined && segment.bytes <= maximumBytes && !this.isInUse;
    return isBlockFree || this.#earlier.some((each) => each.bytes <= maximumBytes && each.live === 0);
  }

  /** Every stream uses any part of a block, so it can only go while its uses are all in one lane. */
  removeFreeSegment(lane: number, maximumBytes: number): Segment | undefined {
    if (this.#isUsed.some((isUsed, other) => isUsed && other !== lane)) return undefined;
    const spare = this.#earlier.find((each) => each.bytes <= maximumBytes && each.live === 0);
    if (spare !== undefined) {
      this.#earlier = this.#earlier.filter((each) => each !== spare);
      return { address: spare.address, bytes: spare.bytes };
    }
    const { segment } = this;
    if (segment === undefined || segment.bytes > maximumBytes || this.isInUse) return undefined;
    this.#clear();
    return segment;
  }

  /** The block, and those of earlier plans. */
  get segments(): readonly Segment[] {
    return [...this.#earlier, ...(this.segment === undefined ? [] : [this.segment])];
  }

  removeAllSegments(): Segment[] {
    const segments = this.segments.map(({ address, bytes }) => ({ address, bytes }));
    this.#earlier = [];
    this.#kept = new AddressTable();
    this.#clear();
    return segments;
  }

  /** The place of an allocation; for one in a block of an earlier plan, a number above all places. */
  usedBlock(address: number): number {
    if (this.#kept.has(address)) return this.offsets.length + address;
    const place = this.base === none ? none : this.placeAt(address - this.base);
    return place !== none && (this.asked[place] as number) > 0 ? place : none;
  }

  askedBytes(place: number): number {
    const { length } = this.offsets;
    return (place < length ? this.asked[place] : this.#kept.get(place - length)) as number;
  }

  free(place: number): void {
    const { length } = this.offsets;
    if (place < length) {
      this.asked[place] = 0;
      return;
    }
    const address = place - length;
    this.#kept.delete(address);
    for (const block of this.#earlier) if (isIn(block, address)) block.live--;
  }

  largestFreeBytes(): number {
    let largest = 0;
    for (const { bytes, lane } of this.blocks()) if (lane >= 0) largest = Math.max(largest, bytes);
    return largest;
  }

  classify(address: number): AddressClass {
    return classifyAddress(address, this.blocks());
  }

  *blocks(): Generator<BlockView> {
    for (const segment of this.#earlier) yield* viewsOf(segment, this.#keptIn(segment));
    if (this.segment === undefined) return;
    const live: [number, number][] = [];
    this.asked.forEach((bytes, place) => {
      if (bytes > 0) live.push([this.base + (this.offsets[place] as number), bytes]);
    });
    yield* viewsOf(this.segment, live);
  }

  validate(): void {
    let before = none;
    for (const { address, bytes, isHead } of this.blocks()) {
      if (!isHead && address < before) throw new Error(`two allocations of the plan overlap at ${address}`);
      before = address + bytes;
    }
  }

  /** What is live in a block of an earlier plan, by address. */
  #keptIn(segment: Segment): [number, number][] {
    return [...this.#kept].filter(([address]) => isIn(segment, address)).sort(([a], [b]) => a - b);
  }

  #clear(): void {
    this.segment = undefined;
    this.base = none;
    this.asked.fill(0);
    this.moved?.();
  }
}

function isIn({ address, bytes }: Segment, pointer: number): boolean {
  return pointer >= address && pointer < address + bytes;
}

/** The parts of a block: allocations, in address order, and what is free between them. */
function* viewsOf({ address: first, bytes: length }: Segment, live: readonly (readonly [number, number])[]): Generator<BlockView> {
  let at = first;
  for (const [address, asked] of live) {
    if (address > at) yield { address: at, bytes: address - at, lane: 0, isHead: at === first };
    const bytes = alignUp(asked, ALLOCATION_ALIGNMENT);
    yield { address, bytes, lane: none, isHead: address === first };
    at = address + bytes;
  }
  if (at < first + length) yield { address: at, bytes: first + length - at, lane: 0, isHead: at === first };
}
