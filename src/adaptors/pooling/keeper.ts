/**
 * The parts of a resource that keeps memory, apart from the order in which it looks for memory
 * (`order-of-tries.ts`): blocks of its upstream (`held`), an index of the free memory in them (`index`), and
 * the order of streams (`ordering`). This file moves blocks from the upstream into the lanes and back.
 *
 *     upstream ── take ──► keep ──► lanes ──► giveBack ──► upstream
 *                           │         ▲
 *                           └ late ───┘   its stream has ended: the device must be idle first
 *
 * Calls of the upstream run foreign code, and may run host functions, which may use the resource,
 * end its streams or dispose it. So every count is updated before such a call, and nothing known
 * before it holds afterwards: `enter` checks again.
 */

import {
  ArgumentTypeError,
  alreadyDisposed,
  alreadyFreed,
  CisternError,
  formatPointer,
  formatValue,
  insideAllocation,
  notAllocatedHere,
  OutOfMemoryError,
  throwFirst,
  wrongSize,
} from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../../basics/units.js';
import { assertBytes, assertMilliseconds, assertOptions, assertPointer } from '../../basics/validation.js';
import { devicesUsing } from '../../driver/device.js';
import { asleep, isAnythingAsleep } from '../../driver/memory/guarded-addresses.js';
import { isCapturing, isNotPermitted } from '../../driver/status.js';
import { Stream } from '../../driver/streams/stream.js';
import { type Inspection, inspectObject, refuseCloning } from '../../driver/workers/local-object.js';
import { IdleMemory } from '../../kept-memory/idle-memory.js';
import { askNeighbours, becomeNeighbour, describeNeighbours, mostRounds, nextMoment } from '../../kept-memory/neighbours.js';
import {
  type DeallocationEvents,
  type DevicePointer,
  type MemoryResource,
  type MemoryResourceAdaptor,
  type ReservingMemoryResource,
  type SharedMemoryResource,
  type TrimmingMemoryResource,
  type TrimOptions,
  trimOptionNames,
} from '../../memory-resource.js';
import { announceConstruction, takingInitialMemory } from '../../observing/interceptor.js';
import { canSleep, type SleepableMemoryResource } from '../../observing/sleepable.js';
import { type TakenMemory, takeBack, takesBack } from '../../ownership/bulk-frees.js';
import type { CommonLane } from '../../stream-ordering/common-lane.js';
import type { StreamLane } from '../../stream-ordering/stream-lane.js';
import { type LaneMemory, StreamOrdering } from '../../stream-ordering/stream-ordering.js';
import { type AddressClass, type BlockView, isWithin, none, type Segment } from '../../suballocation/blocks.js';
import { layersOf } from '../layers.js';
import { type GrowthObserver, UpstreamBlocks } from './upstream-blocks.js';

/** Statistics of every resource that keeps memory. */
export interface StreamOrderedStatistics {
  /** Bytes taken from the upstream and not returned. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** Those of them that are allocated; each allocation counts as rounded up. */
  readonly allocatedBytes: number;
  /** Bytes of the largest free block. */
  readonly largestFreeBytes: number;
  /** Blocks taken from the upstream and not returned. */
  readonly upstreamBlocks: number;
  /** How often a block was taken from the upstream, and how often one was returned. */
  readonly growths: number;
  readonly releases: number;
  /** How often a block that another stream had freed was reused. */
  readonly reuses: number;
  /** How many streams were synchronized because memory ran out under `'off'`. */
  readonly synchronizations: number;
  /** Bytes that were returned to the upstream because nobody had needed them for `idleMilliseconds`. */
  readonly idleReturnedBytes: number;
}

/**
 * An index of the suballocation layer, which knows the free memory in lanes and the blocks in use.
 * A segment is a block from the upstream.
 */
export interface KeptMemory extends LaneMemory {
  addSegment(address: number, bytes: number, lane: number): void;
  removeFreeSegment(lane: number, maximumBytes: number): Segment | undefined;
  removeAllSegments(): Segment[];
  /** Set if the streams of all lanes may use a block, whichever lane has it: whether one of at most these bytes is entirely free. */
  hasFreeSegment?(maximumBytes: number): boolean;
  usedBlock(address: number): number;
  askedBytes(block: number): number;
  /** The bytes of all used blocks, if they need not be counted. */
  readonly usedBytes?: number | undefined;
  /** The number of used blocks, if they need not be counted. */
  readonly usedBlocks?: number | undefined;
  /** Whether a block serves only requests of its own size. */
  readonly isExact?: boolean | undefined;
  /** Whether a segment that is added becomes part of those that it touches. */
  readonly growsInPlace?: boolean | undefined;
  largestFreeBytes(lane: number): number;
  classify(address: number): AddressClass;
  blocks(): Iterable<BlockView>;
  validate(): void;
}

/** With more used blocks, the pieces of free ones are not looked for in the background: it would take long. */
const mostJoined = 4096;

/** Options of pools, arenas, fixed-size, caching and monotonic resources. */
export interface KeepingOptions {
  /**
   * Its name in errors and summaries: `pool 'weights' keeps 900 MiB free`.
   * @defaultValue not set
   */
  readonly name?: string | undefined;
  /**
   * The time in milliseconds after which memory that nobody has needed returns to the upstream, in the background, at most twice that time
   * after its last use. The time grows for a program that soon needs the memory again.
   * @defaultValue not set: memory that was needed once is kept
   */
  readonly idleMilliseconds?: number | undefined;
  /**
   * Reserved bytes that it does not return by itself: neither after `idleMilliseconds`, nor to help another resource on the device that is out
   * of memory. A call of `trim` does not consider it.
   * @defaultValue 0
   */
  readonly keepBytes?: number | undefined;
}

/** @internal */
export const keepingOptionNames = { idleMilliseconds: true, keepBytes: true, name: true } as const;

/** Their definitions in a specification. */
export const keepingOptions = {
  name: { type: 'text', summary: 'its name in errors and summaries', default: 'none' },
  idleMilliseconds: { type: 'number', summary: 'the time after which memory that nobody has needed is returned', default: 'none' },
  keepBytes: { type: 'size', summary: 'what it does not return by itself, when idle or when others need memory', default: '0' },
} as const;

/** A resource with a keeper. */
export interface KeepingResource extends MemoryResourceAdaptor, ReservingMemoryResource, TrimmingMemoryResource {
  heldBackFrom(stream: Stream): number;
  statistics?(): StreamOrderedStatistics;
  /** @internal Whether a call of the upstream for a block has not returned. */
  readonly isTaking: boolean;
  /** @internal Checks again, after foreign code ran, that it can be used for a stream. */
  enter(stream: Stream, operation: string): void;
  /**
   * @internal Frees memory that can only be freed while the device is idle. Returns whether there was
   * any.
   */
  freeLate?(): boolean;
  /** @internal Whether a trim finds free memory that is in no lane. */
  readonly findsMoreAtTrims?: boolean | undefined;
  /**
   * @internal Makes the next call check its stream again, even if it is the last call's stream. Must not throw.
   */
  forgetLastStream(): void;
  /** @internal Called when it is disposed, before its blocks are forgotten. */
  ended(): void;
  /**
   * @internal Calls an observer for every block held of the upstream, and for each that comes or
   * goes from now on. Linear in the number of blocks.
   */
  observeGrowth(observer: GrowthObserver): void;
}

/** Whether a resource keeps memory of its upstream. */
export function isKeeping(resource: MemoryResource): resource is KeepingResource {
  return typeof (resource as Partial<KeepingResource>).observeGrowth === 'function';
}

/**
 * The blocks that a {@link StreamOrderedMemoryResource} has of its upstream, and the order of streams. A resource of your own
 * uses `this.keeper` for two things: to take blocks when it grows, and for the error when it cannot.
 */
export class Keeper {
  /** @internal */
  readonly ordering: StreamOrdering;
  /** @internal The blocks of the upstream. */
  readonly held: UpstreamBlocks;
  /** @internal The lane for blocks from the upstream; if not set, that of the stream that asked for them. */
  common: CommonLane | undefined;
  /** @internal The largest block that an allocation can have. */
  largestBlockBytes = Number.POSITIVE_INFINITY;
  /** @internal */
  releases = 0;
  /** @internal */
  reuses = 0;
  /** @internal */
  synchronizations = 0;
  /**
   * @internal Whether the lane of a stream is that of `laneOf` only, and not simply that of the ordering: the resource is disposed, or
   * there is a function of `atEntry`. One field for both, because it is read whenever the stream changes.
   */
  isSpecial = false;
  /** @internal The name that the program gave it. */
  readonly name: string | undefined;
  /** @internal */
  lastMiss = nextMoment();
  /** @internal */
  roundsLeft = mostRounds;
  /** @internal The resources below. */
  readonly below: readonly MemoryResource[];
  readonly #resource: KeepingResource;
  readonly #index: KeptMemory;
  /** The resources below that may take memory back for other workers. */
  readonly #shared: readonly SharedMemoryResource[];
  /** The resources below whose memory can sleep. */
  readonly #sleepable: readonly SleepableMemoryResource[];
  /** What nobody has needed for a while, if that is to be returned. */
  #idle: IdleMemory | undefined;
  /** A stream without work, for returns in the background. */
  #idleStream: Stream | undefined;
  #isReturning = false;
  /** What it returns only if the program asks for it. */
  readonly #keepBytes: number;
  #isDisposed = false;
  #onEntry: ((lane: StreamLane, stream: Stream) => boolean) | undefined;

  /** @internal */
  constructor(
    resource: KeepingResource,
    index: KeptMemory,
    deallocationEvents: DeallocationEvents,
    { name, idleMilliseconds, keepBytes = 0 }: KeepingOptions = {},
  ) {
    if (idleMilliseconds !== undefined) assertMilliseconds(idleMilliseconds, 'idleMilliseconds');
    const { upstream, device, memoryKind } = resource;
    if (name !== undefined && typeof name !== 'string') throw new ArgumentTypeError(`name must be a string, got ${formatValue(name)}`);
    assertBytes(keepBytes, 'keepBytes');
    this.name = name;
    this.#keepBytes = keepBytes;
    this.#resource = resource;
    this.#index = index;
    this.ordering = new StreamOrdering(deallocationEvents, index, device, memoryKind, forgetterOf(resource));
    this.held = new UpstreamBlocks(upstream);
    const layers = layersOf(upstream);
    this.below = layers;
    if (layers.some(takesBack)) this.#giveBackWhenTaken(layers);
    this.#shared = layers.filter(isShared);
    for (const layer of this.#shared) layer.trimOnRequest(resource);
    this.#sleepable = layers.filter(canSleep);
    for (const layer of this.#sleepable) layer.sleepable.above.add(resource);
    refuseCloning(resource);
    announceConstruction(resource);
    this.held.count = becomeNeighbour(this);
    if (idleMilliseconds !== undefined) this.#idle = new IdleMemory(this, idleMilliseconds);
  }

  /** @internal */
  get isDisposed(): boolean {
    return this.#isDisposed;
  }

  /**
   * @internal Whether memory below is asleep. A resource must then call `laneOf` even if the stream is the last call's.
   */
  get isAsleep(): boolean {
    return isAnythingAsleep && this.#sleepable.some(({ isAsleep }) => isAsleep);
  }

  /** @internal The name of the resource's class, for errors. */
  get className(): string {
    return this.#resource.constructor.name;
  }

  /** @internal */
  get resource(): KeepingResource {
    return this.#resource;
  }

  /** @internal */
  get isTaking(): boolean {
    return this.held.isTaking;
  }

  /** @internal */
  assertLive(operation: string): void {
    if (this.#isDisposed) throw alreadyDisposed(operation, `the ${this.className}`);
  }

  /** @internal The lane of a stream, after checking everything that can change. */
  laneOf(stream: Stream, operation: string): StreamLane {
    this.assertLive(operation);
    if (operation === 'allocate' && this.isAsleep) throw asleep(operation, `memory of the ${this.className}`);
    const lane = this.ordering.laneOf(stream, operation);
    if (stream.identity.isCaptured) throw this.#captured(stream, operation);
    const onEntry = this.#onEntry;
    this.#onEntry = undefined;
    this.isSpecial = false;
    if (onEntry?.(lane, stream) === true) this.atEntry(onEntry);
    return lane;
  }

  /** @internal Calls a function with every result of `laneOf`, until it returns false or throws. */
  atEntry(onEntry: (lane: StreamLane, stream: Stream) => boolean): void {
    this.#onEntry = onEntry;
    this.isSpecial = true;
  }

  #captured(stream: Stream, operation: string): CisternError {
    return new CisternError(
      'ERR_CISTERN_CAPTURING',
      `the ${this.className} cannot ${operation} on stream ${stream.id}, which is captured into a graph: ` +
        'capture with a GraphMemoryResource, or allocate before the capture and free after it',
    );
  }

  /** @internal To be called after foreign code has run: checks the stream again. */
  enter(stream: Stream): void {
    this.#resource.enter(stream, 'allocate');
  }

  /** @internal Returns memory that other workers have asked for. */
  answerRequests(stream: Stream): void {
    // Most resources have none, and a loop over nothing takes time.
    if (this.#shared.length === 0) return;
    for (const layer of this.#shared) if (layer.answerRequests()) this.enter(stream);
  }

  // Blocks come

  /** @internal Takes a block from the upstream for a stream, and keeps it. */
  take(bytes: number, stream: Stream): void {
    const address = this.held.allocate(bytes, stream);
    if (this.#isDisposed) {
      this.held.addLate({ address, bytes });
      this.#resource[Symbol.dispose]();
    } else {
      this.#keep({ address, bytes }, stream);
    }
    this.enter(stream);
  }

  /**
   * Takes a first block from the upstream, for the last line of a constructor: an error leaves nothing behind.
   * @throws OutOfMemoryError if the upstream does not have it; any other error of it
   */
  takeInitial(bytes: number, stream: Stream): void {
    try {
      takingInitialMemory(this.#resource, () => this.#takeWithHelp(bytes, stream));
    } catch (error) {
      this.#resource[Symbol.dispose]();
      throw error instanceof OutOfMemoryError ? error.through(this.className) : error;
    }
  }

  /** The same, but if the upstream is out of memory, first asks others on the device for theirs. */
  #takeWithHelp(bytes: number, stream: Stream): void {
    while (!this.tryTake(bytes, stream)) {
      const refusal = this.held.refusal as OutOfMemoryError;
      if (this.askNeighbours(bytes, stream)) continue;
      this.held.refusal = undefined;
      refusal.message += describeNeighbours(this, refusal);
      throw refusal;
    }
  }

  /**
   * @internal If the upstream refused a request during this call, makes others on the device return memory. Returns whether one
   * did; the upstream may then serve the request.
   */
  askNeighbours(bytes: number, stream: Stream): boolean {
    const { refusal } = this.held;
    if (refusal === undefined || askNeighbours(this, refusal, bytes, stream) === 0) return false;
    this.enter(stream);
    return true;
  }

  /**
   * Takes a block from the upstream for a stream, and keeps it. If the upstream is out of memory, returns false, and
   * `outOfMemoryWithin` says why.
   */
  tryTake(bytes: number, stream: Stream): boolean {
    try {
      this.take(bytes, stream);
      this.held.refusal = undefined;
      return true;
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.held.refuse(bytes, error);
      // The caller continues on this stream's lane, and host functions may have used the resource for
      // another stream.
      this.enter(stream);
      return false;
    }
  }

  /**
   * Takes a block from the upstream: `wanted` bytes, or half of that and so on, in steps of
   * `multiple` bytes, down to `least`. Sizes that the upstream recently refused are skipped, except
   * for `least`. Returns whether it got a block.
   */
  tryTakeAtLeast(least: number, wanted: number, stream: Stream, multiple = ALLOCATION_ALIGNMENT): boolean {
    let bytes = wanted;
    const halve = () => Math.max(least, alignUp(bytes / 2, multiple));
    const wasRefused = this.held.isRefused(wanted);
    while (bytes > least && this.held.isRefused(bytes)) bytes = halve();
    while (!this.tryTake(bytes, stream)) {
      if (bytes === least) return false;
      bytes = halve();
    }
    if (wasRefused) this.held.doubleRefused();
    return true;
  }

  /** Puts a block from the upstream, which is ordered on a stream, into a lane. */
  #keep(segment: Segment, stream: Stream): void {
    if (this.common !== undefined && this.#comesInto(this.common, stream)) {
      this.#index.addSegment(segment.address, segment.bytes, this.common.number);
    } else if (stream.isDisposed) {
      this.held.addLate(segment);
      this.#keepLate();
    } else {
      // A capture may have begun meanwhile.
      const lane = this.ordering.ownLaneOf(stream);
      this.#index.addSegment(segment.address, segment.bytes, lane.number);
      lane.received();
    }
  }

  /** Whether memory that is ordered on a stream can come into a common lane. */
  #comesInto(lane: CommonLane, stream: Stream): boolean {
    try {
      this.ordering.receivedInCommon(lane, stream);
      return true;
    } catch {
      // The stream has ended, or no event can be recorded: the memory then belongs to one stream.
      return false;
    }
  }

  /**
   * Makes memory usable that had to wait until the device is idle, or returns it if the resource is
   * disposed. Returns whether it did. Inside a host function, the memory stays late.
   */
  #keepLate(): boolean {
    const hasKept = this.#keepLateBlocks();
    return this.#resource.freeLate?.() === true || hasKept;
  }

  /** The same, but the memory also stays late while a capture forbids waits for its device. */
  #tryKeepLate(): boolean {
    try {
      return this.#keepLate();
    } catch (error) {
      if (isCapturing(error)) return false;
      throw error;
    }
  }

  #keepLateBlocks(): boolean {
    if (this.held.late.length === 0) return false;
    try {
      this.#waitForDevices();
    } catch (error) {
      if (isNotPermitted(error)) return false;
      throw error;
    }
    const segments = this.held.takeLate();
    // Host functions that ran during the wait may have disposed the resource.
    if (this.#isDisposed) this.held.leave(segments);
    else for (const segment of segments) this.#keep(segment, Stream.legacyDefault(this.#resource.device));
    return segments.length > 0;
  }

  // Blocks that nobody needs

  /** @internal */
  get mayWaitAtFrees(): boolean {
    return this.below.some((layer) => !('upstream' in layer || 'trim' in layer));
  }

  /** @internal */
  get deviceIndex(): number {
    return this.#resource.device.index;
  }

  /** @internal */
  get growths(): number {
    return this.held.growths;
  }

  /** @internal */
  get spareBytes(): number {
    return this.held.reservedBytes - this.#keepBytes;
  }

  /** @internal */
  takeUnused(bytes: number): Segment | undefined {
    for (const number of this.ordering.laneNumbers()) {
      if (this.#index.isEmpty(number) || !this.ordering.lane(number).hasRun()) continue;
      const segment = this.#index.removeFreeSegment(number, bytes);
      if (segment !== undefined) return segment;
    }
    return undefined;
  }

  /** @internal */
  joinUnused(): void {
    if ((this.#index.usedBlocks ?? 0) > mostJoined || !this.#hasBlockInSeveralLanes()) return;
    // There, they serve every stream.
    const into = this.common?.number ?? this.ordering.endedLane;
    for (const number of this.ordering.laneNumbers()) {
      if (number !== into && !this.#index.isEmpty(number) && this.ordering.lane(number).hasRun()) this.#index.transfer(number, into);
    }
  }

  /** @internal */
  returnUnused(segment: Segment): void {
    this.#idleStream ??= new Stream({ device: this.#resource.device, nonBlocking: true });
    this.#isReturning = true;
    try {
      this.#giveBack(segment, this.#idleStream);
    } finally {
      this.#isReturning = false;
      if (this.#isDisposed) this.#idleStream.dispose();
    }
  }

  /**
   * @internal Takes back what was set aside and may serve a request: one block; or, if memory grows in place, or nothing else is left, all of
   * it. Returns whether there was any.
   */
  takeBackIdle(least: number, stream: Stream, isLast = false): boolean {
    if (this.#idle === undefined || this.#idle.segments.length === 0) return false;
    const isAll = isLast || this.#index.growsInPlace === true;
    const one = isAll ? undefined : this.#idle.take(least, this.#index.isExact === true);
    const segments = isAll ? this.#idle.takeAll() : one === undefined ? [] : [one];
    for (const segment of segments) this.#keep(segment, stream);
    return segments.length > 0;
  }

  // Blocks go

  /**
   * @internal Returns one entirely free block of a stream's merging lane, of at most `mostBytes`, to the
   * upstream. Returns its bytes, or 0. A block that the upstream refuses stays here.
   */
  giveBack(stream: Stream, mostBytes: number): number {
    const segment = this.#index.removeFreeSegment(this.ordering.mergingLaneOf(stream).number, mostBytes);
    if (segment === undefined) return 0;
    this.#giveBack(segment, stream);
    this.#resource.enter(stream, 'release memory');
    return segment.bytes;
  }

  /** Returns a block that is in no lane to the upstream. If the upstream refuses, it is free memory of the stream. */
  #giveBack(segment: Segment, stream: Stream): void {
    try {
      this.held.deallocate(segment, stream);
    } catch (error) {
      if (this.#isDisposed) this.held.leave([segment]);
      else this.#keep(segment, stream);
      throw error;
    }
    this.releases++;
  }

  /**
   * @internal Returns entirely free blocks, so that `least` bytes can be taken: all of them, or, if the maximum
   * leaves too little, until it leaves enough. Returns whether any was returned.
   */
  makeWay(least: number, maximumBytes: number, stream: Stream): boolean {
    if (least > maximumBytes) return false;
    const isMissing = () => maximumBytes - this.held.claimedBytes < least;
    const isCapped = isMissing();
    let hasGivenBack = false;
    while ((!isCapped || isMissing()) && this.giveBack(stream, Number.POSITIVE_INFINITY) > 0) hasGivenBack = true;
    return hasGivenBack;
  }

  /** @internal */
  freeBytes(): number {
    return this.held.reservedBytes - (this.#index.usedBytes ?? this.statistics().allocatedBytes);
  }

  /**
   * @internal Returns entirely free blocks because others need memory, ordered on a stream: those for which it need not wait first. Each
   * lane keeps the rest of its memory, so that its stream can go on using it.
   */
  returnFree(stream: Stream, bytes: number): number {
    let returned = this.#returnIdle(stream, bytes);
    const isAnyFree = this.#index.hasFreeSegment?.(this.spareBytes);
    if (isAnyFree === false || this.#isDisposed || this.isAsleep) return returned;
    // Only a trim knows what all of these streams did last.
    if (isAnyFree === true) return returned + this.#resource.trim(stream, { bytesToKeep: this.#keepBytes });
    for (const isReady of [true, false]) {
      for (const number of this.ordering.laneNumbers()) {
        for (let last = 1; last > 0 && returned < bytes; returned += last) last = this.#returnOneOf(number, isReady, stream);
      }
    }
    if (returned > 0 || this.#isDisposed || !(this.#resource.findsMoreAtTrims === true || this.#hasBlockInSeveralLanes())) return returned;
    return this.#resource.trim(stream, { bytesToKeep: this.#keepBytes });
  }

  /** The same of what is set aside. */
  #returnIdle(stream: Stream, bytes: number): number {
    let returned = 0;
    while (returned < bytes) {
      const segment = this.#idle?.takeOldest(this.spareBytes);
      if (segment === undefined) break;
      this.#giveBack(segment, stream);
      returned += segment.bytes;
    }
    return returned;
  }

  /** Returns an entirely free block of a lane. Returns its bytes, or 0. */
  #returnOneOf(number: number, isReady: boolean, stream: Stream): number {
    // Foreign code may have run.
    if (this.#isDisposed || this.isAsleep || this.#index.isEmpty(number)) return 0;
    const lane = this.ordering.lane(number);
    if (!lane.hasRun() && (isReady || lane.isHeldBack)) return 0;
    const segment = this.#index.removeFreeSegment(number, this.spareBytes);
    if (segment === undefined) return 0;
    try {
      this.ordering.order(stream, number);
    } catch (error) {
      this.#index.addSegment(segment.address, segment.bytes, number);
      throw error;
    }
    this.#giveBack(segment, stream);
    return segment.bytes;
  }

  /** Whether a block of the upstream is entirely free, but in pieces that different streams freed. Linear in the number of blocks. */
  #hasBlockInSeveralLanes(): boolean {
    let isFree = false;
    for (const { lane, isHead } of this.#index.blocks()) {
      if (isHead && isFree) return true;
      isFree = lane >= 0 && (isHead || isFree);
    }
    return isFree;
  }

  /** @internal */
  trim(stream: Stream, options: TrimOptions): number {
    assertOptions(options, trimOptionNames);
    const { bytesToKeep = 0 } = options;
    assertBytes(bytesToKeep, 'bytesToKeep');
    this.#resource.enter(stream, 'trim');
    this.#tryKeepLate();
    this.takeBackIdle(0, stream, true);
    this.ordering.synchronizeUnannounced(stream);
    // Host functions may have run.
    this.#resource.enter(stream, 'trim');
    this.ordering.gather(stream, this.ordering.mergingLaneOf(stream), true);
    let released = 0;
    for (;;) {
      const bytes = this.giveBack(stream, this.held.reservedBytes - bytesToKeep);
      if (bytes === 0) return released;
      released += bytes;
    }
  }

  /** @internal */
  dispose(): void {
    const { device } = this.#resource;
    const stream = Stream.legacyDefault(device);
    if (!this.#isDisposed) {
      const reason = `the ${this.className} is disposed`;
      const taken = { by: this.#resource, since: this.held.remembered, reason, has: this.memoryTest() };
      this.takeBack(taken);
      if (!this.#isDisposed) {
        const hadLateMemory = this.#keepLate();
        const hasWaited = this.ordering.synchronizeUnannounced(stream) || hadLateMemory;
        // Host functions may run during the wait, and allocate.
        if (hasWaited && !this.#isDisposed) this.takeBack(taken);
      }
    }
    // Host functions may have disposed the resource while streams were waited for.
    if (!this.#isDisposed) {
      this.#resource.enter(stream, 'dispose');
      this.ordering.gather(stream, this.ordering.ownLaneOf(stream));
      const isInUse = this.statistics().allocatedBytes > 0;
      this.#isDisposed = this.isSpecial = true;
      this.ordering[Symbol.dispose]();
      this.#resource.ended();
      this.held.leave([...this.#index.removeAllSegments(), ...this.#stopIdle()], isInUse);
    }
    this.#keepLate();
    this.held.giveBackLeft(stream);
  }

  #stopIdle(): readonly Segment[] {
    this.#idle?.[Symbol.dispose]();
    // A host function may have disposed the resource while a block is returned on this stream.
    if (!this.#isReturning) this.#idleStream?.dispose();
    return this.#idle?.takeAll() ?? [];
  }

  /**
   * @internal Makes the resources above free their allocations in memory that is about to be taken back.
   * @throws the first error, if any of them still has memory.
   */
  takeBack(taken: TakenMemory): void {
    throwFirst(takeBack(taken).map(({ error }) => error));
  }

  /** @internal Returns a test of whether an address lies in memory that came from the resource. */
  memoryTest(): TakenMemory['has'] {
    return (pointer, number) => this.held.hadBefore(pointer, number);
  }

  /**
   * When a resource below takes its memory back, returns free blocks, and refuses if one of the
   * blocks has a live allocation.
   */
  #giveBackWhenTaken(layers: readonly MemoryResource[]): void {
    const resource = this.#resource;
    const stream = Stream.legacyDefault(resource.device);
    this.held.rememberFor(layers, stream, (pointer, bytes) => {
      // The resources above have freed what they could.
      if (this.#isDisposed) resource[Symbol.dispose]();
      else resource.trim(stream);
      if (this.held.hasBlockAt(pointer)) throw stillUsed(resource, pointer, bytes);
    });
  }

  // The host waits

  /** @internal Waits on the host for streams that memory is held for. Returns how many there were. */
  synchronizeHeld(stream: Stream): number {
    return (this.#tryKeepLate() ? 1 : 0) + this.ordering.synchronizeHeld(stream);
  }

  /**
   * @internal Waits on the host for all work on the device, and counts the wait. The state must be
   * consistent: host functions may run during it.
   */
  synchronizeDevice(): void {
    this.#waitForDevices();
    this.synchronizations++;
  }

  /** Waits for every device whose streams are served. */
  #waitForDevices(): void {
    const { memoryKind, device } = this.#resource;
    for (const each of devicesUsing(memoryKind, device)) each.synchronizeSync();
  }

  // Counts, checks and errors

  /** @internal */
  statistics(): StreamOrderedStatistics {
    const blocks = [...this.#index.blocks()];
    const { reservedBytes, peakReservedBytes, growths, late } = this.held;
    const outside = [...late, ...(this.#idle?.segments ?? [])];
    const free = [...blocks.filter(({ lane }) => lane >= 0), ...outside].map(({ bytes }) => bytes);
    return {
      reservedBytes,
      peakReservedBytes,
      allocatedBytes: reservedBytes - free.reduce((sum, bytes) => sum + bytes, 0),
      largestFreeBytes: Math.min(
        free.reduce((largest, bytes) => Math.max(largest, bytes), 0),
        this.largestBlockBytes,
      ),
      upstreamBlocks: blocks.filter(({ isHead }) => isHead).length + outside.length,
      growths,
      releases: this.releases,
      reuses: this.reuses,
      synchronizations: this.synchronizations,
      idleReturnedBytes: this.#idle?.returnedBytes ?? 0,
    };
  }

  /** @internal What `console.log` shows of the resource. */
  inspect(inspection: Inspection): string {
    const { device, memoryKind, upstream } = this.#resource;
    const { reservedBytes, peakReservedBytes } = this.held;
    const fields = {
      device: device.index,
      memoryKind,
      deallocationEvents: this.ordering.policy,
      reservedBytes,
      peakReservedBytes,
      isDisposed: this.#isDisposed,
      upstream,
    };
    return inspectObject(this.#resource, fields, inspection);
  }

  /** @internal */
  heldBackFrom(stream: Stream): number {
    const held = this.ordering.lanes.filter((lane) => lane.isHeldBack && lane.identity !== stream.identity);
    const lanes = new Set(held.map(({ number }) => number));
    let heldBytes = 0;
    for (const { bytes, lane } of this.#index.blocks()) if (lanes.has(lane)) heldBytes += bytes;
    return heldBytes;
  }

  /** @internal The most that one allocation can take from the largest free block. */
  largestFreeBytes(): number {
    const largest = this.ordering.laneNumbers().reduce((most, lane) => Math.max(most, this.#index.largestFreeBytes(lane)), 0);
    return Math.min(largest, this.largestBlockBytes);
  }

  /** @internal */
  validate(): void {
    this.#index.validate();
    let bytes = 0;
    for (const block of [...this.#index.blocks(), ...this.held.outsideLanes, ...(this.#idle?.segments ?? [])]) bytes += block.bytes;
    const { reservedBytes } = this.held;
    if (bytes !== reservedBytes) throw new Error(`${this.className}: reserved ${reservedBytes} bytes, indexes ${bytes}`);
  }

  /** @internal Throws the error of a refused free, unless it frees the null pointer. */
  refuseFree(pointer: number, bytes: number, block = this.#index.usedBlock(pointer)): void {
    assertPointer(pointer);
    assertBytes(bytes);
    if (pointer === 0) return;
    const refusal = `the ${this.className} cannot free ${formatPointer(pointer)}`;
    if (block !== none) throw wrongSize(refusal, bytes, this.#index.askedBytes(block));
    switch (this.#index.classify(pointer)) {
      case 'free':
        throw alreadyFreed(refusal);
      case 'inside':
        throw insideAllocation(refusal);
      default:
        throw this.#idle !== undefined && isWithin(sorted(this.#idle.segments), pointer)
          ? alreadyFreed(refusal)
          : notAllocatedHere(refusal);
    }
  }

  /**
   * The error of an allocation that nothing can serve: says whether the maximum or the upstream stopped it.
   * @param maximumBytes the most that the resource takes from its upstream; infinity if there is no maximum
   * @param reason follows the name of the resource and what was asked for, as in `'no free block is large enough'`
   */
  outOfMemoryWithin(maximumBytes: number, bytes: number, reason: string): OutOfMemoryError {
    const { refusal } = this.held;
    if (refusal === undefined && maximumBytes !== Number.POSITIVE_INFINITY) {
      return this.outOfMemory(bytes, `${reason}, and its maximum is ${formatBytes(maximumBytes)}`, maximumBytes);
    }
    const limit = refusal?.limitBytes === undefined ? '' : `, which has a limit of ${formatBytes(refusal.limitBytes)}`;
    return this.outOfMemory(bytes, `${reason}, and the upstream${limit === '' ? '' : `${limit},`} has no more`, refusal?.limitBytes);
  }

  /**
   * The error of an allocation that is too large for any block, for which the upstream was not
   * called.
   */
  blockTooLarge(bytes: number, reason: string, limitBytes?: number): OutOfMemoryError {
    // An earlier refusal is unrelated.
    this.held.refusal = undefined;
    return this.outOfMemory(bytes, reason, limitBytes);
  }

  /** @internal */
  outOfMemory(bytes: number, reason: string, limitBytes = Number.POSITIVE_INFINITY): OutOfMemoryError {
    const cause = this.held.refusal;
    this.held.refusal = undefined;
    const others = cause === undefined ? '' : describeNeighbours(this, cause);
    return new OutOfMemoryError(
      `the ${this.className} is out of memory: ${formatBytes(bytes)} (${bytes} bytes) were asked for; ${reason}${others}`,
      {
        requestedBytes: bytes,
        availableBytes: this.largestFreeBytes(),
        ...(limitBytes === Number.POSITIVE_INFINITY ? {} : { limitBytes }),
        path: [this.className, ...(cause?.path ?? [])],
        ...(cause === undefined ? {} : { stages: cause.stages }),
      },
      { cause },
    );
  }
}

function sorted(segments: readonly Segment[]): readonly Segment[] {
  return [...segments].sort((one, other) => one.address - other.address);
}

/** Streams keep the ordering alive, but must not keep the resource alive. */
function forgetterOf(resource: KeepingResource): () => void {
  const reference = new WeakRef(resource);
  return () => reference.deref()?.forgetLastStream();
}

function isShared(resource: MemoryResource): resource is SharedMemoryResource {
  return typeof (resource as Partial<SharedMemoryResource>).trimOnRequest === 'function';
}

/**
 * The error of a call that would take back memory of a resource above in which something is still
 * allocated.
 */
export function stillUsed(pool: MemoryResource, pointer: DevicePointer, bytes: number): CisternError {
  return new CisternError(
    'ERR_CISTERN_INVALID_STATE',
    `cannot take ${formatBytes(bytes)} at ${formatPointer(pointer)} back: a ${pool.constructor.name} holds this memory, and part of it is still allocated`,
  );
}
