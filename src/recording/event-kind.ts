/**
 * The kind of an event in a log. The comment at each kind gives the meaning of `first` and
 * `second`.
 */
export const EventKind = {
  /** Pointer, bytes. The time is taken after the resource has allocated. */
  allocate: 1,
  /** Pointer, bytes. The time is taken before the resource frees. */
  free: 2,
  /** 0, requested bytes. Above 2^53 bytes, `first` holds the exact size minus `second`. */
  failure: 3,
  /** Pointer, bytes of a block that the layer took from its upstream to serve allocations from. */
  growth: 4,
  /** Pointer, bytes of a block that the layer returned to its upstream. */
  release: 5,
  /** Number of the event's recording, 0: an event was recorded on the stream. */
  eventRecord: 6,
  /** Number of the event's recording, 0: the stream waits for that event. */
  eventWait: 7,
  /** Phase, 0: a named phase begins. Phases may overlap in asynchronous code. */
  phaseBegin: 8,
  /** Phase, 0; or 1 for the capture of a graph that was abandoned. */
  phaseEnd: 9,
  /** Pointer, label: names the live allocation of the layer at the pointer. */
  label: 10,
} as const;

export type EventKind = (typeof EventKind)[keyof typeof EventKind];
