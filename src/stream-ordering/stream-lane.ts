import type { Device } from '../driver/device.js';
import { Event } from '../driver/event.js';
import type { StreamTimeline } from '../driver/stream-timeline.js';
import { none } from '../suballocation/blocks.js';
import type { Lane, Waiter } from './lane.js';

/** A recording made by the caller of a free. It stands as long as the event is neither recorded again nor disposed. */
interface Recording {
  readonly event: Event;
  readonly version: number;
}

/**
 * Free memory with one order: what was freed on one stream, and what that stream had waited for when it took memory over.
 *
 * The lane's own stream may use the memory at once. For another stream, `order` makes it wait for what was queued at the frees. What has to be
 * waited for is always one of these:
 *
 *     nothing      no free yet, or the stream is known to have run everything since
 *     recorded     the lane's event, and one that a caller recorded: together they cover every free
 *     unrecorded   some free is covered by no event: the lane's event must be recorded before it is waited for
 *
 * A later record on a stream covers everything that an earlier one covers, so one event for each lane is enough, and recording late is always
 * safe while the stream exists: it waits for more, never for less. The end of a stream is announced; `StreamOrdering` settles its lanes then.
 */
export class StreamLane implements Lane {
  readonly number: number;
  readonly timeline: StreamTimeline;
  /** Whom the stream's allocations belong to, in the free-space index. */
  readonly owner: number;
  /** Whether the memory serves its own stream alone until that is known to be idle. */
  readonly isHeld: boolean;
  /** Whether later may be too late to record an event, because nobody will announce the end of the stream. */
  readonly mustRecord: boolean;
  readonly #device: Device;
  #event: Event | undefined;
  #recording: Recording | undefined;
  #isUnrecorded = false;
  #isRecorded = false;
  /** How many synchronizations of the stream had begun at the last free. */
  #freedAt = -1;

  constructor(number: number, timeline: StreamTimeline, device: Device, isHeld: boolean) {
    this.number = number;
    this.timeline = timeline;
    this.owner = timeline.serial;
    this.#device = device;
    this.isHeld = isHeld;
    this.mustRecord = !isHeld && !timeline.announcesEnd;
  }

  get isIdle(): boolean {
    return this.timeline.synchronized > this.#freedAt;
  }

  /**
   * Whether no other stream can have the memory now: it is held, or an event that had to be recorded could not be, and the stream may be gone.
   */
  get isHeldBack(): boolean {
    return (this.isHeld || (this.mustRecord && this.#isUnrecorded)) && !this.isIdle;
  }

  /** Whether the end of the stream must be preceded by a record for what was freed. */
  get needsSettlement(): boolean {
    // An event that a caller recorded may be recorded again by its owner, when the stream that could replace it is gone.
    return !this.isIdle && (this.#isUnrecorded || this.#recording !== undefined);
  }

  /** Memory is freed into the lane, and an event is recorded for it at once. Where that fails nothing has changed. */
  freeRecorded(): void {
    this.#record();
    this.#freedAt = this.timeline.synchronizing;
  }

  /** Memory is freed into the lane in its stream's order, and no event covers it yet. */
  freeUnrecorded(): void {
    this.#isUnrecorded = true;
    this.#freedAt = this.timeline.synchronizing;
    // The stream may take it from here and free it into its other lane, with an event older than this.
    if (this.isHeld) this.timeline.outdateFences();
  }

  /**
   * Memory that was allocated on the lane's stream is freed into the lane, and the caller has recorded an event for it on that stream.
   */
  freeWithRecording(event: Event): void {
    this.#freedAt = this.timeline.synchronizing;
    const known = this.#recording;
    // What the stream has waited for since, the event does not cover.
    if (event.version <= this.timeline.receivedAt) this.#isUnrecorded = true;
    else if (known === undefined) this.#recording = { event, version: event.version };
    // Which of two recordings is the later one is not known: a late record covers both. No two recordings have one number.
    else if (known.version !== event.version) this.#isUnrecorded = true;
  }

  /**
   * Memory has come into the lane already, in its stream's order: fresh from the upstream, or taken over from other lanes. Where an event
   * cannot be recorded though it must, the memory is held back: the stream may be gone when it is tried again.
   */
  received(): void {
    this.freeUnrecorded();
    if (this.mustRecord) this.#record();
  }

  /**
   * Asks the stream whether it is idle: once that is known, every stream can take the memory without an event. It does not matter if the driver does
   * not tell.
   */
  query(): void {
    this.timeline.isIdle();
  }

  order({ timeline }: Waiter): boolean {
    if (this.isIdle || timeline === this.timeline) return false;
    if (this.#isUnrecorded || (this.#recording !== undefined && isLost(this.#recording))) this.#record();
    if (this.#isRecorded) timeline.wait(this.#event as Event);
    if (this.#recording !== undefined) timeline.wait(this.#recording.event);
    return true;
  }

  /** One event, which the lane may record again later; none if the stream is known to have run everything. */
  cover(): readonly Event[] {
    const event = this.#cover();
    return event === undefined ? [] : [event];
  }

  /** The event that covers everything freed, once the stream has ended; `settlement` was recorded last on it, where any lane needed that. */
  settle(settlement: Event | undefined): Event | undefined {
    if (this.isIdle) return undefined;
    return settlement ?? this.#event;
  }

  /**
   * The memory leaves the lane: returns the event that covers all of it, which is not recorded again, or undefined where the stream is known
   * to have run everything. Where the event cannot be recorded nothing has changed.
   */
  release(): Event | undefined {
    const event = this.#cover();
    if (event === undefined) return undefined;
    this.#event = undefined;
    this.#isRecorded = false;
    this.#freedAt = -1;
    // The event covered memory that is in use again, too.
    this.timeline.outdateFences();
    return event;
  }

  #cover(): Event | undefined {
    if (this.isIdle) return undefined;
    if (this.#isUnrecorded || this.#recording !== undefined) this.#record();
    return this.#event;
  }

  #record(): void {
    this.#event ??= new Event({ device: this.#device });
    try {
      this.#event.recordOn(this.timeline);
    } catch (error) {
      // A recording that is refused may have been the end of the one before, too.
      if (this.#isRecorded) this.#isUnrecorded = true;
      throw error;
    }
    this.#isRecorded = true;
    this.#isUnrecorded = false;
    this.#recording = undefined;
  }
}

/** Stands for "no lane yet" until the first call: nothing is ever asked of it. */
export const noLane = Object.freeze({ number: none, owner: none }) as StreamLane;

function isLost({ event, version }: Recording): boolean {
  return event.version !== version || event.handle < 0;
}
