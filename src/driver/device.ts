import { ArgumentRangeError, ArgumentTypeError, formatValue, invalidValue, UnsupportedError } from '../basics/errors.js';
import { markCopy } from '../package/copy.js';
import { type Backend, currentBackend } from './backend.js';
import { letGoOfEnded } from './graphs/user-objects.js';
import { mailbox, NativeStatus, native } from './native.js';
import { nvmlUsage } from './nvml.js';
import { check, checkBlocking, peerAccessUnsupportedStatus, statusError } from './status.js';
import { StreamIdentity } from './streams/stream-identity.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from './workers/local-object.js';

/** Where memory is and who can access it. */
export type MemoryKind = 'device' | 'managed' | 'pinned-host' | 'host';

/** How much memory a device has. */
export interface DeviceMemoryInfo {
  readonly freeBytes: number;
  readonly totalBytes: number;
}

/** The name of a device attribute. */
export type DeviceAttribute =
  | 'multiprocessorCount'
  | 'unifiedAddressing'
  | 'computeCapabilityMajor'
  | 'computeCapabilityMinor'
  | 'managedMemory'
  | 'pageableMemoryAccess'
  | 'concurrentManagedAccess'
  | 'canUseHostPointerForRegisteredMemory'
  | 'integrated'
  | 'hostRegisterSupported'
  | 'pageableMemoryAccessUsesHostPageTables'
  | 'directManagedMemoryAccessFromHost'
  | 'virtualMemoryManagementSupported'
  | 'memoryPoolsSupported';

/** CUDA's numbers for the attributes. */
const attributes: Readonly<Record<DeviceAttribute, number>> = {
  multiprocessorCount: 16,
  integrated: 18,
  unifiedAddressing: 41,
  computeCapabilityMajor: 75,
  computeCapabilityMinor: 76,
  managedMemory: 83,
  pageableMemoryAccess: 88,
  concurrentManagedAccess: 89,
  canUseHostPointerForRegisteredMemory: 91,
  hostRegisterSupported: 99,
  pageableMemoryAccessUsesHostPageTables: 100,
  directManagedMemoryAccessFromHost: 101,
  virtualMemoryManagementSupported: 102,
  memoryPoolsSupported: 115,
};

/** The driver's handle of the legacy default stream. */
const legacyDefaultHandle = 1;

const devices: Device[] = [];
let deviceCount: number | undefined;

/**
 * A GPU, or the software device that stands in for one. Each environment has one object per device;
 * get it with {@link Device.get}.
 *
 * Counterpart of `rmm::cuda_device_id`.
 * @example
 * ```ts
 * const device = Device.get();
 * const { freeBytes } = device.memoryInfo();
 * ```
 */
export class Device {
  /** The ordinal, from 0. */
  readonly index: number;
  /** Whether the device is a GPU or a software device. */
  readonly backend: Backend;
  readonly name: string;
  /** The UUID as 32 lower-case hexadecimal digits. */
  readonly uuid: string;
  /** The total memory of the device, in bytes. */
  readonly totalBytes: number;
  /**
   * The devices to whose memory this worker has enabled access, and whether the access is still
   * enabled.
   */
  readonly #peers = new Map<Device, boolean>();

  private constructor(index: number) {
    refuseCloning(this);
    this.index = index;
    this.backend = currentBackend();
    this.name = native().deviceName(index);
    check(`open device ${index}`);
    this.uuid = native().deviceUuid(index);
    check(`open device ${index}`);
    native().deviceTotalBytes(index);
    check(`open device ${index}`);
    this.totalBytes = mailbox[1] as number;
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { index: this.index, backend: this.backend, name: this.name, totalBytes: this.totalBytes }, inspection);
  }

  /** How many devices there are. */
  static count(): number {
    if (deviceCount === undefined) {
      currentBackend();
      native().deviceCount();
      check('count devices');
      deviceCount = mailbox[1] as number;
    }
    return deviceCount;
  }

  /**
   * A device by its ordinal.
   * @throws ArgumentRangeError if there is no such device.
   */
  static get(index = 0): Device {
    if (typeof index !== 'number') throw new ArgumentTypeError(`device must be a number, got ${formatValue(index)}`);
    const known = devices[index];
    if (known !== undefined) return known;
    const count = Device.count();
    if (!Number.isInteger(index) || index < 0 || index >= count) {
      throw new ArgumentRangeError(`device must be an integer from 0 to ${count - 1}, got ${index}`);
    }
    const device = new Device(index);
    devices[index] = device;
    return device;
  }

  /** The driver's version as CUDA numbers it: 13000 is 13.0. */
  static driverVersion(): number {
    currentBackend();
    native().driverVersion();
    check('read the driver version');
    return mailbox[1] as number;
  }

  /**
   * Free and total memory now, in bytes. Asking about a device that the process does not use leaves nothing on it: NVML is asked, or, without it,
   * the driver in a context that then ends.
   *
   * Counterpart of `rmm::available_device_memory`.
   */
  memoryInfo(): DeviceMemoryInfo {
    const usage = this.backend === 'cuda' && !this.#isInUse ? nvmlUsage(this.uuid) : undefined;
    if (usage !== undefined) return { freeBytes: Math.min(usage.freeBytes, this.totalBytes), totalBytes: this.totalBytes };
    native().deviceMemoryInfo(this.index);
    check('read the memory of a device');
    return { freeBytes: mailbox[1] as number, totalBytes: mailbox[2] as number };
  }

  get #isInUse(): boolean {
    native().deviceIsInUse(this.index);
    return mailbox[1] === 1;
  }

  /** The value of an attribute. Flags are 0 or 1. */
  attribute(name: DeviceAttribute): number {
    const number = Object.hasOwn(attributes, name) ? attributes[name] : undefined;
    if (number === undefined) {
      throw invalidValue(`a device attribute must be one of ${Object.keys(attributes).join(', ')}, got ${formatValue(name)}`);
    }
    native().deviceAttribute(this.index, number);
    check(`read attribute ${name}`);
    return mailbox[1] as number;
  }

  /**
   * The range of stream priorities: the least urgent (numerically greatest) and the most urgent.
   */
  streamPriorityRange(): { readonly least: number; readonly greatest: number } {
    native().deviceStreamPriorityRange(this.index);
    check('read the priority range');
    return { least: mailbox[1] as number, greatest: mailbox[2] as number };
  }

  /**
   * Resolves once all work that was queued before this call has run, on the streams that this
   * environment uses and on every blocking stream. Does not block the event loop.
   *
   * It covers other code's non-blocking streams only if this environment uses them and their end is
   * announced ({@link ForeignStreamOptions.announcesEnd}), because others may already be destroyed.
   * {@link Device.synchronizeSync} waits for those too.
   */
  async synchronize(): Promise<void> {
    const identities = StreamIdentity.ofDevice(this.index).filter((identity) => identity.announcesEnd);
    const complete = StreamIdentity.beginSynchronizations(identities);
    native().wrapStream(this.index, legacyDefaultHandle);
    check(`synchronize device ${this.index}`);
    const legacyDefault = mailbox[1] as number;
    const handles = [legacyDefault, ...identities.map((identity) => identity.handle)];
    const statuses = await Promise.all(handles.map((handle) => native().streamCompletion(handle)));
    native().releaseStream(legacyDefault);
    for (const status of statuses) if (status !== NativeStatus.success) throw statusError(`synchronize device ${this.index}`, status);
    complete();
    letGoOfEnded();
  }

  /**
   * Blocks until everything queued on every stream of the device has run; host functions of this
   * thread run meanwhile. It returns only when no host function of this thread is outstanding. So a
   * host function that always queues another keeps it from returning, which does not happen when
   * you synchronize a single stream.
   */
  synchronizeSync(): void {
    const complete = StreamIdentity.beginDeviceSynchronization(this.index);
    checkBlocking(`synchronize device ${this.index}`, () => native().synchronizeDevice(this.index));
    complete();
  }

  /**
   * Whether streams of this device can be given access to device memory of another one. False for
   * the device itself. Copies between devices do not need access: without it, the driver copies
   * through the host.
   * @throws ArgumentTypeError if `peer` is not a device.
   */
  canAccessPeer(peer: Device): boolean {
    const { index } = assertDevice(peer);
    native().canAccessPeer(this.index, index);
    check(`ask whether device ${this.index} can access memory of device ${index}`);
    return mailbox[1] === 1;
  }

  /**
   * Lets streams of this device use device memory of `peer`: in kernels and fills, and as streams of
   * its resources and buffers. For the other direction, make another call. The access is to
   *
   * - plain memory (`cuMemAlloc`) of the whole process, since the driver sets this for contexts;
   * - memory of this worker's {@link CudaAsyncMemoryResource}s and {@link VirtualMemoryResource}s,
   *   present and future, but not of pools that were created elsewhere.
   *
   * So if a worker hands memory of a pool over to another one, both the sender and the receiver
   * must enable the access. Enabling access twice does nothing.
   * @returns whether this worker had not enabled it before
   * @throws ArgumentTypeError, ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if `peer` is not another device.
   * @throws UnsupportedError if the devices cannot reach each other; DriverError. The access is then
   * as it was.
   * @example
   * ```ts
   * const [first, second] = [Device.get(0), Device.get(1)];
   * if (second.canAccessPeer(first)) second.enablePeerAccess(first);
   * ```
   */
  enablePeerAccess(peer: Device): boolean {
    const { index } = assertPeer(this, peer);
    native().enablePeerAccess(this.index, index);
    if (mailbox[0] === peerAccessUnsupportedStatus) {
      throw new UnsupportedError(
        `device ${this.index} cannot be given access to memory of device ${index}: the devices cannot reach each other; copies between them still work`,
      );
    }
    check(`enable access of device ${this.index} to memory of device ${index}`);
    const isNew = mailbox[1] === 1;
    this.#peers.set(peer, true);
    return isNew;
  }

  /**
   * Disables the access that {@link Device.enablePeerAccess} enabled; for plain memory, in the whole
   * process, also if other workers have enabled it. Blocks until everything queued on this device has run; host functions of this thread run
   * meanwhile. Resources still accept frees on streams of this device.
   * @returns whether this worker had enabled it
   * @throws ArgumentTypeError, ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if `peer` is not another device.
   * @throws DriverError. The access to some of the memory may then be disabled; you can repeat the call.
   */
  disablePeerAccess(peer: Device): boolean {
    const { index } = assertPeer(this, peer);
    checkBlocking(`disable access of device ${this.index} to memory of device ${index}`, () =>
      native().disablePeerAccess(this.index, index),
    );
    const wasEnabled = mailbox[1] === 1;
    if (wasEnabled) this.#peers.set(peer, false);
    return wasEnabled;
  }

  /** @internal Whether this worker has enabled access to memory of another device. */
  hasAccessTo(peer: Device): boolean {
    return this.#peers.get(peer) === true;
  }

  /** @internal The same, including access that was disabled since. */
  hasHadAccessTo(peer: Device): boolean {
    return this.#peers.has(peer);
  }
}

function assertDevice(device: unknown): Device {
  if (device instanceof Device) return device;
  throw new ArgumentTypeError(`peer must be a Device, got ${formatValue(device)}`);
}

function assertPeer(device: Device, peer: unknown): Device {
  if (assertDevice(peer) !== device) return peer as Device;
  throw invalidValue(`peer must be a different device, got device ${device.index} itself`);
}

markCopy(Device);

/**
 * @internal Whether streams of a device may have used memory of another, and so may have to free it,
 * including access that was disabled.
 */
export function mayUseMemoryOf(device: Device, owner: Device): boolean {
  return device === owner || device.hasHadAccessTo(owner);
}

/** @internal The devices whose streams may use memory. */
export function devicesUsing(memoryKind: MemoryKind, owner: Device): Device[] {
  return usedDevices().filter((device) => memoryKind !== 'device' || mayUseMemoryOf(device, owner));
}

/** @internal The devices that this environment has used. Opens none. */
export function usedDevices(): Device[] {
  return devices.filter((device) => device !== undefined);
}

/** The device that an option names; the first device by default. */
export function deviceOption(device: Device | undefined): Device {
  if (device === undefined) return Device.get();
  if (device instanceof Device) return device;
  const cure = typeof device === 'number' ? `; write Device.get(${device})` : '';
  throw new ArgumentTypeError(`device must be a Device, got ${formatValue(device)}${cure}`);
}
