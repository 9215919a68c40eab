/** How other workers and other processes get the memory of a buffer. */
import type { Stream } from '../../driver/streams/stream.js';
import type { BufferMessage } from '../../driver/workers/hand-over.js';

/** Options of {@link DeviceBuffer.attach}. */
export interface AttachOptions {
  /**
   * The stream that the memory is ordered on from now on. It waits for what was queued on the giver's
   * stream before the buffer was given.
   */
  readonly stream: Stream;
}

/** How a {@link DeviceBuffer} gives its memory to other workers and other processes. */
export interface BufferSharing {
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
  detach(): BufferMessage;

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
  share(): BufferMessage;

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
  export(): Uint8Array;

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
  importersDone(): Promise<void>;
}
