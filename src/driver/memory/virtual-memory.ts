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
import { asleep, beginSleep, endSleep, type SleepingRange } from './asleep.js';

/** A range of addresses. */
export interface Extent {
  readonly address: number;
  readonly bytes: number;
}

/**
 * Device memory that is mapped, page by page, to a reserved range of addresses. Without stream
 * order: every stream may use an allocation at once, and a free waits for its stream. What is said
 * of host functions and stalled streams in `PlainMemory` holds here too.
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
  readonly #range: SleepingRange;
  #handle: number;
  #isClosed = false;
  #isAsleep = false;

  /**
   * @param reservationBytes at least 1; rounded up to whole pages
   * @throws OutOfMemoryError if so many addresses cannot be reserved; DriverError if the device does
   * not support virtual memory.
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

  /** Whether uses of the memory are refused, because it is asleep or about to be. */
  get isAsleep(): boolean {
    return this.#isAsleep;
  }

  set isAsleep(isAsleep: boolean) {
    this.#isAsleep = isAsleep;
    if (isAsleep) beginSleep(this.#range);
    else endSleep(this.#range);
  }

  /** The bytes of the pages that are mapped. */
  get mappedBytes(): number {
    if (!this.#isAsleep || this.#handle < 0) return this.liveBytes;
    native().absentBytes(this.#handle);
    check('count the pages that are asleep');
    return this.liveBytes - (mailbox[1] as number);
  }

  /** What is allocated, by address; adjacent allocations are one extent. */
  liveExtents(): Extent[] {
    if (this.#handle < 0) return [];
    const pairs = native().liveExtents(this.#handle);
    check('list allocations');
    return Array.from({ length: pairs.length / 2 }, (_, i) => ({ address: pairs[2 * i] as number, bytes: pairs[2 * i + 1] as number }));
  }

  /**
   * Waits for everything that is queued on the devices. Returns false, at once, if something stalls a stream,
   * so that the wait might never end.
   * @throws CisternError if another worker has a part of the memory, or while a stream is captured.
   */
  awaitBeforeSleep(): boolean {
    return this.#withoutStalls('wait before memory sleeps', (handle) => native().awaitBeforeSleep(handle));
  }

  /**
   * The same, and then gives the memory back to the device. The allocations keep their addresses. If the
   * driver refuses a part, the rest is given back, and the call can be repeated.
   */
  unmap(): boolean {
    return this.#withoutStalls('unmap memory that sleeps', (handle) => native().unmapVirtual(handle));
  }

  /**
   * Maps new memory where `unmap` took it away.
   * @throws OutOfMemoryError, DriverError; the call can be repeated.
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
    if (this.liveBytes > this.peakBytes) this.peakBytes = this.liveBytes;
    return address;
  }

  /**
   * Unmaps the pages of an allocation, or any whole pages of adjacent allocations. What is asleep can be
   * freed like anything else.
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
    this.peakBytes = this.liveBytes;
  }

  /** Gives the addresses back as soon as nothing is mapped. */
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
        `cannot ${operation}: a buffer in the ${this.#name} is shared with another worker, or was given to it`,
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
