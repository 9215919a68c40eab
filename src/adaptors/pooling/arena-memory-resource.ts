/**
 * An arena for each stream, fed from one block of the upstream.
 *
 * Data structure. The arena of a stream is its lane. Memory that belongs to no stream is in a
 * separate lane, the global arena, which is the reserve of the index (`keepReserve`).
 *
 *     block of the upstream   [ stream 1 | used | stream 1 | used | stream 2 | used | global .......... ]
 *
 * `order-of-tries.ts` describes where memory comes from, step by step. Only the arena does this:
 *
 *  - a stream's own lane does not serve a much smaller request if the global arena has a smaller
 *    block;
 *  - memory of others comes first from the global arena, where a small request takes a superblock of 32
 *    KiB for its stream, and a larger one as much as it needs; then from a close fit in another stream's
 *    arena;
 *  - it grows only if part of it was returned; otherwise all available free memory is returned to the
 *    global arena and coalesced there, and the global arena is searched again.
 *
 * Once an arena has run out, memory is scarce while more than a quarter of it is used. Then streams take
 * only blocks slightly larger than the request, before free memory is returned to the global arena,
 * which is searched again.
 *
 * Taking a block takes constant time for a given number of streams. Returning memory to the global arena
 * costs as much as the blocks that it moves, each of which became free by one `deallocate`.
 */

import { appendFileSync } from 'node:fs';
import { ArgumentRangeError, ArgumentTypeError, DriverError, formatValue, type OutOfMemoryError, reasonOf } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, formatBytes, KiB, MiB } from '../../basics/units.js';
import { assertBytes, assertOptions, optionNames } from '../../basics/validation.js';
import { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEvents, MemoryResource, TrimOptions } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import type { CommonLane } from '../../stream-ordering/common-lane.js';
import { leastBlockBytes, none } from '../../suballocation/blocks.js';
import { maximumUnits, unitBytes } from '../../suballocation/free-space-index.js';
import { formatArenaDump, fragmentationPercent } from './arena-dump.js';
import { type KeepingOptions, keepingOptionNames, keepingOptions, type StreamOrderedStatistics } from './keeper.js';
import { Tries } from './order-of-tries.js';
import { maximumBlockBytes, StreamOrderedMemoryResource } from './stream-ordered-memory-resource.js';

const minimumArenaBytes = MiB;
const superblockBytes = 32 * KiB;
const superblockUnits = superblockBytes / unitBytes;
/**
 * In an arena that has run out before, memory is scarce while more than this fraction (1 / 4) of it is used.
 */
const plentyShare = 4;

/** Options of {@link ArenaMemoryResource}. */
export interface ArenaMemoryResourceOptions extends KeepingOptions {
  /**
   * Bytes that the arena takes from its upstream when it is constructed, and the most that it
   * reserves; at least 1 MiB, rounded down to a multiple of 256. From 512 GiB on, they come in
   * several blocks.
   * @defaultValue half of the device's free memory, but at least 1 MiB
   */
  readonly arenaBytes?: number | undefined;
  /**
   * A file to which {@link ArenaMemoryResource.dump} is appended whenever memory runs out. If it
   * cannot be written, a process warning (`CISTERN_ARENA_DUMP`) says so.
   * @defaultValue no file
   */
  readonly dumpFile?: string | undefined;
  /**
   * What a free without a fence does. Unlike in other pooling resources, but as in RMM's arena, no
   * event is recorded by default: streams then exchange memory only when they are known to be idle.
   * Under `'eager'` and `'deferred'`, if neither its own arena nor the global one has room, a
   * stream waits for an event and then takes other streams' free memory, and the host never waits.
   * @defaultValue `'off'`
   */
  readonly deallocationEvents?: DeallocationEvents | undefined;
}

const knownOptions = optionNames<ArenaMemoryResourceOptions>({
  ...keepingOptionNames,
  arenaBytes: true,
  deallocationEvents: true,
  dumpFile: true,
});

/** Statistics of an {@link ArenaMemoryResource}. */
export interface ArenaStatistics extends StreamOrderedStatistics {
  /** How often a stream took memory from the global arena. */
  readonly superblocks: number;
  /** How often free memory was returned to the global arena, by `defragment` or because memory ran out. */
  readonly defragmentations: number;
  /**
   * How many streams have an arena now, including the legacy default stream, on which the arena
   * took its memory.
   */
  readonly arenas: number;
}

/**
 * Gives every stream its own arena, which takes superblocks of 32 KiB and more from a global arena,
 * which is one block of the upstream.
 *
 * Stream order: within a stream, allocating and freeing need neither an event nor a wait, for any size.
 * Memory moves between streams through the global arena: when it runs out, all free memory is returned
 * there and coalesced, and the host waits for the streams that memory is held for. Once an arena has run
 * out, and while more than a quarter of it is used, it also returns free memory before a stream splits a
 * much larger block: streams then depend on each other more, but memory fragments less. Under `'eager'`
 * and `'deferred'`, streams wait for events instead, and the host does not wait. Memory freed on a
 * different stream than it was allocated on belongs to the stream that freed it.
 *
 * Every allocation is rounded up to a multiple of 256 bytes, and its alignment can be any power of
 * two. Allocating and freeing take constant time until memory runs out.
 *
 * A worker thread loads its own instance of cistern, so give each thread its own
 * `ArenaMemoryResource` with a share of the memory.
 *
 * The upstream must outlive the arena, and is not disposed with it. Disposing the arena returns
 * everything to the upstream, ordered on the legacy default stream after every free.
 *
 * Counterpart of `rmm::mr::arena_memory_resource`. Unlike in RMM's, sizes above 1 MiB come from the
 * stream's arena like all others, so that freeing them does not synchronize the stream; a free on
 * another stream needs no search; other streams take over the arenas of ended streams; and you can
 * defragment and return memory at any time.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using arena = new ArenaMemoryResource(upstream, { arenaBytes: 1 * GiB, dumpFile: 'arena.txt' });
 * using stream = new Stream();
 * const pointer = arena.allocate(1 * MiB, stream);
 * arena.deallocate(pointer, 1 * MiB, stream);
 * ```
 */
export class ArenaMemoryResource extends StreamOrderedMemoryResource {
  /** @internal */
  static override readonly name = 'ArenaMemoryResource';
  protected readonly tries = new Tries(this.keeper, this.index, {
    others: (bytes, stream, alignment) => this.#takeFromOthers(bytes, stream, alignment),
    grow: (bytes, stream, alignment) => this.#grow(bytes, stream, alignment),
    search: (bytes, stream, alignment) => this.#searchGlobal(bytes, stream, alignment),
    outOfMemory: (bytes, alignment) => this.#outOfMemory(bytes, alignment),
  });
  /** The most bytes that are reserved from the upstream. */
  readonly arenaBytes: number;
  readonly #dumpFile: string | undefined;
  readonly #global: CommonLane;
  #superblocks = 0;
  #defragmentations = 0;
  #refusedBytes: number | undefined;

  /**
   * @throws ArgumentRangeError if `arenaBytes` is less than 1 MiB, or an option is out of range.
   * @throws OutOfMemoryError if the upstream does not have enough memory.
   */
  constructor(upstream: MemoryResource, options: ArenaMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { arenaBytes, dumpFile, deallocationEvents = 'off' } = options;
    if (arenaBytes !== undefined) assertArenaBytes(arenaBytes);
    if (dumpFile !== undefined && typeof dumpFile !== 'string') {
      throw new ArgumentTypeError(`dumpFile must be a string, got ${formatValue(dumpFile)}`);
    }
    super(upstream, deallocationEvents, undefined, options);
    // If the device has less, that is no fault of the options.
    this.arenaBytes = alignDown(arenaBytes ?? Math.max(minimumArenaBytes, this.device.memoryInfo().freeBytes / 2), unitBytes);
    this.#dumpFile = dumpFile;
    this.#global = this.ordering.addCommonLane();
    this.keeper.common = this.#global;
    this.index.keepReserve(this.#global.number, superblockUnits, Number.POSITIVE_INFINITY);
    const stream = Stream.legacyDefault(this.device);
    while (this.keeper.held.claimedBytes < this.arenaBytes) this.keeper.takeInitial(this.#nextBlockBytes, stream);
  }

  /**
   * Returns all free memory to the global arena, where neighbours coalesce and every stream can use
   * it. Under `'off'`, the host waits for the streams that memory is held for. In a host function,
   * which must not wait, memory of streams that are not known to be idle stays with them. Under
   * other policies, memory is returned immediately, and a stream that takes it waits for the
   * streams that freed it.
   * @returns the bytes returned
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the arena is disposed.
   */
  defragment(): number {
    this.assertLive('defragment');
    this.ordering.synchronizeHeld();
    // Host functions may have run during the wait.
    this.assertLive('defragment');
    const before = this.index.freeBytes(this.#global.number);
    this.#returnToGlobal();
    return this.index.freeBytes(this.#global.number) - before;
  }

  /**
   * Returns blocks that are entirely free to the upstream, ordered on `stream`, which first waits
   * for everything freed on other streams. Other free memory is returned to the global arena. The
   * arena grows to its full size again when it runs out.
   * @returns the bytes returned to the upstream
   */
  override trim(stream: Stream, options?: TrimOptions): number {
    const released = super.trim(stream, options);
    this.#returnToGlobal(stream);
    return released;
  }

  /** Current sizes and counts since the start. Linear in the number of blocks. */
  statistics(): ArenaStatistics {
    return Object.freeze({
      ...this.keeper.statistics(),
      superblocks: this.#superblocks,
      defragmentations: this.#defragmentations,
      arenas: new Set(this.ordering.lanes.map(({ identity }) => identity)).size,
    });
  }

  /**
   * The human-readable state of the arena: totals, the free memory of the global arena and of every
   * stream with its fragmentation (`(1 - largest / free) * 100 %`), and a picture of the address
   * space. Linear in the number of blocks.
   */
  dump(): string {
    const laneNames = new Map([
      [this.#global.number, 'global arena'],
      [this.ordering.endedLane, 'ended streams'],
      ...this.ordering.lanes.map(({ number, identity, isHeld }) => [number, `stream ${identity.id}${isHeld ? ', held' : ''}`] as const),
    ]);
    return formatArenaDump({ arenaBytes: this.arenaBytes, refusedBytes: this.#refusedBytes, laneNames }, [...this.index.blocks()]);
  }

  #takeFromOthers(bytes: number, stream: Stream, alignment: number): number {
    const units = leastBlockBytes(bytes, alignment) / unitBytes;
    if (units > maximumUnits) return none;
    const { isScarce } = this.index;
    const isClose = !isScarce || this.index.hasClose(Math.max(units, superblockUnits), this.#global.number);
    let address = isClose ? this.#takeFromGlobal(units, bytes, stream, alignment) : none;
    if (address === none) address = this.#takeCloseFit(units, bytes, stream, alignment);
    if (address !== none || !isScarce) return address;
    this.#returnToGlobalIfPossible(stream);
    address = this.#takeFromGlobal(units, bytes, stream, alignment);
    if (address !== none || !this.index.canAllocate(units, this.lane.number)) return address;
    // The stream's own arena has only a much larger block, and the global arena has none.
    return this.index.search(bytes, alignment, this.lane.number, this.lane.owner);
  }

  #grow(bytes: number, stream: Stream, alignment: number): boolean {
    const next = this.#nextBlockBytes;
    const least = leastBlockBytes(bytes, alignment);
    if (least <= next && this.keeper.tryTakeAtLeast(least, next, stream)) return true;
    // From now on, memory counts as scarce while much of it is used.
    this.index.keepReserve(this.#global.number, superblockUnits, this.arenaBytes / plentyShare);
    return this.#returnToGlobal(stream);
  }

  /** All free memory that is available is in the global arena when this is called. */
  #searchGlobal(bytes: number, stream: Stream, alignment: number): number {
    const address = this.index.search(bytes, alignment, this.#global.number, this.lane.owner);
    if (address === none) return none;
    try {
      if (this.#global.order(stream)) this.lane.received();
    } catch (error) {
      this.index.free(this.index.usedBlock(address), this.#global.number);
      throw error;
    }
    return address;
  }

  #outOfMemory(bytes: number, alignment: number): OutOfMemoryError {
    this.#refusedBytes = bytes;
    this.#writeDump();
    const freeBytes = this.ordering.laneNumbers().reduce((sum, lane) => sum + this.index.freeBytes(lane), 0);
    const largestBytes = this.keeper.largestFreeBytes();
    const aligned = alignment === ALLOCATION_ALIGNMENT ? '' : ` at a multiple of ${alignment}`;
    const fragmentation = `${fragmentationPercent(freeBytes, largestBytes).toFixed(1)} %`;
    const reason = `of the arena's ${formatBytes(this.arenaBytes)}, ${formatBytes(freeBytes)} are free; the largest free block has ${formatBytes(largestBytes)}${aligned} (fragmentation ${fragmentation})`;
    return this.keeper.outOfMemory(bytes, reason, this.arenaBytes);
  }

  /** The size of the next block to take from the upstream. */
  get #nextBlockBytes(): number {
    return Math.min(this.arenaBytes - this.keeper.held.claimedBytes, maximumBlockBytes);
  }

  /**
   * Takes `units` units from the global arena; if that is less than a superblock, takes a whole one
   * for the stream if there is one. Returns the address, or -1.
   */
  #takeFromGlobal(units: number, bytes: number, stream: Stream, alignment: number): number {
    const lane = this.ordering.mergingLaneOf(stream);
    const { number, owner } = lane;
    const from = this.#global.number;
    // Do not wait for memory that cannot serve the request.
    if (!this.index.canAllocate(units, from)) return none;
    const hasWaited = this.#global.order(stream);
    this.#superblocks++;
    if (units >= superblockUnits || !this.index.carve(superblockUnits, from, number)) return this.index.cut(bytes, alignment, from, owner);
    if (hasWaited) lane.received();
    return this.index.search(bytes, alignment, number, owner);
  }

  /**
   * Takes a block that is slightly larger than `units` units from another stream, and waits only for that
   * stream, if need be.
   */
  #takeCloseFit(units: number, bytes: number, stream: Stream, alignment: number): number {
    let other = this.ordering.readyLaneWith(stream, units);
    if (other === none || !this.index.hasClose(units, other)) other = this.ordering.laneWith(stream, units);
    return other === none || !this.index.hasClose(units, other) ? none : this.tries.reuse(other, bytes, stream, alignment);
  }

  /** The same as `#returnToGlobal`, but memory stays where it is if the driver refuses an event. */
  #returnToGlobalIfPossible(stream: Stream): void {
    try {
      this.#returnToGlobal(stream);
    } catch (error) {
      if (!(error instanceof DriverError)) throw error;
    }
  }

  /**
   * Returns the free memory that is available without blocking, including memory held for `stream`,
   * to the global arena. Returns whether there was any.
   */
  #returnToGlobal(stream?: Stream): boolean {
    this.#defragmentations++;
    return this.ordering.collect(this.#global, stream);
  }

  #writeDump(): void {
    if (this.#dumpFile === undefined) return;
    try {
      appendFileSync(this.#dumpFile, `${this.dump()}\n`);
    } catch (error) {
      const reason = reasonOf(error);
      process.emitWarning(`the dump of an arena could not be written: ${reason}`, { code: 'CISTERN_ARENA_DUMP' });
    }
  }
}

/** `arena` in a specification. */
export const arenaKind = defineAdaptor({
  name: 'arena',
  role: 'pooling',
  summary: 'gives every stream its own arena, fed from one block of the upstream',
  options: {
    arenaBytes: { type: 'size', summary: 'taken from the upstream at the start', default: "half of the device's free memory" },
    dumpFile: { type: 'text', summary: 'the file to which its state is appended when memory runs out', default: 'none', file: 'appended' },
    ...keepingOptions,
  },
  maximum: 'arenaBytes',
  example: 'arena(cuda, arenaBytes=64MiB)',
  eventsDefault: 'off',
  create: ({ upstream, options }) => new ArenaMemoryResource(upstream, options),
});

function assertArenaBytes(arenaBytes: number): void {
  assertBytes(arenaBytes, 'arenaBytes');
  if (arenaBytes >= minimumArenaBytes) return;
  throw new ArgumentRangeError(`arenaBytes must be at least ${minimumArenaBytes}, got ${arenaBytes}`);
}
