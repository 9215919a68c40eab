import { CisternError, formatPointer } from '../basics/errors.js';
import { formatBytes } from '../basics/units.js';
import type { Device } from '../driver/device.js';
import { endWriteGuard, guardWrites, type WriteGuard } from '../driver/memory/guarded-addresses.js';
import { mailbox, NativeStatus, native } from '../driver/native.js';
import { allocationError, check, notReadyStatus, outOfMemoryStatus, repeatWhileStopped } from '../driver/status.js';
import { closeDescriptor, type Descriptor } from './local-socket.js';

/** Memory of a region, mapped into this process. */
export class MappedRegion {
  readonly address: number;
  /** In whole pages. */
  readonly bytes: number;
  readonly #name: string;
  readonly #handle: number;
  readonly #guard: WriteGuard;
  /** Of memory that this process has made, until it is committed. */
  #descriptor: Descriptor | undefined;

  /**
   * @param address where the memory should be; 0: anywhere
   * @param onlyThere whether no other address will do
   * @param imported a descriptor of memory that another process has made, which stays the caller's; absent: makes new memory
   * @throws OutOfMemoryError, DriverError, CisternError (`ERR_CISTERN_REGION_MISMATCH`) if the addresses are taken
   */
  constructor(device: Device, name: string, bytes: number, address: number, onlyThere: boolean, imported?: Descriptor) {
    this.#name = name;
    repeatWhileStopped(() => native().mapLasting(device.index, bytes, address, onlyThere, imported ?? 0));
    const status = mailbox[0] as number;
    if (status === NativeStatus.inUse) {
      throw new CisternError(
        'ERR_CISTERN_REGION_MISMATCH',
        `${name} cannot be mapped: this process uses some of the ${formatBytes(bytes)} of addresses from ${formatPointer(address)} on, where the ` +
          'process that wrote it had it; with the option anyAddress it is mapped elsewhere',
      );
    }
    if (status !== NativeStatus.success) {
      throw allocationError(name, bytes, status, status === outOfMemoryStatus ? device.memoryInfo().freeBytes : undefined);
    }
    this.#handle = mailbox[1] as number;
    this.address = mailbox[2] as number;
    this.bytes = mailbox[3] as number;
    this.#descriptor = (mailbox[4] as number) || undefined;
    this.#guard = { begin: this.address, end: this.address + this.bytes, beforeWrite: refuseWrite };
    if (imported !== undefined) guardWrites(this.#guard);
  }

  /**
   * Waits for the work that is queued on the devices, makes the memory read-only for good, since others may read it from then on, and
   * calls a function with its descriptor.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if a hold or a host function stalls a stream, so that the wait might never end
   */
  commit(send: (descriptor: Descriptor) => void): void {
    repeatWhileStopped(() => native().awaitBeforeSleep(this.#handle));
    const status = mailbox[0] as number;
    if (status === notReadyStatus || status === NativeStatus.inUse) {
      const reason = status === notReadyStatus ? 'a host function or a hold stalls a stream' : 'another worker has a part of it';
      throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot commit ${this.#name}: ${reason}`);
    }
    check('wait before a commit');
    native().protectLasting(this.#handle);
    check('make a region read-only');
    guardWrites(this.#guard);
    try {
      send(this.#descriptor as Descriptor);
    } finally {
      this.#closeDescriptor();
    }
  }

  /** Unmaps the memory once the work that is queued has run. */
  close(): void {
    this.#closeDescriptor();
    endWriteGuard(this.#guard);
    native().freeAddresses(this.#handle);
    check('unmap a region');
  }

  #closeDescriptor(): void {
    if (this.#descriptor !== undefined) closeDescriptor(this.#descriptor);
    this.#descriptor = undefined;
  }
}

/** A device that writes where other processes read would stop working. */
function refuseWrite(pointer: number, _bytes: number, operation: string): never {
  const place = `the memory at ${formatPointer(pointer)} is a committed region that other processes read`;
  throw new CisternError('ERR_CISTERN_READ_ONLY', `cannot ${operation}: ${place}`);
}
