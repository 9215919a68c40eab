/** Lets other workers and other processes use the memory of a buffer. */
import type { Stream } from '../driver/streams/stream.js';
import type { BufferMessage } from '../driver/workers/hand-over.js';

/** Options of {@link DeviceBuffer.attach}. */
export interface AttachOptions {
  /**
   * The stream that the memory is ordered on from now on. It waits for the work queued on the
   * sender's stream before the hand-over.
   */
  readonly stream: Stream;
}

/**
 * How a {@link DeviceBuffer} hands its memory over to other workers, and exports it to other
 * processes.
 */
export interface BufferSharing {
  /**
   * Hands the buffer over to another worker: returns a message for {@link DeviceBuffer.attach}, which
   * one call in any worker of the process can attach. This buffer is disposed. Does not block, and
   * copies nothing.
   *
   * The memory is returned when the other worker has disposed the buffer, or has ended. It is then
   * freed through the buffer's resource in stream order: at the next turn of this worker's event
   * loop, at the next `detach`, `share` or `discard`, or earlier if memory runs out. Until then,
   * you cannot dispose a resource that owns the memory, such as a pool
   * (`ERR_CISTERN_INVALID_STATE`), unless the message was not attached: the attempt then recalls
   * it.
   *
   * The message can be attached as long as this worker lives. If it is never attached, the memory
   * stays allocated until this worker ends or {@link DeviceBuffer.discard} is called. Memory of a run
   * of a cache leaves the run.
   *
   * Stream order: the other worker's stream waits for everything queued on this buffer's stream so
   * far. RMM has no counterpart.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed;
   * CisternError (`ERR_CISTERN_INVALID_STATE`) if it is shared.
   * @throws UnsupportedError if its memory was wrapped ({@link DeviceBuffer.wrap}).
   * @throws DriverError if the driver cannot record an event; the buffer is then unchanged, except
   * that its host views have no bytes.
   * @example
   * ```ts
   * worker.postMessage(buffer.detach());
   * ```
   */
  detach(): BufferMessage;

  /**
   * Lets other workers read the buffer: returns a message that any number of calls of {@link
   * DeviceBuffer.attach} can attach, until this buffer is disposed. From now on, no one may write to
   * the memory: `copyFrom`, `fill` and `detach` throw. This buffer keeps its contents, and its
   * `resource` is now the shared memory; dispose it like any other. The memory is freed after the
   * last of its buffers in any worker has been disposed, as for {@link DeviceBuffer.detach}. A second
   * call returns the same message. Does not block, and copies nothing.
   *
   * Stream order: the streams of other workers wait for everything queued on this buffer's stream so
   * far. RMM has no counterpart.
   * @throws as {@link DeviceBuffer.detach}; UnsupportedError also if the capacity is 0.
   * @example
   * ```ts
   * worker.postMessage(buffer.share());
   * ```
   */
  share(): BufferMessage;

  /**
   * Lets other processes of the same user use the buffer: returns a handle of 56 bytes, which you can
   * send through any channel, and pass to {@link DeviceBuffer.open} there. The handle contains no memory,
   * and this buffer is unchanged. A second call returns the same handle.
   *
   * The handle can be opened as long as this buffer has its memory: until the buffer is disposed,
   * collected, moved or handed over, or this process ends. So keep the buffer until the other process
   * has answered. Memory that other processes still use then stays allocated until the last of them has
   * disposed it, or has ended, and is then freed in stream order from this process's event loop. Until
   * then, resources that own it cannot be disposed or rewound (`ERR_CISTERN_INVALID_STATE`), and the
   * buffer can be neither released nor handed over to another worker.
   *
   * You can export device memory of a {@link CudaMemoryResource}, and of a {@link
   * CudaAsyncMemoryResource} that is `exportable`, also through pools and other adaptors on top of
   * them. CUDA shares whole driver allocations, so the other process could access everything in the
   * same allocation. The software device shares whole pages.
   *
   * Stream order: the streams of other processes wait for everything queued on this buffer's stream at
   * the latest call. The call does not wait for a stream. On the software device, the first export of
   * memory copies its contents, which takes about half a second for 1 GiB, while copies and fills
   * pause. Writes of other processes are ordered before work that is queued here after {@link
   * DeviceBuffer.importersDone}. RMM has no counterpart, except that its pools can be created with a
   * handle type.
   * @throws UnsupportedError for any other memory; the message names the resource, and what to use
   * instead.
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
  export(): Uint8Array;

  /**
   * Resolves once no other process uses the memory of an exported buffer: each has disposed its buffer
   * and run its queued work, or has ended. Work that is queued here afterwards, on any stream, is
   * ordered after theirs. Resolves immediately if no process has opened the buffer yet. Processes may
   * open it again later. If this buffer is disposed or moved meanwhile, the call still waits for the
   * users of the memory that it had.
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
  importersDone(): Promise<void>;
}
