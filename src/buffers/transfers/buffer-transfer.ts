import { deviceOfMemory, hasMemoryOf } from '../../adaptors/pass-through/per-device-resource-adaptor.js';
import { invalidValue, UnsupportedError } from '../../basics/errors.js';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { Device, type MemoryKind, usedDevices } from '../../driver/device.js';
import { advise, assertMemoryLocation, type MemoryLocation, prefetch } from '../../driver/memory/managed-memory.js';
import { pointerInfo } from '../../driver/memory/transfer.js';
import { assertNotCaptured, assertStream, Stream } from '../../driver/streams/stream.js';
import { assertMemoryResource, type DevicePointer, type MemoryResource } from '../../memory-resource.js';
import { PinnedHostMemoryResource } from '../../resources/pinned-host-memory-resource.js';
import { type HasMemory, memoryOf } from '../buffer-memory.js';
import { currentResource } from '../current-resource.js';
import { follow } from './ordered-copy.js';

const operation = 'move a buffer';

/** Options of {@link DeviceBuffer.toAsync}. */
export interface BufferTransferOptions {
  /**
   * Makes a copy even if the memory is managed, or is already at the location.
   * @defaultValue false
   */
  readonly copy?: boolean | undefined;
  /**
   * Also makes the location the preferred one of memory that is moved: see {@link advise}. Ignored
   * for any other kind of memory.
   *
   * The advice concerns pages, and outlives the buffer. If the memory comes from a pool, the next
   * buffer there inherits it, and so do neighbours that share a page. To withdraw it before you
   * dispose the buffer, call `advise(ptr, capacityBytes, 'unset-preferred-location')`.
   * @defaultValue false
   */
  readonly preferredLocation?: boolean | undefined;
  /**
   * The resource of a copy. If it is not the buffer's own, a copy is made.
   * @defaultValue for managed memory, the buffer's own; otherwise the current resource of the
   * device, or pinned memory for the host
   */
  readonly resource?: MemoryResource | undefined;
  /**
   * The stream of the resulting buffer. It waits for the work queued on the buffer's stream.
   * @defaultValue the buffer's stream, unless that cannot use the memory of a copy; then the
   * per-thread default stream of the location's device
   */
  readonly stream?: Stream | undefined;
}

/** Options of {@link DeviceBuffer.to}. */
export interface BlockingBufferTransferOptions extends BufferTransferOptions {
  /**
   * Returns immediately if the location is the host. Wait for the stream of the resulting buffer
   * before the host uses the contents.
   * @defaultValue false
   */
  readonly nonBlocking?: boolean | undefined;
}

const asyncOptions = optionNames<BufferTransferOptions>({
  copy: 'boolean',
  preferredLocation: 'boolean',
  resource: true,
  stream: true,
});
const blockingOptions = optionNames<BlockingBufferTransferOptions>({
  copy: 'boolean',
  nonBlocking: 'boolean',
  preferredLocation: 'boolean',
  resource: true,
  stream: true,
});

/** The result of {@link DeviceBuffer.to}. */
export interface BufferTransfer<Buffer> {
  /** The buffer with the contents: the same one, or a copy with memory of its own. */
  readonly buffer: Buffer;
  /** Whether `buffer` is a copy. You must then dispose both buffers. */
  readonly isCopy: boolean;
}

/** The part of a buffer that a transfer needs. */
export interface TransferableBuffer extends HasMemory {
  readonly ptr: DevicePointer;
  readonly byteLength: number;
  readonly capacityBytes: number;
  readonly resource: MemoryResource;
  readonly stream: Stream;
  setStream(stream: Stream): void;
  dispose(): void;
}

/**
 * Whether memory can move to a location without changing its address: managed memory can, and
 * ordinary host memory if the device uses the host's page tables.
 */
function canMove(kind: MemoryKind | 'unknown', { device }: Stream, location: MemoryLocation): boolean {
  if (kind !== 'host') return kind === 'managed';
  return (location === 'host' ? device : location).attribute('pageableMemoryAccessUsesHostPageTables') !== 0;
}

/** Whether the host and the device can use managed memory at the same time. */
export function hasConcurrentManagedAccess(device: Device): boolean {
  return device.attribute('concurrentManagedAccess') !== 0;
}

/** The kind of a buffer's memory: a resource may take memory from resources of other kinds. */
export function kindOfMemory(pointer: DevicePointer, { memoryKind }: MemoryResource): MemoryKind | 'unknown' {
  return pointer === 0 ? memoryKind : pointerInfo(pointer).memoryKind;
}

/** Makes a copy of a buffer with another resource and stream. */
export type MakeCopy<Buffer> = (buffer: Buffer, resource: MemoryResource, stream: Stream) => Buffer;

/** Implements `to` of a buffer. */
export function bringTo<Buffer extends TransferableBuffer>(
  buffer: Buffer,
  location: MemoryLocation,
  options: BlockingBufferTransferOptions,
  copyTo: MakeCopy<Buffer>,
): BufferTransfer<Buffer> {
  assertOptions(options, blockingOptions);
  const waits = location === 'host' && options.nonBlocking !== true;
  if (waits) assertNotCaptured(buffer[memoryOf].stream, operation);
  const result = transfer(buffer, location, options, copyTo);
  if (!waits) return result;
  try {
    waitForHostSync(result.buffer);
    // Host functions may have run, and disposed the buffer.
    result.buffer[memoryOf].assertLive(operation);
    return result;
  } catch (error) {
    if (result.isCopy) result.buffer.dispose();
    throw error;
  }
}

/** Implements `toAsync` of a buffer. */
export async function bringToAsync<Buffer extends TransferableBuffer>(
  buffer: Buffer,
  location: MemoryLocation,
  options: BufferTransferOptions,
  copyTo: MakeCopy<Buffer>,
): Promise<BufferTransfer<Buffer>> {
  assertOptions(options, asyncOptions);
  assertNotCaptured(buffer[memoryOf].stream, operation);
  const result = transfer(buffer, location, options, copyTo);
  try {
    await (location === 'host' ? waitForHost(result.buffer) : result.buffer.stream.synchronize());
    return result;
  } catch (error) {
    if (result.isCopy) result.buffer.dispose();
    throw error;
  }
}

/**
 * Moves managed memory, and host memory on coherent devices; leaves memory that is already at the
 * location, and copies any other. Blocks only if a copy does.
 */
function transfer<Buffer extends TransferableBuffer>(
  buffer: Buffer,
  location: MemoryLocation,
  options: BufferTransferOptions,
  copyTo: MakeCopy<Buffer>,
): BufferTransfer<Buffer> {
  buffer[memoryOf].assertUsable(operation);
  assertMemoryLocation(location);
  if (options.resource !== undefined) assertMemoryResource(options.resource, 'resource');
  if (options.stream !== undefined) assertStream(options.stream, operation);
  const kind = kindOfMemory(buffer.ptr, buffer.resource);
  const isManaged = kind === 'managed';
  const moves = canMove(kind, buffer.stream, location);
  const { resource = buffer.resource } = options;
  if (
    options.copy !== true &&
    resource === buffer.resource &&
    (moves || isAt(kind, deviceOfMemory(buffer.resource, buffer.ptr), location))
  ) {
    if (moves) move(buffer, location, options);
    else if (options.stream !== undefined) changeStream(buffer, options.stream);
    return { buffer, isCopy: false };
  }
  const target = options.resource ?? (isManaged ? buffer.resource : defaultResource(location, buffer.stream));
  if (!isManagedOrAt(target, location)) {
    const { memoryKind, device } = target;
    throw invalidValue(`resource must have memory at the location, got ${memoryKind} memory of device ${device.index}`);
  }
  const copy = copyTo(buffer, target, options.stream ?? streamFor(target, location, buffer.stream));
  try {
    if (kindOfMemory(copy.ptr, copy.resource) === 'managed') move(copy, location, options);
  } catch (error) {
    copy.dispose();
    throw error;
  }
  return { buffer: copy, isCopy: true };
}

/** Blocks until the host can read the contents. */
function waitForHostSync(buffer: TransferableBuffer): void {
  const { stream } = buffer;
  for (const device of devicesInTheWay(buffer)) device.synchronizeSync();
  stream.synchronizeSync();
}

/** Resolves once the host can read the contents, if nothing more is queued meanwhile. */
async function waitForHost(buffer: TransferableBuffer): Promise<void> {
  await Promise.all([...devicesInTheWay(buffer), buffer.stream].map((each) => each.synchronize()));
}

/**
 * The devices that must be idle while the host uses the memory: those without concurrent access, if
 * it is managed.
 */
function devicesInTheWay(buffer: TransferableBuffer): Device[] {
  return kindOfMemory(buffer.ptr, buffer.resource) === 'managed'
    ? usedDevices().filter((device) => !hasConcurrentManagedAccess(device))
    : [];
}

function move(buffer: TransferableBuffer, location: MemoryLocation, { preferredLocation, stream }: BufferTransferOptions): void {
  if (preferredLocation === true && location instanceof Device && !hasConcurrentManagedAccess(location)) {
    throw new UnsupportedError(`device ${location.index} cannot be preferred for managed memory: it has no concurrent managed access`);
  }
  const { ptr, capacityBytes, stream: before } = buffer;
  if (stream !== undefined) changeStream(buffer, stream);
  if (capacityBytes === 0) return;
  try {
    prefetch(ptr, capacityBytes, location, buffer.stream);
    if (preferredLocation === true) advise(ptr, capacityBytes, 'set-preferred-location', location);
  } catch (error) {
    try {
      changeStream(buffer, before);
    } catch {} // The new stream is ordered after the old one, so the buffer can stay there.
    throw error;
  }
}

/** Makes the stream wait for the buffer's, and gives it to the buffer. */
export function changeStream(buffer: TransferableBuffer, stream: Stream): void {
  const { stream: before } = buffer;
  if (stream.identity !== before.identity) follow(stream, before);
  buffer.setStream(stream);
}

function isAt(kind: MemoryKind | 'unknown', device: Device, location: MemoryLocation): boolean {
  if (location === 'host') return kind === 'pinned-host' || kind === 'host';
  return kind === 'device' && device === location;
}

function isManagedOrAt(resource: MemoryResource, location: MemoryLocation): boolean {
  const device = location instanceof Device && hasMemoryOf(resource, location) ? location : resource.device;
  return resource.memoryKind === 'managed' || isAt(resource.memoryKind, device, location);
}

function defaultResource(location: MemoryLocation, stream: Stream): MemoryResource {
  return location === 'host' ? new PinnedHostMemoryResource({ device: stream.device }) : currentResource(location);
}

function streamFor({ memoryKind }: MemoryResource, location: MemoryLocation, stream: Stream): Stream {
  return memoryKind === 'device' && location instanceof Device && location !== stream.device ? Stream.perThreadDefault(location) : stream;
}
