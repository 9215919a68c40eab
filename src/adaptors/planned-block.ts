/**
 * The one block that a plan's allocations lie in: which of its places are in use.
 *
 * A place is an offset at which the plan puts allocations; at most one at a time is live there.
 *
 *     offsets   0        4096      8192
 *     asked     [ 4000 ] [ 0 ]     [ 256 ]     0: nothing is live there
 *
 * For stream ordering, a lane stands for a stream that has used the block since everything was last
 * ordered.
 */

import { type AddressClass, type BlockView, classifyAddress, none, type Segment } from '../suballocation/blocks.js';
import { ALLOCATION_ALIGNMENT, alignUp } from '../units.js';
import type { KeptMemory } from './stream-ordered-memory-resource.js';

export class PlannedBlock implements KeptMemory {
  /** The block from the upstream, and where the plan begins in it. */
  segment: Segment | undefined;
  base: number = none;
  readonly totalBytes: number;
  readonly #alignment: number;
  /** By place. */
  readonly offsets: Float64Array;
  readonly asked: Float64Array;
  readonly #placeAt = new Map<number, number>();
  /** Called when the stream of a lane has ended. */
  streamEnded: ((lane: number, ended: number) => void) | undefined;
  /** By lane: whether its stream has used the block. */
  readonly #isUsed: boolean[] = [];

  constructor(offsets: ArrayLike<number>, totalBytes: number, alignment: number) {
    const distinct = [...new Set(Array.from(offsets))].sort((a, b) => a - b);
    this.offsets = Float64Array.from(distinct);
    this.asked = new Float64Array(distinct.length);
    distinct.forEach((offset, place) => {
      this.#placeAt.set(offset, place);
    });
    this.totalBytes = totalBytes;
    this.#alignment = alignment;
  }

  /** What to take from the upstream, so that the plan fits at its alignment. */
  get segmentBytes(): number {
    return alignUp(this.totalBytes, ALLOCATION_ALIGNMENT) + this.#alignment - ALLOCATION_ALIGNMENT;
  }

  /** The place with an offset, or -1. */
  placeAt(offset: number): number {
    return this.#placeAt.get(offset) ?? none;
  }

  contains(pointer: number): boolean {
    return this.segment !== undefined && pointer >= this.segment.address && pointer < this.segment.address + this.segment.bytes;
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

  addSegment(address: number, bytes: number, lane: number): void {
    this.segment = { address, bytes };
    this.base = alignUp(address, this.#alignment);
    this.use(lane);
  }

  removeFreeSegment(_lane: number, maximumBytes: number): Segment | undefined {
    const { segment } = this;
    if (segment === undefined || segment.bytes > maximumBytes || this.isInUse) return undefined;
    this.#clear();
    return segment;
  }

  removeAllSegments(): Segment[] {
    const { segment } = this;
    this.#clear();
    return segment === undefined ? [] : [segment];
  }

  usedBlock(address: number): number {
    const place = this.base === none ? none : this.placeAt(address - this.base);
    return place !== none && (this.asked[place] as number) > 0 ? place : none;
  }

  askedBytes(place: number): number {
    return this.asked[place] as number;
  }

  free(place: number): void {
    this.asked[place] = 0;
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
    const { segment } = this;
    if (segment === undefined) return;
    let at = segment.address;
    const end = segment.address + segment.bytes;
    for (let place = 0; place < this.offsets.length; place++) {
      const asked = this.asked[place] as number;
      if (asked === 0) continue;
      const address = this.base + (this.offsets[place] as number);
      if (address > at) yield { address: at, bytes: address - at, lane: 0, isHead: at === segment.address };
      const bytes = alignUp(asked, ALLOCATION_ALIGNMENT);
      yield { address, bytes, lane: none, isHead: address === segment.address };
      at = address + bytes;
    }
    if (at < end) yield { address: at, bytes: end - at, lane: 0, isHead: at === segment.address };
  }

  validate(): void {
    let before = none;
    for (const { address, bytes } of this.blocks()) {
      if (address < before) throw new Error(`two allocations of the plan overlap at ${address}`);
      before = address + bytes;
    }
  }

  #clear(): void {
    this.segment = undefined;
    this.base = none;
    this.asked.fill(0);
  }
}
