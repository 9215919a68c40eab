/**
 * A pool that serves any size from large blocks of its upstream.
 *
 * An allocation is served by the first of these that can serve it:
 *  1. the free memory of its own stream, which needs no waiting;
 *  2. a block from another stream's free memory, after a wait; under `'off'`, streams that memory is
 *     held for are asked whether they have become idle, and then count in steps 2 and 3;
 *  3. all of another stream's free memory, merged with its own, stream by stream, after a wait for
 *     each;
 *  4. a new block from the upstream: as much as the pool already holds, so that it doubles, or half
 *     of what its maximum leaves; if the upstream does not have that much, less and less, down to
 *     what is needed;
 *  5. the same, after blocks that are entirely free went back to the upstream;
 *  6. under `'off'`, all of the above again, after all streams that memory is held for were asked, and
 *     if none has become idle, after they have been synchronized;
 *  7. a block that the index passed over, since it looks at only a few of each size class.
 *
 * Over an upstream that grows in place (`GrowingMemoryResource`), step 4 takes what is missing after
 * the free memory at the end, in whole pages, and blocks coalesce across what came at different
 * times; step 5 gives back any pages that are entirely free.
 *
 * A program that frees and allocates a few small sizes again and again is served from lists of them,
 * in which up to 16 blocks wait without being coalesced. The index finds out by itself whether that
 * pays (`assembly/quick-lists.ts`).
 *
 * Steps 1 and 2 take constant time for a given number of streams. Step 3 costs as much as the
 * blocks that it moves, each of which became free by one `deallocate`. Step 7 is linear, and is
 * only tried before an out-of-memory error.
 */

import { ArgumentRangeError, type OutOfMemoryError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes } from '../../basics/units.js';
import { assertBytes, assertOptions, optionNames } from '../../basics/validation.js';
import { noStream, Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DevicePointer, GrowingMemoryResource, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import type { StreamLane } from '../../stream-ordering/stream-lane.js';
import { none, type Segment } from '../../suballocation/blocks.js';
import { unitBytes } from '../../suballocation/free-space-index.js';
import type { StreamOrderedStatistics } from './stream-ordered-memory-resource.js';
import { maximumBlockBytes, SuballocatingMemoryResource } from './suballocating-memory-resource.js';

/** Options of {@link PoolMemoryResource}. */
export interface PoolMemoryResourceOptions extends DeallocationEventsOption {
  /**
   * Bytes taken from the upstream at once, rounded up to a multiple of 256; less than 512 GiB, like
   * every block of the upstream.
   * @defaultValue 0
   */
  readonly initialBytes?: number;
  /**
   * The most bytes that the pool may reserve from its upstream, rounded down to a multiple of 256.
   * @defaultValue Infinity
   */
  readonly maximumBytes?: number;
}

const knownOptions = optionNames<PoolMemoryResourceOptions>({
  deallocationEvents: true,
  initialBytes: true,
  maximumBytes: true,
});

/** Statistics of a {@link PoolMemoryResource}. */
export interface PoolStatistics extends StreamOrderedStatistics {
  /** How often all of another stream's free memory was merged with the requesting stream's. */
  readonly merges: number;
}

/**
 * A coalescing pool that cuts allocations from large blocks, which it takes from its upstream as
 * needed.
 *
 * Stream order: memory freed on a stream serves that stream at once, and other streams by the rules
 * of `deallocationEvents`. Allocating never waits on the host, except if the upstream does, and
 * under `'off'` before it runs out of memory. Every allocation is rounded up to a multiple of 256
 * bytes, and its alignment can be any power of two. Allocating and freeing take constant time,
 * however many blocks are live or free.
 *
 * The upstream must outlive the pool, and is not disposed with it. Disposing the pool gives
 * everything back to the upstream, ordered on the legacy default stream after every free.
 *
 * Over a resource that grows in place ({@link VirtualMemoryResource}), the pool needs no initial size:
 * it takes whole pages as they are missing, never fragments across what it took at different times,
 * and gives back any page that is free.
 *
 * Counterpart of `rmm::mr::pool_memory_resource`. Unlike in RMM's, the cost does not grow with
 * fragmentation, entirely free blocks can be given back ({@link PoolMemoryResource.trim}), and
 * events need not be recorded at every free.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream, { initialBytes: 1 * GiB, deallocationEvents: 'deferred' });
 * using stream = new Stream();
 * const pointer = pool.allocate(1 * MiB, stream);
 * pool.deallocate(pointer, 1 * MiB, stream);
 * ```
 */
export class PoolMemoryResource extends SuballocatingMemoryResource {
  /** @internal */
  static override readonly name = 'PoolMemoryResource';
  readonly #maximumBytes: number;
  /**
   * The lane of the initial block, until the first stream takes the block over, so that the block
   * can coalesce with what that stream frees. Under `'off'` the block stays where every stream can
   * take a part of it; this is then its lane until a second stream comes.
   */
  #initialLane: StreamLane | undefined;
  /** The lane of the only stream that has come, if it may take from the initial block without asking. */
  #onlyLane: StreamLane | undefined;
  /** The bytes of a page, if the upstream grows in place. */
  readonly #pageBytes: number | undefined;
  /**
   * Whether the pages that could be given back were too few for the current request: taking some of
   * them again would not help, and could go on for ever.
   */
  #isCramped = false;
  #merges = 0;

  /**
   * @throws ArgumentRangeError if the maximum is below the initial size, or an option is out of
   * range.
   * @throws OutOfMemoryError if the upstream does not have the initial size.
   */
  constructor(upstream: MemoryResource, options: PoolMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { initialBytes = 0, maximumBytes = Number.POSITIVE_INFINITY, deallocationEvents = 'eager' } = options;
    assertBytes(initialBytes, 'initialBytes');
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    if (initialBytes > maximumBytes) {
      throw new ArgumentRangeError(`maximumBytes must be at least initialBytes (${initialBytes}), got ${maximumBytes}`);
    }
    super(upstream, deallocationEvents);
    this.index.useQuickLists();
    this.#maximumBytes = maximumBytes === Number.POSITIVE_INFINITY ? maximumBytes : alignDown(maximumBytes, unitBytes);
    this.#pageBytes = pageBytesOf(upstream);
    const initial = alignUp(initialBytes, this.#pageBytes ?? unitBytes);
    if (initial > maximumBlockBytes) throw this.blockTooLarge(initialBytes);
    if (initialBytes > 0) {
      const stream = Stream.legacyDefault(this.device);
      this.enter(stream, 'allocate');
      this.takeInitial(Math.min(initial, this.#maximumBytes), stream);
      this.lane.query();
      this.#initialLane = this.lane;
      // The first stream may be this one: its first call must notice.
      this.lastStream = noStream;
    }
  }

  /** Current sizes and counts since the start. Linear in the number of blocks. */
  statistics(): PoolStatistics {
    return Object.freeze({ ...this.baseStatistics(), merges: this.#merges });
  }

  protected override enter(stream: Stream, operation: string): void {
    super.enter(stream, operation);
    if (this.#initialLane === undefined) return;
    if (this.deallocationEvents === 'off') this.#open(this.#initialLane, this.lane);
    else this.#handOver(this.#initialLane, this.lane, stream);
  }

  protected override allocateElsewhere(bytes: number, stream: Stream, alignment: number): DevicePointer {
    this.#isCramped = false;
    return super.allocateElsewhere(bytes, stream, alignment);
  }

  /** Step 3 at the top of this file. */
  protected override mergeOthers(bytes: number, stream: Stream, alignment: number): number {
    let address: number = none;
    this.joinFree(stream, (isOthers) => {
      if (isOthers) this.#merges++;
      address = this.allocateIn(this.ordering.mergingLaneOf(stream).number, bytes, alignment);
      return address !== none;
    });
    return address;
  }

  /** Steps 4 and 5. */
  protected grow(bytes: number, stream: Stream, alignment: number): boolean {
    // An upstream block begins at a multiple of 256, so an aligned address in it may lie up to
    // `alignment - 256` further on.
    const least = alignUp(bytes, unitBytes) + alignment - ALLOCATION_ALIGNMENT;
    if (least > maximumBlockBytes) return false;
    if (this.#pageBytes !== undefined) return this.#growAtEnd(least, this.#pageBytes, stream);
    const wanted = (left: number) =>
      Math.min(left === Number.POSITIVE_INFINITY ? this.reservedBytes : alignUp(left / 2, unitBytes), maximumBlockBytes);
    return this.growWithin(this.#maximumBytes, least, wanted, stream);
  }

  /** Pages of an upstream that grows in place join the segments that they touch. */
  protected override addSegment(segment: Segment, lane: number): void {
    if (this.#pageBytes === undefined) super.addSegment(segment, lane);
    else this.index.extendSegment(segment.address, segment.bytes, lane);
  }

  protected override removeFreeSegment(lane: number, maximumBytes: number): Segment | undefined {
    if (this.#pageBytes === undefined) return super.removeFreeSegment(lane, maximumBytes);
    return this.index.removePages(lane, this.#pageBytes, maximumBytes);
  }

  /** All free memory that is available is in the stream's merging lane when this is called. */
  protected override searchThoroughly(bytes: number, stream: Stream, alignment: number): number {
    return this.searchLane(this.ordering.mergingLaneOf(stream).number, bytes, alignment);
  }

  protected outOfMemory(bytes: number, alignment: number): OutOfMemoryError {
    const reserved = formatBytes(this.reservedBytes);
    const largest = formatBytes(this.largestFreeBytes());
    const aligned = alignment === ALLOCATION_ALIGNMENT ? '' : ` at a multiple of ${alignment}`;
    const reason = `${reserved} are reserved, the largest free block has ${largest}${aligned}`;
    return this.outOfMemoryWithin(this.#maximumBytes, bytes, reason);
  }

  /**
   * Takes the pages that are missing after the free memory at the end. If they come elsewhere, in
   * addresses that were given back, or if the maximum leaves too few, takes enough for the whole
   * request, after free pages went back.
   */
  #growAtEnd(least: number, pageBytes: number, stream: Stream): boolean {
    const missing = alignUp(Math.max(least - this.index.freeTailBytes(this.ordering.mergingLaneOf(stream).number), 1), pageBytes);
    const canTake = !this.#isCramped && missing <= maximumBlockBytes && missing <= this.#maximumBytes - this.held.claimedBytes;
    if (canTake && this.tryTakeAtLeast(missing, missing, stream) && this.#hasRoomAfterGrowth(least, stream)) return true;
    const whole = alignUp(least, pageBytes);
    this.#isCramped = whole > maximumBlockBytes || !this.growWithin(this.#maximumBytes, whole, () => whole, stream);
    return !this.#isCramped;
  }

  /**
   * Whether there is room for a request in what came from the upstream, together with the free memory
   * before it.
   */
  #hasRoomAfterGrowth(least: number, stream: Stream): boolean {
    const lane = this.ordering.mergingLaneOf(stream);
    if (lane !== this.lane) this.ordering.moveInto(lane, this.lane.number);
    return this.index.canAllocate(least / unitBytes, lane.number);
  }

  /**
   * Lets the first stream take from the initial block without leaving the index, until a second stream
   * comes: then all share the block by the rules for every lane. That needs no order, as nothing is queued
   * that uses the block.
   */
  #open(initial: StreamLane, lane: StreamLane): void {
    if (this.#onlyLane === lane) return;
    const isFirst = this.#onlyLane === undefined && initial.isIdle;
    if (isFirst) this.#onlyLane = lane;
    else this.#onlyLane = this.#initialLane = undefined;
    this.index.openLane(isFirst ? initial.number : undefined);
  }

  #handOver(initial: StreamLane, lane: StreamLane, stream: Stream): void {
    this.#initialLane = undefined;
    if (initial === lane) return;
    const hasWaited = initial.order(stream);
    this.index.transfer(initial.number, lane.number);
    if (hasWaited) lane.received();
  }
}

function pageBytesOf(upstream: MemoryResource): number | undefined {
  const { granularityBytes } = upstream as Partial<GrowingMemoryResource>;
  return typeof granularityBytes === 'number' ? granularityBytes : undefined;
}

/** `pool` in a specification. */
export const poolKind = defineAdaptor({
  name: 'pool',
  role: 'pooling',
  summary: 'cuts allocations from large blocks, and keeps freed memory',
  options: {
    initialBytes: { type: 'size', summary: 'taken from the upstream at once', default: '0' },
    maximumBytes: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
  },
  maximum: 'maximumBytes',
  example: 'pool(cuda, initialBytes=256KiB, maximumBytes=64MiB)',
  create: ({ upstream, options }) => new PoolMemoryResource(upstream, options),
});
