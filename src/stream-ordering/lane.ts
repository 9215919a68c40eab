import type { Event } from '../driver/streams/event.js';
import type { StreamIdentity } from '../driver/streams/stream-identity.js';

/**
 * Events that lanes gave away with their memory. Only one common lane has each of them, and it disposes
 * them when it needs them no longer: many can come faster than they are collected.
 */
export const givenAway = new WeakSet<Event>();

/** What can be made to wait: a stream, or a lane whose stream may have no `Stream` object left. */
export interface Waiter {
  readonly identity: StreamIdentity;
}

/**
 * Free memory that has one order: whoever uses it must first wait for what was queued before it was
 * freed.
 */
export interface Lane {
  /** Its number in the free-space index. Changes if the lane is joined with another. */
  readonly number: number;
  /** The stream that may use the memory at once; undefined if it belongs to no stream. */
  readonly identity: StreamIdentity | undefined;
  /** Whether no other stream may take the memory now. */
  readonly isHeldBack: boolean;
  /** Whether everything that was queued before the frees is known to have run. */
  readonly isIdle: boolean;
  /**
   * Makes a stream wait for everything that was queued before the frees. Returns whether it had to.
   */
  order(waiter: Waiter): boolean;
  /** Events that cover everything that was queued before the frees, recorded now if necessary. */
  cover(): readonly Event[];
  /**
   * The memory leaves the lane. Returns the events that cover it; the lane does not record them
   * again.
   */
  release(): readonly Event[];
}
