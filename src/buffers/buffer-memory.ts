import { deviceOfMemory } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { RecordingResourceAdaptor } from '../adaptors/pass-through/recording-resource-adaptor.js';
import { CisternError, formatPointer, LifetimeError } from '../basics/errors.js';
import { type HeldMemory, heldMemory, uncounted } from '../collector/early-collection.js';
import { expectReturn, freeReturned, freeSoonerOrLater, type OwnedMemory } from '../collector/free-unreachable-buffers.js';
import { endLater, type Waiting } from '../collector/other-processes.js';
import type { AwayMemory } from '../collector/returned-memory.js';
import { copy } from '../driver/memory/transfer.js';
import { Event } from '../driver/streams/event.js';
import type { Stream } from '../driver/streams/stream.js';
import { type BufferMessage, type HandedMemory, type HandOver, handOver, recall } from '../driver/workers/hand-over.js';
import { addOwner, lastingStream, type MemoryOwner, removeOwner, type StreamFor, usableStream } from '../lifetimes/bulk-frees.js';
import { adoptInScope, innermostFrame, type ScopedMemory, type ScopeFrame } from '../lifetimes/resource-scope.js';
import { noteFree, servedPointer } from '../lifetimes/served-memory.js';
import type { DeallocationEvents, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { ForeignMemoryResource } from '../resources/foreign-memory-resource.js';
import { allocateReclaiming } from './allocate-reclaiming.js';
import { AttachedMemory } from './attached-memory.js';
import { ExportedMemory } from './exported-memory.js';
import { type HostArray, HostArrays } from './host-arrays.js';
import { ImportedMemory } from './imported-memory.js';
import { ProcessExport } from './process-export.js';

/**
 * The memory that a buffer owns, with everything needed to free it. Outlives a buffer that is
 * dropped.
 */
export class BufferMemory implements OwnedMemory, ScopedMemory, MemoryOwner, AwayMemory, Waiting {
  readonly resource: MemoryResource;
  readonly alignment: number;
  readonly createdAt: string | undefined;
  /** The stream that the memory is ordered on, and freed on. */
  stream: Stream;
  /** The length of the buffer's contents in bytes. */
  byteLength = 0;
  #label: string | undefined;
  #home: ScopeFrame | undefined = innermostFrame();
  #endReason: string | undefined;
  #pointer: DevicePointer = 0;
  /** Its record for notification if the memory is taken back. */
  #record = -1;
  #bytes = 0;
  #isBeingFreed = false;
  /** The number of the hand-over while other workers may use the memory, otherwise 0. */
  #away = 0;
  #hostArrays: HostArrays | undefined;
  /** Uses of the memory by others, which it must outlive. */
  #exported: ExportedMemory | undefined;
  /** Set while other processes can open the memory, or use it. */
  #processExport: ProcessExport | undefined;
  /** Counts its bytes, so that garbage is collected before memory runs out. */
  readonly #held: HeldMemory;

  constructor(resource: MemoryResource, stream: Stream, alignment: number, label: string | undefined, createdAt: string | undefined) {
    this.resource = resource;
    this.stream = stream;
    this.alignment = alignment;
    this.createdAt = createdAt;
    this.#label = label;
    const isBorrowed =
      resource instanceof ImportedMemory ||
      (resource instanceof ForeignMemoryResource && resource.isBorrowed) ||
      (resource instanceof AttachedMemory && resource.isOwn);
    this.#held = isBorrowed ? uncounted : heldMemory(resource.memoryKind, stream.device);
  }

  get pointer(): DevicePointer {
    return this.#pointer;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Whether a call that frees it is running, and may yet be refused. */
  get isBeingFreed(): boolean {
    return this.#isBeingFreed;
  }

  /** The label of the memory, which recordings contain. */
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

  /** Allocates the first memory, of `bytes` bytes. Nobody else knows this object yet. */
  allocate(bytes: number): void {
    if (bytes > 0) this.adopt(this.#take(bytes), bytes);
  }

  /**
   * Moves to new memory of `bytes` bytes, with as many of the first `byteLength` bytes as fit. If
   * it throws, the state is unchanged. Returns false if it was changed meanwhile, by a host
   * function or by the resource, or if the new memory was taken back; nothing is then moved.
   * @param events the fence for the free of the old memory
   */
  reallocate(bytes: number, events?: DeallocationEvents): boolean {
    const { stream, byteLength } = this;
    const oldPointer = this.#pointer;
    const oldBytes = this.#bytes;
    const pointer = bytes === 0 ? 0 : this.#take(bytes);
    const isAsBefore = () =>
      this.#pointer === oldPointer && this.#bytes === oldBytes && this.byteLength === byteLength && this.stream === stream;
    if (!isAsBefore()) {
      freeSoonerOrLater(this.#separate(pointer, bytes, stream));
      return false;
    }
    if (byteLength > 0 && bytes > 0) {
      // Host functions may run before the copy: one that takes the new memory back must find its
      // owner.
      const target = this.#separate(pointer, bytes, stream);
      try {
        copy(pointer, oldPointer, Math.min(byteLength, bytes), stream);
      } catch (error) {
        freeSoonerOrLater(target);
        throw error;
      }
      if (!isAsBefore() || target.pointer !== pointer) {
        freeSoonerOrLater(target);
        return false;
      }
      target.release();
    }
    this.adopt(pointer, bytes);
    const oldExport = this.#processExport;
    try {
      this.#freeOrLeave(oldPointer, oldBytes, stream, events);
    } catch (error) {
      if (isLost(error)) throw error;
      const isBack = this.#pointer === pointer && this.#bytes === bytes;
      const unneeded = isBack ? this.#separate(pointer, bytes, stream) : this.#separate(oldPointer, oldBytes, stream);
      unneeded.#processExport = isBack ? this.#processExport : oldExport;
      if (isBack) this.#restore(oldPointer, oldBytes, oldExport);
      freeSoonerOrLater(unneeded);
      throw error;
    }
    return true;
  }

  /**
   * Frees the memory in the order of the stream; if the stream is disposed, after all work queued
   * on the device has run. If that is refused, the memory stays here and may be freed later, unless
   * the resource says that it can never free it.
   */
  freeNow(fence?: DeallocationFence): void {
    if (this.#pointer !== 0 || this.#processExport !== undefined) this.#free(usableStream, fence);
  }

  /**
   * The same, at a time that the owner of a foreign stream does not know: the stream may have
   * ended.
   */
  free(streamFor: StreamFor = lastingStream): void {
    if (this.#pointer !== 0 || this.#processExport !== undefined) this.#free(streamFor, undefined);
  }

  /** Takes over memory that was allocated from the resource. */
  adopt(pointer: DevicePointer, bytes: number): void {
    this.#setPointer(pointer, bytes);
    if (pointer !== 0) adoptInScope(pointer, this);
    this.#recordLabel(pointer);
  }

  /** Gives up the memory without freeing it. */
  release(): void {
    this.#setPointer(0, 0);
  }

  /**
   * Gives the memory to another worker. Another object stands for it until it has come home. If it
   * throws, the state is unchanged, except that host views have no bytes.
   */
  detach(): BufferMessage {
    return this.#handOver(this.#given(), false).message;
  }

  /**
   * Shares the memory with other workers, and gives it up, like `detach`. Returns the memory that the
   * buffer has from now on.
   */
  share(): { readonly message: BufferMessage; readonly memory: BufferMemory } {
    const given = this.#given();
    const { message, ...attachment } = this.#handOver(given, true);
    const memory = this.#withResource(new AttachedMemory(given, { ...attachment, ...given }, message, true));
    memory.adopt(given.pointer, given.bytes);
    memory.byteLength = given.byteLength;
    return { message, memory };
  }

  #given(): HandedMemory {
    const { resource, alignment, byteLength } = this;
    const pointer = this.#pointer;
    const device = deviceOfMemory(resource, pointer);
    return { pointer, bytes: this.#bytes, byteLength, alignment, memoryKind: resource.memoryKind, device };
  }

  /** An object for the same memory, or for what a resource has of it, without that memory yet. */
  #withResource(resource: MemoryResource): BufferMemory {
    return new BufferMemory(resource, this.stream, this.alignment, this.#label, this.createdAt);
  }

  #handOver(given: HandedMemory, isShared: boolean): HandOver {
    const { pointer, bytes } = given;
    const away = this.#withResource(this.resource);
    this.#hostArrays?.end();
    const handedOver = handOver(given, this.stream, isShared, this.#label);
    away.#away = handedOver.handOver;
    expectReturn(handedOver.handOver, away);
    this.release();
    away.#setPointer(pointer, bytes);
    // The end of a run must not take it back.
    away.leaveScopes();
    if (pointer !== 0) adoptInScope(pointer, away, this.home);
    return handedOver;
  }

  comeHome(stream: Stream): void {
    this.#away = 0;
    this.stream = stream;
  }

  /** Whether somebody else uses the memory. */
  get isExported(): boolean {
    return this.#exported?.isInUse === true;
  }

  /** Begins a use of the memory by somebody else: until it ends, the memory is not freed. */
  export(): ExportedMemory {
    if (this.#exported?.isInUse !== true) this.#exported = new ExportedMemory(this);
    this.#exported.begin();
    return this.#exported;
  }

  /**
   * Lets other processes open the memory, after what is queued on the stream by now. Returns the
   * handle; `undefined` if the driver cannot share the memory.
   */
  exportToProcesses(): Buffer | undefined {
    const { stream, alignment, byteLength } = this;
    if (this.#processExport !== undefined) this.#processExport.refresh(byteLength, stream);
    else this.#processExport = ProcessExport.begin({ pointer: this.#pointer, bytes: this.#bytes, byteLength, alignment }, stream);
    return this.#processExport?.handle;
  }

  /** What lets other processes use the memory; it goes with the memory if that is kept for them. */
  get processExport(): ProcessExport | undefined {
    return this.#processExport;
  }

  /**
   * Runs an action that gives the memory up, which no other process can open meanwhile. If the action
   * throws, they can open it again.
   * @param refusal of the error that is thrown if another process uses the memory
   */
  withoutProcesses<Result>(refusal: string, action: () => Result): Result {
    const processExport = this.#processExport;
    if (processExport === undefined) return action();
    if (!processExport.closeIfUnused()) throw new CisternError('ERR_CISTERN_INVALID_STATE', refusal);
    try {
      const result = action();
      if (this.#processExport === processExport) this.#processExport = undefined;
      processExport.end();
      return result;
    } catch (error) {
      processExport.reopen();
      throw error;
    }
  }

  /** Frees memory that no buffer has any more, and that is kept for other processes. */
  endIfOver(): boolean {
    if (this.#processExport?.isUsed === true) return false;
    freeSoonerOrLater(this);
    return true;
  }

  /** An array of the host that contains the range. It is detached when the memory is given up. */
  hostArray(byteOffset: number, bytes: number): HostArray {
    this.#hostArrays ??= new HostArrays();
    return this.#hostArrays.containing(byteOffset, bytes, this.#pointer, this.#bytes);
  }

  endMemory(reason: string, streamFor: StreamFor): void {
    if (this.#away !== 0) this.#bringHome();
    this.withoutProcesses(`cannot take ${formatPointer(this.#pointer)} back: another process uses these ${this.#bytes} bytes`, () => {
      this.#endReason = reason;
      // The resource does not wait for the others that use the memory.
      this.#exported = undefined;
      try {
        const isForeign = this.resource instanceof ForeignMemoryResource && !this.resource.isBorrowed;
        this.free(isForeign ? (stream) => afterWait(streamFor(stream)) : streamFor);
      } finally {
        if (this.#pointer !== 0) this.#endReason = undefined;
      }
    });
  }

  leaveScopes(): void {
    this.#home = undefined;
  }

  /** Allocates memory that is not yet this object's. */
  #take(bytes: number): DevicePointer {
    const held = this.#held;
    if (bytes > held.dueBytes - held.heldBytes) held.collectEarly(bytes);
    const { resource, stream, alignment } = this;
    return servedPointer(allocateReclaiming(resource, bytes, stream, alignment), resource, bytes, stream, alignment);
  }

  /** @throws CisternError if another worker uses the memory. */
  #bringHome(): void {
    recall(this.#away);
    freeReturned(true);
    if (this.#away === 0) return;
    throw new CisternError(
      'ERR_CISTERN_INVALID_STATE',
      `cannot take ${formatPointer(this.#pointer)} back: another worker uses these ${this.#bytes} bytes`,
    );
  }

  #setPointer(pointer: DevicePointer, bytes: number): void {
    if (this.#pointer !== 0) removeOwner(this.#record);
    this.#hostArrays?.end();
    this.#held.heldBytes += bytes - this.#bytes;
    this.#pointer = pointer;
    this.#bytes = bytes;
    if (pointer !== 0) this.#record = addOwner(pointer, bytes, this);
  }

  #free(streamFor: StreamFor, fence: DeallocationFence | undefined): void {
    const { stream } = this;
    // Host functions may run here, and free the memory.
    const usable = streamFor(stream);
    const pointer = this.#pointer;
    const bytes = this.#bytes;
    const processExport = this.#processExport;
    if (pointer === 0 && processExport === undefined) return;
    this.#setPointer(0, 0);
    this.#isBeingFreed = true;
    try {
      // An event of a stream that has ended has completed.
      this.#freeOrLeave(pointer, bytes, usable, usable !== stream && fence instanceof Event ? undefined : fence);
    } catch (error) {
      if (!isLost(error)) this.#restore(pointer, bytes, processExport);
      throw error;
    } finally {
      this.#isBeingFreed = false;
    }
  }

  /**
   * Frees memory that this object has given up, or, if others use it, leaves it to them: the last of
   * them frees it. No process can open it any more.
   */
  #freeOrLeave(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    const exported = this.#exported;
    const processExport = this.#processExport;
    this.#exported = undefined;
    this.#processExport = undefined;
    const isUsedElsewhere = processExport?.close() === false;
    if (exported?.isInUse === true || isUsedElsewhere) {
      const kept = this.#separate(pointer, bytes, stream);
      kept.#processExport = processExport;
      if (exported?.isInUse === true) exported.keep(kept);
      else endLater(kept);
      return;
    }
    try {
      if (pointer !== 0) this.#deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      if (isLost(error)) processExport?.end();
      throw error;
    }
    processExport?.end();
  }

  /** Takes memory again that the resource did not free. */
  #restore(pointer: DevicePointer, bytes: number, processExport: ProcessExport | undefined): void {
    this.#setPointer(pointer, bytes);
    this.#processExport = processExport;
    processExport?.reopen();
  }

  /** Frees memory of the resource, even if a host function ends the stream meanwhile. */
  #deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    const wasLive = !stream.isDisposed;
    try {
      noteFree(this.resource.deallocate(pointer, bytes, stream, fence), this.resource);
    } catch (error) {
      if (!wasLive || !stream.isDisposed || !isOfDisposed(error)) throw error;
      noteFree(this.resource.deallocate(pointer, bytes, usableStream(stream), fence instanceof Event ? undefined : fence), this.resource);
    }
  }

  #recordLabel(pointer: DevicePointer): void {
    if (this.#label === undefined || pointer === 0) return;
    RecordingResourceAdaptor.labelAllocation(this.resource, pointer, this.#label);
  }

  /** An owner for memory that no longer belongs to this object, or not yet. */
  #separate(pointer: DevicePointer, bytes: number, stream: Stream): BufferMemory {
    const memory = new BufferMemory(this.resource, stream, this.alignment, undefined, undefined);
    memory.#setPointer(pointer, bytes);
    return memory;
  }
}

/** The stream, once it has run its work: foreign memory is then released at once. */
function afterWait(stream: Stream): Stream {
  stream.synchronizeSync();
  return stream;
}

function isOfDisposed(error: unknown): boolean {
  return error instanceof LifetimeError && error.code === 'ERR_CISTERN_DISPOSED';
}

/**
 * Whether a free was refused for good: the memory is not the resource's, or the resource is
 * disposed.
 */
function isLost(error: unknown): boolean {
  return error instanceof LifetimeError;
}
