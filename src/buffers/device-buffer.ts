import { deviceOfMemory } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { ArgumentTypeError, CisternError, formatPointer, formatValue, UnsupportedError } from '../basics/errors.js';
import { assertBytes, assertOptions } from '../basics/validation.js';
import { disown, freeSoonerOrLater, own, type StandIn } from '../collector/free-unreachable-buffers.js';
import type { MemoryLocation } from '../driver/memory/managed-memory.js';
import { Event } from '../driver/streams/event.js';
import { assertNotCaptured, assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import { type BufferMessage, checkedMessage, discardMessage } from '../driver/workers/hand-over.js';
import { type Inspect, type InspectionOptions, inspected, inspectedPointer, inspectObject } from '../driver/workers/local-object.js';
import { flushLast } from '../files/flush-at-exit.js';
import type { BufferInterchange } from '../interchange/buffer-interchange.js';
import {
  type CudaArray,
  type CudaArrayInterface,
  type CudaArrayInterfaceOptions,
  cudaArrayMemory,
  describeCudaArray,
  type FromCudaArrayInterfaceOptions,
  fromCudaArrayInterfaceOptionNames,
} from '../interchange/cuda-array-interface.js';
import { type DLPackCapsule, type DLPackOptions, exportTensorOf } from '../interchange/dlpack.js';
import { type CheckedForeignMemory, foreignMemory, type WrapOptions, wrapOptionNames } from '../interchange/wrap.js';
import type { DeallocationEvents, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { isOwned } from '../ownership/bulk-frees.js';
import { markCopy } from '../package/copy.js';
import { exportToProcesses, untilUnused } from '../processes/export-to-processes.js';
import { type HandleInJson, type OpenOptions, openedMemory } from '../processes/open-from-process.js';
import { ProcessExport } from '../processes/process-export.js';
import { assertFence } from '../stream-ordering/stream-ordering.js';
import { attachedMemory } from '../workers/attach-from-worker.js';
import type { AttachOptions, BufferSharing } from '../workers/buffer-sharing.js';
import { freeReturned } from '../workers/take-returned-memory.js';
import { ThreadSafeArenaMemoryResource } from '../workers/thread-safe-arena-memory-resource.js';
import { BufferMemory, disposed, memoryOf } from './buffer-memory.js';
import {
  anyMemory,
  assertLabel,
  type BufferAllocation,
  type CheckedAllocation,
  checkedAllocation,
  type DeviceBufferOptions,
  plainMemory,
} from './create-memory.js';
import type { HandOvers } from './origin.js';
import type { BufferContents, BufferCopyOptions, DeviceMemory, HostData, RecastOptions } from './transfers/buffer-contents.js';
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
import { follow } from './transfers/ordered-copy.js';
import { assertEvents, changeCapacity, copyToResource } from './transfers/relocate.js';

/** See `cannotBeCloned`: the message says what to send instead. */
const neverCloned = Symbol('a DeviceBuffer: send what its detach() returns to a worker, or its export() to a process; it');

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
export class DeviceBuffer implements Disposable, BufferContents, BufferSharing, BufferInterchange {
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
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    const { pointer, bytes, byteLength, resource, stream, label } = this.#memory;
    const { memoryKind } = resource;
    const shown = this.isDisposed
      ? { isDisposed: true, label }
      : { ptr: inspectedPointer(pointer), byteLength, capacityBytes: bytes, memoryKind, label, stream, resource };
    return inspectObject(this, shown, depth, options, inspect);
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
    return DeviceBuffer.#adopt(checked, allocation);
  }

  static #adopt({ memory, ptr, capacityBytes }: CheckedAllocation, allocation: BufferAllocation): DeviceBuffer {
    const buffer = new DeviceBuffer(0, allocation, memory);
    // A native thread may have allocated it.
    if (allocation.resource instanceof ThreadSafeArenaMemoryResource && capacityBytes > 0) allocation.resource.claim(ptr, capacityBytes);
    memory.adopt(ptr, capacityBytes);
    return buffer;
  }

  /**
   * A buffer over memory that another library allocated. Without `release`, the memory is borrowed:
   * its owner must keep it until the work queued on `stream` has run. With `release`, the buffer owns
   * the memory, and returns it exactly once: after the buffer is disposed or collected, or when the
   * process or the worker exits, and only after the work queued on `stream` has run. If it has
   * already run, `dispose` calls `release`; otherwise, the event loop calls it later, possibly after
   * the scope of `stream` has ended. If a resource of cistern takes the memory back, as a pool does
   * when it is disposed, it waits for the work and calls `release` first.
   *
   * An error of `release` is reported as an uncaught exception; at exit, it is printed, and the
   * exit code is 1. A worker that is terminated runs no JavaScript, and so does not call `release`.
   *
   * The driver, or a {@link HostMemoryResource} of this process, must know the memory. Order the
   * stream after the writes to it. The buffer cannot grow: `resize` beyond `byteLength`, `reserve`
   * and `shrinkToFit` throw an {@link UnsupportedError}. `recast` moves the contents to memory of a
   * resource, and releases the memory; `to` copies as from any buffer, but needs a `resource` for a
   * copy of managed memory.
   *
   * RMM has no counterpart; its users keep the owner next to a `device_span`.
   * @throws ArgumentTypeError, ArgumentRangeError for invalid options, memory that nobody knows, or a
   * stream of a device that cannot access it; LifetimeError for a disposed stream. The memory is then
   * still the caller's.
   * @example
   * ```ts
   * using stream = new Stream();
   * const ptr = resource.allocate(4096, stream); // of another library
   * // May run after `stream` is disposed.
   * const release = () => resource.deallocate(ptr, 4096, Stream.legacyDefault());
   * using buffer = DeviceBuffer.wrap({ ptr, byteLength: 4096, stream, release });
   * ```
   */
  static wrap(memory: WrapOptions): DeviceBuffer {
    assertOptions(memory, wrapOptionNames, 'memory');
    return DeviceBuffer.#wrap(memory, foreignMemory(memory));
  }

  static #wrap({ stream, label }: WrapOptions, foreign: CheckedForeignMemory): DeviceBuffer {
    const allocation = { ...foreign, stream, ...(label === undefined ? {} : { label }) };
    // Others may wrap the same memory, and each has a function to call in the end.
    const buffer = DeviceBuffer.#adopt(checkedAllocation(allocation, DeviceBuffer.adopt), allocation);
    foreign.resource.own();
    if (!foreign.resource.isBorrowed) flushLast();
    return buffer;
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
   * const array = buffer.toCudaArrayInterface({ shape: [4, 4], typestr: '<f4' });
   * using view = DeviceBuffer.fromCudaArrayInterface(array, { stream });
   * ```
   */
  static fromCudaArrayInterface(array: CudaArrayInterface | CudaArray, options: FromCudaArrayInterfaceOptions): DeviceBuffer {
    assertOptions(options, fromCudaArrayInterfaceOptionNames);
    const { stream } = options;
    assertStream(stream, 'use an array');
    const { ptr, byteLength, producer, owner } = cudaArrayMemory(array, stream);
    const held: { owner: object | undefined } = { owner };
    const release = () => {
      held.owner = undefined;
    };
    try {
      const memory = { ...options, ptr, byteLength, release };
      const buffer = DeviceBuffer.#wrap(memory, foreignMemory(memory, true));
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

  /**
   * Attaches a buffer that {@link DeviceBuffer.detach} or {@link DeviceBuffer.share} handed over, in
   * this or any other worker of the process. It has the same `ptr` as in the sender. When the buffer
   * is disposed or collected, or this worker ends, its memory is returned: the sender frees it,
   * after everything queued on this buffer's stream. If the sender has ended by then, the memory is
   * freed nevertheless.
   *
   * The buffer cannot grow, unless it was handed over without memory: `resize` beyond the capacity
   * throws an {@link UnsupportedError}. First move it to a resource of this worker with {@link
   * DeviceBuffer.recast}. You can detach it again, for the next worker. Does not block.
   *
   * Stream order: `stream` waits for everything that the sender queued on its stream before the
   * hand-over. RMM has no counterpart.
   * @param message from `detach`, which one call can attach; or from `share`, which any number of
   * calls can attach
   * @throws LifetimeError (`ERR_CISTERN_STALE_MESSAGE`) if the message was already attached or
   * discarded, if its sender has ended, or if the sender has disposed a shared buffer;
   * (`ERR_CISTERN_FOREIGN_MESSAGE`) if no worker of this process made it.
   * @throws ArgumentTypeError, ArgumentRangeError for any other argument, or a stream of a device
   * that cannot access the memory; LifetimeError for a disposed stream.
   * @throws DriverError if the driver refuses the wait; the message can then be attached again.
   * @example
   * ```ts
   * import { parentPort } from 'node:worker_threads';
   *
   * parentPort?.on('message', async (message: BufferMessage) => {
   *   using stream = new Stream();
   *   using buffer = DeviceBuffer.attach(message, { stream });
   *   console.log(await buffer.toHost());
   * });
   * ```
   */
  static attach(message: BufferMessage, options: AttachOptions): DeviceBuffer {
    return new DeviceBuffer(0, options, attachedMemory(message, options, DeviceBuffer.attach));
  }

  /**
   * Discards a message without attaching it: the memory is returned to the sender. Any worker that has
   * the message can call this, for example when the receiver has ended. If the buffer is shared, only
   * the worker that shares it can; the message can then no longer be attached. In another worker, the
   * call does nothing.
   *
   * A lost message cannot be detected: its memory stays allocated until the sender's environment
   * ends.
   * @returns whether the message could be attached until now; if it is false, nothing has changed
   * @throws LifetimeError (`ERR_CISTERN_FOREIGN_MESSAGE`) if no worker of this process made the
   * message; ArgumentTypeError for any other value.
   * @example
   * ```ts
   * const message = buffer.detach();
   * worker.once('exit', () => DeviceBuffer.discard(message));
   * worker.postMessage(message);
   * ```
   */
  static discard(message: BufferMessage): boolean {
    const wasOpen = discardMessage(checkedMessage(message), 'buffer');
    freeReturned(false);
    return wasOpen;
  }

  /**
   * A buffer over memory that another process exported with {@link DeviceBuffer.export}. Nothing is
   * copied, and both processes may read and write. Its `ptr` differs from that in the other process.
   * When it is disposed or collected, the memory is unmapped after everything queued on its stream has
   * run; if this process ends, the system unmaps it. Until then, the other process keeps the memory.
   * You can open a handle any number of times.
   *
   * The buffer cannot grow; {@link DeviceBuffer.recast} moves it to a resource of this process. It can
   * be neither exported nor handed over to another worker. If the exporting process ends, the contents
   * stay readable on a software device; on CUDA, this is undefined.
   *
   * Stream order: `stream` waits for everything that the other process had queued on the buffer's
   * stream when it called `export`. If that process ends before this has run, the wait ends. Does not
   * block. RMM has no counterpart.
   * @param handle the result of `export`, in any typed array, or in the form that JSON gives a
   * `Buffer`
   * @throws LifetimeError (`ERR_CISTERN_STALE_HANDLE`) if the other process has ended or disposed its
   * buffer; (`ERR_CISTERN_FOREIGN_HANDLE`) for any other bytes, or memory of another kind of device.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) in the process that exported the buffer, or if
   * 64 processes have memory of that process open.
   * @throws UnsupportedError for a handle of another version, or of a process that this one may not
   * access, such as another user's; DeviceUnavailableError if this process does not have the device.
   * @throws ArgumentTypeError, ArgumentRangeError for any other argument, or a stream of another
   * device; LifetimeError for a disposed stream; DriverError if the driver refuses.
   * @example
   * ```ts
   * process.once('message', (handle: Uint8Array) => {
   *   using stream = new Stream();
   *   using buffer = DeviceBuffer.open(handle, { stream });
   *   buffer.fill(1);
   * });
   * ```
   */
  static open(handle: Uint8Array | HandleInJson, options: OpenOptions): DeviceBuffer {
    return new DeviceBuffer(0, options, openedMemory(handle, options, DeviceBuffer.open));
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

  toCudaArrayInterface(options: CudaArrayInterfaceOptions): CudaArrayInterface {
    return describeCudaArray(this.#memory, options);
  }

  toDLPack(options: DLPackOptions): DLPackCapsule {
    return exportTensorOf(this, options);
  }

  export(): Uint8Array {
    return exportToProcesses(this.#memory);
  }

  async importersDone(): Promise<void> {
    const processExport = this.#memory.outsideUse(ProcessExport);
    this.#memory.assertLive('wait for other processes');
    if (processExport !== undefined) await untilUnused(processExport);
  }

  detach(): BufferMessage {
    const operation = 'detach a buffer';
    const handOvers = handOversOf(this.#memory, operation, false);
    this.#memory.assertNotShared(operation);
    const message = this.#memory.giveUp(operation, (given) => handOvers.give(given));
    DeviceBuffer.#end(this);
    return message;
  }

  share(): BufferMessage {
    const operation = 'share a buffer';
    const handOvers = handOversOf(this.#memory, operation, true);
    const { message, memory } = this.#memory.giveUp(operation, (given) => handOvers.share(given));
    if (memory !== this.#memory) {
      DeviceBuffer.#end(this);
      this.#memory = memory;
      this.#standIn = own(memory);
    }
    return message;
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
  release(): Required<Omit<BufferAllocation, 'label'>> {
    const operation = 'release the memory of a buffer';
    const memory = this.#memory;
    memory.assertLive(operation);
    return memory.giveUp(operation, () => {
      const { pointer: ptr, bytes: capacityBytes, byteLength, alignment, resource, stream } = memory;
      DeviceBuffer.#end(this);
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

  /**
   * Marks the buffer as without memory. Not a private method, because that would cost each new buffer a
   * field.
   */
  static #end(buffer: DeviceBuffer): void {
    disown(buffer.#standIn as StandIn);
    buffer.#standIn = undefined;
    buffer.#memory.endReason = disposed;
  }
}

markCopy(DeviceBuffer);

function copyOf(buffer: DeviceBuffer, resource: MemoryResource, stream: Stream): DeviceBuffer {
  const { alignment, label } = buffer;
  return new DeviceBuffer(buffer, { resource, stream, alignment, ...(label === undefined ? {} : { label }) });
}

/** RMM's constructor takes the stream and the resource as arguments of their own. */
function asMemory(found: unknown): BufferMemory {
  if (found instanceof BufferMemory) return found;
  throw new ArgumentTypeError(
    `a DeviceBuffer takes a source and options, such as { stream, resource }, but also got a third argument: ${formatValue(found)}`,
  );
}

/** @throws UnsupportedError if other workers cannot use the memory. */
function handOversOf(memory: BufferMemory, operation: string, needsMemory: boolean): HandOvers {
  freeReturned(false);
  memory.assertUsable(operation);
  if (needsMemory && memory.pointer === 0) throw new UnsupportedError(`cannot ${operation}: it has no memory`);
  const { toWorkers } = memory.origin;
  if (typeof toWorkers === 'string') throw new UnsupportedError(`cannot ${operation}: ${toWorkers}`);
  return toWorkers;
}
