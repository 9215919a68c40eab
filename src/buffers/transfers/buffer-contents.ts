/** Copying, filling, viewing and moving the contents of a buffer. */
import type { MemoryLocation } from '../../driver/memory/managed-memory.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEvents, DeviceMemory, MemoryResource } from '../../memory-resource.js';
import type { BlockingBufferTransferOptions, BufferTransfer, BufferTransferOptions } from './buffer-transfer.js';
import type { ByteRange } from './byte-range.js';
import type { HostViewOptions, TypedArrayClass } from './host-view.js';

/**
 * Bytes in host memory: a typed array, a `DataView`, a `Buffer`, or an `ArrayBuffer`, shared or
 * not.
 */
export type HostData = ArrayBufferView | ArrayBufferLike;

/** Options of the copies into a {@link DeviceBuffer}. */
export interface BufferCopyOptions {
  /**
   * The position in the buffer that is written, in bytes from its start.
   * @defaultValue 0
   */
  readonly byteOffset?: number | undefined;
  /**
   * The position in the source, in bytes from its start.
   * @defaultValue 0
   */
  readonly sourceByteOffset?: number | undefined;
  /** @internal Rejects arrays, which also have a `byteLength`. */
  readonly [Symbol.toStringTag]?: never;
  /** @internal */
  readonly [Symbol.dispose]?: never;
  /**
   * The number of bytes.
   * @defaultValue everything after `sourceByteOffset`
   */
  readonly byteLength?: number | undefined;
}

/** Options of {@link DeviceBuffer.recast}. */
export interface RecastOptions {
  /**
   * The stream of the buffer from now on; it must be able to use the new memory. The streams wait
   * for each other as far as the copy requires.
   * @defaultValue the buffer's stream
   */
  readonly stream?: Stream | undefined;
  /** The policy for the free of the old memory, as in {@link DeviceBuffer.resize}. */
  readonly events?: DeallocationEvents | undefined;
}

/** Operations of a buffer, a {@link DeviceBuffer}, on its contents. */
export interface BufferContents<Buffer> {
  /**
   * Queues a copy into this buffer. You may change host data as soon as this returns. Between
   * buffers on two streams, each stream waits for the other, so neither needs further
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
  copyFrom(source: HostData | DeviceMemory, options?: BufferCopyOptions): void;

  /**
   * As {@link DeviceBuffer.copyFrom}, but blocks until everything queued on the stream of this
   * buffer has run.
   */
  copyFromSync(source: HostData | DeviceMemory, options?: BufferCopyOptions): void;

  /** The same as `destination.copyFrom(this, options)`. */
  copyTo(destination: Buffer, options?: BufferCopyOptions): void;

  /**
   * Queues a copy of the contents now, in stream order, and resolves with the copy once it has run.
   * You may write or dispose the buffer meanwhile. Does not block the event loop. If you give a
   * host array, it is filled with the contents from `byteOffset` on, in one piece when the promise
   * resolves.
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
  /** Fills a host array with a copy of the contents, as above, and resolves with the array. */
  toHost<T extends ArrayBufferView>(destination: T, options?: Omit<Partial<ByteRange>, 'byteLength'>): Promise<T>;

  /**
   * Fills a host array with the contents from `byteOffset` on, in stream order, and blocks until
   * the copy is done. Without an array, returns a new one with everything up to the end.
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
  /** Fills a host array, as above, and returns it. */
  toHostSync<T extends ArrayBufferView>(destination: T, options?: Omit<Partial<ByteRange>, 'byteLength'>): T;

  /**
   * Sets every byte of a range, by default the whole buffer, in stream order. Does not block.
   * @param value an integer from 0 to 255
   * @throws ArgumentTypeError, ArgumentRangeError for any other value, or a range outside the
   * buffer.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed.
   * @throws DriverError if the driver refuses.
   */
  fill(value: number, range?: Partial<ByteRange>): void;

  /**
   * Brings the contents to a device or the host.
   *
   * Managed memory is moved: the result is this buffer, with the same `ptr`, and a prefetch is queued
   * in stream order. So is ordinary host memory, if the device uses the host's page tables, as on
   * Grace Hopper. Memory that is already at the location stays as it is. Any other memory is copied,
   * in the order of both streams, to a new buffer with memory there. `isCopy` is true only in this
   * case; you must then dispose the new buffer.
   *
   * For the host, this blocks until the contents can be read, unless `nonBlocking` is set. Memory
   * that was moved stays usable on every device and stream that could use it before; using it moves
   * it back. On a device without concurrent managed access, managed memory moves when it is used, so
   * only the wait for the host remains: for everything queued on each such device that this
   * environment uses. The host may use the contents until more work is queued there.
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
  to(location: MemoryLocation, options?: BlockingBufferTransferOptions): BufferTransfer<Buffer>;

  /**
   * The same as {@link DeviceBuffer.to}, but resolves once the contents are there, also for a
   * device. Everything is queued before this returns, and the event loop goes on. If you dispose the
   * buffer meanwhile, the result is that disposed buffer.
   */
  toAsync(location: MemoryLocation, options?: BufferTransferOptions): Promise<BufferTransfer<Buffer>>;

  /**
   * Moves the contents to memory of another resource, in stream order: one allocation, one copy, one
   * free. The buffer, its length, capacity, alignment and label stay the same; `ptr` and `resource`
   * change. So you can profile in managed memory, and then run without it. If the buffer is already
   * in that resource, only the stream changes, if you give one. Does not block by itself.
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
  recast(resource: MemoryResource, options?: RecastOptions): void;

  /**
   * A typed array over the bytes of the buffer, without a copy. The memory must be managed, pinned
   * or ordinary host memory. Writes to it reach the device's work that is queued afterwards.
   *
   * Only this call waits for, or refuses, the work queued on the buffer's stream. If you queue more
   * work, make the host wait for the stream again before you use the array, for example by another
   * call of this method. All views of one buffer share one `ArrayBuffer`; a buffer longer than an
   * array can be (4 GiB before Node 22) has several. It is detached before the memory is freed or
   * moves, so that later uses find no bytes; until then a view keeps the buffer alive. If the
   * resource then refuses the free, the buffer keeps its memory, and another call of this method
   * makes a new array. Do not transfer the array, because nothing would detach it then.
   *
   * An asynchronous operation on a view, such as `fs.write`, uses the memory by its address until it
   * completes; detaching the array does not stop it. Wait for the operation before the buffer is
   * disposed, resized, recast or released, and before its resource ends. Otherwise it reads or
   * writes memory that may belong to another buffer.
   *
   * RMM has no counterpart.
   * @param type the class of the array, such as `Float32Array`
   * @throws UnsupportedError if the host cannot use the memory; if the device has no concurrent
   * managed access; or if the runtime does not allow arrays over foreign memory, as with V8's
   * sandbox, or only shorter ones.
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
  hostView<T extends ArrayBufferView>(type: TypedArrayClass<T>, options?: HostViewOptions): T;
}
