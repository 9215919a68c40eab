import {
  type DeallocationFence,
  type DevicePointer,
  declareAllocation,
  declareFree,
  type MemoryResource,
  PassThroughAdaptor,
  type Stream,
} from '../../src/index.js';

/**
 * Declares every allocation of its upstream to the order checker, which then finds memory that is
 * reused without a wait.
 */
export class DeclaringResource extends PassThroughAdaptor {
  constructor(upstream: MemoryResource) {
    super(upstream, {});
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = this.upstream.allocate(bytes, stream, alignment);
    // A host function may have ended the stream.
    if (bytes > 0 && !stream.isDisposed) declareAllocation(pointer, bytes, stream);
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (bytes > 0) declareFree(pointer, bytes, stream);
    try {
      this.upstream.deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      if (bytes > 0 && !stream.isDisposed) declareAllocation(pointer, bytes, stream);
      throw error;
    }
  }

  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.upstream[Symbol.dispose]();
  }
}
