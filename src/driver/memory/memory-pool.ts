import { OutOfMemoryError } from '../../basics/errors.js';
import { formatBytes } from '../../basics/units.js';
import type { Device } from '../device.js';
import { mailbox, NativeMemoryKind, NativeStatus, native } from '../native.js';
import { allocationError, check, deallocationError, outOfMemoryStatus } from '../status.js';

const reservedCurrent = 5;
const reservedHigh = 6;
const usedCurrent = 7;
const usedHigh = 8;
const releaseThreshold = 4;

/** How much memory a stream-ordered pool of the driver holds. */
export interface MemoryPoolUsage {
  /** Bytes of device memory that the pool holds, and their peak. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** Bytes of those that are allocated, and their peak. */
  readonly usedBytes: number;
  readonly peakUsedBytes: number;
}

/** What memory a pool can have. */
export type PoolMemoryKind = 'device' | 'managed' | 'pinned-host';

const ofKind = { device: '', managed: 'managed memory of ', 'pinned-host': 'pinned host memory of ' } as const;

/** A pool to create, or one that was created elsewhere. */
export type PoolSource =
  | {
      /** How much free memory the pool keeps at a synchronization; Infinity keeps everything. */
      readonly releaseThresholdBytes: number;
      /** Drivers before CUDA 13 refuse managed memory, those before CUDA 12.6 pinned host memory. */
      readonly memoryKind: PoolMemoryKind;
      /** Whether its memory can be exported to other processes, which must be device memory. */
      readonly isExportable: boolean;
      /** The most that it may hold; Infinity is the driver's own limit. */
      readonly maximumBytes: number;
      /** The NUMA node of pinned host memory. */
      readonly numaNode: number | undefined;
    }
  | {
      /** The driver's own handle (`CUmemoryPool`), or a pool of the device. */
      readonly address: number | 'default' | 'current';
    };

/**
 * A stream-ordered memory pool of the driver (`CUmemoryPool`). Disposing it does not destroy a pool
 * that was created elsewhere.
 */
export class DriverMemoryPool implements Disposable {
  readonly device: Device;
  readonly #name: string;
  readonly #maximumBytes: number = Number.POSITIVE_INFINITY;
  #handle: number;

  constructor(device: Device, source: PoolSource) {
    this.device = device;
    if ('address' in source) {
      const { address } = source;
      const ofDevice = typeof address === 'string' ? `the ${address} pool` : undefined;
      this.#name = `${ofDevice ?? 'a stream-ordered pool'} of device ${device.index}`;
      native().openPool(device.index, typeof address === 'string' ? 0 : address, address === 'current');
      check(ofDevice === undefined ? `use the memory pool with handle ${address}` : `open ${this.#name}`);
    } else {
      const { releaseThresholdBytes, memoryKind, isExportable, maximumBytes, numaNode } = source;
      this.#name = `the stream-ordered pool of ${ofKind[memoryKind]}device ${device.index}`;
      this.#maximumBytes = maximumBytes;
      native().createPool(device.index, releaseThresholdBytes, NativeMemoryKind[memoryKind], isExportable, maximumBytes, numaNode);
      check('create a memory pool');
    }
    this.#handle = mailbox[1] as number;
  }

  /** The driver's own handle. */
  get address(): number {
    native().poolAddress(this.#handle);
    check('read the handle of a memory pool');
    return mailbox[1] as number;
  }

  /** Makes this the pool of the device that `cuMemAllocAsync` uses. */
  makeCurrent(): void {
    native().makePoolCurrent(this.#handle);
    check(`make ${this.#name} the current one`);
  }

  /** At a synchronization the pool returns memory above this many bytes. */
  get releaseThresholdBytes(): number {
    return this.#attribute(releaseThreshold);
  }

  set releaseThresholdBytes(bytes: number) {
    native().setPoolAttribute(this.#handle, releaseThreshold, bytes);
    check('set the release threshold');
  }

  /**
   * @param streamHandle a native stream handle
   * @throws OutOfMemoryError, DriverError, LifetimeError if the stream is gone
   */
  allocate(bytes: number, streamHandle: number): number {
    mailbox[0] = bytes;
    mailbox[1] = this.#handle;
    mailbox[2] = streamHandle;
    native().allocateAsync();
    if (mailbox[0] === NativeStatus.success) return mailbox[1] as number;
    return this.#refuseAllocation(bytes, mailbox[0] as number);
  }

  deallocate(address: number, bytes: number, streamHandle: number): void {
    mailbox[0] = address;
    mailbox[1] = bytes;
    mailbox[2] = this.#handle;
    mailbox[3] = streamHandle;
    native().deallocateAsync();
    if (mailbox[0] !== NativeStatus.success) throw deallocationError(this.#name, address, bytes, mailbox[0] as number);
  }

  /**
   * Returns free memory to the device, down to `bytesToKeep`. Memory may still count as used until
   * a synchronization has covered its free.
   */
  trim(bytesToKeep: number): void {
    native().trimPool(this.#handle, bytesToKeep);
    check('trim a memory pool');
  }

  /**
   * The live allocations of the pool, in the order of their addresses. Takes time linear in their number.
   */
  allocations(): { readonly address: number; readonly bytes: number }[] {
    const pairs = native().poolAllocations(this.#handle);
    check('list the allocations of a memory pool');
    const allocations = Array.from({ length: pairs.length / 2 }, (_, i) => ({
      address: pairs[2 * i] as number,
      bytes: pairs[2 * i + 1] as number,
    }));
    return allocations.sort((a, b) => a.address - b.address);
  }

  usage(): MemoryPoolUsage {
    return {
      reservedBytes: this.#attribute(reservedCurrent),
      peakReservedBytes: this.#attribute(reservedHigh),
      usedBytes: this.#attribute(usedCurrent),
      peakUsedBytes: this.#attribute(usedHigh),
    };
  }

  /** Resets the peaks to the current values. */
  resetPeaks(): void {
    native().setPoolAttribute(this.#handle, reservedHigh, 0);
    check('reset a peak');
    native().setPoolAttribute(this.#handle, usedHigh, 0);
    check('reset a peak');
  }

  [Symbol.dispose](): void {
    if (this.#handle < 0) return;
    native().destroyPool(this.#handle);
    check('destroy a memory pool');
    this.#handle = -1;
  }

  #attribute(number: number): number {
    native().poolAttribute(this.#handle, number);
    check('read an attribute of a memory pool');
    return mailbox[1] as number;
  }

  #refuseAllocation(bytes: number, status: number): never {
    if (status === outOfMemoryStatus && this.#maximumBytes !== Number.POSITIVE_INFINITY) throw this.#outOfMaximum(bytes);
    throw allocationError(this.#name, bytes, status, status === outOfMemoryStatus ? this.device.memoryInfo().freeBytes : undefined);
  }

  #outOfMaximum(bytes: number): OutOfMemoryError {
    const { reservedBytes, usedBytes } = this.usage();
    return new OutOfMemoryError(
      `${this.#name} is out of memory: ${formatBytes(bytes)} (${bytes} bytes) were asked for; it holds ${formatBytes(reservedBytes)}, ` +
        `of which ${formatBytes(usedBytes)} are allocated, and its maximum is ${formatBytes(this.#maximumBytes)}`,
      { requestedBytes: bytes, limitBytes: this.#maximumBytes, path: [this.#name] },
    );
  }
}
