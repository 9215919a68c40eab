import type { Event } from '../driver/streams/event.js';
import type { StreamIdentity } from '../driver/streams/stream-identity.js';

/**
 * Events that lanes passed on with their memory. Each is in only one common lane, which disposes it
 * when it no longer needs it, because events can be created faster than the garbage collector collects
 * them.
 */
export const givenAway = new WeakSet<Event>();

/**
 * Something that can wait for events: a stream, or a lane whose stream may have no `Stream` object
 * left.
 */
export interface Waiter {
  readonly identity: StreamIdentity;
}

/**
 * Free memory with one order: a stream that uses it must first wait for the work that was queued
 * before it was freed.
 */
export interface Lane {
  /** Its number in the free-space index. Changes if the lane is joined with another. */
  readonly number: number;
  /** The stream that may use the memory immediately; undefined if it belongs to no stream. */
  readonly identity: StreamIdentity | undefined;
  /** Whether no other stream may take the memory now. */
  readonly isHeldBack: boolean;
  /** Whether everything that was queued before the frees is known to have run. */
  readonly isIdle: boolean;
  /**
   * Whether a stream that takes the memory now waits for nothing: everything that was queued before the frees has run. Asks the driver.
   */
  hasRun(): boolean;
  /**
   * Makes a stream wait for everything that was queued before the frees. Returns whether it had to.
   */
  order(waiter: Waiter): boolean;
  /** Events that cover everything that was queued before the frees, recorded now if necessary. */
  cover(): readonly Event[];
  /**
   * Removes the memory from the lane. Returns the events that cover it; the lane does not record
   * them again.
   */
  release(): readonly Event[];
}

/**
 * Whether an event is known to have completed. If the driver cannot query it, it counts as not
 * completed.
 */
export function isPast(event: Event): boolean {
  try {
    return event.query();
  } catch {
    return false;
  }
}
