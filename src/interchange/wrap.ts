import { ArgumentRangeError, ArgumentTypeError, formatPointer, formatValue, invalidValue } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertBytes, assertOptions, optionNames } from '../basics/validation.js';
import { checkedAllocation } from '../buffers/create-memory.js';
import { DeviceBuffer } from '../buffers/device-buffer.js';
import { Device } from '../driver/device.js';
import { type PointerInfo, pointerInfo } from '../driver/memory/transfer.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import { flushLast } from '../files/flush-at-exit.js';
import { ForeignMemoryResource } from './foreign-memory-resource.js';

/** The argument of {@link wrapMemory}. */
export interface WrapOptions {
  /** The address of the first byte; any, if there are no bytes. */
  readonly ptr: number | bigint;
  /** The length in bytes. */
  readonly byteLength: number;
  /**
   * The device of the memory. Device memory on another device is refused.
   * @defaultValue the device that the driver reports for device memory, otherwise the stream's
   */
  readonly device?: Device | undefined;
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
  readonly release?: (() => void) | undefined;
  /**
   * A human-readable name.
   * @defaultValue none
   */
  readonly label?: string | undefined;
}

const knownOptions = optionNames<WrapOptions>({
  byteLength: true,
  device: true,
  label: true,
  ptr: true,
  release: 'function',
  stream: true,
});

/**
 * A buffer over memory that another library allocated. Without `release`, the memory is borrowed:
 * its owner must keep it until the work queued on `stream` has run. With `release`, the buffer owns
 * the memory, and returns it exactly once: after the buffer is disposed or collected, or when the
 * process or the worker exits, and only after the work queued on `stream` has run. If it has
 * already run, `dispose` calls `release`; otherwise, the event loop calls it later, possibly after
 * the scope of `stream` has ended. If a resource of cistern takes the memory back, as a pool does
 * when it is disposed, it waits for the work and calls `release` first.
 *
 * An error of `release` is reported as an uncaught exception; at exit, it is printed, and the
 * exit code is 1. A worker that is terminated runs no JavaScript, and so does not call `release`.
 *
 * The driver, or a {@link HostMemoryResource} of this process, must know the memory. Order the
 * stream after the writes to it. The buffer cannot grow: `resize` beyond `byteLength`, `reserve`
 * and `shrinkToFit` throw an {@link UnsupportedError}. `recast` moves the contents to memory of a
 * resource, and releases the memory; `to` copies as from any buffer, but needs a `resource` for a
 * copy of managed memory.
 *
 * RMM has no counterpart; its users keep the owner next to a `device_span`.
 * @throws ArgumentTypeError, ArgumentRangeError for invalid options, memory that nobody knows, or a
 * stream of a device that cannot access it; LifetimeError for a disposed stream. The memory is then
 * still the caller's.
 * @example
 * ```ts
 * using stream = new Stream();
 * const ptr = resource.allocate(4096, stream); // of another library
 * // May run after `stream` is disposed.
 * const release = () => resource.deallocate(ptr, 4096, Stream.legacyDefault());
 * using buffer = wrapMemory({ ptr, byteLength: 4096, stream, release });
 * ```
 */
export function wrapMemory(memory: WrapOptions): DeviceBuffer {
  assertOptions(memory, knownOptions, 'memory');
  return wrapForeign(memory, memory.release === undefined);
}

/** @internal The same, for options that are known to be right. @param isBorrowed whether somebody else keeps the memory */
export function wrapForeign(memory: WrapOptions, isBorrowed: boolean): DeviceBuffer {
  const { stream, label } = memory;
  const foreign = foreignMemory(memory, isBorrowed);
  const allocation = { ...foreign, stream, label };
  // Others may wrap the same memory, and each has a function to call in the end.
  const buffer = DeviceBuffer.owning(checkedAllocation(allocation, wrapMemory));
  foreign.resource.own();
  if (!isBorrowed) flushLast();
  return buffer;
}

/** A piece of foreign memory, checked, and its resource. */
interface CheckedForeignMemory {
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
function foreignMemory(memory: WrapOptions, isBorrowed: boolean): CheckedForeignMemory {
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
    throw invalidValue(
      `device must be device ${owner.index}, which the memory at ${formatPointer(ptr)} belongs to, got device ${device.index}`,
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
    throw invalidValue(`ptr must be the address of ${byteLength} bytes, got ${formatPointer(ptr)}`);
  }
  const first = pointerInfo(ptr);
  const end = pointerInfo(last);
  for (const [address, { memoryKind }] of [
    [ptr, first],
    [last, end],
  ] as const) {
    if (memoryKind !== 'unknown') continue;
    throw invalidValue(
      `ptr must be the address of ${byteLength} bytes that the driver or a host resource knows, got ${formatPointer(ptr)}: nothing is known at ${formatPointer(address)}`,
    );
  }
  if (first.memoryKind !== end.memoryKind || (first.memoryKind === 'device' && first.device !== end.device)) {
    throw invalidValue(
      `ptr must be the address of ${byteLength} bytes of one kind, got ${formatPointer(ptr)}: ${first.memoryKind} memory that ends in ${end.memoryKind} memory`,
    );
  }
  return first as KnownPlace;
}
