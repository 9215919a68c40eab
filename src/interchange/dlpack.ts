/**
 * Arrays in buffers, in the form of DLPack: exporting them to another library, and the parts that
 * both directions share.
 */
import { deviceOfMemory } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { ArgumentRangeError, formatValue, invalidValue, UnsupportedError } from '../basics/errors.js';
import { assertBytes, assertOptions, optionNames } from '../basics/validation.js';
import { type ExportableBuffer, exportableMemory } from '../buffers/buffer-memory.js';
import { kindOfMemory } from '../buffers/transfers/buffer-transfer.js';
import { follow } from '../buffers/transfers/ordered-copy.js';
import { Stream } from '../driver/streams/stream.js';
import { arrayLayout, assertWithin } from './array-layout.js';
import { Consumers } from './consumers.js';
import { dlpackDeviceType, exportTensor, readOnlyFlag } from './dlpack-capsule.js';
import { addressOf } from './wrap.js';

/**
 * A DLPack tensor for another library: a Node-API external that is opaque to JavaScript.
 * `include/cistern.h` describes its contents for addons.
 */
export type DLPackCapsule = object;

/** The types of elements that have a name. */
export type DLPackTypeName =
  | 'int8'
  | 'int16'
  | 'int32'
  | 'int64'
  | 'uint8'
  | 'uint16'
  | 'uint32'
  | 'uint64'
  | 'float16'
  | 'float32'
  | 'float64'
  | 'bfloat16'
  | 'complex64'
  | 'complex128'
  | 'bool';

/** A type of elements as DLPack writes it. */
export interface DLPackDataType {
  /** DLPack's number of the kind: 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool … */
  readonly code: number;
  /** The bits of one lane: a multiple of 8. */
  readonly bits: number;
  /**
   * The lanes of a vector.
   * @defaultValue 1
   */
  readonly lanes?: number | undefined;
}

/** A type with all of its fields. */
interface CompleteDataType extends DLPackDataType {
  readonly lanes: number;
}

/** Options of {@link toDLPack}. */
export interface DLPackOptions {
  /** The number of elements in each dimension; empty for a single element. */
  readonly shape: readonly number[];
  /** The type of the elements. */
  readonly dtype: DLPackTypeName | DLPackDataType;
  /**
   * The elements from an element to the next one in each dimension, 0 or more.
   * @defaultValue those of an array in C order without gaps
   */
  readonly strides?: readonly number[] | undefined;
  /**
   * Where the first element begins in the buffer, in bytes.
   * @defaultValue 0
   */
  readonly byteOffset?: number | undefined;
  /**
   * The stream on which the consumer will use the tensor, which waits for the work queued on the
   * buffer's stream: a stream, or a number: 1 for the legacy default stream, 2 for the per-thread
   * default stream, otherwise the driver's handle. With -1, no stream waits. If the stream's end is not
   * announced ({@link ForeignStreamOptions.announcesEnd}), the deleter's call waits for the device.
   *
   * Memory that the host can read without the driver has no consumer stream. For this, and for
   * pinned memory, the call blocks until the buffer's stream has run, unless you set this option.
   * @defaultValue for device and managed memory the legacy default stream
   */
  readonly stream?: Stream | number | bigint | null | undefined;
  /**
   * Whether the consumer must not write the memory. Not possible for an unversioned tensor, which
   * has no flag for it.
   * @defaultValue false
   */
  readonly readOnly?: boolean | undefined;
  /**
   * Whether the capsule has a `DLManagedTensorVersioned`, of version 1.0; if not, it has the older
   * `DLManagedTensor`.
   * @defaultValue true
   */
  readonly versioned?: boolean | undefined;
}

const optionsOfTensors = optionNames<DLPackOptions>({
  byteOffset: true,
  dtype: true,
  readOnly: 'boolean',
  shape: true,
  stream: true,
  strides: true,
  versioned: 'boolean',
});

const namedTypes: Readonly<Record<DLPackTypeName, CompleteDataType>> = {
  int8: type(0, 8),
  int16: type(0, 16),
  int32: type(0, 32),
  int64: type(0, 64),
  uint8: type(1, 8),
  uint16: type(1, 16),
  uint32: type(1, 32),
  uint64: type(1, 64),
  float16: type(2, 16),
  float32: type(2, 32),
  float64: type(2, 64),
  bfloat16: type(4, 16),
  complex64: type(5, 64),
  complex128: type(5, 128),
  bool: type(6, 8),
};

function type(code: number, bits: number): CompleteDataType {
  return Object.freeze({ code, bits, lanes: 1 });
}

/** The name of a type, or the type itself if it has none. */
export function nameOf(dataType: CompleteDataType): DLPackTypeName | DLPackDataType {
  for (const [name, { code, bits }] of Object.entries(namedTypes)) {
    if (dataType.code === code && dataType.bits === bits && dataType.lanes === 1) return name as DLPackTypeName;
  }
  return dataType;
}

/** @throws UnsupportedError for elements that are not whole bytes. */
export function itemBytesOf({ bits, lanes }: CompleteDataType): number {
  const all = bits * lanes;
  if (all > 0 && all % 8 === 0) return all / 8;
  throw new UnsupportedError(`dtype must have whole bytes, got ${lanes} lanes of ${bits} bits`);
}

/**
 * Passes an array in the buffer to another library, as a DLPack capsule. Nothing is copied, and the
 * buffer stays usable: its memory is freed once the buffer no longer has it and the consumer has
 * called the deleter. The consumer may do that on any thread; this environment learns of it from its
 * event loop. If the capsule is never consumed, the garbage collector calls the deleter. If this
 * environment ends first, the memory is still freed only after the deleter's call. Before that, do
 * not dispose or rewind the resource, or end the run of a cache; the memory of an attached buffer is
 * returned when this worker ends. A shared buffer can only be exported with `readOnly`. An exported
 * buffer can be neither released nor handed over to another worker.
 *
 * Stream order: the consumer's stream waits for the work queued on the buffer's. When the deleter
 * is called, the buffer's stream waits for the work queued on the consumer's, so the memory is
 * freed in stream order. Does not block, except for host memory without a `stream`.
 *
 * RMM has no counterpart.
 * @throws ArgumentTypeError, ArgumentRangeError for an invalid shape, type, stride or stream, or an
 * array outside the buffer; UnsupportedError for elements that are not whole bytes.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or a stream is disposed; DriverError
 * if the driver refuses.
 * @example
 * ```ts
 * const capsule = toDLPack(buffer, { shape: [2, 3], dtype: 'float32', stream: consumer });
 * ```
 */
export function toDLPack(buffer: ExportableBuffer, options: DLPackOptions): DLPackCapsule {
  const operation = 'export a buffer';
  const before = exportableMemory(buffer);
  before.assertUsable(operation);
  assertOptions(options, optionsOfTensors);
  if (options.readOnly !== true) before.assertNotShared('export a buffer to be written');
  const { shape, strides, byteOffset = 0, readOnly = false, versioned = true } = options;
  const dataType = dataTypeOf(options.dtype);
  const itemBytes = itemBytesOf(dataType);
  const layout = arrayLayout(shape, strides, itemBytes, itemBytes);
  assertBytes(byteOffset, 'byteOffset');
  assertWithin(layout, byteOffset, before.byteLength);
  if (readOnly && !versioned) {
    throw invalidValue('readOnly must not be true for an unversioned tensor, which has no flag for it');
  }
  const kind = kindOfMemory(before.pointer, before.resource);
  if (kind === 'unknown') throw new UnsupportedError('the driver does not know the memory of the buffer any more');
  const consumer = giveTo(options.stream, kind === 'host' || kind === 'pinned-host', before.stream, kind);
  // Host functions may have run during a wait.
  const memory = exportableMemory(buffer);
  memory.assertUsable(operation);
  const consumers = Consumers.begin(memory);
  const description = {
    // An array without elements has no memory.
    address: layout.extentBytes === 0 ? 0 : memory.pointer,
    deviceType: dlpackDeviceType[kind],
    deviceId: kind === 'device' || kind === 'managed' ? deviceOfMemory(memory.resource, memory.pointer).index : 0,
    ...dataType,
    byteOffset: layout.extentBytes === 0 ? 0 : byteOffset,
    flags: readOnly ? readOnlyFlag : 0,
    shape: layout.shape,
    strides: layout.strides.map((bytes) => bytes / itemBytes),
  };
  try {
    return exportTensor(description, versioned, () => consumers.endUse(consumer));
  } catch (error) {
    consumers.endUse(consumer);
    throw error;
  }
}

function dataTypeOf(dtype: unknown): CompleteDataType {
  if (typeof dtype === 'string' && Object.hasOwn(namedTypes, dtype)) return namedTypes[dtype as DLPackTypeName];
  if (typeof dtype !== 'object' || dtype === null) {
    const names = Object.keys(namedTypes).join(', ');
    throw invalidValue(`dtype must be a type of DLPack or one of ${names}, got ${formatValue(dtype)}`);
  }
  const { code, bits, lanes = 1 } = dtype as DLPackDataType;
  for (const [name, value, most] of [
    ['code', code, 255],
    ['bits', bits, 255],
    ['lanes', lanes, 65535],
  ] as const) {
    assertBytes(value, `${name} of dtype`);
    if (value > most) throw new ArgumentRangeError(`${name} of dtype must be an integer from 0 to ${most}, got ${value}`);
  }
  return { code, bits, lanes };
}

/**
 * Orders the consumer after the work queued on the buffer's stream. Returns the consumer's stream,
 * if the buffer's stream must wait for it when the consumer is done.
 */
function giveTo(option: DLPackOptions['stream'], isOnHost: boolean, producer: Stream, kind: string): Stream | undefined {
  if (option === -1 || option === -1n) return undefined;
  if (option === undefined || option === null) {
    if (isOnHost) {
      producer.synchronizeSync();
      return undefined;
    }
    return ordered(Stream.legacyDefault(producer.device), producer);
  }
  if (kind === 'host') {
    throw invalidValue(`stream must be -1 or left out for host memory, which no stream uses, got ${formatValue(option)}`);
  }
  if (option instanceof Stream) return ordered(option, producer);
  const handle = addressOf(option, 'stream');
  if (handle === 0) {
    throw invalidValue('stream must not be 0, which is ambiguous: use 1 for the legacy default stream, 2 for the per-thread one');
  }
  return ordered(Stream.fromHandle(handle, { device: producer.device }), producer);
}

function ordered(consumer: Stream, producer: Stream): Stream {
  if (consumer.identity !== producer.identity) follow(consumer, producer);
  return consumer;
}
