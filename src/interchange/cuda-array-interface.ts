/**
 * Objects in the form of `__cuda_array_interface__`, version 3, with which Python's GPU libraries
 * describe arrays to each other. Such an object owns nothing: the array that it describes must
 * outlive its use.
 */

import { ArgumentTypeError, formatValue, invalidValue, UnsupportedError } from '../basics/errors.js';
import { assertBytes, assertOptions, optionNames } from '../basics/validation.js';
import { type ExportableBuffer, exportableMemory } from '../buffers/buffer-memory.js';
import type { DeviceBuffer } from '../buffers/device-buffer.js';
import { follow } from '../buffers/transfers/ordered-copy.js';
import { assertStream, Stream } from '../driver/streams/stream.js';
import { arrayLayout, assertWithin, isCompact } from './array-layout.js';
import { addressOf, wrapForeign } from './wrap.js';

/** An object in the form of `__cuda_array_interface__`. */
export interface CudaArrayInterface {
  /** The number of elements in each dimension; empty for a single element. */
  readonly shape: readonly number[];
  /**
   * The type of the elements as NumPy writes it: byte order, kind, size in bytes; such as `<f4`.
   */
  readonly typestr: string;
  /** The address of the first element, and whether the memory must not be written. */
  readonly data: readonly [ptr: number | bigint, isReadOnly: boolean];
  /**
   * The bytes from an element to the next one in each dimension; `null` for an array in C order
   * without gaps.
   */
  readonly strides?: readonly number[] | null | undefined;
  /**
   * The stream that the array is ordered on: 1 for the legacy default stream, 2 for the per-thread
   * default stream, otherwise the driver's handle. `null` if there is nothing to wait for.
   */
  readonly stream?: number | bigint | null | undefined;
  /** The version of the interface: 3. */
  readonly version: number;
  /** Arrays with a mask are not supported. */
  readonly mask?: null | undefined;
  /** Ignored. */
  readonly descr?: unknown;
}

/** An object that Python's libraries would recognise as an array on a device. */
export interface CudaArray {
  readonly __cuda_array_interface__: CudaArrayInterface;
}

/** Options of {@link toCudaArrayInterface}. */
export interface CudaArrayInterfaceOptions {
  /** The number of elements in each dimension; empty for a single element. */
  readonly shape: readonly number[];
  /** The type of the elements as NumPy writes it, such as `<f4`. */
  readonly typestr: string;
  /**
   * The bytes from an element to the next one in each dimension, 0 or more.
   * @defaultValue those of an array in C order without gaps
   */
  readonly strides?: readonly number[] | undefined;
  /**
   * Where the first element begins in the buffer, in bytes.
   * @defaultValue 0
   */
  readonly byteOffset?: number | undefined;
  /**
   * Whether the memory must not be written. The memory of a shared buffer must never be written.
   * @defaultValue whether the buffer is shared
   */
  readonly readOnly?: boolean | undefined;
  /**
   * `null` says that the memory needs no synchronization: everything queued on the buffer's stream
   * has run, or the user of the array orders it.
   * @defaultValue the buffer's stream
   */
  readonly stream?: null | undefined;
}

const optionsOfDescriptions = optionNames<CudaArrayInterfaceOptions>({
  byteOffset: true,
  readOnly: 'boolean',
  shape: true,
  stream: true,
  strides: true,
  typestr: true,
});

/** Options of {@link fromCudaArrayInterface}. */
export interface FromCudaArrayInterfaceOptions {
  /** The stream of the buffer. It waits for the work queued on the array's stream. */
  readonly stream: Stream;
  /**
   * A human-readable name.
   * @defaultValue none
   */
  readonly label?: string | undefined;
}

const optionsOfViews = optionNames<FromCudaArrayInterfaceOptions>({ label: true, stream: true });

/**
 * Describes an array in the buffer in the form of `__cuda_array_interface__`, version 3. The
 * description owns nothing: do not dispose or move the buffer until the user of the array is
 * done. That user waits for the `stream` in the description, which is the buffer's, before it
 * uses the memory; and you must make the buffer's stream wait for it before you write, resize or
 * dispose the buffer. Does nothing on the device.
 *
 * RMM has no counterpart in C++; its `DeviceBuffer` in Python has the attribute.
 * @throws ArgumentTypeError, ArgumentRangeError for an invalid shape, type or stride, or an array
 * outside the buffer.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed;
 * CisternError (`ERR_CISTERN_INVALID_STATE`) if `readOnly` is false and the buffer is shared.
 * @example
 * ```ts
 * const { data, stream } = toCudaArrayInterface(buffer, { shape: [2, 3], typestr: '<f4' });
 * ```
 */
export function toCudaArrayInterface(buffer: ExportableBuffer, options: CudaArrayInterfaceOptions): CudaArrayInterface {
  const memory = exportableMemory(buffer);
  memory.assertUsable('describe an array in a buffer');
  assertOptions(options, optionsOfDescriptions);
  if (options.readOnly === false) memory.assertNotShared('describe a buffer as writable');
  const { pointer, byteLength, stream, origin } = memory;
  const { shape, typestr, strides, byteOffset = 0, readOnly = origin.isShared } = options;
  assertBytes(byteOffset, 'byteOffset');
  if (options.stream !== undefined && options.stream !== null) {
    throw invalidValue(`stream must be null or left out, got ${formatValue(options.stream)}`);
  }
  const itemBytes = itemBytesOf(typestr);
  const layout = arrayLayout(shape, strides, itemBytes, 1);
  assertWithin(layout, byteOffset, byteLength);
  return {
    shape: layout.shape,
    typestr,
    data: [layout.extentBytes === 0 ? 0 : pointer + byteOffset, readOnly],
    strides: isCompact(layout, itemBytes) ? null : layout.strides,
    stream: options.stream === null ? null : stream.nativeHandle,
    version: 3,
  };
}

/**
 * A buffer over the memory of an array in the form of `__cuda_array_interface__`, versions 0 to 3:
 * from the array's first element to the end of its last one, including gaps. The memory is
 * borrowed: its owner must keep it until the buffer is disposed and the work queued on the buffer's
 * stream has run. The buffer keeps the object alive until then. If the object refers to the buffer,
 * the garbage collector never finds either, so dispose the buffer. `stream` waits for the work
 * queued on the array's stream, unless the array names none. A buffer over read-only memory does
 * not refuse writes.
 *
 * RMM has no counterpart in C++; its `DeviceBuffer` in Python has the attribute.
 * @param array the description, or an object that has it as `__cuda_array_interface__`
 * @throws ArgumentTypeError, ArgumentRangeError if `array` does not describe an array, or one
 * with negative strides or more than 2^53 - 1 bytes, or memory that the driver does not know.
 * @throws UnsupportedError for an array with a mask, or of a later version.
 * @throws LifetimeError for a disposed stream; DriverError if the driver does not know the
 * array's stream.
 * @example
 * ```ts
 * using stream = new Stream();
 * const array = toCudaArrayInterface(buffer, { shape: [4, 4], typestr: '<f4' });
 * using view = fromCudaArrayInterface(array, { stream });
 * ```
 */
export function fromCudaArrayInterface(array: CudaArrayInterface | CudaArray, options: FromCudaArrayInterfaceOptions): DeviceBuffer {
  assertOptions(options, optionsOfViews);
  const { stream } = options;
  assertStream(stream, 'use an array');
  const { ptr, byteLength, producer, owner } = cudaArrayMemory(array, stream);
  const held: { owner: object | undefined } = { owner };
  const release = () => {
    held.owner = undefined;
  };
  try {
    const buffer = wrapForeign({ ...options, ptr, byteLength, release }, true);
    try {
      if (producer !== undefined && producer.identity !== stream.identity) follow(stream, producer);
      return buffer;
    } catch (error) {
      buffer.dispose();
      throw error;
    }
  } finally {
    producer?.dispose();
  }
}

/** The memory that an array occupies. */
interface CudaArrayMemory {
  readonly ptr: number;
  readonly byteLength: number;
  /** The stream to wait for, if any. */
  readonly producer: Stream | undefined;
  /** The object to keep alive as long as the memory is in use. */
  readonly owner: object;
}

/** @throws ArgumentTypeError, ArgumentRangeError, UnsupportedError for an object that describes no array that a buffer can have. */
function cudaArrayMemory(array: CudaArrayInterface | CudaArray, stream: Stream): CudaArrayMemory {
  if (typeof array !== 'object' || array === null) {
    throw new ArgumentTypeError(`array must be an object with shape, typestr and data, got ${formatValue(array)}`);
  }
  const description = '__cuda_array_interface__' in array ? array.__cuda_array_interface__ : array;
  if (typeof description !== 'object' || description === null) {
    throw new ArgumentTypeError(`__cuda_array_interface__ of array must be an object, got ${formatValue(description)}`);
  }
  const { shape, typestr, data, strides, version, mask, stream: producer } = description;
  if (typeof version !== 'number') throw new ArgumentTypeError(`version of array must be a number, got ${formatValue(version)}`);
  if (![0, 1, 2, 3].includes(version)) throw new UnsupportedError(`version of array must be from 0 to 3, got ${version}`);
  if (mask !== undefined && mask !== null) throw new UnsupportedError(`an array with a mask cannot be used, got ${formatValue(mask)}`);
  if (!Array.isArray(data) || data.length !== 2 || typeof data[1] !== 'boolean') {
    throw new ArgumentTypeError(`data of array must be an address and whether it is read-only, got ${formatValue(data)}`);
  }
  const ptr = addressOf(data[0], 'the address in data of array');
  const { extentBytes } = arrayLayout(shape, strides ?? undefined, itemBytesOf(typestr), 1);
  return { ptr, byteLength: extentBytes, producer: producerOf(producer, stream), owner: array };
}

/** @throws ArgumentTypeError, ArgumentRangeError for a stream that the interface does not allow. */
function producerOf(handle: number | bigint | null | undefined, { device }: Stream): Stream | undefined {
  if (handle === null || handle === undefined) return undefined;
  const address = addressOf(handle, 'stream of array');
  if (address === 0) {
    throw invalidValue('stream of array must not be 0, which is ambiguous: use 1 for the legacy default stream, 2 for the per-thread one');
  }
  return Stream.fromHandle(address, { device });
}

/** The bytes of an element. */
function itemBytesOf(typestr: unknown): number {
  if (typeof typestr !== 'string') throw new ArgumentTypeError(`typestr must be a string, got ${formatValue(typestr)}`);
  // Times and intervals may have a unit: `<M8[ns]`, `<m8[25us]`.
  const [, , kind, digits = '', unit] = /^([<>|=])([biufcmMSUV])([1-9]\d{0,8})(\[\d{0,9}[A-Za-z]{1,2}\])?$/.exec(typestr) ?? [];
  if (kind === undefined || (unit !== undefined && kind !== 'm' && kind !== 'M')) {
    throw invalidValue(`typestr must be a byte order, a kind of element and its bytes, such as '<f4', got ${formatValue(typestr)}`);
  }
  const charactersBytes = 4;
  return Number(digits) * (kind === 'U' ? charactersBytes : 1);
}
