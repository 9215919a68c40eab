import { formatPointer, notAllocatedHere, UnsupportedError, wrongSize } from '../basics/errors.js';
import type { Device } from '../driver/device.js';
import type { MemoryKind } from '../driver/memory/plain-memory.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import { type Attachment, type BufferMessage, giveBack, handOn } from '../driver/workers/hand-over.js';
import { type Inspect, type InspectionOptions, inspected, inspectObject, refuseCloning } from '../driver/workers/local-object.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';

/**
 * The resource of a buffer that was attached, or is shared: a free gives that buffer's memory back to
 * the environment that allocated it. It has no other memory.
 */
export class AttachedMemory implements MemoryResource {
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  /** Whether it is memory of this environment, which is counted as such until it has come home. */
  readonly isOwn: boolean;
  readonly #attachment: Attachment & { readonly pointer: DevicePointer; readonly bytes: number };
  /** The message of shared memory; `undefined` if it is not shared. */
  #shared: BufferMessage | undefined;

  constructor(
    { memoryKind, device }: Pick<MemoryResource, 'memoryKind' | 'device'>,
    attachment: Attachment & { readonly pointer: DevicePointer; readonly bytes: number },
    shared?: BufferMessage,
    isOwn = false,
  ) {
    this.memoryKind = memoryKind;
    this.device = device;
    this.#attachment = attachment;
    this.#shared = shared;
    this.isOwn = isOwn;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    const { memoryKind, isShared } = this;
    return inspectObject(this, { device: this.device.index, memoryKind, isShared }, depth, options, inspect);
  }

  get isShared(): boolean {
    return this.#shared !== undefined;
  }

  /** Whether this is the memory at a pointer, and not that of another buffer of the same resource. */
  isAt(pointer: DevicePointer): boolean {
    return pointer === this.#attachment.pointer;
  }

  /** The message of shared memory. Memory that is not shared yet is from now on. */
  share(byteLength: number, stream: Stream, label: string | undefined): BufferMessage {
    this.#shared ??= handOn(this.#attachment, byteLength, stream, true, label);
    return this.#shared;
  }

  /** Hands the memory on: this object no longer has it. */
  handOn(byteLength: number, stream: Stream, label: string | undefined): BufferMessage {
    return handOn(this.#attachment, byteLength, stream, false, label);
  }

  /** @throws UnsupportedError always */
  allocate(bytes: number): DevicePointer {
    throw new UnsupportedError(
      `cannot allocate ${bytes} bytes: the memory of the buffer belongs to another worker; recast the buffer to a resource of this one`,
    );
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    if (pointer === 0) return;
    const refusal = `the memory of another worker cannot free ${formatPointer(pointer)}`;
    if (!this.isAt(pointer)) throw notAllocatedHere(refusal);
    if (bytes !== this.#attachment.bytes) throw wrongSize(refusal, bytes, this.#attachment.bytes);
    assertStream(stream, 'deallocate');
    giveBack(this.#attachment, stream);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /** Does nothing: the buffer owns the memory. */
  [Symbol.dispose](): void {}
}
