import type { StreamTimeline } from './stream-timeline.js';

/** Who wants to know of events. Calls must not throw. */
export interface EventObserver {
  /** An event was recorded on a stream. `version` is the number of that recording, of all events'. */
  eventRecorded(timeline: StreamTimeline, version: number): void;
  /** A stream waits for what an event recorded last. */
  eventAwaited(timeline: StreamTimeline, version: number): void;
}

/** Told of every event of this environment that is recorded or waited for; `undefined` while nobody wants to know. */
export let eventObserver: EventObserver | undefined;

/** Sets {@link eventObserver}. */
export function observeEvents(observer: EventObserver | undefined): void {
  eventObserver = observer;
}
