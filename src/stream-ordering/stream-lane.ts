import type { Device } from '../driver/device.js';
import { Event } from '../driver/streams/event.js';
import { StreamIdentity } from '../driver/streams/stream-identity.js';
import { none } from '../suballocation/blocks.js';
import { givenAway, isPast, type Lane, type Waiter } from './lane.js';

/**
 * A recording that the caller of a free made. It is valid until the event is recorded again or
 * disposed.
 */
interface CallerEvent {
  readonly event: Event;
  readonly version: number;
}

/**
 * Free memory with one order: after the frees on one stream, and after everything that the stream
 * had waited for when it took memory over.
 *
 * The lane's own stream may use the memory immediately. `order` makes another stream wait for the
 * work that was queued before the frees. The lane is in one of three states:
 *
 *     idle         no free yet, or the stream is known to have run everything since
 *     recorded     the lane's event, and one that a caller recorded: together they cover every free
 *     unrecorded   some free is covered by no event: the lane's event must be recorded before it is waited for
 *
 * A later record on a stream covers everything that an earlier one covers, so one event per lane is
 * enough. Recording late is always safe while the stream exists: others then wait for more, never
 * for less. `StreamOrdering` is notified before a stream ends, and moves its memory to the lane of
 * ended streams.
 */
export class StreamLane implements Lane {
  // The fields that every change of streams touches come first, in one or two cache lines.
  number: number;
  /** The owner number of the stream's allocations in the free-space index. */
  readonly owner: number;
  readonly identity: StreamIdentity;
  #isUnrecorded = false;
  /** How many synchronizations of the stream had begun at the last free. */
  #freedAt = -1;
  /**
   * Whether an event must be recorded at each free, because nobody will announce the end of the
   * stream.
   */
  readonly mustRecord: boolean;
  /** Whether a free without a fence records an event, because of the policy or of `mustRecord`. */
  readonly recordsFrees: boolean;
  /** Whether the memory serves only its own stream until that stream is known to be idle. */
  readonly isHeld: boolean;
  #isRecorded = false;
  #event: Event | undefined;
  #callerEvent: CallerEvent | undefined;
  readonly #device: Device;
  /** Whether memory was freed into it because a free asked to hold it for the stream. */
  isAskedFor = false;
  /** Whether the stream has ended: another lane then has the memory. */
  hasEnded = false;

  constructor(number: number, identity: StreamIdentity, device: Device, isHeld: boolean, isEager: boolean) {
    this.number = number;
    this.identity = identity;
    this.owner = identity.serial;
    this.#device = device;
    this.isHeld = isHeld;
    this.mustRecord = !isHeld && !identity.announcesEnd;
    this.recordsFrees = isEager || this.mustRecord;
  }

  get isIdle(): boolean {
    return this.identity.synchronized > this.#freedAt;
  }

  /**
   * Whether no other stream may take the memory now, either because it is held, or because a
   * missing event cannot be recorded: the stream may already be destroyed, or is captured.
   */
  get isHeldBack(): boolean {
    return (this.isHeld || (this.mustRecord && this.#isUnrecorded) || (this.identity.isCaptured && this.#needsEvent())) && !this.isIdle;
  }

  /** Whether an event must be recorded for the freed memory before the stream ends. */
  get needsLastEvent(): boolean {
    // The owner of a caller's event may record it again after the stream that could replace it has
    // ended.
    return !this.isIdle && this.#needsEvent();
  }

  /** V8: no private accessor. */
  #needsEvent(): boolean {
    return this.#isUnrecorded || this.#callerEvent !== undefined;
  }

  /**
   * Notes that memory is freed into the lane, and records an event for it immediately. If that
   * fails, the state is unchanged.
   */
  freeRecorded(): void {
    this.record();
    this.freeCovered();
  }

  /**
   * Notes that memory is freed into the lane, and that nothing was queued on its stream since
   * `record`.
   */
  freeCovered(): void {
    this.#freedAt = this.identity.synchronizing;
  }

  /**
   * Notes that memory is freed into the lane in its stream's order, and that no event covers it
   * yet.
   */
  freeUnrecorded(): void {
    this.#isUnrecorded = true;
    this.#freedAt = this.identity.synchronizing;
    // The stream may take the memory from here and free it into its other lane, with an older
    // event. (V8: explicit comparison.)
    if (this.isHeld === true) this.identity.outdateFences();
  }

  /**
   * Notes that memory which was allocated on the lane's stream is freed into the lane, and that the
   * caller has recorded an event for it on that stream.
   */
  freeWithEvent(event: Event): void {
    this.#freedAt = this.identity.synchronizing;
    const known = this.#callerEvent;
    // The event does not cover work that the stream has waited for since.
    if (event.version <= this.identity.receivedAt) this.#isUnrecorded = true;
    else if (known === undefined) this.#callerEvent = { event, version: event.version };
    // Which of the two recordings is later is unknown, but a late record covers both. Each
    // recording has its own number.
    else if (known.version !== event.version) this.#isUnrecorded = true;
  }

  /**
   * Notes that memory has come into the lane in its stream's order, from the upstream or from other
   * lanes. If a required event cannot be recorded, the memory is held back, because the stream may
   * be destroyed before the next attempt.
   */
  received(): void {
    this.freeUnrecorded();
    if (this.mustRecord) this.record();
  }

  /**
   * Queries whether the stream is idle; once it is known to be, every stream can take the memory
   * without an event. A failure of the query is ignored.
   */
  query(): void {
    this.identity.isIdle();
  }

  /** The event of the last free may have completed while the stream goes on with later work. */
  hasRun(): boolean {
    if (this.isIdle) return true;
    if (this.#isRecorded && !this.#needsEvent() && isPast(this.#event as Event)) return true;
    // A stream whose end is not announced may already be destroyed, and a captured one must not be asked.
    return this.identity.announcesEnd && !this.identity.isCaptured && this.identity.isIdle();
  }

  order({ identity }: Waiter): boolean {
    if (this.isIdle || identity === this.identity) return false;
    if (this.#isUnrecorded || (this.#callerEvent !== undefined && isLost(this.#callerEvent))) this.record();
    if (this.#isRecorded) identity.wait(this.#event as Event);
    if (this.#callerEvent !== undefined) identity.wait(this.#callerEvent.event);
    return true;
  }

  /**
   * One event, which the lane may record again later; none if the stream is known to have run
   * everything.
   */
  cover(): readonly Event[] {
    const event = this.#cover();
    return event === undefined ? [] : [event];
  }

  /**
   * The event that covers all frees when the stream has ended. `lastEvent` was recorded last on
   * the stream, if any lane needed it.
   */
  afterEnd(lastEvent: Event | undefined): Event | undefined {
    if (this.isIdle) return undefined;
    return lastEvent ?? this.#event;
  }

  /**
   * Removes the memory from the lane. Returns the event that covers all of it, which is not
   * recorded again, or none if the stream is known to have run everything. If the event cannot be
   * recorded, the state is unchanged.
   */
  release(): readonly Event[] {
    const event = this.#cover();
    if (event === undefined) return [];
    givenAway.add(event);
    this.#event = undefined;
    this.#isRecorded = false;
    this.#freedAt = -1;
    // The event also covers memory that is in use again.
    this.identity.outdateFences();
    return [event];
  }

  #cover(): Event | undefined {
    if (this.isIdle) return undefined;
    if (this.#needsEvent()) this.record();
    return this.#event;
  }

  /** Records the lane's event. It covers all of the lane's memory. */
  record(): void {
    const event = this.#event ?? this.#createEvent();
    // Written out, and the rest in a function that is not called under `'eager'` (V8: inlining).
    if (this.isHeld || this.#isUnrecorded || this.#callerEvent !== undefined) this.#countRelease();
    // A recording that fails may destroy the previous one.
    if (this.#isRecorded) this.#isUnrecorded = true;
    event.recordOn(this.identity, 1);
    this.#isRecorded = true;
    this.#isUnrecorded = false;
    this.#callerEvent = undefined;
  }

  /** Before an event is recorded: other streams may take the memory from then on. */
  #countRelease(): void {
    if (this.isHeldBack) StreamIdentity.releases++;
  }

  #createEvent(): Event {
    this.#event = new Event({ device: this.#device });
    return this.#event;
  }
}

/** Means "no lane yet" until the first call. Its methods are never called. */
export const noLane = Object.freeze({ number: none, owner: none }) as StreamLane;

function isLost({ event, version }: CallerEvent): boolean {
  return event.version !== version || event.handle < 0;
}
