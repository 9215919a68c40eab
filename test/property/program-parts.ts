import type { CachingMemoryResource, DevicePointer, Event, Stream } from '../../src/index.js';
import type { Place } from './driver-model.js';
import type { Probe } from './probe.js';
import type { StreamKind } from './program.js';

/** A stream of a program. */
export interface StreamSlot {
  readonly stream: Stream;
  readonly kind: StreamKind;
  /** Destroys a stream that was made elsewhere. */
  readonly destroy: (() => void) | undefined;
  /** What was recorded last on it, once it has ended. */
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
  /** What it came from. */
  readonly from: Probe;
  /** How many there were before. */
  readonly serial: number;
  /** The run of a cache that takes it back. */
  scope: Scope | undefined;
  /** Where it was allocated, or written last. */
  writer: Token;
  /** Where it was read since. */
  readers: Token[];
  /** Whether it was used at all. */
  isUsed: boolean;
  /** What its first and its last bytes are, if they were written. */
  value: number | undefined;
}

/** A run of a cache. */
export interface Scope {
  readonly cache: CachingMemoryResource;
  /** Whether nothing is above the cache, which could take memory elsewhere. */
  readonly isTop: boolean;
}
