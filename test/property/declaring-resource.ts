import {
  type DeallocationFence,
  type DevicePointer,
  declareAllocation,
  declareFree,
  type MemoryResource,
  PassThroughAdaptor,
  type Stream,
} from '../../src/index.js';

/** Tells the order checker of everything that its upstream hands out, so that memory is seen which is used again without a wait. */
export class DeclaringResource extends PassThroughAdaptor {
  constructor(upstream: MemoryResource) {
    super(upstream, {});
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = this.upstream.allocate(bytes, stream, alignment);
    declareAllocation(pointer, bytes, stream);
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    declareFree(pointer, bytes, stream);
    this.upstream.deallocate(pointer, bytes, stream, fence);
  }

  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.upstream[Symbol.dispose]();
  }
}
