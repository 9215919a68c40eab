import { ArgumentRangeError, formatValue, invalidValue } from '../../basics/errors.js';
import { assertBytes, assertPointer } from '../../basics/validation.js';
import { Device } from '../device.js';
import { mailbox, NativeStatus, native } from '../native.js';
import { check, invalidDeviceStatus, invalidValueStatus, statusError } from '../status.js';
import { assertStream, type Stream } from '../streams/stream.js';
import { pointerInfo } from './transfer.js';

/** Where managed memory can be: a device or the host. */
export type MemoryLocation = Device | 'host';

/** A hint about how managed memory will be used (`CUmem_advise`). */
export type MemoryAdvice =
  | 'set-read-mostly'
  | 'unset-read-mostly'
  | 'set-preferred-location'
  | 'unset-preferred-location'
  | 'set-accessed-by'
  | 'unset-accessed-by';

/** CUDA's numbers for the advice. */
const advices: Readonly<Record<MemoryAdvice, number>> = {
  'set-read-mostly': 1,
  'unset-read-mostly': 2,
  'set-preferred-location': 3,
  'unset-preferred-location': 4,
  'set-accessed-by': 5,
  'unset-accessed-by': 6,
};

/**
 * The attributes of a range of managed memory. A location is a device ordinal, `'host'`, or
 * `undefined` if there is none or more than one.
 */
export interface ManagedRangeAttributes {
  /** Whether the whole range is advised as read-mostly. */
  readonly isReadMostly: boolean;
  readonly preferredLocation: number | 'host' | undefined;
  readonly lastPrefetchLocation: number | 'host' | undefined;
}

/**
 * Advises the driver about a range of managed memory, or of ordinary host memory if a device uses the
 * host's page tables. Takes effect immediately, not in the order of a stream. The range is widened to
 * whole pages.
 *
 * - `'set-read-mostly'`: each device that reads the memory, or prefetches it, gets a copy; a write
 *   ends the other copies.
 * - `'set-preferred-location'`: memory at this location stays there when another device that can
 *   map it uses it. Moves nothing by itself.
 * - `'set-accessed-by'`: the memory stays mapped at this location wherever it is, so that using it
 *   from there causes no fault and no move.
 *
 * If the location is a device, it must have concurrent managed access.
 * @param location ignored for read-mostly advice; the first device by default
 * @throws DriverError if the range is not managed memory.
 */
export function advise(pointer: number, bytes: number, advice: MemoryAdvice, location: MemoryLocation = Device.get()): void {
  assertPointer(pointer);
  assertBytes(bytes);
  const number = Object.hasOwn(advices, advice) ? advices[advice] : undefined;
  if (number === undefined) {
    throw invalidValue(`advice must be one of ${Object.keys(advices).join(', ')}, got ${formatValue(advice)}`);
  }
  native().advise(pointer, bytes, number, locationType(location), locationId(location));
  check(`advise ${advice}`);
}

/**
 * Moves a range of managed memory, or of ordinary host memory if the device uses the host's page
 * tables, to a location before it is used, in the stream's order. Does not block. Does nothing for
 * zero bytes, for memory that is not managed, and on a device without concurrent managed access,
 * which cannot prefetch. So you can call it unconditionally for any kind of memory.
 *
 * Counterpart of `rmm::prefetch`, which ignores the same cases.
 * @throws DriverError if the range is not inside the driver's memory.
 * @example
 * ```ts
 * using managed = new ManagedMemoryResource();
 * using stream = new Stream();
 * const pointer = managed.allocate(1 * GiB, stream);
 * prefetch(pointer, 1 * GiB, stream.device, stream); // before the kernels that read it
 * ```
 */
export function prefetch(pointer: number, bytes: number, location: MemoryLocation, stream: Stream): void {
  assertStream(stream, 'prefetch');
  assertPointer(pointer);
  assertBytes(bytes);
  assertMemoryLocation(location);
  if (bytes === 0) return;
  native().prefetch(pointer, bytes, locationType(location), locationId(location), stream.handle);
  const status = mailbox[0] as number;
  if (status === NativeStatus.success || cannotBePrefetched(status, pointer, stream.device, location)) return;
  throw statusError(`prefetch ${bytes} bytes`, status);
}

/** Whether the driver refused because this kind of memory, or a device, cannot prefetch. */
function cannotBePrefetched(status: number, pointer: number, device: Device, location: MemoryLocation): boolean {
  if (status === invalidDeviceStatus) {
    return [device, location].some((each) => each !== 'host' && each.attribute('concurrentManagedAccess') === 0);
  }
  if (status !== invalidValueStatus) return false;
  const { memoryKind } = pointerInfo(pointer);
  return memoryKind !== 'managed' && memoryKind !== 'unknown';
}

/** The advice for a range of managed memory, and the location that it was last prefetched to. */
export function managedRangeAttributes(pointer: number, bytes: number): ManagedRangeAttributes {
  assertPointer(pointer);
  assertBytes(bytes);
  if (bytes === 0) throw new ArgumentRangeError('bytes must be at least 1, got 0');
  return {
    isReadMostly: attribute(pointer, bytes, 1) === 1,
    preferredLocation: locationOf(attribute(pointer, bytes, 2)),
    lastPrefetchLocation: locationOf(attribute(pointer, bytes, 4)),
  };
}

function attribute(pointer: number, bytes: number, number: number): number {
  native().rangeAttribute(pointer, bytes, number);
  check('read the attributes of a range');
  return mailbox[1] as number;
}

function locationOf(id: number): number | 'host' | undefined {
  if (id === -1) return 'host';
  return id < 0 ? undefined : id;
}

/**
 * Throws unless `location` is a device or the host.
 * @throws ArgumentRangeError
 */
export function assertMemoryLocation(location: unknown): asserts location is MemoryLocation {
  if (location === 'host' || location instanceof Device) return;
  throw invalidValue(`location must be a Device or 'host', got ${formatValue(location)}`);
}

function locationType(location: MemoryLocation): number {
  assertMemoryLocation(location);
  return location === 'host' ? 2 : 1;
}

function locationId(location: MemoryLocation): number {
  return location === 'host' ? 0 : location.index;
}
