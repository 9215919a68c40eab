/** Copies into and out of the memory of a buffer, in the order of its stream. */
import { isAnyArrayBuffer, isTypedArray } from 'node:util/types';
import { ArgumentRangeError, ArgumentTypeError, formatPointer, formatValue } from '../../basics/errors.js';
import { assertBytes, assertInteger, assertPointer, optionNames } from '../../basics/validation.js';
import { copy, copyFromHost, copyIntoHost, copyToHost, copyToHostSync, set } from '../../driver/memory/transfer.js';
import type { DeviceMemory, DevicePointer } from '../../memory-resource.js';
import { BufferMemory, type HasMemory, memoryOf } from '../buffer-memory.js';
import type { BufferCopyOptions, HostData } from './buffer-contents.js';
import { assertNoMemory, type ByteRange, resolveRange } from './byte-range.js';
import { copyOrdered } from './ordered-copy.js';

/** What is copied from: bytes of the host, other device memory, or the memory of a buffer. */
export type CopySource = Uint8Array | DeviceMemory | BufferMemory;

const offsetOptions = optionNames<Pick<ByteRange, 'byteOffset'>>({ byteOffset: true });

const copyOptions = optionNames<BufferCopyOptions>({ byteLength: true, byteOffset: true, sourceByteOffset: true });

/** Checks a source; `more` is what else it may be, for the error. */
export function readable(source: HostData | DeviceMemory, more = ''): CopySource {
  if (ArrayBuffer.isView(source) || isAnyArrayBuffer(source)) return hostBytes(source, 'source');
  if (typeof source === 'object' && source !== null && memoryOf in source) {
    const memory = (source as HasMemory)[memoryOf];
    memory.assertLive('copy from a buffer');
    return memory;
  }
  if (typeof source === 'object' && source !== null && 'ptr' in source) {
    const { ptr, byteLength } = source;
    assertPointer(ptr, 'ptr of source');
    assertBytes(byteLength, 'byteLength of source');
    return { ptr, byteLength };
  }
  throw new ArgumentTypeError(
    `source must be ${more}a typed array, a DataView, an ArrayBuffer, a DeviceBuffer, or device memory with ptr and byteLength, got ${formatValue(source)}`,
  );
}

/** Queues a copy of a checked range. */
export function queueCopy({ pointer, stream }: BufferMemory, data: CopySource, from: number, to: number, bytes: number): void {
  const destination = pointer + to;
  if (data instanceof BufferMemory) {
    copyOrdered({ pointer: destination, stream }, { pointer: data.pointer + from, stream: data.stream }, bytes);
  } else if (data instanceof Uint8Array) {
    copyFromHost(destination, data.subarray(from, from + bytes), stream);
  } else {
    copy(destination, data.ptr + from, bytes, stream);
  }
}

/** Does what `copyFrom` of a buffer says. */
export function copyInto(memory: BufferMemory, source: HostData | DeviceMemory, options: BufferCopyOptions): void {
  memory.assertUsable('copy to a buffer');
  memory.assertNotShared('copy to a buffer');
  assertNoMemory(options, copyOptions, 'options');
  const data = readable(source);
  if (data instanceof BufferMemory) data.assertUsable('copy from a buffer');
  const from = resolveRange(
    { byteOffset: options.sourceByteOffset, byteLength: options.byteLength },
    data.byteLength,
    'source',
    'sourceByteOffset',
  );
  const to = resolveRange({ byteOffset: options.byteOffset, byteLength: from.byteLength }, memory.byteLength, 'buffer');
  if (!(data instanceof Uint8Array)) {
    const begin = (data instanceof BufferMemory ? data.pointer : data.ptr) + from.byteOffset;
    assertApart(begin, memory.pointer + to.byteOffset, from.byteLength);
  }
  if (from.byteLength > 0) queueCopy(memory, data, from.byteOffset, to.byteOffset, from.byteLength);
}

/** Does what `toHost` of a buffer says. */
export async function copyOut(
  memory: BufferMemory,
  target: Partial<ByteRange> | ArrayBufferView,
  options: Omit<Partial<ByteRange>, 'byteLength'>,
): Promise<ArrayBufferView> {
  memory.assertUsable('copy from a buffer');
  if (ArrayBuffer.isView(target)) {
    const source = sourceFor(memory, target, options);
    if (hostBytes(target, 'destination').byteLength > 0) await copyIntoHost(target, source, memory.stream);
    return target;
  }
  const { byteOffset, byteLength } = resolveRange(target, memory.byteLength, 'buffer');
  if (byteLength === 0) return new Uint8Array(0);
  return new Uint8Array(await copyToHost(memory.pointer + byteOffset, byteLength, memory.stream));
}

/** Does what `toHostSync` of a buffer says. */
export function copyOutSync(
  memory: BufferMemory,
  destination: ArrayBufferView | undefined,
  options: Omit<Partial<ByteRange>, 'byteLength'>,
): ArrayBufferView {
  memory.assertUsable('copy from a buffer');
  if (destination !== undefined && !ArrayBuffer.isView(destination)) {
    throw new ArgumentTypeError(`destination must be a typed array or a DataView, got ${formatValue(destination)}`);
  }
  const source = sourceFor(memory, destination, options);
  const target = destination ?? new Uint8Array(memory.byteLength - (options.byteOffset ?? 0));
  if (hostBytes(target, 'destination').byteLength > 0) copyToHostSync(target, source, memory.stream);
  return target;
}

/** Does what `fill` of a buffer says. */
export function fill(memory: BufferMemory, value: number, range: Partial<ByteRange>): void {
  memory.assertUsable('fill a buffer');
  memory.assertNotShared('fill a buffer');
  assertInteger(value, 'value', 0, 255);
  const { byteOffset, byteLength } = resolveRange(range, memory.byteLength, 'buffer');
  if (byteLength === 0) return;
  const { pointer, stream, resource } = memory;
  // The driver cannot set memory that it does not know.
  if (resource.memoryKind === 'host') copyFromHost(pointer + byteOffset, new Uint8Array(byteLength).fill(value), stream);
  else set(pointer + byteOffset, value, 1, byteLength, stream);
}

/** The start address of a copy to a host array. */
function sourceFor(
  memory: BufferMemory,
  destination: ArrayBufferView | undefined,
  options: Omit<Partial<ByteRange>, 'byteLength'>,
): DevicePointer {
  assertNoMemory(options, offsetOptions, 'options');
  const byteLength = destination === undefined ? undefined : hostBytes(destination, 'destination').byteLength;
  const range = resolveRange({ byteOffset: options.byteOffset, byteLength }, memory.byteLength, 'buffer');
  return memory.pointer + range.byteOffset;
}

function assertApart(source: DevicePointer, destination: DevicePointer, bytes: number): void {
  if (Math.abs(source - destination) >= bytes) return;
  const addresses = `from ${formatPointer(source)} to ${formatPointer(destination)}`;
  throw new ArgumentRangeError(`the source must not overlap the destination, got ${bytes} bytes ${addresses}`);
}

function hostBytes(data: HostData, name: string): Uint8Array {
  try {
    // An array that its memory has become too short for seems to be empty; this throws then.
    if (data.byteLength === 0 && isTypedArray(data)) data.keys();
    return ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
  } catch {
    throw new ArgumentTypeError(`${name} must still have its memory, got ${formatValue(data)} whose memory was transferred or shortened`);
  }
}
