import { isAnyArrayBuffer } from 'node:util/types';
import { deviceOfMemory, hasMemoryOf } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CisternError,
  formatPointer,
  formatValue,
  LifetimeError,
  UnsupportedError,
} from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertAlignment, assertBytes, assertOneOf, assertOptions, assertPointer, optionNames } from '../basics/validation.js';
import { creationStack, disown, freeReturned, freeSoonerOrLater, own, type StandIn } from '../collector/free-unreachable-buffers.js';
import { collectForOthers } from '../collector/reclaim-unreachable-buffers.js';
import { accessFromHost } from '../driver/memory/host-view.js';
import type { MemoryLocation } from '../driver/memory/managed-memory.js';
import { openImport } from '../driver/memory/process-memory.js';
import { assertStillHolds, copy, copyFromHost, copyIntoHost, copyToHost, copyToHostSync, set } from '../driver/memory/transfer.js';
import { Event } from '../driver/streams/event.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import { attach, type BufferMessage, checkedMessage, discardMessage, giveBack, messageInfo } from '../driver/workers/hand-over.js';
import {
  type Inspect,
  type InspectionOptions,
  inspected,
  inspectedPointer,
  inspectObject,
  refuseCloning,
} from '../driver/workers/local-object.js';
import { flushLast } from '../files/flush-at-exit.js';
import {
  assertMemoryResource,
  type DeallocationEvents,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
} from '../memory-resource.js';
import { markCopy } from '../package/copy.js';
import { ForeignMemoryResource } from '../resources/foreign-memory-resource.js';
import { assertFence, deallocationEventsWords } from '../stream-ordering/stream-ordering.js';
import { AttachedMemory } from './attached-memory.js';
import { BufferMemory } from './buffer-memory.js';
import {
  type BlockingBufferTransferOptions,
  type BufferTransfer,
  type BufferTransferOptions,
  blockingTransferOptionNames,
  changeStream,
  hasConcurrentManagedAccess,
  kindOfMemory,
  transfer,
  transferOptionNames,
  waitForHost,
  waitForHostSync,
} from './buffer-transfer.js';
import { assertNoMemory, type ByteRange, resolveRange } from './byte-range.js';
import {
  type CudaArray,
  type CudaArrayInterface,
  type CudaArrayInterfaceOptions,
  cudaArrayInterfaceOptionNames,
  cudaArrayMemory,
  describeCudaArray,
  type FromCudaArrayInterfaceOptions,
  fromCudaArrayInterfaceOptionNames,
} from './cuda-array-interface.js';
import { currentResource } from './current-resource.js';
import { type DLPackCapsule, type DLPackOptions, dlpackOptionNames, exportBuffer } from './dlpack.js';
import { type CheckedForeignMemory, foreignMemory, type WrapOptions, wrapOptionNames } from './foreign-memory.js';
import { bytesOfHandle, type HandleInJson, leafOf, type OpenOptions, openOptionNames, untilUnused } from './handles.js';
import { type HostViewOptions, hostViewOptionNames, type TypedArrayClass, viewRange } from './host-view.js';
import { ImportedMemory } from './imported-memory.js';
import { copyOrdered, follow } from './ordered-copy.js';

/**
 * Bytes in host memory: a typed array, a `DataView`, a `Buffer`, or an `ArrayBuffer`, shared or
 * not.
 */
export type HostData = ArrayBufferView | ArrayBufferLike;

/**
 * Memory that a device can access, by its address: a {@link DeviceBuffer}, or a buffer of another
 * library.
 */
export interface DeviceMemory {
  /** The address of the first byte; 0 if there is none. */
  readonly ptr: DevicePointer;
  /** The length in bytes. */
  readonly byteLength: number;
}

/**
 * Memory of a resource with everything needed to free it: the result of
 * {@link DeviceBuffer.release} and the argument of {@link DeviceBuffer.adopt}.
 */
export interface BufferAllocation extends DeviceMemory {
  /**
   * Bytes that were requested from the resource; at least `byteLength`.
   * @defaultValue `byteLength`
   */
  readonly capacityBytes?: number;
  /**
   * The alignment that was requested from the resource; kept when the buffer moves.
   * @defaultValue 256
   */
  readonly alignment?: number;
  /** The resource that allocated the memory, and frees it. */
  readonly resource: MemoryResource;
  /** The stream that the memory is ordered on. */
  readonly stream: Stream;
  /**
   * A name for people.
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
   * The resource that allocates and frees the memory. The buffer keeps it alive, but does not
   * dispose it.
   * @defaultValue the current resource of the stream's device: see {@link currentResource},
   * {@link withResource}
   */
  readonly resource?: MemoryResource;
  /**
   * The stream that the memory is ordered on. The buffer keeps it alive, but does not dispose it.
   */
  readonly stream: Stream;
  /**
   * Bytes to allocate, at least the buffer's length, so that it can grow without moving.
   * @defaultValue the buffer's length
   */
  readonly capacityBytes?: number;
  /**
   * A power of two that the resource supports; at least 256 is always given. Kept when the buffer
   * moves.
   * @defaultValue 256
   */
  readonly alignment?: number;
  /**
   * A name for people, shown in recordings and leak reports.
   * @defaultValue none
   */
  readonly label?: string;
}

const bufferOptions = optionNames<DeviceBufferOptions>({ alignment: true, capacityBytes: true, label: true, resource: true, stream: true });

/** Options of the copies into a {@link DeviceBuffer}. */
export interface BufferCopyOptions {
  /**
   * The position in the buffer that is written, in bytes from its start.
   * @defaultValue 0
   */
  readonly byteOffset?: number;
  /**
   * The position in the source, in bytes from its start.
   * @defaultValue 0
   */
  readonly sourceByteOffset?: number;
  /** @internal Rejects arrays, which have a `byteLength` too. */
  readonly [Symbol.toStringTag]?: never;
  /** @internal */
  readonly [Symbol.dispose]?: never;
  /**
   * The number of bytes.
   * @defaultValue everything after `sourceByteOffset`
   */
  readonly byteLength?: number;
}

/** Options of {@link DeviceBuffer.recast}. */
export interface RecastOptions {
  /**
   * The stream of the buffer from now on; it must be able to use the new memory. Both streams wait
   * for each other as far as the copy needs.
   * @defaultValue the buffer's stream
   */
  readonly stream?: Stream;
  /** The policy for the free of the old memory, as in {@link DeviceBuffer.resize}. */
  readonly events?: DeallocationEvents;
}

/** Options of {@link DeviceBuffer.attach}. */
export interface AttachOptions {
  /**
   * The stream that the memory is ordered on from now on. It waits for what was queued on the giver's
   * stream before the buffer was given.
   */
  readonly stream: Stream;
}

const attachOptionNames = optionNames<AttachOptions>({ stream: true });

const recastOptionNames = optionNames<RecastOptions>({ events: true, stream: true });

/** Keeps a buffer alive as long as the host's array over its memory. */
const viewedBuffers = new WeakMap<ArrayBuffer, DeviceBuffer>();

const offsetOptions = optionNames<Pick<ByteRange, 'byteOffset'>>({ byteOffset: true });

const copyOptions = optionNames<BufferCopyOptions>({ byteLength: true, byteOffset: true, sourceByteOffset: true });

/**
 * Untyped memory of any kind from a resource, with an owner. It is freed when the buffer is
 * disposed or, if nobody disposes the buffer, after the garbage collector finds it unreachable.
 *
 * Stream order: everything that a buffer does is queued on its `stream`, and its memory is freed
 * there. Another stream that uses the memory must be ordered after `stream`, and `stream` must be
 * ordered after that use before the buffer is resized or disposed. Copies between two buffers do
 * this by themselves.
 *
 * The numeric `ptr` and `byteLength` are what existing GPU libraries for Node.js accept as memory.
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
export class DeviceBuffer implements Disposable {
  #memory: BufferMemory;
  /** Shows whether the buffer was collected; `undefined` once disposed. */
  #standIn: StandIn | undefined;

  /**
   * Allocates and, if given data, queues a copy of it. Host data may be changed as soon as this
   * returns. Another buffer is copied in the order of both streams. Other device memory is copied
   * in the order of this buffer's stream, which the caller must have ordered after the writes to
   * that memory and before its free.
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
    refuseCloning(this);
    if (adopted !== undefined) {
      if (!(adopted instanceof BufferMemory)) throw thirdArgument(adopted);
      this.#memory = adopted;
      this.#standIn = own(adopted);
      return;
    }
    const data = typeof source === 'number' ? undefined : readable(source);
    const byteLength = data === undefined ? (source as number) : data.byteLength;
    assertBytes(byteLength, 'source');
    assertOptions(options, bufferOptions);
    const { resource, stream, capacityBytes = byteLength, alignment = ALLOCATION_ALIGNMENT, label } = options;
    this.#memory = createMemory(resource, stream, alignment, label, byteLength, capacityBytes, creationStack(new.target));
    this.#memory.allocate(capacityBytes);
    this.#memory.byteLength = byteLength;
    try {
      if (data !== undefined && byteLength > 0) {
        // The resource is foreign code, and may run host functions: either may have moved or
        // shortened the source.
        const current = data instanceof Uint8Array ? data : readable(source as DeviceMemory);
        assertStillHolds('source', current.byteLength, byteLength);
        this.#queueCopy(current, 0, 0, byteLength);
      }
      this.#standIn = own(this.#memory);
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
   * A buffer that takes over memory already allocated from a resource, and frees it there. From now
   * on nobody else may free the memory. Whether it is live cannot be checked.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid allocation, or a stream of a
   * device that cannot access the memory; LifetimeError for a disposed stream. The memory is then
   * still the caller's.
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
    const { ptr, byteLength, resource, stream, capacityBytes = byteLength, alignment = ALLOCATION_ALIGNMENT, label } = allocation;
    assertPointer(ptr, 'ptr');
    assertBytes(byteLength, 'byteLength');
    assertMemoryResource(resource, 'resource');
    const memory = createMemory(resource, stream, alignment, label, byteLength, capacityBytes, creationStack(DeviceBuffer.adopt));
    if ((ptr === 0) !== (capacityBytes === 0)) {
      throw new ArgumentRangeError(
        `ptr must be 0 if and only if there are no bytes, got ${formatPointer(ptr)} with ${capacityBytes} bytes`,
      );
    }
    const buffer = new DeviceBuffer(0, allocation, memory);
    memory.adopt(ptr, capacityBytes);
    memory.byteLength = byteLength;
    return buffer;
  }

  /**
   * A buffer over memory that another library allocated. Without `release` the memory is borrowed:
   * its owner keeps it until the work queued on `stream` has run. With `release` the buffer owns it,
   * and gives it back exactly once: after it is disposed or collected, or when the process or the
   * worker exits, and in each case only after the work queued on `stream` has run. If that has run
   * already, `release` is called during `dispose`; if not, later, from the event loop: possibly after
   * the scope of `stream` has ended. If a resource of cistern takes the memory back, as a pool that
   * is disposed does, it waits for the work and calls `release` first.
   *
   * An error of `release` is reported as an uncaught exception; at the exit it is printed, and the
   * exit code is 1. A worker that is terminated runs no JavaScript, and so no `release`.
   *
   * The driver must know the memory, or a {@link HostMemoryResource} of this process. The stream
   * must be ordered after whatever wrote the memory. The buffer cannot grow: `resize` beyond
   * `byteLength`, `reserve` and `shrinkToFit` throw an {@link UnsupportedError}. `recast` moves the
   * contents to memory of a resource, and releases the memory; `to` copies as from any buffer, but
   * needs a `resource` for a copy of managed memory.
   *
   * RMM has no counterpart; its users keep the owner beside a `device_span`.
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
    const buffer = DeviceBuffer.adopt({ ...foreign, stream, ...(label === undefined ? {} : { label }) });
    foreign.resource.own();
    if (!foreign.resource.isBorrowed) flushLast();
    return buffer;
  }

  /**
   * A buffer over the memory of an array in the form of `__cuda_array_interface__`, versions 0 to 3:
   * from the array's first element to the end of its last one, gaps included. The memory is
   * borrowed. Whoever owns it must keep it until the buffer is disposed and the work queued on the
   * buffer's stream has run; until then the object is kept alive. It must not refer to the buffer, or
   * the garbage collector never finds either: dispose the buffer then. `stream` waits for what is
   * queued on the array's stream, unless the array names none. A buffer over memory that must not be
   * written does not refuse writes.
   *
   * RMM has no counterpart; its `DeviceBuffer` in Python has the attribute.
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
   * Takes up a buffer that {@link DeviceBuffer.detach} or {@link DeviceBuffer.share} has given, in
   * this or any other worker of the process. Its `ptr` is the giver's. Its memory goes home when the
   * buffer is disposed or collected, or when this worker ends: the giver frees it, after everything
   * queued on this buffer's stream. If the giver has ended by then, it is freed all the same.
   *
   * The buffer cannot grow, unless it was given without memory: `resize` beyond the capacity throws an {@link UnsupportedError}. Move it
   * to a resource of this worker with {@link DeviceBuffer.recast} first. It can be detached again,
   * for the next worker. Does not block.
   *
   * Stream order: `stream` waits for everything that the giver queued on its stream before it gave
   * the buffer. RMM has no counterpart.
   * @param message from `detach`, which one call can attach; or from `share`, which any number of
   * calls can attach
   * @throws LifetimeError (`ERR_CISTERN_STALE_MESSAGE`) if the message was already attached or
   * discarded, if its giver has ended, or if the giver has disposed a shared buffer;
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
    const operation = 'attach a buffer';
    const checked = checkedMessage(message);
    assertOptions(options, attachOptionNames);
    const { stream } = options;
    assertStream(stream, operation);
    const { bytes, byteLength, alignment, isShared, ...place } = messageInfo(checked, operation);
    if (place.memoryKind === 'device') assertStreamOf(stream, place.device);
    const createdAt = creationStack(DeviceBuffer.attach);
    collectForOthers();
    const attached = attach(checked, stream, operation);
    if (bytes === 0) {
      giveBack(attached, stream);
      return new DeviceBuffer(0, { stream, alignment, ...(checked.label === undefined ? {} : { label: checked.label }) });
    }
    const { pointer } = attached;
    const resource = new AttachedMemory(place, { ...attached, bytes }, isShared ? checked : undefined);
    const memory = new BufferMemory(resource, stream, alignment, checked.label, createdAt);
    const buffer = new DeviceBuffer(0, options, memory);
    memory.adopt(pointer, bytes);
    memory.byteLength = byteLength;
    return buffer;
  }

  /**
   * Gives up a message without attaching it: the memory goes home. The giver and everybody who has the
   * message can call this, for example when the worker that it was sent to has ended. If the buffer is
   * shared, only the worker that shares it can: then nobody else can attach it, and in another worker
   * this does nothing.
   *
   * A message that is lost cannot be noticed: its memory stays allocated until the giver's
   * environment ends.
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
   * copied, and both processes may read and write. Its `ptr` is another one than there. When it is
   * disposed or collected, the memory is unmapped after everything queued on its stream has run. If
   * this process ends instead, in whatever way, the system does it. Until then the other process keeps
   * the memory. A handle can be opened any number of times.
   *
   * The buffer cannot grow: {@link DeviceBuffer.recast} moves it to a resource of this process. It can
   * be neither exported nor given to another worker. If the exporting process ends, the contents stay
   * readable on a software device; NVIDIA leaves undefined what happens on CUDA.
   *
   * Stream order: `stream` waits for everything that the other process had queued on the buffer's
   * stream when it called `export`. If that process ends before this has run, the wait ends. Does not
   * block. RMM has no counterpart.
   * @param handle what `export` returned, in any typed array, or as JSON makes it of a `Buffer`
   * @throws LifetimeError (`ERR_CISTERN_STALE_HANDLE`) if the other process has ended or disposed its
   * buffer; (`ERR_CISTERN_FOREIGN_HANDLE`) for any other bytes, or memory of another kind of device.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) in the process that exported the buffer, or if
   * 64 processes have memory of that process open.
   * @throws UnsupportedError for a handle of another version, or of a process that this one may not
   * look into, such as another user's; DeviceUnavailableError if this process does not have the device.
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
    const bytes = bytesOfHandle(handle);
    assertOptions(options, openOptionNames);
    const { stream, label } = options;
    assertStream(stream, 'open a buffer');
    assertLabel(label);
    const createdAt = creationStack(DeviceBuffer.open);
    const imported = openImport(bytes, stream);
    stream.identity.outdateFences();
    const resource = new ImportedMemory(imported);
    const memory = new BufferMemory(resource, stream, imported.alignment, label, createdAt);
    const buffer = new DeviceBuffer(0, options, memory);
    if (imported.bytes === 0) resource.close(stream);
    memory.adopt(imported.pointer, imported.bytes);
    memory.byteLength = imported.byteLength;
    return buffer;
  }

  /** @internal What is watched in place of a buffer; `undefined` once the buffer is disposed. */
  static standInOf(buffer: DeviceBuffer): StandIn | undefined {
    return buffer.#standIn;
  }

  /**
   * The address of the first byte; 0 if the capacity is 0. Changes when the buffer moves.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) once disposed, so that nobody gets freed memory.
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

  /** A name for people. {@link RecordingResourceAdaptor}s record it, and leak reports show it. */
  get label(): string | undefined {
    return this.#memory.label;
  }

  /**
   * May be set at any time; it is recorded if the memory is live.
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
    return this.#standIn === undefined || this.#memory.endReason !== undefined;
  }

  /**
   * Changes the stream for everything that follows, including the free. Does not order the two
   * streams: the caller must have made the new one wait for what the old one does with the memory.
   * Does not block.
   *
   * Counterpart of `device_buffer::set_stream`.
   * @throws ArgumentTypeError if `stream` is not a stream; ArgumentRangeError
   * (`ERR_INVALID_ARG_VALUE`) for a stream of another device, unless every device can access the
   * memory; LifetimeError if the buffer or the stream is disposed.
   */
  setStream(stream: Stream): void {
    this.#assertLive('set the stream of a buffer');
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
   * the buffer is then unchanged, except that its host views have no bytes and its handle for other
   * processes is stale, if the free of the old memory was refused.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if the buffer was changed meanwhile, by a
   * host function or by its resource, or if its new memory was taken back.
   */
  resize(byteLength: number, events?: DeallocationEvents): void {
    this.#assertUsable('resize a buffer');
    assertBytes(byteLength, 'byteLength');
    assertEvents(events);
    if (byteLength > this.#memory.bytes) this.#move(byteLength, events, 'resize a buffer');
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
    this.#assertUsable('reserve memory for a buffer');
    assertBytes(capacityBytes, 'capacityBytes');
    assertEvents(events);
    if (capacityBytes > this.#memory.bytes) this.#move(capacityBytes, events, 'reserve memory for a buffer');
  }

  /**
   * Makes the capacity equal to the length. If it was larger, the contents move in stream order,
   * which needs memory for both meanwhile. Does not block.
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
   * Queues a copy into this buffer. Host data may be changed as soon as this returns. Between
   * buffers on two streams, each stream waits for the other, so that neither needs further
   * synchronization. Other device memory is read in the order of this buffer's stream. Does not
   * block.
   * @throws ArgumentTypeError if `source` is neither host data nor device memory.
   * @throws ArgumentRangeError if a range is outside the source or the buffer, or if the two
   * overlap; nothing is then copied.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if a buffer or its stream is disposed.
   * @throws DriverError if the driver refuses.
   * @example
   * ```ts
   * buffer.copyFrom(header);
   * buffer.copyFrom(rows, { byteOffset: header.byteLength });
   * ```
   */
  copyFrom(source: HostData | DeviceMemory, options: BufferCopyOptions = {}): void {
    this.#assertUsable('copy to a buffer');
    this.#assertNotShared('copy to a buffer');
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

  /**
   * As {@link DeviceBuffer.copyFrom}, but blocks until everything queued on the stream of this
   * buffer has run.
   */
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
   * Queues a copy of the contents now, in stream order, and resolves with the copy once it has run.
   * The buffer may be written or disposed meanwhile. The event loop goes on. Given a host array, it
   * fills that with the contents from `byteOffset` on, all at once when it resolves.
   * @throws ArgumentTypeError if the target is neither a range, nor a typed array, nor a
   * `DataView`; ArgumentRangeError for a range outside the buffer, for an array longer than the
   * remaining contents, and for one that was transferred or shortened meanwhile.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed.
   * @throws DriverError if the driver refuses.
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
   * Fills a host array with the contents from `byteOffset` on, in stream order, and blocks until
   * that is done. Without an array, it returns a new one with everything up to the end.
   * @returns the array
   * @throws ArgumentTypeError if `destination` is not a typed array or `DataView`;
   * ArgumentRangeError if it is longer than the remaining contents, or if a host function
   * transferred or shortened it meanwhile.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed.
   * @throws DriverError if the driver refuses.
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
   * Sets every byte of a range, by default the whole buffer, in stream order. Does not block.
   * @param value an integer from 0 to 255
   * @throws ArgumentTypeError, ArgumentRangeError for any other value, or a range outside the
   * buffer.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed.
   * @throws DriverError if the driver refuses.
   */
  fill(value: number, range: Partial<ByteRange> = {}): void {
    this.#assertUsable('fill a buffer');
    this.#assertNotShared('fill a buffer');
    if (typeof value !== 'number') throw new ArgumentTypeError(`value must be a number, got ${formatValue(value)}`);
    if (!Number.isInteger(value) || value < 0 || value > 255) {
      throw new ArgumentRangeError(`value must be an integer from 0 to 255, got ${value}`);
    }
    const { byteOffset, byteLength } = resolveRange(range, this.#memory.byteLength, 'buffer');
    if (byteLength === 0) return;
    const { pointer, stream, resource } = this.#memory;
    // The driver cannot set memory that it does not know.
    if (resource.memoryKind === 'host') copyFromHost(pointer + byteOffset, new Uint8Array(byteLength).fill(value), stream);
    else set(pointer + byteOffset, value, 1, byteLength, stream);
  }

  /**
   * Brings the contents to a device or the host.
   *
   * Managed memory is moved: the result is this buffer, with the same `ptr`, and a prefetch is
   * queued in stream order. So is ordinary host memory, if the device uses the host's page tables, as
   * on Grace Hopper. Memory that is at the location already is left as it is. Any other memory is copied, in the order of both streams, to a new buffer with memory there. `isCopy`
   * tells which; only then the result is another buffer, which the caller must dispose.
   *
   * For the host this blocks until the contents can be read, unless `nonBlocking` is set. Memory
   * that was moved stays usable on every device and stream that could use it before; using it moves
   * it back. On a device without concurrent managed access, managed memory moves by itself when it
   * is used, so that only the wait for the host remains. That wait is for everything queued on each
   * such device that this environment uses. The host may use the contents until more is queued there.
   *
   * RMM has no counterpart; PyTorch's RFC-0023 describes the same for tensors.
   * @param location a device, or `'host'`
   * @throws UnsupportedError for a preferred location that is a device without concurrent managed
   * access.
   * @throws ArgumentTypeError, ArgumentRangeError for any other argument, or a resource without
   * memory at the location.
   * @throws OutOfMemoryError if there is no memory for a copy.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or a stream is disposed, before the
   * call or by a host function during the wait; DriverError if the driver refuses.
   * @example
   * ```ts
   * using resource = new ManagedMemoryResource();
   * using stream = new Stream();
   * using weights = new DeviceBuffer(64 * MiB, { resource, stream });
   * weights.to(stream.device, { preferredLocation: true });
   * // … kernels on the stream …
   * weights.to('host');
   * const numbers = weights.hostView(Float32Array);
   * ```
   */
  to(location: MemoryLocation, options: BlockingBufferTransferOptions = {}): BufferTransfer<DeviceBuffer> {
    assertOptions(options, blockingTransferOptionNames);
    const result = this.#transfer(location, options);
    if (location !== 'host' || options.nonBlocking === true) return result;
    try {
      waitForHostSync(result.buffer);
      // Host functions may have run, and disposed the buffer.
      result.buffer.#assertLive('move a buffer');
      return result;
    } catch (error) {
      if (result.isCopy) result.buffer.dispose();
      throw error;
    }
  }

  /**
   * The same as {@link DeviceBuffer.to}, but resolves once the contents are there, for a device too.
   * Everything is queued before this returns; the event loop goes on meanwhile. If the program
   * disposes the buffer meanwhile, the result is that disposed buffer.
   */
  async toAsync(location: MemoryLocation, options: BufferTransferOptions = {}): Promise<BufferTransfer<DeviceBuffer>> {
    assertOptions(options, transferOptionNames);
    const result = this.#transfer(location, options);
    try {
      await (location === 'host' ? waitForHost(result.buffer) : result.buffer.stream.synchronize());
      return result;
    } catch (error) {
      if (result.isCopy) result.buffer.dispose();
      throw error;
    }
  }

  /**
   * Moves the contents to memory of another resource, in stream order: one allocation, one copy, one
   * free. The buffer, its length, capacity, alignment and label stay the same; `ptr` and `resource`
   * change. So a program can profile in managed memory and then run without it. If the buffer is of
   * that resource already, only the stream changes, if one is given. Does not block by itself.
   *
   * RMM has no counterpart.
   * @throws OutOfMemoryError, LifetimeError, DriverError, ArgumentTypeError, ArgumentRangeError; the
   * buffer is then unchanged, unless its old resource is disposed: then it has the new memory. If
   * the free of the old memory was refused, its host views have no bytes.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if the buffer was changed meanwhile, by a
   * host function or by a resource.
   * @example
   * ```ts
   * using managed = new ManagedMemoryResource();
   * using device = new CudaMemoryResource();
   * using stream = new Stream();
   * using weights = new DeviceBuffer(64 * MiB, { resource: managed, stream });
   * weights.recast(device);
   * ```
   */
  recast(resource: MemoryResource, options: RecastOptions = {}): void {
    this.#assertUsable('recast a buffer');
    assertMemoryResource(resource, 'resource');
    assertOptions(options, recastOptionNames);
    assertEvents(options.events);
    if (options.stream !== undefined) assertStream(options.stream, 'recast a buffer');
    const before = this.#memory;
    if (resource === before.resource) {
      if (options.stream !== undefined) changeStream(this, options.stream);
      return;
    }
    const { byteLength, bytes, pointer, alignment, label, createdAt } = before;
    const { stream = before.stream } = options;
    const after = createMemory(resource, stream, alignment, label, byteLength, bytes, createdAt);
    after.allocate(bytes);
    after.byteLength = byteLength;
    try {
      const assertUnchanged = () => {
        this.#assertLive('recast a buffer');
        const isAsBefore = before.pointer === pointer && before.byteLength === byteLength && after.bytes === bytes;
        if (this.#memory !== before || !isAsBefore) throw changedMeanwhile('recast a buffer');
      };
      assertUnchanged();
      if (byteLength > 0) copyOrdered({ pointer: after.pointer, stream }, { pointer, stream: before.stream }, byteLength);
      assertUnchanged();
    } catch (error) {
      freeSoonerOrLater(after);
      throw error;
    }
    const standIn = this.#standIn as StandIn;
    const keep = (memory: BufferMemory) => {
      this.#memory = memory;
      this.#standIn = own(memory);
    };
    // The old resource is foreign code: it must find the buffer disposed.
    this.#standIn = undefined;
    before.byteLength = 0;
    try {
      before.freeNow(options.events);
    } catch (error) {
      if (before.pointer === 0) {
        disown(standIn);
        keep(after);
      } else {
        this.#standIn = standIn;
        before.byteLength = byteLength;
        freeSoonerOrLater(after);
      }
      throw error;
    }
    disown(standIn);
    keep(after);
  }

  /**
   * A typed array over the bytes of the buffer, without a copy. The memory must be managed, pinned
   * or ordinary host memory. Writes to it reach the device's work that is queued afterwards.
   *
   * The work queued on the buffer's stream is waited for, or refused, at this call only. Order the
   * host after the stream again before using the array after more work was queued, for example by
   * another call of this method. All views of one buffer share one `ArrayBuffer`; a buffer longer
   * than an array can be (4 GiB before Node 22) has several. It is detached before the memory is
   * freed or moves, so that later uses find no bytes; until then a view keeps the buffer alive. If
   * the resource then refuses the free, the buffer keeps its memory, and another call of this method
   * makes a new array. The array must not be transferred: nothing would detach it then.
   *
   * An asynchronous operation on a view, such as `fs.write`, uses the memory by its address until it
   * completes; detaching the array does not stop it. Wait for the operation before the buffer is
   * disposed, resized, recast or released, and before its resource ends. Otherwise it reads or
   * writes memory that may belong to another buffer.
   *
   * RMM has no counterpart.
   * @param type the class of the array, such as `Float32Array`
   * @throws UnsupportedError if the host cannot use the memory; if the device has no concurrent
   * managed access; or if the runtime allows no array over foreign memory, as with V8's sandbox, or
   * none as long as the view.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if the stream has unfinished work and
   * `whenBusy` is `'refuse'`.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid class, option or range.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed.
   * @example
   * ```ts
   * using resource = new ManagedMemoryResource();
   * using stream = new Stream();
   * using buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { resource, stream });
   * const numbers = buffer.hostView(Float32Array); // waits for the copy
   * console.log(numbers); // 1, 2, 3
   * ```
   */
  hostView<T extends ArrayBufferView>(type: TypedArrayClass<T>, options: HostViewOptions = {}): T {
    const operation = 'view a buffer from the host';
    this.#assertUsable(operation);
    assertNoMemory(options, hostViewOptionNames, 'options');
    const { whenBusy = 'wait' } = options;
    assertOneOf(whenBusy, ['wait', 'refuse'], 'whenBusy');
    viewRange(type, options, this.#memory.byteLength);
    const kind = kindOfMemory(this);
    if (kind === 'device' || kind === 'unknown') {
      throw new UnsupportedError(
        `cannot ${operation}: the host cannot use ${kind === 'device' ? 'device' : 'this'} memory; copy it with toHost`,
      );
    }
    if (kind === 'managed' && !hasConcurrentManagedAccess(this.#memory.stream.device)) {
      throw new UnsupportedError(`cannot ${operation}: the device has no concurrent managed access; copy the memory with toHost`);
    }
    if (!this.#memory.stream.query()) {
      if (whenBusy === 'refuse') throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: its stream has unfinished work`);
      this.#memory.stream.synchronizeSync();
      // Host functions may have run, and changed the buffer.
      this.#assertUsable(operation);
    }
    const { byteOffset, length } = viewRange(type, options, this.#memory.byteLength);
    if (length === 0) return new type(new ArrayBuffer(0), 0, 0);
    const bytes = length * type.BYTES_PER_ELEMENT;
    const { array, byteOffset: start } = this.#memory.hostArray(byteOffset, bytes);
    viewedBuffers.set(array, this);
    if (kind === 'managed') accessFromHost(this.#memory.pointer + byteOffset, bytes, true);
    return new type(array, byteOffset - start, length);
  }

  /**
   * Describes an array in this buffer in the form of `__cuda_array_interface__`, version 3. The
   * description owns nothing: the buffer must stay as it is, undisposed and at its address, until
   * whoever uses the array is done. They wait for the `stream` in the description, which is the
   * buffer's, before they use the memory; and the buffer's stream must wait for them before the
   * buffer is written, resized or disposed. Does nothing on the device.
   *
   * RMM has no counterpart in C++; its `DeviceBuffer` in Python has the attribute.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid shape, type or stride, or an array
   * outside the buffer.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed;
   * CisternError (`ERR_CISTERN_INVALID_STATE`) if `readOnly` is false and the buffer is shared.
   * @example
   * ```ts
   * const { data, stream } = buffer.toCudaArrayInterface({ shape: [2, 3], typestr: '<f4' });
   * ```
   */
  toCudaArrayInterface(options: CudaArrayInterfaceOptions): CudaArrayInterface {
    this.#assertUsable('describe an array in a buffer');
    assertOptions(options, cudaArrayInterfaceOptionNames);
    if (options.readOnly === false) this.#assertNotShared('describe a buffer as writable');
    return describeCudaArray(this, options, this.#isShared);
  }

  /**
   * Gives an array in this buffer to another library, as a DLPack capsule. Nothing is copied, and
   * the buffer stays usable: its memory is freed once the buffer has given it up and the consumer
   * has called the deleter. The consumer may call that on any thread; this environment learns of it
   * from its event loop. If nobody consumes the capsule, the garbage collector calls the deleter. If
   * this environment ends first, the memory is freed after the deleter's call all the same. The
   * resource must not be disposed, rewound or, for a cache, end its run before that; and the memory of
   * an attached buffer goes home when this worker ends. A shared buffer can only be exported with
   * `readOnly`. An exported buffer can be neither released nor handed to another worker.
   *
   * Stream order: the consumer's stream waits for what is queued on the buffer's. When the deleter
   * is called, the buffer's stream waits for what is queued on the consumer's, so the memory is freed
   * in stream order. Does not block, except for host memory without a `stream`.
   *
   * RMM has no counterpart.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid shape, type, stride or stream, or an
   * array outside the buffer; UnsupportedError for elements that are not whole bytes.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or a stream is disposed; DriverError
   * if the driver refuses.
   * @example
   * ```ts
   * const capsule = buffer.toDLPack({ shape: [2, 3], dtype: 'float32', stream: consumer });
   * ```
   */
  toDLPack(options: DLPackOptions): DLPackCapsule {
    this.#assertUsable('export a buffer');
    assertOptions(options, dlpackOptionNames);
    if (options.readOnly !== true) this.#assertNotShared('export a buffer to be written');
    return exportBuffer(this, options, () => {
      // Host functions may have run during a wait.
      this.#assertUsable('export a buffer');
      return this.#memory.export();
    });
  }

  /**
   * Lets other processes of the same user use the buffer: returns a handle of 56 bytes, which travels
   * through any channel, and which {@link DeviceBuffer.open} takes there. It contains no memory, and this
   * buffer stays as it is. A second call returns the same handle.
   *
   * The handle can be opened as long as this buffer has its memory: until it is disposed, collected,
   * moved or given away, or this process ends. So keep the buffer until the other process has answered.
   * Memory that another process still uses then stays allocated until the last one has let go of it or
   * has ended, and is freed in stream order from this process's event loop. Meanwhile resources that
   * own it cannot be disposed or rewound (`ERR_CISTERN_INVALID_STATE`), and the buffer can be neither
   * released nor given to another worker.
   *
   * Device memory of a {@link CudaMemoryResource} can be exported, and of a
   * {@link CudaAsyncMemoryResource} that is `exportable`, also in pools and other adaptors on top of
   * these. CUDA shares whole allocations of the driver: the other process could reach what lies in the
   * same one. The software device shares whole pages.
   *
   * Stream order: the streams of other processes wait for everything queued on this buffer's stream at
   * the latest call. The call waits for no stream. On the software device, the first export of memory
   * copies its contents, about half a second for 1 GiB, while copies and fills pause. What other
   * processes write is ordered before work that is queued here after
   * {@link DeviceBuffer.importersDone}. RMM has no counterpart, except that its pools can be created
   * with a handle type.
   * @throws UnsupportedError for any other memory; the message names the resource, and what to use.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed; CisternError
   * (`ERR_CISTERN_INVALID_STATE`) if it is shared with workers, or 65,536 buffers are exported;
   * DriverError if the driver refuses. The buffer is then unchanged.
   * @example
   * ```ts
   * using stream = new Stream();
   * using buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { resource: new CudaMemoryResource(), stream });
   * const handle = buffer.export();
   * process.send?.(handle);
   * ```
   */
  export(): Uint8Array {
    const operation = 'export a buffer';
    this.#assertUsable(operation);
    this.#assertNotShared(operation);
    const { resource, pointer } = this.#memory;
    const leaf = leafOf(resource);
    const name = leaf.constructor.name;
    if (leaf instanceof ImportedMemory) {
      throw new UnsupportedError(`cannot ${operation}: its memory belongs to another process, which alone can export it`);
    }
    if (leaf instanceof AttachedMemory) {
      throw new UnsupportedError(
        `cannot ${operation}: its memory belongs to another worker, which frees it when this one ends; recast it to a CudaMemoryResource`,
      );
    }
    if (leaf instanceof ForeignMemoryResource) {
      throw new UnsupportedError(`cannot ${operation}: its memory was wrapped, and its owner may take it back while others use it`);
    }
    if (leaf.memoryKind !== 'device') {
      throw new UnsupportedError(
        `cannot ${operation}: the ${leaf.memoryKind} memory of a ${name} cannot be shared with other processes; recast it to a CudaMemoryResource`,
      );
    }
    const handle = this.#memory.exportToProcesses();
    if (handle !== undefined) return handle;
    throw new UnsupportedError(
      `cannot ${operation}: the driver cannot share ${formatPointer(pointer)}, memory of a ${name}, with other processes; recast it to a CudaMemoryResource, or to a CudaAsyncMemoryResource with exportable: true`,
    );
  }

  /**
   * Resolves once no other process uses the memory of an exported buffer: each has disposed its
   * buffer and run what it had queued, or has ended. What is queued here afterwards, on any stream, is
   * ordered after that work. Resolves at once if nobody has opened the buffer yet. Others may open it
   * again later. If this buffer is disposed or moved meanwhile, the wait is still for those that use the
   * memory it had.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer is disposed.
   * @example
   * ```ts
   * using stream = new Stream();
   * using buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream });
   * const handle = buffer.export(); // send it, and wait until the other process has opened it
   * await buffer.importersDone();
   * console.log(await buffer.toHost()); // with what the other process has written
   * ```
   */
  async importersDone(): Promise<void> {
    this.#assertLive('wait for other processes');
    const { processExport } = this.#memory;
    if (processExport !== undefined) await untilUnused(processExport);
  }

  /**
   * Gives up the memory without freeing it. From now on the caller must free it on the resource in
   * the order of the stream, or pass it to {@link DeviceBuffer.adopt}. The buffer is disposed. Does
   * not block, and does nothing on the device.
   *
   * Memory allocated in a run of a cache still goes back when the run ends, unless the cache's
   * `keep` was called for it.
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
    this.#assertLive(operation);
    return this.#giveUp(operation, (memory) => {
      const { pointer: ptr, bytes: capacityBytes, byteLength, alignment, resource, stream } = memory;
      disown(this.#standIn as StandIn);
      this.#standIn = undefined;
      memory.byteLength = 0;
      memory.release();
      return Object.freeze({ ptr, byteLength, capacityBytes, alignment, resource, stream });
    });
  }

  /**
   * Gives the buffer to another worker: returns a message for {@link DeviceBuffer.attach}, which one
   * call in any worker of the process can attach. This buffer is disposed. Does not block, and copies
   * nothing.
   *
   * The memory comes home when the other worker has disposed the buffer, or has ended, and is then
   * freed through the buffer's resource in stream order: at the next turn of this worker's event
   * loop, at the next `detach`, `share` or `discard`, or earlier if memory runs out. Until then the
   * resource cannot be disposed if it owns the memory below, such as a pool: that throws
   * (`ERR_CISTERN_INVALID_STATE`). A message that was not attached is recalled then.
   *
   * The message can be attached as long as this worker lives. If it is never attached, the memory
   * stays allocated until this worker ends or {@link DeviceBuffer.discard} is called. Memory of a run
   * of a cache leaves the run.
   *
   * Stream order: the other worker's stream waits for everything queued on this buffer's stream by
   * now. RMM has no counterpart.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed;
   * CisternError (`ERR_CISTERN_INVALID_STATE`) if it is shared.
   * @throws UnsupportedError if its memory was wrapped ({@link DeviceBuffer.wrap}).
   * @throws DriverError if the driver records no event; the buffer is then unchanged, except that its
   * host views have no bytes.
   * @example
   * ```ts
   * worker.postMessage(buffer.detach());
   * ```
   */
  detach(): BufferMessage {
    const operation = 'detach a buffer';
    freeReturned(false);
    this.#assertCanBeGiven(operation);
    this.#assertNotShared(operation);
    return this.#giveUp(operation, (memory) => {
      const { resource, byteLength, pointer, stream, label } = memory;
      let message: BufferMessage;
      if (resource instanceof AttachedMemory && resource.isAt(pointer)) {
        message = resource.handOn(byteLength, stream, label);
        memory.release();
      } else {
        message = memory.detach();
      }
      disown(this.#standIn as StandIn);
      this.#standIn = undefined;
      memory.byteLength = 0;
      return message;
    });
  }

  /**
   * Lets other workers read the buffer: returns a message that any number of calls of
   * {@link DeviceBuffer.attach} can attach, until this buffer is disposed. From now on nobody may
   * write to the memory: `copyFrom`, `fill` and `detach` throw. This buffer keeps its contents, and
   * its `resource` is now the shared memory; dispose it as any other. The memory is freed after the
   * last of its buffers in any worker has been disposed, as for {@link DeviceBuffer.detach}. A second
   * call returns the same message. Does not block, and copies nothing.
   *
   * Stream order: the streams of other workers wait for everything queued on this buffer's stream by
   * now. RMM has no counterpart.
   * @throws as {@link DeviceBuffer.detach}; UnsupportedError also if the capacity is 0.
   * @example
   * ```ts
   * worker.postMessage(buffer.share());
   * ```
   */
  share(): BufferMessage {
    freeReturned(false);
    const operation = 'share a buffer';
    this.#assertUsable(operation);
    if (this.#memory.pointer === 0) throw new UnsupportedError(`cannot ${operation}: it has no memory`);
    this.#assertCanBeGiven(operation);
    return this.#giveUp(operation, (memory) => {
      const { resource, byteLength, pointer, stream, label } = memory;
      if (resource instanceof AttachedMemory && resource.isAt(pointer)) return resource.share(byteLength, stream, label);
      const { message, memory: shared } = memory.share();
      disown(this.#standIn as StandIn);
      this.#memory = shared;
      this.#standIn = own(shared);
      return message;
    });
  }

  /**
   * Frees the memory in the order of `stream`; work already queued there runs before the memory is
   * reused. Does not block by itself, unless `stream` is already disposed; it then waits for the
   * device first. A second call does nothing.
   * @throws LifetimeError if the resource cannot free the memory, for example because it is
   * disposed; the buffer is disposed even so.
   * @throws DriverError, or any other error of the resource; the buffer is then unchanged, except
   * that its host views have no bytes, and the call can be repeated.
   */
  [Symbol.dispose](): void {
    this.#free(undefined);
  }

  /**
   * The same as `[Symbol.dispose]()`.
   * @param fence as in {@link MemoryResource.deallocate}: a policy, or an event recorded on the
   * buffer's stream after the last use of the memory
   * @throws ArgumentRangeError, LifetimeError for any other fence; the buffer is then unchanged.
   */
  dispose(fence?: DeallocationFence): void {
    this.#free(fence);
  }

  #free(fence: DeallocationFence | undefined): void {
    const { stream } = this.#memory;
    // An event of a stream that has ended has completed.
    const isOver = fence instanceof Event && (this.#standIn === undefined || stream.isDisposed);
    if (fence !== undefined && !isOver) assertFence(fence, stream);
    const standIn = this.#standIn;
    if (standIn === undefined) return;
    const { byteLength } = this.#memory;
    // The resource is foreign code: if it uses the buffer meanwhile, it must find it disposed.
    this.#standIn = undefined;
    this.#memory.byteLength = 0;
    try {
      this.#memory.freeNow(fence);
    } finally {
      // If a scope that ends is already freeing the memory, leave it to the scope.
      if (this.#memory.pointer === 0 && !this.#memory.isBeingFreed) {
        disown(standIn);
      } else {
        this.#standIn = standIn;
        this.#memory.byteLength = byteLength;
      }
    }
  }

  #transfer(location: MemoryLocation, options: BufferTransferOptions): BufferTransfer<DeviceBuffer> {
    this.#assertUsable('move a buffer');
    return transfer<DeviceBuffer>(this, location, options, (resource, stream) => {
      const { alignment, label } = this;
      return new DeviceBuffer(this, { resource, stream, alignment, ...(label === undefined ? {} : { label }) });
    });
  }

  #move(capacityBytes: number, events: DeallocationEvents | undefined, operation: string): void {
    const isMoved = this.#memory.reallocate(capacityBytes, events);
    // The resource is foreign code, which may have disposed this buffer.
    if (this.isDisposed) freeSoonerOrLater(this.#memory);
    this.#assertLive(operation);
    if (isMoved && this.#memory.bytes === capacityBytes) return;
    throw changedMeanwhile(operation);
  }

  /** The start address of a copy to a host array. */
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

  #assertCanBeGiven(operation: string): void {
    this.#assertUsable(operation);
    if (this.#memory.resource instanceof ImportedMemory) {
      throw new UnsupportedError(`cannot ${operation}: its memory belongs to another process`);
    }
    if (this.#memory.resource instanceof ForeignMemoryResource) {
      throw new UnsupportedError(`cannot ${operation}: its memory was wrapped, and its owner may take it back while others use it`);
    }
  }

  /** Gives the memory up with an action, unless others use it. */
  #giveUp<Result>(operation: string, action: (memory: BufferMemory) => Result): Result {
    const memory = this.#memory;
    if (memory.isExported) {
      throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: the consumer of a DLPack tensor uses its memory`);
    }
    return memory.withoutProcesses(`cannot ${operation}: another process uses its memory`, () => action(memory));
  }

  /** Whether other workers may be reading the memory. */
  get #isShared(): boolean {
    const { resource } = this.#memory;
    return resource instanceof AttachedMemory && resource.isShared;
  }

  #assertNotShared(operation: string): void {
    if (!this.#isShared) return;
    throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: it is shared, so that other workers may be reading it`);
  }

  #assertUsable(operation: string): void {
    this.#assertLive(operation);
    assertStream(this.#memory.stream, operation);
  }
}

markCopy(DeviceBuffer);

function changedMeanwhile(operation: string): CisternError {
  return new CisternError(
    'ERR_CISTERN_INVALID_STATE',
    `cannot ${operation}: it was changed meanwhile, by a host function or by its resource`,
  );
}

/** Checks what every way to create a buffer is given, except `byteLength`; allocates nothing. */
function createMemory(
  givenResource: MemoryResource | undefined,
  stream: Stream,
  alignment: number,
  label: string | undefined,
  byteLength: number,
  capacityBytes: number,
  createdAt: string | undefined,
): BufferMemory {
  assertStream(stream, 'create a buffer');
  const resource = givenResource === undefined ? currentResource(stream.device) : givenResource;
  assertMemoryResource(resource, 'resource');
  assertBytes(capacityBytes, 'capacityBytes');
  if (capacityBytes < byteLength) {
    throw new ArgumentRangeError(`capacityBytes must be at least the length of the buffer, ${byteLength}, got ${capacityBytes}`);
  }
  assertAlignment(alignment);
  assertLabel(label);
  assertReached(resource, stream);
  return new BufferMemory(resource, stream, alignment, label, createdAt);
}

function assertLabel(label: unknown): asserts label is string | undefined {
  if (label === undefined || typeof label === 'string') return;
  throw new ArgumentTypeError(`label must be a string, got ${formatValue(label)}`);
}

/** RMM's constructor takes the stream and the resource as arguments of their own. */
function thirdArgument(found: unknown): ArgumentTypeError {
  return new ArgumentTypeError(
    `a DeviceBuffer takes a source and options, such as { stream, resource }, but also got a third argument: ${formatValue(found)}`,
  );
}

/** Checks a source, and returns a host view or device memory to copy from. */
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
    throw new ArgumentTypeError(`${name} must still have its memory, got ${formatValue(data)} whose memory was transferred or shortened`);
  }
}

/** @throws ArgumentRangeError for a stream of a device that cannot access the resource's memory. */
function assertReached(resource: MemoryResource, stream: Stream): void {
  if (resource.memoryKind === 'device' && !hasMemoryOf(resource, stream.device)) assertStreamOf(stream, resource.device);
}

function assertEvents(events: unknown): void {
  if (events !== undefined) assertOneOf(events, deallocationEventsWords, 'events');
}
