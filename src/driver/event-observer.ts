import type { StreamIdentity } from './stream-identity.js';

/** Observes events. Its methods must not throw. */
export interface EventObserver {
  /** An event was recorded on a stream. `version` numbers the recordings of all events. */
  eventRecorded(identity: StreamIdentity, version: number): void;
  /** A stream waits for an event's latest recording. */
  eventAwaited(identity: StreamIdentity, version: number): void;
}

/**
 * Called for each recording of an event and each wait for one in this environment; `undefined` if
 * nobody observes.
 */
export let eventObserver: EventObserver | undefined;

/** Sets {@link eventObserver}. */
export function observeEvents(observer: EventObserver | undefined): void {
  eventObserver = observer;
}
