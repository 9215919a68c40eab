import type { Device } from './driver/device.js';
import type { Event } from './driver/event.js';
import type { MemoryKind } from './driver/plain-memory.js';
import type { Stream } from './driver/stream.js';
import { optionNames } from './validation.js';

/** The address of memory that a device can reach: a safe integer. `0` is the null pointer, which zero bytes give. */
export type DevicePointer = number;

/**
 * What a resource that keeps freed memory does so that another stream can have it.
 *
 * | value | at a free | when another stream wants the block |
 * |---|---|---|
 * | `'eager'` | an event is recorded on the freeing stream | that stream waits for the event |
 * | `'deferred'` | nothing | an event is recorded on the freeing stream then, and waited for |
 * | `'off'` | nothing | never: the block serves its own stream until that is known to be idle, or memory runs out |
 */
export type DeallocationEvents = 'eager' | 'deferred' | 'off';

/**
 * Overrides the policy of the resources below for one free: a policy, or an event that the caller recorded on the freeing stream once that was
 * ordered after every use of the memory, so that a batch of frees shares one. Resources rely on the event if they can tell that it covers
 * everything: if the memory was allocated on the freeing stream, and the stream has waited for nothing since the record. Else they do what
 * `'deferred'` says.
 */
export type DeallocationFence = DeallocationEvents | Event;

/** The option that every adaptor has. */
export interface DeallocationEventsOption {
  /**
   * For a resource that keeps memory back: what it does at a free. For one that passes calls on: what it asks of the resources below for
   * every free that passes through. A fence given with a call wins, then the outermost adaptor that sets this, then the pooling resource's own.
   * @defaultValue `'eager'` for a resource that keeps memory back, else not set
   */
  readonly deallocationEvents?: DeallocationEvents;
}

/** @internal */
export const deallocationEventsOptionNames = optionNames<DeallocationEventsOption>({ deallocationEvents: true });

/**
 * Allocates and frees memory in stream order. Implemented by upstream resources and by adaptors, which take another resource; and by
 * anybody else, in TypeScript.
 *
 * Memory may be used on the stream it was allocated on, and on streams that were ordered after it. Freed memory may be reused in the order
 * of the stream it was freed on, which must be ordered after every use.
 *
 * Counterpart of the `cuda::mr::resource` concept and `rmm::device_async_resource_ref`.
 */
export interface MemoryResource extends Disposable {
  /** Who can reach the memory. */
  readonly memoryKind: MemoryKind;
  /**
   * The device that the memory belongs to. Memory of kind `'device'` serves the streams of this device alone; any other kind those of every
   * device, and this is where it was allocated.
   */
  readonly device: Device;

  /**
   * Memory of at least `bytes` bytes, ordered on `stream`.
   * @param bytes an integer from 0 to 2^53 - 1; 0 gives the null pointer
   * @param alignment a power of two; at least 256 is given in any case
   * @defaultValue alignment 256
   * @throws OutOfMemoryError where there is none; everything is as before.
   * @throws ArgumentRangeError, ArgumentTypeError for an argument that is none of the above.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the resource or the stream is disposed.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer;

  /**
   * Gives memory back, in the order of `stream`. Freeing the null pointer does nothing.
   * @param bytes what was asked for at the allocation
   * @param fence overrides what the resources below do about events
   * @throws LifetimeError for a pointer that is not live here, or with another size; nothing is freed then.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void;

  /** Whether each may free what the other allocated. */
  isEqual(other: MemoryResource): boolean;
}

/** A resource that can say how much it holds of the memory below: upstream resources, and whatever keeps memory. */
export interface ReservingMemoryResource extends MemoryResource {
  /** Bytes it holds, used or not. */
  readonly reservedBytes: number;
  /** The most it held since it was made, or since `resetPeakReservedBytes`. */
  readonly peakReservedBytes: number;
  /** Lets the peak begin again at what is held now. */
  resetPeakReservedBytes(): void;
}

/** Options of {@link TrimmingMemoryResource.trim}. */
export interface TrimOptions {
  /**
   * Bytes that the resource keeps in any case.
   * @defaultValue 0
   */
  readonly bytesToKeep?: number;
}

/** @internal */
export const trimOptionNames = optionNames<TrimOptions>({ bytesToKeep: true });

/** A resource that keeps memory which nobody uses, and can be asked to give it back. */
export interface TrimmingMemoryResource extends MemoryResource {
  /**
   * Gives memory that nobody uses back to the resource below, or to the device, in the order of `stream`.
   * @returns the bytes given back
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the resource or the stream is disposed.
   */
  trim(stream: Stream, options?: TrimOptions): number;
}

/** A resource that is built on another. */
export interface MemoryResourceAdaptor extends MemoryResource {
  /** The resource below. Counterpart of `get_upstream_resource`. */
  readonly upstream: MemoryResource;
  /** What it takes memory from besides `upstream`: a fallback, the bins of a binning resource. Not set where there is nothing. */
  readonly alternates?: readonly MemoryResource[];
}
