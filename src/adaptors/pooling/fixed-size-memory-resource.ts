/**
 * Blocks of one size, cut from batches of the upstream.
 *
 * `order-of-tries.ts` describes where a block comes from if the stream's own lane has none. The resource grows
 * by a batch; if the upstream does not have that much, by half of it, a quarter, and so on down to one block.
 * Every step takes constant time for a given number of streams, apart from the upstream's work.
 *
 * Free neighbours coalesce, so that a batch can be returned as a whole. Every used block has the same
 * size, so every gap is a multiple of it.
 */

import { ArgumentRangeError, type OutOfMemoryError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes, MiB } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertOptions, optionNames } from '../../basics/validation.js';
import { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { none } from '../../suballocation/blocks.js';
import { unitBytes } from '../../suballocation/free-space-index.js';
import { type KeepingOptions, keepingOptionNames, keepingOptions, type StreamOrderedStatistics } from './keeper.js';
import { type GrowthOption, growsFirst, growthOption, Tries } from './order-of-tries.js';
import { maximumBlockBytes, StreamOrderedMemoryResource } from './stream-ordered-memory-resource.js';

/**
 * The largest block: 2 GiB - 256, because the index can only count less than 2 GiB of unused bytes
 * in a block.
 */
const maximumFixedBlockBytes = 0x7fffff00;

/** Options of {@link FixedSizeMemoryResource}. */
export interface FixedSizeMemoryResourceOptions extends DeallocationEventsOption, GrowthOption, KeepingOptions {
  /**
   * Bytes of every block, and so the largest allocation: from 1 to 2 GiB - 256, rounded up to a
   * multiple of 256.
   * @defaultValue 1 MiB
   */
  readonly blockBytes?: number | undefined;
  /**
   * How many blocks it takes from the upstream at a time: when it is constructed, and whenever none
   * is free. With 0, it takes none when constructed, and later one at a time.
   * @defaultValue 128
   */
  readonly blocksToPreallocate?: number | undefined;
  /**
   * The most bytes to reserve from the upstream, at least one block. Only whole blocks are taken.
   * @defaultValue Infinity
   */
  readonly maximumBytes?: number | undefined;
}

const knownOptions = optionNames<FixedSizeMemoryResourceOptions>({
  blockBytes: true,
  blocksToPreallocate: true,
  ...keepingOptionNames,
  deallocationEvents: true,
  growth: true,
  maximumBytes: true,
});

/**
 * Serves every request with a block of one size, cut from batches that it takes from its upstream.
 *
 * Stream order: a block freed on a stream can be reused immediately on that stream, and on other
 * streams by the rules of `deallocationEvents`. Allocating makes the host wait only if the upstream
 * does, and under `'off'` before it runs out of memory. Allocating and freeing take constant time.
 * Blocks begin at multiples of 256. A larger alignment is refused, as by the driver's resources:
 * put an `AlignedResourceAdaptor` above.
 *
 * The upstream must outlive this resource, and is not disposed with it. Disposing it returns
 * everything to the upstream, ordered on the legacy default stream after every free.
 *
 * Counterpart of `rmm::mr::fixed_size_memory_resource`. Unlike in RMM's, you can set a maximum, a
 * batch that the upstream cannot serve is tried again with fewer blocks, and batches that are
 * entirely free can be returned (`trim`).
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using blocks = new FixedSizeMemoryResource(upstream, { blockBytes: 64 * KiB, deallocationEvents: 'deferred' });
 * using stream = new Stream();
 * const pointer = blocks.allocate(50_000, stream);
 * blocks.deallocate(pointer, 50_000, stream);
 * ```
 */
export class FixedSizeMemoryResource extends StreamOrderedMemoryResource {
  /** @internal */
  static override readonly name = 'FixedSizeMemoryResource';
  protected readonly tries = new Tries(this.keeper, this.index, {
    growBeforeWaits: (_bytes, stream) => this.#growsFirst && !this.keeper.held.isRefused(this.blockBytes) && this.#grow(stream),
    grow: (_bytes, stream) => this.#grow(stream),
    outOfMemory: (bytes) => this.#outOfMemory(bytes),
  });
  /** Bytes of every block, a multiple of 256. */
  readonly blockBytes: number;
  readonly #blockUnits: number;
  readonly #batchBlocks: number;
  readonly #maximumBytes: number;
  readonly #growsFirst: boolean;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or a maximum below one
   * block.
   * @throws OutOfMemoryError if the upstream does not have the blocks to preallocate.
   */
  constructor(upstream: MemoryResource, options: FixedSizeMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { blockBytes = MiB, blocksToPreallocate = 128, maximumBytes = Number.POSITIVE_INFINITY, deallocationEvents = 'eager' } = options;
    assertBytes(blockBytes, 'blockBytes');
    assertBytes(blocksToPreallocate, 'blocksToPreallocate');
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    if (blockBytes < 1 || blockBytes > maximumFixedBlockBytes) {
      throw new ArgumentRangeError(`blockBytes must be from 1 to 2 GiB - 256 (${maximumFixedBlockBytes}), got ${blockBytes}`);
    }
    const wholeBytes = alignUp(blockBytes, unitBytes);
    if (maximumBytes < wholeBytes) {
      throw new ArgumentRangeError(`maximumBytes must be at least one block (${wholeBytes}), got ${maximumBytes}`);
    }
    const isGrowingFirst = growsFirst(options);
    super(upstream, deallocationEvents, undefined, options);
    this.#growsFirst = isGrowingFirst;
    this.index.cutBlocksOf(wholeBytes);
    this.keeper.largestBlockBytes = wholeBytes;
    this.blockBytes = wholeBytes;
    this.#blockUnits = wholeBytes / unitBytes;
    this.#batchBlocks = Math.min(Math.max(blocksToPreallocate, 1), Math.floor(maximumBlockBytes / wholeBytes));
    this.#maximumBytes = maximumBytes;
    if (blocksToPreallocate > 0) {
      const stream = Stream.legacyDefault(this.device);
      this.enter(stream, 'allocate');
      this.keeper.takeInitial(Math.min(this.#batchBlocks, this.#leftBlocks) * wholeBytes, stream);
      this.lane.query();
    }
  }

  /**
   * Allocates a block.
   * @throws OutOfMemoryError if the request is larger than a block, or no block is available.
   * @throws ArgumentRangeError for an alignment above 256.
   */
  override allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small !== bytes || small <= 0 || small > this.blockBytes || alignment !== ALLOCATION_ALIGNMENT) {
      assertBytes(bytes);
      assertAlignment(alignment, ALLOCATION_ALIGNMENT);
      if (bytes === 0) return 0;
      if (bytes > this.blockBytes) throw this.#blockTooLarge(bytes);
    }
    const { number, owner } = this.lane;
    const address = this.index.allocate(this.#blockUnits, this.blockBytes - bytes, number, owner);
    return address === none ? this.miss(bytes, stream, ALLOCATION_ALIGNMENT) : address;
  }

  /** Current sizes and counts since the start. Linear in the number of blocks. */
  statistics(): StreamOrderedStatistics {
    return Object.freeze(this.keeper.statistics());
  }

  /**
   * For tests: throws if the data structures are inconsistent. Linear in the number of blocks.
   */
  override validate(): void {
    super.validate();
    for (const { bytes, lane } of this.index.blocks()) {
      if (lane < 0 ? bytes === this.blockBytes : bytes % this.blockBytes === 0) continue;
      throw new Error(`${this.constructor.name}: ${bytes} bytes are not a whole number of blocks of ${this.blockBytes}`);
    }
  }

  /** @internal The requested size of the live allocation at an address, or -1 if there is none. */
  askedBytesAt(pointer: DevicePointer): number {
    const block = this.index.usedBlock(pointer);
    return block === none ? none : this.index.askedBytes(block);
  }

  #grow(stream: Stream): boolean {
    const blocks = Math.min(this.#batchBlocks, this.#leftBlocks);
    return blocks >= 1 && this.keeper.tryTakeAtLeast(this.blockBytes, blocks * this.blockBytes, stream, this.blockBytes);
  }

  #outOfMemory(bytes: number): OutOfMemoryError {
    const blocks = `none of its ${this.reservedBytes / this.blockBytes} blocks of ${formatBytes(this.blockBytes)} is free for the stream`;
    return this.keeper.outOfMemoryWithin(this.#maximumBytes, bytes, blocks);
  }

  #blockTooLarge(bytes: number): Error {
    const { blockBytes } = this;
    return this.keeper.blockTooLarge(bytes, `a block has ${formatBytes(blockBytes)} (${blockBytes} bytes)`, blockBytes);
  }

  /** How many more whole blocks fit below the maximum. */
  get #leftBlocks(): number {
    return Math.floor((this.#maximumBytes - this.keeper.held.claimedBytes) / this.blockBytes);
  }
}

/** `fixed-size` in a specification. */
export const fixedSizeKind = defineAdaptor({
  name: 'fixed-size',
  role: 'pooling',
  summary: 'allocates blocks of one size',
  options: {
    blockBytes: { type: 'size', summary: 'the size of a block, and so the largest allocation', default: '1MiB' },
    blocksToPreallocate: {
      type: 'integer',
      summary: 'blocks taken from the upstream at a time, also in advance; 0: one at a time, none in advance',
      default: '128',
    },
    maximumBytes: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
    growth: growthOption,
    ...keepingOptions,
  },
  maximum: 'maximumBytes',
  example: 'fixed-size(cuda, blockBytes=1MiB, blocksToPreallocate=2)',
  create: ({ upstream, options }) => new FixedSizeMemoryResource(upstream, options),
});
