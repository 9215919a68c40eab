import type { Stream } from '../../driver/streams/stream.js';
import { addRemembering, LiveAllocations, takesBack } from '../../lifetimes/bulk-frees.js';
import type { DevicePointer, MemoryResource } from '../../memory-resource.js';
import { layersOf } from '../layers.js';

/** The allocations that an adaptor remembers. */
export interface RememberedAllocations {
  readonly live: LiveAllocations<Stream>;
  /** The resources below the adaptor. */
  readonly below: Set<MemoryResource>;
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void;
}

/**
 * If an adaptor is built on a resource that takes memory back while it is in use, makes the adaptor
 * remember what is allocated through it. Before memory is taken back, it is freed through the
 * adaptor, so that the adaptor's counts stay right. Other adaptors are left alone, and pay nothing.
 */
export function rememberIfTakenBack(adaptor: MemoryResource, below: MemoryResource): RememberedAllocations | undefined {
  const layers = layersOf(below);
  if (!layers.some(takesBack)) return undefined;
  const live = new LiveAllocations<Stream>();
  const allocate = adaptor.allocate.bind(adaptor);
  const deallocate = adaptor.deallocate.bind(adaptor);
  adaptor.allocate = (bytes, stream, alignment) => {
    const pointer = allocate(bytes, stream, alignment);
    if (pointer !== 0) live.add(pointer, bytes, stream);
    return pointer;
  };
  adaptor.deallocate = (pointer, bytes, stream, fence) => {
    const allocatedOn = typeof pointer === 'number' ? live.holderOf(pointer) : undefined;
    if (allocatedOn === undefined) {
      deallocate(pointer, bytes, stream, fence);
      return;
    }
    const allocatedBytes = live.bytesOf(pointer);
    // Removed before the call: a host function that runs during it may be given the same memory
    // again.
    live.remove(pointer);
    try {
      deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      live.add(pointer, allocatedBytes, allocatedOn);
      throw error;
    }
  };
  const remembered = { live, below: new Set(layers), deallocate: adaptor.deallocate };
  addRemembering(remembered);
  return remembered;
}
