import { CisternError, OutOfMemoryError } from '../../basics/errors.js';
import { alignUp, formatBytes } from '../../basics/units.js';
import type { Device } from '../device.js';
import { mailbox, NativeStatus, native } from '../native.js';
import {
  allocationError,
  check,
  deallocationError,
  notReadyStatus,
  outOfMemoryStatus,
  repeatWhileStopped,
  runHostFunctionsIfReady,
} from '../status.js';
import type { Stream } from '../streams/stream.js';
import { type AddressRange, asleep, beginSleep, endSleep } from './guarded-addresses.js';

/** A range of addresses. */
export interface Extent {
  readonly address: number;
  readonly bytes: number;
}

/** An allocation with more pages has pieces of several. */
const fewestPages = 15;

/**
 * Device memory that is mapped, piece by piece, to a reserved range of addresses. It has no stream
 * order: any stream can use an allocation immediately, and a free waits for its stream. Host
 * functions and stalled streams are handled as in `PlainMemory`.
 */
export class VirtualMemory {
  readonly kind = 'device';
  readonly device: Device;
  /** The size of a page, a power of two. */
  readonly granularityBytes: number;
  /** The size of the range, in whole pages. */
  readonly reservationBytes: number;
  /** The bytes of the pages that are allocated: mapped, unless they are asleep. */
  liveBytes = 0;
  /** The peak of `liveBytes` since `resetPeak`. */
  peakBytes = 0;
  readonly #name: string;
  readonly #range: AddressRange;
  #handle: number;
  /** Whether parts of memory may be kept although they are free. */
  #hasLargePieces = false;
  #isClosed = false;
  #isAsleep = false;

  /**
   * @param reservationBytes at least 1; rounded up to whole pages
   * @throws OutOfMemoryError if the addresses cannot be reserved; DriverError if the device does not
   * support virtual memory.
   */
  constructor(device: Device, reservationBytes: number) {
    this.device = device;
    this.#name = `virtual memory of device ${device.index}`;
    native().reserveAddresses(device.index, reservationBytes);
    if (mailbox[0] === outOfMemoryStatus) {
      throw new OutOfMemoryError(`${this.#name} cannot reserve ${formatBytes(reservationBytes)} (${reservationBytes} bytes) of addresses`, {
        requestedBytes: reservationBytes,
        path: [this.#name],
      });
    }
    check('reserve addresses');
    this.#handle = mailbox[1] as number;
    this.granularityBytes = mailbox[2] as number;
    this.reservationBytes = mailbox[3] as number;
    const begin = mailbox[4] as number;
    this.#range = { begin, end: begin + this.reservationBytes };
  }

  /** Whether uses of the memory are refused, because it is asleep or about to fall asleep. */
  get isAsleep(): boolean {
    return this.#isAsleep;
  }

  set isAsleep(isAsleep: boolean) {
    // Addresses that went back may be of other memory by now.
    this.#isAsleep = isAsleep && this.#handle >= 0;
    if (this.#isAsleep) beginSleep(this.#range);
    else endSleep(this.#range);
  }

  /** The bytes of the pages that are mapped. */
  get mappedBytes(): number {
    if (!this.#isAsleep || this.#handle < 0) return this.liveBytes;
    native().absentBytes(this.#handle);
    check('count the pages that are asleep');
    return this.liveBytes - (mailbox[1] as number);
  }

  /** The bytes of free pages that stay mapped, because the driver unmaps only whole pieces, and the rest of theirs is in use. */
  get keptBytes(): number {
    if (!this.#hasLargePieces || this.#handle < 0) return 0;
    native().absentBytes(this.#handle);
    check('count the pages that are kept');
    return mailbox[2] as number;
  }

  /** The live allocations, by address; adjacent allocations are one extent. */
  liveExtents(): Extent[] {
    if (this.#handle < 0) return [];
    const pairs = native().liveExtents(this.#handle);
    check('list allocations');
    return Array.from({ length: pairs.length / 2 }, (_, i) => ({ address: pairs[2 * i] as number, bytes: pairs[2 * i + 1] as number }));
  }

  /**
   * Waits for everything queued on the devices. Returns false immediately if something stalls a stream,
   * because the wait might never end.
   * @throws CisternError if another worker has part of the memory, or while a stream is captured.
   */
  awaitBeforeSleep(): boolean {
    return this.#withoutStalls('wait before memory sleeps', (handle) => native().awaitBeforeSleep(handle));
  }

  /**
   * The same, and then returns the memory to the device. The allocations keep their addresses. If the
   * driver refuses a part, the rest is returned, and you can repeat the call.
   */
  unmap(): boolean {
    return this.#withoutStalls('unmap memory that sleeps', (handle) => native().unmapVirtual(handle));
  }

  /**
   * Maps new memory to the addresses that `unmap` unmapped.
   * @throws OutOfMemoryError, DriverError; you can repeat the call.
   */
  mapAgain(): void {
    const missingBytes = this.liveBytes - this.mappedBytes;
    if (missingBytes === 0) return;
    repeatWhileStopped(() => native().mapVirtual(this.#handle));
    const status = mailbox[0] as number;
    if (status !== NativeStatus.success) throw this.#allocationError(missingBytes, status);
  }

  /**
   * Maps new pages at the lowest addresses that are free and fit.
   * @param bytes at least 1
   * @throws OutOfMemoryError, DriverError, CisternError (`ERR_CISTERN_ASLEEP`)
   */
  allocate(bytes: number): number {
    if (this.#isAsleep) throw asleep('allocate', this.#name);
    do native().allocateVirtual(this.#handle, bytes);
    while (runHostFunctionsIfReady());
    const status = mailbox[0] as number;
    if (status !== NativeStatus.success) throw this.#allocationError(bytes, status);
    const address = mailbox[1] as number;
    this.liveBytes += alignUp(bytes, this.granularityBytes);
    if (bytes > fewestPages * this.granularityBytes) this.#hasLargePieces = true;
    this.peakBytes = Math.max(this.peakBytes, this.liveBytes + this.keptBytes);
    return address;
  }

  /**
   * Unmaps the pages of an allocation, or any whole pages of adjacent allocations. Memory that is asleep
   * can be freed, too.
   * @throws LifetimeError for memory that is not live here, or not with this size; nothing is then
   * freed.
   */
  deallocate(address: number, bytes: number, stream: Stream): void {
    if (this.#handle < 0) throw deallocationError(this.#name, address, bytes, NativeStatus.foreignPointer);
    do native().deallocateVirtual(this.#handle, address, bytes, stream.handle);
    while (runHostFunctionsIfReady());
    const status = mailbox[0] as number;
    if (status !== NativeStatus.success) throw deallocationError(this.#name, address, bytes, status);
    this.liveBytes -= alignUp(bytes, this.granularityBytes);
    if (this.#isClosed) this.#release();
  }

  /** Resets `peakBytes` to the bytes that are mapped now. */
  resetPeak(): void {
    this.peakBytes = this.liveBytes + this.keptBytes;
  }

  /** Returns the addresses as soon as nothing is mapped. */
  close(): void {
    this.#isClosed = true;
    this.#release();
  }

  #release(): void {
    if (this.liveBytes > 0 || this.#handle < 0) return;
    native().freeAddresses(this.#handle);
    check('free addresses');
    this.#handle = -1;
    if (this.#isAsleep) this.isAsleep = false;
  }

  #withoutStalls(operation: string, call: (handle: number) => void): boolean {
    if (this.#handle < 0) return true;
    repeatWhileStopped(() => call(this.#handle));
    const status = mailbox[0] as number;
    if (status === notReadyStatus) return false;
    if (status === NativeStatus.inUse) {
      throw new CisternError(
        'ERR_CISTERN_INVALID_STATE',
        `cannot ${operation}: a buffer in the ${this.#name} is shared with another worker, or was handed over to it`,
      );
    }
    check(operation);
    return true;
  }

  #allocationError(bytes: number, status: number): Error {
    if (status === NativeStatus.outOfAddresses) {
      return new OutOfMemoryError(
        `${this.#name} has no addresses left: ${formatBytes(bytes)} (${bytes} bytes) were asked for, and ` +
          `${formatBytes(this.liveBytes)} of ${formatBytes(this.reservationBytes)} are in use`,
        { requestedBytes: bytes, path: [this.#name] },
      );
    }
    return allocationError(this.#name, bytes, status, status === outOfMemoryStatus ? this.device.memoryInfo().freeBytes : undefined);
  }
}
