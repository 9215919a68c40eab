import { UnsupportedError } from '../basics/errors.js';
import { type BufferMemory, memoryOf } from '../buffers/buffer-memory.js';
import { DeviceBuffer } from '../buffers/device-buffer.js';
import { type AttachOptions, attachedMemory } from './attach-from-worker.js';
import { AttachedMemory, shareAttached } from './attached-memory.js';
import { giveToWorker } from './give-to-workers.js';
import { type BufferMessage, checkedMessage, discardMessage } from './hand-over.js';
import { freeReturned } from './take-returned-memory.js';

/**
 * Hands the buffer over to another worker: returns a message for {@link attachBuffer}, which
 * one call in any worker of the process can attach. The buffer is disposed. Does not block, and
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
 * stays allocated until this worker ends or {@link discardBuffer} is called. Memory of a run
 * of a cache leaves the run.
 *
 * Stream order: the other worker's stream waits for everything queued on the buffer's stream so
 * far. RMM has no counterpart.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed;
 * CisternError (`ERR_CISTERN_INVALID_STATE`) if it is shared.
 * @throws UnsupportedError if its memory was wrapped ({@link wrapMemory}).
 * @throws DriverError if the driver cannot record an event; the buffer is then unchanged, except
 * that its host views have no bytes.
 * @example
 * ```ts
 * worker.postMessage(detachBuffer(buffer));
 * ```
 */
export function detachBuffer(buffer: DeviceBuffer): BufferMessage {
  const operation = 'detach a buffer';
  const memory = givable(buffer, operation);
  memory.assertNotShared(operation);
  const message = memory.giveUp(operation, () =>
    memory.origin instanceof AttachedMemory ? memory.origin.give(memory) : giveToWorker(memory, false).message,
  );
  DeviceBuffer.end(buffer);
  return message;
}

/**
 * Lets other workers read the buffer: returns a message that any number of calls of {@link
 * attachBuffer} can attach, until the buffer is disposed. From now on, no one may write to
 * the memory: `copyFrom`, `fill` and `detach` throw. The buffer keeps its contents, and its
 * `resource` is now the shared memory; dispose it like any other. The memory is freed after the
 * last of its buffers in any worker has been disposed, as for {@link detachBuffer}. A second
 * call returns the same message. Does not block, and copies nothing.
 *
 * Stream order: the streams of other workers wait for everything queued on the buffer's stream so
 * far. RMM has no counterpart.
 * @throws as {@link detachBuffer}; UnsupportedError also if the capacity is 0.
 * @example
 * ```ts
 * worker.postMessage(shareBuffer(buffer));
 * ```
 */
export function shareBuffer(buffer: DeviceBuffer): BufferMessage {
  const operation = 'share a buffer';
  const memory = givable(buffer, operation);
  if (memory.pointer === 0) throw new UnsupportedError(`cannot ${operation}: it has no memory`);
  const shared = memory.giveUp(operation, () =>
    memory.origin instanceof AttachedMemory ? memory.origin.share(memory) : shareAttached(memory),
  );
  if (shared.memory !== memory) DeviceBuffer.replaceMemory(buffer, shared.memory);
  return shared.message;
}

/**
 * Attaches a buffer that {@link detachBuffer} or {@link shareBuffer} handed over, in
 * this or any other worker of the process. It has the same `ptr` as in the sender. When the buffer
 * is disposed or collected, or this worker ends, its memory is returned: the sender frees it,
 * after everything queued on the buffer's stream. If the sender has ended by then, the memory is
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
 *   using buffer = attachBuffer(message, { stream });
 *   console.log(await buffer.toHost());
 * });
 * ```
 */
export function attachBuffer(message: BufferMessage, options: AttachOptions): DeviceBuffer {
  return DeviceBuffer.of(attachedMemory(message, options, attachBuffer));
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
 * const message = detachBuffer(buffer);
 * worker.once('exit', () => discardBuffer(message));
 * worker.postMessage(message);
 * ```
 */
export function discardBuffer(message: BufferMessage): boolean {
  const wasOpen = discardMessage(checkedMessage(message), 'buffer');
  freeReturned(false);
  return wasOpen;
}

/** The memory of a buffer. @throws UnsupportedError if other workers cannot get it. */
function givable(buffer: DeviceBuffer, operation: string): BufferMemory {
  DeviceBuffer.assert(buffer, 'buffer');
  freeReturned(false);
  const memory = buffer[memoryOf];
  memory.assertUsable(operation);
  const { notToWorkers } = memory.origin;
  if (notToWorkers !== undefined) throw new UnsupportedError(`cannot ${operation}: ${notToWorkers}`);
  return memory;
}
