/**
 * Decides which stream may reuse a freed block, and what it must wait for first, for every adaptor
 * that keeps memory.
 *
 * A pooling resource has a free-space index with lanes, and one `StreamOrdering`. Every stream that
 * uses the resource gets its own lane (two, if frees with and without events are mixed). Memory
 * freed on a stream goes to its lane, and the stream takes it from there without waiting. If
 * nothing in the lane fits, the pooling resource takes from other lanes, in the order that `others`
 * gives, after `order` has made the stream wait.
 *
 *     stream 1 -> lane 0 [ free blocks ]   recorded
 *     stream 2 -> lane 1 [ free blocks ]   unrecorded
 *     (ended)     lane 2 [ free blocks ]   events e1, e2
 *
 * Rules, each with a test that fails without it:
 *  - a lane that takes over another's blocks inherits the dependency (rapidsai/rmm#2489): it counts
 *    as unrecorded from then on, and its own later record covers the wait before it;
 *  - a caller's event does not cover work that its stream is ordered after later;
 *  - memory fresh from the upstream is ordered on its stream like a free (part of
 *    rapidsai/rmm#2507);
 *  - streams are told apart by identity, never by handle (rapidsai/rmm#2251);
 *  - before a stream ends, one event is recorded for its lanes, and their blocks go to the lane of
 *    ended streams (rapidsai/rmm#510);
 *  - on a stream whose end is not announced, an event is recorded at every free, because it might
 *    be too late afterwards (rapidsai/rmm#649).
 */

import { DriverError, invalidValue, LifetimeError } from '../basics/errors.js';
import { assertOneOf } from '../basics/validation.js';
import { Device, type MemoryKind } from '../driver/device.js';
import { isCapturing, isNotPermitted } from '../driver/status.js';
import { Event } from '../driver/streams/event.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import type { StreamIdentity, StreamObserver } from '../driver/streams/stream-identity.js';
import type { DeallocationEvents, DeallocationFence } from '../memory-resource.js';
import { none } from '../suballocation/blocks.js';
import { CommonLane } from './common-lane.js';
import { givenAway, type Lane, type Waiter } from './lane.js';
import { LaneTurns } from './lane-turns.js';
import { StreamLane } from './stream-lane.js';

/** The values of the option `deallocationEvents`. */
export const deallocationEventsWords: readonly DeallocationEvents[] = ['eager', 'deferred', 'off'];

/**
 * The most lanes with held-back memory that an allocation checks, and the most streams that it
 * queries.
 */
const mostLookedAt = 64;
const mostQueried = 32;
/** The most lanes of busy streams that an allocation passes over for one that needs no wait. */
export const mostPassed = 4;

/** What stream ordering needs from a free-space index. */
export interface LaneMemory {
  addLane(): number;
  isEmpty(lane: number): boolean;
  transfer(from: number, to: number): void;
  /**
   * As `transfer`, but may move less. Returns whether the memory is now in `from`; the two numbers
   * have then changed their owners, also for `share`.
   */
  join?(from: number, to: number): boolean;
  /** Says whether `laneWith` and `fullLane` may find a lane. */
  share?(lane: number, isShared: boolean): void;
  /** A shared lane other than these two that has a free block of `units` units, or -1. Passes over the first ones. */
  laneWith?(units: number, own: number, second: number, passed: number): number;
  /** A shared lane other than these two that is not empty, or -1. Passes over the first ones. */
  fullLane?(own: number, second: number, passed: number): number;
  /**
   * Whether memory in use will become free in the order of the lane's stream without a call at each
   * free, or only after the memory that was freed into the lane. Before the stream ends, an event
   * is recorded for it, too.
   */
  isAwaited?(lane: number): boolean;
  /** The stream of a lane has ended: everything that waits for that lane now waits for another. */
  redirect?(from: number, to: number): void;
}

export class StreamOrdering implements StreamObserver {
  /** What a free without a fence does. */
  readonly policy: DeallocationEvents;
  readonly captureBegan: () => void;
  readonly #memory: LaneMemory;
  /** The device whose streams are served; `undefined` for all devices. */
  readonly #device: Device | undefined;
  /**
   * By the slot of the stream: the lane for memory that other streams may take after a wait, and
   * the lane for memory held for the stream.
   */
  readonly #shared: (StreamLane | undefined)[] = [];
  readonly #held: (StreamLane | undefined)[] = [];
  /** Those of the two that take memory first, and frees without a fence. */
  readonly #own: readonly (StreamLane | undefined)[];
  /** Every lane, by number. */
  readonly #byNumber = new Map<number, Lane>();
  /** Every lane of a stream that has not ended. */
  readonly #lanes = new Set<StreamLane>();
  /**
   * Lanes whose memory other streams cannot take, because their streams were still busy when last
   * queried.
   */
  readonly #unshared = new LaneTurns();
  readonly #vacantNumbers: number[] = [];
  /** How many lanes of busy streams `readyFullLane` has passed over. */
  #passed = 0;
  /** The lane of ended streams, and the lanes that the pooling resource added. */
  readonly #ended: CommonLane;
  readonly #common: CommonLane[];

  /**
   * @param memoryKind device memory serves the streams of its device only; other kinds serve those
   * of every device
   * @param captureBegan called when a stream that has a lane is captured; must not throw
   */
  constructor(policy: DeallocationEvents, memory: LaneMemory, device: Device, memoryKind: MemoryKind, captureBegan = () => {}) {
    assertOneOf(policy, deallocationEventsWords, 'deallocationEvents');
    this.policy = policy;
    this.#own = policy === 'off' ? this.#held : this.#shared;
    this.captureBegan = captureBegan;
    this.#memory = memory;
    this.#device = memoryKind === 'device' ? device : undefined;
    this.#common = [];
    this.#ended = this.addCommonLane();
  }

  /**
   * The lane from which a stream takes memory first, and to which its frees without a fence go.
   * @throws ArgumentTypeError, LifetimeError, ArgumentRangeError if `stream` is not a live stream
   * of a device that can access the memory.
   */
  laneOf(stream: Stream, operation: string): StreamLane {
    assertStream(stream, operation);
    if (this.#device !== undefined) assertStreamOf(stream, this.#device, operation);
    const { identity } = stream;
    return this.#own[identity.slot] ?? this.#addLane(identity, this.policy === 'off');
  }

  /** The same lane, for a stream that was checked. */
  ownLaneOf(stream: Stream): StreamLane {
    return this.#lane(stream.identity, this.policy === 'off');
  }

  /** The other lane of a stream, if it has one. The stream takes from it without waiting, too. */
  secondLaneOf(stream: Stream): StreamLane | undefined {
    return (this.policy === 'off' ? this.#shared : this.#held)[stream.identity.slot];
  }

  /**
   * The lane in which a stream's free memory is merged. Once memory was freed under `'off'`, this is
   * the lane for held memory: merged into the other lane, that memory would cost an event as soon as
   * another stream takes it.
   */
  mergingLaneOf(stream: Stream): StreamLane {
    const held = this.#held[stream.identity.slot];
    return held?.isAskedFor === true ? held : this.ownLaneOf(stream);
  }

  /**
   * The lane of a stream for memory that, under any policy, only this stream can use until it is
   * known to be idle.
   */
  heldLaneOf(stream: Stream): StreamLane {
    return this.#lane(stream.identity, true);
  }

  /**
   * Adds a lane for memory that belongs to no stream; every stream may take from it after `order`.
   */
  addCommonLane(): CommonLane {
    const lane = new CommonLane(this.#memory.addLane());
    this.#byNumber.set(lane.number, lane);
    this.#common.push(lane);
    this.#memory.share?.(lane.number, true);
    return lane;
  }

  /**
   * To be called before memory that is ordered on a stream comes into a common lane.
   * @throws LifetimeError if the stream has ended, DriverError if no event can be recorded; the
   * state is then unchanged.
   */
  receivedInCommon(lane: CommonLane, stream: Stream): void {
    assertStream(stream, 'keep memory');
    if (stream.identity.isIdle()) return;
    const event = new Event({ device: stream.device });
    event.record(stream);
    givenAway.add(event);
    // The stream takes the memory from the common lane without a wait.
    stream.identity.outdateFences();
    lane.dependOn([event]);
  }

  /**
   * Moves all free memory to a common lane without blocking, together with its events, except
   * memory held for streams other than `stream` that are not known to be idle. Returns whether it
   * moved any.
   */
  collect(into: CommonLane, stream?: Stream): boolean {
    const events: Event[] = [];
    let hasMoved = false;
    const move = (lane: Lane) => {
      events.push(...lane.release());
      this.#memory.transfer(lane.number, into.number);
      hasMoved = true;
    };
    try {
      for (const lane of stream === undefined ? [] : this.#lanesOf(stream.identity)) {
        if (this.#memory.isEmpty(lane.number)) continue;
        // An idle stream needs no event.
        if (!lane.isIdle) lane.query();
        move(lane);
      }
      for (let other = this.#fullLane(into.number, none); other !== none; other = this.#fullLane(into.number, none)) {
        move(this.lane(other));
      }
    } finally {
      into.dependOn(events);
    }
    for (const common of this.#common) common.forgetPastEvents();
    return hasMoved;
  }

  /** Applies the policy at a free without a fence. `lane` is the stream's own. */
  freed(lane: StreamLane): void {
    free(lane, lane.recordsFrees);
  }

  /**
   * The same, but if the event is refused, by the driver or because the stream is captured, it is
   * recorded later, unless that may be too late.
   */
  freedLater(lane: StreamLane): void {
    try {
      this.freed(lane);
    } catch (error) {
      if (lane.mustRecord || !(error instanceof DriverError || isCapturing(error))) throw error;
      lane.freeUnrecorded();
    }
  }

  /**
   * Applies the fence of a free, and returns the lane that now has the memory. `owner` is the owner
   * that the memory was allocated for.
   *
   * A caller's event covers the free only if the memory was allocated on the same stream.
   * Otherwise, this stream may have been ordered after the other stream's uses only after the
   * record, and without cistern noticing: by the order of the legacy default stream, or by a wait
   * that another library queued. The event then does not cover those uses, so cistern records its
   * own when it needs one.
   * @throws ArgumentRangeError for an event that was not recorded on the stream; LifetimeError for
   * a disposed event.
   */
  freedWith(fence: DeallocationFence, stream: Stream, owner: number): StreamLane {
    assertFence(fence, stream);
    if (fence instanceof Event) {
      const lane = this.#lane(stream.identity, false);
      if (lane.mustRecord) lane.freeRecorded();
      else if (lane.owner === owner) lane.freeWithEvent(fence);
      else lane.freeUnrecorded();
      return lane;
    }
    const lane = this.#lane(stream.identity, fence === 'off');
    if (fence === 'off') lane.isAskedFor = true;
    free(lane, fence === 'eager' || lane.mustRecord);
    return lane;
  }

  /** The numbers of all other lanes that are not empty and may be taken from, first those that belong to no stream. */
  *others(stream: Stream): Generator<number> {
    const { identity } = stream;
    for (const lanes of [this.#common, this.#lanes]) {
      for (const lane of lanes) {
        if (lane.identity !== identity && !this.#memory.isEmpty(lane.number) && !lane.isHeldBack) yield lane.number;
      }
    }
  }

  /**
   * A lane of another stream, or of none, that has a free block of `units` units and may be taken
   * from; or -1. Only for memory with `laneWith`. Takes constant time, however many streams there
   * are, because it checks only a few of the lanes whose memory was held back.
   */
  laneWith(stream: Stream, units: number): number {
    if (this.#unshared.count > 0) this.#shareIdle(mostLookedAt);
    const { slot } = stream.identity;
    const own = this.#shared[slot]?.number ?? none;
    const second = this.#held[slot]?.number ?? none;
    for (;;) {
      const number = this.#memory.laneWith?.(units, own, second, 0) ?? none;
      if (number === none || !this.#unshareHeldBack(number)) return number;
    }
  }

  /** The same, but only a lane that a stream can take from without waiting. Passes over a few others, and asks the driver about them. */
  readyLaneWith(stream: Stream, units: number): number {
    if (this.#unshared.count > 0) this.#shareIdle(mostLookedAt);
    const { slot } = stream.identity;
    const own = this.#shared[slot]?.number ?? none;
    const second = this.#held[slot]?.number ?? none;
    for (let passed = 0; passed < mostPassed; ) {
      const number = this.#memory.laneWith?.(units, own, second, passed) ?? none;
      if (number === none) break;
      if (this.#unshareHeldBack(number)) continue;
      if (this.lane(number).hasRun()) return number;
      passed++;
    }
    return none;
  }

  /**
   * A lane of another stream, or of none, that is not empty and may be taken from; or -1. Linear in
   * the streams if the memory has no `fullLane`.
   */
  fullLane(stream: Stream): number {
    const { slot } = stream.identity;
    return this.#fullLane(this.#shared[slot]?.number ?? none, this.#held[slot]?.number ?? none);
  }

  /** The same, but only a lane that a stream can take from without waiting, as `readyLaneWith`. */
  readyFullLane(stream: Stream): number {
    const { slot } = stream.identity;
    const own = this.#shared[slot]?.number ?? none;
    const second = this.#held[slot]?.number ?? none;
    for (; this.#passed < mostPassed; this.#passed++) {
      const number = this.#fullLane(own, second, this.#passed);
      if (number === none || this.lane(number).hasRun()) return number;
    }
    return none;
  }

  /** Lets `readyFullLane` ask again about lanes that it has passed over. */
  askAgain(): void {
    this.#passed = 0;
  }

  /**
   * Makes a stream wait for everything that a lane's memory depends on. Returns whether it had to.
   */
  order(waiter: Waiter, number: number): boolean {
    return this.lane(number).order(waiter);
  }

  /**
   * Moves all free memory of a lane into the lane of a stream that is ordered after it. Cost: as
   * much as the fewer blocks of the two, if the memory has `join`.
   */
  moveInto(lane: StreamLane, number: number): void {
    const from = this.lane(number);
    const { isIdle } = from;
    if (!(from instanceof StreamLane) || this.#memory.join === undefined) this.#memory.transfer(number, lane.number);
    else if (this.#memory.join(number, lane.number)) this.#exchangeNumbers(lane, from);
    // Memory that depends on nothing needs no event.
    if (!isIdle) lane.received();
  }

  /**
   * Moves more free memory that is available without blocking to a stream's merging lane: that of its
   * other lane first, then that of another lane, after a wait for it. With `isReady`, only memory that needs
   * no wait. Returns which stream's memory it was, or `undefined` if there was none.
   */
  joinNext(stream: Stream, isReady = false): 'own' | 'others' | undefined {
    const lane = this.mergingLaneOf(stream);
    const own = this.ownLaneOf(stream);
    const second = lane === own ? this.secondLaneOf(stream) : own;
    if (second !== undefined && !this.#memory.isEmpty(second.number)) {
      this.moveInto(lane, second.number);
      return 'own';
    }
    const other = isReady ? this.readyFullLane(stream) : this.fullLane(stream);
    if (other === none) return undefined;
    this.order(stream, other);
    this.moveInto(lane, other);
    return 'others';
  }

  /**
   * Makes streams that take memory of ended streams also wait for everything that another lane's
   * memory depends on.
   */
  orderEnded(number: number): void {
    this.#ended.dependOn(this.lane(number).cover());
  }

  lane(number: number): Lane {
    return this.#byNumber.get(number) as Lane;
  }

  laneNumbers(): number[] {
    return [...this.#common, ...this.#lanes].map(({ number }) => number);
  }

  /** The number of the lane of ended streams. */
  get endedLane(): number {
    return this.#ended.number;
  }

  /** Every lane of a stream that has not ended. */
  get lanes(): readonly StreamLane[] {
    return [...this.#lanes];
  }

  /**
   * Blocks until the device is idle if memory is held back for a stream on which no event can be
   * recorded because it may already be destroyed. Call it before `gather`. Host functions may run
   * meanwhile. Returns whether it waited.
   */
  synchronizeUnannounced(stream: Stream): boolean {
    const lanes = this.#heldBack(stream).filter((lane) => !lane.identity.announcesEnd);
    for (const device of new Set(lanes.map((lane) => deviceOf(lane.identity)))) device.synchronizeSync();
    return lanes.length > 0;
  }

  /**
   * Makes a stream wait for every lane with memory, including held ones, and moves all of it to one
   * lane of that stream. With `leavesCaptured`, memory stays where it is if it needs an event that
   * cannot be recorded because its stream is captured.
   */
  gather(stream: Stream, into: StreamLane, leavesCaptured = false): void {
    for (const number of this.laneNumbers()) {
      if (number === into.number || this.#memory.isEmpty(number)) continue;
      try {
        this.order(stream, number);
      } catch (error) {
        if (leavesCaptured && isCapturing(error)) continue;
        throw error;
      }
      this.moveInto(into, number);
    }
  }

  /**
   * Queries streams that memory is held for: all of them, or the next few if there are many. Does
   * not block. Returns whether any has become idle, or was and can now be taken from.
   */
  queryHeld(stream: Stream): boolean {
    return this.#shareIdle(mostQueried, stream);
  }

  /**
   * As `queryHeld`, but always queries all streams that memory is held for, in time linear in their
   * number.
   */
  queryAllHeld(stream: Stream): boolean {
    return this.#shareIdle(Number.POSITIVE_INFINITY, stream);
  }

  /**
   * Blocks until every stream that memory is held for is idle, so that all of the memory can be
   * taken. Returns the number of those streams, not counting captured ones, which cannot be waited
   * for. Host functions may run meanwhile, so the caller's state must be consistent.
   */
  synchronizeHeld(stream?: Stream): number {
    let synchronized = 0;
    for (const lane of this.#heldBack(stream)) {
      // A host function that ran during the previous wait may have ended the stream.
      if (lane.hasEnded) continue;
      try {
        if (lane.identity.announcesEnd) lane.identity.synchronizeSync();
        else deviceOf(lane.identity).synchronizeSync();
      } catch (error) {
        // A host function must not wait for a stream, so it gets no more memory.
        if (isNotPermitted(error)) break;
        // Nobody can wait for a captured stream, nor for its device.
        if (isCapturing(error)) continue;
        // A host function that ran during this wait may have ended the stream; its memory can then
        // be taken.
        if (!lane.hasEnded) throw error;
      }
      synchronized++;
    }
    this.#shareIdle(Number.POSITIVE_INFINITY);
    return synchronized;
  }

  needsLastEvent(identity: StreamIdentity): boolean {
    return this.#lanesOf(identity).some(
      (lane) => this.#memory.isAwaited?.(lane.number) || (lane.needsLastEvent && !this.#memory.isEmpty(lane.number)),
    );
  }

  streamEnded(identity: StreamIdentity, event: Event | undefined): void {
    for (const lane of this.#lanesOf(identity)) {
      const isAwaited = this.#memory.isAwaited?.(lane.number) === true;
      // When the stream last used that memory is unknown.
      if (isAwaited) lane.freeUnrecorded();
      if (isAwaited || !this.#memory.isEmpty(lane.number)) {
        const lastEvent = lane.afterEnd(event);
        if (lastEvent !== undefined) this.#ended.dependOn([lastEvent]);
        this.#memory.transfer(lane.number, this.#ended.number);
      }
      this.#memory.redirect?.(lane.number, this.#ended.number);
      this.#vacantNumbers.push(lane.number);
      this.#lanes.delete(lane);
      lane.hasEnded = true;
    }
    this.#shared[identity.slot] = undefined;
    this.#held[identity.slot] = undefined;
    this.#ended.forgetPastEventsIfMany();
  }

  /** Stops observing the ends of streams. */
  [Symbol.dispose](): void {
    for (const lane of this.#lanes) lane.identity.unobserve(this);
  }

  #lane(identity: StreamIdentity, isHeld: boolean): StreamLane {
    return (isHeld ? this.#held : this.#shared)[identity.slot] ?? this.#addLane(identity, isHeld);
  }

  #addLane(identity: StreamIdentity, isHeld: boolean): StreamLane {
    const number = this.#vacantNumbers.pop() ?? this.#memory.addLane();
    const lane = new StreamLane(number, identity, deviceOf(identity), isHeld, this.policy === 'eager');
    (isHeld ? this.#held : this.#shared)[identity.slot] = lane;
    this.#byNumber.set(lane.number, lane);
    this.#lanes.add(lane);
    this.#memory.share?.(lane.number, !isHeld);
    if (isHeld) this.#unshared.add(lane);
    identity.observe(this);
    return lane;
  }

  #exchangeNumbers(lane: StreamLane, other: StreamLane): void {
    [lane.number, other.number] = [other.number, lane.number];
    this.#byNumber.set(lane.number, lane);
    this.#byNumber.set(other.number, other);
  }

  #lanesOf({ slot }: StreamIdentity): StreamLane[] {
    return [this.#held[slot], this.#shared[slot]].filter((lane) => lane !== undefined);
  }

  /** The lanes with memory that another stream may not take yet. */
  #heldBack(stream: Stream | undefined): StreamLane[] {
    return this.lanes.filter((lane) => lane.isHeldBack && lane.identity !== stream?.identity && !this.#memory.isEmpty(lane.number));
  }

  #fullLane(own: number, second: number, passed = 0): number {
    if (this.#memory.fullLane === undefined) return this.#searchFullLane(own, second, passed);
    this.#shareIdle(mostLookedAt);
    for (;;) {
      const number = this.#memory.fullLane(own, second, passed);
      if (number === none || !this.#unshareHeldBack(number)) return number;
    }
  }

  #searchFullLane(own: number, second: number, passed: number): number {
    let left = passed;
    for (const lanes of [this.#common, this.#lanes]) {
      for (const { number, isHeldBack } of lanes) {
        if (number !== own && number !== second && !isHeldBack && !this.#memory.isEmpty(number) && left-- === 0) return number;
      }
    }
    return none;
  }

  /** Stops sharing a lane if its memory is held back. Returns whether it is. */
  #unshareHeldBack(number: number): boolean {
    const lane = this.lane(number);
    if (!lane.isHeldBack) return false;
    this.#memory.share?.(number, false);
    this.#unshared.add(lane as StreamLane);
    return true;
  }

  /**
   * Checks some of the unshared lanes, in turns, and shares those whose memory is no longer held
   * back. If a stream is given, first queries the lanes' streams. Returns whether it shared one
   * with memory.
   */
  #shareIdle(most: number, asking?: Stream): boolean {
    const turns = this.#unshared;
    if (most === Number.POSITIVE_INFINITY) turns.restart();
    const { unknownCount } = turns;
    let isIdle = false;
    for (let left = Math.min(most, asking === undefined ? unknownCount : turns.count); left > 0; left--) {
      const lane = turns.current;
      if (lane.hasEnded) {
        turns.remove();
        continue;
      }
      if (asking !== undefined && this.#becomesIdle(lane, asking)) isIdle = true;
      if (lane.isHeldBack || this.#memory.share === undefined) {
        turns.pass();
        continue;
      }
      turns.remove();
      this.#memory.share(lane.number, true);
      if (!this.#memory.isEmpty(lane.number)) isIdle = true;
    }
    return isIdle;
  }

  /** Queries the stream of a lane if another stream could then take from the lane. */
  #becomesIdle({ number, identity, isHeldBack }: StreamLane, asking: Stream): boolean {
    // A stream whose end is not announced may already be destroyed.
    if (!isHeldBack || identity === asking.identity || !identity.announcesEnd || this.#memory.isEmpty(number)) return false;
    return identity.isIdle();
  }
}

function deviceOf(identity: StreamIdentity): Device {
  return Device.get(identity.device);
}

function free(lane: StreamLane, isRecorded: boolean): void {
  if (isRecorded) lane.freeRecorded();
  else lane.freeUnrecorded();
}

/**
 * Checks the fence of a free on a stream.
 * @throws ArgumentRangeError for an unknown policy or an event that was not recorded on the stream;
 * LifetimeError for a disposed event.
 */
export function assertFence(fence: DeallocationFence, stream: Stream): void {
  if (fence instanceof Event) assertRecordedOn(fence, stream);
  else assertOneOf(fence, deallocationEventsWords, 'fence');
}

function assertRecordedOn(event: Event, stream: Stream): void {
  if (event.handle < 0) throw new LifetimeError('ERR_CISTERN_DISPOSED', 'fence must be a live event, got one that is already disposed');
  if (event.recordedOn === stream.identity.key) return;
  const found = event.recordedOn === undefined ? 'one that was never recorded' : 'one recorded on another stream';
  throw invalidValue(`fence must be an event recorded on stream ${stream.id}, got ${found}`);
}
