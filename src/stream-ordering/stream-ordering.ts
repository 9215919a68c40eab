/**
 * Which stream may reuse a freed block, and what it must wait for first: the one place for every adaptor that keeps memory back.
 *
 * A keeper has a free-space index with lanes, and one of these. Every stream that it meets gets a lane of its own (two, if frees with and
 * without events are mixed on it). Memory freed on a stream goes to its lane, and the stream takes from there without waiting. When the lane
 * has nothing that fits, the keeper takes from other lanes, in the order that `others` gives, after `order` made the stream wait.
 *
 *     stream 1 -> lane 0 [ free blocks ]   recorded
 *     stream 2 -> lane 1 [ free blocks ]   unrecorded
 *     (ended)     lane 2 [ free blocks ]   events e1, e2
 *
 * Rules, each with a test that fails without it:
 *  - a lane that takes over another's blocks carries the dependency on (rapidsai/rmm#2489): it counts as unrecorded from then on, and its own
 *    later record covers the wait that came before it;
 *  - memory fresh from the upstream is ordered on its stream like a free (part of rapidsai/rmm#2507);
 *  - streams are told apart by timeline, never by handle (rapidsai/rmm#2251);
 *  - when a stream ends, its lanes are settled by one event and their blocks go to the lane of ended streams (rapidsai/rmm#510);
 *  - on a stream whose end nobody promised to announce, an event is recorded at every free, because later may be too late (rapidsai/rmm#649).
 */
import type { Device } from '../driver/device.js';
import { Event } from '../driver/event.js';
import { notPermittedStatus } from '../driver/status.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/stream.js';
import type { StreamObserver, StreamTimeline } from '../driver/stream-timeline.js';
import { ArgumentRangeError, DriverError, LifetimeError } from '../errors.js';
import type { DeallocationEvents, DeallocationFence } from '../memory-resource.js';
import { assertOneOf } from '../validation.js';
import { Lane } from './lane.js';

/** The words that the option `deallocationEvents` takes. */
export const deallocationEventsWords: readonly DeallocationEvents[] = ['eager', 'deferred', 'off'];

/** What stream ordering needs of a free-space index. */
export interface LaneMemory {
  addLane(): number;
  isEmpty(lane: number): boolean;
  transfer(from: number, to: number): void;
}

export class StreamOrdering implements StreamObserver {
  /** What a free without a fence does. */
  readonly policy: DeallocationEvents;
  readonly #isEager: boolean;
  readonly #memory: LaneMemory;
  readonly #device: Device;
  /** By the slot of the stream: the lane for frees whose memory other streams may wait for, and the lane for those held for the stream. */
  readonly #shared: (Lane | undefined)[] = [];
  readonly #held: (Lane | undefined)[] = [];
  /** Every lane of a stream that has not ended. */
  readonly #lanes: Lane[] = [];
  readonly #vacantNumbers: number[] = [];
  /** The lane of ended streams, and what has to be waited for before its blocks are used. */
  readonly #endedLane: number;
  #endedEvents: Event[] = [];

  constructor(policy: DeallocationEvents, memory: LaneMemory, device: Device) {
    assertOneOf(policy, deallocationEventsWords, 'deallocationEvents');
    this.policy = policy;
    this.#isEager = policy === 'eager';
    this.#memory = memory;
    this.#device = device;
    this.#endedLane = memory.addLane();
  }

  /**
   * The lane that a stream takes from first, and that its frees without a fence go to.
   * @throws ArgumentTypeError, LifetimeError for what is not a stream of the keeper's device that is live.
   */
  laneOf(stream: Stream, operation: string): Lane {
    assertStream(stream, operation);
    assertStreamOf(stream, this.#device);
    return this.#lane(stream.timeline, this.policy === 'off');
  }

  /** The other lane of a stream, if it has one. It takes from there without waiting, too. */
  secondLaneOf(stream: Stream): Lane | undefined {
    return (this.policy === 'off' ? this.#shared : this.#held)[stream.timeline.slot];
  }

  /** Does at a free without a fence what the policy says. `lane` is the stream's own. */
  freed(lane: Lane): void {
    free(lane, this.#isEager);
  }

  /**
   * Does at a free what its fence says, and returns the lane that the memory belongs to now.
   * @throws ArgumentRangeError for an event that was not recorded on the stream; LifetimeError for one that is disposed.
   */
  freedWith(fence: DeallocationFence, stream: Stream): Lane {
    if (fence instanceof Event) {
      assertRecordedOn(fence, stream);
      const lane = this.#lane(stream.timeline, false);
      if (lane.mustRecord) lane.freeRecorded();
      else lane.freeWithRecording(fence);
      return lane;
    }
    assertOneOf(fence, deallocationEventsWords, 'fence');
    const lane = this.#lane(stream.timeline, fence === 'off');
    free(lane, fence === 'eager');
    return lane;
  }

  /**
   * Calls `visit` with the number of every other lane that is not empty and may be taken from, those of ended streams first, until it
   * returns true. Returns whether it did.
   */
  others(stream: Stream, visit: (lane: number) => boolean): boolean {
    if (!this.#memory.isEmpty(this.#endedLane) && visit(this.#endedLane)) return true;
    for (const lane of this.#lanes) {
      if (lane.timeline === stream.timeline || this.#memory.isEmpty(lane.number)) continue;
      if (lane.isHeld && !lane.isIdle) continue;
      if (visit(lane.number)) return true;
    }
    return false;
  }

  /** Makes a stream wait for everything that a lane's memory depends on. Returns whether it had to. */
  order(stream: Stream, number: number): boolean {
    if (number !== this.#endedLane) return (this.#lanes.find((lane) => lane.number === number) as Lane).order(stream);
    this.#forgetPastEvents();
    for (const event of this.#endedEvents) stream.wait(event);
    return this.#endedEvents.length > 0;
  }

  /** The numbers of all lanes. */
  laneNumbers(): number[] {
    return [this.#endedLane, ...this.#lanes.map((lane) => lane.number)];
  }

  /** Makes a stream wait for every lane with memory, held ones too, and moves all of it to one lane of that stream. */
  gather(stream: Stream, into: Lane): void {
    // No event can be recorded for what is held for a stream that may be gone.
    if (this.#heldBack(stream).some((lane) => !lane.timeline.announcesEnd)) this.#device.synchronizeSync();
    for (const number of this.laneNumbers()) {
      if (number === into.number || this.#memory.isEmpty(number)) continue;
      this.order(stream, number);
      this.#memory.transfer(number, into.number);
      into.received();
    }
  }

  /**
   * Asks the stream of a lane whether it is idle: once that is known, every stream can take the lane's memory without an event. It does not
   * matter if the driver does not tell.
   */
  queryOwn(lane: Lane): void {
    try {
      lane.timeline.query();
    } catch (error) {
      if (!(error instanceof DriverError)) throw error;
    }
  }

  /** Asks every stream that memory is held for whether it is idle by now. Does not block. Returns whether any is. */
  queryHeld(stream: Stream): boolean {
    let found = false;
    // A stream whose end is not announced may be gone.
    for (const lane of this.#heldBack(stream)) if (lane.timeline.announcesEnd && lane.timeline.query()) found = true;
    return found;
  }

  /**
   * Blocks until every stream that memory is held for is idle, so that all of it can be taken. Returns how many streams that were. The caller's
   * state must be whole: host functions may run meanwhile.
   */
  synchronizeHeld(stream: Stream): number {
    let synchronized = 0;
    for (const lane of this.#heldBack(stream)) {
      // A host function that ran during the wait before may have ended the stream.
      if (!this.#lanes.includes(lane)) continue;
      try {
        if (lane.timeline.announcesEnd) lane.timeline.synchronizeSync();
        else this.#device.synchronizeSync();
      } catch (error) {
        // A host function must not wait for a stream: for it, there is no more memory.
        if (error instanceof DriverError && error.driverStatus === notPermittedStatus) break;
        throw error;
      }
      synchronized++;
    }
    return synchronized;
  }

  needsSettlement(timeline: StreamTimeline): boolean {
    return this.#lanesOf(timeline).some((lane) => lane.needsSettlement && !this.#memory.isEmpty(lane.number));
  }

  streamEnded(timeline: StreamTimeline, event: Event | undefined): void {
    for (const lane of this.#lanesOf(timeline)) {
      if (!this.#memory.isEmpty(lane.number)) {
        const settlement = lane.settle(event);
        if (settlement !== undefined && !this.#endedEvents.includes(settlement)) this.#endedEvents.push(settlement);
        this.#memory.transfer(lane.number, this.#endedLane);
      }
      this.#vacantNumbers.push(lane.number);
      this.#lanes.splice(this.#lanes.indexOf(lane), 1);
    }
    this.#shared[timeline.slot] = undefined;
    this.#held[timeline.slot] = undefined;
    this.#forgetPastEvents();
  }

  /** Stops listening for the ends of streams. */
  [Symbol.dispose](): void {
    for (const lane of this.#lanes) lane.timeline.unobserve(this);
  }

  #lane(timeline: StreamTimeline, isHeld: boolean): Lane {
    const lanes = isHeld ? this.#held : this.#shared;
    const known = lanes[timeline.slot];
    if (known !== undefined) return known;
    const lane = new Lane(this.#vacantNumbers.pop() ?? this.#memory.addLane(), timeline, this.#device, isHeld);
    lanes[timeline.slot] = lane;
    this.#lanes.push(lane);
    timeline.observe(this);
    return lane;
  }

  #lanesOf(timeline: StreamTimeline): Lane[] {
    return this.#lanes.filter((lane) => lane.timeline === timeline);
  }

  /** The lanes with memory that another stream may not take yet. */
  #heldBack(stream: Stream): Lane[] {
    return this.#lanes.filter(
      (lane) => lane.isHeld && !lane.isIdle && lane.timeline !== stream.timeline && !this.#memory.isEmpty(lane.number),
    );
  }

  #forgetPastEvents(): void {
    if (this.#endedEvents.length > 0) this.#endedEvents = this.#endedEvents.filter((event) => !isPast(event));
  }
}

function free(lane: Lane, isEager: boolean): void {
  if (isEager || lane.mustRecord) lane.freeRecorded();
  else lane.freeUnrecorded();
}

/** Whether an event is known to be over. One that the driver does not tell of is waited for like any other. */
function isPast(event: Event): boolean {
  try {
    return event.query();
  } catch {
    return false;
  }
}

function assertRecordedOn(event: Event, stream: Stream): void {
  if (event.handle < 0) throw new LifetimeError('ERR_CISTERN_DISPOSED', 'fence is an event that is already disposed');
  if (event.recordedOn === stream.timeline.id) return;
  const found = event.recordedOn === undefined ? 'one that was never recorded' : `one recorded on stream ${event.recordedOn}`;
  throw new ArgumentRangeError(`fence must be an event recorded on stream ${stream.id}, got ${found}`, 'ERR_INVALID_ARG_VALUE');
}
