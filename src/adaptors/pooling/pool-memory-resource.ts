/**
 * A pool that serves any size from large blocks of its upstream. `order-of-tries.ts` describes where
 * memory comes from, step by step. Only the pool does this:
 *
 *  - it merges: if no single block fits, all of another stream's free memory joins the stream's own,
 *    stream by stream;
 *  - it grows by as much as it already holds, so that it doubles, or by half of what its maximum leaves; by at most an eighth of what it
 *    holds if streams could wait for each other instead; if the upstream does not have that much, by less and less, down to what the request needs; and if
 *    that fails, by the same after it has returned blocks that are entirely free to the upstream;
 *  - finally it takes a block that the index passed over, because the index examines only a few of
 *    each size class.
 *
 * Over an upstream that grows in place (`GrowingMemoryResource`), it takes only the pages that the
 * free memory at the end lacks. Blocks coalesce across pages that were taken at different times, and
 * any pages that are entirely free can be returned.
 *
 * If a program repeatedly frees and allocates a few small sizes, it is served from lists of up to 16
 * blocks that are not coalesced. The index itself finds out whether that pays
 * (`assembly/quick-lists.ts`).
 *
 * Taking one block takes constant time for a given number of streams. Merging costs as much as the
 * blocks that it moves, each of which became free by one `deallocate`. The last search is linear.
 */

import { ArgumentRangeError, freedTwice, type OutOfMemoryError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes } from '../../basics/units.js';
import { assertBytes, assertEachBytes, assertManyPairs, assertOptions, optionNames, pointersFor } from '../../basics/validation.js';
import { noStream, Stream } from '../../driver/streams/stream.js';
import type { BulkMemoryResource, DeallocationEvents, DeallocationEventsOption, MemoryResource } from '../../memory-resource.js';
import { deallocateEach, isIntercepted } from '../../observing/interceptor.js';
import { defineAdaptor } from '../../resource-kind.js';
import type { StreamLane } from '../../stream-ordering/stream-lane.js';
import { leastBlockBytes, none } from '../../suballocation/blocks.js';
import { type FreeSpaceIndex, unitBytes } from '../../suballocation/free-space-index.js';
import { growthInPlace } from '../layers.js';
import { type KeepingOptions, keepingOptionNames, keepingOptions, type StreamOrderedStatistics } from './keeper.js';
import { type GrowthOption, growsFirst, growthOption, Tries } from './order-of-tries.js';
import { blockTooLarge, maximumBlockBytes, StreamOrderedMemoryResource } from './stream-ordered-memory-resource.js';

/** A request for at least this fraction (1 / 128) of the maximum is large. */
const largeShare = 128;
/** Memory is scarce while more than this fraction (1 / 4) of the maximum is used. */
const plentyShare = 4;
/** If the streams could wait instead, the pool grows by this fraction (1 / 8) of what it has. */
const smallStep = 8;

/** Options of {@link PoolMemoryResource}. */
export interface PoolMemoryResourceOptions extends DeallocationEventsOption, GrowthOption, KeepingOptions {
  /**
   * Bytes that the pool takes from its upstream when it is constructed, rounded up to a multiple of
   * 256; less than 512 GiB, like every block of the upstream.
   * @defaultValue 0
   */
  readonly initialBytes?: number | undefined;
  /**
   * The most bytes that the pool may reserve from its upstream, rounded down to a multiple of 256.
   * @defaultValue Infinity
   */
  readonly maximumBytes?: number | undefined;
}

const knownOptions = optionNames<PoolMemoryResourceOptions>({
  ...keepingOptionNames,
  deallocationEvents: true,
  growth: true,
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
 * Stream order: memory freed on a stream can be reused immediately on that stream, and on other
 * streams by the rules of `deallocationEvents`. Allocating makes the host wait only if the upstream
 * does, and under `'off'` before it runs out of memory. Memory of others whose work has run comes first, then more from the
 * upstream, within `maximumBytes`; only then, or with `growth: 'after-waits'` before, a stream takes memory of others that are busy. It waits for
 * one of them if one has a block that is large enough. While more than a quarter of `maximumBytes` is used,
 * a request for at least 1/128 of it waits for all streams that have free memory, which then coalesces,
 * unless one of them has a block that is only slightly larger; not under `'off'`.
 *
 * Every allocation is rounded up to a multiple of 256 bytes, and its alignment can be any power of two.
 * Allocating and freeing take constant time, however many blocks are live or free.
 *
 * The upstream must outlive the pool, and is not disposed with it. Disposing the pool returns
 * everything to the upstream, ordered on the legacy default stream after every free.
 *
 * Over a resource that grows in place ({@link VirtualMemoryResource}), the pool needs no initial size:
 * it takes whole pages as it needs them, does not fragment between pages that it took at different
 * times, and can return any free page. Once it has had to return pages for a request, it cuts allocations
 * from low addresses, so that small ones keep fewer pages from larger requests.
 *
 * Counterpart of `rmm::mr::pool_memory_resource`. Unlike in RMM's, the cost does not grow with
 * fragmentation, entirely free blocks can be returned ({@link PoolMemoryResource.trim}), and events
 * need not be recorded at every free.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream, { initialBytes: 1 * GiB, deallocationEvents: 'deferred' });
 * using stream = new Stream();
 * const pointer = pool.allocate(1 * MiB, stream);
 * pool.deallocate(pointer, 1 * MiB, stream);
 * ```
 */
export class PoolMemoryResource extends StreamOrderedMemoryResource implements BulkMemoryResource {
  /** @internal */
  static override readonly name = 'PoolMemoryResource';
  protected readonly tries = new Tries(this.keeper, this.index, {
    mergesFirst: (units, stream, other) => this.#mergesFirst(units, stream, other),
    merges: true,
    growBeforeWaits: (bytes, stream, alignment) => this.#growsFirst && this.#growBeforeWaits(leastBlockBytes(bytes, alignment), stream),
    grow: (bytes, stream, alignment, round) => this.#grow(bytes, stream, alignment, round),
    // By then, all available free memory is in the stream's merging lane.
    search: (bytes, stream, alignment) =>
      this.index.search(bytes, alignment, this.ordering.mergingLaneOf(stream).number, stream.identity.serial),
    outOfMemory: (bytes, alignment) => this.#outOfMemory(bytes, alignment),
  });
  readonly #maximumBytes: number;
  readonly #growsFirst: boolean;
  /** The bytes of a page, if the upstream grows in place and can free any pages. */
  readonly #pageBytes: number | undefined;
  /**
   * Whether returning all free pages left too few for the current request. Taking some of them
   * again would not help, and could repeat endlessly.
   */
  #isCramped = false;

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
    const isGrowingFirst = growsFirst(options);
    super(upstream, deallocationEvents, undefined, options);
    this.#growsFirst = isGrowingFirst;
    this.#maximumBytes = maximumBytes === Number.POSITIVE_INFINITY ? maximumBytes : alignDown(maximumBytes, unitBytes);
    this.#pageBytes = pageBytesOf(upstream);
    if (this.#pageBytes !== undefined) this.index.growInPlace(this.#pageBytes);
    const initial = alignUp(initialBytes, this.#pageBytes ?? unitBytes);
    if (initial > maximumBlockBytes) throw blockTooLarge(this.keeper, initialBytes);
    if (initialBytes > 0) {
      const stream = Stream.legacyDefault(this.device);
      this.enter(stream, 'allocate');
      this.keeper.takeInitial(Math.min(initial, this.#maximumBytes), stream);
      this.lane.query();
      this.#keepInitial();
      this.#rehearse(stream);
      this.#keepInitial();
      // This may have been the first stream: its first call must notice that.
      this.lastStream = noStream;
    }
    this.index.useQuickLists();
  }

  /** Keeps all that there is, in the lane of the last call, for the first stream that comes. */
  #keepInitial(): void {
    const block = new InitialBlock(this.index, this.lane);
    // If a stream cannot take it over, it is treated like any other block.
    this.keeper.atEntry((lane, first) => block.isKeptFor(lane, first, this.deallocationEvents));
  }

  /**
   * Calls what an allocation calls, so that the program's first one does not wait until that is compiled (V8: compile ahead). Afterwards everything is as before, as long as the index does not watch sizes yet.
   */
  #rehearse(stream: Stream): void {
    this.lastStream = noStream;
    const pointer = super.allocate(1, stream);
    this.index.freeAt(pointer, 1, this.lane.number);
  }

  /** Current sizes and counts since the start. Linear in the number of blocks. */
  statistics(): PoolStatistics {
    return Object.freeze({ ...this.keeper.statistics(), merges: this.tries.merges });
  }

  /**
   * Allocates a block for each size, in order, as `allocate` does: all of them, or none. The stream's own free
   * memory serves them with a single call of the index.
   * @param sizes up to 2^20 sizes in bytes
   * @param pointers where to put the pointers: as many numbers as `sizes` has, in other memory. A new array for each call
   * takes longer than sixteen allocations do. After an error, its contents are of no use.
   * @returns the pointers, in the order of the sizes; 0 for zero bytes
   * @throws the errors of `allocate`
   * @example
   * ```ts
   * using pool = new PoolMemoryResource(new CudaMemoryResource());
   * using stream = new Stream();
   * const sizes = Float64Array.of(1 * MiB, 256, 4096);
   * const pointers = new Float64Array(3);
   * pool.allocateMany(sizes, stream, pointers);
   * pool.deallocateMany(pointers, sizes, stream);
   * ```
   */
  allocateMany(sizes: Float64Array, stream: Stream, pointers?: Float64Array): Float64Array {
    const places = pointersFor(sizes, pointers);
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');
    const done = isIntercepted(this) ? 0 : this.index.allocateMany(sizes, this.lane.number, this.lane.owner, places);
    return done === sizes.length ? places : this.#allocateRest(sizes, places, done, stream);
  }

  /** Allocates the rest, which the index could not serve, one by one. */
  #allocateRest(sizes: Float64Array, pointers: Float64Array, done: number, stream: Stream): Float64Array {
    try {
      assertEachBytes(sizes, 'sizes');
      for (; done < sizes.length; done++) pointers[done] = this.allocate(sizes[done] as number, stream);
    } catch (error) {
      this.#undo(pointers.subarray(0, done), sizes.subarray(0, done), stream);
      throw error;
    }
    return pointers;
  }

  /**
   * Frees many allocations, as `deallocate` does without a fence: all of them, or none.
   * @param sizes the requested bytes of each
   * @throws the errors of `deallocate`; LifetimeError also if a pointer occurs twice.
   */
  deallocateMany(pointers: Float64Array, sizes: Float64Array, stream: Stream): void {
    assertManyPairs(pointers, sizes);
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'deallocate');
    if (pointers.length === 0) return;
    if (isIntercepted(this)) {
      const wrong = this.index.firstUnused(pointers, sizes);
      if (wrong !== none) this.#refuse(pointers[wrong] as number, sizes[wrong] as number);
      else deallocateEach(this, pointers, sizes, stream);
      return;
    }
    // In the order of a single free.
    const { lane } = this;
    if (lane.recordsFrees) lane.record();
    const wrong = this.index.freeMany(pointers, sizes, lane.number);
    if (wrong !== none) this.#refuse(pointers[wrong] as number, sizes[wrong] as number);
    else if (lane.recordsFrees) lane.freeCovered();
    else lane.freeUnrecorded();
  }

  #refuse(pointer: number, bytes: number): void {
    const isTwice = this.index.usedBlockOf(pointer, bytes) !== none;
    if (isTwice) throw freedTwice(`the ${this.keeper.className}`, pointer);
    this.keeper.refuseFree(pointer, bytes);
  }

  /**
   * Frees the blocks that were allocated before the rest failed. Only waits were queued on them, no
   * uses.
   */
  #undo(pointers: Float64Array, sizes: Float64Array, stream: Stream): void {
    if (isIntercepted(this)) {
      deallocateEach(this, pointers, sizes, stream);
      return;
    }
    if (stream !== this.lastStream) this.enter(stream, 'deallocate');
    this.index.freeMany(pointers, sizes, this.lane.number);
    // Some may have come from other streams, after whose work they are free.
    this.lane.received();
  }

  /**
   * Whether memory is scarce and a request so large that it should not split a much larger block: neighbours that several
   * streams freed coalesce once they are merged, and may serve it.
   */
  #mergesFirst(units: number, stream: Stream, other: number): boolean {
    if (units * unitBytes < this.#maximumBytes / largeShare || this.index.usedBytes <= this.#maximumBytes / plentyShare) return false;
    // Memory that is held for a stream would be lost for others.
    return !this.ordering.mergingLaneOf(stream).isHeld && !this.index.hasClose(units, other);
  }

  #grow(bytes: number, stream: Stream, alignment: number, round: number): boolean {
    const least = leastBlockBytes(bytes, alignment);
    if (least > maximumBlockBytes) return false;
    if (this.#pageBytes === undefined) return this.#growWithin(least, false, stream);
    if (round === 0) this.#isCramped = false;
    return this.#growAtEnd(least, this.#pageBytes, stream);
  }

  /** Takes a block of at least `least` bytes, if necessary after returning free blocks. */
  #growWithin(least: number, isExact: boolean, stream: Stream): boolean {
    const take = () => this.#takeWithin(least, isExact ? least : this.#usualGrowth, stream);
    return take() || (this.keeper.makeWay(least, this.#maximumBytes, stream) && take());
  }

  /** Takes a block of `wanted` bytes, but at least `least`, if the maximum leaves as many. */
  #takeWithin(least: number, wanted: number, stream: Stream): boolean {
    const left = this.#maximumBytes - this.keeper.held.claimedBytes;
    if (least > left) return false;
    return this.keeper.tryTakeAtLeast(least, Math.min(Math.max(least, Math.min(wanted, maximumBlockBytes)), left), stream);
  }

  /** As much as it has; with a maximum, half of what that leaves. */
  get #usualGrowth(): number {
    const left = this.#maximumBytes - this.keeper.held.claimedBytes;
    return left === Number.POSITIVE_INFINITY ? this.reservedBytes : alignUp(left / 2, unitBytes);
  }

  /** In smaller steps, since there is free memory, for which the stream would only have to wait. */
  #growBeforeWaits(least: number, stream: Stream): boolean {
    // Others may wait for less: the upstream is asked again only when nothing else helps.
    if (least > maximumBlockBytes || this.keeper.held.isRefused(least)) return false;
    if (this.#pageBytes !== undefined) return this.#takeAtEnd(least, this.#pageBytes, stream);
    const step = alignUp(this.reservedBytes / smallStep, unitBytes);
    return this.#takeWithin(least, Math.min(step, this.#usualGrowth), stream);
  }

  #outOfMemory(bytes: number, alignment: number): OutOfMemoryError {
    const reserved = formatBytes(this.reservedBytes);
    const largest = formatBytes(this.keeper.largestFreeBytes());
    const aligned = alignment === ALLOCATION_ALIGNMENT ? '' : ` at a multiple of ${alignment}`;
    const reason = `${reserved} are reserved, the largest free block has ${largest}${aligned}`;
    return this.keeper.outOfMemoryWithin(this.#maximumBytes, bytes, reason);
  }

  /**
   * Takes the pages that the free memory at the end lacks for the request. If the new pages are
   * elsewhere, at addresses that were returned before, or if the maximum leaves too few, takes
   * enough for the whole request, after returning free pages.
   */
  #growAtEnd(least: number, pageBytes: number, stream: Stream): boolean {
    if (!this.#isCramped && this.#takeAtEnd(least, pageBytes, stream)) return true;
    const whole = alignUp(least, pageBytes);
    const { releases } = this.keeper;
    this.#isCramped = whole > maximumBlockBytes || !this.#growWithin(whole, true, stream);
    // Memory is short: from now on, what counts is how many pages small allocations keep.
    if (this.keeper.releases > releases) this.index.takeLowest();
    return !this.#isCramped;
  }

  /** Takes the pages that the free memory at the end lacks, if the maximum leaves them. Returns whether they are enough. */
  #takeAtEnd(least: number, pageBytes: number, stream: Stream): boolean {
    const { ordering, held } = this.keeper;
    const missing = alignUp(Math.max(least - this.index.freeTailBytes(ordering.mergingLaneOf(stream).number), 1), pageBytes);
    const canTake = missing <= maximumBlockBytes && missing <= this.#maximumBytes - held.claimedBytes;
    return canTake && this.keeper.tryTakeAtLeast(missing, missing, stream) && this.#hasRoomAfterGrowth(least, stream);
  }

  /**
   * Whether the new pages, together with the free memory before them, have room for a request.
   */
  #hasRoomAfterGrowth(least: number, stream: Stream): boolean {
    const { ordering } = this.keeper;
    const lane = ordering.mergingLaneOf(stream);
    if (lane !== this.lane) ordering.moveInto(lane, this.lane.number);
    return this.index.canAllocate(least / unitBytes, lane.number);
  }
}

/**
 * The block that a pool takes when it is constructed, in an idle lane, because no queued work uses
 * it. The first stream takes it over, so that it can coalesce with memory that this stream frees.
 *
 * Under `'off'`, it stays in a lane from which every stream can take parts. While the pool has only one
 * stream, that stream takes from it without leaving the index.
 */
class InitialBlock {
  readonly #index: FreeSpaceIndex;
  readonly #lane: StreamLane;
  /** Under `'off'`: the lane of the only stream that has come. */
  #only: StreamLane | undefined;

  constructor(index: FreeSpaceIndex, lane: StreamLane) {
    this.#index = index;
    this.#lane = lane;
  }

  /**
   * Called when a stream first uses the pool. Returns whether the block must still be treated
   * separately.
   */
  isKeptFor(lane: StreamLane, stream: Stream, deallocationEvents: DeallocationEvents): boolean {
    if (deallocationEvents !== 'off') {
      this.#handOver(lane, stream);
      return false;
    }
    if (this.#only === lane) return true;
    const isFirst = this.#only === undefined && this.#lane.isIdle;
    this.#only = lane;
    this.#index.openLane(isFirst ? this.#lane.number : undefined);
    return isFirst;
  }

  #handOver(lane: StreamLane, stream: Stream): void {
    if (this.#lane === lane) return;
    const hasWaited = this.#lane.order(stream);
    this.#index.transfer(this.#lane.number, lane.number);
    if (hasWaited) lane.received();
  }
}

function pageBytesOf(upstream: MemoryResource): number | undefined {
  const growth = growthInPlace(upstream);
  return growth?.takesPieces === true ? growth.pageBytes : undefined;
}

/** `pool` in a specification. */
export const poolKind = defineAdaptor({
  name: 'pool',
  role: 'pooling',
  summary: 'cuts allocations from large blocks, and keeps freed memory',
  options: {
    initialBytes: { type: 'size', summary: 'taken from the upstream at the start', default: '0' },
    maximumBytes: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
    growth: growthOption,
    ...keepingOptions,
  },
  maximum: 'maximumBytes',
  example: 'pool(cuda, initialBytes=256KiB, maximumBytes=64MiB)',
  create: ({ upstream, options }) => new PoolMemoryResource(upstream, options),
});
