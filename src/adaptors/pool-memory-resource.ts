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
 *  6. under `'off'`, all of the above again, once the streams that memory is held for have been synchronized.
 *
 * Steps 1 and 2 take constant time for a given number of streams. Step 3 costs as much as the blocks it moves, each of which a free put there.
 */
import type { Device } from '../driver/device.js';
import type { MemoryKind } from '../driver/plain-memory.js';
import { noStream, Stream } from '../driver/stream.js';
import { ArgumentRangeError, formatPointer, LifetimeError, OutOfMemoryError } from '../errors.js';
import type {
  DeallocationEventsOption,
  DeallocationFence,
  DevicePointer,
  MemoryResource,
  MemoryResourceAdaptor,
  ReservingMemoryResource,
  TrimmingMemoryResource,
  TrimOptions,
} from '../memory-resource.js';
import type { Lane } from '../stream-ordering/lane.js';
import { StreamOrdering } from '../stream-ordering/stream-ordering.js';
import { FreeSpaceIndex, maximumUnits, none, type Segment, unitBits, unitBytes } from '../suballocation/free-space-index.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes } from '../units.js';
import { assertAlignment, assertBytes, assertOptions, assertPointer } from '../validation.js';
import { assertMemoryResource } from './pass-through-adaptor.js';

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

/** What a pool holds and did. */
export interface PoolStatistics {
  /** Bytes held of the upstream. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** Bytes of those that are allocated, each allocation rounded up to a multiple of 256. */
  readonly allocatedBytes: number;
  /** Bytes of the largest free block. */
  readonly largestFreeBytes: number;
  /** Blocks held of the upstream. */
  readonly upstreamBlocks: number;
  /** How often a block was taken from the upstream, and given back. */
  readonly growths: number;
  readonly releases: number;
  /** How often one block of another stream was reused, and how often all of another stream's memory was joined. */
  readonly reuses: number;
  readonly merges: number;
  /** How many streams were synchronized because memory ran out under `'off'`. */
  readonly synchronizations: number;
}

/** The largest block that the index can hold, in bytes. */
const maximumBlockBytes = maximumUnits * unitBytes;

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
export class PoolMemoryResource implements MemoryResourceAdaptor, ReservingMemoryResource, TrimmingMemoryResource {
  readonly upstream: MemoryResource;
  readonly device: Device;
  readonly memoryKind: MemoryKind;
  readonly #maximumBytes: number;
  readonly #index = new FreeSpaceIndex();
  readonly #ordering: StreamOrdering;
  /** The stream of the last call, and its lane. */
  #stream: Stream = noStream;
  #lane: Lane | undefined;
  /**
   * The lane of the initial block, until the first stream comes and takes the block over: it shall not be cut off from what that stream frees.
   * Under `'off'` it stays where every stream can have a part of it.
   */
  #initialLane: Lane | undefined;
  #isDisposed = false;
  /** What the upstream would not take back when the pool was disposed. */
  #leftSegments: readonly Segment[] = [];
  /** Why the upstream last refused a block, for the error that says so. */
  #upstreamFailure: OutOfMemoryError | undefined;

  #reservedBytes = 0;
  /** Bytes that the upstream is being asked for right now. */
  #arrivingBytes = 0;
  #peakReservedBytes = 0;
  #growths = 0;
  #releases = 0;
  #reuses = 0;
  #merges = 0;
  #synchronizations = 0;

  /**
   * @throws ArgumentRangeError where the maximum is below the initial size, or an option out of range.
   * @throws OutOfMemoryError where the upstream has not the initial size.
   */
  constructor(upstream: MemoryResource, options: PoolMemoryResourceOptions = {}) {
    assertMemoryResource(upstream, 'upstream');
    assertOptions(options);
    const { initialBytes = 0, maximumBytes = Number.POSITIVE_INFINITY, deallocationEvents = 'eager' } = options;
    assertBytes(initialBytes, 'initialBytes');
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    if (initialBytes > maximumBytes) {
      throw new ArgumentRangeError(`maximumBytes must be at least initialBytes (${initialBytes}), got ${maximumBytes}`);
    }
    this.upstream = upstream;
    this.device = upstream.device;
    this.memoryKind = upstream.memoryKind;
    this.#maximumBytes = maximumBytes === Number.POSITIVE_INFINITY ? maximumBytes : alignDown(maximumBytes, unitBytes);
    this.#ordering = new StreamOrdering(deallocationEvents, this.#index, this.device);
    if (initialBytes > maximumBlockBytes) this.#refuseBlock(initialBytes);
    if (initialBytes > 0) {
      const stream = Stream.legacyDefault(this.device);
      this.#enter(stream, 'allocate');
      this.#takeInitial(Math.min(alignUp(initialBytes, unitBytes), this.#maximumBytes), stream);
      this.#ordering.queryOwn(this.#lane as Lane);
      if (deallocationEvents !== 'off') this.#initialLane = this.#lane;
    }
  }

  get reservedBytes(): number {
    return this.#reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.#peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    this.#peakReservedBytes = this.#reservedBytes;
  }

  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    if (stream !== this.#stream || stream.handle < 0) this.#enter(stream, 'allocate');
    // Sizes that 32-bit arithmetic can do are the usual ones; the rest takes the longer way.
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small !== bytes || small <= 0 || small > 0x7fffff00 || alignment !== ALLOCATION_ALIGNMENT)
      return this.#allocateUnusual(bytes, stream, alignment);
    const units = (small + (unitBytes - 1)) >> unitBits;
    const address = this.#index.allocate(units, (units << unitBits) - small, (this.#lane as Lane).number);
    return address === none ? this.#allocateElsewhere(bytes, stream, ALLOCATION_ALIGNMENT) : address;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (stream !== this.#stream || stream.handle < 0) this.#enter(stream, 'deallocate');
    const block = typeof pointer === 'number' ? this.#index.usedBlock(pointer) : none;
    if (block === none || this.#index.askedBytes(block) !== bytes) {
      this.#refuseFree(pointer, bytes, block);
      return;
    }
    let lane = this.#lane as Lane;
    if (fence === undefined) this.#ordering.freed(lane);
    else lane = this.#ordering.freedWith(fence, stream);
    this.#index.free(block, lane.number);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /**
   * Gives blocks of the upstream that are wholly free back to it, in the order of `stream`, which is first made to wait for whatever was freed
   * on other streams; all free memory belongs to it afterwards. Waits on the host only where the upstream does.
   * @returns the bytes given back
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    assertOptions(options);
    const { bytesToKeep = 0 } = options;
    assertBytes(bytesToKeep, 'bytesToKeep');
    this.#enter(stream, 'trim');
    this.#ordering.gather(stream, this.#lane as Lane);
    this.#enter(stream, 'trim');
    return this.#releaseSegments(stream, () => this.#reservedBytes - bytesToKeep);
  }

  /** What the pool holds and did so far. Linear in the number of free blocks. */
  statistics(): PoolStatistics {
    const blocks = [...this.#index.blocks()];
    const free = blocks.filter(({ lane }) => lane >= 0).map(({ bytes }) => bytes);
    return Object.freeze({
      reservedBytes: this.#reservedBytes,
      peakReservedBytes: this.#peakReservedBytes,
      allocatedBytes: this.#reservedBytes - free.reduce((sum, bytes) => sum + bytes, 0),
      largestFreeBytes: free.reduce((largest, bytes) => Math.max(largest, bytes), 0),
      upstreamBlocks: blocks.filter(({ isHead }) => isHead).length,
      growths: this.#growths,
      releases: this.#releases,
      reuses: this.#reuses,
      merges: this.#merges,
      synchronizations: this.#synchronizations,
    });
  }

  /** Throws where the pool's structures contradict each other. For tests: linear in the number of blocks. */
  validate(): void {
    this.#index.validate();
    let bytes = 0;
    for (const block of this.#index.blocks()) bytes += block.bytes;
    if (bytes !== this.#reservedBytes) throw new Error(`pool: reserved ${this.#reservedBytes} bytes, indexes ${bytes}`);
  }

  /**
   * Gives everything back to the upstream, also what is still allocated. Does nothing the second time, unless the upstream refused something
   * the first time: then that is tried again.
   * @throws what the upstream threw first, once everything was tried.
   */
  [Symbol.dispose](): void {
    const stream = Stream.legacyDefault(this.device);
    if (!this.#isDisposed) {
      this.#enter(stream, 'dispose');
      this.#ordering.gather(stream, this.#lane as Lane);
    }
    // Host functions may have disposed the pool while streams were waited for.
    if (!this.#isDisposed) {
      this.#isDisposed = true;
      this.#stream = noStream;
      this.#lane = undefined;
      this.#ordering[Symbol.dispose]();
      this.#leftSegments = this.#index.removeAllSegments();
    }
    // Taken out first: the upstream may run host functions, and these may dispose the pool again.
    const segments = this.#leftSegments;
    this.#leftSegments = [];
    const errors: unknown[] = [];
    for (const segment of segments) {
      try {
        this.upstream.deallocate(segment.address, segment.bytes, stream);
        this.#reservedBytes -= segment.bytes;
      } catch (error) {
        errors.push(error);
        this.#leftSegments = [...this.#leftSegments, segment];
      }
    }
    if (errors.length > 0) throw errors[0];
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** Everything that has to be checked only when the stream is not that of the last call. */
  #enter(stream: Stream, operation: string): void {
    if (this.#isDisposed)
      throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: the PoolMemoryResource is already disposed`);
    this.#lane = this.#ordering.laneOf(stream, operation);
    this.#stream = stream;
    if (this.#initialLane !== undefined) this.#handOver(this.#initialLane, this.#lane, stream);
  }

  #handOver(initial: Lane, lane: Lane, stream: Stream): void {
    this.#initialLane = undefined;
    if (initial === lane) return;
    const hasWaited = this.#ordering.order(stream, initial.number);
    this.#index.transfer(initial.number, lane.number);
    if (hasWaited) lane.received();
  }

  #takeInitial(bytes: number, stream: Stream): void {
    try {
      this.#takeFromUpstream(bytes, stream);
    } catch (error) {
      this.#ordering[Symbol.dispose]();
      throw error instanceof OutOfMemoryError ? error.through('PoolMemoryResource') : error;
    }
  }

  /** Zero bytes, 2 GiB and more, sizes that cannot be, and alignments other than the usual one. */
  #allocateUnusual(bytes: number, stream: Stream, alignment: number): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment);
    if (bytes === 0) return 0;
    if (bytes > maximumBlockBytes) this.#refuseBlock(bytes);
    const aligned = Math.max(alignment, ALLOCATION_ALIGNMENT);
    const address = this.#allocateIn((this.#lane as Lane).number, bytes, aligned);
    return address === none ? this.#allocateElsewhere(bytes, stream, aligned) : address;
  }

  #allocateIn(lane: number, bytes: number, alignment: number): number {
    const units = Math.ceil(bytes / unitBytes);
    const slack = units * unitBytes - bytes;
    if (alignment === ALLOCATION_ALIGNMENT) return this.#index.allocate(units, slack, lane);
    return this.#index.allocateAligned(units, slack, alignment, lane);
  }

  /** Steps 2 to 6 at the top of this file. */
  #allocateElsewhere(bytes: number, stream: Stream, alignment: number): DevicePointer {
    for (;;) {
      const releases = this.#releases;
      const address = this.#allocateWithoutWaiting(bytes, stream, alignment);
      if (address !== none) return address;
      if (this.#releases === releases) {
        const synchronized = this.#ordering.synchronizeHeld(stream);
        if (synchronized === 0) this.#refuseGrowth(bytes, alignment);
        this.#synchronizations += synchronized;
      }
      // Host functions may have used the pool during a wait or a free, and even disposed it: begin again.
      this.#enter(stream, 'allocate');
      const own = this.#allocateIn((this.#lane as Lane).number, bytes, alignment);
      if (own !== none) return own;
    }
  }

  /** Steps 2 to 5. */
  #allocateWithoutWaiting(bytes: number, stream: Stream, alignment: number): number {
    const second = this.#ordering.secondLaneOf(stream);
    let address: number = second === undefined ? none : this.#allocateIn(second.number, bytes, alignment);
    if (address === none) address = this.#takeFromOthers(bytes, stream, alignment);
    if (address === none && this.#ordering.queryHeld(stream)) address = this.#takeFromOthers(bytes, stream, alignment);
    if (address === none && this.#grow(bytes, stream, alignment)) {
      address = this.#allocateIn((this.#lane as Lane).number, bytes, alignment);
    }
    return address;
  }

  /** Steps 2 and 3. */
  #takeFromOthers(bytes: number, stream: Stream, alignment: number): number {
    const lane = this.#lane as Lane;
    let address: number = none;
    const isReused = this.#ordering.others(stream, (other) => {
      address = this.#reuseFrom(other, bytes, stream, alignment);
      return address !== none;
    });
    if (isReused) return address;
    const second = this.#ordering.secondLaneOf(stream);
    if (second !== undefined && !this.#index.isEmpty(second.number)) {
      this.#index.transfer(second.number, lane.number);
      lane.received();
      address = this.#allocateIn(lane.number, bytes, alignment);
      if (address !== none) return address;
    }
    this.#ordering.others(stream, (other) => {
      this.#ordering.order(stream, other);
      this.#index.transfer(other, lane.number);
      lane.received();
      this.#merges++;
      address = this.#allocateIn(lane.number, bytes, alignment);
      return address !== none;
    });
    return address;
  }

  /** Takes one block from another lane, if that has one that fits, and makes the stream wait for it. */
  #reuseFrom(other: number, bytes: number, stream: Stream, alignment: number): number {
    const address = this.#allocateIn(other, bytes, alignment);
    if (address === none) return none;
    try {
      this.#ordering.order(stream, other);
    } catch (error) {
      this.#index.free(this.#index.usedBlock(address), other);
      throw error;
    }
    this.#reuses++;
    return address;
  }

  /** Steps 4 and 5: gets a block from the upstream that is large enough. Returns whether it did. */
  #grow(bytes: number, stream: Stream, alignment: number): boolean {
    // An upstream block begins at a multiple of 256, so an aligned address in it may lie this much further on.
    const least = alignUp(bytes, unitBytes) + alignment - ALLOCATION_ALIGNMENT;
    this.#upstreamFailure = undefined;
    if (least > Math.min(this.#maximumBytes, maximumBlockBytes)) return false;
    if (this.#growBy(least, stream)) return true;
    // The maximum is in the way, or the upstream has too little: then every free block may help.
    const isCapped = this.#leftBytes < least;
    const wanted = () => (isCapped && this.#leftBytes >= least ? 0 : Number.POSITIVE_INFINITY);
    return this.#releaseSegments(stream, wanted) > 0 && this.#growBy(least, stream);
  }

  /** Bytes that the maximum leaves. */
  get #leftBytes(): number {
    return this.#maximumBytes - this.#reservedBytes - this.#arrivingBytes;
  }

  #growBy(least: number, stream: Stream): boolean {
    const left = this.#leftBytes;
    if (least > left) return false;
    const wanted = left === Number.POSITIVE_INFINITY ? this.#reservedBytes : alignUp(left / 2, unitBytes);
    for (let bytes = Math.min(Math.max(least, wanted), left, maximumBlockBytes); ; bytes = Math.max(least, alignUp(bytes / 2, unitBytes))) {
      try {
        this.#takeFromUpstream(bytes, stream);
        this.#upstreamFailure = undefined;
        return true;
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
        this.#upstreamFailure = error;
        if (bytes === least) return false;
      }
    }
  }

  /**
   * Gets a block from the upstream for a stream. The upstream may run host functions meanwhile, which use the pool, end the stream or dispose
   * the pool: so the bytes count against the maximum before, and nothing that was known before is relied on after.
   */
  #takeFromUpstream(bytes: number, stream: Stream): void {
    this.#arrivingBytes += bytes;
    let address: number;
    try {
      address = this.upstream.allocate(bytes, stream);
    } finally {
      this.#arrivingBytes -= bytes;
    }
    this.#growths++;
    this.#reservedBytes += bytes;
    if (this.#reservedBytes > this.#peakReservedBytes) this.#peakReservedBytes = this.#reservedBytes;
    if (this.#isDisposed) {
      this.device.synchronizeSync();
      this.#leftSegments = [...this.#leftSegments, { address, bytes }];
      this[Symbol.dispose]();
    } else {
      this.#keep({ address, bytes }, stream);
    }
    this.#enter(stream, 'allocate');
  }

  /** Puts a block of the upstream that is ordered on a stream into the pool. */
  #keep(segment: Segment, stream: Stream): void {
    let owner = stream;
    if (stream.isDisposed) {
      this.device.synchronizeSync();
      owner = Stream.legacyDefault(this.device);
    }
    const lane = this.#ordering.laneOf(owner, 'keep memory');
    this.#index.addSegment(segment.address, segment.bytes, lane.number);
    lane.received();
  }

  /**
   * Gives wholly free blocks of a stream's lane back to the upstream, one after another, none larger than what `wanted` says then. Returns
   * their bytes. A block that the upstream refuses stays in the pool. The upstream may run host functions meanwhile.
   */
  #releaseSegments(stream: Stream, wanted: () => number): number {
    let released = 0;
    for (;;) {
      const segment = this.#index.removeFreeSegment((this.#lane as Lane).number, wanted());
      if (segment === undefined) return released;
      this.#reservedBytes -= segment.bytes;
      try {
        this.upstream.deallocate(segment.address, segment.bytes, stream);
      } catch (error) {
        this.#reservedBytes += segment.bytes;
        if (this.#isDisposed) this.#leftSegments = [...this.#leftSegments, segment];
        else this.#keep(segment, stream);
        throw error;
      }
      this.#releases++;
      released += segment.bytes;
      this.#enter(stream, 'release memory');
    }
  }

  #refuseGrowth(bytes: number, alignment: number): never {
    const reserved = formatBytes(this.#reservedBytes);
    const largest = formatBytes(this.#largestFreeBytes());
    const aligned = alignment === ALLOCATION_ALIGNMENT ? '' : ` at a multiple of ${alignment}`;
    const limit =
      this.#maximumBytes === Number.POSITIVE_INFINITY ? 'the upstream has no more' : `its maximum is ${formatBytes(this.#maximumBytes)}`;
    this.#refuse(bytes, `${reserved} are reserved, the largest free block has ${largest}${aligned}, and ${limit}`);
  }

  #largestFreeBytes(): number {
    return this.#ordering.laneNumbers().reduce((largest, lane) => Math.max(largest, this.#index.largestFreeBytes(lane)), 0);
  }

  #refuseBlock(bytes: number): never {
    this.#refuse(bytes, `one block can have at most ${formatBytes(maximumBlockBytes)}`);
  }

  #refuse(bytes: number, reason: string): never {
    const cause = this.#upstreamFailure;
    this.#upstreamFailure = undefined;
    throw new OutOfMemoryError(
      `the pool is out of memory: ${formatBytes(bytes)} (${bytes} bytes) were asked for; ${reason}`,
      {
        requestedBytes: bytes,
        availableBytes: this.#largestFreeBytes(),
        ...(this.#maximumBytes === Number.POSITIVE_INFINITY ? {} : { limitBytes: this.#maximumBytes }),
        path: ['PoolMemoryResource', ...(cause?.path ?? [])],
      },
      { cause },
    );
  }

  /** Explains why a free is refused, unless it is that of the null pointer. */
  #refuseFree(pointer: number, bytes: number, block: number): void {
    assertPointer(pointer);
    assertBytes(bytes);
    if (pointer === 0) return;
    const where = `the pool cannot free ${formatPointer(pointer)}`;
    if (block !== none) {
      const asked = this.#index.askedBytes(block);
      throw new LifetimeError('ERR_CISTERN_WRONG_SIZE', `${where} with ${bytes} bytes: it was allocated with ${asked} bytes`);
    }
    switch (this.#index.classify(pointer)) {
      case 'free':
        throw new LifetimeError('ERR_CISTERN_DOUBLE_FREE', `${where}: it is already freed`);
      case 'inside':
        throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${where}: it lies inside an allocation, not at its start`);
      default:
        throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${where}: it was not allocated by this resource`);
    }
  }
}
