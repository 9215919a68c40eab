import { PassThroughAdaptor } from '../adaptors/pass-through/pass-through-adaptor.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertAlignment, assertBytes } from '../basics/validation.js';
import { assertStreamOf, type Stream } from '../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';

/** {@link GraphMemoryResource.kept}. */
export class KeptGraphMemory extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'KeptGraphMemory';
  readonly #keep: (bytes: number, alignment: number) => DevicePointer;
  readonly #isCaptured: (stream: Stream) => boolean;

  constructor(graphs: MemoryResource, keep: (bytes: number, alignment: number) => DevicePointer, isCaptured: (stream: Stream) => boolean) {
    super(graphs, {});
    this.#keep = keep;
    this.#isCaptured = isCaptured;
  }

  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    if (!this.#isCaptured(stream)) return this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    assertBytes(bytes);
    assertAlignment(alignment);
    assertStreamOf(stream, this.device, 'allocate');
    return bytes === 0 ? 0 : this.#keep(bytes, alignment);
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence));
  }
}
