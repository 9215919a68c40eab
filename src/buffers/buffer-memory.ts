import { ArgumentTypeError, CisternError, formatPointer, formatValue, LifetimeError } from '../basics/errors.js';
import { type HeldMemory, heldMemory, uncounted } from '../collector/early-collection.js';
import { freeSoonerOrLater, type OwnedMemory } from '../collector/free-unreachable-buffers.js';
import { tryAgainCollecting } from '../collector/when-memory-is-short.js';
import { assertAwake } from '../driver/memory/guarded-addresses.js';
import { copy } from '../driver/memory/transfer.js';
import { Event } from '../driver/streams/event.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import type { DeallocationEvents, DeallocationFence, DeviceMemory, DevicePointer, MemoryResource } from '../memory-resource.js';
import { areFailuresObserved, attempt } from '../observing/failed-allocations.js';
import { labelAllocation } from '../observing/labels.js';
import { addOwner, lastingStream, removeOwner, type StreamFor, usableStream } from '../ownership/bulk-frees.js';
import { noteFree, servedPointer } from '../ownership/served-memory.js';
import { adoptInScope, innermostFrame, type ScopedMemory, type ScopeFrame } from '../scopes/resource-scope.js';
import { MemoryUses, type OutsideUse } from './memory-uses.js';
import type { Origin } from './origin.js';
import type { HostArray } from './transfers/host-arrays.js';

/** The property with which a buffer shows its memory to the rest of this folder. */
export const memoryOf = Symbol('memory');

/** A buffer, as the rest of this folder uses it. Its memory may change during a wait. */
export interface HasMemory {
  readonly [memoryOf]: BufferMemory;
}

/** A buffer whose memory other libraries and processes can use: a {@link DeviceBuffer}, or a pin of a `SpillableBuffer`. */
export interface ExportableBuffer extends DeviceMemory {
  /** @internal Throws if the memory cannot be used. */
  readonly [memoryOf]: BufferMemory;
}

/** @throws ArgumentTypeError if it is no buffer */
export function exportableMemory(buffer: ExportableBuffer): BufferMemory {
  if (typeof buffer === 'object' && buffer !== null && memoryOf in buffer) return buffer[memoryOf];
  throw new ArgumentTypeError(`buffer must be a DeviceBuffer or a pin of a SpillableBuffer, got ${formatValue(buffer)}`);
}

/** Why a buffer that was disposed cannot be used. */
export const disposed = 'the buffer is already disposed';

/**
 * The memory that a buffer owns, with everything needed to free it. It outlives a buffer that is
 * dropped. Other files only read its `pointer`, `bytes`, `home` and `isBeingFreed`.
 *
 * Nothing is `#private` or initialized in its declaration (V8: no initializers, inlining).
 */
export class BufferMemory implements OwnedMemory, ScopedMemory {
  declare readonly origin: Origin;
  declare readonly resource: MemoryResource;
  declare readonly alignment: number;
  declare readonly createdAt: string | undefined;
  /** The stream that the memory is ordered on, and freed on. */
  declare stream: Stream;
  /** The length of the buffer's contents in bytes. */
  declare byteLength: number;
  /**
   * Why the buffer can no longer be used, as a clause: it was disposed, or the memory was taken back.
   * `undefined` until then.
   */
  declare endReason: string | undefined;
  declare home: ScopeFrame | undefined;
  declare pointer: DevicePointer;
  declare bytes: number;
  /** Whether a call that frees it is running, and may still be refused. */
  declare isBeingFreed: boolean;
  declare private givenLabel: string | undefined;
  declare ownerRecord: number;
  /** How others use the memory. It stays with the memory when the buffer releases it. */
  declare private uses: MemoryUses | undefined;
  /** Counts its bytes, so that garbage is collected before memory runs out. */
  declare private readonly held: HeldMemory;

  constructor(
    origin: Origin,
    resource: MemoryResource,
    stream: Stream,
    alignment: number,
    label: string | undefined,
    createdAt: string | undefined,
  ) {
    this.origin = origin;
    this.resource = resource;
    this.stream = stream;
    this.alignment = alignment;
    this.createdAt = createdAt;
    this.byteLength = 0;
    this.endReason = undefined;
    this.home = innermostFrame();
    this.pointer = 0;
    this.bytes = 0;
    this.isBeingFreed = false;
    this.givenLabel = label;
    this.ownerRecord = 0;
    this.uses = undefined;
    this.held = origin.isCounted ? heldMemory(resource.memoryKind, stream.device) : uncounted;
  }

  /** The label of the memory, which recordings contain. */
  get label(): string | undefined {
    return this.givenLabel;
  }

  set label(label: string | undefined) {
    this.givenLabel = label;
    this.recordLabel(this.pointer);
  }

  /** @throws LifetimeError if the buffer is disposed, or its memory was taken back; CisternError if it is asleep. */
  assertLive(operation: string): void {
    if (this.endReason !== undefined) throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: ${this.endReason}`);
    assertAwake(this.pointer, this.bytes, operation);
  }

  /** @throws LifetimeError also if the stream is disposed. */
  assertUsable(operation: string): void {
    this.assertLive(operation);
    assertStream(this.stream, operation);
  }

  /** @throws CisternError if other workers may be reading the memory. */
  assertNotShared(operation: string): void {
    if (!this.origin.isShared) return;
    throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: it is shared, so other workers may be reading it`);
  }

  /** Allocates the first memory, of `bytes` bytes. No other code has this object yet. */
  allocate(bytes: number): void {
    if (bytes === 0) return;
    const pointer = this.take(bytes);
    this.add(pointer, bytes);
    if (this.home !== undefined) adoptInScope(pointer, this, this.home);
    if (this.givenLabel !== undefined) this.recordLabel(pointer);
  }

  /** The same, without a garbage collection if there is no memory. */
  allocateAtOnce(bytes: number): void {
    const { resource, stream, alignment } = this;
    if (bytes > 0) this.adopt(servedPointer(resource.allocate(bytes, stream, alignment), resource, bytes, stream, alignment), bytes);
  }

  /**
   * Moves to new memory of `bytes` bytes, with as many of the first `byteLength` bytes as fit. If
   * it throws, the state is unchanged. Returns false, and moves nothing, if it was changed
   * meanwhile by a host function or the resource, or if the new memory was taken back.
   * @param events the fence for the free of the old memory
   */
  reallocate(bytes: number, events?: DeallocationEvents): boolean {
    const { stream, byteLength } = this;
    const oldPointer = this.pointer;
    const oldBytes = this.bytes;
    // In a capture, the free comes first, because it may be refused, and a copy cannot be removed from the
    // graph again. No other stream can get the memory between the two, because other streams are ordered after
    // the work that this one records next.
    const copiedBytes = Math.min(byteLength, bytes);
    const copiesLast = copiedBytes > 0 && !stream.isDisposed && stream.captureStatus !== 'none';
    const pointer = bytes === 0 ? 0 : this.take(bytes);
    const isAsBefore = () =>
      this.pointer === oldPointer && this.bytes === oldBytes && this.byteLength === byteLength && this.stream === stream;
    if (!isAsBefore()) {
      freeSoonerOrLater(this.separate(pointer, bytes, stream));
      return false;
    }
    if (copiedBytes > 0 && !copiesLast) {
      // Host functions may run before the copy, and one that takes the new memory back must find
      // its owner.
      const target = this.separate(pointer, bytes, stream);
      try {
        copy(pointer, oldPointer, copiedBytes, stream);
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
    const oldUses = this.uses;
    this.adopt(pointer, bytes);
    try {
      this.freeOrLeave(oldPointer, oldBytes, stream, events, oldUses);
    } catch (error) {
      if (isLost(error)) throw error;
      const isBack = this.pointer === pointer && this.bytes === bytes;
      const unneeded = isBack ? this.separate(pointer, bytes, stream) : this.separate(oldPointer, oldBytes, stream);
      unneeded.uses = isBack ? this.uses : oldUses;
      if (isBack) this.restore(oldPointer, oldBytes, oldUses);
      freeSoonerOrLater(unneeded);
      throw error;
    }
    if (copiesLast) copy(pointer, oldPointer, copiedBytes, stream);
    return true;
  }

  /**
   * Frees the memory in the order of the stream; if the stream is disposed, after all work queued
   * on the device has run. If the resource refuses, the memory stays here and may be freed later,
   * unless the error says that it can never be freed.
   */
  freeNow(fence?: DeallocationFence): void {
    const { stream } = this;
    if (this.uses !== undefined || stream.isDisposed) {
      this.freeOn(usableStream, fence);
      return;
    }
    const pointer = this.pointer;
    if (pointer === 0) return;
    const bytes = this.bytes;
    this.drop();
    this.isBeingFreed = true;
    try {
      noteFree(this.resource.deallocate(pointer, bytes, stream, fence), this.resource);
    } catch (error) {
      this.refused(error, pointer, bytes, stream, fence);
    } finally {
      this.isBeingFreed = false;
    }
  }

  /**
   * The same, at a time that the owner of a foreign stream cannot know, so the stream may already
   * have ended.
   */
  free(streamFor: StreamFor = lastingStream): void {
    if (this.pointer !== 0 || this.uses !== undefined) this.freeOn(streamFor, undefined);
  }

  /** Takes over memory that was allocated from the resource. */
  adopt(pointer: DevicePointer, bytes: number): void {
    this.hold(pointer, bytes);
    if (pointer !== 0) adoptInScope(pointer, this);
    this.recordLabel(pointer);
  }

  /** Releases the memory without freeing it. */
  release(): void {
    this.hold(0, 0);
  }

  /** Uses other memory from now on, which belongs to no scope yet. */
  hold(pointer: DevicePointer, bytes: number): void {
    if (this.uses !== undefined) {
      this.uses.endHostArrays();
      this.uses = undefined;
    }
    if (this.pointer !== 0) this.drop();
    if (pointer !== 0) this.add(pointer, bytes);
  }

  /**
   * Releases the memory through an action. @throws CisternError if others than the host use it outside the buffer.
   */
  giveUp<Result>(operation: string, action: (memory: this) => Result): Result {
    return this.withoutOthers(
      false,
      (others) => `cannot ${operation}: ${others} its memory`,
      () => action(this),
    );
  }

  /** The way of a kind in which others use the memory; it stays with memory that is left to them. */
  outsideUse<Use extends OutsideUse>(kind: abstract new (...args: never[]) => Use): Use | undefined {
    return this.uses?.find(kind);
  }

  /** From now on, others use the memory in this way, or can. */
  addOutsideUse<Use extends OutsideUse>(use: Use): Use {
    this.uses ??= new MemoryUses();
    this.uses.add(use);
    return use;
  }

  /** Whether others use the memory outside the buffer, or can. */
  get isUsedByOthers(): boolean {
    return this.uses?.areAnyOpen === true;
  }

  /**
   * An array of the host that contains the range. It is detached when the buffer releases the
   * memory.
   */
  hostArray(byteOffset: number, bytes: number): HostArray {
    this.uses ??= new MemoryUses();
    return this.uses.hostArray(byteOffset, bytes, this);
  }

  endMemory(reason: string, streamFor: StreamFor): void {
    this.withoutOthers(
      true,
      (others) => `cannot take ${formatPointer(this.pointer)} back: ${others} these ${this.bytes} bytes`,
      () => {
        const before = this.endReason;
        this.endReason = reason;
        this.uses?.forgetOthers();
        try {
          if (this.origin.end === undefined) this.free(streamFor);
          else this.origin.end(this, streamFor);
        } finally {
          if (this.pointer !== 0) this.endReason = before;
        }
      },
    );
  }

  leaveScopes(): void {
    this.home = undefined;
  }

  private add(pointer: DevicePointer, bytes: number): void {
    this.held.heldBytes += bytes;
    this.pointer = pointer;
    this.bytes = bytes;
    addOwner(this);
  }

  private drop(): void {
    this.held.heldBytes -= this.bytes;
    this.pointer = 0;
    this.bytes = 0;
    removeOwner(this);
  }

  /** Allocates memory that is not yet this object's. */
  private take(bytes: number): DevicePointer {
    return areFailuresObserved() ? attempt(this.resource, () => this.takeUnobserved(bytes)) : this.takeUnobserved(bytes);
  }

  private takeUnobserved(bytes: number): DevicePointer {
    const { held, resource, stream, alignment } = this;
    if (bytes > held.dueBytes - held.heldBytes) held.collectEarly(bytes);
    let pointer: DevicePointer;
    try {
      pointer = resource.allocate(bytes, stream, alignment);
    } catch (error) {
      pointer = allocateAgain(error, resource, bytes, stream, alignment);
    }
    return servedPointer(pointer, resource, bytes, stream, alignment);
  }

  /**
   * Runs an action that releases the memory. Meanwhile, nobody else can begin to use it; if the action
   * throws, they can again.
   * @param isTakenBack whether the resource does it
   * @param refusal the message if others use the memory
   */
  private withoutOthers<Result>(isTakenBack: boolean, refusal: (others: string) => string, action: () => Result): Result {
    const uses = this.uses;
    if (uses === undefined) return action();
    const user = uses.closeIfUnused(isTakenBack);
    if (user !== undefined) throw new CisternError('ERR_CISTERN_INVALID_STATE', refusal(user.description));
    try {
      const result = action();
      uses.end();
      return result;
    } catch (error) {
      uses.reopen();
      throw error;
    }
  }

  private freeOn(streamFor: StreamFor, fence: DeallocationFence | undefined): void {
    const { stream } = this;
    // Host functions may run here, and free the memory.
    const usable = streamFor(stream);
    const pointer = this.pointer;
    const bytes = this.bytes;
    const uses = this.uses;
    if (pointer === 0 && uses === undefined) return;
    this.hold(0, 0);
    this.isBeingFreed = true;
    try {
      // An event of a stream that has ended has completed.
      this.freeOrLeave(pointer, bytes, usable, usable !== stream && fence instanceof Event ? undefined : fence, uses);
    } catch (error) {
      if (!isLost(error)) this.restore(pointer, bytes, uses);
      throw error;
    } finally {
      this.isBeingFreed = false;
    }
  }

  /**
   * Frees memory that this object has released; if others use it, the last of them frees it instead.
   * Nobody can begin to.
   */
  private freeOrLeave(
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
    uses: MemoryUses | undefined,
  ): void {
    const user = uses?.close();
    if (user !== undefined) {
      const left = this.separate(pointer, bytes, stream);
      left.uses = uses;
      user.leave(left);
      return;
    }
    try {
      if (pointer !== 0) this.deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      if (isLost(error)) uses?.end();
      throw error;
    }
    uses?.end();
  }

  /** Takes back memory that the resource did not free. */
  private restore(pointer: DevicePointer, bytes: number, uses: MemoryUses | undefined): void {
    this.hold(pointer, bytes);
    this.uses = uses;
    uses?.reopen();
  }

  /**
   * To be called if the resource refused to free memory that this object has released: tries again, or
   * takes it back.
   */
  private refused(error: unknown, pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    try {
      this.deallocateAgain(error, pointer, bytes, stream, fence);
    } catch (last) {
      if (!isLost(last)) this.restore(pointer, bytes, undefined);
      throw last;
    }
  }

  /** Frees memory of the resource, even if a host function ends the stream meanwhile. */
  private deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    const wasLive = !stream.isDisposed;
    try {
      noteFree(this.resource.deallocate(pointer, bytes, stream, fence), this.resource);
    } catch (error) {
      if (!wasLive) throw error;
      this.deallocateAgain(error, pointer, bytes, stream, fence);
    }
  }

  /** Rethrows the error of a free, unless the stream ended during it: then frees on another stream. */
  private deallocateAgain(
    error: unknown,
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
  ): void {
    if (!stream.isDisposed || !isOfDisposed(error)) throw error;
    noteFree(this.resource.deallocate(pointer, bytes, usableStream(stream), fence instanceof Event ? undefined : fence), this.resource);
  }

  private recordLabel(pointer: DevicePointer): void {
    if (this.givenLabel === undefined || pointer === 0) return;
    labelAllocation(this.resource, pointer, this.givenLabel);
  }

  /** An owner for memory that no longer belongs to this object, or not yet. */
  private separate(pointer: DevicePointer, bytes: number, stream: Stream): BufferMemory {
    const memory = new BufferMemory(this.origin, this.resource, stream, this.alignment, undefined, undefined);
    memory.hold(pointer, bytes);
    return memory;
  }
}

function isOfDisposed(error: unknown): boolean {
  return error instanceof LifetimeError && error.code === 'ERR_CISTERN_DISPOSED';
}

/**
 * Whether a free is refused permanently, because the memory is not the resource's, or the resource
 * is disposed.
 */
function isLost(error: unknown): boolean {
  return error instanceof LifetimeError;
}

/** Apart (V8: no capture). */
function allocateAgain(error: unknown, resource: MemoryResource, bytes: number, stream: Stream, alignment: number): DevicePointer {
  return tryAgainCollecting(error, () => resource.allocate(bytes, stream, alignment));
}
