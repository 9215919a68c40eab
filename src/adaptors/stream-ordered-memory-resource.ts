import { addRemembering, LiveAllocations, rememberedSoFar, type TakenMemory, takeBack, takesBack } from '../bulk-frees.js';
import { type Device, usedDevices } from '../driver/device.js';
import { Event } from '../driver/event.js';
import {
  type Inspect,
  type InspectionOptions,
  inspected,
  inspectedDisposal,
  inspectObject,
  refuseCloning,
} from '../driver/local-object.js';
import type { MemoryKind } from '../driver/plain-memory.js';
import { isNotPermitted } from '../driver/status.js';
import { noStream, Stream } from '../driver/stream.js';
import { StreamTimeline } from '../driver/stream-timeline.js';
import { CisternError, formatPointer, LifetimeError, OutOfMemoryError } from '../errors.js';
import {
  type DeallocationEvents,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type MemoryResourceAdaptor,
  type ReservingMemoryResource,
  type TrimmingMemoryResource,
  type TrimOptions,
  trimOptionNames,
} from '../memory-resource.js';
import { withoutCaching } from '../resource-scope.js';
import type { Lane } from '../stream-ordering/lane.js';
import { type LaneMemory, StreamOrdering } from '../stream-ordering/stream-ordering.js';
import { type AddressClass, type BlockView, none, type Segment } from '../suballocation/blocks.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../units.js';
import { assertBytes, assertOptions, assertPointer } from '../validation.js';
import { layersOf } from './layers.js';
import { assertMemoryResource } from './pass-through-adaptor.js';

/** What every resource that keeps memory tells of it. */
export interface KeeperStatistics {
  /** Bytes held of the upstream. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** Bytes of those that are allocated, each allocation with what it was rounded up to. */
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

/** A block of the upstream. */
interface Arrival extends Segment {
  /** What was remembered before it came has this number at the most. */
  readonly remembered: number;
}

/** Told of the blocks that a resource holds of its upstream. */
export interface GrowthObserver {
  /** Whether it needs not be told any more. */
  readonly isDone: boolean;
  /** A block came from the upstream, or was not taken back there. */
  grew(pointer: DevicePointer, bytes: number, stream: Stream): void;
  /** A block is about to go back to the upstream. */
  releases(pointer: DevicePointer, bytes: number, stream: Stream): void;
  /** The resource is disposed and holds nothing. */
  ended(): void;
}

/** The memory that a resource keeps, in lanes: an index of the suballocation layer. Segments are what came from the upstream. */
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
 * What the resources have in common that keep freed memory: lanes for streams, growth, the way through other streams' memory when there is
 * none left, and the end.
 *
 * Calls of the upstream run foreign code, and may run host functions, which use this very resource, end its streams or dispose it. So
 * everything is counted before such a call, and nothing that was known before it is relied on after: `enter` looks again.
 *
 * Disposing gives everything back to the upstream, in the order of the legacy default stream after every free. The upstream must stay alive as
 * long as the resource, and is not disposed with it.
 */
export abstract class StreamOrderedMemoryResource implements MemoryResourceAdaptor, ReservingMemoryResource, TrimmingMemoryResource {
  readonly upstream: MemoryResource;
  readonly device: Device;
  readonly memoryKind: MemoryKind;
  /** What a free does that comes without a fence. */
  readonly deallocationEvents: DeallocationEvents;
  protected readonly ordering: StreamOrdering;
  /** The stream of the last call, and its lane. */
  protected lastStream: Stream = noStream;
  protected lane: Lane | undefined;
  /** Why the upstream last refused a block, for the error that says so. */
  protected upstreamFailure: OutOfMemoryError | undefined;
  /**
   * The least that the upstream lately refused: as much or more is asked for again only where nothing less would do. Grows with what goes back
   * there, and with every block taken since, because others may have freed memory.
   */
  #refusedBytes = Number.POSITIVE_INFINITY;
  readonly #memory: KeptMemory;
  /** Whether memory is to be given back that was still allocated at the end, and may be in use. */
  #endsInUse = false;
  #isDisposed = false;
  /** What the upstream would not take back when this was disposed. */
  #leftSegments: readonly Segment[] = [];
  /** What came from the upstream when this was disposed, or for a stream that had ended: not to be used before the device is idle. */
  #lateSegments: readonly Segment[] = [];

  #growthObservers: readonly GrowthObserver[] = [];
  /** What came from the upstream and has not gone back, by its address, and the same in the order of the addresses, once that was asked for. */
  readonly #arrivals = new Map<DevicePointer, Arrival>();
  #sortedArrivals: readonly Arrival[] | undefined;
  /** What was remembered since this was made has higher numbers. */
  protected readonly remembered = rememberedSoFar();

  #reservedBytes = 0;
  /** Bytes that the upstream is being asked for right now. */
  #arrivingBytes = 0;
  #peakReservedBytes = 0;
  #growths = 0;
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
    const layers = layersOf(upstream);
    if (layers.some(takesBack)) this.#giveBackWhenTaken(layers);
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(
      this,
      {
        device: this.device.index,
        memoryKind: this.memoryKind,
        deallocationEvents: this.deallocationEvents,
        reservedBytes: this.#reservedBytes,
        peakReservedBytes: this.#peakReservedBytes,
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

  /** Takes a block of at least `bytes` bytes out of a lane. Returns its address, or -1. */
  protected abstract allocateIn(lane: number, bytes: number, alignment: number): number;

  /**
   * Makes room for a request, as a rule by a block from the upstream through `takeFromUpstream`. Returns whether the lane of the stream, or what
   * it can take from others, may serve the request now.
   */
  protected abstract grow(bytes: number, stream: Stream, alignment: number): boolean;

  get reservedBytes(): number {
    return this.#reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.#peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    this.#peakReservedBytes = this.#reservedBytes;
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /**
   * Gives blocks of the upstream that are wholly free back to it, in the order of `stream`, which is first made to wait for whatever was freed
   * on other streams; all free memory belongs to it afterwards. Waits on the host only where the upstream does, or where memory is held for a
   * stream that may be gone, because its end is not announced.
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
    this.ordering.gather(stream, this.lane as Lane);
    return this.releaseSegments(stream, () => this.#reservedBytes - bytesToKeep);
  }

  /** Free bytes that a stream cannot have before other streams, which freed them, are known to be idle. Linear in the number of blocks. */
  heldBackFrom(stream: Stream): number {
    const held = this.ordering.lanes.filter((lane) => lane.isHeldBack && lane.timeline !== stream.timeline);
    const lanes = new Set(held.map(({ number }) => number));
    let heldBytes = 0;
    for (const { bytes, lane } of this.#memory.blocks()) if (lanes.has(lane)) heldBytes += bytes;
    return heldBytes;
  }

  /** Throws where the structures contradict each other. For tests: linear in the number of blocks. */
  validate(): void {
    this.#memory.validate();
    let bytes = 0;
    for (const block of [...this.#memory.blocks(), ...this.#leftSegments, ...this.#lateSegments]) bytes += block.bytes;
    if (bytes !== this.#reservedBytes) throw new Error(`${this.constructor.name}: reserved ${this.#reservedBytes} bytes, indexes ${bytes}`);
  }

  /**
   * Gives everything back to the upstream, also what is still allocated; buffers in it are disposed first. What is allocated then goes back after
   * everything that is queued by now on the device's streams that this environment knows. Does nothing the second time, unless the upstream
   * refused something the first time: then that is tried again.
   * @throws what the free of a buffer threw, if it still has its memory: this is not disposed then, and can be disposed again; other buffers in it
   * are disposed. Else what the upstream threw first, once everything was tried.
   */
  [Symbol.dispose](): void {
    const stream = Stream.legacyDefault(this.device);
    if (!this.#isDisposed) {
      const taken = { by: this, since: this.remembered, reason: `the ${this.constructor.name} is disposed`, has: this.memoryTest() };
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
      this.ordering.gather(stream, this.lane as Lane);
      this.#endsInUse = this.keeperStatistics().allocatedBytes > 0;
      this.#isDisposed = true;
      this.lastStream = noStream;
      this.lane = undefined;
      this.ordering[Symbol.dispose]();
      this.beforeEnd();
      this.#leftSegments = this.#memory.removeAllSegments();
    }
    this.keepLateMemory();
    // Taken out first: the upstream may run host functions, and these may dispose this again.
    const segments = this.#leftSegments;
    this.#leftSegments = [];
    const errors: unknown[] = [];
    for (const segment of segments) {
      try {
        // Any stream may be using what is still allocated, and the upstream may free in the order of this one.
        if (this.#endsInUse) followEveryStream(stream);
        this.#endsInUse = false;
        this.#giveBack(segment, stream);
        this.#reservedBytes -= segment.bytes;
      } catch (error) {
        errors.push(error);
        this.#leftSegments = [...this.#leftSegments, segment];
      }
    }
    throwFirst(errors);
    if (this.#reservedBytes > 0) return;
    for (const observer of this.#growthObservers) observer.ended();
    this.#growthObservers = [];
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal Whether a block of the upstream that this holds begins at an address. */
  hasUpstreamBlockAt(pointer: DevicePointer): boolean {
    return this.#arrivals.has(pointer);
  }

  /** @internal Tells of every block that is held of the upstream, and of each that comes or goes from now on. Linear in the number of blocks. */
  observeGrowth(observer: GrowthObserver): void {
    this.#growthObservers = [...this.#growthObservers.filter(({ isDone }) => !isDone), observer];
    const stream = Stream.legacyDefault(this.device);
    for (const { address, bytes } of this.#segments()) observer.grew(address, bytes, stream);
  }

  /** What it holds and did so far. Linear in the number of blocks. */
  protected keeperStatistics(): KeeperStatistics {
    const blocks = [...this.#memory.blocks()];
    const free = [...blocks.filter(({ lane }) => lane >= 0), ...this.#lateSegments].map(({ bytes }) => bytes);
    return {
      reservedBytes: this.#reservedBytes,
      peakReservedBytes: this.#peakReservedBytes,
      allocatedBytes: this.#reservedBytes - free.reduce((sum, bytes) => sum + bytes, 0),
      largestFreeBytes: free.reduce((largest, bytes) => Math.max(largest, bytes), 0),
      upstreamBlocks: blocks.filter(({ isHead }) => isHead).length + this.#lateSegments.length,
      growths: this.#growths,
      releases: this.#releases,
      reuses: this.#reuses,
      synchronizations: this.#synchronizations,
    };
  }

  /** Everything that has to be checked only when the stream is not that of the last call. Sets `lane`. */
  protected enter(stream: Stream, operation: string): void {
    this.assertLive(operation);
    this.lane = this.ordering.laneOf(stream, operation);
    this.lastStream = stream;
  }

  protected get isDisposed(): boolean {
    return this.#isDisposed;
  }

  /**
   * Lets everybody free what they remember of memory that is about to be taken back.
   * @throws what was thrown where somebody still has memory.
   */
  protected takeBack(taken: TakenMemory): void {
    throwFirst(takeBack(taken).map(({ error }) => error));
  }

  /** Tells whether an address lies in memory that this gave, as it is at the first question. */
  protected memoryTest(): TakenMemory['has'] {
    return (pointer, number) => this.arrivedBefore(pointer, number);
  }

  /** Whether an address lies in memory that came from the upstream before something was remembered with a number. */
  protected arrivedBefore(pointer: DevicePointer, number: number): boolean {
    this.#sortedArrivals ??= [...this.#arrivals.values()].sort((a, b) => a.address - b.address);
    const arrival = segmentAround(this.#sortedArrivals, pointer);
    return arrival !== undefined && arrival.remembered < number;
  }

  /** Called once, when this is disposed and before its blocks are forgotten. */
  protected beforeEnd(): void {}

  protected assertLive(operation: string): void {
    if (!this.#isDisposed) return;
    throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: the ${this.constructor.name} is already disposed`);
  }

  /**
   * A block for a stream whose own lane has none, from the first of these that can:
   *  1. the stream's other lane, without waiting; a block of another stream, after a wait (`takeFromOthers`);
   *  2. the same, once streams that memory is held for were asked whether they are idle by now;
   *  3. the upstream (`grow`);
   *  4. under `'off'`, all of the above again, once the streams that memory is held for have been synchronized.
   * @throws what `outOfMemory` makes
   */
  protected allocateElsewhere(bytes: number, stream: Stream, alignment: number): DevicePointer {
    for (;;) {
      const releases = this.#releases;
      const address = this.#allocateWithoutWaiting(bytes, stream, alignment);
      if (address !== none) return address;
      if (this.#releases === releases) {
        const synchronized = this.synchronizeHeld(stream);
        if (synchronized === 0) return this.#allocateAtLast(bytes, stream, alignment);
        this.#synchronizations += synchronized;
      }
      // Host functions may have used this during a wait or a free, and even disposed it: begin again.
      this.enter(stream, 'allocate');
      const own = this.allocateIn((this.lane as Lane).number, bytes, alignment);
      if (own !== none) return own;
    }
  }

  /** Waits on the host for streams that memory is held for. Returns how many that were. */
  protected synchronizeHeld(stream: Stream): number {
    return (this.keepLateMemory() ? 1 : 0) + this.ordering.synchronizeHeld(stream);
  }

  /** Waits on the host for everything on the device, and counts it. The state must be whole: host functions may run meanwhile. */
  protected synchronizeDevice(): void {
    this.#waitForDevices();
    this.#synchronizations++;
  }

  /** Takes one block from another stream's memory, and makes the stream wait for it. */
  protected takeFromOthers(bytes: number, stream: Stream, alignment: number): number {
    let address: number = none;
    this.ordering.others(stream, (other) => {
      address = this.#reuseFrom(other, bytes, stream, alignment);
      return address !== none;
    });
    return address;
  }

  /** Looks where looking takes too long in general, instead of an out-of-memory. */
  protected searchThoroughly(_bytes: number, _stream: Stream, _alignment: number): number {
    return none;
  }

  /** The error for a request that nothing could serve. */
  protected abstract outOfMemory(bytes: number, alignment: number): OutOfMemoryError;

  /** As `outOfMemoryError`, for a resource that may have a maximum: names that, or what the upstream says, whichever was in the way. */
  protected outOfMemoryWithin(maximumBytes: number, bytes: number, reason: string): OutOfMemoryError {
    const refusal = this.upstreamFailure;
    if (refusal === undefined && maximumBytes !== Number.POSITIVE_INFINITY) {
      return this.outOfMemoryError(bytes, `${reason}, and its maximum is ${formatBytes(maximumBytes)}`, maximumBytes);
    }
    const limit = refusal?.limitBytes === undefined ? '' : `, which has a limit of ${formatBytes(refusal.limitBytes)}`;
    return this.outOfMemoryError(bytes, `${reason}, and the upstream${limit === '' ? '' : `${limit},`} has no more`, refusal?.limitBytes);
  }

  protected outOfMemoryError(bytes: number, reason: string, limitBytes = Number.POSITIVE_INFINITY): OutOfMemoryError {
    const cause = this.upstreamFailure;
    this.upstreamFailure = undefined;
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

  /** Bytes held of the upstream and on their way from it. */
  protected get claimedBytes(): number {
    return this.#reservedBytes + this.#arrivingBytes;
  }

  /** Gets a block from the upstream for a stream, and puts it into that stream's lane. */
  protected takeFromUpstream(bytes: number, stream: Stream): void {
    this.#arrivingBytes += bytes;
    let address: number;
    try {
      // A cache below must not take it back when a scope ends.
      address = withoutCaching(() => this.upstream.allocate(bytes, stream));
    } finally {
      this.#arrivingBytes -= bytes;
    }
    // Others must have given memory back.
    if (bytes >= this.#refusedBytes) this.#refusedBytes = Number.POSITIVE_INFINITY;
    this.#growths++;
    this.#reservedBytes += bytes;
    if (this.#reservedBytes > this.#peakReservedBytes) this.#peakReservedBytes = this.#reservedBytes;
    this.#arrive(address, bytes);
    for (const observer of this.#growthObservers) observer.grew(address, bytes, stream);
    if (this.#isDisposed) {
      this.#lateSegments = [...this.#lateSegments, { address, bytes }];
      this[Symbol.dispose]();
    } else {
      this.keepSegment({ address, bytes }, stream);
    }
    this.enter(stream, 'allocate');
  }

  /** As `takeFromUpstream`, for a constructor: an error leaves nothing behind. */
  protected takeInitial(bytes: number, stream: Stream): void {
    try {
      this.takeFromUpstream(bytes, stream);
    } catch (error) {
      this[Symbol.dispose]();
      throw error instanceof OutOfMemoryError ? error.through(this.constructor.name) : error;
    }
  }

  /** As `takeFromUpstream`, but returns false where the upstream is out of memory, and remembers why. */
  protected tryTakeFromUpstream(bytes: number, stream: Stream): boolean {
    try {
      this.takeFromUpstream(bytes, stream);
      this.upstreamFailure = undefined;
      return true;
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.upstreamFailure = error;
      this.#refusedBytes = Math.min(this.#refusedBytes, bytes);
      // What follows works on this stream's lane, and host functions may have used this for another stream.
      this.enter(stream, 'allocate');
      return false;
    }
  }

  /**
   * Takes a block of at least `least` bytes from the upstream, so that `maximumBytes` are held at the most. Where the maximum leaves too little,
   * or the upstream has too little, free blocks of the stream's lane go back to it first. Returns whether there may be room in the lane now.
   * @param wanted how many bytes to try first, given how many the maximum leaves
   */
  protected growWithin(maximumBytes: number, least: number, wanted: (leftBytes: number) => number, stream: Stream): boolean {
    if (least > maximumBytes) return false;
    const leftBytes = () => maximumBytes - this.claimedBytes;
    const take = () => {
      const left = leftBytes();
      return least <= left && this.tryTakeAtLeast(least, Math.min(Math.max(least, wanted(left)), left), stream);
    };
    if (take() || this.makeRoom(least, stream)) return true;
    // Whatever is in the way: every free block may help.
    const isCapped = leftBytes() < least;
    const released = this.releaseSegments(stream, () => (isCapped && leftBytes() >= least ? 0 : Number.POSITIVE_INFINITY));
    return released > 0 && take();
  }

  /** What `growWithin` does before it gives blocks back: joins what is free. Returns whether that made room for `least` bytes. */
  protected makeRoom(_least: number, _stream: Stream): boolean {
    return false;
  }

  /**
   * Moves free memory that may be had without blocking to the lane of a stream: that of its other lane, then that of one lane after another of
   * other streams, after a wait for each; until `isEnough`, which is told whether it was another's, says so. Returns whether it did.
   */
  protected joinFree(stream: Stream, isEnough: (isOthers: boolean) => boolean): boolean {
    const lane = this.lane as Lane;
    const second = this.ordering.secondLaneOf(stream);
    if (second !== undefined && !this.#memory.isEmpty(second.number)) {
      this.#memory.transfer(second.number, lane.number);
      lane.received();
      if (isEnough(false)) return true;
    }
    return this.ordering.others(stream, (other) => {
      this.ordering.order(stream, other);
      this.#memory.transfer(other, lane.number);
      lane.received();
      return isEnough(true);
    });
  }

  /**
   * Takes a block from the upstream: `wanted` bytes, or half of that and so on, in steps of `multiple` bytes, down to `least`. What the upstream
   * lately refused is left out, but not `least`. Returns whether it got one.
   */
  protected tryTakeAtLeast(least: number, wanted: number, stream: Stream, multiple = ALLOCATION_ALIGNMENT): boolean {
    let bytes = wanted;
    const halve = () => Math.max(least, alignUp(bytes / 2, multiple));
    const wasRefused = wanted >= this.#refusedBytes;
    while (bytes > least && bytes >= this.#refusedBytes) bytes = halve();
    while (!this.tryTakeFromUpstream(bytes, stream)) {
      if (bytes === least) return false;
      bytes = halve();
    }
    if (wasRefused) this.#refusedBytes *= 2;
    return true;
  }

  /**
   * Gives wholly free blocks of a stream's lane back to the upstream, one after another, none larger than what `wanted` says then. Returns
   * their bytes. A block that the upstream refuses stays here.
   */
  protected releaseSegments(stream: Stream, wanted: () => number): number {
    let released = 0;
    for (;;) {
      const segment = this.#memory.removeFreeSegment((this.lane as Lane).number, wanted());
      if (segment === undefined) return released;
      this.#reservedBytes -= segment.bytes;
      try {
        this.#giveBack(segment, stream);
      } catch (error) {
        this.#reservedBytes += segment.bytes;
        if (this.#isDisposed) this.#leftSegments = [...this.#leftSegments, segment];
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
      this.#lateSegments = [...this.#lateSegments, segment];
      this.keepLateMemory();
      return;
    }
    const lane = this.ordering.laneOf(stream, 'keep memory');
    this.#memory.addSegment(segment.address, segment.bytes, lane.number);
    lane.received();
  }

  /** Waits for every device whose streams are served. */
  #waitForDevices(): void {
    for (const device of this.memoryKind === 'device' ? [this.device] : usedDevices()) device.synchronizeSync();
  }

  /** Gives free blocks back when a resource below takes its memory back; keeps it from doing so while something is allocated in one of them. */
  #giveBackWhenTaken(layers: readonly MemoryResource[]): void {
    const live = new LiveAllocations<Stream>();
    const stream = Stream.legacyDefault(this.device);
    const segments = {
      live,
      below: new Set(layers),
      isDone: false,
      grew: (pointer: DevicePointer, bytes: number) => live.add(pointer, bytes, stream),
      releases: (pointer: DevicePointer) => live.remove(pointer),
      ended: () => {},
      deallocate: (pointer: DevicePointer, bytes: number) => {
        // What those above could free is free by now.
        if (this.#isDisposed) this[Symbol.dispose]();
        else this.trim(stream);
        if (live.holderOf(pointer) !== undefined) throw stillUsed(this, pointer, bytes);
      },
    };
    addRemembering(segments);
    this.#growthObservers = [segments];
  }

  #giveBack({ address, bytes }: Segment, stream: Stream): void {
    for (const observer of this.#growthObservers) observer.releases(address, bytes, stream);
    const arrival = this.#arrivals.get(address);
    this.#arrivals.delete(address);
    this.#sortedArrivals = undefined;
    try {
      this.upstream.deallocate(address, bytes, stream);
    } catch (error) {
      if (arrival !== undefined) this.#arrive(address, bytes, arrival.remembered);
      for (const observer of this.#growthObservers) observer.grew(address, bytes, stream);
      throw error;
    }
    this.#refusedBytes += bytes;
  }

  /** Notes when memory came from the upstream. */
  #arrive(address: number, bytes: number, remembered = rememberedSoFar()): void {
    this.#arrivals.set(address, { address, bytes, remembered });
    this.#sortedArrivals = undefined;
  }

  /** What is held of the upstream. */
  #segments(): Segment[] {
    const segments: { address: number; bytes: number }[] = [];
    for (const { address, bytes, isHead } of this.#memory.blocks()) {
      const last = segments.at(-1);
      if (isHead || last === undefined) segments.push({ address, bytes });
      else last.bytes += bytes;
    }
    return [...segments, ...this.#leftSegments, ...this.#lateSegments];
  }

  /** Lets memory be used, or given back, that has to wait until the device is idle; returns whether it did. Inside a host function it stays. */
  protected keepLateMemory(): boolean {
    if (this.#lateSegments.length === 0) return false;
    try {
      this.#waitForDevices();
    } catch (error) {
      if (isNotPermitted(error)) return false;
      throw error;
    }
    const segments = this.#lateSegments;
    this.#lateSegments = [];
    // Host functions that ran meanwhile may have disposed this.
    if (this.#isDisposed) this.#leftSegments = [...this.#leftSegments, ...segments];
    else for (const segment of segments) this.keepSegment(segment, Stream.legacyDefault(this.device));
    return segments.length > 0;
  }

  /** Explains why a free is refused, unless it is that of the null pointer. */
  protected refuseFree(pointer: number, bytes: number, block: number): void {
    assertPointer(pointer);
    assertBytes(bytes);
    if (pointer === 0) return;
    const where = `the ${this.constructor.name} cannot free ${formatPointer(pointer)}`;
    if (block !== none) {
      const asked = this.#memory.askedBytes(block);
      throw new LifetimeError('ERR_CISTERN_WRONG_SIZE', `${where} with ${bytes} bytes: it was allocated with ${asked} bytes`);
    }
    switch (this.#memory.classify(pointer)) {
      case 'free':
        throw new LifetimeError('ERR_CISTERN_DOUBLE_FREE', `${where}: it is already freed`);
      case 'inside':
        throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${where}: it lies inside an allocation, not at its start`);
      default:
        throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${where}: it was not allocated by this resource`);
    }
  }

  #allocateAtLast(bytes: number, stream: Stream, alignment: number): DevicePointer {
    const address = this.searchThoroughly(bytes, stream, alignment);
    if (address === none) throw this.outOfMemory(bytes, alignment);
    return address;
  }

  #allocateWithoutWaiting(bytes: number, stream: Stream, alignment: number): number {
    this.upstreamFailure = undefined;
    const second = this.ordering.secondLaneOf(stream);
    let address: number = second === undefined ? none : this.allocateIn(second.number, bytes, alignment);
    if (address === none) address = this.takeFromOthers(bytes, stream, alignment);
    if (address === none && this.ordering.queryHeld(stream)) address = this.takeFromOthers(bytes, stream, alignment);
    if (address === none && this.grow(bytes, stream, alignment)) {
      address = this.allocateIn((this.lane as Lane).number, bytes, alignment);
      if (address === none) address = this.takeFromOthers(bytes, stream, alignment);
    }
    return address;
  }

  /** Takes one block from another lane, if that has one that fits, and makes the stream wait for it. */
  #reuseFrom(other: number, bytes: number, stream: Stream, alignment: number): number {
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

/** The error of a call that would take memory back which a resource above has, and has handed out. */
export function stillUsed(keeper: MemoryResource, pointer: DevicePointer, bytes: number): CisternError {
  return new CisternError(
    'ERR_CISTERN_INVALID_STATE',
    `cannot take ${formatBytes(bytes)} at ${formatPointer(pointer)} back: a ${keeper.constructor.name} has them, and something in them is still allocated`,
  );
}

/** Whether an address lies in one of the blocks, which are in the order of their addresses. */
export function isWithin(segments: readonly Segment[], address: number): boolean {
  return segmentAround(segments, address) !== undefined;
}

/** The one of several blocks, which are in the order of their addresses, that an address lies in. */
export function segmentAround<T extends Segment>(segments: readonly T[], address: number): T | undefined {
  let low = 0;
  let high = segments.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((segments[middle] as Segment).address <= address) low = middle + 1;
    else high = middle;
  }
  const last = segments[low - 1];
  return last !== undefined && address < last.address + last.bytes ? last : undefined;
}

export function throwFirst(errors: readonly unknown[]): void {
  if (errors.length > 0) throw errors[0];
}

/**
 * Makes a stream wait for every other one of its device. Of a stream that has ended no event can be had, and one whose end is not announced may be
 * gone: then the host waits for the device.
 */
function followEveryStream(stream: Stream): void {
  const others = StreamTimeline.ofDevice(stream.device.index).filter((timeline) => timeline !== stream.timeline);
  if (StreamTimeline.mayHaveEndedBusy(stream.device.index) || others.some(({ announcesEnd }) => !announcesEnd)) {
    stream.device.synchronizeSync();
    return;
  }
  for (const timeline of others) {
    const event = new Event({ device: stream.device });
    try {
      event.recordOn(timeline);
      stream.timeline.wait(event);
    } finally {
      event.dispose();
    }
  }
}
