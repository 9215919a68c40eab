/**
 * Creates the memory of a buffer: checks the arguments, allocates, and queues the first copy.
 *
 * Most buffers are plain: a number of bytes, with a resource and a stream. So `plainMemory` is short (V8: inlining), and gives
 * up at the first unusual or wrong argument. `anyMemory` then does everything, and reports what is wrong.
 */
import { hasMemoryOf } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { ArgumentRangeError, ArgumentTypeError, formatPointer, formatValue } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertAlignment, assertBytes, assertOptions, assertPointer, optionNames } from '../basics/validation.js';
import { creationStack, freeSoonerOrLater, isFindingLeaks } from '../collector/free-unreachable-buffers.js';
import { assertStillHolds } from '../driver/memory/transfer.js';
import { assertStream, assertStreamOf, Stream } from '../driver/streams/stream.js';
import { assertMemoryResource, type DeviceMemory, type DevicePointer, type MemoryResource } from '../memory-resource.js';
import { BufferMemory } from './buffer-memory.js';
import { currentResource } from './current-resource.js';
import { allocated, originOf } from './origin.js';
import type { HostData } from './transfers/buffer-contents.js';
import { queueCopy, readable } from './transfers/copies.js';

/**
 * Memory of a resource, with everything needed to free it: the result of {@link
 * DeviceBuffer.release}, and the argument of {@link DeviceBuffer.adopt}.
 */
export interface BufferAllocation extends DeviceMemory {
  /**
   * Bytes that were requested from the resource; at least `byteLength`.
   * @defaultValue `byteLength`
   */
  readonly capacityBytes?: number | undefined;
  /**
   * The alignment that was requested from the resource; kept when the buffer moves.
   * @defaultValue 256
   */
  readonly alignment?: number | undefined;
  /** The resource that allocated the memory, and frees it. */
  readonly resource: MemoryResource;
  /** The stream that the memory is ordered on. */
  readonly stream: Stream;
  /**
   * A human-readable name.
   * @defaultValue none
   */
  readonly label?: string | undefined;
}

/** Memory that a buffer has released, with everything that is needed to free it. */
export interface ReleasedAllocation extends BufferAllocation {
  readonly capacityBytes: number;
  readonly alignment: number;
}

const allocationNames = optionNames<BufferAllocation>({
  alignment: true,
  byteLength: true,
  capacityBytes: true,
  label: true,
  ptr: true,
  resource: true,
  stream: true,
});

/** Options of {@link DeviceBuffer}. */
export interface DeviceBufferOptions {
  /**
   * The resource that allocates and frees the memory. The buffer keeps it alive, but does not
   * dispose it.
   * @defaultValue the current resource of the stream's device: see {@link currentResource},
   * {@link withResource}
   */
  readonly resource?: MemoryResource | undefined;
  /**
   * The stream that the memory is ordered on. The buffer keeps it alive, but does not dispose it.
   */
  readonly stream: Stream;
  /**
   * Bytes to allocate, at least the buffer's length, so that it can grow without moving.
   * @defaultValue the buffer's length
   */
  readonly capacityBytes?: number | undefined;
  /**
   * A power of two that the resource supports; at least 256 is always given. Kept when the buffer
   * moves.
   * @defaultValue 256
   */
  readonly alignment?: number | undefined;
  /**
   * A human-readable name, shown in recordings and leak reports.
   * @defaultValue none
   */
  readonly label?: string | undefined;
}

const bufferOptions = optionNames<DeviceBufferOptions>({ alignment: true, capacityBytes: true, label: true, resource: true, stream: true });

/**
 * The function that makes a buffer: the stack of its creation begins above the call of this
 * function.
 */
type Creator = (abstract new (...args: never[]) => unknown) | ((...args: never[]) => unknown);

/** The memory of a plain buffer of less than 2 GiB; `undefined` if any argument is unusual or wrong. */
export function plainMemory(bytes: unknown, options: DeviceBufferOptions): BufferMemory | undefined {
  if (typeof bytes !== 'number' || (bytes | 0) !== bytes || bytes <= 0) return undefined;
  if (typeof options !== 'object' || options === null || isFindingLeaks()) return undefined;
  for (const name in options) if (name !== 'stream' && name !== 'resource') return undefined;
  const { stream, resource } = options;
  // Without `?.` (V8: known class).
  if (stream === undefined || stream === null || resource === undefined || resource === null) return undefined;
  // First a property, then `instanceof` (V8: known class).
  if (!(stream.handle >= 0 && stream instanceof Stream)) return undefined;
  if (typeof resource.allocate !== 'function' || typeof resource.deallocate !== 'function') return undefined;
  if (resource.device !== stream.device) return undefined;
  // Getters of a class are not enumerated above.
  if (options.alignment !== undefined || options.capacityBytes !== undefined || options.label !== undefined) return undefined;
  const memory = new BufferMemory(allocated, resource, stream, ALLOCATION_ALIGNMENT, undefined, undefined);
  try {
    memory.allocate(bytes);
  } catch (error) {
    // Checked last, because it takes longer than all of the above.
    assertMemoryResource(resource, 'resource');
    throw error;
  }
  memory.byteLength = bytes;
  return memory;
}

/** The memory of any buffer. @param allocate allocates its first memory */
export function anyMemory(
  source: number | HostData | DeviceMemory,
  options: DeviceBufferOptions,
  creator: Creator,
  allocate = (memory: BufferMemory, bytes: number): void => memory.allocate(bytes),
): BufferMemory {
  const data = typeof source === 'number' ? undefined : readable(source, 'a number of bytes, ');
  const byteLength = data === undefined ? (source as number) : data.byteLength;
  assertBytes(byteLength, 'source');
  assertOptions(options, bufferOptions);
  const { resource, stream, capacityBytes = byteLength, alignment = ALLOCATION_ALIGNMENT, label } = options;
  const memory = emptyMemory(resource, stream, alignment, label, byteLength, capacityBytes, creationStack(creator));
  allocate(memory, capacityBytes);
  memory.byteLength = byteLength;
  if (data === undefined || byteLength === 0) return memory;
  try {
    // The resource is foreign code and may run host functions; both may have moved or shortened the
    // source.
    const current = data instanceof Uint8Array ? data : readable(source as DeviceMemory);
    assertStillHolds('source', current.byteLength, byteLength);
    queueCopy(memory, current, 0, 0, byteLength);
    return memory;
  } catch (error) {
    freeSoonerOrLater(memory);
    throw error;
  }
}

/** Memory that the program has allocated, and the object that will own it, still without it. */
export interface CheckedAllocation {
  readonly memory: BufferMemory;
  readonly ptr: DevicePointer;
  readonly capacityBytes: number;
}

export function checkedAllocation(allocation: BufferAllocation, creator: Creator): CheckedAllocation {
  assertOptions(allocation, allocationNames, 'allocation');
  const { ptr, byteLength, resource, stream, capacityBytes = byteLength, alignment = ALLOCATION_ALIGNMENT, label } = allocation;
  assertPointer(ptr, 'ptr');
  assertBytes(byteLength, 'byteLength');
  assertMemoryResource(resource, 'resource');
  const memory = emptyMemory(resource, stream, alignment, label, byteLength, capacityBytes, creationStack(creator));
  if ((ptr === 0) !== (capacityBytes === 0)) {
    throw new ArgumentRangeError(`ptr must be 0 if and only if there are no bytes, got ${formatPointer(ptr)} with ${capacityBytes} bytes`);
  }
  memory.byteLength = byteLength;
  return { memory, ptr, capacityBytes };
}

/**
 * Checks the arguments that all ways to create a buffer have in common, except `byteLength`.
 * Allocates nothing yet.
 */
export function emptyMemory(
  givenResource: MemoryResource | undefined,
  stream: Stream,
  alignment: number,
  label: string | undefined,
  byteLength: number,
  capacityBytes: number,
  createdAt: string | undefined,
): BufferMemory {
  assertStream(stream, 'create a buffer');
  const resource = givenResource === undefined ? currentResource(stream.device) : givenResource;
  assertMemoryResource(resource, 'resource');
  assertBytes(capacityBytes, 'capacityBytes');
  if (capacityBytes < byteLength) {
    throw new ArgumentRangeError(`capacityBytes must be at least the length of the buffer, ${byteLength}, got ${capacityBytes}`);
  }
  assertAlignment(alignment);
  assertLabel(label);
  assertReached(resource, stream);
  return new BufferMemory(originOf(resource), resource, stream, alignment, label, createdAt);
}

export function assertLabel(label: unknown): asserts label is string | undefined {
  if (label === undefined || typeof label === 'string') return;
  throw new ArgumentTypeError(`label must be a string, got ${formatValue(label)}`);
}

/** @throws ArgumentRangeError for a stream of a device that cannot access the resource's memory. */
function assertReached(resource: MemoryResource, stream: Stream): void {
  if (resource.memoryKind === 'device' && !hasMemoryOf(resource, stream.device)) assertStreamOf(stream, resource.device);
}
