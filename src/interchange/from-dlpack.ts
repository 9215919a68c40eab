import { ArgumentRangeError, UnsupportedError } from '../basics/errors.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import type { DeviceBuffer } from '../buffers/device-buffer.js';
import { Device } from '../driver/device.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import { arrayLayout } from './array-layout.js';
import { type DLPackCapsule, type DLPackDataType, type DLPackTypeName, itemBytesOf, nameOf } from './dlpack.js';
import { dlpackDeviceType, inspectTensor, isCopiedFlag, readOnlyFlag, type TensorDescription, takeTensor } from './dlpack-capsule.js';
import { wrapMemory } from './wrap.js';

/** Options of {@link fromDLPack}. */
export interface FromDLPackOptions {
  /**
   * The stream of the buffer. It must be the stream that you passed to the producer, so that it
   * already waits.
   */
  readonly stream: Stream;
  /**
   * A human-readable name.
   * @defaultValue none
   */
  readonly label?: string | undefined;
}

const knownOptions = optionNames<FromDLPackOptions>({ label: true, stream: true });

/** A tensor of another library: the result of {@link fromDLPack}. */
export interface DLPackTensor {
  /** The memory from the first element to the end of the last one, including gaps. */
  readonly buffer: DeviceBuffer;
  /** The number of elements in each dimension; empty for a single element. */
  readonly shape: readonly number[];
  /** The elements from an element to the next one in each dimension. */
  readonly strides: readonly number[];
  /** The type of the elements: its name, if it has one. */
  readonly dtype: DLPackTypeName | DLPackDataType;
  /** Whether the memory must not be written. The buffer does not refuse writes. */
  readonly isReadOnly: boolean;
  /** Whether the producer made a copy for this consumer. */
  readonly isCopied: boolean;
  /** The producer's version of DLPack; `undefined` for an unversioned tensor. */
  readonly version: { readonly major: number; readonly minor: number } | undefined;
}

/**
 * Consumes a DLPack capsule, and returns a buffer over the tensor's memory, without a copy. The
 * deleter is called exactly once: when the buffer is disposed or collected, or the environment ends,
 * and the work queued on its stream has run. If this call throws, the capsule is unchanged.
 *
 * Stream order: the producer must have made `stream` wait for its own work, as DLPack requires, so
 * pass this stream when you request the capsule. This call queues nothing.
 *
 * RMM has no counterpart.
 * @param capsule a Node-API external with one of the type tags of `include/cistern.h`, versioned or
 * not
 * @throws ArgumentTypeError if it is not a capsule; ArgumentRangeError for a tensor with negative
 * strides or more than 2^53 - 1 bytes, memory that nobody knows, or a stream that cannot use it.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the capsule is consumed or the stream disposed.
 * @throws UnsupportedError for another major version, a device without memory for cistern, or
 * elements that are not whole bytes.
 * @example
 * ```ts
 * using stream = new Stream();
 * const capsule = toDLPack(buffer, { shape: [4, 4], dtype: 'float32', stream }); // or another library's
 * const { buffer: tensor, shape } = fromDLPack(capsule, { stream });
 * tensor.dispose();
 * ```
 */
export function fromDLPack(capsule: DLPackCapsule, options: FromDLPackOptions): DLPackTensor {
  assertOptions(options, knownOptions);
  const { stream } = options;
  assertStream(stream, 'use a DLPack tensor');
  const tensor = inspectTensor(capsule);
  const { code, bits, lanes, flags, version } = tensor;
  const itemBytes = itemBytesOf({ code, bits, lanes });
  const { shape, strides, extentBytes } = arrayLayout(tensor.shape, tensor.strides, itemBytes, itemBytes);
  const ptr = extentBytes === 0 ? 0 : addressOf(tensor);
  const place = { ptr, byteLength: extentBytes, ...deviceOf(tensor), ...options };
  // Refuses tensors that the buffer would refuse, before the capsule is consumed. Ordinary host memory
  // becomes known only once the tensor is consumed.
  const isOnHost = tensor.deviceType === dlpackDeviceType.host;
  wrapMemory(isOnHost ? { ...place, byteLength: 0 } : place).dispose();
  const release = takeTensor(capsule);
  let buffer: DeviceBuffer;
  try {
    buffer = wrapMemory({ ...place, release });
  } catch (error) {
    release();
    throw error;
  }
  return Object.freeze({
    buffer,
    shape,
    strides: strides.map((bytes) => bytes / itemBytes),
    dtype: nameOf({ code, bits, lanes }),
    isReadOnly: (flags & readOnlyFlag) !== 0,
    isCopied: (flags & isCopiedFlag) !== 0,
    version,
  });
}

function addressOf({ address, byteOffset }: TensorDescription): number {
  const first = address + byteOffset;
  if (Number.isSafeInteger(first) && address > 0) return first;
  throw new ArgumentRangeError(`capsule must have a tensor at an address from 1 to 2^53 - 1, got ${address} and offset ${byteOffset}`);
}

/** The device of device memory. */
function deviceOf({ deviceType, deviceId }: TensorDescription): { readonly device?: Device } {
  const types: readonly number[] = Object.values(dlpackDeviceType);
  if (!types.includes(deviceType))
    throw new UnsupportedError(`capsule must have a tensor of the host or CUDA, got device type ${deviceType}`);
  return deviceType === dlpackDeviceType.device ? { device: Device.get(deviceId) } : {};
}
