import { addRemembering, LiveAllocations, takesBack } from '../bulk-frees.js';
import type { Stream } from '../driver/stream.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { layersOf } from './layers.js';

/** What an adaptor remembers. */
export interface RememberedAllocations {
  readonly live: LiveAllocations<Stream>;
  /** What it is built on. */
  readonly below: Set<MemoryResource>;
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void;
}

/**
 * Lets an adaptor remember what is allocated through it, if it is built on a resource that takes memory back while it is in use: it then frees
 * that first, so that it counts and knows what is live. Everything else has nothing to do with this, and costs what it costs without.
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
    // Before the call: a host function that runs in it may be given the same memory again.
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
