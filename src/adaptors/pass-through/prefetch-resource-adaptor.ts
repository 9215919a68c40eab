import { optionNames } from '../../basics/validation.js';
import { assertMemoryLocation, type MemoryLocation, prefetch } from '../../driver/memory/managed-memory.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link PrefetchResourceAdaptor}. */
export interface PrefetchResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * The place that memory is moved to.
   * @defaultValue the device of the upstream
   */
  readonly location?: MemoryLocation | undefined;
}

const knownOptions = optionNames<PrefetchResourceAdaptorOptions>({ deallocationEvents: true, location: true });

/**
 * Moves each allocation of managed memory to a place ahead of its first use, so that kernels find
 * it there without page faults. Other kinds of memory, which cannot move, pass unchanged, and so
 * does managed memory on a device without concurrent managed access.
 *
 * Stream order: the move is queued on the allocation's stream, and the host does not wait for it.
 * Alignment is that of the upstream. If the driver refuses to prefetch for another reason, the
 * allocation is freed and fails.
 *
 * Counterpart of `rmm::mr::prefetch_resource_adaptor`.
 * @example
 * ```ts
 * using upstream = new ManagedMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new PrefetchResourceAdaptor(pool);
 * ```
 */
export class PrefetchResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'PrefetchResourceAdaptor';
  /** The place that memory is moved to. */
  readonly location: MemoryLocation;

  /** @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) for an invalid location. */
  constructor(upstream: MemoryResource, options: PrefetchResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { location = upstream.device } = options;
    assertMemoryLocation(location);
    this.location = location;
  }

  /** @throws DriverError if the memory cannot be prefetched; it is freed again. */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
    if (pointer === 0 || this.memoryKind !== 'managed') return pointer;
    try {
      prefetch(pointer, bytes, this.location, stream);
    } catch (error) {
      this.giveBack(pointer, bytes, stream);
      throw error;
    }
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
  }
}

/** `prefetch` in a specification. */
export const prefetchKind = defineAdaptor({
  name: 'prefetch',
  role: 'pass-through',
  summary: 'moves managed memory to the device when it is allocated',
  options: {},
  example: 'prefetch(managed)',
  create: ({ upstream, options }) => new PrefetchResourceAdaptor(upstream, options),
});
