/**
 * The memory of one capture. No other graph of the region runs while this one does, so at its beginning all
 * of the region is free.
 *
 * A request has a number. If there is a plan, the i-th request gets its i-th place, provided that the last
 * allocation there is freed before, in the order of the capture. So a plan can waste memory, but cannot cause
 * a conflict. Every other request is cut from the free memory behind the plan:
 *
 *     region   [ places of the plan | free memory in lanes … ]
 *
 *     untouched   what nobody has used in this capture            any stream may have it
 *     current     one lane for each stream: freed in its epoch    that stream
 *     earlier     freed on a stream in an earlier epoch           that stream, and those that come after the epoch
 *     limbo       freed on a stream that does not come after      nobody, until the capture ends
 *                 the allocation: who comes after both?
 *
 * A stream takes from its current lane, from the earlier ones it comes after, and from the untouched
 * memory; then these are merged, so that what lies side by side coalesces; and then the region grows.
 *
 * Invariant: two allocations share bytes only if the later request's stream comes after the earlier free,
 * and that after its request.
 * Cost: a request looks at the earlier lanes, of which there are few.
 */

import { ALLOCATION_ALIGNMENT, alignUp } from '../basics/units.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import type { EventObserver, StreamIdentity } from '../driver/streams/stream-identity.js';
import type { DevicePointer } from '../memory-resource.js';
import { Extents } from '../plans/extents.js';
import type { Plan } from '../plans/plan.js';
import { type OwnedBytes, type PlanWithPredecessors, placeOf } from '../plans/predecessors.js';
import type { OrderedSequence } from '../plans/sequence.js';
import { type EventRecord, SequenceBuilder } from '../plans/sequence-builder.js';
import { AddressMap } from '../suballocation/address-map.js';
import { leastBlockBytes, none, type Segment } from '../suballocation/blocks.js';
import { FreeSpaceIndex } from '../suballocation/free-space-index.js';
import { CaptureOrder } from './capture-order.js';
import type { CapturedRequests } from './captured-requests.js';
import type { GraphRegion } from './graph-region.js';

/** If a stream has more earlier lanes than this, they are merged. */
const mostEarlierLanes = 16;

/** Why a request is not served from its place. */
export type GraphDeviation = 'larger' | 'alignment' | 'extra' | 'in-use';

/** Free memory for streams that come after an epoch of a stream. */
interface EarlierLane {
  readonly lane: number;
  readonly stream: number;
  readonly epoch: number;
}

/** A record of an event, or a wait for one. */
interface CapturedEvent {
  /** How many operations come before it. */
  readonly at: number;
  /** -1: none of the capture. */
  readonly stream: number;
  readonly version: number;
  readonly isWait: boolean;
}

/** A live allocation of a capture. */
export interface CapturedAllocation {
  readonly pointer: DevicePointer;
  readonly bytes: number;
}

export class CaptureAllocator implements EventObserver {
  /** Where the capture began. */
  readonly origin: StreamIdentity;
  readonly order: CaptureOrder;
  readonly #region: GraphRegion;
  readonly #plan: PlanWithPredecessors | undefined;
  /**
   * Since the first request that was not served from its place, which may have been left to those before it: who
   * has had the places instead of the predecessors.
   */
  #owners: Extents<OwnedBytes> | undefined;
  readonly #base: DevicePointer;
  readonly #index = new FreeSpaceIndex();
  readonly #untouched = this.#index.addLane();
  readonly #limbo = this.#index.addLane();
  readonly #current: number[] = [];
  readonly #vacant: number[] = [];
  #earlier: EarlierLane[] = [];
  readonly #requests: CapturedRequests;
  readonly #live = new AddressMap();
  /** Addresses. */
  readonly #doubtful = new AddressMap();
  /** The stream of the last call, and its number in the capture. */
  #lastStream: Stream | undefined;
  #lastNumber: number = none;
  /** What was recorded and waited for, in order. */
  readonly #events: CapturedEvent[] = [];
  /** How often each deviation occurred. */
  readonly deviations: Record<GraphDeviation, number> = { larger: 0, alignment: 0, extra: 0, 'in-use': 0 };
  /** The greatest alignment that was requested. */
  alignmentBytes: number = ALLOCATION_ALIGNMENT;
  /**
   * Bytes that wait for the end of the capture, because no stream is known to come after all their uses.
   */
  limboBytes = 0;

  /**
   * @param requests whose columns it uses until the capture ends
   * @throws what the upstream throws, if it does not have the bytes of the plan.
   */
  constructor(origin: StreamIdentity, region: GraphRegion, requests: CapturedRequests, plan: PlanWithPredecessors | undefined) {
    this.origin = origin;
    this.order = new CaptureOrder(origin, { epochEnded: (stream, epoch) => this.#epochEnded(stream, epoch) });
    this.#region = region;
    this.#plan = plan;
    this.#requests = requests;
    requests.begin(plan?.plan.sizes.length ?? 0);
    const { totalBytes = 0, alignmentBytes = ALLOCATION_ALIGNMENT } = plan?.plan ?? {};
    this.#base = totalBytes === 0 ? 0 : region.reserve(totalBytes, alignmentBytes);
    for (const { address, bytes } of region.extents) {
      const isPlanned = totalBytes > 0 && address <= this.#base && this.#base < address + bytes;
      const start = isPlanned ? this.#base + totalBytes : address;
      if (address + bytes > start) this.#index.addSegment(start, address + bytes - start, this.#untouched);
    }
  }

  /** Ends the capture: nothing is allocated or freed any more. */
  [Symbol.dispose](): void {
    this.#index[Symbol.dispose]();
  }

  /** Whether every request so far was served from the plan. */
  get isPlanned(): boolean {
    return this.#plan !== undefined && Object.values(this.deviations).every((count) => count === 0);
  }

  /**
   * The number of a stream in the capture, or -1 if it has not joined, even by what another library has queued; and if the
   * capture was abandoned, since the first stream was disposed.
   */
  numberOf(stream: Stream): number {
    if (!this.origin.isCaptured) return none;
    if (stream === this.#lastStream && !stream.isDisposed) return this.#lastNumber;
    assertStream(stream, 'allocate');
    const { identity } = stream;
    let number = this.order.numberOf(identity);
    if (number === none && identity.joinsCaptureOf(this.origin)) number = this.order.joinedUnseen(identity);
    if (number === none) return none;
    this.#lastStream = stream;
    this.#lastNumber = number;
    return number;
  }

  /** The number of requests. */
  get requests(): number {
    return this.#requests.count;
  }

  /** The place of the next request, or why it has none. Without a plan it has none. */
  deviationOf(bytes: number, stream: number, alignment: number): GraphDeviation | undefined {
    if (this.#plan === undefined) return undefined;
    const { sizes, alignmentBytes } = this.#plan.plan;
    const request = this.#requests.count;
    if (request >= sizes.length) return 'extra';
    if (bytes > (sizes[request] as number)) return 'larger';
    if (alignment > alignmentBytes) return 'alignment';
    return this.#isFree(request, stream, this.#plan) ? undefined : 'in-use';
  }

  /** Serves the next request: from its place, if there is a plan and `deviation` is undefined. */
  allocate(bytes: number, stream: number, alignment: number, deviation: GraphDeviation | undefined): DevicePointer {
    const plan = this.#plan?.plan;
    const isPlanned = plan !== undefined && deviation === undefined;
    const request = this.#requests.count;
    const address = isPlanned ? this.#base + (plan.offsets[request] as number) : this.#cut(bytes, stream, alignment);
    if (isPlanned) this.#owners?.insert(placeOf(plan, request));
    else if (plan !== undefined) this.#owners ??= this.#ownersSoFar(plan);
    if (deviation !== undefined) this.deviations[deviation]++;
    const block = isPlanned ? none : this.#index.usedBlock(address);
    this.#live.insert(address, this.#requests.add(address, bytes, stream, this.order.epochOf(stream), block));
    if (alignment > this.alignmentBytes) this.alignmentBytes = alignment;
    return address;
  }

  /** The request that a live allocation of this capture came from, or -1. */
  requestAt(pointer: DevicePointer): number {
    return this.#live.get(pointer);
  }

  bytesOf(request: number): number {
    return this.#requests.bytesOf(request);
  }

  /**
   * Notes a free at the address of a live allocation that may have been another graph's. It is unknown whether this
   * or the next free there is the allocation's, so its memory is not reused in this capture.
   */
  doubt(pointer: DevicePointer): void {
    this.#doubtful.insert(pointer, 0);
  }

  /** Frees the live allocation of a request on a stream of the capture. */
  free(pointer: DevicePointer, request: number, stream: number): void {
    this.#live.remove(pointer);
    const requests = this.#requests;
    const block = requests.blockOf(request);
    const isOrdered =
      (this.#doubtful.count === 0 || this.#doubtful.take(pointer) === none) &&
      this.order.isAfter(stream, requests.streamOf(request), requests.epochOf(request));
    if (!isOrdered) this.limboBytes += alignUp(requests.bytesOf(request), ALLOCATION_ALIGNMENT);
    if (block !== none) this.#index.free(block, isOrdered ? this.#currentLane(stream) : this.#limbo);
    requests.free(request, stream, isOrdered ? this.order.epochOf(stream) : none);
  }

  eventRecorded(identity: StreamIdentity, version: number): void {
    this.order.eventRecorded(identity, version);
    this.#events.push({ at: this.#requests.operationCount, stream: this.order.numberOf(identity), version, isWait: false });
  }

  eventAwaited(identity: StreamIdentity, version: number): void {
    this.order.eventAwaited(identity, version);
    this.#events.push({ at: this.#requests.operationCount, stream: this.order.numberOf(identity), version, isWait: true });
  }

  /** The requests and frees, for a plan. */
  sequence(): OrderedSequence {
    const builder = new SequenceBuilder();
    const records = new Map<number, EventRecord>();
    const add = ({ stream, version, isWait }: CapturedEvent) => {
      const record = isWait ? records.get(version) : builder.record(stream);
      if (record === undefined) return;
      if (isWait) builder.wait(stream, record);
      else records.set(version, record);
    };
    const requests = this.#requests;
    let next = 0;
    for (let i = 0; i < requests.operationCount; i++) {
      for (; this.#events[next]?.at === i; next++) add(this.#events[next] as CapturedEvent);
      const operation = requests.operation(i);
      if (operation >= 0) builder.allocate(requests.bytesOf(operation), requests.streamOf(operation));
      else builder.free(~operation, requests.freeStreamOf(~operation));
    }
    return builder.finish();
  }

  /** What is still allocated, in the order of the requests. */
  live(): CapturedAllocation[] {
    const live: CapturedAllocation[] = [];
    const requests = this.#requests;
    for (let request = 0; request < requests.count; request++) {
      if (requests.freeStreamOf(request) !== none) continue;
      live.push({ pointer: requests.addressOf(request), bytes: requests.bytesOf(request) });
    }
    return live;
  }

  /** By extent of the region: the bytes from its beginning on that the graph uses. */
  usedBytes(): Map<DevicePointer, number> {
    const used = new Map<DevicePointer, number>();
    const requests = this.#requests;
    for (const { address, bytes } of this.#region.extents) {
      let most = 0;
      for (let request = 0; request < requests.count; request++) {
        const offset = requests.addressOf(request) - address;
        if (offset >= 0 && offset < bytes) most = Math.max(most, offset + alignUp(requests.bytesOf(request), ALLOCATION_ALIGNMENT));
      }
      if (most > 0) used.set(address, most);
    }
    return used;
  }

  /** For tests: throws if the data structures are inconsistent. Linear. */
  validate(): void {
    this.#index.validate();
  }

  /** Whether the place of a request is free for a stream. */
  #isFree(request: number, stream: number, { plan, starts, predecessors }: PlanWithPredecessors): boolean {
    if (this.#owners !== undefined) {
      for (const { owner } of this.#owners.overlapping(placeOf(plan, request))) if (!this.#isFreed(owner, stream)) return false;
      return true;
    }
    const end = starts[request + 1] as number;
    for (let i = starts[request] as number; i < end; i++) if (!this.#isFreed(predecessors[i] as number, stream)) return false;
    return true;
  }

  /** Who has had each byte of the plan, before its first deviation. */
  #ownersSoFar(plan: Plan): Extents<OwnedBytes> {
    const owners = new Extents<OwnedBytes>();
    for (let request = 0; request < this.#requests.count; request++) owners.insert(placeOf(plan, request));
    return owners;
  }

  /** Whether a stream comes after the free of an allocation. */
  #isFreed(request: number, stream: number): boolean {
    const freedOn = this.#requests.freeStreamOf(request);
    const epoch = this.#requests.freeEpochOf(request);
    return freedOn !== none && epoch !== none && this.order.isAfter(stream, freedOn, epoch);
  }

  #cut(bytes: number, stream: number, alignment: number): DevicePointer {
    const address = this.#find(bytes, stream, alignment);
    if (address !== none) return address;
    this.#growFor(bytes, stream, alignment);
    return this.#find(bytes, stream, alignment);
  }

  #find(bytes: number, stream: number, alignment: number): DevicePointer {
    const owner = none;
    const current = this.#currentLane(stream);
    let address = this.#index.cut(bytes, alignment, current, owner);
    if (address !== none) return address;
    let hasEarlier = false;
    for (const earlier of this.#earlier) {
      if (!this.order.isAfter(stream, earlier.stream, earlier.epoch)) continue;
      hasEarlier = true;
      address = this.#index.cut(bytes, alignment, earlier.lane, owner);
      if (address !== none) return address;
    }
    address = this.#index.cut(bytes, alignment, this.#untouched, owner);
    if (address !== none) return address;
    if (hasEarlier) this.#mergeEarlier(stream, current);
    this.#index.transfer(this.#untouched, current);
    address = this.#index.cut(bytes, alignment, current, owner);
    return address === none ? this.#index.search(bytes, alignment, current, owner) : address;
  }

  /**
   * To be called after a failed search, when all memory that the stream may have is in its current
   * lane.
   */
  #growFor(bytes: number, stream: number, alignment: number): void {
    const least = leastBlockBytes(bytes, alignment);
    const tail = this.#region.growsInPlace ? this.#index.freeTailBytes(this.#currentLane(stream)) : 0;
    if (tail < least) this.#add(this.#region.grow(least - tail), stream);
    // What came need not lie behind the tail, nor at a multiple of the alignment.
    if (!this.#index.canAllocate(least / ALLOCATION_ALIGNMENT, this.#currentLane(stream))) {
      this.#add(this.#region.grow(least), stream);
    }
  }

  #add({ address, bytes }: Segment, stream: number): void {
    const lane = this.#currentLane(stream);
    if (this.#region.growsInPlace) this.#index.extendSegment(address, bytes, lane);
    else this.#index.addSegment(address, bytes, lane);
  }

  #mergeEarlier(stream: number, into: number): void {
    this.#earlier = this.#earlier.filter((earlier) => {
      if (!this.order.isAfter(stream, earlier.stream, earlier.epoch)) return true;
      this.#index.transfer(earlier.lane, into);
      this.#vacant.push(earlier.lane);
      return false;
    });
  }

  #currentLane(stream: number): number {
    let lane = this.#current[stream];
    if (lane === undefined) {
      lane = this.#vacant.pop() ?? this.#index.addLane();
      this.#current[stream] = lane;
    }
    return lane;
  }

  /** Other streams can use the memory that the stream has freed from now on. */
  #epochEnded(stream: number, epoch: number): void {
    const lane = this.#current[stream];
    if (lane === undefined || this.#index.isEmpty(lane)) return;
    this.#earlier = this.#earlier.filter((earlier) => {
      if (!this.#index.isEmpty(earlier.lane)) return true;
      this.#vacant.push(earlier.lane);
      return false;
    });
    const own = this.#earlier.filter((earlier) => earlier.stream === stream);
    if (own.length >= mostEarlierLanes) {
      // The two oldest become one lane, for streams that come after the later of them.
      const [first, second] = own as [EarlierLane, EarlierLane];
      this.#index.transfer(first.lane, second.lane);
      this.#vacant.push(first.lane);
      this.#earlier = this.#earlier.filter((earlier) => earlier !== first);
    }
    this.#earlier.push({ lane, stream, epoch });
    this.#current[stream] = this.#vacant.pop() ?? this.#index.addLane();
  }
}
