import type { StreamIdentity } from './stream-identity.js';

/** Observes events. Its methods must not throw. */
export interface EventObserver {
  /** An event was recorded on a stream. `version` numbers the recordings of all events. */
  eventRecorded(identity: StreamIdentity, version: number): void;
  /** A stream waits for an event's latest recording. */
  eventAwaited(identity: StreamIdentity, version: number): void;
}

let observers: readonly EventObserver[] = [];

const everyObserver: EventObserver = {
  eventRecorded: (identity, version) => {
    for (const observer of observers) observer.eventRecorded(identity, version);
  },
  eventAwaited: (identity, version) => {
    for (const observer of observers) observer.eventAwaited(identity, version);
  },
};

/**
 * Called for each recording of an event, and each wait for one, in this environment; `undefined` if
 * there are no observers.
 */
export let eventObserver: EventObserver | undefined;

/** Adds an observer. */
export function observeEvents(observer: EventObserver): void {
  setObservers([...observers, observer]);
}

/** Removes an observer. */
export function unobserveEvents(observer: EventObserver): void {
  setObservers(observers.filter((each) => each !== observer));
}

function setObservers(all: readonly EventObserver[]): void {
  observers = all;
  eventObserver = all.length > 1 ? everyObserver : all[0];
}
