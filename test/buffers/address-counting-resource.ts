import { LifetimeError, OutOfMemoryError } from '../../src/basics/errors.js';
import { Device } from '../../src/driver/device.js';
import type { Stream } from '../../src/driver/streams/stream.js';
import type { DevicePointer, MemoryResource } from '../../src/memory-resource.js';

/**
 * Hands out addresses without memory, up to a limit, and remembers which are live and where they
 * were freed.
 */
export class AddressCountingResource implements MemoryResource {
  readonly memoryKind = 'device';
  readonly device = Device.get();
  readonly live = new Map<DevicePointer, number>();
  readonly frees: { pointer: DevicePointer; bytes: number; stream: Stream }[] = [];
  liveBytes = 0;
  limitBytes = Number.POSITIVE_INFINITY;
  /** Called before each free; may throw. */
  beforeFree: ((pointer: DevicePointer) => void) | undefined;
  /** Called before each allocation; may throw. */
  beforeAllocate: ((bytes: number) => void) | undefined;
  lastAlignment: number | undefined;
  #next = 2 ** 40;

  allocate(bytes: number, _stream: Stream, alignment?: number): DevicePointer {
    this.beforeAllocate?.(bytes);
    if (this.liveBytes + bytes > this.limitBytes) {
      throw new OutOfMemoryError(`no ${bytes} bytes are left`, { requestedBytes: bytes, path: ['addresses'] });
    }
    this.lastAlignment = alignment;
    const pointer = this.#next;
    this.#next += Math.ceil(bytes / 256) * 256;
    this.live.set(pointer, bytes);
    this.liveBytes += bytes;
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    this.beforeFree?.(pointer);
    if (this.live.get(pointer) !== bytes)
      throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${pointer} with ${bytes} bytes is not live`);
    this.live.delete(pointer);
    this.liveBytes -= bytes;
    this.frees.push({ pointer, bytes, stream });
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}
}
