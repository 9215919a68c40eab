import {
  alreadyDisposed,
  alreadyFreed,
  CisternError,
  formatPointer,
  insideAllocation,
  notAllocatedHere,
  OutOfMemoryError,
  throwFirst,
  wrongSize,
} from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../../basics/units.js';
import { assertBytes, assertOptions, assertPointer } from '../../basics/validation.js';
import { type Device, devicesUsing } from '../../driver/device.js';
import type { MemoryKind } from '../../driver/memory/plain-memory.js';
import { isNotPermitted } from '../../driver/status.js';
import { noStream, Stream } from '../../driver/streams/stream.js';
import {
  type Inspect,
  type InspectionOptions,
  inspected,
  inspectedDisposal,
  inspectObject,
  refuseCloning,
} from '../../driver/workers/local-object.js';
import { type TakenMemory, takeBack, takesBack } from '../../lifetimes/bulk-frees.js';
import { announceConstruction, takingInitialMemory } from '../../lifetimes/interceptor.js';
import {
  assertMemoryResource,
  type DeallocationEvents,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type MemoryResourceAdaptor,
  type ReservingMemoryResource,
  type SharedMemoryResource,
  type TrimmingMemoryResource,
  type TrimOptions,
  trimOptionNames,
} from '../../memory-resource.js';
import { noLane } from '../../stream-ordering/stream-lane.js';
import { type LaneMemory, StreamOrdering } from '../../stream-ordering/stream-ordering.js';
import { type AddressClass, type BlockView, none, type Segment } from '../../suballocation/blocks.js';
import { layersOf } from '../layers.js';
import { type GrowthObserver, UpstreamBlocks } from './upstream-blocks.js';

/** Statistics of every resource that keeps memory. */
export interface StreamOrderedStatistics {
  /** Bytes held of the upstream. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** The bytes among them that are allocated, each allocation as rounded up. */
  readonly allocatedBytes: number;
  /** Bytes of the largest free block. */
  readonly largestFreeBytes: number;
  /** Blocks held of the upstream. */
  readonly upstreamBlocks: number;
  /** How often a block was taken from the upstream, and given back. */
  readonly growths: number;
  readonly releases: number;
  /** How often a block that another stream had freed was reused. */
  readonly reuses: number;
  /** How many streams were synchronized because memory ran out under `'off'`. */
  readonly synchronizations: number;
}

/**
 * The memory that a resource keeps, in lanes: an index of the suballocation layer. A segment is a
 * block that came from the upstream.
 */
export interface KeptMemory extends LaneMemory {
  addSegment(address: number, bytes: number, lane: number): void;
  removeFreeSegment(lane: number, maximumBytes: number): Segment | undefined;
  removeAllSegments(): Segment[];
  usedBlock(address: number): number;
  askedBytes(block: number): number;
  free(block: number, lane: number): void;
  largestFreeBytes(lane: number): number;
  classify(address: number): AddressClass;
  blocks(): Iterable<BlockView>;
  validate(): void;
}

/**
 * The common part of the resources that keep freed memory: lanes for streams, growth, the search
 * through other streams' memory when a stream has none left, and disposal.
 *
 * Calls of the upstream run foreign code, and may run host functions, which may use this very
 * resource, end its streams or dispose it. So every count is updated before such a call, and
 * nothing known before it is relied on afterwards: `enter` looks again.
 *
 * Disposing gives everything back to the upstream, ordered on the legacy default stream after every
 * free. The upstream must outlive the resource, and is not disposed with it.
 */
export abstract class StreamOrderedMemoryResource implements MemoryResourceAdaptor, ReservingMemoryResource, TrimmingMemoryResource {
  readonly upstream: MemoryResource;
  readonly device: Device;
  readonly memoryKind: MemoryKind;
  /** The policy of a free without a fence. */
  readonly deallocationEvents: DeallocationEvents;
  protected readonly ordering: StreamOrdering;
  /** The stream of the last call, and its lane. */
  protected lastStream: Stream = noStream;
  protected lane = noLane;
  /** The blocks held of the upstream. */
  protected readonly held: UpstreamBlocks;
  readonly #memory: KeptMemory;
  /** The resources below that may take memory back for other workers. */
  readonly #shared: readonly SharedMemoryResource[];
  #isDisposed = false;
  #releases = 0;
  #reuses = 0;
  #synchronizations = 0;

  protected constructor(upstream: MemoryResource, memory: KeptMemory, deallocationEvents: DeallocationEvents) {
    assertMemoryResource(upstream, 'upstream');
    this.upstream = upstream;
    this.device = upstream.device;
    this.memoryKind = upstream.memoryKind;
    this.#memory = memory;
    this.deallocationEvents = deallocationEvents;
    this.ordering = new StreamOrdering(deallocationEvents, memory, this.device, this.memoryKind);
    this.held = new UpstreamBlocks(upstream);
    const layers = layersOf(upstream);
    if (layers.some(takesBack)) this.#giveBackWhenTaken(layers);
    this.#shared = layers.filter(isShared);
    for (const layer of this.#shared) layer.trimOnRequest(this);
    refuseCloning(this);
    announceConstruction(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(
      this,
      {
        device: this.device.index,
        memoryKind: this.memoryKind,
        deallocationEvents: this.deallocationEvents,
        reservedBytes: this.reservedBytes,
        peakReservedBytes: this.peakReservedBytes,
        isDisposed: inspectedDisposal(this.#isDisposed),
        upstream: this.upstream,
      },
      depth,
      options,
      inspect,
    );
  }

  abstract allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer;

  abstract deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void;

  /** Takes a block of at least `bytes` bytes from a lane. Returns its address, or -1. */
  protected abstract allocateIn(lane: number, bytes: number, alignment: number): number;

  /**
   * Makes room for a request, usually with a block from the upstream through `takeFromUpstream`.
   * Returns whether the stream's lane, or what it can take from others, may now serve the request.
   */
  protected abstract grow(bytes: number, stream: Stream, alignment: number): boolean;

  get reservedBytes(): number {
    return this.held.reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.held.peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    this.held.resetPeakReservedBytes();
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /**
   * Gives blocks of the upstream that are entirely free back to it, ordered on `stream`, which
   * first waits for everything freed on other streams; all free memory belongs to `stream`
   * afterwards. Waits on the host only if the upstream does, or if memory is held for a stream that
   * may be gone because its end is not announced.
   * @returns the bytes given back
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    assertOptions(options, trimOptionNames);
    const { bytesToKeep = 0 } = options;
    assertBytes(bytesToKeep, 'bytesToKeep');
    this.enter(stream, 'trim');
    this.keepLateMemory();
    this.ordering.synchronizeUnannounced(stream);
    // Host functions may have run.
    this.enter(stream, 'trim');
    this.ordering.gather(stream, this.ordering.mergingLaneOf(stream));
    return this.releaseSegments(stream, () => this.reservedBytes - bytesToKeep);
  }

  /**
   * Free bytes that a stream cannot use until the other streams that freed them are known to be
   * idle. Linear in the number of blocks.
   */
  heldBackFrom(stream: Stream): number {
    const held = this.ordering.lanes.filter((lane) => lane.isHeldBack && lane.identity !== stream.identity);
    const lanes = new Set(held.map(({ number }) => number));
    let heldBytes = 0;
    for (const { bytes, lane } of this.#memory.blocks()) if (lanes.has(lane)) heldBytes += bytes;
    return heldBytes;
  }

  /**
   * For tests: throws if the data structures contradict each other. Linear in the number of blocks.
   */
  validate(): void {
    this.#memory.validate();
    let bytes = 0;
    for (const block of [...this.#memory.blocks(), ...this.held.outsideLanes]) bytes += block.bytes;
    if (bytes !== this.reservedBytes) throw new Error(`${this.constructor.name}: reserved ${this.reservedBytes} bytes, indexes ${bytes}`);
  }

  /**
   * Gives everything back to the upstream, including memory that is still allocated; buffers in it
   * are disposed first. Memory still allocated goes back after everything that is queued now on
   * those streams of the device that this environment knows. A second call does nothing, unless the
   * upstream refused something the first time: then that is tried again.
   * @throws the error of a buffer's free, if the buffer still has its memory: this is not disposed
   * then, and can be disposed again; other buffers in it are disposed. Otherwise the upstream's
   * first error, after everything was tried.
   */
  [Symbol.dispose](): void {
    const stream = Stream.legacyDefault(this.device);
    if (!this.#isDisposed) {
      const taken = { by: this, since: this.held.remembered, reason: `the ${this.constructor.name} is disposed`, has: this.memoryTest() };
      this.takeBack(taken);
      if (!this.#isDisposed) {
        const hadLateMemory = this.keepLateMemory();
        const hasWaited = this.ordering.synchronizeUnannounced(stream) || hadLateMemory;
        // Host functions may run during the wait, and allocate.
        if (hasWaited && !this.#isDisposed) this.takeBack(taken);
      }
    }
    // Host functions may have disposed this while streams were waited for.
    if (!this.#isDisposed) {
      this.enter(stream, 'dispose');
      this.ordering.gather(stream, this.lane);
      const isInUse = this.baseStatistics().allocatedBytes > 0;
      this.#isDisposed = true;
      this.lastStream = noStream;
      this.lane = noLane;
      this.ordering[Symbol.dispose]();
      this.beforeEnd();
      this.held.leave(this.#memory.removeAllSegments(), isInUse);
    }
    this.keepLateMemory();
    this.held.giveBackLeft(stream);
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal Whether a call of the upstream for a block has not returned. */
  get isTaking(): boolean {
    return this.held.claimedBytes > this.held.reservedBytes;
  }

  /** @internal Whether a block of the upstream that this holds begins at an address. */
  hasUpstreamBlockAt(pointer: DevicePointer): boolean {
    return this.held.hasBlockAt(pointer);
  }

  /**
   * @internal Calls an observer for every block held of the upstream, and for each that comes or
   * goes from now on. Linear in the number of blocks.
   */
  observeGrowth(observer: GrowthObserver): void {
    this.held.observe(observer, Stream.legacyDefault(this.device));
  }

  /** Current sizes and counts since the start. Linear in the number of blocks. */
  protected baseStatistics(): StreamOrderedStatistics {
    const blocks = [...this.#memory.blocks()];
    const free = [...blocks.filter(({ lane }) => lane >= 0), ...this.held.late].map(({ bytes }) => bytes);
    return {
      reservedBytes: this.reservedBytes,
      peakReservedBytes: this.peakReservedBytes,
      allocatedBytes: this.reservedBytes - free.reduce((sum, bytes) => sum + bytes, 0),
      largestFreeBytes: free.reduce((largest, bytes) => Math.max(largest, bytes), 0),
      upstreamBlocks: blocks.filter(({ isHead }) => isHead).length + this.held.late.length,
      growths: this.held.growths,
      releases: this.#releases,
      reuses: this.#reuses,
      synchronizations: this.#synchronizations,
    };
  }

  /**
   * Checks everything that can change only if the stream differs from the last call's. Sets `lane`.
   */
  protected enter(stream: Stream, operation: string): void {
    this.assertLive(operation);
    this.lane = this.ordering.laneOf(stream, operation);
    this.lastStream = stream;
  }

  protected get isDisposed(): boolean {
    return this.#isDisposed;
  }

  /**
   * Makes the resources above free what they remember of memory that is about to be taken back.
   * @throws the first error, if any of them still has memory.
   */
  protected takeBack(taken: TakenMemory): void {
    throwFirst(takeBack(taken).map(({ error }) => error));
  }

  /** Returns a test of whether an address lies in memory that came from this. */
  protected memoryTest(): TakenMemory['has'] {
    return (pointer, number) => this.held.hadBefore(pointer, number);
  }

  /** Called once, when this is disposed and before its blocks are forgotten. */
  protected beforeEnd(): void {}

  protected assertLive(operation: string): void {
    if (this.#isDisposed) throw alreadyDisposed(operation, `the ${this.constructor.name}`);
  }

  /**
   * Allocates a block for a stream whose own lane has none, from the first of these that can serve
   * it:
   *  1. the stream's other lane, without waiting; a block of another stream, after a wait (`takeFromOthers`);
   *  2. the same, after streams that memory is held for were asked whether they have become idle;
   *  3. all memory of other streams, merged with the stream's own (`mergeOthers`);
   *  4. the upstream (`grow`);
   *  5. under `'off'`, all of the above again, after all streams that memory is held for were asked, and
   *     if none has become idle, after they have been synchronized.
   * @throws the error that `outOfMemory` returns
   */
  protected allocateElsewhere(bytes: number, stream: Stream, alignment: number): DevicePointer {
    for (const layer of this.#shared) if (layer.answerRequests()) this.enter(stream, 'allocate');
    for (;;) {
      const releases = this.#releases;
      const address = this.#allocateWithoutWaiting(bytes, stream, alignment);
      if (address !== none) return address;
      if (this.#releases === releases && !this.ordering.queryAllHeld(stream)) {
        const synchronized = this.synchronizeHeld(stream);
        if (synchronized === 0) return this.#allocateAtLast(bytes, stream, alignment);
        this.#synchronizations += synchronized;
      }
      // Host functions may have used this during a wait or a free, and even disposed it: begin
      // again.
      this.enter(stream, 'allocate');
      const own = this.allocateIn(this.lane.number, bytes, alignment);
      if (own !== none) return own;
    }
  }

  /** Waits on the host for streams that memory is held for. Returns how many there were. */
  protected synchronizeHeld(stream: Stream): number {
    return (this.keepLateMemory() ? 1 : 0) + this.ordering.synchronizeHeld(stream);
  }

  /**
   * Waits on the host for all work on the device, and counts the wait. The state must be
   * consistent: host functions may run during it.
   */
  protected synchronizeDevice(): void {
    this.#waitForDevices();
    this.#synchronizations++;
  }

  /** Takes one block from another stream's memory, and makes the stream wait for it. */
  protected takeFromOthers(bytes: number, stream: Stream, alignment: number): number {
    let address: number = none;
    this.ordering.others(stream, (other) => {
      address = this.reuseFrom(other, bytes, stream, alignment);
      return address !== none;
    });
    return address;
  }

  /** Merges other streams' memory with the stream's own until a block fits. Returns its address, or -1. */
  protected mergeOthers(_bytes: number, _stream: Stream, _alignment: number): number {
    return none;
  }

  /** A search that is too slow for general use, before an out-of-memory error. */
  protected searchThoroughly(_bytes: number, _stream: Stream, _alignment: number): number {
    return none;
  }

  /** The error for a request that nothing could serve. */
  protected abstract outOfMemory(bytes: number, alignment: number): OutOfMemoryError;

  /**
   * Like `outOfMemoryError`, for a resource that may have a maximum: names whichever stopped the
   * allocation, the maximum or the upstream.
   */
  protected outOfMemoryWithin(maximumBytes: number, bytes: number, reason: string): OutOfMemoryError {
    const { refusal } = this.held;
    if (refusal === undefined && maximumBytes !== Number.POSITIVE_INFINITY) {
      return this.outOfMemoryError(bytes, `${reason}, and its maximum is ${formatBytes(maximumBytes)}`, maximumBytes);
    }
    const limit = refusal?.limitBytes === undefined ? '' : `, which has a limit of ${formatBytes(refusal.limitBytes)}`;
    return this.outOfMemoryError(bytes, `${reason}, and the upstream${limit === '' ? '' : `${limit},`} has no more`, refusal?.limitBytes);
  }

  protected outOfMemoryError(bytes: number, reason: string, limitBytes = Number.POSITIVE_INFINITY): OutOfMemoryError {
    const cause = this.held.refusal;
    this.held.refusal = undefined;
    const name = this.constructor.name;
    return new OutOfMemoryError(
      `the ${name} is out of memory: ${formatBytes(bytes)} (${bytes} bytes) were asked for; ${reason}`,
      {
        requestedBytes: bytes,
        availableBytes: this.largestFreeBytes(),
        ...(limitBytes === Number.POSITIVE_INFINITY ? {} : { limitBytes }),
        path: [name, ...(cause?.path ?? [])],
        ...(cause === undefined ? {} : { stages: cause.stages }),
      },
      { cause },
    );
  }

  protected largestFreeBytes(): number {
    return this.ordering.laneNumbers().reduce((largest, lane) => Math.max(largest, this.#memory.largestFreeBytes(lane)), 0);
  }

  /** Takes a block from the upstream for a stream, and puts it into that stream's lane. */
  protected takeFromUpstream(bytes: number, stream: Stream): void {
    const address = this.held.allocate(bytes, stream);
    if (this.#isDisposed) {
      this.held.addLate({ address, bytes });
      this[Symbol.dispose]();
    } else {
      this.keepSegment({ address, bytes }, stream);
    }
    this.enter(stream, 'allocate');
  }

  /** Like `takeFromUpstream`, for a constructor: an error leaves nothing behind. */
  protected takeInitial(bytes: number, stream: Stream): void {
    try {
      takingInitialMemory(this, () => this.takeFromUpstream(bytes, stream));
    } catch (error) {
      this[Symbol.dispose]();
      throw error instanceof OutOfMemoryError ? error.through(this.constructor.name) : error;
    }
  }

  /**
   * Like `takeFromUpstream`, but if the upstream is out of memory, returns false and remembers why.
   */
  protected tryTakeFromUpstream(bytes: number, stream: Stream): boolean {
    try {
      this.takeFromUpstream(bytes, stream);
      this.held.refusal = undefined;
      return true;
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.held.refuse(bytes, error);
      // The caller continues on this stream's lane, and host functions may have used this for
      // another stream.
      this.enter(stream, 'allocate');
      return false;
    }
  }

  /**
   * Takes a block of at least `least` bytes from the upstream, so that at most `maximumBytes` are
   * reserved. If the maximum or the upstream leaves too little, free blocks of the stream's lane go
   * back to it first. Returns whether there may be room in the lane now.
   * @param wanted how many bytes to try first, given how many the maximum leaves
   */
  protected growWithin(maximumBytes: number, least: number, wanted: (leftBytes: number) => number, stream: Stream): boolean {
    if (least > maximumBytes) return false;
    const leftBytes = () => maximumBytes - this.held.claimedBytes;
    const take = () => {
      const left = leftBytes();
      return least <= left && this.tryTakeAtLeast(least, Math.min(Math.max(least, wanted(left)), left), stream);
    };
    if (take() || this.makeRoom(least, stream)) return true;
    // Whichever of the two stands in the way, every free block may help.
    const isCapped = leftBytes() < least;
    const released = this.releaseSegments(stream, () => (isCapped && leftBytes() >= least ? 0 : Number.POSITIVE_INFINITY));
    return released > 0 && take();
  }

  /**
   * Called by `growWithin` before it gives blocks back: merges free memory. Returns whether that
   * made room for `least` bytes.
   */
  protected makeRoom(_least: number, _stream: Stream): boolean {
    return false;
  }

  /**
   * Moves free memory that is available without blocking to a stream's merging lane: first that of
   * its other lane, then that of other streams, lane by lane, after a wait for each; until `isEnough`
   * returns true. Its argument says whether the memory was another stream's. Returns whether it
   * did.
   */
  protected joinFree(stream: Stream, isEnough: (isOthers: boolean) => boolean): boolean {
    const lane = this.ordering.mergingLaneOf(stream);
    const second = lane === this.lane ? this.ordering.secondLaneOf(stream) : this.lane;
    if (second !== undefined && !this.#memory.isEmpty(second.number)) {
      this.ordering.moveInto(lane, second.number);
      if (isEnough(false)) return true;
    }
    for (let other = this.ordering.fullLane(stream); other !== none; other = this.ordering.fullLane(stream)) {
      this.ordering.order(stream, other);
      this.ordering.moveInto(lane, other);
      if (isEnough(true)) return true;
    }
    return false;
  }

  /**
   * Takes a block from the upstream: `wanted` bytes, or half of that and so on, in steps of
   * `multiple` bytes, down to `least`. Sizes that the upstream recently refused are skipped, except
   * for `least`. Returns whether it got a block.
   */
  protected tryTakeAtLeast(least: number, wanted: number, stream: Stream, multiple = ALLOCATION_ALIGNMENT): boolean {
    let bytes = wanted;
    const halve = () => Math.max(least, alignUp(bytes / 2, multiple));
    const wasRefused = this.held.isRefused(wanted);
    while (bytes > least && this.held.isRefused(bytes)) bytes = halve();
    while (!this.tryTakeFromUpstream(bytes, stream)) {
      if (bytes === least) return false;
      bytes = halve();
    }
    if (wasRefused) this.held.doubleRefused();
    return true;
  }

  /**
   * Gives entirely free blocks of a stream's merging lane back to the upstream, one after another, each at
   * most as large as what `wanted` returns at that time. Returns their bytes. A block that the
   * upstream refuses stays here.
   */
  protected releaseSegments(stream: Stream, wanted: () => number): number {
    let released = 0;
    for (;;) {
      const segment = this.removeFreeSegment(this.ordering.mergingLaneOf(stream).number, wanted());
      if (segment === undefined) return released;
      try {
        this.held.deallocate(segment, stream);
      } catch (error) {
        if (this.#isDisposed) this.held.leave([segment]);
        else this.keepSegment(segment, stream);
        throw error;
      }
      this.#releases++;
      released += segment.bytes;
      this.enter(stream, 'release memory');
    }
  }

  /** Puts a block of the upstream that is ordered on a stream into that stream's lane. */
  protected keepSegment(segment: Segment, stream: Stream): void {
    if (stream.isDisposed) {
      this.held.addLate(segment);
      this.keepLateMemory();
      return;
    }
    const lane = this.ordering.laneOf(stream, 'keep memory');
    this.addSegment(segment, lane.number);
    lane.received();
  }

  /** Adds a block of the upstream to a lane. */
  protected addSegment({ address, bytes }: Segment, lane: number): void {
    this.#memory.addSegment(address, bytes, lane);
  }

  /**
   * Takes a block of the upstream of at most `maximumBytes` that is entirely free in a lane out of
   * it.
   */
  protected removeFreeSegment(lane: number, maximumBytes: number): Segment | undefined {
    return this.#memory.removeFreeSegment(lane, maximumBytes);
  }

  /** Waits for every device whose streams are served. */
  #waitForDevices(): void {
    for (const device of devicesUsing(this.memoryKind, this.device)) device.synchronizeSync();
  }

  /**
   * When a resource below takes its memory back, gives free blocks back, and refuses if one of the
   * blocks has a live allocation.
   */
  #giveBackWhenTaken(layers: readonly MemoryResource[]): void {
    const stream = Stream.legacyDefault(this.device);
    this.held.rememberFor(layers, stream, (pointer, bytes) => {
      // The resources above have freed what they could.
      if (this.#isDisposed) this[Symbol.dispose]();
      else this.trim(stream);
      if (this.held.hasBlockAt(pointer)) throw stillUsed(this, pointer, bytes);
    });
  }

  /**
   * Makes memory usable that had to wait until the device is idle, or gives it back if this is
   * disposed. Returns whether it did. Inside a host function the memory stays late.
   */
  protected keepLateMemory(): boolean {
    if (this.held.late.length === 0) return false;
    try {
      this.#waitForDevices();
    } catch (error) {
      if (isNotPermitted(error)) return false;
      throw error;
    }
    const segments = this.held.takeLate();
    // Host functions that ran during the wait may have disposed this.
    if (this.#isDisposed) this.held.leave(segments);
    else for (const segment of segments) this.keepSegment(segment, Stream.legacyDefault(this.device));
    return segments.length > 0;
  }

  /** Throws the reason why a free is refused, unless it is a free of the null pointer. */
  protected refuseFree(pointer: number, bytes: number, block: number): void {
    assertPointer(pointer);
    assertBytes(bytes);
    if (pointer === 0) return;
    const refusal = `the ${this.constructor.name} cannot free ${formatPointer(pointer)}`;
    if (block !== none) throw wrongSize(refusal, bytes, this.#memory.askedBytes(block));
    switch (this.#memory.classify(pointer)) {
      case 'free':
        throw alreadyFreed(refusal);
      case 'inside':
        throw insideAllocation(refusal);
      default:
        throw notAllocatedHere(refusal);
    }
  }

  #allocateAtLast(bytes: number, stream: Stream, alignment: number): DevicePointer {
    const address = this.searchThoroughly(bytes, stream, alignment);
    if (address === none) throw this.outOfMemory(bytes, alignment);
    return address;
  }

  #allocateWithoutWaiting(bytes: number, stream: Stream, alignment: number): number {
    this.held.refusal = undefined;
    let address = this.#allocateInSecondLane(bytes, stream, alignment);
    if (address === none) address = this.takeFromOthers(bytes, stream, alignment);
    // Before any merging, which would leave the streams that lose their memory with nothing to take.
    if (address === none && this.ordering.queryHeld(stream)) address = this.takeFromOthers(bytes, stream, alignment);
    if (address === none) address = this.mergeOthers(bytes, stream, alignment);
    // Merging comes to lanes that were known to be idle once, and have to be asked again.
    if (address === none && this.ordering.queryHeld(stream)) {
      address = this.#takeOrMerge(bytes, stream, alignment);
    }
    if (address === none && this.grow(bytes, stream, alignment)) {
      address = this.allocateIn(this.lane.number, bytes, alignment);
      if (address === none) address = this.#allocateInSecondLane(bytes, stream, alignment);
      if (address === none) address = this.#takeOrMerge(bytes, stream, alignment);
    }
    return address;
  }

  #allocateInSecondLane(bytes: number, stream: Stream, alignment: number): number {
    const second = this.ordering.secondLaneOf(stream);
    return second === undefined ? none : this.allocateIn(second.number, bytes, alignment);
  }

  #takeOrMerge(bytes: number, stream: Stream, alignment: number): number {
    const address = this.takeFromOthers(bytes, stream, alignment);
    return address === none ? this.mergeOthers(bytes, stream, alignment) : address;
  }

  /** Takes one block from another lane, if one fits, and makes the stream wait for it. */
  protected reuseFrom(other: number, bytes: number, stream: Stream, alignment: number): number {
    const address = this.allocateIn(other, bytes, alignment);
    if (address === none) return none;
    try {
      this.ordering.order(stream, other);
    } catch (error) {
      this.#memory.free(this.#memory.usedBlock(address), other);
      throw error;
    }
    this.#reuses++;
    return address;
  }
}

function isShared(resource: MemoryResource): resource is SharedMemoryResource {
  return typeof (resource as Partial<SharedMemoryResource>).trimOnRequest === 'function';
}

/**
 * The error of a call that would take back memory that a resource above has, and in which something
 * is still allocated.
 */
export function stillUsed(pool: MemoryResource, pointer: DevicePointer, bytes: number): CisternError {
  return new CisternError(
    'ERR_CISTERN_INVALID_STATE',
    `cannot take ${formatBytes(bytes)} at ${formatPointer(pointer)} back: a ${pool.constructor.name} holds this memory, and part of it is still allocated`,
  );
}
