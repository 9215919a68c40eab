import { DriverError } from '../basics/errors.js';
import { Device } from '../driver/device.js';
import { Event } from '../driver/streams/event.js';
import type { StreamIdentity } from '../driver/streams/stream-identity.js';
import { givenAway, isPast, type Lane, type Waiter } from './lane.js';

/**
 * If there are more events than this, one event replaces them as soon as a stream has waited for
 * all of them.
 */
const maximumEvents = 8;

/**
 * Free memory that belongs to no stream. A stream that takes it first waits for the lane's events,
 * at most one per stream.
 */
export class CommonLane implements Lane {
  readonly number: number;
  readonly identity = undefined;
  readonly isHeldBack = false;
  #events: readonly Event[] = [];
  /**
   * With this many events, the lane looks for completed ones: twice as many as were left the last
   * time.
   */
  #sweepCount = maximumEvents;

  constructor(number: number) {
    this.number = number;
  }

  get isIdle(): boolean {
    this.forgetPastEvents();
    return this.#events.length === 0;
  }

  hasRun(): boolean {
    return this.isIdle;
  }

  order({ identity }: Waiter): boolean {
    this.forgetPastEvents();
    for (const event of this.#events) if (event.recordedOn !== identity.key) identity.wait(event);
    if (this.#events.length > maximumEvents) this.#unite(identity);
    return this.#events.length > 0;
  }

  cover(): readonly Event[] {
    return this.#events;
  }

  /**
   * Adds memory that these events cover. Of two events of one stream, the later recording covers
   * both.
   */
  dependOn(events: readonly Event[]): void {
    if (events.length === 0) return;
    const latest = new Map<number | Event, Event>();
    for (const event of [...this.#events, ...events]) {
      const key = event.recordedOn ?? event;
      const known = latest.get(key);
      if (known !== undefined && known.version >= event.version) continue;
      if (known !== undefined) forget(known);
      latest.set(key, event);
    }
    this.#events = [...latest.values()];
  }

  /** Removes the memory from the lane. Returns the events that cover it. */
  release(): readonly Event[] {
    const events = this.#events;
    this.#events = [];
    return events;
  }

  forgetPastEvents(): void {
    if (this.#events.length === 0) return;
    this.#events = this.#events.filter((event) => {
      if (!isPast(event)) return true;
      forget(event);
      return false;
    });
    this.#sweepCount = Math.max(maximumEvents, 2 * this.#events.length);
  }

  /** Forgets completed events if many have been added since the last time. */
  forgetPastEventsIfMany(): void {
    if (this.#events.length >= this.#sweepCount) this.forgetPastEvents();
  }

  /**
   * Replaces the events that a stream has just waited for with one event. If it cannot be recorded,
   * they stay.
   */
  #unite(identity: StreamIdentity): void {
    const event = new Event({ device: Device.get(identity.device) });
    try {
      event.recordOn(identity, 1);
    } catch (error) {
      if (!(error instanceof DriverError)) throw error;
      return;
    }
    for (const past of this.#events) forget(past);
    givenAway.add(event);
    this.#events = [event];
  }
}

/**
 * Releases the driver's event now, not when the object is collected, because nothing needs it any
 * more.
 */
function forget(event: Event): void {
  if (givenAway.has(event)) event.dispose();
}
