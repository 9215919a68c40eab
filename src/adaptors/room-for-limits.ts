/**
 * How a limit makes room below it: memory that it counts may be idle, and then a layer below, such as a `SpillingResourceAdaptor`, can let it
 * leave. A limit asks before it refuses. The layers that can are known by a symbol, so limits need not know their classes.
 */
import type { CisternError, OutOfMemoryError } from '../basics/errors.js';
import { captureStatusOf } from '../driver/graphs/capture.js';
import type { Stream } from '../driver/streams/stream.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { layersOf } from './layers.js';
import { outOfMemoryThrough } from './pass-through/pass-through-adaptor.js';

/** On a layer that can free memory which is in use, but idle. */
export const roomGiver = Symbol('cistern.roomGiver');

/** @param resource the outermost one that the memory was allocated from */
export type Helps = (pointer: DevicePointer, resource: MemoryResource) => boolean;

export interface RoomGiver {
  /**
   * Frees allocations that help, if they have at least this many bytes together: `'given'`, or `'lacking'` if they have
   * fewer. `'refused'` if the device or the host did not let all of them go. Must not throw.
   */
  giveIfEnough(bytes: number, helps: Helps): 'given' | 'lacking' | 'refused';
  /** Why the last one that was to go could not, if the host had no memory for it. */
  readonly hostRefusal: CisternError | undefined;
}

/** Whether room was made; if not, why the host kept what could have gone. */
export interface RoomMade {
  readonly isGiven: boolean;
  readonly kept?: CisternError | undefined;
}

/** Lets idle memory go from a resource that helps a limit above it, if that is enough. */
export function makeRoomBelow(upstream: MemoryResource, bytes: number, stream: Stream, helps: Helps): RoomMade {
  // A captured stream cannot wait for the copies.
  if (captureStatusOf(stream.handle) !== 'none') return { isGiven: false };
  let kept: CisternError | undefined;
  for (const layer of layersOf(upstream)) {
    const giver = (layer as Partial<Record<typeof roomGiver, RoomGiver>>)[roomGiver];
    if (giver === undefined) continue;
    if (giver.giveIfEnough(bytes, helps) === 'given') return { isGiven: true };
    kept ??= giver.hostRefusal;
  }
  return { isGiven: false, kept };
}

/** The error of an allocation for which memory could not go, with both reasons. */
export function couldNotLeave(name: string, shortage: OutOfMemoryError, refusal: CisternError): OutOfMemoryError {
  const message = `${shortage.message}; and buffers could not leave: ${refusal.message}`;
  const cause = new AggregateError([shortage, refusal], 'neither the device nor the host has enough memory');
  return outOfMemoryThrough(name, shortage, shortage.requestedBytes, message, cause);
}
