import { formatPointer, notAllocatedHere, UnsupportedError, wrongSize } from '../basics/errors.js';
import { BufferMemory } from '../buffers/buffer-memory.js';
import { type Origin, origin, type ResourceWithOrigin } from '../buffers/origin.js';
import type { Device, MemoryKind } from '../driver/device.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../driver/workers/local-object.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { giveToWorker, handedMemory } from './give-to-workers.js';
import { type Attachment, type BufferMessage, giveBack, handOn } from './hand-over.js';

/** Memory that was just shared. */
export interface SharedMemory {
  readonly message: BufferMessage;
  /**
   * The memory that the buffer uses from now on; the same object as before if it was already shared.
   */
  readonly memory: BufferMemory;
}

/**
 * The resource of an attached or shared buffer: a free returns that buffer's memory to the
 * environment that allocated it. It has no other memory.
 */
export class AttachedMemory implements ResourceWithOrigin, Origin {
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  /** Memory of this environment counts as its own until it has been returned and freed. */
  readonly isCounted: boolean;
  readonly notToWorkers = undefined;
  readonly notToProcesses =
    'its memory belongs to another worker, which frees it when this one ends; first recast it to a CudaMemoryResource';
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
    this.isCounted = !isOwn;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    const { memoryKind, isShared } = this;
    return inspectObject(this, { device: this.device.index, memoryKind, isShared }, inspection);
  }

  get isShared(): boolean {
    return this.#shared !== undefined;
  }

  get [origin](): Origin {
    return this;
  }

  /** Hands the memory over to another worker: the object that had it then has none. */
  give(memory: BufferMemory): BufferMessage {
    const { pointer, byteLength, stream, label } = memory;
    if (!this.#isAt(pointer)) return giveToWorker(memory, false).message;
    const message = handOn(this.#attachment, byteLength, stream, false, label);
    memory.release();
    return message;
  }

  /** Shares the memory with other workers. */
  share(memory: BufferMemory): SharedMemory {
    const { pointer, byteLength, stream, label } = memory;
    if (!this.#isAt(pointer)) return shareAttached(memory);
    this.#shared ??= handOn(this.#attachment, byteLength, stream, true, label);
    return { message: this.#shared, memory };
  }

  /** @throws UnsupportedError always */
  allocate(bytes: number): DevicePointer {
    throw new UnsupportedError(
      `cannot allocate ${bytes} bytes: the memory of the buffer belongs to another worker; first recast the buffer to a resource of this worker`,
    );
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    if (pointer === 0) return;
    const refusal = `the memory of another worker cannot free ${formatPointer(pointer)}`;
    if (!this.#isAt(pointer)) throw notAllocatedHere(refusal);
    if (bytes !== this.#attachment.bytes) throw wrongSize(refusal, bytes, this.#attachment.bytes);
    assertStream(stream, 'deallocate');
    giveBack(this.#attachment, stream);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /** Does nothing: the buffer owns the memory. */
  [Symbol.dispose](): void {}

  /** Whether this is the memory at a pointer, and not that of another buffer of the same resource. */
  #isAt(pointer: DevicePointer): boolean {
    return pointer === this.#attachment.pointer;
  }
}

/**
 * Shares memory of this environment: from now on, its buffer uses it in the same way as those that
 * attach it.
 */
export function shareAttached(memory: BufferMemory): SharedMemory {
  const given = handedMemory(memory);
  const { stream, alignment, label, createdAt } = memory;
  const { message, ...attachment } = giveToWorker(memory, true);
  const resource = new AttachedMemory(given, { ...attachment, ...given }, message, true);
  const shared = new BufferMemory(resource, resource, stream, alignment, label, createdAt);
  shared.adopt(given.pointer, given.bytes);
  shared.byteLength = given.byteLength;
  return { message, memory: shared };
}
