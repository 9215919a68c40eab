/**
 * An arena for native threads over a global arena. The state is native: see
 * `native/arenas/thread_safe_arena.h`.
 */
import { formatValue, freedTwice } from '../basics/errors.js';
import { mailbox, NativeDeallocationEvents, NativeMemoryKind, NativeStatus, native } from '../driver/native.js';
import { allocationError, check, deallocationError, outOfMemoryStatus } from '../driver/status.js';
import type { Stream } from '../driver/streams/stream.js';
import type { GlobalArena } from './global-arena.js';

declare module '../driver/native.js' {
  interface NativeBinding {
    /**
     * Opens an arena for native threads over a global arena that this environment has open, with a number of
     * `NativeDeallocationEvents`. `[1]`: its handle.
     */
    openThreadSafeArena(arena: number, device: number, events: number): void;
    /**
     * The handle ends once this environment has no memory of the arena, and the arena ends with its last
     * user.
     */
    closeThreadSafeArena(handle: number): void;
    /** Hot. In: bytes (at least 1), alignment, handle, stream. `[1]`: the address. */
    allocateThreadSafe(): void;
    /** Hot. In: address, bytes, handle, stream. */
    deallocateThreadSafe(): void;
    /** Pointers for sizes, all or none. `[1]`, if it fails: the place of the one that does. */
    allocateManyThreadSafe(handle: number, stream: number, sizes: Float64Array, pointers: Float64Array): void;
    /** All or none. If one is refused, `[1]`: the bytes that were asked for, if it is allocated; `[2]`: its place. */
    deallocateManyThreadSafe(handle: number, stream: number, pointers: Float64Array, sizes: Float64Array): void;
    /** What `deallocateManyThreadSafe` would say. */
    checkManyThreadSafe(handle: number, pointers: Float64Array, sizes: Float64Array): void;
    /**
     * Makes memory that another thread has allocated this environment's own: it is freed after the environment's end.
     */
    claimThreadSafe(handle: number, address: number, bytes: number): void;
    /** `[1]` live bytes, `[2]` live allocations, `[3]` reserved bytes, `[4]` their peak, `[5]` threads. */
    threadSafeStatistics(handle: number): void;
    resetThreadSafePeak(handle: number): void;
    /** `[1]`: the address of a new `cistern_thread_safe_resource`, whose owner must call `release`. */
    threadSafeTable(handle: number, kind: number): void;
  }
}

/** When an arena for native threads records events for frees. */
export type NativeDeallocationPolicy = keyof typeof NativeDeallocationEvents;

export const nativeDeallocationPolicies = Object.keys(NativeDeallocationEvents) as readonly NativeDeallocationPolicy[];

/** Statistics of a `ThreadSafeArenaMemoryResource`: those of all threads. */
export interface ThreadSafeArenaStatistics {
  /** Bytes that are allocated, as requested. */
  readonly liveBytes: number;
  readonly liveAllocations: number;
  /** Bytes that it holds of the global arena, in whole superblocks. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** The most threads that have allocated from it at the same time, including this one. */
  readonly threads: number;
}

export class ThreadSafeArena {
  readonly #arena: GlobalArena;
  readonly #handle: number;

  /** Closes the global arena if this fails, and when this is closed. */
  constructor(arena: GlobalArena, events: NativeDeallocationPolicy) {
    this.#arena = arena;
    native().openThreadSafeArena(arena.number, arena.device.index, NativeDeallocationEvents[events]);
    const status = mailbox[0] as number;
    if (status !== NativeStatus.success) {
      const error = allocationError(this.#name, 0, status);
      arena.close();
      throw error;
    }
    this.#handle = mailbox[1] as number;
  }

  /** @param bytes at least 1 */
  allocate(bytes: number, stream: Stream, alignment: number): number {
    let status = this.#tryAllocate(bytes, stream, alignment);
    if (status === outOfMemoryStatus) {
      // Only this thread's JavaScript can return this memory.
      this.#arena.giveBack();
      status = this.#tryAllocate(bytes, stream, alignment);
    }
    if (status !== NativeStatus.success) throw allocationError(this.#name, bytes, status);
    // The stream may now be ordered after events of other streams.
    stream.identity.outdateFences();
    return mailbox[1] as number;
  }

  #tryAllocate(bytes: number, stream: Stream, alignment: number): number {
    mailbox[0] = bytes;
    mailbox[1] = alignment;
    mailbox[2] = this.#handle;
    mailbox[3] = stream.handle;
    native().allocateThreadSafe();
    return mailbox[0] as number;
  }

  /** @throws LifetimeError for memory that is not live here, or not with this size. */
  deallocate(address: number, bytes: number, stream: Stream): void {
    mailbox[0] = address;
    mailbox[1] = bytes;
    mailbox[2] = this.#handle;
    mailbox[3] = stream.handle;
    native().deallocateThreadSafe();
    this.#checkFree(address, bytes);
  }

  /**
   * Allocates for each size, all or none.
   * @param pointers gets as many pointers; 0 for zero bytes
   */
  allocateMany(sizes: Float64Array, stream: Stream, pointers: Float64Array): void {
    const allocate = () => {
      native().allocateManyThreadSafe(this.#handle, stream.handle, sizes, pointers);
      return mailbox[0] as number;
    };
    let status = allocate();
    if (status === outOfMemoryStatus) {
      this.#arena.giveBack();
      status = allocate();
    }
    if (status !== NativeStatus.success) throw allocationError(this.#name, sizes[mailbox[1] as number] as number, status);
    stream.identity.outdateFences();
  }

  /** @throws LifetimeError for memory that is not live here, or not with its size, or that comes twice. None is freed then. */
  deallocateMany(pointers: Float64Array, sizes: Float64Array, stream: Stream): void {
    native().deallocateManyThreadSafe(this.#handle, stream.handle, pointers, sizes);
    this.#checkFrees(pointers, sizes);
  }

  /** @throws what `deallocateMany` would throw */
  checkMany(pointers: Float64Array, sizes: Float64Array): void {
    native().checkManyThreadSafe(this.#handle, pointers, sizes);
    this.#checkFrees(pointers, sizes);
  }

  /**
   * Makes memory that another thread has allocated this environment's own: it is freed when the
   * environment ends.
   * @throws LifetimeError for memory that is not live here, or not with this size.
   */
  claim(address: number, bytes: number): void {
    native().claimThreadSafe(this.#handle, address, bytes);
    this.#checkFree(address, bytes);
  }

  statistics(): ThreadSafeArenaStatistics {
    native().threadSafeStatistics(this.#handle);
    check('read the statistics of a thread-safe arena');
    const [, liveBytes, liveAllocations, reservedBytes, peakReservedBytes, threads] = mailbox as unknown as number[] & { length: 6 };
    return { liveBytes, liveAllocations, reservedBytes, peakReservedBytes, threads } as ThreadSafeArenaStatistics;
  }

  /** Resets the peak of the reserved bytes to what is reserved now. */
  resetPeak(): void {
    native().resetThreadSafePeak(this.#handle);
    check('reset the peak of a thread-safe arena');
  }

  /** The address of a new table of native functions. Its owner must release it. */
  table(): number {
    native().threadSafeTable(this.#handle, NativeMemoryKind[this.#arena.kind]);
    check('hand out a thread-safe arena');
    return mailbox[1] as number;
  }

  /**
   * Ends allocation through this object. Live memory can still be freed, and tables that were returned stay
   * valid.
   */
  close(): void {
    native().closeThreadSafeArena(this.#handle);
    check('close a thread-safe arena');
    this.#arena.close();
  }

  get #name(): string {
    return `thread-safe arena ${formatValue(this.#arena.name)}`;
  }

  #checkFrees(pointers: Float64Array, sizes: Float64Array): void {
    if (mailbox[0] === NativeStatus.success) return;
    const place = mailbox[2] as number;
    const pointer = pointers[place] as number;
    if (mailbox[0] === NativeStatus.foreignPointer && pointers.indexOf(pointer) < place) throw freedTwice(this.#name, pointer);
    this.#checkFree(pointer, sizes[place] as number);
  }

  #checkFree(address: number, bytes: number): void {
    const status = mailbox[0] as number;
    if (status !== NativeStatus.success) throw deallocationError(this.#name, address, bytes, status);
  }
}
