import type { CachingMemoryResource, DevicePointer, Event, Stream } from '../../src/index.js';
import type { Place } from './driver-model.js';
import type { Probe } from './probe.js';
import type { StreamKind } from './program.js';

/** A stream of a program. */
export interface StreamSlot {
  readonly stream: Stream;
  readonly kind: StreamKind;
  /** Destroys a stream that was created elsewhere. */
  readonly destroy: (() => void) | undefined;
  /** The last event recorded on it, if it has ended. */
  last: Event | undefined;
}

/** A place on a stream of the program. */
export interface Token {
  readonly slot: StreamSlot;
  readonly place: Place;
}

export interface Allocation {
  readonly pointer: DevicePointer;
  readonly bytes: number;
  readonly stream: StreamSlot;
  /** The resource that it came from. */
  readonly from: Probe;
  /** The number of allocations before it. */
  readonly serial: number;
  /** The run of a cache that takes it back. */
  scope: Scope | undefined;
  /** Where it was allocated, or last written. */
  writer: Token;
  /** Where it was read since. */
  readers: Token[];
  /** Whether it was used at all. */
  isUsed: boolean;
  /** The value of its first and last bytes, if they were written. */
  value: number | undefined;
}

/** A run of a cache. */
export interface Scope {
  readonly cache: CachingMemoryResource;
  /** Whether nothing above the cache could take memory elsewhere. */
  readonly isTop: boolean;
}
