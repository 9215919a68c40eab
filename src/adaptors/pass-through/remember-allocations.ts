import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { type Interceptor, intercept } from '../../observing/interceptor.js';
import { addRemembering, LiveAllocations, takesBack } from '../../ownership/bulk-frees.js';
import { layersOf } from '../layers.js';

/** The allocations that an adaptor remembers. */
export interface RememberedAllocations {
  readonly live: LiveAllocations<Stream>;
  /** The resources below the adaptor. */
  readonly below: Set<MemoryResource>;
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void;
}

/**
 * If an adaptor is built on a resource that takes back memory in use, makes the adaptor remember
 * its allocations. Before memory is taken back, it is freed through the adaptor, so that the
 * adaptor's counts stay correct. Other adaptors are unaffected, and pay nothing.
 */
export function rememberIfTakenBack(adaptor: MemoryResource, below: MemoryResource): RememberedAllocations | undefined {
  const layers = layersOf(below);
  if (!layers.some(takesBack)) return undefined;
  const live = new LiveAllocations<Stream>();
  intercept(adaptor, new Remembering(live));
  const remembered = { live, below: new Set(layers), deallocate: adaptor.deallocate };
  addRemembering(remembered);
  return remembered;
}

class Remembering implements Interceptor {
  readonly #live: LiveAllocations<Stream>;

  constructor(live: LiveAllocations<Stream>) {
    this.#live = live;
  }

  allocate(next: MemoryResource['allocate'], bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = next(bytes, stream, alignment);
    if (pointer !== 0) this.#live.add(pointer, bytes, stream);
    return pointer;
  }

  deallocate(
    next: MemoryResource['deallocate'],
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
  ): void {
    const live = this.#live;
    const allocatedOn = typeof pointer === 'number' ? live.holderOf(pointer) : undefined;
    if (allocatedOn === undefined) {
      next(pointer, bytes, stream, fence);
      return;
    }
    const allocatedBytes = live.bytesOf(pointer);
    // Removed before the call, because a host function that runs during it may get the same memory
    // again.
    live.remove(pointer);
    try {
      next(pointer, bytes, stream, fence);
    } catch (error) {
      live.add(pointer, allocatedBytes, allocatedOn);
      throw error;
    }
  }
}
