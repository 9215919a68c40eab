import { isAnyArrayBuffer } from 'node:util/types';
import { assertMemoryResource } from '../adaptors/pass-through-adaptor.js';
import { creationStack, disown, freeSoonerOrLater, own } from '../collector/unreachable-buffers.js';
import { Event } from '../driver/event.js';
import { type Inspect, type InspectionOptions, inspected, inspectedPointer, inspectObject, refuseCloning } from '../driver/local-object.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/stream.js';
import { assertStillHolds, copy, copyFromHost, copyIntoHost, copyToHost, copyToHostSync, set } from '../driver/transfer.js';
import { ArgumentRangeError, ArgumentTypeError, CisternError, formatPointer, formatValue, LifetimeError } from '../errors.js';
import type { DeallocationEvents, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { assertFence, deallocationEventsWords } from '../stream-ordering/stream-ordering.js';
import { ALLOCATION_ALIGNMENT } from '../units.js';
import { assertAlignment, assertBytes, assertOneOf, assertOptions, assertPointer, type OptionNames, optionNames } from '../validation.js';
import { BufferMemory } from './buffer-memory.js';
import { assertNoMemory, type ByteRange, resolveRange } from './byte-range.js';
import { currentResource } from './current-resource.js';
import { copyOrdered } from './ordered-copy.js';

/** Bytes in the host's memory: a typed array, a `DataView`, a `Buffer`, or an `ArrayBuffer`, shared or not. */
export type HostData = ArrayBufferView | ArrayBufferLike;

/** Memory that a device reaches, by its address: a {@link DeviceBuffer}, or a buffer of another library. */
export interface DeviceMemory {
  /** The address of the first byte; 0 if there is none. */
  readonly ptr: DevicePointer;
  /** The length in bytes. */
  readonly byteLength: number;
}

/** Memory of a resource with all that it takes to free it: what {@link DeviceBuffer.release} gives, and {@link DeviceBuffer.adopt} takes. */
export interface BufferAllocation extends DeviceMemory {
  /**
   * Bytes that the resource was asked for; at least `byteLength`.
   * @defaultValue `byteLength`
   */
  readonly capacityBytes?: number;
  /**
   * The alignment that the resource was asked for; kept when the buffer moves.
   * @defaultValue 256
   */
  readonly alignment?: number;
  /** Where the memory came from, and goes back to. */
  readonly resource: MemoryResource;
  /** The stream that the memory is ordered on. */
  readonly stream: Stream;
  /**
   * What people call the memory.
   * @defaultValue none
   */
  readonly label?: string;
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

const bufferOptions = optionNames<DeviceBufferOptions>({ alignment: true, capacityBytes: true, label: true, resource: true, stream: true });

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
  /** @internal An array is no options, though it has a `byteLength`. */
  readonly [Symbol.toStringTag]?: never;
  /** @internal */
  readonly [Symbol.dispose]?: never;
  /**
   * How many bytes.
   * @defaultValue all that follow `sourceByteOffset`
   */
  readonly byteLength?: number;
}

const offsetOptions = optionNames<Pick<ByteRange, 'byteOffset'>>({ byteOffset: true });

const copyOptions = optionNames<BufferCopyOptions>({ byteLength: true, byteOffset: true, sourceByteOffset: true });

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
  /** The slot under which the garbage collector is watched; -1 once disposed. */
  #slot: number;

  /**
   * Allocates; if given something to copy, also queues a copy of it. Host data may be changed as soon as this returns. Another buffer is copied
   * in the order of both streams; other memory in the order of this buffer's, which the caller has ordered after what writes the memory, and
   * before what frees it.
   * @param source the length in bytes, an integer from 0 to 2^53 - 1, whose contents are undefined; or host data, or device memory, to copy
   * @throws OutOfMemoryError where the resource has no memory, after unreachable buffers were freed.
   * @throws ArgumentTypeError, ArgumentRangeError for an argument that is none of the above, or a stream of a device that does not reach the
   * memory; ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) for a source that became shorter while the memory was allocated.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource, the stream or a buffer that is copied is disposed, also meanwhile.
   * @throws DriverError where the driver refuses the copy, for example of memory that it does not know.
   * @example
   * ```ts
   * using stream = new Stream();
   * using buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { stream });
   * using copy = new DeviceBuffer(buffer, { stream });
   * using part = new DeviceBuffer({ ptr: buffer.ptr + 4, byteLength: 8 }, { stream });
   * ```
   */
  constructor(source: number | HostData | DeviceMemory, options: DeviceBufferOptions);
  /** @internal */
  constructor(source: number | HostData | DeviceMemory, options: DeviceBufferOptions, adopted: BufferMemory);
  constructor(source: number | HostData | DeviceMemory, options: DeviceBufferOptions, adopted?: BufferMemory) {
    refuseCloning(this);
    if (adopted !== undefined) {
      this.#memory = adopted;
      this.#slot = own(this, adopted);
      return;
    }
    const data = typeof source === 'number' ? undefined : readable(source);
    const byteLength = data === undefined ? (source as number) : data.byteLength;
    assertBytes(byteLength, 'source');
    const { resource, stream, capacityBytes, alignment, label } = resolveOptions(options, byteLength);
    this.#memory = new BufferMemory(resource, stream, alignment, creationStack(new.target));
    this.#memory.label = label;
    this.#memory.reallocate(capacityBytes);
    this.#memory.byteLength = byteLength;
    try {
      if (data !== undefined && byteLength > 0) {
        // The resource is foreign code, and host functions run in it: either may have moved the source, or made it shorter.
        const current = data instanceof Uint8Array ? data : readable(source as DeviceMemory);
        assertStillHolds('source', current.byteLength, byteLength);
        this.#queueCopy(current, 0, 0, byteLength);
      }
      this.#slot = own(this, this.#memory);
    } catch (error) {
      freeSoonerOrLater(this.#memory);
      throw error;
    }
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(this, this.#shown(), depth, options, inspect);
  }

  /**
   * A buffer of memory that was allocated from a resource already; it frees that there. The memory is the buffer's from here on: nobody else may
   * free it. Whether it is live cannot be checked.
   * @throws ArgumentTypeError, ArgumentRangeError for what cannot be an allocation, or a stream of a device that does not reach the memory;
   * LifetimeError for a stream that is disposed. The memory is still the caller's then.
   * @example
   * ```ts
   * using stream = new Stream();
   * using resource = new CudaAsyncMemoryResource();
   * const ptr = resource.allocate(4096, stream);
   * using buffer = DeviceBuffer.adopt({ ptr, byteLength: 4096, resource, stream });
   * ```
   */
  static adopt(allocation: BufferAllocation): DeviceBuffer {
    assertOptions(allocation, allocationNames, 'allocation');
    const { ptr, byteLength } = allocation;
    assertPointer(ptr, 'ptr');
    assertBytes(byteLength, 'byteLength');
    assertMemoryResource(allocation.resource, 'resource');
    const { resource, stream, capacityBytes, alignment, label } = resolveOptions(allocation, byteLength, allocationNames);
    if ((ptr === 0) !== (capacityBytes === 0)) {
      throw new ArgumentRangeError(
        `ptr must be 0 if there are no bytes, and only then, got ${formatPointer(ptr)} with ${capacityBytes} bytes`,
      );
    }
    const memory = new BufferMemory(resource, stream, alignment, creationStack(DeviceBuffer.adopt));
    memory.label = label;
    const buffer = new DeviceBuffer(0, allocation, memory);
    memory.adopt(ptr, capacityBytes);
    memory.byteLength = byteLength;
    return buffer;
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
    return this.isDisposed ? 0 : this.#memory.byteLength;
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
   * @throws ArgumentTypeError for what is no stream; ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) for a stream of another device, unless every
   * device reaches the memory; LifetimeError where the buffer or the stream is disposed.
   */
  setStream(stream: Stream): void {
    this.#assertLive('set the stream of a buffer');
    assertStream(stream, 'set the stream of a buffer');
    assertReached(this.#memory.resource, stream);
    this.#memory.stream = stream;
  }

  /**
   * Changes the length. Up to the capacity nothing else happens; beyond it, the contents move to new memory in stream order, and the old
   * memory is freed. Bytes that are added are undefined. Never gives memory back: see {@link DeviceBuffer.shrinkToFit}. Does not block.
   * @param byteLength an integer from 0 to 2^53 - 1
   * @param events what is asked of the resource for the free of the old memory, as in {@link MemoryResource.deallocate}. No event will do as a
   * fence: the memory is used last by the copy that is queued here.
   * @throws OutOfMemoryError, LifetimeError, DriverError, ArgumentTypeError, ArgumentRangeError; the buffer is then as it was.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if the buffer was changed meanwhile, by a host function or by its resource, or if its new
   * memory was taken back.
   */
  resize(byteLength: number, events?: DeallocationEvents): void {
    this.#assertUsable('resize a buffer');
    assertBytes(byteLength, 'byteLength');
    assertEvents(events);
    if (byteLength > this.#memory.bytes) this.#move(byteLength, events, 'resize a buffer');
    this.#memory.byteLength = byteLength;
  }

  /**
   * Makes the capacity at least `capacityBytes`; the length stays. Moves the contents in stream order if it grows. Does not block.
   * @param capacityBytes an integer from 0 to 2^53 - 1
   * @param events as in {@link DeviceBuffer.resize}
   * @throws as {@link DeviceBuffer.resize}
   */
  reserve(capacityBytes: number, events?: DeallocationEvents): void {
    this.#assertUsable('reserve memory for a buffer');
    assertBytes(capacityBytes, 'capacityBytes');
    assertEvents(events);
    if (capacityBytes > this.#memory.bytes) this.#move(capacityBytes, events, 'reserve memory for a buffer');
  }

  /**
   * Makes the capacity equal to the length, by moving the contents in stream order if it is larger. Needs memory for both meanwhile. Does not
   * block.
   * @param events as in {@link DeviceBuffer.resize}
   * @throws as {@link DeviceBuffer.resize}
   */
  shrinkToFit(events?: DeallocationEvents): void {
    this.#assertUsable('shrink a buffer');
    assertEvents(events);
    const { byteLength, bytes } = this.#memory;
    if (byteLength < bytes) this.#move(byteLength, events, 'shrink a buffer');
  }

  /**
   * Queues a copy into this buffer. Host data may be changed as soon as this returns. Between buffers on two streams, each stream waits for
   * what is queued on the other, so that neither needs more care. Other device memory is read in the order of this buffer's stream. Does not
   * block.
   * @throws ArgumentTypeError for what is neither host data nor device memory.
   * @throws ArgumentRangeError for a range outside either, or two that overlap in one buffer; nothing is copied.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where a buffer or its stream is disposed.
   * @throws DriverError where the driver refuses.
   * @example
   * ```ts
   * buffer.copyFrom(header);
   * buffer.copyFrom(rows, { byteOffset: header.byteLength });
   * ```
   */
  copyFrom(source: HostData | DeviceMemory, options: BufferCopyOptions = {}): void {
    this.#assertUsable('copy to a buffer');
    assertNoMemory(options, copyOptions, 'options');
    const data = readable(source);
    if (data instanceof DeviceBuffer) data.#assertUsable('copy from a buffer');
    const from = resolveRange({ byteOffset: options.sourceByteOffset, byteLength: options.byteLength }, data.byteLength, 'source');
    const to = resolveRange({ byteOffset: options.byteOffset, byteLength: from.byteLength }, this.#memory.byteLength, 'buffer');
    if ('ptr' in data) {
      const begin = data.ptr + from.byteOffset;
      const target = this.#memory.pointer + to.byteOffset;
      if (Math.abs(begin - target) < from.byteLength) {
        const addresses = `from ${formatPointer(begin)} to ${formatPointer(target)}`;
        throw new ArgumentRangeError(`the source must not overlap the destination, got ${from.byteLength} bytes ${addresses}`);
      }
    }
    if (from.byteLength > 0) this.#queueCopy(data, from.byteOffset, to.byteOffset, from.byteLength);
  }

  /** The same as {@link DeviceBuffer.copyFrom}; blocks until the stream of this buffer has run. */
  copyFromSync(source: HostData | DeviceMemory, options: BufferCopyOptions = {}): void {
    const { stream } = this.#memory;
    this.copyFrom(source, options);
    stream.synchronizeSync();
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
   * meanwhile. The event loop goes on. Given a host array, it fills that with the contents from `byteOffset` on, at once when it resolves.
   * @throws ArgumentTypeError for what is neither a range, nor a typed array, nor a `DataView`; ArgumentRangeError for a range outside the buffer,
   * for an array that is longer than what there is, and for one that was transferred or made shorter meanwhile.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the buffer or its stream is disposed.
   * @throws DriverError where the driver refuses.
   * @example
   * ```ts
   * const numbers = await buffer.toHost(new Float64Array(4), { byteOffset: 16 });
   * ```
   */
  toHost(range?: Partial<ByteRange>): Promise<Uint8Array<ArrayBuffer>>;
  toHost<T extends ArrayBufferView>(destination: T, options?: Omit<Partial<ByteRange>, 'byteLength'>): Promise<T>;
  async toHost(
    target: Partial<ByteRange> | ArrayBufferView = {},
    options: Omit<Partial<ByteRange>, 'byteLength'> = {},
  ): Promise<ArrayBufferView> {
    this.#assertUsable('copy from a buffer');
    if (ArrayBuffer.isView(target)) {
      const source = this.#sourceFor(target, options);
      if (hostBytes(target, 'destination').byteLength > 0) await copyIntoHost(target, source, this.#memory.stream);
      return target;
    }
    const { byteOffset, byteLength } = resolveRange(target, this.#memory.byteLength, 'buffer');
    if (byteLength === 0) return new Uint8Array(0);
    return new Uint8Array(await copyToHost(this.#memory.pointer + byteOffset, byteLength, this.#memory.stream));
  }

  /**
   * Fills a host array with the contents from `byteOffset` on, in stream order, and blocks until that is done. Without an array, a new one
   * takes everything from there to the end.
   * @returns the array
   * @throws ArgumentTypeError for what is no typed array or `DataView`; ArgumentRangeError for one that is longer than what there is, and for one
   * that a host function transferred or made shorter meanwhile.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the buffer or its stream is disposed.
   * @throws DriverError where the driver refuses.
   * @example
   * ```ts
   * const numbers = buffer.toHostSync(new Float64Array(4), { byteOffset: 16 });
   * ```
   */
  toHostSync(destination?: undefined, options?: Omit<Partial<ByteRange>, 'byteLength'>): Uint8Array<ArrayBuffer>;
  toHostSync<T extends ArrayBufferView>(destination: T, options?: Omit<Partial<ByteRange>, 'byteLength'>): T;
  toHostSync(destination?: ArrayBufferView, options: Omit<Partial<ByteRange>, 'byteLength'> = {}): ArrayBufferView {
    this.#assertUsable('copy from a buffer');
    if (destination !== undefined && !ArrayBuffer.isView(destination)) {
      throw new ArgumentTypeError(`destination must be a typed array or a DataView, got ${formatValue(destination)}`);
    }
    const source = this.#sourceFor(destination, options);
    const target = destination ?? new Uint8Array(this.#memory.byteLength - (options.byteOffset ?? 0));
    if (hostBytes(target, 'destination').byteLength > 0) copyToHostSync(target, source, this.#memory.stream);
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
    const { byteOffset, byteLength } = resolveRange(range, this.#memory.byteLength, 'buffer');
    if (byteLength === 0) return;
    const { pointer, stream, resource } = this.#memory;
    // The driver sets no memory that it does not know.
    if (resource.memoryKind === 'host') copyFromHost(pointer + byteOffset, new Uint8Array(byteLength).fill(value), stream);
    else set(pointer + byteOffset, value, 1, byteLength, stream);
  }

  /**
   * Gives the memory up without freeing it: that is the caller's from here on, to free on the resource in the order of the stream, or to give to
   * {@link DeviceBuffer.adopt}. The buffer is disposed. Does not block, and does nothing on the device.
   *
   * Memory that was allocated in a run of a cache still goes back when the run ends, unless the cache was told to `keep` it.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the buffer is disposed.
   * @example
   * ```ts
   * const { ptr, capacityBytes, resource, stream } = buffer.release();
   * resource.deallocate(ptr, capacityBytes, stream);
   * ```
   */
  release(): Required<Omit<BufferAllocation, 'label'>> {
    this.#assertLive('release the memory of a buffer');
    const { pointer: ptr, bytes: capacityBytes, byteLength, alignment, resource, stream } = this.#memory;
    disown(this.#slot);
    this.#slot = -1;
    this.#memory.byteLength = 0;
    this.#memory.release();
    return Object.freeze({ ptr, byteLength, capacityBytes, alignment, resource, stream });
  }

  /**
   * Frees the memory in the order of `stream`; work that is queued there still runs before it is reused. Does not block by itself, unless
   * `stream` was disposed before: then it waits for the device first. Does nothing the second time.
   * @throws LifetimeError where the memory is not the resource's to free, for example because that is disposed; the buffer is disposed all
   * the same.
   * @throws DriverError, or whatever else the resource refuses with; the buffer is as it was, and may be disposed again.
   */
  [Symbol.dispose](): void {
    this.#free(undefined);
  }

  /**
   * The same as `[Symbol.dispose]()`.
   * @param fence as in {@link MemoryResource.deallocate}: a policy, or an event that was recorded on the buffer's stream after the memory was used
   * last
   * @throws ArgumentRangeError, LifetimeError for what is no such fence; the buffer is as it was.
   */
  dispose(fence?: DeallocationFence): void {
    this.#free(fence);
  }

  #free(fence: DeallocationFence | undefined): void {
    const { stream } = this.#memory;
    // An event of a stream that has ended is over.
    const isOver = fence instanceof Event && (this.#slot < 0 || stream.isDisposed);
    if (fence !== undefined && !isOver) assertFence(fence, stream);
    if (this.#slot < 0) return;
    const slot = this.#slot;
    const { byteLength } = this.#memory;
    // The resource is foreign code: what it does with the buffer meanwhile must find it disposed.
    this.#slot = -1;
    this.#memory.byteLength = 0;
    try {
      this.#memory.freeNow(fence);
    } finally {
      // Called while a scope that ends frees the memory, this leaves it to that.
      if (this.#memory.pointer === 0 && !this.#memory.isBeingFreed) {
        disown(slot);
      } else {
        this.#slot = slot;
        this.#memory.byteLength = byteLength;
      }
    }
  }

  #move(capacityBytes: number, events: DeallocationEvents | undefined, operation: string): void {
    const isMoved = this.#memory.reallocate(capacityBytes, events);
    // The resource is foreign code, which may have disposed this buffer meanwhile.
    if (this.isDisposed) freeSoonerOrLater(this.#memory);
    this.#assertLive(operation);
    if (isMoved && this.#memory.bytes === capacityBytes) return;
    throw new CisternError(
      'ERR_CISTERN_INVALID_STATE',
      `cannot ${operation}: it was changed meanwhile, by a host function or by its resource`,
    );
  }

  /** The address that a copy to a host array begins at. */
  #sourceFor(destination: ArrayBufferView | undefined, options: Omit<Partial<ByteRange>, 'byteLength'>): DevicePointer {
    assertNoMemory(options, offsetOptions, 'options');
    const byteLength = destination === undefined ? undefined : hostBytes(destination, 'destination').byteLength;
    const range = resolveRange({ byteOffset: options.byteOffset, byteLength }, this.#memory.byteLength, 'buffer');
    return this.#memory.pointer + range.byteOffset;
  }

  #queueCopy(data: Uint8Array | DeviceMemory, from: number, to: number, bytes: number): void {
    const { pointer, stream } = this.#memory;
    const destination = { pointer: pointer + to, stream };
    if (data instanceof DeviceBuffer) copyOrdered(destination, { pointer: data.ptr + from, stream: data.stream }, bytes);
    else if (data instanceof Uint8Array) copyFromHost(destination.pointer, data.subarray(from, from + bytes), stream);
    else copy(destination.pointer, data.ptr + from, bytes, stream);
  }

  #shown(): object {
    const { pointer, bytes, byteLength, resource, stream, label } = this.#memory;
    if (this.isDisposed) return { isDisposed: true, label };
    const { memoryKind } = resource;
    return { ptr: inspectedPointer(pointer), byteLength, capacityBytes: bytes, memoryKind, label, stream, resource };
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
function resolveOptions(options: DeviceBufferOptions, byteLength: number, names: OptionNames = bufferOptions) {
  assertOptions(options, names);
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
  assertReached(resource, stream);
  return { resource, stream, capacityBytes, alignment, label };
}

function assertLabel(label: unknown): asserts label is string | undefined {
  if (label === undefined || typeof label === 'string') return;
  throw new ArgumentTypeError(`label must be a string, got ${formatValue(label)}`);
}

/** What can be copied from. */
function readable(source: HostData | DeviceMemory): Uint8Array | DeviceMemory {
  if (ArrayBuffer.isView(source) || isAnyArrayBuffer(source)) return hostBytes(source, 'source');
  if (typeof source === 'object' && source !== null && 'ptr' in source) {
    const { ptr, byteLength } = source;
    assertPointer(ptr, 'ptr of source');
    assertBytes(byteLength, 'byteLength of source');
    return source instanceof DeviceBuffer ? source : { ptr, byteLength };
  }
  throw new ArgumentTypeError(
    `source must be a typed array, a DataView, an ArrayBuffer, a DeviceBuffer, or device memory with ptr and byteLength, got ${formatValue(source)}`,
  );
}

function hostBytes(data: HostData, name: string): Uint8Array {
  try {
    return ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
  } catch {
    throw new ArgumentTypeError(`${name} must have its memory, got ${formatValue(data)} whose memory was transferred or made shorter`);
  }
}

/** @throws ArgumentRangeError for a stream of a device that does not reach the resource's memory. */
function assertReached({ memoryKind, device }: MemoryResource, stream: Stream): void {
  if (memoryKind === 'device') assertStreamOf(stream, device);
}

function assertEvents(events: unknown): void {
  if (events !== undefined) assertOneOf(events, deallocationEventsWords, 'events');
}
