import type { Device } from './device.js';
import { mailbox, NativeStatus, native } from './native.js';
import { allocationError, check, deallocationError, outOfMemoryStatus } from './status.js';

const reservedCurrent = 5;
const reservedHigh = 6;
const usedCurrent = 7;
const usedHigh = 8;
const releaseThreshold = 4;

/** What a stream-ordered pool of the driver holds. */
export interface MemoryPoolUsage {
  /** Bytes that the pool holds of the device's memory, and the most it held. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** Bytes of those that are allocated, and the most there were. */
  readonly usedBytes: number;
  readonly peakUsedBytes: number;
}

/** A stream-ordered memory pool of the driver (`CUmemoryPool`). */
export class DriverMemoryPool implements Disposable {
  readonly device: Device;
  readonly #name: string;
  #handle: number;

  /** @param releaseThresholdBytes what the pool keeps at a synchronization; Infinity keeps everything */
  constructor(device: Device, releaseThresholdBytes: number) {
    this.device = device;
    this.#name = `the stream-ordered pool of device ${device.index}`;
    native().createPool(device.index, releaseThresholdBytes);
    check('create a memory pool');
    this.#handle = mailbox[1] as number;
  }

  /** Bytes the pool gives back down to at a synchronization. */
  get releaseThresholdBytes(): number {
    return this.#attribute(releaseThreshold);
  }

  set releaseThresholdBytes(bytes: number) {
    native().setPoolAttribute(this.#handle, releaseThreshold, bytes);
    check('set the release threshold');
  }

  /** @param streamHandle a native stream handle. Returns -1 for a stream that is gone, so that the caller can say so. */
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

  /** Gives memory that nobody uses back to the device, down to `bytesToKeep`. Frees that no synchronization has seen may count as use. */
  trim(bytesToKeep: number): void {
    native().trimPool(this.#handle, bytesToKeep);
    check('trim a memory pool');
  }

  usage(): MemoryPoolUsage {
    return {
      reservedBytes: this.#attribute(reservedCurrent),
      peakReservedBytes: this.#attribute(reservedHigh),
      usedBytes: this.#attribute(usedCurrent),
      peakUsedBytes: this.#attribute(usedHigh),
    };
  }

  /** Lets the peaks begin again at what is held now. */
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
    throw allocationError(this.#name, bytes, status, status === outOfMemoryStatus ? this.device.memoryInfo().freeBytes : undefined);
  }
}
