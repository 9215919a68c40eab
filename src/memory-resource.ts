import { ArgumentRangeError, ArgumentTypeError, formatValue } from './basics/errors.js';
import { optionNames } from './basics/validation.js';
import type { Device } from './driver/device.js';
import type { MemoryKind } from './driver/memory/plain-memory.js';
import type { Event } from './driver/streams/event.js';
import type { Stream } from './driver/streams/stream.js';

/**
 * The address of memory that a device can access: a safe integer. `0` is the null pointer, the
 * result of allocating zero bytes.
 */
export type DevicePointer = number;

/**
 * How a resource that keeps freed memory makes it usable on another stream.
 *
 * | value | at a free | when another stream wants the block |
 * |---|---|---|
 * | `'eager'` | an event is recorded on the freeing stream | that stream waits for the event |
 * | `'deferred'` | nothing | an event is recorded on the freeing stream then, and waited for |
 * | `'off'` | nothing | never: the block serves its own stream until that is known to be idle, or memory runs out |
 */
export type DeallocationEvents = 'eager' | 'deferred' | 'off';

/**
 * Overrides the policy of the resources below for one free. Either a policy, or an event that the
 * caller recorded on the freeing stream after that stream was ordered after every use of the
 * memory, so that a batch of frees can share one event. Resources rely on the event if they can
 * tell that it covers everything: if the memory was allocated on the freeing stream, and that
 * stream has waited for nothing since the record. Otherwise they act as with `'deferred'`.
 */
export type DeallocationFence = DeallocationEvents | Event;

/** The option that every adaptor has. */
export interface DeallocationEventsOption {
  /**
   * For a pooling resource: its policy at a free. For a pass-through adaptor: the fence that it
   * requests from the resources below for every free that passes through. A fence given with a call
   * takes precedence, then the outermost adaptor that sets this option, then the pooling resource's
   * own policy.
   * @defaultValue `'eager'` for a pooling resource, otherwise not set
   */
  readonly deallocationEvents?: DeallocationEvents;
}

/** @internal */
export const deallocationEventsOptionNames = optionNames<DeallocationEventsOption>({ deallocationEvents: true });

/**
 * Allocates and frees memory in stream order. Upstream resources implement it, adaptors (which take
 * another resource) do, and so can any program in TypeScript.
 *
 * Memory may be used on the stream it was allocated on, and on streams that were ordered after it.
 * Freed memory may be reused in the order of the stream it was freed on; that stream must be
 * ordered after every use.
 *
 * Counterpart of the `cuda::mr::resource` concept and `rmm::device_async_resource_ref`.
 */
export interface MemoryResource extends Disposable {
  /** Who can access the memory. */
  readonly memoryKind: MemoryKind;
  /**
   * The device that the memory belongs to. Memory of kind `'device'` serves only the streams of
   * this device, and of devices with access to its memory ({@link Device.enablePeerAccess}). Memory of any other kind serves the streams of every device, and this is where it
   * was allocated.
   */
  readonly device: Device;

  /**
   * Allocates at least `bytes` bytes, ordered on `stream`.
   * @param bytes an integer from 0 to 2^53 - 1; 0 gives the null pointer
   * @param alignment a power of two; at least 256 is always given
   * @defaultValue alignment 256
   * @throws OutOfMemoryError if there is no memory; the state is then unchanged.
   * @throws ArgumentRangeError, ArgumentTypeError for any other argument.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource or the stream is disposed.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer;

  /**
   * Frees memory in the order of `stream`. Freeing the null pointer does nothing.
   * @param bytes the size that was requested at the allocation
   * @param fence overrides the policy of the resources below about events
   * @throws LifetimeError for a pointer that is not live here, or has another size; nothing is then
   * freed.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void;

  /** Whether each resource may free what the other allocated. */
  isEqual(other: MemoryResource): boolean;
}

/**
 * A resource that knows how much it holds of the memory below: upstream resources, and resources
 * that keep memory.
 */
export interface ReservingMemoryResource extends MemoryResource {
  /** The bytes that it holds, used or not. */
  readonly reservedBytes: number;
  /** The peak of `reservedBytes` since it was created, or since `resetPeakReservedBytes`. */
  readonly peakReservedBytes: number;
  /** Resets the peak to what is held now. */
  resetPeakReservedBytes(): void;
}

/**
 * An upstream resource whose allocations are adjacent if they follow each other and no older hole
 * fits, and which takes them back in pieces: `deallocate` accepts any part of adjacent allocations
 * that begins and ends at a multiple of `granularityBytes` from where one of them begins, or ends
 * where one of them ends.
 */
export interface GrowingMemoryResource extends ReservingMemoryResource {
  /** The size of the smallest piece, a power of two. Allocations begin at a multiple of it. */
  readonly granularityBytes: number;
}

/**
 * A resource that allocates and frees many blocks in one call, which takes less time for each, and under
 * `'eager'` records one event for all frees together.
 */
export interface BulkMemoryResource extends MemoryResource {
  /**
   * Allocates so many bytes for each size, in order, as `allocate` does; all of them, or none.
   * @param sizes up to 2^20 sizes in bytes
   * @returns the pointers, in the places of their sizes; 0 for zero bytes
   * @throws what `allocate` throws
   */
  allocateMany(sizes: Float64Array, stream: Stream): Float64Array;
  /**
   * Frees many allocations, as `deallocate` does without a fence; all of them, or none.
   * @param sizes the bytes of each, as they were asked for
   * @throws what `deallocate` throws; also for a pointer that comes twice
   */
  deallocateMany(pointers: Float64Array, sizes: Float64Array, stream: Stream): void;
}

/** Options of {@link TrimmingMemoryResource.trim}. */
export interface TrimOptions {
  /**
   * The bytes that the resource keeps at least.
   * @defaultValue 0
   */
  readonly bytesToKeep?: number;
}

/** @internal */
export const trimOptionNames = optionNames<TrimOptions>({ bytesToKeep: true });

/** A resource that keeps unused memory, and can return it on request. */
export interface TrimmingMemoryResource extends MemoryResource {
  /**
   * Returns unused memory to the resource below, or to the device, in the order of `stream`.
   * @returns the bytes that were returned
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource or the stream is disposed.
   */
  trim(stream: Stream, options?: TrimOptions): number;
}

/** @internal A resource that can be trimmed by what it takes memory from. */
export interface TakingMemoryResource extends TrimmingMemoryResource {
  /** Whether it is waiting for memory of its upstream. */
  readonly isTaking: boolean;
}

/** @internal An upstream resource that takes memory back for other workers when it runs out. */
export interface SharedMemoryResource extends MemoryResource {
  /** Trims a resource above this whenever memory is needed. Does not keep it alive. */
  trimOnRequest(user: TakingMemoryResource): void;
  /** Trims the resources above this if another worker has asked for memory. Returns whether one has. */
  answerRequests(): boolean;
}

/** A resource that is built on another. */
export interface MemoryResourceAdaptor extends MemoryResource {
  /** The resource below. Counterpart of `get_upstream_resource`. */
  readonly upstream: MemoryResource;
  /**
   * The resources other than `upstream` that it takes memory from: a fallback, the bins of a
   * binning resource. Not set if there are none.
   */
  readonly alternates?: readonly MemoryResource[];
}

/** @internal @throws ArgumentTypeError if the value lacks the methods of a memory resource. */
export function assertMemoryResource(value: unknown, name: string): asserts value is MemoryResource {
  const candidate = value as Partial<MemoryResource> | null | undefined;
  if (typeof candidate?.allocate === 'function' && typeof candidate.deallocate === 'function') return;
  throw new ArgumentTypeError(`${name} must be a MemoryResource, got ${formatValue(value)}`);
}

/** @internal Checks the resource that serves what an upstream of a device does not. */
export function assertFallback(value: unknown, device: Device): asserts value is MemoryResource {
  assertMemoryResource(value, 'fallback');
  if (value.device === device) return;
  throw new ArgumentRangeError(
    `fallback must be of device ${device.index}, as the upstream is, got one of device ${value.device.index}`,
    'ERR_INVALID_ARG_VALUE',
  );
}
