import { Device, type MemoryKind } from '../device.js';
import { mailbox, NativeMemoryKind, NativeStatus, native, registeredHostKind } from '../native.js';
import { allocationError, deallocationError, outOfMemoryStatus } from '../status.js';

/**
 * Memory of one kind on one device, straight from the driver and without stream order: any stream
 * can use an allocation immediately, and a free waits for its stream (for host memory, its resource
 * waits instead). One object per kind and device counts the memory; registered memory has its own.
 *
 * The driver may wait for the whole device, in a free and in an allocation. So allocations and frees first run
 * outstanding host functions, and neither is permitted inside a host function, except for memory of kind `host`. If
 * a hold or another thread stalls a stream, memory is freed later.
 */
export class PlainMemory {
  readonly kind: MemoryKind;
  readonly device: Device;
  /** Bytes allocated and not freed. */
  liveBytes = 0;
  /** The peak of `liveBytes` since `resetPeak`. */
  peakBytes = 0;
  readonly #name: string;
  readonly #number: number;

  private constructor(kind: MemoryKind, device: Device, isRegistered: boolean) {
    this.kind = kind;
    this.device = device;
    this.#name = `${kind} memory of device ${device.index}`;
    this.#number = isRegistered ? registeredHostKind : NativeMemoryKind[kind];
  }

  static readonly #known = new Map<string, PlainMemory>();

  /** @param isRegistered of kind `pinned-host`: cistern maps the memory, and registers it with the driver */
  static of(kind: MemoryKind, device: Device, isRegistered = false): PlainMemory {
    const key = `${kind}:${device.index}:${isRegistered}`;
    let memory = PlainMemory.#known.get(key);
    if (memory === undefined) {
      memory = new PlainMemory(kind, device, isRegistered);
      PlainMemory.#known.set(key, memory);
    }
    return memory;
  }

  /**
   * @param bytes at least 1
   * @param alignment a power of two of at least 256; kinds other than `host` guarantee 256 only
   * @param populateThreads of registered memory: how many threads clear it before the driver pins it
   * @throws OutOfMemoryError, DriverError
   */
  allocate(bytes: number, alignment: number, populateThreads = 1): number {
    for (;;) {
      mailbox[0] = bytes;
      mailbox[1] = this.#number;
      mailbox[2] = this.device.index;
      mailbox[3] = alignment;
      mailbox[4] = populateThreads;
      native().allocate();
      const status = mailbox[0] as number;
      if (status === NativeStatus.success) break;
      if (status !== NativeStatus.hostFunctionReady) throw this.#allocationError(bytes, status);
      native().runHostFunctions();
    }
    const address = mailbox[1] as number;
    this.liveBytes += bytes;
    if (this.liveBytes > this.peakBytes) this.peakBytes = this.liveBytes;
    return address;
  }

  /**
   * @throws LifetimeError for memory that is not live here with this size; nothing is then freed.
   */
  deallocate(address: number, bytes: number, stream: { readonly handle: number }): void {
    for (;;) {
      mailbox[0] = address;
      mailbox[1] = bytes;
      mailbox[2] = this.#number;
      mailbox[3] = this.device.index;
      mailbox[4] = stream.handle;
      native().deallocate();
      const status = mailbox[0] as number;
      if (status === NativeStatus.success) break;
      if (status !== NativeStatus.hostFunctionReady) throw deallocationError(this.#name, address, bytes, status);
      native().runHostFunctions();
    }
    this.liveBytes -= bytes;
  }

  /** Resets `peakBytes` to the bytes that are live now. */
  resetPeak(): void {
    this.peakBytes = this.liveBytes;
  }

  #allocationError(bytes: number, status: number): Error {
    const onDevice = this.kind === 'device' && status === outOfMemoryStatus;
    return allocationError(this.#name, bytes, status, onDevice ? this.device.memoryInfo().freeBytes : undefined);
  }
}

/**
 * The attribute for want of which a device cannot use registered host memory, and the device. One address must do for
 * the host and for every device.
 */
export function lackForRegisteredMemory(): { attribute: string; device: number } | undefined {
  for (let device = 0; device < Device.count(); device++) {
    for (const attribute of ['hostRegisterSupported', 'canUseHostPointerForRegisteredMemory'] as const) {
      if (Device.get(device).attribute(attribute) !== 1) return { attribute, device };
    }
  }
  return undefined;
}
