import { deviceOfMemory } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { ArgumentTypeError, CisternError, formatPointer, formatValue } from '../basics/errors.js';
import { assertBytes } from '../basics/validation.js';
import { disown, freeSoonerOrLater, own, type StandIn } from '../collector/free-unreachable-buffers.js';
import type { MemoryLocation } from '../driver/memory/managed-memory.js';
import { Event } from '../driver/streams/event.js';
import { assertNotCaptured, assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import { type Inspection, inspected, inspectedPointer, inspectObject } from '../driver/workers/local-object.js';
import type { DeallocationEvents, DeallocationFence, DeviceMemory, DevicePointer, MemoryResource } from '../memory-resource.js';
import { isOwned } from '../ownership/bulk-frees.js';
import { markCopy } from '../package/copy.js';
import { assertFence } from '../stream-ordering/stream-ordering.js';
import { BufferMemory, disposed, memoryOf } from './buffer-memory.js';
import {
  anyMemory,
  assertLabel,
  type BufferAllocation,
  type CheckedAllocation,
  checkedAllocation,
  type DeviceBufferOptions,
  plainMemory,
  type ReleasedAllocation,
} from './create-memory.js';
import type { BufferContents, BufferCopyOptions, HostData, RecastOptions } from './transfers/buffer-contents.js';
import {
  type BlockingBufferTransferOptions,
  type BufferTransfer,
  type BufferTransferOptions,
  bringTo,
  bringToAsync,
  changeStream,
} from './transfers/buffer-transfer.js';
import type { ByteRange } from './transfers/byte-range.js';
import { copyInto, copyOut, copyOutSync, fill } from './transfers/copies.js';
import { type HostViewOptions, hostView, type TypedArrayClass } from './transfers/host-view.js';
import { assertEvents, changeCapacity, copyToResource } from './transfers/relocate.js';

/** See `cannotBeCloned`: the message says what to send instead. */
const neverCloned = Symbol('a DeviceBuffer: send what detachBuffer() returns to a worker, or exportBuffer() to a process; it');

/**
 * Owns untyped memory of any kind from a resource. The memory is freed when you dispose the buffer,
 * or otherwise after the garbage collector finds it unreachable.
 *
 * Stream order: everything that a buffer does is queued on its `stream`, and its memory is freed
 * there. Before another stream uses the memory, order it after `stream`, and order `stream` after
 * that use before you resize or dispose the buffer. Copies between two buffers do this themselves.
 *
 * Existing GPU libraries for Node.js accept an object with a numeric `ptr` and `byteLength` as
 * memory.
 *
 * If the resource is out of memory, unreachable buffers are freed, also after a minor and then a
 * major garbage collection, and the allocation is tried again; see
 * {@link reclaimUnreachableBuffers}. Garbage is also collected before buffers hold more than three
 * quarters of the device's or the host's memory; see {@link configureEarlyCollection}. A buffer
 * that is dropped without being disposed is published on the diagnostics channel `cistern:leak`;
 * see {@link BufferLeak}.
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
export class DeviceBuffer implements Disposable, BufferContents<DeviceBuffer> {
  /** @internal As {@link refuseCloning} does, but faster: see there. */
  readonly cannotBeCloned = neverCloned;
  #memory: BufferMemory;
  /**
   * Collected together with this buffer, and so shows that the buffer was collected; `undefined` once
   * disposed.
   */
  #standIn: StandIn | undefined;

  /**
   * Allocates and, if you give data, queues a copy of it. You may change host data as soon as this
   * returns. Another buffer is copied in the order of both streams. Other device memory is copied
   * in the order of this buffer's stream, so first order that stream after the writes to the
   * memory, and do not free the memory before the copy.
   * @param source the length in bytes, an integer from 0 to 2^53 - 1 (the contents are then
   * undefined); or host data or device memory to copy
   * @throws OutOfMemoryError if the resource has no memory even after unreachable buffers were
   * freed.
   * @throws ArgumentTypeError, ArgumentRangeError for any other argument, or a stream of a device
   * that cannot access the memory; ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if the source
   * became shorter while the memory was allocated.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the resource, the stream or the buffer to
   * copy is disposed, before or during the call.
   * @throws DriverError if the driver refuses the copy, for example of memory that it does not
   * know.
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
    const memory = adopted === undefined ? (plainMemory(source, options) ?? anyMemory(source, options, new.target)) : asMemory(adopted);
    this.#memory = memory;
    this.#standIn = own(memory);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    const { pointer, bytes, byteLength, resource, stream, label } = this.#memory;
    const { memoryKind } = resource;
    const shown = this.isDisposed
      ? { isDisposed: true, label }
      : { ptr: inspectedPointer(pointer), byteLength, capacityBytes: bytes, memoryKind, label, stream, resource };
    return inspectObject(this, shown, inspection);
  }

  /**
   * Creates a buffer that takes over memory already allocated from a resource, and frees it there.
   * Do not free the memory yourself from now on. The buffer cannot check whether it is live.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid allocation, or a stream of a
   * device that cannot access the memory; LifetimeError for a disposed stream. The memory is then
   * still the caller's.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if a buffer of this thread owns the memory already, so that it
   * would be freed twice.
   * @example
   * ```ts
   * using stream = new Stream();
   * using resource = new CudaAsyncMemoryResource();
   * const ptr = resource.allocate(4096, stream);
   * using buffer = DeviceBuffer.adopt({ ptr, byteLength: 4096, resource, stream });
   * ```
   */
  static adopt(allocation: BufferAllocation): DeviceBuffer {
    const checked = checkedAllocation(allocation, DeviceBuffer.adopt);
    const { ptr, memory } = checked;
    if (ptr !== 0 && isOwned(ptr, memory.resource)) {
      throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot adopt ${formatPointer(ptr)}: a buffer owns this memory already`);
    }
    return DeviceBuffer.owning(checked);
  }

  /** @internal A buffer that takes over allocated memory. */
  static owning({ memory, ptr, capacityBytes }: CheckedAllocation): DeviceBuffer {
    const buffer = DeviceBuffer.of(memory);
    memory.origin.adopted?.(ptr, capacityBytes);
    memory.adopt(ptr, capacityBytes);
    return buffer;
  }

  /** @internal A buffer with memory that a capability has made. */
  static of(memory: BufferMemory): DeviceBuffer {
    return new DeviceBuffer(0, { stream: memory.stream }, memory);
  }

  /** @internal Disposes a buffer whose memory somebody else has taken over. */
  static end(buffer: DeviceBuffer): void {
    disown(buffer.#standIn as StandIn);
    buffer.#standIn = undefined;
    buffer.#memory.endReason = disposed;
  }

  /** @internal The same, but the buffer goes on with other memory. */
  static replaceMemory(buffer: DeviceBuffer, memory: BufferMemory): void {
    DeviceBuffer.end(buffer);
    buffer.#memory = memory;
    buffer.#standIn = own(memory);
  }

  /** @internal The object watched in place of a buffer; `undefined` once the buffer is disposed. */
  static standInOf(buffer: DeviceBuffer): StandIn | undefined {
    return buffer.#standIn;
  }

  /** @internal @throws ArgumentTypeError if it is no buffer; a `Proxy` of one lacks the private fields */
  static assert(value: unknown, name: string): asserts value is DeviceBuffer {
    if (typeof value === 'object' && value !== null && #memory in value) return;
    const isLike = value instanceof DeviceBuffer;
    const cause = isLike ? 'the DeviceBuffer itself, got a Proxy of it, or an object that inherits from it:' : 'a DeviceBuffer, got';
    throw new ArgumentTypeError(`${name} must be ${cause} ${formatValue(value)}`);
  }

  /** @internal */
  get [memoryOf](): BufferMemory {
    DeviceBuffer.assert(this, 'buffer');
    return this.#memory;
  }

  /**
   * The address of the first byte; 0 if the capacity is 0. Changes when the buffer moves.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) once disposed, so that you cannot use freed
   * memory.
   */
  get ptr(): DevicePointer {
    this.#memory.assertLive('read the address of a buffer');
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

  /** The requested alignment, in bytes. */
  get alignment(): number {
    return this.#memory.alignment;
  }

  /** The resource that the memory comes from. Counterpart of `device_buffer::memory_resource`. */
  get resource(): MemoryResource {
    return this.#memory.resource;
  }

  /** The stream that the memory is ordered on, and freed on. */
  get stream(): Stream {
    return this.#memory.stream;
  }

  /** A human-readable name. {@link RecordingResourceAdaptor}s record it, and leak reports show it. */
  get label(): string | undefined {
    return this.#memory.label;
  }

  /**
   * You may set it at any time; it is recorded if the memory is live.
   * @throws ArgumentTypeError if `label` is not a string.
   */
  set label(label: string | undefined) {
    assertLabel(label);
    this.#memory.label = label;
  }

  /**
   * Whether the buffer is disposed, by a call or because its memory was taken back: by the end of a
   * caching scope, a rewind, or the end of a resource.
   */
  get isDisposed(): boolean {
    return this.#memory.endReason !== undefined;
  }

  /**
   * Changes the stream for everything that follows, including the free. Does not order the two
   * streams: first make the new one wait for the old one's uses of the memory. Does not block.
   *
   * Counterpart of `device_buffer::set_stream`.
   * @throws ArgumentTypeError if `stream` is not a stream; ArgumentRangeError
   * (`ERR_INVALID_ARG_VALUE`) for a stream of another device, unless every device can access the
   * memory; LifetimeError if the buffer or the stream is disposed.
   */
  setStream(stream: Stream): void {
    this.#memory.assertLive('set the stream of a buffer');
    assertStream(stream, 'set the stream of a buffer');
    const { resource, pointer } = this.#memory;
    if (resource.memoryKind === 'device') assertStreamOf(stream, deviceOfMemory(resource, pointer));
    this.#memory.stream = stream;
  }

  /**
   * Changes the length. Up to the capacity nothing else happens; beyond it, the contents move to
   * new memory in stream order, and the old memory is freed. Added bytes are undefined. Never
   * reduces the capacity: see {@link DeviceBuffer.shrinkToFit}. Does not block.
   * @param byteLength an integer from 0 to 2^53 - 1
   * @param events the policy for the free of the old memory, as in
   * {@link MemoryResource.deallocate}. An event cannot be the fence, because the copy that is
   * queued here uses the memory last.
   * @throws OutOfMemoryError, LifetimeError, DriverError, ArgumentTypeError, ArgumentRangeError;
   * the buffer is then unchanged. But if the free of the old memory was refused, its host views
   * have no bytes, and its handle for other processes is stale.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if the buffer was changed meanwhile, by a
   * host function or by its resource, or if its new memory was taken back; `ERR_CISTERN_CAPTURING` if
   * the stream is captured and the resource cannot free the old memory in that capture.
   */
  resize(byteLength: number, events?: DeallocationEvents): void {
    this.#memory.assertUsable('resize a buffer');
    assertBytes(byteLength, 'byteLength');
    assertEvents(events);
    if (byteLength > this.#memory.bytes) changeCapacity(this, byteLength, events, 'resize a buffer');
    this.#memory.byteLength = byteLength;
  }

  /**
   * Makes the capacity at least `capacityBytes`; the length stays the same. If the capacity grows,
   * the contents move in stream order. Does not block.
   * @param capacityBytes an integer from 0 to 2^53 - 1
   * @param events as in {@link DeviceBuffer.resize}
   * @throws as {@link DeviceBuffer.resize}
   */
  reserve(capacityBytes: number, events?: DeallocationEvents): void {
    this.#memory.assertUsable('reserve memory for a buffer');
    assertBytes(capacityBytes, 'capacityBytes');
    assertEvents(events);
    if (capacityBytes > this.#memory.bytes) changeCapacity(this, capacityBytes, events, 'reserve memory for a buffer');
  }

  /**
   * Makes the capacity equal to the length. If it was larger, the contents move in stream order,
   * which temporarily needs memory for both. Does not block.
   * @param events as in {@link DeviceBuffer.resize}
   * @throws as {@link DeviceBuffer.resize}
   */
  shrinkToFit(events?: DeallocationEvents): void {
    this.#memory.assertUsable('shrink a buffer');
    assertEvents(events);
    const { byteLength, bytes } = this.#memory;
    if (byteLength < bytes) changeCapacity(this, byteLength, events, 'shrink a buffer');
  }

  copyFrom(source: HostData | DeviceMemory, options: BufferCopyOptions = {}): void {
    copyInto(this.#memory, source, options);
  }

  copyFromSync(source: HostData | DeviceMemory, options: BufferCopyOptions = {}): void {
    const { stream } = this.#memory;
    assertNotCaptured(stream, 'copy to a buffer and wait');
    this.copyFrom(source, options);
    stream.synchronizeSync();
  }

  copyTo(destination: DeviceBuffer, options: BufferCopyOptions = {}): void {
    DeviceBuffer.assert(destination, 'destination');
    destination.copyFrom(this, options);
  }

  toHost(range?: Partial<ByteRange>): Promise<Uint8Array<ArrayBuffer>>;
  toHost<T extends ArrayBufferView>(destination: T, options?: Omit<Partial<ByteRange>, 'byteLength'>): Promise<T>;
  toHost(
    target: Partial<ByteRange> | ArrayBufferView = {},
    options: Omit<Partial<ByteRange>, 'byteLength'> = {},
  ): Promise<ArrayBufferView> {
    return copyOut(this.#memory, target, options);
  }

  toHostSync(destination?: undefined, options?: Omit<Partial<ByteRange>, 'byteLength'>): Uint8Array<ArrayBuffer>;
  toHostSync<T extends ArrayBufferView>(destination: T, options?: Omit<Partial<ByteRange>, 'byteLength'>): T;
  toHostSync(destination?: ArrayBufferView, options: Omit<Partial<ByteRange>, 'byteLength'> = {}): ArrayBufferView {
    return copyOutSync(this.#memory, destination, options);
  }

  fill(value: number, range: Partial<ByteRange> = {}): void {
    fill(this.#memory, value, range);
  }

  to(location: MemoryLocation, options: BlockingBufferTransferOptions = {}): BufferTransfer<DeviceBuffer> {
    return bringTo<DeviceBuffer>(this, location, options, copyOf);
  }

  toAsync(location: MemoryLocation, options: BufferTransferOptions = {}): Promise<BufferTransfer<DeviceBuffer>> {
    return bringToAsync<DeviceBuffer>(this, location, options, copyOf);
  }

  recast(resource: MemoryResource, options: RecastOptions = {}): void {
    const after = copyToResource(this, resource, options);
    if (after === undefined) {
      if (options.stream !== undefined) changeStream(this, options.stream);
      return;
    }
    const before = this.#memory;
    const standIn = this.#standIn as StandIn;
    // The old resource is foreign code: it must find the buffer disposed.
    this.#standIn = undefined;
    before.endReason = disposed;
    try {
      before.freeNow(options.events);
    } finally {
      if (before.pointer === 0) {
        disown(standIn);
        this.#memory = after;
        this.#standIn = own(after);
      } else {
        this.#standIn = standIn;
        before.endReason = undefined;
        freeSoonerOrLater(after);
      }
    }
  }

  hostView<T extends ArrayBufferView>(type: TypedArrayClass<T>, options: HostViewOptions = {}): T {
    return hostView(this, type, options);
  }

  /**
   * Releases the memory without freeing it, and disposes the buffer. You must now free the memory
   * on the resource in the order of the stream, or pass it to {@link DeviceBuffer.adopt}. Does not
   * block, and does nothing on the device.
   *
   * If the memory was allocated in a run of a cache, the cache still takes it back when the run
   * ends, unless you call its `keep`.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer is disposed; CisternError
   * (`ERR_CISTERN_INVALID_STATE`) if the consumer of a DLPack tensor uses the memory.
   * @example
   * ```ts
   * const { ptr, capacityBytes, resource, stream } = buffer.release();
   * resource.deallocate(ptr, capacityBytes, stream);
   * ```
   */
  release(): ReleasedAllocation {
    const operation = 'release the memory of a buffer';
    const memory = this.#memory;
    memory.assertLive(operation);
    return memory.giveUp(operation, () => {
      const { pointer: ptr, bytes: capacityBytes, byteLength, alignment, resource, stream } = memory;
      DeviceBuffer.end(this);
      memory.release();
      return Object.freeze({ ptr, byteLength, capacityBytes, alignment, resource, stream });
    });
  }

  /**
   * Frees the memory in the order of `stream`; work already queued there runs before the memory is
   * reused. Does not block by itself, unless `stream` is already disposed; it then waits for the
   * device first. A second call does nothing.
   * @throws LifetimeError if the resource cannot free the memory, for example because it is
   * disposed; the buffer is disposed nevertheless.
   * @throws DriverError, or any other error of the resource; the buffer is then unchanged, except
   * that its host views have no bytes, and you can repeat the call.
   */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /**
   * The same as `[Symbol.dispose]()`.
   * @param fence as in {@link MemoryResource.deallocate}: a policy, or an event recorded on the
   * buffer's stream after the last use of the memory
   * @throws ArgumentRangeError, LifetimeError for any other fence; the buffer is then unchanged.
   */
  dispose(fence?: DeallocationFence): void {
    const memory = this.#memory;
    const standIn = this.#standIn;
    // An event of a stream that has ended has completed.
    if (fence !== undefined && !(fence instanceof Event && (standIn === undefined || memory.stream.isDisposed))) {
      assertFence(fence, memory.stream);
    }
    if (standIn === undefined) return;
    const { endReason } = memory;
    // The resource is foreign code, and must find the buffer disposed if it uses it meanwhile.
    this.#standIn = undefined;
    memory.endReason = endReason ?? disposed;
    try {
      memory.freeNow(fence);
    } finally {
      // If an ending scope is already freeing the memory, leave it to the scope.
      if (memory.pointer === 0 && !memory.isBeingFreed) {
        disown(standIn);
      } else {
        this.#standIn = standIn;
        memory.endReason = endReason;
      }
    }
  }
}

markCopy(DeviceBuffer);

function copyOf(buffer: DeviceBuffer, resource: MemoryResource, stream: Stream): DeviceBuffer {
  const { alignment, label } = buffer;
  return new DeviceBuffer(buffer, { resource, stream, alignment, label });
}

/** RMM's constructor takes the stream and the resource as arguments of their own. */
function asMemory(found: unknown): BufferMemory {
  if (found instanceof BufferMemory) return found;
  throw new ArgumentTypeError(
    `a DeviceBuffer takes a source and options, such as { stream, resource }, but also got a third argument: ${formatValue(found)}`,
  );
}
