import { type DevicePointer, type MemoryResource, PassThroughAdaptor, type Stream } from '../../src/index.js';

/** Takes small allocations from its upstream and others from a second resource. */
export class TwoWayResource extends PassThroughAdaptor {
  readonly alternates: readonly MemoryResource[];
  readonly smallBytes: number;

  constructor(upstream: MemoryResource, alternate: MemoryResource, smallBytes = 1024) {
    super(upstream, {});
    this.alternates = [alternate];
    this.smallBytes = smallBytes;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    return this.#way(bytes).allocate(bytes, stream, alignment);
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    this.#way(bytes).deallocate(pointer, bytes, stream);
  }

  #way(bytes: number): MemoryResource {
    return bytes <= this.smallBytes ? this.upstream : (this.alternates[0] as MemoryResource);
  }
}
