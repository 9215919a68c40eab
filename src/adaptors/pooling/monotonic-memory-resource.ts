import { alreadyFreed, insideAllocation, invalidValue, wrongSize } from '../../basics/errors.js';

/**
 * A bump allocator: an allocation advances a cursor, a free does nothing, and a rewind takes back
 * everything allocated since a mark.
 *
 * Every stream has its own cursor, in its own blocks. If its block has no room left, the stream gets another: one
 * of its own free blocks, or one from the places that `order-of-tries.ts` describes. The resource grows by
 * `initialBytes` for a stream's first block, then by `growthFactor` times its last; if the upstream does not have
 * that much, by less and less, down to what the request needs; and if that fails, by the same after it has
 * returned free blocks that are too small. If everything fails, the fallback serves that one allocation.
 */

import {
  ArgumentRangeError,
  ArgumentTypeError,
  attemptEach,
  CisternError,
  formatPointer,
  formatValue,
  LifetimeError,
  OutOfMemoryError,
  throwFirst,
} from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes, MiB } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertMadeByCistern, assertOptions, assertPointer, optionNames } from '../../basics/validation.js';
import { Stream } from '../../driver/streams/stream.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../../driver/workers/local-object.js';
import {
  assertFallback,
  type DeallocationEvents,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type TrimOptions,
} from '../../memory-resource.js';
import { addRemembering, LiveAllocations, markAsTaker, rememberedSoFar, type TakenMemory, takesBack } from '../../ownership/bulk-frees.js';
import { noteFree, servedTwice } from '../../ownership/served-memory.js';
import { defineAdaptor } from '../../resource-kind.js';
import { withoutCaching } from '../../scopes/resource-scope.js';
import { StreamLane } from '../../stream-ordering/stream-lane.js';
import { assertFence } from '../../stream-ordering/stream-ordering.js';
import { AddressTable } from '../../suballocation/address-table.js';
import { leastBlockBytes, none, type Segment, segmentAround } from '../../suballocation/blocks.js';
import { type BumpBlock, BumpChain, BumpChains, type BumpPosition } from '../../suballocation/bump-chains.js';
import { layersOf } from '../layers.js';
import { type KeepingOptions, keepingOptionNames, keepingOptions, type StreamOrderedStatistics, stillUsed } from './keeper.js';
import { type GrowthOption, growsFirst, growthOption, Tries } from './order-of-tries.js';
import { StreamOrderedMemoryResource } from './stream-ordered-memory-resource.js';

const maximumGrowthFactor = 64;

/** Options of {@link MonotonicMemoryResource}. */
export interface MonotonicMemoryResourceOptions extends DeallocationEventsOption, GrowthOption, KeepingOptions {
  /**
   * The size of the first block of each stream, in bytes, rounded up to a multiple of 256; at least
   * 1. Nothing is taken before the first allocation.
   * @defaultValue 2 MiB, the smallest piece of device memory that a CUDA driver maps
   */
  readonly initialBytes?: number | undefined;
  /**
   * The ratio of the sizes of a stream's next block and its last, from 1 to 64. A larger request
   * gets a block of its own size.
   * @defaultValue 2
   */
  readonly growthFactor?: number | undefined;
  /**
   * The most bytes that all blocks together may have, rounded down to a multiple of 256.
   * @defaultValue Infinity
   */
  readonly maximumBytes?: number | undefined;
  /**
   * Serves allocations for which the maximum leaves no room, or the upstream has no memory; must be
   * on the same device.
   * @defaultValue none: such an allocation throws an OutOfMemoryError
   */
  readonly fallback?: MemoryResource | undefined;
}

const knownOptions = optionNames<MonotonicMemoryResourceOptions>({
  ...keepingOptionNames,
  deallocationEvents: true,
  fallback: true,
  growth: true,
  growthFactor: true,
  initialBytes: true,
  maximumBytes: true,
});

/** Statistics of a {@link MonotonicMemoryResource}. */
export interface MonotonicStatistics extends StreamOrderedStatistics {
  /**
   * Bytes allocated and not rewound, freed or not; each allocation counts rounded up to 256 bytes.
   */
  readonly usedBytes: number;
  /** How often it was rewound or reset. */
  readonly rewinds: number;
  /** How many allocations the fallback served. */
  readonly fallbackAllocations: number;
  /** The bytes of its live allocations. */
  readonly fallbackBytes: number;
}

/** Memory that came from the fallback. */
interface FallbackBlock {
  readonly bytes: number;
  readonly stream: Stream;
  /** The count of the fallback's allocations, including this one. */
  readonly serial: number;
  /** Allocations remembered before this block came have at most this number. */
  readonly remembered: number;
}

/** Refuses to free the fallback's memory, so that the fallback cannot take it back. */
interface FallbackGuard {
  readonly live: LiveAllocations<Stream>;
  readonly below: ReadonlySet<MemoryResource>;
  deallocate(pointer: DevicePointer, bytes: number): void;
}

/**
 * A point to which a {@link MonotonicMemoryResource} can be rewound, from its `mark()`. With
 * `using`, the end of the scope rewinds.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using scratch = new MonotonicMemoryResource(upstream);
 * using stream = new Stream();
 * for (let step = 0; step < 100; step++) {
 *   using _frame = scratch.mark();
 *   scratch.allocate(64 * KiB, stream); // gone at the end of each step
 * }
 * ```
 */
export class MonotonicMark implements Disposable {
  /** The number of the mark in its resource, from 1. */
  readonly id: number;
  /** @internal */
  readonly resource: MonotonicMemoryResource;
  /** @internal Where the cursors were. */
  readonly positions: readonly BumpPosition[];
  /** @internal How many allocations the fallback had served. */
  readonly fallbackAllocations: number;
  /**
   * @internal Allocations remembered by adaptors above the resource since this mark have higher
   * numbers.
   */
  remembered = rememberedSoFar();
  #isStanding = true;

  /** @internal */
  constructor(resource: MonotonicMemoryResource, id: number, positions: readonly BumpPosition[], fallbackAllocations: number) {
    assertMadeByCistern(resource, 'MonotonicMark', 'MonotonicMemoryResource.mark');
    this.resource = resource;
    this.id = id;
    this.positions = positions;
    this.fallbackAllocations = fallbackAllocations;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { id: this.id, isStanding: this.#isStanding }, inspection);
  }

  /**
   * Whether the resource can be rewound to this mark. False once it has been rewound to an earlier
   * mark, reset, or disposed.
   */
  get isStanding(): boolean {
    return this.#isStanding;
  }

  /** Rewinds the resource to this mark, if it still stands. */
  [Symbol.dispose](): void {
    if (this.#isStanding) this.resource.rewind(this);
  }

  /** @internal */
  fall(): void {
    this.#isStanding = false;
  }
}

/**
 * Cuts allocations from large blocks, from one end to the other. Single frees cost nothing and
 * return nothing; `mark` and `rewind` free everything allocated in between, on all streams, in one
 * call. Use it for scratch memory that is freed together: the temporaries of one step, one frame,
 * one layer.
 *
 * Stream order: each stream allocates from its own blocks, so streams never wait for each other
 * while they have room. Memory that a rewind takes back counts as freed at that time on the stream
 * it was allocated on; that stream reuses it without an event. Blocks that the stream no longer
 * needs serve other streams by the rules of `deallocationEvents`, with one event for each stream
 * and rewind under `'eager'`; the block that the cursor returns to stays with its stream. You may
 * free memory on a different stream than it was allocated on: at the next rewind, the stream that
 * owns it waits for the freeing stream, by the event of the free or by one recorded then. This also
 * applies under `'off'`, unless the freeing stream is found to be idle, because the owning stream
 * may be busy and has no other way to wait.
 *
 * Streams created outside cistern whose end is not announced may no longer exist at a rewind. So
 * under every policy, their blocks are held for them as under `'off'`, and a rewind waits for the
 * device if one of their allocations was freed on another stream that is not known to be idle.
 * Otherwise the host waits only under `'off'`, before memory runs out.
 *
 * It does not remember single allocations, so it cannot tell a double free, a wrong size or a
 * pointer into an allocation from a correct free. It refuses pointers that are not multiples of 256
 * or point to memory that is not allocated, and sizes that are 0 or extend beyond the allocated
 * memory.
 *
 * Memory that a rewind takes back is first freed through the resources above, so that limits,
 * tracking and the like count it as freed; a {@link DeviceBuffer} in it is disposed. A pool, or any
 * other resource above that keeps memory, then returns its free blocks; if a bare pointer is still
 * allocated there, the rewind is refused.
 *
 * The fallback's memory is freed by `deallocate`, as usual, or by a rewind, ordered on the stream
 * that it was allocated on. A rewind waits for the device, once, if that stream has ended, or may
 * no longer exist because its end is not announced.
 *
 * Every allocation is rounded up to a multiple of 256 bytes, and its alignment can be any power of
 * two. Allocating takes constant time within a block, and so does freeing, however many blocks are
 * in use.
 *
 * The upstream and the fallback must outlive this resource, and are not disposed with it. Disposing
 * it returns everything, ordered on the legacy default stream after all uses of the memory.
 *
 * RMM has no counterpart; rapidsai/rmm#1995 asks for one. It is like
 * `std::pmr::monotonic_buffer_resource`, but with streams, marks, and memory that can be reused.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using scratch = new MonotonicMemoryResource(upstream, { initialBytes: 64 * MiB });
 * using stream = new Stream();
 * const weights = scratch.allocate(1 * MiB, stream);
 * const mark = scratch.mark();
 * for (let step = 0; step < 100; step++) {
 *   const temporary = scratch.allocate(1 * MiB, stream);
 *   scratch.deallocate(temporary, 1 * MiB, stream); // does nothing
 *   scratch.rewind(mark);
 * }
 * scratch.deallocate(weights, 1 * MiB, stream);
 * ```
 */
export class MonotonicMemoryResource extends StreamOrderedMemoryResource<BumpChains> {
  /** @internal */
  static override readonly name = 'MonotonicMemoryResource';
  /** @internal It first steps out of blocks that are not used. */
  readonly findsMoreAtTrims = true;
  protected readonly tries = new Tries(this.keeper, this.index, {
    growBeforeWaits: (bytes, stream, alignment) => this.#growsFirst && this.#growBeforeWaits(leastBlockBytes(bytes, alignment), stream),
    grow: (bytes, stream, alignment) => this.#grow(leastBlockBytes(bytes, alignment), stream),
    outOfMemory: (bytes, alignment) => this.#outOfMemory(bytes, alignment),
  });
  /** The size of the first block of each stream. */
  readonly initialBytes: number;
  /** The ratio of a stream's next block to its last. */
  readonly growthFactor: number;
  /** The most bytes that all blocks together may have. */
  readonly maximumBytes: number;
  readonly #growsFirst: boolean;
  /** Serves allocations for which there is no room; undefined if not set. */
  readonly fallback: MemoryResource | undefined;
  declare readonly alternates?: readonly MemoryResource[];
  /** The policy passed to the fallback at a free, if this resource was given one. */
  readonly #fallbackEvents: DeallocationEvents | undefined;
  /** The chain of the last call's stream. */
  #chain = new BumpChain(none);
  /** The marks that stand, from the first to the last. */
  readonly #marks: MonotonicMark[] = [];
  readonly #fallbackBlocks = new AddressTable<FallbackBlock>();
  /**
   * Guards the same blocks from a fallback that takes memory back, which must not happen while they
   * are live.
   */
  readonly #fallbackGuard: FallbackGuard | undefined;
  #markCount = 0;
  #rewinds = 0;
  #fallbackAllocations = 0;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or a fallback on another
   * device.
   */
  constructor(upstream: MemoryResource, options: MonotonicMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { initialBytes = 2 * MiB, growthFactor = 2, maximumBytes = Number.POSITIVE_INFINITY, fallback, deallocationEvents } = options;
    assertBytes(initialBytes, 'initialBytes');
    if (initialBytes === 0) throw new ArgumentRangeError('initialBytes must be at least 1, got 0');
    assertGrowthFactor(growthFactor);
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    const isGrowingFirst = growsFirst(options);
    super(upstream, deallocationEvents === undefined ? 'eager' : deallocationEvents, new BumpChains(), options);
    this.#growsFirst = isGrowingFirst;
    if (fallback !== undefined) assertFallback(fallback, this.device);
    this.initialBytes = alignUp(initialBytes, ALLOCATION_ALIGNMENT);
    this.growthFactor = growthFactor;
    this.maximumBytes = maximumBytes === Number.POSITIVE_INFINITY ? maximumBytes : alignDown(maximumBytes, ALLOCATION_ALIGNMENT);
    this.fallback = fallback;
    if (fallback !== undefined) this.alternates = [fallback];
    this.#fallbackEvents = deallocationEvents;
    const fallbackLayers = fallback === undefined ? [] : layersOf(fallback);
    if (fallbackLayers.some(takesBack)) {
      this.#fallbackGuard = {
        live: new LiveAllocations(),
        below: new Set(fallbackLayers),
        deallocate: (pointer, bytes) => {
          throw stillUsed(this, pointer, bytes);
        },
      };
      addRemembering(this.#fallbackGuard);
    }
    markAsTaker(this);
  }

  override allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');
    // Most sizes fit into 32-bit arithmetic; the others take the slow path.
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small === bytes && small > 0 && small <= 0x7fffff00 && alignment === ALLOCATION_ALIGNMENT) {
      const address = this.#chain.cursor.allocate((small + (ALLOCATION_ALIGNMENT - 1)) & -ALLOCATION_ALIGNMENT);
      if (address !== none) return address;
    }
    return this.#allocateUnusual(bytes, stream, alignment);
  }

  /**
   * Frees memory of the fallback, and notes a free on a different stream than the allocation's;
   * otherwise does nothing. Freeing the null pointer does nothing.
   * @throws LifetimeError for a pointer or size that is detectably wrong (see the class); the state
   * is unchanged.
   */
  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'deallocate');
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small === bytes && small > 0 && fence === undefined && typeof pointer === 'number' && this.#chain.cursor.isLive(pointer, small))
      return;
    this.#deallocateUnusual(pointer, bytes, stream, fence);
  }

  /**
   * Returns a point to rewind to, for the memory of all streams. Marks nest: a rewind to one ends
   * the marks after it. If nothing was allocated in between, a second call returns the same mark.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource is disposed.
   */
  mark(): MonotonicMark {
    this.assertLive('mark');
    const last = this.#marks.at(-1);
    if (last !== undefined && this.#isAt(last)) return last;
    const mark = new MonotonicMark(this, ++this.#markCount, this.index.positions(), this.#fallbackAllocations);
    this.#marks.push(mark);
    return mark;
  }

  /**
   * Frees everything that was allocated since a mark, on all streams, whether it was deallocated or
   * not. The mark stays: the resource can be rewound to it again. Blocks beyond the mark become
   * free, except for a stream's first block if all of it is taken back.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) for a mark that no longer stands; the state
   * is unchanged.
   * @throws ArgumentTypeError, ArgumentRangeError if `mark` is not a mark of this resource.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) also if a resource above that keeps memory,
   * such as a pool, holds some of the memory with a live allocation that only the program can free;
   * nothing is then rewound.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource is disposed.
   * @throws DriverError if an event cannot be recorded or waited for, or a buffer cannot be freed:
   * nothing is rewound then, and the rewind can be tried again; or an error of the fallback at a
   * free, after everything else: that memory is tried again at the next rewind.
   */
  rewind(mark: MonotonicMark): void {
    if (!(mark instanceof MonotonicMark)) throw new ArgumentTypeError(`mark must be a MonotonicMark, got ${formatValue(mark)}`);
    if (mark.resource !== this) {
      throw invalidValue('mark must belong to this resource, got one of another');
    }
    throwFirst(this.#takeBackSince(mark, true, 'rewind'));
  }

  /**
   * Frees everything that was allocated, and keeps the blocks, which all streams can then use. Ends
   * all marks.
   * @throws as `rewind`
   */
  reset(): void {
    throwFirst(this.#takeBackSince(undefined, false, 'reset'));
  }

  /**
   * Frees everything that was allocated, and returns all blocks to the upstream, ordered on
   * `stream`, which first waits for the streams that used them. Ends all marks; you can still use
   * the resource.
   * @returns the bytes returned to the upstream
   * @throws as `rewind`; and as `trim`, after everything is rewound and the fallback's memory is
   * freed: blocks that the upstream refused stay here, free.
   */
  release(stream: Stream): number {
    this.enter(stream, 'release');
    const refused = this.#takeBackSince(undefined, false, 'release');
    const released = super.trim(stream);
    throwFirst(refused);
    return released;
  }

  override trim(stream: Stream, options?: TrimOptions): number {
    this.enter(stream, 'trim');
    this.#stepBack(() => this.index.stepsOutOfUnusedBlocks(), 'trim');
    return super.trim(stream, options);
  }

  /** Current sizes and counts since the start. Linear in the number of blocks. */
  statistics(): MonotonicStatistics {
    return Object.freeze({
      ...this.keeper.statistics(),
      usedBytes: this.index.usedBytes,
      rewinds: this.#rewinds,
      fallbackAllocations: this.#fallbackAllocations,
      fallbackBytes: [...this.#fallbackBlocks.values()].reduce((sum, { bytes }) => sum + bytes, 0),
    });
  }

  /** Also frees the fallback's memory. */
  override [Symbol.dispose](): void {
    let refused: unknown[] = [];
    const taken = this.#takenSince(undefined, `the ${this.constructor.name} is disposed`);
    if (!this.isDisposed) this.keeper.takeBack(taken);
    // Host functions may have disposed this.
    if (!this.isDisposed) this.#takeBackBlocks(taken, undefined, false, 'dispose');
    try {
      super[Symbol.dispose]();
    } finally {
      refused = this.#freeFallbackSince(0);
    }
    throwFirst(refused);
  }

  /** @internal */
  override enter(stream: Stream, operation: string): void {
    super.enter(stream, operation);
    // If the stream may no longer exist at a rewind, no event can be recorded on it then.
    const lane = stream.identity.announcesEnd ? this.lane : this.ordering.heldLaneOf(stream);
    this.#chain = this.index.chainOf(lane.number);
  }

  #growBeforeWaits(least: number, stream: Stream): boolean {
    return !this.keeper.held.isRefused(least) && this.#takeBlock(least, stream);
  }

  #grow(least: number, stream: Stream): boolean {
    const { maximumBytes } = this;
    if (least > maximumBytes) return false;
    const take = () => this.#takeBlock(least, stream);
    return take() || this.#hasRoom(least, stream) || (this.keeper.makeWay(least, maximumBytes, stream) && take());
  }

  #takeBlock(least: number, stream: Stream): boolean {
    const left = this.maximumBytes - this.keeper.held.claimedBytes;
    const last = this.#chain.cursor.lastBlockBytes;
    const wanted = last === 0 ? this.initialBytes : alignUp(last * this.growthFactor, ALLOCATION_ALIGNMENT);
    return least <= left && this.keeper.tryTakeAtLeast(least, Math.min(Math.max(least, wanted), left), stream);
  }

  /** Whether other streams have a free block, or a block without allocations. */
  #hasRoom(least: number, stream: Stream): boolean {
    this.#stepBack(() => this.index.stepsOutOfUnusedBlocks(), 'allocate');
    const { number } = this.lane;
    do if (this.index.largestFreeBytes(number) >= least) return true;
    while (this.ordering.joinNext(stream) !== undefined);
    return false;
  }

  #outOfMemory(bytes: number, alignment: number): OutOfMemoryError {
    const { reservedBytes, maximumBytes } = this;
    const aligned = alignment === ALLOCATION_ALIGNMENT ? '' : ` at a multiple of ${alignment}`;
    const reason = `${formatBytes(reservedBytes)} are reserved, ${formatBytes(this.index.usedBytes)} of them used, none is left${aligned}`;
    return this.keeper.outOfMemoryWithin(maximumBytes, bytes, reason);
  }

  /**
   * Zero bytes, 2 GiB and more, invalid sizes, alignments other than 256; and requests that need
   * another block.
   */
  #allocateUnusual(bytes: number, stream: Stream, alignment: number): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment);
    if (bytes === 0) return 0;
    const aligned = Math.max(alignment, ALLOCATION_ALIGNMENT);
    const rounded = alignUp(bytes, ALLOCATION_ALIGNMENT);
    const address = this.#chain.cursor.allocateAligned(rounded, aligned);
    if (address !== none) return address;
    try {
      return this.#allocateInNextBlock(bytes, rounded, stream, aligned);
    } catch (error) {
      if (this.fallback === undefined || !(error instanceof OutOfMemoryError)) throw error;
      return this.#allocateInFallback(this.fallback, bytes, stream, aligned);
    }
  }

  #allocateInNextBlock(bytes: number, rounded: number, stream: Stream, alignment: number): DevicePointer {
    const chain = this.#chain;
    // A block that is too small for the first request would only obstruct later ones.
    this.#stepBack(() => this.index.stepsOutOfUnusedBlocks().filter((step) => step.chain === chain), 'allocate');
    let start = this.index.cut(bytes, alignment, this.lane.number);
    if (start === none) start = this.miss(bytes, stream, alignment);
    this.index.extend(this.#chain, start);
    return this.#chain.cursor.allocateAligned(rounded, alignment);
  }

  #allocateInFallback(fallback: MemoryResource, bytes: number, stream: Stream, alignment: number): DevicePointer {
    let pointer: DevicePointer;
    try {
      // A cache must not take it back when a scope ends.
      const returned = withoutCaching(() => fallback.allocate(bytes, stream, alignment));
      pointer = this.keeper.held.servedOutside(returned, bytes, stream, fallback);
      const held = this.#fallbackBlocks.get(pointer);
      if (held !== undefined) throw servedTwice(pointer, fallback, bytes, { address: pointer, bytes: held.bytes });
    } catch (error) {
      throw error instanceof OutOfMemoryError ? error.through(this.constructor.name) : error;
    }
    const serial = ++this.#fallbackAllocations;
    this.#keepFallback(pointer, { bytes, stream, serial, remembered: rememberedSoFar() });
    // Host functions may have disposed this.
    if (this.isDisposed) {
      this[Symbol.dispose]();
      this.assertLive('allocate');
    }
    return pointer;
  }

  /**
   * Every case except a free, without a fence, of memory in the last block of the calling stream.
   */
  #deallocateUnusual(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    assertPointer(pointer);
    assertBytes(bytes);
    const fallbackBlock = this.#fallbackBlocks.get(pointer);
    if (fallbackBlock !== undefined) {
      this.#deallocateInFallback(pointer, bytes, stream, fence, fallbackBlock);
      return;
    }
    const block = this.index.blockAt(pointer);
    if (block === undefined) {
      this.keeper.refuseFree(pointer, bytes, none);
      return;
    }
    const { chain, number } = block;
    assertHandedOut(pointer, bytes, chain.cursor.topOf(number), this.constructor.name);
    if (chain === this.#chain || this.ordering.lane(chain.lane).identity === stream.identity) {
      if (fence !== undefined) assertFence(fence, stream);
      return;
    }
    const asked = fence ?? this.deallocationEvents;
    // The memory is returned to the stream that it was allocated on. That stream's own work needs
    // no event, and the caller's event covers the rest.
    const owner = stream.identity.serial;
    chain.awaited.add(this.ordering.freedWith(asked === 'off' ? 'deferred' : asked, stream, owner).number);
  }

  #deallocateInFallback(
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
    block: FallbackBlock,
  ): void {
    if (bytes !== block.bytes) {
      const where = `the ${this.constructor.name} cannot free ${formatPointer(pointer)}`;
      throw wrongSize(where, bytes, block.bytes);
    }
    // Removed before the call: host functions that run during it may rewind.
    this.#dropFallback(pointer);
    try {
      const fallback = this.fallback as MemoryResource;
      noteFree(fallback.deallocate(pointer, bytes, stream, fence ?? this.#fallbackEvents), fallback);
    } catch (error) {
      this.#keepFallback(pointer, block);
      throw error;
    }
  }

  #keepFallback(pointer: DevicePointer, block: FallbackBlock): void {
    this.#fallbackBlocks.set(pointer, block);
    this.#fallbackGuard?.live.add(pointer, block.bytes, Stream.legacyDefault(this.device));
  }

  #dropFallback(pointer: DevicePointer): void {
    this.#fallbackBlocks.delete(pointer);
    this.#fallbackGuard?.live.remove(pointer);
  }

  /** Returns the fallback's errors. */
  #takeBackSince(mark: MonotonicMark | undefined, keepsFirstBlock: boolean, operation: 'rewind' | 'reset' | 'release'): unknown[] {
    this.assertLive(operation);
    assertStanding(mark, operation, this.constructor.name);
    const taken = this.#takenSince(mark, `the ${this.constructor.name} took its memory back by a ${operation}`);
    this.#takeBackBlocks(taken, mark, keepsFirstBlock, operation);
    this.#rewinds++;
    if (mark !== undefined) mark.remembered = rememberedSoFar();
    return this.#freeFallbackSince(mark?.fallbackAllocations ?? 0);
  }

  /** The memory allocated since a mark, or ever. */
  #takenSince(mark: MonotonicMark | undefined, reason: string): TakenMemory {
    const fallbackAllocations = mark?.fallbackAllocations ?? 0;
    let fallbackSegments: (Segment & { readonly remembered: number })[] | undefined;
    const has = (pointer: DevicePointer, number: number) => {
      const block = this.index.blockAt(pointer);
      if (block !== undefined) return this.keeper.held.hadBefore(pointer, number) && isSince(mark, block, pointer);
      // An adaptor above may have moved the pointer to align it.
      fallbackSegments ??= this.#fallbackBlocksSince(fallbackAllocations)
        .map(([address, { bytes, remembered }]) => ({ address, bytes, remembered }))
        .sort((a, b) => a.address - b.address);
      const segment = segmentAround(fallbackSegments, pointer);
      return segment !== undefined && segment.remembered < number;
    };
    return { by: this, since: mark?.remembered ?? this.keeper.held.remembered, reason, has };
  }

  /** Takes back everything that was allocated in the blocks since a mark, or ever. */
  #takeBackBlocks(taken: TakenMemory, mark: MonotonicMark | undefined, keepsFirstBlock: boolean, operation: string): void {
    this.#stepBack(() => {
      this.keeper.takeBack(taken);
      // Foreign code may have disposed this.
      this.assertLive(operation);
      assertStanding(mark, operation, this.constructor.name);
      return this.index.stepsBackTo(mark?.positions ?? [], keepsFirstBlock);
    }, operation);
    while (this.#marks.length > 0 && this.#marks.at(-1) !== mark) this.#marks.pop()?.fall();
  }

  /**
   * Takes steps back, after their memory can be reused in the order of its streams. If that fails,
   * the state is unchanged.
   */
  #stepBack(stepsBack: () => BumpPosition[], operation: string): void {
    this.assertLive(operation);
    let steps = stepsBack();
    while (steps.some(({ chain }) => this.#mustWait(chain))) {
      this.keeper.synchronizeDevice();
      // Host functions may have run.
      this.assertLive(operation);
      steps = stepsBack();
    }
    for (const { chain, blockCount } of steps) this.#order(chain, blockCount < chain.cursor.blockCount);
    for (const step of steps) this.index.stepBack(step);
  }

  /**
   * Whether the host must wait, because the chain's stream may no longer exist and so cannot wait
   * itself.
   */
  #mustWait({ lane, awaited }: BumpChain): boolean {
    if (awaited.size === 0 || this.ordering.lane(lane).identity?.announcesEnd !== false) return false;
    return [...awaited].some((number) => !this.ordering.lane(number).isIdle);
  }

  /**
   * Makes the stream of a chain wait for frees on other streams, and prepares its lane for blocks
   * of the chain.
   */
  #order({ lane, awaited }: BumpChain, givesBlocks: boolean): void {
    if (awaited.size === 0 && !givesBlocks) return;
    const owner = this.ordering.lane(lane);
    for (const number of awaited) {
      const other = this.ordering.lane(number);
      if (this.deallocationEvents === 'off' && other instanceof StreamLane && other.identity.announcesEnd) other.query();
      if (!(owner instanceof StreamLane)) this.ordering.orderEnded(number);
      else if (owner.identity.announcesEnd) other.order(owner);
    }
    if (!givesBlocks || !(owner instanceof StreamLane)) return;
    if (owner.isHeld) owner.freeUnrecorded();
    else this.ordering.freed(owner);
  }

  /**
   * Frees the fallback's memory, except for its first `fallbackAllocations` allocations. Returns
   * the fallback's errors.
   */
  #freeFallbackSince(fallbackAllocations: number): unknown[] {
    const freed = this.#fallbackBlocksSince(fallbackAllocations);
    // Removed first: host functions that run during the calls may rewind.
    for (const [pointer] of freed) this.#dropFallback(pointer);
    let hasWaited = false;
    return attemptEach(freed, ([pointer, block]) => {
      try {
        let { stream } = block;
        if (stream.isDisposed || !stream.identity.announcesEnd) {
          // One wait covers all, because no later work may use the memory.
          if (!hasWaited) this.keeper.synchronizeDevice();
          hasWaited = true;
          stream = Stream.legacyDefault(this.device);
        }
        const fallback = this.fallback as MemoryResource;
        noteFree(fallback.deallocate(pointer, block.bytes, stream, this.#fallbackEvents), fallback);
      } catch (error) {
        this.#keepFallback(pointer, block);
        throw error;
      }
    });
  }

  /** Whether everything that was allocated since a mark has been rewound and freed. */
  #isAt({ positions, fallbackAllocations }: MonotonicMark): boolean {
    return this.index.isAt(positions) && this.#fallbackBlocksSince(fallbackAllocations).length === 0;
  }

  /** The live memory of the fallback, except for its first `fallbackAllocations` allocations. */
  #fallbackBlocksSince(fallbackAllocations: number): [DevicePointer, FallbackBlock][] {
    if (this.#fallbackBlocks.size === 0) return [];
    return [...this.#fallbackBlocks].filter(([, { serial }]) => serial > fallbackAllocations);
  }
}

/** `monotonic` in a specification. */
export const monotonicKind = defineAdaptor({
  name: 'monotonic',
  role: 'pooling',
  summary: 'cuts allocations from large blocks, from one end to the other; single frees return nothing',
  options: {
    initialBytes: { type: 'size', summary: 'the size of the first block of each stream, taken when needed', default: '2MiB' },
    maximumBytes: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
    growthFactor: { type: 'number', summary: "the ratio of a stream's next block to its last, from 1 to 64", default: '2' },
    fallback: { type: 'resource', summary: 'serves requests for which there is no room', default: 'none' },
    growth: growthOption,
    ...keepingOptions,
  },
  maximum: 'maximumBytes',
  example: 'monotonic(cuda, initialBytes=128KiB, maximumBytes=64MiB)',
  create: ({ upstream, options }) => new MonotonicMemoryResource(upstream, options),
});

/** Whether an address in a block was allocated since a mark, or ever. */
function isSince(mark: MonotonicMark | undefined, { chain, number }: BumpBlock, pointer: DevicePointer): boolean {
  if (pointer >= chain.cursor.topOf(number)) return false;
  const position = mark?.positions.find((each) => each.chain === chain);
  if (position === undefined || number >= position.blockCount) return true;
  return number === position.blockCount - 1 && pointer >= position.top;
}

/**
 * @throws LifetimeError if the pointer is detectably not a live allocation of its block, which is
 * allocated up to `top`.
 */
function assertHandedOut(pointer: number, bytes: number, top: number, name: string): void {
  const where = `the ${name} cannot free ${formatPointer(pointer)}`;
  if (pointer >= top) throw alreadyFreed(where);
  if (pointer % ALLOCATION_ALIGNMENT !== 0) throw insideAllocation(where);
  if (bytes > 0 && pointer + bytes <= top) return;
  throw new LifetimeError('ERR_CISTERN_WRONG_SIZE', `${where} with ${bytes} bytes: no allocation there has that size`);
}

/** @throws CisternError for a mark that no longer stands. */
function assertStanding(mark: MonotonicMark | undefined, operation: string, name: string): void {
  if (mark?.isStanding !== false) return;
  throw new CisternError(
    'ERR_CISTERN_INVALID_STATE',
    `cannot ${operation} to mark ${mark.id}: the ${name} was rewound to an earlier mark, or reset, since it was made`,
  );
}

function assertGrowthFactor(factor: unknown): asserts factor is number {
  if (typeof factor !== 'number') throw new ArgumentTypeError(`growthFactor must be a number, got ${formatValue(factor)}`);
  if (factor >= 1 && factor <= maximumGrowthFactor) return;
  throw new ArgumentRangeError(`growthFactor must be from 1 to ${maximumGrowthFactor}, got ${factor}`);
}
