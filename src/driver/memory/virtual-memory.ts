import { OutOfMemoryError } from '../../basics/errors.js';
import { alignUp, formatBytes } from '../../basics/units.js';
import type { Device } from '../device.js';
import { mailbox, NativeStatus, native } from '../native.js';
import { allocationError, check, deallocationError, outOfMemoryStatus, runHostFunctionsIfReady } from '../status.js';
import type { Stream } from '../streams/stream.js';

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
  /** The bytes of the mapped pages. */
  liveBytes = 0;
  /** The peak of `liveBytes` since `resetPeak`. */
  peakBytes = 0;
  readonly #name: string;
  #handle: number;
  #isClosed = false;

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
  }

  /**
   * Maps new pages at the lowest addresses that are free and fit.
   * @param bytes at least 1
   * @throws OutOfMemoryError, DriverError
   */
  allocate(bytes: number): number {
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
   * Unmaps the pages of an allocation, or any whole pages of adjacent allocations.
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
