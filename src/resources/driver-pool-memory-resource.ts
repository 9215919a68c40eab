import { ArgumentRangeError, DriverError, formatPointer, invalidValue, throwFirst, UnsupportedError } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertAlignment, assertBytes, assertOptions, assertPointer, optionNames } from '../basics/validation.js';
import { type Device, deviceOption } from '../driver/device.js';
import { DriverMemoryPool, type MemoryPoolUsage, type PoolMemoryKind } from '../driver/memory/memory-pool.js';
import { type PointerInfo, pointerInfo } from '../driver/memory/transfer.js';
import { invalidValueStatus, notSupportedStatus } from '../driver/status.js';
import { assertStream, assertStreamOf, noStream, Stream } from '../driver/streams/stream.js';
import { becomeNeighbour, type Neighbour, nextMoment } from '../kept-memory/neighbours.js';
import {
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type ReservingMemoryResource,
  type TrimmingMemoryResource,
  type TrimOptions,
  trimOptionNames,
} from '../memory-resource.js';
import { rememberedSoFar, takeBack } from '../ownership/bulk-frees.js';
import { isWithin, type Segment } from '../suballocation/blocks.js';
import { LeafMemoryResource } from './leaf-memory-resource.js';

/** Options of {@link ManagedAsyncMemoryResource}. */
export interface ManagedAsyncMemoryResourceOptions {
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
  /**
   * Bytes that the pool reserves when it is created.
   * @defaultValue 0
   */
  readonly initialBytes?: number | undefined;
  /**
   * Free bytes that the pool may keep when a stream, an event or the device is synchronized; the
   * excess is returned to the device.
   * @defaultValue Infinity
   */
  readonly releaseThresholdBytes?: number | undefined;
}

/** @internal */
export const ownPoolOptionNames = optionNames<ManagedAsyncMemoryResourceOptions>({
  device: true,
  initialBytes: true,
  releaseThresholdBytes: true,
});

/** @internal What one kind of pool has besides the options of all. */
export interface OwnPool {
  /** The driver's handle of a pool that was created elsewhere, or a name for a pool of the device; `undefined` creates a pool. */
  readonly address?: number | 'default' | 'current' | undefined;
  readonly isExportable?: boolean | undefined;
  readonly maximumBytes?: number | undefined;
  readonly numaNode?: number | undefined;
}

/**
 * The base of resources that allocate from a stream-ordered pool of the driver. A pool that the
 * resource created is destroyed with it; one that was created elsewhere is not.
 */
export abstract class DriverPoolMemoryResource extends LeafMemoryResource implements ReservingMemoryResource, TrimmingMemoryResource {
  declare readonly memoryKind: 'device' | 'managed' | 'pinned-host';
  readonly #pool: DriverMemoryPool;
  readonly #neighbour = new KeepingPool(this);
  readonly #count: (bytes: number) => void;
  /** The stream of the last call, which has been checked. */
  #lastStream: Stream = noStream;
  /** Allocations remembered since this was made have higher numbers. */
  readonly #remembered = rememberedSoFar();

  /**
   * @internal
   * @param absence what to do without pools of this kind, as a sentence, for a driver that has none
   * @throws OutOfMemoryError if `initialBytes` cannot be allocated; UnsupportedError if the driver has no such pools.
   */
  protected constructor(memoryKind: PoolMemoryKind, options: ManagedAsyncMemoryResourceOptions, pool: OwnPool, absence: string) {
    super(memoryKind, deviceOption(options.device));
    const { initialBytes = 0, releaseThresholdBytes = Number.POSITIVE_INFINITY } = options;
    const { address, isExportable = false, maximumBytes = Number.POSITIVE_INFINITY, numaNode } = pool;
    assertBytes(initialBytes, 'initialBytes');
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    if (maximumBytes < Math.max(initialBytes, 1)) {
      const least = initialBytes > 0 ? `initialBytes (${initialBytes})` : '1';
      throw new ArgumentRangeError(`maximumBytes must be at least ${least}, got ${maximumBytes}`);
    }
    if (releaseThresholdBytes !== Number.POSITIVE_INFINITY) assertBytes(releaseThresholdBytes, 'releaseThresholdBytes');
    try {
      const own = { releaseThresholdBytes, memoryKind, isExportable, maximumBytes, numaNode };
      this.#pool = new DriverMemoryPool(this.device, address === undefined ? own : { address });
    } catch (error) {
      // Drivers from before a special kind of pools was added do not know its arguments.
      const isSpecial = isExportable || memoryKind !== 'device';
      const statuses = isSpecial ? [notSupportedStatus, invalidValueStatus] : [notSupportedStatus];
      const isRefused = error instanceof DriverError && statuses.includes(error.driverStatus);
      throw isRefused ? new UnsupportedError(`the driver does not support pools ${absence}`) : error;
    }
    if (typeof address === 'number') this.#assertPoolOfDevice(address);
    if (initialBytes > 0) this.#prime(initialBytes);
    this.#count = becomeNeighbour(this.#neighbour);
    this.#count(Number.POSITIVE_INFINITY);
  }

  /** @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource is disposed: the pool may be gone. */
  get reservedBytes(): number {
    return this.usage().reservedBytes;
  }

  /** @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource is disposed: the pool may be gone. */
  get peakReservedBytes(): number {
    return this.usage().peakReservedBytes;
  }

  /** @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource is disposed: the pool may be gone. */
  resetPeakReservedBytes(): void {
    this.assertLive('reset the peaks');
    this.#pool.resetPeaks();
  }

  /**
   * The driver's own handle of the pool (a `CUmemoryPool` or `cudaMemPool_t` as an address), for
   * other libraries. Valid until the pool is destroyed.
   *
   * Counterpart of `cuda_async_memory_resource::pool_handle`.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource is disposed.
   */
  get nativeHandle(): number {
    this.assertLive('read the handle of the pool');
    return this.#pool.address;
  }

  /** @internal Implements `makeCurrent` of the derived class. */
  protected makePoolCurrent(): void {
    this.assertLive('make the pool the current one');
    this.#pool.makeCurrent();
  }

  /** Free bytes that the pool may keep at a synchronization; Infinity for all. */
  get releaseThresholdBytes(): number {
    return this.#pool.releaseThresholdBytes;
  }

  /** Reserved and allocated bytes of the pool, now and at their peak. */
  usage(): MemoryPoolUsage {
    this.assertLive('read the usage');
    return this.#pool.usage();
  }

  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    if (stream !== this.#lastStream || stream.handle < 0) this.#enter(stream, 'allocate');
    if (alignment !== ALLOCATION_ALIGNMENT) assertAlignment(alignment, ALLOCATION_ALIGNMENT);
    if (!Number.isSafeInteger(bytes) || bytes <= 0) {
      assertBytes(bytes);
      return 0;
    }
    try {
      return this.#pool.allocate(bytes, stream.handle);
    } catch (error) {
      return this.#allocateWithHelp(error, bytes, stream);
    }
  }

  /** Apart (V8: no capture). */
  #allocateWithHelp(error: unknown, bytes: number, stream: Stream): DevicePointer {
    return this.withNeighbours(error, bytes, stream, () => this.#pool.allocate(bytes, stream.handle));
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, _fence?: DeallocationFence): void {
    if (stream !== this.#lastStream || stream.handle < 0) this.#enter(stream, 'deallocate');
    if (!Number.isSafeInteger(pointer) || pointer <= 0 || !Number.isSafeInteger(bytes) || bytes < 0) {
      assertPointer(pointer);
      assertBytes(bytes);
      return;
    }
    this.#pool.deallocate(pointer, bytes, stream.handle);
  }

  /**
   * Returns unused memory to the device. Does not wait: memory that a stream still uses stays. A
   * free counts only after the driver has seen it complete, and CUDA promises this only if you
   * synchronize after the free. So to return everything that was freed on `stream`, synchronize it
   * first; if `stream` has completed all its work, this call does so. A pool that was created
   * elsewhere returns the unused memory of all its users, and `bytesToKeep` counts the memory of all
   * of them. CUDA's pools for other processes (`exportable`) return nothing before they are destroyed.
   * @returns the returned bytes, 0 or more: by how much the pool has shrunk
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    assertOptions(options, trimOptionNames);
    const { bytesToKeep = 0 } = options;
    assertBytes(bytesToKeep, 'bytesToKeep');
    this.#enter(stream, 'trim');
    // This does not wait, but lets the driver see which memory is free.
    if (stream.query()) stream.synchronizeSync();
    this.assertLive('trim');
    const before = this.reservedBytes;
    this.#pool.trim(bytesToKeep);
    // Other users of the pool may have made it grow meanwhile.
    return Math.max(0, before - this.reservedBytes);
  }

  /**
   * Destroys the pool, unless it was created elsewhere. First disposes the buffers from this
   * resource. Then waits until all work queued on the device, on any stream, has run, and frees
   * other memory that is still allocated through it. If a hold or a host function stalls a stream,
   * this call does not wait, and the memory is freed later.
   * @throws the error of a buffer's free, if the buffer still has its memory; the pool is then not
   * disposed, and you can repeat the call.
   */
  override [Symbol.dispose](): void {
    if (!this.isDisposed) this.#disposeBuffers();
    if (!this.isDisposed) this.#count(Number.NEGATIVE_INFINITY);
    super[Symbol.dispose]();
    this.#lastStream = noStream;
    this.#pool[Symbol.dispose]();
  }

  /** Disposes the buffers whose memory the pool owns. */
  #disposeBuffers(): void {
    let allocations: readonly Segment[] = [];
    let listedAt = -1;
    const has = (pointer: DevicePointer, number: number) => {
      // Host functions may have disposed this meanwhile.
      if (this.isDisposed) return false;
      // Buffers may have been allocated since, by host functions that ran while another was freed.
      if (number > listedAt) {
        listedAt = rememberedSoFar();
        allocations = this.#pool.allocations();
      }
      return isWithin(allocations, pointer);
    };
    const taken = { by: this, since: this.#remembered, reason: `the ${this.constructor.name} is disposed`, has };
    throwFirst(takeBack(taken).map(({ error }) => error));
  }

  /**
   * Finds out where a block of the pool is, because a driver does not say which memory a pool has.
   */
  #assertPoolOfDevice(address: number): void {
    let place: PointerInfo | undefined;
    this.#prime(1, (pointer) => {
      place = pointerInfo(pointer);
    });
    if (place?.memoryKind === 'device' && place.device === this.device.index) return;
    this.#pool[Symbol.dispose]();
    throw invalidValue(
      `pool must be a pool of device memory of device ${this.device.index}, got ${formatPointer(address)}, a pool of ${place?.memoryKind} memory of device ${place?.device}`,
    );
  }

  /** Makes the pool reserve memory by allocating and freeing it. */
  #prime(bytes: number, look: (pointer: DevicePointer) => void = () => {}): void {
    const stream = Stream.legacyDefault(this.device);
    try {
      const pointer = this.#pool.allocate(bytes, stream.handle);
      try {
        look(pointer);
      } finally {
        this.#pool.deallocate(pointer, bytes, stream.handle);
      }
    } catch (error) {
      this.#pool[Symbol.dispose]();
      throw error;
    }
  }

  /** Makes the checks that can fail only if the stream differs from the last call's. */
  #enter(stream: Stream, operation: string): void {
    this.assertLive(operation);
    assertStream(stream, operation);
    if (this.memoryKind === 'device') assertStreamOf(stream, this.device, operation);
    this.#lastStream = stream;
  }
}

/** A pool of the driver, as others on the device see it, who may need its free memory. */
class KeepingPool implements Neighbour {
  readonly resource: DriverPoolMemoryResource;
  readonly below: readonly MemoryResource[];
  readonly name = undefined;
  readonly isTaking = false;
  /** Its calls are not noted. */
  readonly lastMiss = nextMoment();

  constructor(resource: DriverPoolMemoryResource) {
    this.resource = resource;
    this.below = [resource];
  }

  freeBytes(): number {
    try {
      const { reservedBytes, usedBytes } = this.resource.usage();
      return reservedBytes - usedBytes;
    } catch {
      // It is disposed.
      return 0;
    }
  }

  returnFree(stream: Stream): number {
    return this.freeBytes() === 0 ? 0 : this.resource.trim(stream);
  }
}
