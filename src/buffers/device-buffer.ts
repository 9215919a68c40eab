import { isAnyArrayBuffer } from 'node:util/types';
import { assertMemoryResource } from '../adaptors/pass-through-adaptor.js';
import { assertStream, type Stream } from '../driver/stream.js';
import { copyFromHost, copyToHost, copyToHostSync, set } from '../driver/transfer.js';
import { ArgumentRangeError, ArgumentTypeError, formatValue, LifetimeError } from '../errors.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { creationStack, disown, freeSoonerOrLater, own } from '../reclaim/unreachable-buffers.js';
import { ALLOCATION_ALIGNMENT } from '../units.js';
import { assertAlignment, assertBytes, assertOptions } from '../validation.js';
import { BufferMemory } from './buffer-memory.js';
import { type ByteRange, resolveRange } from './byte-range.js';
import { currentResource } from './current-resource.js';
import { copyOrdered } from './ordered-copy.js';

/** Bytes in the host's memory: a typed array, a `DataView`, a `Buffer`, or an `ArrayBuffer`, shared or not. */
export type HostData = ArrayBufferView | ArrayBufferLike;

/** Options of {@link DeviceBuffer}. */
export interface DeviceBufferOptions {
  /**
   * Where the memory comes from and goes back to. The buffer keeps it alive, and does not dispose it.
   * @defaultValue the current resource of the stream's device: see {@link currentResource}, {@link withResource}
   */
  readonly resource?: MemoryResource;
  /** The stream that the memory is ordered on. The buffer keeps it alive, and does not dispose it. */
  readonly stream: Stream;
  /**
   * Bytes to allocate, at least as many as the buffer's length, so that it can grow without moving.
   * @defaultValue the buffer's length
   */
  readonly capacityBytes?: number;
  /**
   * A power of two that the resource can promise; at least 256 is given in any case. Kept when the buffer moves.
   * @defaultValue 256
   */
  readonly alignment?: number;
  /**
   * What people call the buffer, in recordings and reports of leaks.
   * @defaultValue none
   */
  readonly label?: string;
}

/** Options of the copies into a {@link DeviceBuffer}. */
export interface BufferCopyOptions {
  /**
   * Where the bytes go, counted from the start of the buffer that is written.
   * @defaultValue 0
   */
  readonly byteOffset?: number;
  /**
   * Where the bytes come from, counted from the start of what is read.
   * @defaultValue 0
   */
  readonly sourceByteOffset?: number;
  /**
   * How many bytes.
   * @defaultValue all that follow `sourceByteOffset`
   */
  readonly byteLength?: number;
}

/**
 * Untyped memory of any kind that a resource gives, with an owner: it is freed when the buffer is disposed, and, where that is forgotten,
 * after the garbage collector found the buffer unreachable.
 *
 * Stream order: everything a buffer does is queued on its `stream`, and its memory is freed there. Another stream that uses the memory must be
 * ordered after `stream`, and `stream` after that use before the buffer is resized or disposed. Copies between two buffers see to this.
 *
 * The numeric `ptr` and `byteLength` are what existing GPU libraries for Node.js accept as memory.
 *
 * Where the resource is out of memory, buffers that are unreachable are freed, after a minor and then a major garbage collection, and the
 * allocation is tried again; see {@link reclaimUnreachableBuffers}. Garbage is also collected before buffers hold more than three quarters of
 * the device's or the host's memory; see {@link configureEarlyCollection}. A buffer that was dropped without being disposed is published on
 * the diagnostics channel `cistern:leak`; see {@link BufferLeak}.
 *
 * Counterpart of `rmm::device_buffer`.
 * @example
 * ```ts
 * using resource = new CudaAsyncMemoryResource();
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { resource, stream });
 * const bytes = await buffer.toHost();
 * console.log(new Float32Array(bytes.buffer)); // 1, 2, 3
 * ```
 */
export class DeviceBuffer implements Disposable {
  readonly #memory: BufferMemory;
  #byteLength: number;
  /** The slot under which the garbage collector is watched; -1 once disposed. */
  #slot: number;

  /**
   * Allocates; where host data is given, also queues a copy of it. The data may be changed as soon as this returns.
   * @param source the length in bytes, an integer from 0 to 2^53 - 1, whose contents are undefined; or host data to copy
   * @throws OutOfMemoryError where the resource has no memory, after unreachable buffers were freed.
   * @throws ArgumentTypeError, ArgumentRangeError for an argument that is none of the above.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the resource or the stream is disposed.
   * @throws DriverError where the driver refuses the copy.
   */
  constructor(source: number | HostData, options: DeviceBufferOptions) {
    const data = typeof source === 'number' ? undefined : hostBytes(source);
    const byteLength = data === undefined ? (source as number) : data.byteLength;
    assertBytes(byteLength, 'source');
    const { resource, stream, capacityBytes, alignment, label } = resolveOptions(options, byteLength);
    this.#memory = new BufferMemory(resource, stream, alignment, creationStack(new.target));
    this.#memory.label = label;
    this.#byteLength = byteLength;
    this.#memory.reallocate(capacityBytes, 0);
    try {
      if (data !== undefined && byteLength > 0) copyFromHost(this.#memory.pointer, data, stream);
      this.#slot = own(this, this.#memory);
    } catch (error) {
      freeSoonerOrLater(this.#memory);
      throw error;
    }
  }

  /**
   * The address of the first byte; 0 where the capacity is 0. Changes when the buffer moves.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) once disposed, so that nobody is handed freed memory.
   */
  get ptr(): DevicePointer {
    this.#assertLive('read the address of a buffer');
    return this.#memory.pointer;
  }

  /** The length in bytes; 0 once disposed. Counterpart of `device_buffer::size`. */
  get byteLength(): number {
    return this.isDisposed ? 0 : this.#byteLength;
  }

  /** Bytes that are allocated; 0 once disposed. */
  get capacityBytes(): number {
    return this.#memory.bytes;
  }

  /** The alignment that was asked for, in bytes. */
  get alignment(): number {
    return this.#memory.alignment;
  }

  /** Where the memory comes from. Counterpart of `device_buffer::memory_resource`. */
  get resource(): MemoryResource {
    return this.#memory.resource;
  }

  /** The stream that the memory is ordered on, and freed on. */
  get stream(): Stream {
    return this.#memory.stream;
  }

  /** What people call the buffer: {@link RecordingResourceAdaptor}s record it, and reports of leaks name it. */
  get label(): string | undefined {
    return this.#memory.label;
  }

  /**
   * May be set at any time; it is recorded where the memory is live.
   * @throws ArgumentTypeError for what is no text.
   */
  set label(label: string | undefined) {
    assertLabel(label);
    this.#memory.label = label;
  }

  /** Whether it is disposed, by a call or because its memory was taken back: by the end of a caching scope, a rewind, or the end of a resource. */
  get isDisposed(): boolean {
    return this.#slot < 0 || this.#memory.endReason !== undefined;
  }

  /**
   * Changes the stream for everything that follows, freeing included. Does not order the two streams: the caller has made the new one wait
   * for what the old one does with the memory. Does not block.
   *
   * Counterpart of `device_buffer::set_stream`.
   * @throws ArgumentTypeError for what is no stream, LifetimeError where the buffer or the stream is disposed.
   */
  setStream(stream: Stream): void {
    this.#assertLive('set the stream of a buffer');
    assertStream(stream, 'set the stream of a buffer');
    this.#memory.stream = stream;
  }

  /**
   * Changes the length. Up to the capacity nothing else happens; beyond it, the contents move to new memory in stream order, and the old
   * memory is freed. Bytes that are added are undefined. Never gives memory back: see {@link DeviceBuffer.shrinkToFit}. Does not block.
   * @param byteLength an integer from 0 to 2^53 - 1
   * @throws OutOfMemoryError, LifetimeError, DriverError, ArgumentTypeError, ArgumentRangeError; the buffer is then as it was.
   */
  resize(byteLength: number): void {
    this.#assertUsable('resize a buffer');
    assertBytes(byteLength, 'byteLength');
    if (byteLength > this.#memory.bytes) this.#move(byteLength);
    this.#byteLength = byteLength;
  }

  /**
   * Makes the capacity at least `capacityBytes`; the length stays. Moves the contents in stream order where it grows. Does not block.
   * @param capacityBytes an integer from 0 to 2^53 - 1
   * @throws OutOfMemoryError, LifetimeError, DriverError, ArgumentTypeError, ArgumentRangeError; the buffer is then as it was.
   */
  reserve(capacityBytes: number): void {
    this.#assertUsable('reserve memory for a buffer');
    assertBytes(capacityBytes, 'capacityBytes');
    if (capacityBytes > this.#memory.bytes) this.#move(capacityBytes);
  }

  /**
   * Makes the capacity equal to the length, by moving the contents in stream order where it is larger. Needs memory for both meanwhile. Does
   * not block.
   * @throws OutOfMemoryError, LifetimeError, DriverError; the buffer is then as it was.
   */
  shrinkToFit(): void {
    this.#assertUsable('shrink a buffer');
    if (this.#byteLength < this.#memory.bytes) this.#move(this.#byteLength);
  }

  /**
   * Queues a copy into this buffer. Host data may be changed as soon as this returns. Between buffers on two streams, each stream waits for
   * what is queued on the other, so that neither needs more care. Does not block.
   * @throws ArgumentTypeError for what is neither host data nor a buffer.
   * @throws ArgumentRangeError for a range outside either, or two that overlap in one buffer; nothing is copied.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where a buffer or its stream is disposed.
   * @throws DriverError where the driver refuses.
   * @example
   * ```ts
   * buffer.copyFrom(header);
   * buffer.copyFrom(rows, { byteOffset: header.byteLength });
   * ```
   */
  copyFrom(source: HostData | DeviceBuffer, options: BufferCopyOptions = {}): void {
    this.#assertUsable('copy to a buffer');
    assertOptions(options);
    const data = source instanceof DeviceBuffer ? source : hostBytes(source);
    if (data instanceof DeviceBuffer) data.#assertUsable('copy from a buffer');
    const from = resolveRange({ byteOffset: options.sourceByteOffset, byteLength: options.byteLength }, data.byteLength, 'source');
    const to = resolveRange({ byteOffset: options.byteOffset, byteLength: from.byteLength }, this.#byteLength, 'buffer');
    if (data === this && Math.abs(from.byteOffset - to.byteOffset) < from.byteLength) {
      throw new ArgumentRangeError(
        `the source must not overlap the destination, got ${from.byteLength} bytes from ${from.byteOffset} to ${to.byteOffset} of one buffer`,
      );
    }
    if (from.byteLength === 0) return;
    const { pointer, stream } = this.#memory;
    const destination = pointer + to.byteOffset;
    if (data instanceof DeviceBuffer) {
      const { pointer: sourcePointer, stream: sourceStream } = data.#memory;
      copyOrdered({ pointer: destination, stream }, { pointer: sourcePointer + from.byteOffset, stream: sourceStream }, from.byteLength);
    } else {
      copyFromHost(destination, data.subarray(from.byteOffset, from.byteOffset + from.byteLength), stream);
    }
  }

  /** The same as {@link DeviceBuffer.copyFrom}; blocks until the stream of this buffer has run. */
  copyFromSync(source: HostData | DeviceBuffer, options: BufferCopyOptions = {}): void {
    this.copyFrom(source, options);
    this.#memory.stream.synchronizeSync();
  }

  /** The same as `destination.copyFrom(this, options)`. */
  copyTo(destination: DeviceBuffer, options: BufferCopyOptions = {}): void {
    if (!(destination instanceof DeviceBuffer)) {
      throw new ArgumentTypeError(`destination must be a DeviceBuffer, got ${formatValue(destination)}`);
    }
    destination.copyFrom(this, options);
  }

  /**
   * Queues a copy of the contents now, in stream order, and resolves with it once it has run. The buffer may be written or disposed
   * meanwhile. The event loop goes on.
   * @throws ArgumentTypeError, ArgumentRangeError for a range outside the buffer.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the buffer or its stream is disposed.
   * @throws DriverError where the driver refuses.
   */
  async toHost(range: Partial<ByteRange> = {}): Promise<Uint8Array<ArrayBuffer>> {
    this.#assertUsable('copy from a buffer');
    const { byteOffset, byteLength } = resolveRange(range, this.#byteLength, 'buffer');
    if (byteLength === 0) return new Uint8Array(0);
    return new Uint8Array(await copyToHost(this.#memory.pointer + byteOffset, byteLength, this.#memory.stream));
  }

  /**
   * Fills a host array with the contents from `byteOffset` on, in stream order, and blocks until that is done. Without an array, a new one
   * takes everything from there to the end.
   * @returns the array
   * @throws ArgumentTypeError for what is no typed array or `DataView`, ArgumentRangeError for one that is longer than what there is.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the buffer or its stream is disposed.
   * @throws DriverError where the driver refuses.
   * @example
   * ```ts
   * const numbers = buffer.toHostSync(new Float64Array(4), { byteOffset: 16 });
   * ```
   */
  toHostSync(destination?: undefined, options?: Pick<Partial<ByteRange>, 'byteOffset'>): Uint8Array<ArrayBuffer>;
  toHostSync<T extends ArrayBufferView>(destination: T, options?: Pick<Partial<ByteRange>, 'byteOffset'>): T;
  toHostSync(destination?: ArrayBufferView, options: Pick<Partial<ByteRange>, 'byteOffset'> = {}): ArrayBufferView {
    this.#assertUsable('copy from a buffer');
    assertOptions(options);
    if (destination !== undefined && !ArrayBuffer.isView(destination)) {
      throw new ArgumentTypeError(`destination must be a typed array or a DataView, got ${formatValue(destination)}`);
    }
    const range = resolveRange({ byteOffset: options.byteOffset, byteLength: destination?.byteLength }, this.#byteLength, 'buffer');
    const target = destination ?? new Uint8Array(range.byteLength);
    if (range.byteLength > 0) copyToHostSync(target, this.#memory.pointer + range.byteOffset, this.#memory.stream);
    return target;
  }

  /**
   * Sets every byte of a range, of the whole buffer by default, in stream order. Does not block.
   * @param value an integer from 0 to 255
   * @throws ArgumentTypeError, ArgumentRangeError for another value, or a range outside the buffer.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the buffer or its stream is disposed.
   * @throws DriverError where the driver refuses.
   */
  fill(value: number, range: Partial<ByteRange> = {}): void {
    this.#assertUsable('fill a buffer');
    if (typeof value !== 'number') throw new ArgumentTypeError(`value must be a number, got ${formatValue(value)}`);
    if (!Number.isInteger(value) || value < 0 || value > 255) {
      throw new ArgumentRangeError(`value must be an integer from 0 to 255, got ${value}`);
    }
    const { byteOffset, byteLength } = resolveRange(range, this.#byteLength, 'buffer');
    if (byteLength === 0) return;
    const { pointer, stream, resource } = this.#memory;
    // The driver sets no memory that it does not know.
    if (resource.memoryKind === 'host') copyFromHost(pointer + byteOffset, new Uint8Array(byteLength).fill(value), stream);
    else set(pointer + byteOffset, value, 1, byteLength, stream);
  }

  /**
   * Frees the memory in the order of `stream`; work that is queued there still runs before it is reused. Does not block by itself, unless
   * `stream` was disposed before: then it waits for the device first. Does nothing the second time.
   * @throws LifetimeError where the memory is not the resource's to free, for example because that is disposed; the buffer is disposed all
   * the same.
   * @throws DriverError, or whatever else the resource refuses with; the buffer is as it was, and may be disposed again.
   */
  [Symbol.dispose](): void {
    if (this.#slot < 0) return;
    const slot = this.#slot;
    const byteLength = this.#byteLength;
    // The resource is foreign code: what it does with the buffer meanwhile must find it disposed.
    this.#slot = -1;
    this.#byteLength = 0;
    try {
      this.#memory.free();
    } finally {
      if (this.#memory.pointer === 0) {
        disown(slot);
      } else {
        this.#slot = slot;
        this.#byteLength = byteLength;
      }
    }
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  #move(capacityBytes: number): void {
    this.#memory.reallocate(capacityBytes, this.#byteLength);
    if (this.#slot >= 0) return;
    // The resource is foreign code, and disposed this buffer meanwhile.
    freeSoonerOrLater(this.#memory);
    this.#assertLive('move a buffer');
  }

  #assertLive(operation: string): void {
    if (!this.isDisposed) return;
    throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: ${this.#memory.endReason ?? 'the buffer is already disposed'}`);
  }

  #assertUsable(operation: string): void {
    this.#assertLive(operation);
    assertStream(this.#memory.stream, operation);
  }
}

/** The one place where options become what a buffer is made with. */
function resolveOptions(options: DeviceBufferOptions, byteLength: number) {
  if (typeof options !== 'object' || options === null) {
    throw new ArgumentTypeError(`options must be an object with a stream, got ${formatValue(options)}`);
  }
  const { stream, capacityBytes = byteLength, alignment = ALLOCATION_ALIGNMENT, label } = options;
  assertStream(stream, 'create a buffer');
  const { resource = currentResource(stream.device) } = options;
  assertMemoryResource(resource, 'resource');
  assertBytes(capacityBytes, 'capacityBytes');
  if (capacityBytes < byteLength) {
    throw new ArgumentRangeError(`capacityBytes must be at least the length of the buffer, ${byteLength}, got ${capacityBytes}`);
  }
  assertAlignment(alignment);
  assertLabel(label);
  return { resource, stream, capacityBytes, alignment, label };
}

function assertLabel(label: unknown): asserts label is string | undefined {
  if (label === undefined || typeof label === 'string') return;
  throw new ArgumentTypeError(`label must be a string, got ${formatValue(label)}`);
}

function hostBytes(data: HostData): Uint8Array {
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  if (isAnyArrayBuffer(data)) return new Uint8Array(data);
  throw new ArgumentTypeError(`source must be a typed array, a DataView, an ArrayBuffer or a DeviceBuffer, got ${formatValue(data)}`);
}
