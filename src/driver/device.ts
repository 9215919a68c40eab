import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../errors.js';
import { type Backend, currentBackend } from './backend.js';
import { type Inspect, type InspectionOptions, inspected, inspectObject, refuseCloning } from './local-object.js';
import { mailbox, NativeStatus, native } from './native.js';
import { check, checkBlocking, statusError } from './status.js';
import { StreamTimeline } from './stream-timeline.js';

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
  | 'memoryPoolsSupported';

/** CUDA's numbers for them. */
const attributes: Readonly<Record<DeviceAttribute, number>> = {
  multiprocessorCount: 16,
  unifiedAddressing: 41,
  computeCapabilityMajor: 75,
  computeCapabilityMinor: 76,
  managedMemory: 83,
  pageableMemoryAccess: 88,
  concurrentManagedAccess: 89,
  memoryPoolsSupported: 115,
};

/** The driver's handle of the legacy default stream. */
const legacyDefaultHandle = 1;

const devices: Device[] = [];
let deviceCount: number | undefined;

/**
 * A GPU, or the software device that stands in for one. There is one object per device and environment; get it with {@link Device.get}.
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
  /** What kind of device it is. */
  readonly backend: Backend;
  readonly name: string;
  /** 32 lower-case hexadecimal digits. */
  readonly uuid: string;
  /** All the memory of the device, in bytes. */
  readonly totalBytes: number;

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
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(
      this,
      { index: this.index, backend: this.backend, name: this.name, totalBytes: this.totalBytes },
      depth,
      options,
      inspect,
    );
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
   * @throws ArgumentRangeError where there is no such device.
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

  /** Free and total memory now, in bytes. Counterpart of `rmm::available_device_memory`. */
  memoryInfo(): DeviceMemoryInfo {
    native().deviceMemoryInfo(this.index);
    check('read the memory of a device');
    return { freeBytes: mailbox[1] as number, totalBytes: mailbox[2] as number };
  }

  /** The value of an attribute; 0 and 1 stand for no and yes. */
  attribute(name: DeviceAttribute): number {
    const number = Object.hasOwn(attributes, name) ? attributes[name] : undefined;
    if (number === undefined) {
      throw new ArgumentRangeError(
        `a device attribute must be one of ${Object.keys(attributes).join(', ')}, got ${formatValue(name)}`,
        'ERR_INVALID_ARG_VALUE',
      );
    }
    native().deviceAttribute(this.index, number);
    check(`read attribute ${name}`);
    return mailbox[1] as number;
  }

  /** The least (numerically greatest) and the greatest priority of a stream. */
  streamPriorityRange(): { readonly least: number; readonly greatest: number } {
    native().deviceStreamPriorityRange(this.index);
    check('read the priority range');
    return { least: mailbox[1] as number, greatest: mailbox[2] as number };
  }

  /**
   * Resolves once everything has run that is queued by now on the streams this environment uses, and on every stream that is not
   * non-blocking. Streams that other code made non-blocking are waited for by {@link Device.synchronizeSync} alone, and so are those of them
   * that this environment uses without a promise that their end is announced ({@link ForeignStreamOptions.announcesEnd}): they may be gone.
   * The event loop goes on.
   */
  async synchronize(): Promise<void> {
    const timelines = StreamTimeline.ofDevice(this.index).filter((timeline) => timeline.announcesEnd);
    const complete = StreamTimeline.beginSynchronizations(timelines);
    native().wrapStream(this.index, legacyDefaultHandle);
    check(`synchronize device ${this.index}`);
    const legacyDefault = mailbox[1] as number;
    const handles = [legacyDefault, ...timelines.map((timeline) => timeline.handle)];
    const statuses = await Promise.all(handles.map((handle) => native().streamCompletion(handle)));
    native().releaseStream(legacyDefault);
    for (const status of statuses) if (status !== NativeStatus.success) throw statusError(`synchronize device ${this.index}`, status);
    complete();
  }

  /**
   * Blocks until everything queued on every stream of the device has run; host functions of this thread run meanwhile. It returns only once
   * none of them is outstanding, so host functions that queue the next one each time keep it from returning; waiting for a stream does not
   * have that limit.
   */
  synchronizeSync(): void {
    const complete = StreamTimeline.beginDeviceSynchronization(this.index);
    checkBlocking(`synchronize device ${this.index}`, () => native().synchronizeDevice(this.index));
    complete();
  }
}

/** @internal The devices that this environment has used by now. Opens none. */
export function usedDevices(): Device[] {
  return devices.filter((device) => device !== undefined);
}

/** The device an option names, the first by default. */
export function deviceOption(device: Device | undefined): Device {
  if (device === undefined) return Device.get();
  if (!(device instanceof Device)) throw new ArgumentTypeError(`device must be a Device, got ${formatValue(device)}`);
  return device;
}
