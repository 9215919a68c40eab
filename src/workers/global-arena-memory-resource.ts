import { ArgumentRangeError, ArgumentTypeError, formatValue, invalidValue } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT, formatBytes } from '../basics/units.js';
import { assertAlignment, assertBytes, assertName, assertOneOf, assertOptions, assertPointer, optionNames } from '../basics/validation.js';
import { freeUnreachableBuffers } from '../collector/free-unreachable-buffers.js';
import { type Device, deviceOption } from '../driver/device.js';
import { assertStream, assertStreamOf, Stream } from '../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer, GrowingMemoryResource, MemoryResource, TakingMemoryResource } from '../memory-resource.js';
import { ResourcesAbove } from '../observing/resources-above.js';
import { defineUpstream } from '../resource-kind.js';
import { LeafMemoryResource } from '../resources/leaf-memory-resource.js';
import { answerRequests, GlobalArena, type GlobalArenaMemoryKind, globalArenaMemoryKinds, isAsked } from './global-arena.js';

/** Options of {@link GlobalArenaMemoryResource}. */
export interface GlobalArenaMemoryResourceOptions {
  /**
   * The arena's name in the process. Resources with the same name and device, in any worker, use the
   * same arena.
   * @defaultValue `'default'`
   */
  readonly name?: string | undefined;
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
  /**
   * Bytes of the block that the arena takes from the driver when it is first opened, and the most
   * that all workers together can hold of it; at least 1, rounded up to whole superblocks. All
   * resources of an arena that give this option must give the same value.
   * @defaultValue half of the device's free memory, or the value of the open arena
   */
  readonly arenaBytes?: number | undefined;
  /**
   * Bytes of a superblock: a power of two of at least 256. Workers take whole superblocks. Smaller
   * ones waste less memory, but must be taken more often. All resources of an arena that give this
   * option must give the same value.
   * @defaultValue 1 MiB, or the value of the open arena
   */
  readonly superblockBytes?: number | undefined;
  /**
   * The kind of memory. All resources of an arena that give this option must give the same value.
   * @defaultValue `'device'`, or the value of the open arena
   */
  readonly memoryKind?: GlobalArenaMemoryKind | undefined;
  /**
   * If there is no room: the most milliseconds, from 0 to 60,000, for which `allocate` blocks this
   * thread to wait for other workers to return free memory. Each resource has its own value. It does
   * not wait for a worker that was asked that long ago and has not answered since.
   * @defaultValue 20
   */
  readonly waitMilliseconds?: number | undefined;
}

const knownOptions = optionNames<GlobalArenaMemoryResourceOptions>({
  arenaBytes: true,
  device: true,
  memoryKind: true,
  name: true,
  superblockBytes: true,
  waitMilliseconds: true,
});

/** Statistics of a {@link GlobalArenaMemoryResource}, for the whole arena. */
export interface GlobalArenaStatistics {
  /** Bytes that all workers hold of the arena, in whole superblocks. */
  readonly usedBytes: number;
  /** The peak of `usedBytes` since the arena was first opened. */
  readonly peakUsedBytes: number;
  /** The largest free range, in bytes. */
  readonly largestFreeBytes: number;
  /** How many workers have the arena open, or hold memory of it. */
  readonly workers: number;
}

const defaultWaitMilliseconds = 20;
const longestWaitMilliseconds = 60_000;

/**
 * One block of memory that all workers of the process share, and from which pools take superblocks.
 *
 * In each worker, create a resource with the same name, and a pool on it. A pool takes the superblocks
 * that it needs, and serves requests from them without a lock. When the arena has no room, the pools
 * of all workers return the superblocks that are entirely free: this worker's immediately, the others'
 * when they next need memory themselves, or at the next turn of their event loops. `allocate` waits
 * for them for a short time (`waitMilliseconds`), and its error says which have answered. So one
 * worker can use the memory that another one needs only at its peak.
 *
 * `deallocate` frees an allocation, or whole superblocks of adjacent ones.
 *
 * Stream order: a stream that takes superblocks waits for the events with which they were freed, on
 * any stream of any worker. Every free records an event, whatever its fence, because other workers
 * cannot record one later. The host waits only for superblocks of a worker that has ended: they can
 * be taken again after a wait for the devices, which `allocate` makes if there is no room otherwise.
 * Superblocks are aligned to 256 bytes, or to their size if that is larger.
 *
 * `reservedBytes` counts what this worker holds, in whole superblocks; `statistics` counts all
 * workers. The arena ends, and its block is returned to the driver, when no worker has it open or
 * holds memory of it. A worker that ends closes it.
 *
 * RMM's `arena_memory_resource` has a global arena, too, from which the arenas of threads and streams
 * take superblocks. There it is part of that resource, all arenas share one lock, and an arena that
 * runs out stops all others and waits for the device. Here it is a separate resource, for any pool;
 * its lock is held only for a moment, and superblocks come with events.
 * @example
 * ```ts
 * // The same in every worker.
 * using arena = new GlobalArenaMemoryResource({ name: 'service', arenaBytes: 1 * GiB });
 * using pool = new PoolMemoryResource(arena, { deallocationEvents: 'deferred' });
 * using buffer = new DeviceBuffer(1 * MiB, { resource: pool, stream: Stream.perThreadDefault() });
 * console.log(arena.reservedBytes, arena.statistics().usedBytes); // of this worker, and of all
 * ```
 */
export class GlobalArenaMemoryResource extends LeafMemoryResource implements GrowingMemoryResource {
  /** @internal */
  static override readonly name = 'GlobalArenaMemoryResource';
  declare readonly memoryKind: GlobalArenaMemoryKind;
  /** The arena's name in the process. */
  readonly name: string;
  /** The bytes of the arena's block. */
  readonly arenaBytes: number;
  /** The bytes of a superblock. */
  readonly granularityBytes: number;
  /** The most milliseconds that `allocate` waits for other workers. */
  readonly waitMilliseconds: number;
  readonly #arena: GlobalArena;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or one that differs from
   * the open arena's.
   * @throws OutOfMemoryError if the arena's block cannot be allocated.
   */
  constructor(options: GlobalArenaMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { waitMilliseconds = defaultWaitMilliseconds } = options;
    if (typeof waitMilliseconds !== 'number')
      throw new ArgumentTypeError(`waitMilliseconds must be a number, got ${formatValue(waitMilliseconds)}`);
    if (!(Number.isFinite(waitMilliseconds) && waitMilliseconds >= 0 && waitMilliseconds <= longestWaitMilliseconds)) {
      throw new ArgumentRangeError(`waitMilliseconds must be a number from 0 to ${longestWaitMilliseconds}, got ${waitMilliseconds}`);
    }
    const arena = openGlobalArena(options);
    super(arena.kind, arena.device);
    this.#arena = arena;
    this.name = arena.name;
    this.arenaBytes = arena.arenaBytes;
    this.granularityBytes = arena.superblockBytes;
    this.waitMilliseconds = waitMilliseconds;
  }

  /** Bytes that this worker holds of the arena, in whole superblocks. */
  get reservedBytes(): number {
    return this.#arena.liveBytes;
  }

  get peakReservedBytes(): number {
    return this.#arena.peakBytes;
  }

  resetPeakReservedBytes(): void {
    this.#arena.resetPeak();
  }

  /**
   * @throws OutOfMemoryError if the arena has no room even after all workers were asked to return
   * free memory. Its message says how many were asked, which did not answer in time, and how much
   * was returned; the last of its `stages` is `'other-workers'`.
   */
  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment, this.granularityBytes);
    this.#enter(stream, 'allocate');
    this.assertLive('allocate');
    return bytes === 0 ? 0 : this.#arena.allocate(bytes, stream, this.waitMilliseconds);
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, _fence?: DeallocationFence): void {
    assertPointer(pointer);
    assertBytes(bytes);
    this.#enter(stream, 'deallocate');
    if (pointer !== 0) this.#arena.deallocate(pointer, bytes, stream);
  }

  /** The state of the whole arena. Takes time linear in the number of ranges that workers hold. */
  statistics(): GlobalArenaStatistics {
    this.assertLive('read the statistics');
    const { environments, ...usage } = this.#arena.usage();
    return Object.freeze({ ...usage, workers: environments });
  }

  override isEqual(other: MemoryResource): boolean {
    return other instanceof GlobalArenaMemoryResource && other.#arena === this.#arena;
  }

  /** @internal */
  trimOnRequest(user: TakingMemoryResource): void {
    usersOf(this.#arena).add(user);
  }

  /** @internal */
  answerRequests(): boolean {
    if (!isAsked()) return false;
    answerRequests();
    return true;
  }

  /**
   * Ends allocation through this object. Its allocations stay valid; free them through it, or
   * through an equal resource of this worker.
   */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    super[Symbol.dispose]();
    this.#arena.close();
  }

  /** @internal */
  protected override shown(): object {
    const { name, arenaBytes, reservedBytes } = this;
    return { name, ...super.shown(), arenaBytes, reservedBytes };
  }

  #enter(stream: Stream, operation: string): void {
    assertStream(stream, operation);
    if (this.memoryKind === 'device') assertStreamOf(stream, this.device);
  }
}

/**
 * Opens the global arena that options describe.
 * @throws ArgumentTypeError, ArgumentRangeError, OutOfMemoryError
 */
export function openGlobalArena(options: Omit<GlobalArenaMemoryResourceOptions, 'waitMilliseconds'>): GlobalArena {
  const { name = 'default', arenaBytes, superblockBytes, memoryKind } = options;
  assertName(name, 'name');
  if (arenaBytes !== undefined) assertBytes(arenaBytes, 'arenaBytes');
  if (arenaBytes === 0) throw new ArgumentRangeError('arenaBytes must be at least 1, got 0');
  if (superblockBytes !== undefined) assertSuperblock(superblockBytes);
  if (memoryKind !== undefined) assertOneOf(memoryKind, globalArenaMemoryKinds, 'memoryKind');
  return GlobalArena.open({ name, device: deviceOption(options.device), kind: memoryKind, arenaBytes, superblockBytes });
}

/** The resources above an arena that can return superblocks. Does not keep them alive. */
class ArenaUsers {
  readonly #arena: GlobalArena;
  readonly #users = new ResourcesAbove<TakingMemoryResource>();
  /** The stream on which superblocks are returned, so that the program's streams do not wait for each other. */
  #stream: Stream | undefined;
  #isTrimming = false;

  constructor(arena: GlobalArena) {
    this.#arena = arena;
    arena.giveBack = () => this.#giveBack();
  }

  add(user: TakingMemoryResource): void {
    this.#users.add(user);
  }

  #giveBack(): void {
    if (this.#isTrimming) return;
    this.#isTrimming = true;
    try {
      freeUnreachableBuffers();
      this.#stream ??= new Stream({ device: this.#arena.device, nonBlocking: true });
      for (const user of this.#users.fromTheTop()) trimIfPossible(user, this.#stream);
    } catch {
      // Without a stream, nothing is returned.
    } finally {
      this.#isTrimming = false;
    }
  }
}

const users = new WeakMap<GlobalArena, ArenaUsers>();

function usersOf(arena: GlobalArena): ArenaUsers {
  const found = users.get(arena) ?? new ArenaUsers(arena);
  users.set(arena, found);
  return found;
}

function trimIfPossible(user: TakingMemoryResource, stream: Stream): void {
  // The resource that asks returns what it can on its own stream. If it returned memory on another
  // stream, that memory would be held back from it under 'off', and it would ask again, endlessly.
  if (user.isTaking) return;
  try {
    user.trim(stream);
  } catch {
    // It is disposed, or the driver refuses: it returns nothing more.
  }
}

function assertSuperblock(superblockBytes: number): void {
  assertBytes(superblockBytes, 'superblockBytes');
  if (superblockBytes >= ALLOCATION_ALIGNMENT && Number.isInteger(Math.log2(superblockBytes))) return;
  throw invalidValue(`superblockBytes must be a power of two of at least ${formatBytes(ALLOCATION_ALIGNMENT)}, got ${superblockBytes}`);
}

/** `global-arena` in a specification. */
export const globalArenaKind = defineUpstream({
  name: 'global-arena',
  summary: 'one block of memory for all workers, which take superblocks from it',
  options: {
    name: { type: 'text', summary: 'its name in the process', default: 'default' },
    arenaBytes: { type: 'size', summary: 'the bytes for all workers', default: "half of the device's free memory" },
    superblockBytes: { type: 'size', summary: 'the bytes that a worker takes at once, a power of two', default: '1MiB' },
    memoryKind: { type: 'word', words: globalArenaMemoryKinds, summary: 'the kind of memory', default: 'device' },
    waitMilliseconds: { type: 'number', summary: 'how long to wait for other workers to return memory', default: '20' },
  },
  example: 'global-arena(arenaBytes=64MiB)',
  create: ({ device, options }) => new GlobalArenaMemoryResource({ device, ...options }),
});
