import { RecordingResourceAdaptor } from '../adaptors/recording-resource-adaptor.js';
import { addOwner, type MemoryOwner, removeOwner, usableStream } from '../bulk-frees.js';
import type { Stream } from '../driver/stream.js';
import { copy } from '../driver/transfer.js';
import { LifetimeError } from '../errors.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { type HeldMemory, heldMemory } from '../reclaim/early-collection.js';
import { freeSoonerOrLater, type OwnedMemory } from '../reclaim/unreachable-buffers.js';
import { adoptInScope, innermostFrame, type ScopedMemory, type ScopeFrame } from '../resource-scope.js';
import { allocateReclaiming } from './allocate-reclaiming.js';

/** The memory that a buffer owns, with all that it takes to free it. Outlives a buffer that was dropped. */
export class BufferMemory implements OwnedMemory, ScopedMemory, MemoryOwner {
  readonly resource: MemoryResource;
  readonly alignment: number;
  readonly createdAt: string | undefined;
  /** The stream that the memory is ordered on, and freed on. */
  stream: Stream;
  #label: string | undefined;
  #home: ScopeFrame | undefined = innermostFrame();
  #endReason: string | undefined;
  #pointer: DevicePointer = 0;
  #bytes = 0;
  /** Where its bytes are counted, so that garbage is collected before memory runs out. */
  readonly #held: HeldMemory;

  constructor(resource: MemoryResource, stream: Stream, alignment: number, createdAt: string | undefined) {
    this.resource = resource;
    this.stream = stream;
    this.alignment = alignment;
    this.createdAt = createdAt;
    this.#held = heldMemory(resource.memoryKind, stream.device);
  }

  get pointer(): DevicePointer {
    return this.#pointer;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** What people call the memory; recordings say so. */
  get label(): string | undefined {
    return this.#label;
  }

  set label(label: string | undefined) {
    this.#label = label;
    this.#recordLabel(this.#pointer);
  }

  get home(): ScopeFrame | undefined {
    return this.#home;
  }

  /** Why the memory was taken back before the buffer was disposed, if it was. */
  get endReason(): string | undefined {
    return this.#endReason;
  }

  /** Moves to other memory of `bytes` bytes, with the first `keptBytes` bytes. Whatever is thrown, everything is as before. */
  reallocate(bytes: number, keptBytes: number): void {
    const { resource, stream } = this;
    const held = this.#held;
    if (bytes > held.dueBytes - held.heldBytes) held.collectEarly(bytes);
    const pointer = bytes === 0 ? 0 : allocateReclaiming(resource, bytes, stream, this.alignment);
    if (pointer !== 0) adoptInScope(pointer, this);
    this.#recordLabel(pointer);
    try {
      if (keptBytes > 0) copy(pointer, this.#pointer, keptBytes, stream);
      if (this.#pointer !== 0) resource.deallocate(this.#pointer, this.#bytes, stream);
    } catch (error) {
      if (pointer !== 0) this.#giveBack(pointer, bytes);
      throw error;
    }
    held.heldBytes += bytes - this.#bytes;
    this.#setPointer(pointer, bytes);
  }

  /**
   * Gives the memory back, in the order of the stream; where that is disposed, after everything that was queued on the device has run. Where
   * that is refused, the memory is still here and may be given back later, unless the resource says that it never will be its own to free.
   */
  free(): void {
    const pointer = this.#pointer;
    const bytes = this.#bytes;
    if (pointer === 0) return;
    this.#setPointer(0, 0);
    try {
      this.resource.deallocate(pointer, bytes, usableStream(this.stream));
    } catch (error) {
      if (!(error instanceof LifetimeError)) this.#setPointer(pointer, bytes);
      throw error;
    } finally {
      this.#held.heldBytes += this.#bytes - bytes;
    }
  }

  endMemory(reason: string): void {
    this.#endReason = reason;
    try {
      this.free();
    } finally {
      if (this.#pointer !== 0) this.#endReason = undefined;
    }
  }

  leaveScopes(): void {
    this.#home = undefined;
  }

  #setPointer(pointer: DevicePointer, bytes: number): void {
    if (this.#pointer !== 0) removeOwner(this.#pointer, this);
    this.#pointer = pointer;
    this.#bytes = bytes;
    if (pointer !== 0) addOwner(pointer, bytes, this);
  }

  #recordLabel(pointer: DevicePointer): void {
    if (this.#label === undefined || pointer === 0) return;
    RecordingResourceAdaptor.labelAllocation(this.resource, pointer, this.#label);
  }

  /** Gives memory back that has not become this one's. */
  #giveBack(pointer: DevicePointer, bytes: number): void {
    const memory = new BufferMemory(this.resource, this.stream, this.alignment, undefined);
    memory.#setPointer(pointer, bytes);
    memory.#held.heldBytes += bytes;
    adoptInScope(pointer, memory);
    freeSoonerOrLater(memory);
  }
}
