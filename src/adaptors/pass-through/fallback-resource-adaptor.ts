import { OutOfMemoryError, reasonOf } from '../../basics/errors.js';
import type { Stream } from '../../driver/streams/stream.js';
import {
  assertFallback,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
} from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { none } from '../../suballocation/blocks.js';
import { outOfMemoryThrough, PassThroughAdaptor } from './pass-through-adaptor.js';

/**
 * Takes memory from a second resource if the first is out of memory. A free goes to the resource
 * from which the memory came.
 *
 * `memoryKind` is the upstream's. Memory from the fallback has the fallback's kind, which may
 * differ: for example, managed memory behind device memory allows allocations beyond the device's
 * size. Stream order and alignment are those of the resource from which the memory comes.
 *
 * As long as no memory comes from the fallback, a free costs only one more comparison. Neither
 * resource is disposed with this adaptor.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using fallback = new ManagedMemoryResource();
 * using resource = new FallbackResourceAdaptor(upstream, fallback);
 * ```
 */
export class FallbackResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'FallbackResourceAdaptor';
  /** The resource that serves requests when the upstream is out of memory. */
  readonly fallback: MemoryResource;
  /** The fallback. */
  readonly alternates: readonly MemoryResource[];
  /** The pointers that came from the fallback. The values in the map are unused. */
  readonly #pointers = new AddressMap();
  #fallbackAllocations = 0;
  #fallbackBytes = 0;

  /** @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) for a fallback on another device. */
  constructor(upstream: MemoryResource, fallback: MemoryResource, options: DeallocationEventsOption = {}) {
    super(upstream, options);
    assertFallback(fallback, upstream.device);
    this.fallback = fallback;
    this.alternates = Object.freeze([fallback]);
    this.rememberIfTakenBack(fallback);
  }

  /** No, because memory may come from the fallback. */
  override keepsPages(): boolean {
    return false;
  }

  /** How many allocations the fallback has served. */
  get fallbackAllocations(): number {
    return this.#fallbackAllocations;
  }

  /** Bytes that came from the fallback and are not yet freed. */
  get fallbackBytes(): number {
    return this.#fallbackBytes;
  }

  /**
   * @throws OutOfMemoryError if both fail, with the available bytes and the limit of the upstream;
   * its `cause` is an `AggregateError` of both errors. Any other error of the upstream is thrown
   * unchanged.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    try {
      return this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      return this.#allocateFromFallback(bytes, stream, alignment, error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    // Removed before the call, because a host function that runs during it may get the same memory
    // again.
    if (this.#pointers.count > 0 && typeof pointer === 'number' && this.#pointers.take(pointer) !== none) {
      this.#deallocateToFallback(pointer, bytes, stream, fence ?? this.deallocationEvents);
    } else {
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    }
  }

  #allocateFromFallback(bytes: number, stream: Stream, alignment: number | undefined, refusal: OutOfMemoryError): DevicePointer {
    // A host function that ran in the upstream may have disposed this.
    this.assertUsable(stream);
    let pointer: DevicePointer;
    try {
      pointer = this.fallback.allocate(bytes, stream, alignment);
    } catch (error) {
      throw this.#bothFailed(refusal, error);
    }
    this.served(pointer, bytes, stream, this.fallback);
    if (pointer === 0) return 0;
    this.#pointers.insert(pointer, 0);
    this.#fallbackAllocations++;
    this.#fallbackBytes += bytes;
    return pointer;
  }

  #deallocateToFallback(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    try {
      this.freed(this.fallback.deallocate(pointer, bytes, stream, fence), this.fallback);
    } catch (error) {
      this.#pointers.insert(pointer, 0);
      throw error;
    }
    this.#fallbackBytes -= bytes;
  }

  #bothFailed(refusal: OutOfMemoryError, error: unknown): OutOfMemoryError {
    const message = `${refusal.message}; and from the fallback: ${reasonOf(error)}`;
    const cause = new AggregateError([refusal, error], 'neither the upstream nor the fallback has enough memory');
    return outOfMemoryThrough(this.constructor.name, refusal, refusal.requestedBytes, message, cause);
  }
}

/** `fallback` in a specification. */
export const fallbackKind = defineAdaptor({
  name: 'fallback',
  role: 'pass-through',
  summary: 'takes memory from a second resource if the first has none',
  options: { fallback: { type: 'resource', summary: 'the second resource', required: true } },
  example: 'fallback(limiting(cuda, limitBytes=64KiB), fallback=managed)',
  create: ({ upstream, options: { fallback, ...options } }) => new FallbackResourceAdaptor(upstream, fallback, options),
});
