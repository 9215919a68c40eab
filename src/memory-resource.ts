import { ArgumentTypeError, formatValue, invalidValue } from './basics/errors.js';
import { optionNames } from './basics/validation.js';
import type { Device, MemoryKind } from './driver/device.js';
import type { Event } from './driver/streams/event.js';
import type { Stream } from './driver/streams/stream.js';

/**
 * The address of memory, a safe integer. `0` is the null pointer, which is the result of allocating
 * zero bytes.
 */
export type DevicePointer = number;

/**
 * Memory that a device can access, by its address: a {@link DeviceBuffer}, or a buffer of another
 * library.
 */
export interface DeviceMemory {
  /** The address of the first byte; 0 if there is none. */
  readonly ptr: DevicePointer;
  /** The length in bytes. */
  readonly byteLength: number;
}

/**
 * How a resource that keeps freed memory makes it usable on another stream.
 *
 * | value | at a free | when another stream wants the block |
 * |---|---|---|
 * | `'eager'` | an event is recorded on the freeing stream | that stream waits for the event |
 * | `'deferred'` | nothing | an event is recorded on the freeing stream, and that stream waits for it |
 * | `'off'` | nothing | it gets other memory, until the freeing stream is known to be idle or memory runs out |
 */
export type DeallocationEvents = 'eager' | 'deferred' | 'off';

/**
 * Overrides the policy of the resources below for one free. It is either a policy, or an event, so
 * that a batch of frees can share one: record it on the freeing stream once that stream is ordered
 * after every use of the memory. A resource relies on the event if it can tell that the event
 * covers every use: if the memory was allocated on the freeing stream, and that stream has waited
 * for nothing since the event was recorded. Otherwise it acts as with `'deferred'`.
 */
export type DeallocationFence = DeallocationEvents | Event;

/** The option that all adaptors have. */
export interface DeallocationEventsOption {
  /**
   * For a pooling resource: its policy at a free. For a pass-through adaptor: the fence that it
   * requests from the resources below for every free that passes through. A fence given with a call
   * takes precedence, then the outermost adaptor that sets this option, then the pooling resource's
   * own policy.
   * @defaultValue `'eager'` for a pooling resource, otherwise not set
   */
  readonly deallocationEvents?: DeallocationEvents | undefined;
}

/** @internal */
export const deallocationEventsOptionNames = optionNames<DeallocationEventsOption>({ deallocationEvents: true });

/**
 * Allocates and frees memory in stream order. Leaf resources, whose memory comes from the driver,
 * implement it, and so do adaptors, which take memory from another resource. You can implement your
 * own in TypeScript.
 *
 * Use memory on the stream that it was allocated on, or on streams that are ordered after the
 * allocation. Free it on a stream that is ordered after every use. The resource then reuses it in
 * the order of the stream that freed it.
 *
 * Counterpart of the `cuda::mr::resource` concept and `rmm::device_async_resource_ref`.
 */
export interface MemoryResource extends Disposable {
  /** Who can access the memory. */
  readonly memoryKind: MemoryKind;
  /**
   * The device that the memory belongs to. Only streams of this device, and of devices with access
   * to its memory ({@link Device.enablePeerAccess}), can use memory of kind `'device'`. Streams of
   * all devices can use memory of the other kinds.
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
   * Frees memory in the order of `stream`: `stream` must be ordered after every use. Freeing the
   * null pointer does nothing.
   * @param bytes the size that was requested at the allocation
   * @param fence overrides the event policy of the resources below for this free
   * @throws LifetimeError for a pointer that is not live here, or has another size; nothing is then
   * freed.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void;

  /** Whether each of the two resources may free memory that the other allocated. */
  isEqual(other: MemoryResource): boolean;
}

/**
 * A resource that knows how much memory it has taken from below and not returned: a leaf, or a
 * pooling resource.
 */
export interface ReservingMemoryResource extends MemoryResource {
  /** The bytes that it has taken and not returned, in use or free. */
  readonly reservedBytes: number;
  /** The peak of `reservedBytes` since it was created, or since `resetPeakReservedBytes`. */
  readonly peakReservedBytes: number;
  /** Resets the peak to the current `reservedBytes`. */
  resetPeakReservedBytes(): void;
}

/**
 * A resource whose consecutive allocations are adjacent unless an older hole fits, and which can
 * free them in pieces: `deallocate` accepts any part of adjacent allocations whose beginning, and
 * end, are multiples of `granularityBytes` from the start of one of them; it may also end where one
 * of them ends.
 */
export interface GrowingMemoryResource extends ReservingMemoryResource {
  /** The size of the smallest piece, a power of two. Allocations begin at a multiple of it. */
  readonly granularityBytes: number;
}

/**
 * A resource that can allocate or free many blocks in one call. This takes less time per block, and
 * under `'eager'` records one event for all the frees together.
 */
export interface BulkMemoryResource extends MemoryResource {
  /**
   * Allocates a block for each size, in order, as `allocate` does: all of them, or none.
   * @param sizes up to 2^20 sizes in bytes
   * @param pointers where to put the pointers: as many numbers as `sizes` has, in other memory; a new array if left out
   * @returns the pointers, in the order of the sizes; 0 for zero bytes
   * @throws the errors of `allocate`; the contents of `pointers` are then of no use
   */
  allocateMany(sizes: Float64Array, stream: Stream, pointers?: Float64Array): Float64Array;
  /**
   * Frees many allocations, as `deallocate` does without a fence: all of them, or none.
   * @param sizes the requested bytes of each
   * @throws the errors of `deallocate`; LifetimeError also if a pointer occurs twice.
   */
  deallocateMany(pointers: Float64Array, sizes: Float64Array, stream: Stream): void;
}

/** Options of {@link TrimmingMemoryResource.trim}. */
export interface TrimOptions {
  /**
   * The least that the resource keeps, in bytes.
   * @defaultValue 0
   */
  readonly bytesToKeep?: number | undefined;
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

/** @internal A resource that its upstream can trim. */
export interface TakingMemoryResource extends TrimmingMemoryResource {
  /** Whether it is in a call that takes memory from its upstream. */
  readonly isTaking: boolean;
}

/**
 * @internal An upstream whose memory several workers share. If it runs out, it reclaims memory from
 * the resources above it, in all workers.
 */
export interface SharedMemoryResource extends MemoryResource {
  /**
   * Registers a resource above this one, to be trimmed whenever memory is needed. Does not keep it
   * alive.
   */
  trimOnRequest(user: TakingMemoryResource): void;
  /**
   * Trims the resources above this one if another worker has asked for memory. Returns whether one has.
   */
  answerRequests(): boolean;
}

/** A resource that is built on another. */
export interface MemoryResourceAdaptor extends MemoryResource {
  /** The resource below. Counterpart of `get_upstream_resource`. */
  readonly upstream: MemoryResource;
  /**
   * The resources other than `upstream` that it takes memory from, such as a fallback, or the bins
   * of a binning resource. Not set if there are none.
   */
  readonly alternates?: readonly MemoryResource[] | undefined;
}

/** A resource of cistern's own classes, which have private fields, has itself here; a proxy of it has the resource. */
const itself = Symbol('itself');

type MaybeOwn = Partial<MemoryResource> & { [itself]?: MemoryResource };

/** @internal The base classes of resources call this, so that a proxy is told from the resource. */
export function registerResource(resource: MemoryResource): void {
  (resource as MaybeOwn)[itself] = resource;
}

/**
 * @internal
 * @throws ArgumentTypeError if the value lacks the methods of a memory resource, or they would fail because it is a
 * `Proxy` of one of cistern's, or inherits from one: it then lacks the private fields
 */
export function assertMemoryResource(value: unknown, name: string): asserts value is MemoryResource {
  const candidate = value as MaybeOwn | null | undefined;
  if (typeof candidate?.allocate !== 'function' || typeof candidate.deallocate !== 'function') {
    throw new ArgumentTypeError(`${name} must be a MemoryResource, got ${formatValue(value)}`);
  }
  if (candidate[itself] !== undefined && candidate[itself] !== candidate) {
    throw new ArgumentTypeError(
      `${name} must be the MemoryResource itself, got a Proxy of it, or an object that inherits from it: ${formatValue(value)}`,
    );
  }
}

/** @internal Throws unless `value` is a memory resource of the same device as the upstream. */
export function assertFallback(value: unknown, device: Device): asserts value is MemoryResource {
  assertMemoryResource(value, 'fallback');
  if (value.device === device) return;
  throw invalidValue(`fallback must belong to device ${device.index}, as the upstream does, got one of device ${value.device.index}`);
}
