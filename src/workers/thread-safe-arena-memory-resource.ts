import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import {
  assertAlignment,
  assertBytes,
  assertEachBytes,
  assertManyPairs,
  assertOneOf,
  assertOptions,
  assertPointer,
  optionNames,
  pointersFor,
} from '../basics/validation.js';
import { allocated, type Origin, origin } from '../buffers/origin.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import type {
  BulkMemoryResource,
  DeallocationEvents,
  DeallocationFence,
  DevicePointer,
  ReservingMemoryResource,
} from '../memory-resource.js';
import { allocateEach, deallocateEach, isIntercepted } from '../observing/interceptor.js';
import { defineUpstream } from '../resource-kind.js';
import { LeafMemoryResource } from '../resources/leaf-memory-resource.js';
import { type GlobalArenaMemoryKind, globalArenaMemoryKinds } from './global-arena.js';
import { type GlobalArenaMemoryResourceOptions, openGlobalArena } from './global-arena-memory-resource.js';
import { nativeDeallocationPolicies, ThreadSafeArena, type ThreadSafeArenaStatistics } from './thread-safe-arena.js';

/**
 * Options of {@link ThreadSafeArenaMemoryResource}: those of the global arena from which it takes
 * superblocks, and its own.
 */
export interface ThreadSafeArenaMemoryResourceOptions extends Omit<GlobalArenaMemoryResourceOptions, 'waitMilliseconds'> {
  /**
   * When other streams can use memory that was freed on a stream. Nobody announces the end of native code's
   * streams, so `'deferred'` records an event later only for the legacy default stream, and for all others at
   * the free, as pools do for streams that were created elsewhere. Under `'off'`, a thread takes memory of
   * another stream only if there is no other memory: it then waits for the device, unless a stream is
   * captured or waits for JavaScript.
   * @defaultValue `'eager'`
   */
  readonly deallocationEvents?: DeallocationEvents | undefined;
}

const knownOptions = optionNames<ThreadSafeArenaMemoryResourceOptions>({
  arenaBytes: true,
  deallocationEvents: true,
  device: true,
  memoryKind: true,
  name: true,
  superblockBytes: true,
});

/**
 * Memory that any thread of an addon can allocate and free, including libuv's threads, on which
 * `Napi::AsyncWorker` runs, and those of native libraries.
 *
 * A native addon gets a table of functions for it with `cistern_get_thread_safe_resource` of `cistern.h`,
 * and calls them on any thread, without JavaScript. JavaScript uses the same arena through this object, so
 * a buffer can own memory that another thread has allocated, and vice versa.
 *
 * Each thread has its own arena over superblocks of a global arena, the one that {@link
 * GlobalArenaMemoryResource} opens with the same name, so native threads and the pools of all workers share
 * its memory. A thread's arena returns free memory when the thread ends, and when another thread, or a pool,
 * has run out. A thread that runs out never waits for JavaScript.
 *
 * Stream order: memory freed on a stream, by any thread, can be reused immediately on that stream, and on
 * other streams by the rules of `deallocationEvents`. The fence of a free is ignored. Captured streams
 * are refused. Alignment: 256 bytes, or as requested, up to a superblock.
 *
 * Tables that addons have got stay valid after this object is disposed, and after the worker has
 * ended; the arena ends with the last of them. Memory that this worker holds of the arena is freed
 * after the worker's end, as with any resource.
 *
 * Counterpart of `rmm::mr::arena_memory_resource`, which has one lock for all threads of a stream.
 * @throws see the constructor
 * @example
 * ```ts
 * using arena = new ThreadSafeArenaMemoryResource({ name: 'addon', arenaBytes: 64 * MiB });
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(1 * MiB, { resource: arena, stream });
 * console.log(arena.statistics().liveBytes); // 1048576, of all threads
 * ```
 */
export class ThreadSafeArenaMemoryResource extends LeafMemoryResource implements ReservingMemoryResource, BulkMemoryResource {
  /** @internal */
  static override readonly name = 'ThreadSafeArenaMemoryResource';
  declare readonly memoryKind: GlobalArenaMemoryKind;
  /** The name of the global arena in the process. */
  readonly name: string;
  /** The bytes of the global arena's block. */
  readonly arenaBytes: number;
  /** The bytes of a superblock, which is also the largest alignment. */
  readonly superblockBytes: number;
  readonly deallocationEvents: DeallocationEvents;
  readonly #arena: ThreadSafeArena;
  #peakBytes = 0;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or one that differs from
   * the open global arena's.
   * @throws OutOfMemoryError if the global arena's block cannot be allocated.
   */
  constructor(options: ThreadSafeArenaMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { deallocationEvents = 'eager' } = options;
    assertOneOf(deallocationEvents, nativeDeallocationPolicies, 'deallocationEvents');
    const arena = openGlobalArena(options);
    super(arena.kind, arena.device);
    this.#arena = new ThreadSafeArena(arena, deallocationEvents);
    this.name = arena.name;
    this.arenaBytes = arena.arenaBytes;
    this.superblockBytes = arena.superblockBytes;
    this.deallocationEvents = deallocationEvents;
  }

  /**
   * Bytes that all threads hold of the global arena through this resource, in whole superblocks; 0
   * once it is disposed.
   */
  get reservedBytes(): number {
    return this.isDisposed ? 0 : this.#arena.statistics().reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.isDisposed ? this.#peakBytes : this.#arena.statistics().peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    if (this.isDisposed) this.#peakBytes = 0;
    else this.#arena.resetPeak();
  }

  /**
   * @throws OutOfMemoryError if the global arena has no room even after the threads of this and other such
   * resources, and the pools of this worker, have returned their free memory. It asks other workers to do the
   * same, but does not wait for them.
   */
  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment, this.superblockBytes);
    this.#enter(stream, 'allocate');
    this.assertLive('allocate');
    return bytes === 0 ? 0 : this.#arena.allocate(bytes, stream, alignment);
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, _fence?: DeallocationFence): void {
    assertPointer(pointer);
    assertBytes(bytes);
    this.#enter(stream, 'deallocate');
    if (pointer !== 0) this.#arena.deallocate(pointer, bytes, stream);
  }

  /**
   * Allocates so many bytes for each size, in order, as `allocate` does; all of them, or none, in one native call.
   * @param sizes up to 2^20 sizes in bytes
   * @param pointers where to put the pointers: as many numbers as `sizes` has, in other memory; a new array if left out
   * @returns the pointers, in the places of their sizes; 0 for zero bytes
   * @throws what `allocate` throws; the contents of `pointers` are then of no use
   */
  allocateMany(sizes: Float64Array, stream: Stream, pointers?: Float64Array): Float64Array {
    const places = pointersFor(sizes, pointers);
    assertEachBytes(sizes, 'sizes');
    this.#enter(stream, 'allocate');
    this.assertLive('allocate');
    if (isIntercepted(this)) allocateEach(this, sizes, stream, places);
    else this.#arena.allocateMany(sizes, stream, places);
    return places;
  }

  /**
   * Frees many allocations, whichever threads have allocated them; all of them, or none, with one event under
   * `'eager'` and on streams other than the legacy default stream.
   * @param sizes the bytes of each, as they were asked for
   * @throws what `deallocate` throws; also for a pointer that comes twice
   */
  deallocateMany(pointers: Float64Array, sizes: Float64Array, stream: Stream): void {
    assertManyPairs(pointers, sizes);
    assertEachBytes(pointers, 'pointers');
    assertEachBytes(sizes, 'sizes');
    this.#enter(stream, 'deallocate');
    if (isIntercepted(this)) {
      this.#arena.checkMany(pointers, sizes);
      deallocateEach(this, pointers, sizes, stream);
    } else {
      this.#arena.deallocateMany(pointers, sizes, stream);
    }
  }

  /** The state of the arenas of all threads. Takes time linear in their number. */
  statistics(): ThreadSafeArenaStatistics {
    this.assertLive('read the statistics');
    return Object.freeze(this.#arena.statistics());
  }

  /** @internal A native thread may have allocated what a buffer takes over. */
  readonly [origin]: Origin = {
    ...allocated,
    adopted: (pointer, bytes) => {
      if (bytes > 0) this.#arena.claim(pointer, bytes);
    },
  };

  /** @internal The address of a new table of functions for native threads; see `include/cistern_resource.h`. */
  table(): number {
    this.assertLive('hand out');
    return this.#arena.table();
  }

  /**
   * Ends allocation through this object. Its allocations stay valid, and can still be freed through it;
   * tables that addons have got stay valid, too.
   */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    this.#peakBytes = this.peakReservedBytes;
    super[Symbol.dispose]();
    this.#arena.close();
  }

  /** @internal */
  protected override shown(): object {
    const { name, arenaBytes, deallocationEvents } = this;
    return { name, ...super.shown(), arenaBytes, deallocationEvents };
  }

  #enter(stream: Stream, operation: string): void {
    assertStream(stream, operation);
    // Its events belong to the device's context.
    assertStreamOf(stream, this.device);
  }
}

/** `thread-safe-arena` in a specification. */
export const threadSafeArenaKind = defineUpstream({
  name: 'thread-safe-arena',
  summary: 'memory of a global arena that any thread of an addon can allocate',
  options: {
    name: { type: 'text', summary: "the global arena's name in the process", default: 'default' },
    arenaBytes: { type: 'size', summary: 'the bytes for all workers and threads', default: "half of the device's free memory" },
    superblockBytes: { type: 'size', summary: 'the bytes that a thread takes at once, a power of two', default: '1MiB' },
    memoryKind: { type: 'word', words: globalArenaMemoryKinds, summary: 'the kind of memory', default: 'device' },
    deallocationEvents: {
      type: 'word',
      words: nativeDeallocationPolicies,
      summary: 'when an event is recorded for freed memory',
      default: 'eager',
    },
  },
  example: 'thread-safe-arena(arenaBytes=64MiB)',
  create: ({ device, options }) => new ThreadSafeArenaMemoryResource({ device, ...options }),
});
