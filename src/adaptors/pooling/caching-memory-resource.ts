/**
 * A cache of whole blocks, and the runs in which it is used.
 *
 * Data structure. The cache holds blocks of the upstream, each with the exact size of the requests
 * it serves. Free blocks are in the lanes of stream ordering (`BlockLists`), used ones in groups,
 * one group for each stream in each run (`BlockGroups`). A used block that is in no group was kept.
 * If a block is a buffer's memory, that memory is its owner.
 *
 *     run 1   stream 1 -> a -> b      owners   a: memory of a buffer
 *             stream 2 -> c           kept     e
 *     run 2   stream 1 -> d
 *
 * `order-of-tries.ts` describes where an allocation in a run finds a block if its stream's own lane has none.
 * The cache grows by one block, if the maximum leaves room for it, or after it has returned free blocks of
 * other sizes to the upstream: as many bytes as requested, repeated while there are any.
 *
 * Taking a free block takes constant time for a given number of streams and sizes; so does a free. The
 * end of a run costs as much as what it takes back.
 *
 * Invariants: a block with an owner is in a group; a block in a group is used; the groups belong to
 * the runs that have not ended, and to those that ended in a host function and left something.
 */

import { CisternError, formatPointer, LifetimeError, OutOfMemoryError, throwFirst } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertFunction, assertOptions, assertPointer, optionNames } from '../../basics/validation.js';
import { isNotPermitted } from '../../driver/status.js';
import { noStream, Stream } from '../../driver/streams/stream.js';
import type {
  DeallocationEvents,
  DeallocationEventsOption,
  DeallocationFence,
  DevicePointer,
  MemoryResource,
} from '../../memory-resource.js';
import { DeviceWaits, markAsTaker, type RefusedFree, rememberedSoFar, takeBack } from '../../ownership/bulk-frees.js';
import { noteFree } from '../../ownership/served-memory.js';
import { defineAdaptor } from '../../resource-kind.js';
import {
  type CachingScope,
  enterCachingScope,
  findCachingScope,
  innermostFrame,
  type ScopedMemory,
  type ScopeFrame,
  untilSettled,
  withResource,
} from '../../scopes/resource-scope.js';
import type { StreamLane } from '../../stream-ordering/stream-lane.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { BlockGroups } from '../../suballocation/block-groups.js';
import { BlockLists, blockFields } from '../../suballocation/block-lists.js';
import { isWithin, none, type Segment } from '../../suballocation/blocks.js';
import { type KeepingOptions, keepingOptionNames, keepingOptions, type StreamOrderedStatistics } from './keeper.js';
import { type GrowthOption, growsFirst, growthOption, Tries } from './order-of-tries.js';
import { StreamOrderedMemoryResource } from './stream-ordered-memory-resource.js';

/** Options of {@link CachingMemoryResource}. */
export interface CachingMemoryResourceOptions extends DeallocationEventsOption, GrowthOption, KeepingOptions {
  /**
   * The name of the cache in errors and statistics.
   * @defaultValue `'cache'`
   */
  readonly name?: string | undefined;
  /**
   * The most bytes that all blocks together may have, free or not, rounded down to a multiple of
   * 256. If a new block would exceed it, the cache first returns free blocks of other sizes to the
   * upstream, one size after another, until there is room. Memory that passes through the cache
   * outside its runs does not count.
   * @defaultValue Infinity
   */
  readonly maximumBytes?: number | undefined;
}

const knownOptions = optionNames<CachingMemoryResourceOptions>({
  ...keepingOptionNames,
  deallocationEvents: true,
  growth: true,
  maximumBytes: true,
});

/**
 * Statistics of a {@link CachingMemoryResource}. Memory allocated outside its runs is not included.
 */
export interface CachingStatistics extends StreamOrderedStatistics {
  readonly name: string;
  /** Allocations in runs that were served by a free block. */
  readonly hits: number;
  /** Allocations in runs that took a block from the upstream. */
  readonly misses: number;
  readonly freeBlocks: number;
  readonly freeBytes: number;
  readonly busyBlocks: number;
  /** The same as `allocatedBytes`. */
  readonly busyBytes: number;
  /** The busy blocks that were kept, so that no run takes them back at its end. */
  readonly keptBlocks: number;
  /** Runs that have begun, and those among them that have not ended. */
  readonly runs: number;
  readonly activeRuns: number;
}

/** One run of a cache. */
class Run implements CachingScope {
  readonly cache: CachingMemoryResource;
  readonly adopt: (pointer: DevicePointer, owner: ScopedMemory) => boolean;
  hasEnded = false;
  /**
   * Allocations remembered by adaptors above the cache since this run began have higher numbers.
   */
  readonly remembered = rememberedSoFar();
  /** The groups of its blocks, by the stream that they were allocated on. */
  readonly groups = new Map<Stream, number>();
  /** The stream of the last allocation, and its group. */
  stream: Stream = noStream;
  group: number = none;

  constructor(cache: CachingMemoryResource, adopt: (run: Run, pointer: DevicePointer, owner: ScopedMemory) => boolean) {
    this.cache = cache;
    this.adopt = (pointer, owner) => adopt(this, pointer, owner);
  }
}

/**
 * Reuses the memory that one pass of a loop allocated for the next pass, which requests the same
 * sizes again. A pass is a call of {@link CachingMemoryResource.run}: when it ends, the cache takes
 * back everything that was allocated in it and neither freed nor kept, without waiting for the
 * garbage collector. From the second pass on, no pass calls the upstream.
 *
 * Outside its runs, and inside {@link uncached}, calls pass to the upstream. There,
 * `deallocationEvents`, if set, is passed to the resources below.
 *
 * Stream order: a block freed by a call or by the end of a run can be reused immediately on its
 * stream, and on other streams by the rules of `deallocationEvents`. The end of a run frees a block
 * on the stream that it was allocated on, and a buffer on the buffer's stream. The host waits only
 * if the upstream makes it wait; once for the device at the end of a run in which streams were
 * disposed; and under `'off'`, before an allocation runs out of memory. A stream created outside
 * cistern whose end is not announced may no longer exist when a run ends: its blocks are held for
 * it as under `'off'`, and for its buffers the end of the run waits for the device. A run that ends
 * inside a host function, which must not wait, leaves bare pointers of such streams, and of
 * disposed ones, to the end of a later run.
 *
 * Sizes are rounded up to a multiple of 256 bytes, and a block serves only its exact size: put a
 * {@link RoundingResourceAdaptor} above a cache for sizes that nearly match. The alignment is 256,
 * in runs or not; for a larger one, put an {@link AlignedResourceAdaptor} above.
 *
 * Do not use memory that a run has taken back. It is freed through all resources between the
 * program and the cache, so that limits, tracking and the like count it as freed. A {@link
 * DeviceBuffer} is then disposed, and using it throws a LifetimeError; the garbage collector leaves
 * its memory alone. Freeing a bare pointer later is a double free, and is refused as long as its
 * block is free. Once the block has been allocated again with the same size, a second free cannot
 * be detected; nor can reads and writes through bare pointers.
 *
 * A resource above that keeps memory for itself, such as a pool, takes it uncached. If you write
 * such a resource, it must call its upstream in {@link uncached}.
 *
 * The upstream must outlive the cache, and is not disposed with it. Disposing the cache returns
 * everything to the upstream, ordered on the legacy default stream after every free.
 *
 * Counterpart of GPUArrays' `@cached`, and of `tf.tidy`. Unlike with GPUArrays, memory freed in a
 * run serves that run again; nested and concurrent runs of one cache take back only their own
 * memory; and an array that escapes is refused, not aliased.
 * @example
 * ```ts
 * using cache = new CachingMemoryResource(resource, { name: 'training' });
 * using stream = new Stream();
 * for (let step = 0; step < 100; step++) {
 *   await cache.run(async () => {
 *     const activations = new DeviceBuffer(64 * MiB, { stream }); // the same memory in every step
 *     const loss = new DeviceBuffer(4, { stream });
 *     console.log(activations.byteLength, await loss.toHost());
 *   });
 * }
 * ```
 */
export class CachingMemoryResource extends StreamOrderedMemoryResource<BlockLists> {
  /** @internal */
  static override readonly name = 'CachingMemoryResource';
  protected readonly tries = new Tries(this.keeper, this.index, {
    growBeforeWaits: (bytes, stream) => this.#growsFirst && this.#growBeforeWaits(alignUp(bytes, ALLOCATION_ALIGNMENT), stream),
    grow: (bytes, stream) => this.#grow(bytes, stream),
    outOfMemory: (bytes) => this.#outOfMemory(bytes),
  });
  /** The name of the cache in errors and statistics. */
  readonly name: string;
  /** The most bytes that all blocks together may have. */
  readonly maximumBytes: number;
  readonly #growsFirst: boolean;
  readonly #groups = new BlockGroups();
  /** By group: its run, and the stream of its blocks. */
  readonly #groupRuns: (Run | undefined)[] = [];
  readonly #groupStreams: Stream[] = [];
  /** By block / blockFields. */
  readonly #owners: (ScopedMemory | undefined)[] = [];
  /** Not made in `run`, because such a closure would keep everything in scope there alive. */
  readonly #adoptFor = (run: Run, pointer: DevicePointer, owner: ScopedMemory) => this.#adopt(run, pointer, owner);
  /** The policy passed to the resources below with frees that pass through. */
  readonly #passedEvents: DeallocationEvents | undefined;
  /** The innermost scope at the last allocation in a run, and the run that it leads to. */
  #knownFrame: ScopeFrame | undefined;
  #knownRun: Run | undefined;
  #runs = 0;
  #activeRuns = 0;
  /**
   * Runs that ended in a host function and left memory that can only be freed after a wait, which a
   * host function must not do.
   */
  #lateRuns: Run[] = [];
  #hits = 0;
  #misses = 0;
  #hasGrown = false;
  /**
   * Memory that was allocated in runs when this was disposed, and so was returned to the upstream.
   */
  readonly #ended = new AddressMap();

  /**
   * @throws ArgumentTypeError for an invalid resource or name, ArgumentRangeError for an invalid
   * option value.
   */
  constructor(upstream: MemoryResource, options: CachingMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { name = 'cache', maximumBytes = Number.POSITIVE_INFINITY, deallocationEvents } = options;
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    const isGrowingFirst = growsFirst(options);
    super(upstream, deallocationEvents === undefined ? 'eager' : deallocationEvents, new BlockLists(), { ...options, name });
    this.#growsFirst = isGrowingFirst;
    this.name = name;
    this.maximumBytes = maximumBytes === Number.POSITIVE_INFINITY ? maximumBytes : alignDown(maximumBytes, ALLOCATION_ALIGNMENT);
    this.#passedEvents = deallocationEvents;
    markAsTaker(this);
  }

  /**
   * Calls a function. When it returns or throws (for an asynchronous function, when its promise
   * settles, but before the promise returned here does), takes back everything that it, and the
   * work that it started asynchronously, allocated through this cache. During the call, the cache
   * is the current resource, as in {@link withResource}. Runs may be nested and may overlap; each
   * takes back only its own memory.
   *
   * Work that continues after the end of the run is outside it, and allocates from the upstream.
   *
   * Counterpart of GPUArrays' `@cached cache expression`.
   * @param fn a function, asynchronous or not
   * @returns what `fn` returns; for a promise, one that settles in the same way after the run has
   * ended. Buffers in the result that were made in the run are disposed, unless they are kept.
   * @throws ArgumentTypeError if `fn` is not a function; LifetimeError (`ERR_CISTERN_DISPOSED`) if
   * this is disposed; any error that `fn` throws; otherwise the first error of a free at the end of
   * the run, whose memory stays allocated.
   */
  run<T>(fn: () => T): T {
    this.assertLive('run');
    assertFunction(fn, 'fn');
    const run = new Run(this, this.#adoptFor);
    this.#runs++;
    this.#activeRuns++;
    return untilSettled(
      () => withResource(this, () => enterCachingScope(run, fn)),
      (hasFailed) => this.#end(run, hasFailed),
    );
  }

  /**
   * Lets memory outlive the runs that it was allocated in: it stays allocated until you free it,
   * and is then returned to the cache. Has no effect on memory that no run of this cache would take
   * back. A buffer stays kept when it grows.
   * @param memory a pointer that this cache returned, or one into such memory; or an object with
   * such a pointer as `ptr`, for example a {@link DeviceBuffer}
   * @returns `memory`
   * @throws ArgumentTypeError, ArgumentRangeError for anything else; LifetimeError
   * (`ERR_CISTERN_DISPOSED`) for memory that is freed.
   * @example
   * ```ts
   * using cache = new CachingMemoryResource(resource);
   * using stream = new Stream();
   * using weights = cache.run(() => cache.keep(new DeviceBuffer(1 * MiB, { stream })));
   * ```
   */
  keep<T extends DevicePointer | { readonly ptr: DevicePointer }>(memory: T): T {
    this.assertLive('keep memory');
    const pointer: unknown = typeof memory === 'object' && memory !== null ? memory.ptr : memory;
    assertPointer(pointer, 'memory');
    const block = this.#usedBlockAround(pointer);
    if (block !== none) {
      this.#owners[block / blockFields]?.leaveScopes();
      this.#forget(block);
    } else if (this.index.hasBlock(pointer)) {
      throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot keep ${formatPointer(pointer)}: it is already freed`);
    }
    return memory;
  }

  /**
   * Returns all free blocks to the upstream, ordered on `stream`, which first waits for everything
   * freed on other streams. Kept memory stays. {@link CachingMemoryResource.trim} does the same,
   * and can be called at any time.
   *
   * Counterpart of `unsafe_free!(cache)` of GPUArrays.
   * @param stream defaults to the legacy default stream
   * @returns the bytes returned to the upstream
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while a run has not ended.
   */
  invalidate(stream: Stream = Stream.legacyDefault(this.device)): number {
    this.assertLive('invalidate');
    if (this.#activeRuns > 0) {
      const running = this.#activeRuns === 1 ? 'a run has' : `${this.#activeRuns} runs have`;
      throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot invalidate the cache '${this.name}': ${running} not ended`);
    }
    return this.trim(stream);
  }

  override allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    const run = this.#activeRuns === 0 ? undefined : this.#currentRun();
    if (run === undefined) return this.#allocateUncached(bytes, stream, alignment);
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');
    // Most sizes fit into 32-bit arithmetic; the others take the slow path.
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small !== bytes || small <= 0 || small > 0x7fffff00 || alignment !== ALLOCATION_ALIGNMENT)
      return this.#allocateUnusual(run, bytes, stream, alignment);
    const rounded = (small + (ALLOCATION_ALIGNMENT - 1)) & -ALLOCATION_ALIGNMENT;
    const { number, owner } = this.lane;
    const block = this.index.take(rounded, rounded - small, number, owner);
    if (block === none) return this.#allocateSlowly(run, bytes, stream);
    this.#hits++;
    return this.#handOut(run, block, stream);
  }

  /**
   * @throws LifetimeError (`ERR_CISTERN_DOUBLE_FREE`) also for memory that the end of a run has
   * already taken back, unless its block has been allocated again.
   */
  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const block = typeof pointer === 'number' ? this.index.usedBlock(pointer) : none;
    if (block === none) {
      this.#deallocateUncached(pointer, bytes, stream, fence);
      return;
    }
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'deallocate');
    if (this.index.askedBytes(block) !== bytes) this.keeper.refuseFree(pointer, bytes, block);
    let { lane } = this;
    if (fence === undefined) this.ordering.freed(lane);
    else lane = this.ordering.freedWith(fence, stream, this.index.ownerOf(block));
    this.#forget(block);
    this.index.free(block, lane.number);
  }

  /** Current sizes and counts since the start. Linear in the number of blocks. */
  statistics(): CachingStatistics {
    const base = this.keeper.statistics();
    const busyBlocks = this.index.usedBlocks;
    return Object.freeze({
      name: this.name,
      ...base,
      hits: this.#hits,
      misses: this.#misses,
      freeBlocks: base.upstreamBlocks - busyBlocks,
      freeBytes: base.reservedBytes - base.allocatedBytes,
      busyBlocks,
      busyBytes: base.allocatedBytes,
      keptBlocks: busyBlocks - this.#groups.count,
      runs: this.#runs,
      activeRuns: this.#activeRuns,
    });
  }

  override validate(): void {
    super.validate();
    this.#groups.validate();
    let used = 0;
    let grouped = 0;
    for (const { address, lane } of this.index.blocks()) {
      if (lane >= 0) continue;
      used++;
      const block = this.index.usedBlock(address);
      const group = this.#groups.groupOf(block);
      if (group !== none) grouped++;
      const run = group === none ? undefined : this.#groupRuns[group];
      if (run?.hasEnded && !this.#lateRuns.includes(run)) throw new Error(`block ${block} belongs to a run that has ended`);
      if (group === none && this.#owners[block / blockFields] !== undefined) throw new Error(`block ${block} has an owner, but no run`);
    }
    if (grouped !== this.#groups.count)
      throw new Error(`of ${used} used blocks ${grouped} are in groups, which have ${this.#groups.count}`);
    if (this.#owners.filter((owner) => owner !== undefined).length > grouped) throw new Error('a block that is not used has an owner');
  }

  /** @internal */
  override ended(): void {
    super.ended();
    for (const { address, lane } of this.index.blocks()) if (lane < 0) this.#ended.insert(address, 0);
  }

  /** @internal Ends the runs that could not end before. */
  freeLate(): boolean {
    const runs = this.#lateRuns;
    throwFirst(this.#endLateRuns());
    return runs.length > this.#lateRuns.length;
  }

  #growBeforeWaits(bytes: number, stream: Stream): boolean {
    const { held } = this.keeper;
    if (held.isRefused(bytes) || held.claimedBytes + bytes > this.maximumBytes) return false;
    this.#hasGrown = this.keeper.tryTake(bytes, stream);
    return this.#hasGrown;
  }

  #grow(bytes: number, stream: Stream): boolean {
    const { ordering, held } = this.keeper;
    const rounded = alignUp(bytes, ALLOCATION_ALIGNMENT);
    if (!Number.isSafeInteger(rounded) || rounded > this.maximumBytes) return false;
    const isWithin = () => held.claimedBytes + rounded <= this.maximumBytes;
    this.#hasGrown = isWithin() && this.keeper.tryTake(rounded, stream);
    if (this.#hasGrown) return true;
    while (ordering.joinNext(stream) !== undefined);
    // The bytes requested may be enough. If not, and if more is free, this is called again.
    const before = this.reservedBytes;
    const isCapped = !isWithin();
    const isEnough = () => (isCapped ? isWithin() : before - this.reservedBytes >= rounded);
    let hasGivenBack = false;
    while (!isEnough() && this.keeper.giveBack(stream, Number.POSITIVE_INFINITY) > 0) hasGivenBack = true;
    this.#hasGrown = hasGivenBack && isWithin() && this.keeper.tryTake(rounded, stream);
    return this.#hasGrown;
  }

  #outOfMemory(bytes: number): OutOfMemoryError {
    const { reservedBytes, maximumBytes, name } = this;
    return this.keeper.outOfMemoryWithin(maximumBytes, bytes, `${formatBytes(reservedBytes)} are in the cache '${name}'`);
  }

  #allocateUncached(bytes: number, stream: Stream, alignment: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    if (alignment !== ALLOCATION_ALIGNMENT) assertAlignment(alignment, ALLOCATION_ALIGNMENT);
    try {
      return this.keeper.held.servedElsewhere(this.upstream.allocate(bytes, stream), bytes, stream);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      try {
        // Free blocks in the cache may be the missing memory.
        if (this.reservedBytes > 0 && this.trim(stream) > 0) {
          return this.keeper.held.servedElsewhere(this.upstream.allocate(bytes, stream), bytes, stream);
        }
      } catch (second) {
        if (!(second instanceof OutOfMemoryError)) throw second;
      }
      throw error.through(this.constructor.name);
    }
  }

  /** Zero bytes, 2 GiB and more, invalid sizes, and alignments other than 256. */
  #allocateUnusual(run: Run, bytes: number, stream: Stream, alignment: number): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment, ALLOCATION_ALIGNMENT);
    if (bytes === 0) return 0;
    const address = this.index.cut(bytes, alignment, this.lane.number, this.lane.owner);
    if (address === none) return this.#allocateSlowly(run, bytes, stream);
    this.#hits++;
    return this.#handOut(run, this.index.usedBlock(address), stream);
  }

  #allocateSlowly(run: Run, bytes: number, stream: Stream): DevicePointer {
    this.#hasGrown = false;
    const address = this.miss(bytes, stream, ALLOCATION_ALIGNMENT);
    if (this.#hasGrown) this.#misses++;
    else this.#hits++;
    return this.#handOut(run, this.index.usedBlock(address), stream);
  }

  #handOut(run: Run, block: number, stream: Stream): DevicePointer {
    if (stream !== run.stream) {
      run.group = this.#groupOf(run, stream);
      run.stream = stream;
    }
    this.#groups.add(block, run.group);
    return this.index.addressOf(block);
  }

  #groupOf(run: Run, stream: Stream): number {
    const known = run.groups.get(stream);
    if (known !== undefined) return known;
    const group = this.#groups.addGroup();
    run.groups.set(stream, group);
    this.#groupRuns[group] = run;
    this.#groupStreams[group] = stream;
    return group;
  }

  #deallocateUncached(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    if (typeof pointer === 'number' && this.index.hasBlock(pointer)) {
      this.enter(stream, 'deallocate');
      assertBytes(bytes);
      throw new LifetimeError(
        'ERR_CISTERN_DOUBLE_FREE',
        `the ${this.constructor.name} cannot free ${formatPointer(pointer)}: it is already freed, or went back to the cache '${this.name}' when its run ended`,
      );
    }
    if (this.isDisposed && typeof pointer === 'number' && this.#ended.get(pointer) !== none) this.assertLive('deallocate');
    noteFree(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.#passedEvents), this.upstream);
  }

  /** The run that the current code is in. */
  #currentRun(): Run | undefined {
    const frame = innermostFrame();
    if (frame !== this.#knownFrame) {
      this.#knownFrame = frame;
      this.#knownRun = this.#runOf(frame);
    }
    return this.#knownRun;
  }

  /** The innermost run of this cache among the scopes, unless it has ended. */
  #runOf(frame: ScopeFrame | undefined): Run | undefined {
    const run = findCachingScope(frame, (scope) => scope instanceof Run && scope.cache === this) as Run | undefined;
    return run?.hasEnded ? undefined : run;
  }

  #adopt(run: Run, pointer: DevicePointer, owner: ScopedMemory): boolean {
    const home = this.#runOf(owner.home);
    let block = this.#lastBlockAround(run, pointer);
    if (block === none && home === undefined) {
      // A run can also free its older memory.
      block = this.#usedBlockAround(pointer);
      if (block !== none && this.#groupRuns[this.#groups.groupOf(block)] !== run) block = none;
    }
    if (block === none) return false;
    const group = this.#groups.groupOf(block);
    if (home !== run) {
      this.#groups.remove(block);
      if (home !== undefined) this.#groups.add(block, this.#groupOf(home, this.#groupStreams[group] as Stream));
    }
    this.#owners[block / blockFields] = home === undefined ? undefined : owner;
    return true;
  }

  /**
   * The block of a run that starts at a pointer, or the run's latest block, if the pointer is in
   * it.
   */
  #lastBlockAround(run: Run, pointer: DevicePointer): number {
    let block = this.index.usedBlock(pointer);
    if (block === none && run.group !== none) {
      // An adaptor above may have moved the pointer to align it.
      const last = this.#groups.first(run.group);
      if (last !== none && this.#contains(last, pointer)) block = last;
    }
    return block !== none && this.#groupRuns[this.#groups.groupOf(block)] === run ? block : none;
  }

  /**
   * The used block that a pointer is in. Linear in the number of blocks unless the block starts
   * there.
   */
  #usedBlockAround(pointer: DevicePointer): number {
    const block = this.index.usedBlock(pointer);
    if (block !== none) return block;
    for (const { address, bytes, lane } of this.index.blocks()) {
      if (lane < 0 && pointer >= address && pointer < address + bytes) return this.index.usedBlock(address);
    }
    return none;
  }

  #contains(block: number, pointer: DevicePointer): boolean {
    const address = this.index.addressOf(block);
    return pointer >= address && pointer < address + this.index.blockBytes(block);
  }

  /** From now on, no run takes the block back. */
  #forget(block: number): void {
    this.#groups.remove(block);
    const index = block / blockFields;
    if (this.#owners[index] !== undefined) this.#owners[index] = undefined;
  }

  /**
   * Takes back the remaining memory of this run and of earlier ones. If the run has failed, only that error is
   * reported.
   */
  #end(run: Run, hasFailed: boolean): void {
    run.hasEnded = true;
    this.#knownFrame = undefined;
    this.#knownRun = undefined;
    this.#lateRuns = [...this.#lateRuns, run];
    const errors = this.#endLateRuns();
    this.#activeRuns--;
    if (!hasFailed) throwFirst(errors);
  }

  /** Takes back the memory that ended runs left. Returns the errors of refused frees. */
  #endLateRuns(): unknown[] {
    const runs = this.#lateRuns;
    if (runs.length === 0) return [];
    this.#lateRuns = [];
    const waits = new DeviceWaits();
    return runs.flatMap((run) => this.#takeBackFrom(run, waits));
  }

  /**
   * Takes back the remaining memory of a run. Frees call foreign code, which may use or dispose
   * this very cache. Returns the errors of refused frees, whose memory stays allocated. If a host
   * function would have to wait to free memory, the memory stays with the run, and is freed later.
   */
  #takeBackFrom(run: Run, waits: DeviceWaits): unknown[] {
    const errors: unknown[] = [];
    let isLate = false;
    for (const { pointer, error } of this.isDisposed ? [] : this.#freeRemembered(run, waits)) {
      const block = this.#usedBlockAround(pointer);
      if (block !== none && this.#isBare(block) && isNotPermitted(error)) {
        isLate = true;
        continue;
      }
      if (block !== none) this.#forget(block);
      errors.push(error);
    }
    // An adaptor above may still have any of the blocks.
    for (const [stream, group] of isLate ? [] : run.groups) {
      try {
        if (!this.isDisposed) this.#takeBack(group, stream, waits);
      } catch (error) {
        if (isNotPermitted(error)) {
          isLate = true;
          continue;
        }
        for (const block of [...this.#groups.blocks(group)]) this.#forget(block);
        errors.push(error);
      }
      run.groups.delete(stream);
      this.#groups.removeGroup(group);
      this.#groupRuns[group] = undefined;
      this.#groupStreams[group] = noStream;
    }
    run.stream = noStream;
    if (isLate) this.#lateRuns.push(run);
    return errors;
  }

  /**
   * Makes the resources above free the allocations of a run that they remember. Returns the refused
   * frees.
   */
  #freeRemembered(run: Run, waits: DeviceWaits): RefusedFree[] {
    let blocks: Segment[] | undefined;
    const has = (pointer: DevicePointer, number: number) => {
      if (!this.keeper.held.hadBefore(pointer, number)) return false;
      const block = this.index.usedBlock(pointer);
      if (block !== none) return this.#groupRuns[this.#groups.groupOf(block)] === run;
      // An adaptor above may have moved the pointer to align it.
      blocks ??= this.#blocksOf(run);
      return isWithin(blocks, pointer);
    };
    return takeBack({ by: this, since: run.remembered, reason: endedRun(this.name), has }, waits);
  }

  /** Whether a block has no owner, or one that has released its memory. */
  #isBare(block: number): boolean {
    const owner = this.#owners[block / blockFields];
    return owner === undefined || owner.pointer === 0;
  }

  #blocksOf(run: Run): Segment[] {
    return [...run.groups.values()]
      .flatMap((group) => [...this.#groups.blocks(group)])
      .map((block) => ({ address: this.index.addressOf(block), bytes: this.index.blockBytes(block) }))
      .sort((a, b) => a.address - b.address);
  }

  /** Takes back the remaining blocks of a group, with one free. */
  #takeBack(group: number, stream: Stream, waits: DeviceWaits): void {
    if (this.#groups.first(group) === none) return;
    const usable = stream.isDisposed ? waits.streamFor(stream) : stream;
    // Host functions may have disposed this during the wait.
    if (this.isDisposed) return;
    const lane = this.#laneToFreeIn(usable);
    for (let block = this.#groups.first(group); block !== none; block = this.#groups.first(group)) {
      this.#forget(block);
      this.index.free(block, lane.number);
    }
  }

  /**
   * Applies the rules of a free on a stream, and returns the lane that the memory now belongs to.
   * Does not pass a stream that may no longer exist to the driver.
   */
  #laneToFreeIn(stream: Stream): StreamLane {
    if (!stream.identity.announcesEnd) {
      const lane = this.ordering.heldLaneOf(stream);
      lane.freeUnrecorded();
      return lane;
    }
    const lane = this.ordering.laneOf(stream, 'end a run');
    this.ordering.freedLater(lane);
    return lane;
  }
}

/** `caching` in a specification. */
export const cachingKind = defineAdaptor({
  name: 'caching',
  role: 'pooling',
  summary: 'reuses the memory of one pass of a loop for the next; outside its runs, as in a replay, calls pass through',
  options: {
    ...keepingOptions,
    name: { type: 'text', summary: 'its name in errors and statistics', default: 'cache' },
    maximumBytes: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
    growth: growthOption,
  },
  example: 'caching(cuda, name=step, maximumBytes=64MiB)',
  create: ({ upstream, options }) => new CachingMemoryResource(upstream, options),
});

/** The reason why a buffer has lost its memory. */
function endedRun(name: string): string {
  return `the scope of the cache '${name}' that the buffer was made in has ended; cache.keep(buffer) lets it outlive the scope`;
}
