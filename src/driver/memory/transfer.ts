import { ArgumentRangeError, ArgumentTypeError, formatPointer, formatValue, invalidValue, PeerAccessError } from '../../basics/errors.js';
import { assertBytes, assertPointer } from '../../basics/validation.js';
import { mailbox, NativeStatus, native } from '../native.js';
import { check, repeatWhileStopped, runHostFunctionsIfReady, statusError } from '../status.js';
import { assertNotCaptured, assertStream, type Stream } from '../streams/stream.js';
import { assertAwake, beforeWrite } from './guarded-addresses.js';

/**
 * Copies `bytes` between two pointers, of any kind and device, in the stream's order. Does not
 * block. Between two devices, the driver copies through the host unless one has access to the
 * other's memory ({@link Device.enablePeerAccess}).
 * @throws DriverError if a range is not inside live memory; nothing is then copied.
 * @throws PeerAccessError for a copy between the host and memory of a device to which the stream's
 * device has no access.
 */
export function copy(destination: number, source: number, bytes: number, stream: Stream): void {
  assertStream(stream, 'copy');
  assertPointer(destination, 'destination');
  assertPointer(source, 'source');
  assertBytes(bytes);
  assertAwake(destination, bytes, 'copy');
  beforeWrite(destination, bytes, 'copy');
  assertAwake(source, bytes, 'copy');
  queueCopy(destination, source, bytes, stream);
}

/** The same, for checked arguments; the memory may be asleep, as long as it is mapped. */
export function queueCopy(destination: number, source: number, bytes: number, stream: Stream): void {
  const { handle } = stream;
  repeatWhileStopped(() => native().copy(destination, source, bytes, handle));
  if (mailbox[0] !== NativeStatus.success) throw transferError(mailbox[0] as number, `copy ${bytes} bytes`, stream, destination, source);
}

/** Copies between two pointers and blocks until the copy is done. */
export function copySync(destination: number, source: number, bytes: number, stream: Stream): void {
  assertNotCaptured(stream, 'copy and wait');
  copy(destination, source, bytes, stream);
  stream.synchronizeSync();
}

/**
 * Copies a host array to a pointer in the stream's order. You may change the array as soon as this
 * returns. On a captured stream, each launch of the graph copies the array's bytes as they are now:
 * the graph keeps them in pinned memory.
 */
export function copyFromHost(destination: number, source: ArrayBufferView, stream: Stream): void {
  assertStream(stream, 'copy from the host');
  assertPointer(destination, 'destination');
  assertView(source, 'source');
  const bytes = viewBytes(source);
  assertAwake(destination, bytes, 'copy from the host');
  beforeWrite(destination, bytes, 'copy from the host');
  const { handle } = stream;
  try {
    repeatWhileStopped(() => native().copyFromHost(destination, source, bytes, handle));
    if (mailbox[0] !== NativeStatus.success)
      throw transferError(mailbox[0] as number, `copy ${bytes} bytes from the host`, stream, destination);
  } catch (error) {
    assertStillHolds('source', viewBytes(source), bytes);
    throw error;
  }
}

/**
 * Fills a host array from a pointer in the stream's order, and blocks until the copy is done; host
 * functions of this thread run meanwhile.
 * @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if a host function transferred or shortened
 * the array.
 */
export function copyToHostSync(destination: ArrayBufferView, source: number, stream: Stream): void {
  assertStream(stream, 'copy to the host');
  assertView(destination, 'destination');
  assertPointer(source, 'source');
  const bytes = viewBytes(destination);
  assertAwake(source, bytes, 'copy to the host');
  const { handle } = stream;
  try {
    repeatWhileStopped(() => native().copyToHostSync(destination, source, bytes, handle));
    if (mailbox[0] !== NativeStatus.success) throw transferError(mailbox[0] as number, `copy ${bytes} bytes to the host`, stream, source);
  } catch (error) {
    assertStillHolds('destination', viewBytes(destination), bytes);
    throw error;
  }
}

/**
 * Queues a copy of device memory now, in the stream's order, and resolves with the bytes. Does not
 * block the event loop.
 */
export async function copyToHost(source: number, bytes: number, stream: Stream): Promise<ArrayBuffer> {
  assertStream(stream, 'copy to the host');
  assertPointer(source, 'source');
  assertBytes(bytes);
  assertAwake(source, bytes, 'copy to the host');
  const result = await queueCopyToHost(source, bytes, stream);
  if (typeof result === 'number') throw transferError(result, `copy ${bytes} bytes to the host`, stream, source);
  return result;
}

/**
 * Queues a copy of device memory now, in the stream's order, and resolves once it has filled a host
 * array. Does not block the event loop. The array is written in one piece at the end.
 * @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if the array was transferred or shortened
 * meanwhile.
 */
export async function copyIntoHost(destination: ArrayBufferView, source: number, stream: Stream): Promise<void> {
  assertStream(stream, 'copy to the host');
  assertView(destination, 'destination');
  assertPointer(source, 'source');
  const bytes = viewBytes(destination);
  assertAwake(source, bytes, 'copy to the host');
  const status = await queueCopyToHost(source, bytes, stream, destination);
  if (status === NativeStatus.success) return;
  assertStillHolds('destination', viewBytes(destination), bytes);
  throw transferError(status as number, `copy ${bytes} bytes to the host`, stream, source);
}

function queueCopyToHost(source: number, bytes: number, stream: Stream, destination?: ArrayBufferView): Promise<ArrayBuffer | number> {
  const { handle } = stream;
  let copied: Promise<ArrayBuffer | number>;
  do copied = native().copyToHost(source, bytes, handle, destination);
  while (runHostFunctionsIfReady());
  return copied;
}

/**
 * Sets `count` elements of `elementBytes` bytes to a value in the stream's order. Does not block.
 * You cannot set ordinary host memory, because the driver does not know it; copy to it instead.
 * @param value an unsigned integer that fits the element
 * @throws PeerAccessError for memory of another device, to which the stream's device has no access.
 */
export function set(destination: number, value: number, elementBytes: 1 | 4, count: number, stream: Stream): void {
  assertStream(stream, 'set memory');
  assertPointer(destination, 'destination');
  assertBytes(count, 'count');
  if (elementBytes !== 1 && elementBytes !== 4) {
    throw invalidValue(`elementBytes must be 1 or 4, got ${formatValue(elementBytes)}`);
  }
  if (destination % elementBytes !== 0) {
    throw new ArgumentRangeError(`destination must be a multiple of ${elementBytes}, got ${formatPointer(destination)}`);
  }
  const limit = elementBytes === 1 ? 0xff : 0xffff_ffff;
  if (!Number.isInteger(value) || value < 0 || value > limit) {
    throw new ArgumentRangeError(`value must be an integer from 0 to ${limit}, got ${formatValue(value)}`);
  }
  assertAwake(destination, count * elementBytes, 'set memory');
  beforeWrite(destination, count * elementBytes, 'set memory');
  native().set(destination, value, elementBytes, count, stream.handle);
  if (mailbox[0] !== NativeStatus.success) throw transferError(mailbox[0] as number, `set ${count} elements`, stream, destination);
}

/** The error of a copy or a fill, including the case that the stream's device has no access. */
function transferError(status: number, operation: string, { device }: Stream, ...pointers: number[]): Error {
  if (status !== NativeStatus.noAccess) return statusError(operation, status);
  const owners = pointers.map((pointer) => pointerInfo(pointer)).filter(({ memoryKind }) => memoryKind === 'device');
  const owner = owners.find((each) => each.device !== device.index);
  return new PeerAccessError(operation, device.index, owner?.device ?? device.index);
}

/** Sets memory and blocks until the work is done. */
export function setSync(destination: number, value: number, elementBytes: 1 | 4, count: number, stream: Stream): void {
  assertNotCaptured(stream, 'set memory and wait');
  set(destination, value, elementBytes, count, stream);
  stream.synchronizeSync();
}

/** What the driver knows about a pointer. */
export interface PointerInfo {
  /** `unknown` for memory that the driver does not know, such as an ordinary host allocation. */
  readonly memoryKind: 'device' | 'managed' | 'pinned-host' | 'host' | 'unknown';
  readonly device: number;
}

const kinds = ['device', 'managed', 'pinned-host', 'host'] as const;

/** The kind of memory that a pointer points to, and its device. */
export function pointerInfo(pointer: number): PointerInfo {
  assertPointer(pointer);
  native().pointerInfo(pointer);
  check('look a pointer up');
  return { memoryKind: kinds[mailbox[1] as number] ?? 'unknown', device: mailbox[2] as number };
}

function assertView(view: unknown, name: string): asserts view is ArrayBufferView {
  if (!ArrayBuffer.isView(view)) throw new ArgumentTypeError(`${name} must be a typed array or a DataView, got ${formatValue(view)}`);
}

/**
 * The length of a view in bytes; 0 if its memory was transferred, in which case a `DataView`
 * throws.
 */
function viewBytes(view: ArrayBufferView): number {
  try {
    return view.byteLength;
  } catch {
    return 0;
  }
}

/**
 * @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if memory became shorter while a copy of all
 * its bytes was prepared.
 */
export function assertStillHolds(name: string, leftBytes: number, bytes: number): void {
  if (leftBytes >= bytes) return;
  throw invalidValue(`${name} must keep its ${bytes} bytes until they are copied, and has ${leftBytes} left`);
}
