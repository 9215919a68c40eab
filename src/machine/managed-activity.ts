import { UnsupportedError } from '../basics/errors.js';
import { assertBytes, assertPointer } from '../basics/validation.js';
import { currentBackend } from '../driver/backend.js';
import { assertMemoryLocation, type MemoryLocation } from '../driver/memory/managed-memory.js';
import { mailbox, native } from '../driver/native.js';
import { check } from '../driver/status.js';
import type { ManagedActivity } from './managed-activity-types.js';

export type { ManagedActivity };

/**
 * What happened to managed memory at a location. Only the software device counts this, and only for
 * work that has run.
 * @throws UnsupportedError on a GPU.
 * @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) for an invalid location.
 * @example
 * ```ts
 * using managed = new ManagedMemoryResource();
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(64 * MiB, { resource: managed, stream });
 * buffer.to('host');
 * resetManagedActivity();
 * buffer.to(stream.device);
 * stream.synchronizeSync();
 * console.log(managedActivity(stream.device).bytesFromHost); // 64 MiB
 * ```
 */
export function managedActivity(location: MemoryLocation): ManagedActivity {
  native().managedActivity(placeOf(location));
  check('read what happened to managed memory');
  return {
    residentBytes: mailbox[1] as number,
    peakResidentBytes: mailbox[2] as number,
    bytesFromHost: mailbox[3] as number,
    bytesFromDevices: mailbox[4] as number,
    evictedBytes: mailbox[5] as number,
    remoteBytes: mailbox[6] as number,
    faults: mailbox[7] as number,
    evictions: mailbox[8] as number,
    thrashes: mailbox[9] as number,
  };
}

/**
 * Sets the counts of every location to 0, and the peaks to the resident bytes.
 * @throws UnsupportedError on a GPU.
 */
export function resetManagedActivity(): void {
  assertSoftware();
  native().resetManagedActivity();
  check('reset what happened to managed memory');
}

/**
 * How many bytes of a range of managed memory are at a location now. 0 for any other memory.
 * @param bytes an integer from 0 to 2^53 - 1
 * @throws UnsupportedError on a GPU, whose driver does not report it.
 * @throws ArgumentTypeError, ArgumentRangeError for an invalid argument.
 */
export function residentBytes(pointer: number, bytes: number, location: MemoryLocation): number {
  assertPointer(pointer);
  assertBytes(bytes);
  native().residentBytes(pointer, bytes, placeOf(location));
  check('look up where managed memory is');
  return mailbox[1] as number;
}

function placeOf(location: MemoryLocation): number {
  assertMemoryLocation(location);
  assertSoftware();
  return location === 'host' ? -1 : location.index;
}

function assertSoftware(): void {
  if (currentBackend() === 'software') return;
  throw new UnsupportedError('only the software device counts what happens to managed memory');
}
