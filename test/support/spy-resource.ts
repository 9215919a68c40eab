import { type DeallocationFence, Device, type DevicePointer, type MemoryKind, type MemoryResource, type Stream } from '../../src/index.js';

/** Returns numbers instead of memory, remembers its calls, and fails when told to. */
export class SpyResource implements MemoryResource {
  readonly memoryKind: MemoryKind = 'device';
  readonly device = Device.get();
  readonly fences: (DeallocationFence | undefined)[] = [];
  readonly alignments: (number | undefined)[] = [];
  isDisposed = false;
  /** Thrown by the next call. */
  failure: Error | undefined;
  /** Called by every call, before it does anything. */
  meanwhile: (() => void) | undefined;
  #next = 0x7f00_0000_0000;

  allocate(bytes: number, _stream: Stream, alignment?: number): DevicePointer {
    this.#enter();
    this.alignments.push(alignment);
    if (bytes === 0) return 0;
    this.#next += 256;
    return this.#next;
  }

  deallocate(_pointer: DevicePointer, _bytes: number, _stream: Stream, fence?: DeallocationFence): void {
    this.#enter();
    this.fences.push(fence);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {
    this.isDisposed = true;
  }

  #enter(): void {
    const { failure, meanwhile } = this;
    this.failure = undefined;
    this.meanwhile = undefined;
    meanwhile?.();
    if (failure !== undefined) throw failure;
  }
}
