import { ArgumentRangeError, ArgumentTypeError, formatPointer, formatValue } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertBytes, optionNames } from '../basics/validation.js';
import { Device } from '../driver/device.js';
import { type PointerInfo, pointerInfo } from '../driver/memory/transfer.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import { ForeignMemoryResource } from './foreign-memory-resource.js';

/** The argument of {@link DeviceBuffer.wrap}. */
export interface WrapOptions {
  /** The address of the first byte; any, if there are no bytes. */
  readonly ptr: number | bigint;
  /** The length in bytes. */
  readonly byteLength: number;
  /**
   * The device of the memory. Device memory on another device is refused.
   * @defaultValue the device that the driver reports for device memory, otherwise the stream's
   */
  readonly device?: Device;
  /** The stream that the memory is ordered on. */
  readonly stream: Stream;
  /**
   * Returns the memory to its owner. It is called exactly once, on the thread of the buffer, after
   * the work queued on the buffer's stream has run. That may be long after the buffer was disposed,
   * so do not use objects in it that may be disposed by then, such as the buffer's stream: free in
   * the order of a permanent one, such as `Stream.legacyDefault()`. It must not refer to the
   * buffer, or the garbage collector never finds the buffer.
   * @defaultValue none: the memory is borrowed, and its owner must keep it until the stream's work
   * has run
   */
  readonly release?: () => void;
  /**
   * A human-readable name.
   * @defaultValue none
   */
  readonly label?: string;
}

/** @internal */
export const wrapOptionNames = optionNames<WrapOptions>({
  byteLength: true,
  device: true,
  label: true,
  ptr: true,
  release: 'function',
  stream: true,
});

/** A piece of foreign memory, checked, and its resource. */
export interface CheckedForeignMemory {
  /** 0 if there are no bytes. */
  readonly ptr: number;
  readonly byteLength: number;
  /** The power of two that `ptr` is aligned to, up to 256. */
  readonly alignment: number;
  readonly resource: ForeignMemoryResource;
}

/**
 * Looks up the first and the last byte of the memory in the driver. Takes no ownership yet.
 * @throws ArgumentTypeError, ArgumentRangeError for invalid options, and for memory that neither
 * the driver nor a host resource of this process knows.
 */
export function foreignMemory(memory: WrapOptions, isBorrowed = memory.release === undefined): CheckedForeignMemory {
  const { ptr: given, byteLength, device, stream, release } = memory;
  const ptr = addressOf(given, 'ptr');
  assertBytes(byteLength, 'byteLength');
  assertStream(stream, 'wrap memory');
  if (device !== undefined && !(device instanceof Device))
    throw new ArgumentTypeError(`device must be a Device, got ${formatValue(device)}`);
  const place = byteLength === 0 ? undefined : placeOf(ptr, byteLength);
  const isOnDevice = place?.memoryKind === 'device';
  const owner = isOnDevice ? Device.get(place.device) : (device ?? stream.device);
  if (device !== undefined && device !== owner) {
    throw new ArgumentRangeError(
      `device must be device ${owner.index}, which the memory at ${formatPointer(ptr)} belongs to, got device ${device.index}`,
      'ERR_INVALID_ARG_VALUE',
    );
  }
  const known = { ptr: place === undefined ? 0 : ptr, byteLength };
  const memoryKind = place?.memoryKind ?? 'device';
  const resource = new ForeignMemoryResource({ ...known, memoryKind, device: owner, release, isBorrowed });
  return { ...known, alignment: alignmentOf(known.ptr), resource };
}

/** The power of two that an address is aligned to, at most 256. */
function alignmentOf(address: number): number {
  const rest = address % ALLOCATION_ALIGNMENT;
  return rest === 0 ? ALLOCATION_ALIGNMENT : rest & -rest;
}

/** An address or a handle of another library, as a number. */
export function addressOf(value: number | bigint, name: string): number {
  if (typeof value !== 'number' && typeof value !== 'bigint') {
    throw new ArgumentTypeError(`${name} must be a number or a bigint, got ${formatValue(value)}`);
  }
  const address = Number(value);
  if (!Number.isSafeInteger(address) || address < 0) {
    throw new ArgumentRangeError(`${name} must be an integer from 0 to 2^53 - 1, got ${formatValue(value)}`);
  }
  return address;
}

type KnownPlace = PointerInfo & { readonly memoryKind: Exclude<PointerInfo['memoryKind'], 'unknown'> };

function placeOf(ptr: number, byteLength: number): KnownPlace {
  const last = ptr + byteLength - 1;
  if (ptr === 0 || !Number.isSafeInteger(last + 1)) {
    throw new ArgumentRangeError(`ptr must be the address of ${byteLength} bytes, got ${formatPointer(ptr)}`, 'ERR_INVALID_ARG_VALUE');
  }
  const first = pointerInfo(ptr);
  const end = pointerInfo(last);
  for (const [address, { memoryKind }] of [
    [ptr, first],
    [last, end],
  ] as const) {
    if (memoryKind !== 'unknown') continue;
    throw new ArgumentRangeError(
      `ptr must be the address of ${byteLength} bytes that the driver or a host resource knows, got ${formatPointer(ptr)}: nothing is known at ${formatPointer(address)}`,
      'ERR_INVALID_ARG_VALUE',
    );
  }
  if (first.memoryKind !== end.memoryKind || (first.memoryKind === 'device' && first.device !== end.device)) {
    throw new ArgumentRangeError(
      `ptr must be the address of ${byteLength} bytes of one kind, got ${formatPointer(ptr)}: ${first.memoryKind} memory that ends in ${end.memoryKind} memory`,
      'ERR_INVALID_ARG_VALUE',
    );
  }
  return first as KnownPlace;
}
