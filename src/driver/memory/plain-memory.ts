import { availableParallelism } from 'node:os';
import { MiB } from '../../basics/units.js';
import { Device, type MemoryKind } from '../device.js';
import { mailbox, NativeMemoryKind, NativeStatus, native } from '../native.js';
import { allocationError, deallocationError, outOfMemoryStatus } from '../status.js';

/** What each thread that clears pinned memory has to clear, at least. */
const leastBytesOfThread = 16 * MiB;
/** No more were tried on a GPU. */
const mostThreads = 16;

/**
 * Memory of one kind on one device, straight from the driver and without stream order: any stream
 * can use an allocation immediately, and a free waits for its stream (for host memory, its resource
 * waits instead). One object per kind and device counts the memory.
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

  private constructor(kind: MemoryKind, device: Device) {
    this.kind = kind;
    this.device = device;
    this.#name = `${kind} memory of device ${device.index}`;
    this.#number = NativeMemoryKind[kind];
  }

  static readonly #known = new Map<string, PlainMemory>();

  static of(kind: MemoryKind, device: Device): PlainMemory {
    const key = `${kind}:${device.index}`;
    let memory = PlainMemory.#known.get(key);
    if (memory === undefined) {
      memory = new PlainMemory(kind, device);
      PlainMemory.#known.set(key, memory);
    }
    return memory;
  }

  /**
   * @param bytes at least 1
   * @param alignment a power of two of at least 256; kinds other than `host` guarantee 256 only
   * @param populateThreads of pinned memory: how many threads clear it before it is registered with the driver; 0: the driver
   * clears it itself. By default as many as it takes, or the driver, if it refuses
   * @throws OutOfMemoryError, DriverError
   */
  allocate(bytes: number, alignment: number, populateThreads?: number): number {
    const threads = populateThreads ?? (bytes < leastBytesOfThread ? 0 : this.#threadsFor(bytes));
    for (;;) {
      mailbox[0] = bytes;
      mailbox[1] = this.#number;
      mailbox[2] = this.device.index;
      mailbox[3] = alignment;
      mailbox[4] = threads;
      mailbox[5] = populateThreads === undefined ? 1 : 0;
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

  /**
   * As many as have something to do and a processor. None where the driver's own memory costs nothing before it is touched, where registered memory
   * is not locked (the device uses the host's page tables), and where nobody has tried: on devices that share the host's memory, and other
   * systems.
   */
  #threadsFor(bytes: number): number {
    const { kind, device } = this;
    if (kind !== 'pinned-host' || device.backend === 'software' || process.platform !== 'linux') return 0;
    if (device.attribute('integrated') !== 0 || device.attribute('pageableMemoryAccessUsesHostPageTables') !== 0) return 0;
    if (lackForRegisteredMemory() !== undefined) return 0;
    return Math.min(Math.floor(bytes / leastBytesOfThread), mostThreads, availableParallelism());
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
