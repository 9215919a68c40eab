/**
 * A pool that serves any size out of large blocks from its upstream.
 *
 * An allocation is served by the first of these that can:
 *  1. the free memory of its own stream, which needs no waiting;
 *  2. a block from another stream's free memory, after a wait;
 *  3. all of another stream's free memory, joined with its own, stream by stream, after a wait for each; under `'off'` streams that memory
 *     is held for are asked whether they are idle by now, and then count in steps 2 and 3;
 *  4. a new block from the upstream: as much as the pool holds already, so that it doubles, or half of what its maximum leaves; less and
 *     less, down to what is needed, while the upstream has not that much;
 *  5. the same, once blocks that are wholly free went back to the upstream;
 *  6. under `'off'`, all of the above again, once the streams that memory is held for have been synchronized;
 *  7. a block that the index passed over, since it looks at a few of each size class only.
 *
 * Steps 1 and 2 take constant time for a given number of streams. Step 3 costs as much as the blocks it moves, each of which a free put there;
 * step 7 is linear, and comes instead of an out-of-memory.
 */

import { Stream } from '../driver/stream.js';
import { ArgumentRangeError, type OutOfMemoryError } from '../errors.js';
import type { DeallocationEventsOption, MemoryResource } from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import type { StreamLane } from '../stream-ordering/stream-lane.js';
import { none } from '../suballocation/blocks.js';
import { unitBytes } from '../suballocation/free-space-index.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes } from '../units.js';
import { assertBytes, assertOptions, optionNames } from '../validation.js';
import type { StreamOrderedStatistics } from './stream-ordered-memory-resource.js';
import { maximumBlockBytes, SuballocatingMemoryResource } from './suballocating-memory-resource.js';

/** Options of {@link PoolMemoryResource}. */
export interface PoolMemoryResourceOptions extends DeallocationEventsOption {
  /**
   * Bytes taken from the upstream at once, rounded up to a multiple of 256; less than 512 GiB, as every block of the upstream.
   * @defaultValue 0
   */
  readonly initialBytes?: number;
  /**
   * The most bytes the pool may hold of its upstream, rounded down to a multiple of 256.
   * @defaultValue Infinity
   */
  readonly maximumBytes?: number;
}

const knownOptions = optionNames<PoolMemoryResourceOptions>({ deallocationEvents: true, initialBytes: true, maximumBytes: true });

/** What a pool holds and did. */
export interface PoolStatistics extends StreamOrderedStatistics {
  /** How often all of another stream's free memory was joined with the requesting stream's. */
  readonly merges: number;
}

/**
 * A coalescing pool that hands out parts of large blocks, which it takes from its upstream as it needs them.
 *
 * Stream order: memory freed on a stream serves that stream at once, and other streams by the rules of `deallocationEvents`. Allocating
 * never waits on the host, except where the upstream does, and under `'off'` instead of an out-of-memory. Every allocation is rounded up to a
 * multiple of 256 bytes, and any power of two can be its alignment. Allocating and freeing take constant time, however many blocks are live or
 * free.
 *
 * The upstream must stay alive as long as the pool, and is not disposed with it. Disposing the pool gives everything back to the upstream, in
 * the order of the legacy default stream after every free.
 *
 * Counterpart of `rmm::mr::pool_memory_resource`. Unlike there, the cost does not grow with fragmentation, whole free blocks can be given back
 * ({@link PoolMemoryResource.trim}), and events need not be recorded at every free.
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
  readonly #maximumBytes: number;
  /**
   * The lane of the initial block, until the first stream comes and takes the block over: it shall not be cut off from what that stream frees.
   * Under `'off'` it stays where every stream can have a part of it.
   */
  #initialLane: StreamLane | undefined;
  #merges = 0;

  /**
   * @throws ArgumentRangeError where the maximum is below the initial size, or an option out of range.
   * @throws OutOfMemoryError where the upstream has not the initial size.
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
    this.#maximumBytes = maximumBytes === Number.POSITIVE_INFINITY ? maximumBytes : alignDown(maximumBytes, unitBytes);
    if (initialBytes > maximumBlockBytes) throw this.blockTooLarge(initialBytes);
    if (initialBytes > 0) {
      const stream = Stream.legacyDefault(this.device);
      this.enter(stream, 'allocate');
      this.takeInitial(Math.min(alignUp(initialBytes, unitBytes), this.#maximumBytes), stream);
      this.lane.query();
      if (deallocationEvents !== 'off') this.#initialLane = this.lane;
    }
  }

  /** What the pool holds and did so far. Linear in the number of blocks. */
  statistics(): PoolStatistics {
    return Object.freeze({ ...this.baseStatistics(), merges: this.#merges });
  }

  protected override enter(stream: Stream, operation: string): void {
    super.enter(stream, operation);
    if (this.#initialLane !== undefined) this.#handOver(this.#initialLane, this.lane, stream);
  }

  /** Steps 2 and 3 at the top of this file. */
  protected override takeFromOthers(bytes: number, stream: Stream, alignment: number): number {
    let address = super.takeFromOthers(bytes, stream, alignment);
    if (address !== none) return address;
    const { number } = this.lane;
    this.joinFree(stream, (isOthers) => {
      if (isOthers) this.#merges++;
      address = this.allocateIn(number, bytes, alignment);
      return address !== none;
    });
    return address;
  }

  /** Steps 4 and 5. */
  protected grow(bytes: number, stream: Stream, alignment: number): boolean {
    // An upstream block begins at a multiple of 256, so an aligned address in it may lie this much further on.
    const least = alignUp(bytes, unitBytes) + alignment - ALLOCATION_ALIGNMENT;
    if (least > maximumBlockBytes) return false;
    const wanted = (left: number) =>
      Math.min(left === Number.POSITIVE_INFINITY ? this.reservedBytes : alignUp(left / 2, unitBytes), maximumBlockBytes);
    return this.growWithin(this.#maximumBytes, least, wanted, stream);
  }

  /** All that may be had is in the stream's lane by then. */
  protected override searchThoroughly(bytes: number, _stream: Stream, alignment: number): number {
    return this.searchLane(this.lane.number, bytes, alignment);
  }

  protected outOfMemory(bytes: number, alignment: number): OutOfMemoryError {
    const reserved = formatBytes(this.reservedBytes);
    const largest = formatBytes(this.largestFreeBytes());
    const aligned = alignment === ALLOCATION_ALIGNMENT ? '' : ` at a multiple of ${alignment}`;
    const reason = `${reserved} are reserved, the largest free block has ${largest}${aligned}`;
    return this.outOfMemoryWithin(this.#maximumBytes, bytes, reason);
  }

  #handOver(initial: StreamLane, lane: StreamLane, stream: Stream): void {
    this.#initialLane = undefined;
    if (initial === lane) return;
    const hasWaited = initial.order(stream);
    this.index.transfer(initial.number, lane.number);
    if (hasWaited) lane.received();
  }
}

/** `pool` in a specification. */
export const poolKind = defineAdaptor({
  name: 'pool',
  role: 'pooling',
  summary: 'carves allocations out of large blocks and keeps what is freed',
  options: {
    initial: { type: 'size', summary: 'taken from the upstream at once', default: '0' },
    max: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
  },
  example: 'pool(cuda, initial=256KiB, max=64MiB)',
  create: ({ upstream, options }) =>
    new PoolMemoryResource(
      upstream,
      definedFields({ initialBytes: options.initial, maximumBytes: options.max, deallocationEvents: options.events }),
    ),
});
