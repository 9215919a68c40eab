import { CisternError } from '../basics/errors.js';
import { assertNotCaptured, assertStream, Stream } from '../driver/streams/stream.js';
import { discardMessage, handOverStream, type StreamMessage, takeStream } from './hand-over.js';

/**
 * Attaches a stream that another worker, or this one, has detached or shared. Disposing the
 * result, or the end of this worker, releases the stream for this worker; it is returned to the
 * driver once no worker uses it. If a worker has several objects for a shared stream, disposing
 * the last one releases it. Does not block, and does not call the driver.
 *
 * Stream order: work that this worker queues runs after the work that others have queued on the
 * stream by then. RMM has no counterpart; in C++, threads share a `cudaStream_t`.
 * @param message from {@link detachStream}, which one call can attach; or from {@link shareStream}, which any number of
 * calls can attach
 * @throws LifetimeError (`ERR_CISTERN_STALE_MESSAGE`) if the message was already attached or
 * discarded, if its sender has ended, or if the sender has disposed a shared stream;
 * (`ERR_CISTERN_FOREIGN_MESSAGE`) if no worker of this process made it. ArgumentTypeError for any
 * other value.
 * @example
 * ```ts
 * import { parentPort } from 'node:worker_threads';
 *
 * parentPort?.on('message', async (message: StreamMessage) => {
 *   using stream = attachStream(message);
 *   using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { stream });
 *   await stream.synchronize();
 * });
 * ```
 */
export function attachStream(message: StreamMessage): Stream {
  const attached = takeStream(message);
  return new Stream({ device: attached.device }, attached);
}

/**
 * Discards a message without attaching it: the stream is returned to the driver. Any worker that
 * has the message can call this. If the stream is shared, only its sender can; the message can
 * then no longer be attached. In another worker, the call does nothing.
 * @returns whether the message could be attached until now; if it is false, nothing has changed
 * @throws LifetimeError (`ERR_CISTERN_FOREIGN_MESSAGE`) if no worker of this process made the
 * message; ArgumentTypeError for any other value.
 */
export function discardStream(message: StreamMessage): boolean {
  return discardMessage(message, 'stream');
}

/**
 * Hands the stream over to another worker: returns a message for {@link attachStream}, which one
 * call in any worker of the process can attach. For this worker, the effects are those of {@link
 * Stream.dispose}; but the driver's stream lives on, and queued work still runs in its order. Does
 * not block.
 *
 * The message can be attached as long as this worker lives. If it is never attached, the stream
 * exists until this worker ends or {@link discardStream} is called. RMM has no counterpart.
 * @throws UnsupportedError for a default stream, or if the object is from {@link Stream.fromHandle}.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the stream is disposed; CisternError
 * (`ERR_CISTERN_INVALID_STATE`) if it is shared, or (`ERR_CISTERN_CAPTURING`) while it is captured; DriverError as {@link Stream.dispose}. The state is
 * unchanged then.
 * @example
 * ```ts
 * const stream = new Stream({ nonBlocking: true });
 * worker.postMessage(detachStream(stream));
 * ```
 */
export function detachStream(stream: Stream): StreamMessage {
  const operation = 'detach a stream';
  assertStream(stream, operation);
  stream.assertOwner(operation);
  assertNotCaptured(stream, operation);
  const { id } = stream;
  if (stream.identity.shared !== undefined) {
    throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: it is shared, so that other workers may be using it`);
  }
  return stream.giveUp((handle) => handOverStream(handle, id, false));
}

/**
 * Lets other workers queue work on the stream: returns a message that any number of calls of
 * {@link attachStream} can attach, until this worker has disposed the stream. The stream is
 * returned to the driver once every worker has disposed it. A second call returns the same
 * message. Does not block, and does not call the driver.
 *
 * Stream order: work runs in the order in which the workers queue it. If that order matters, they
 * must tell each other when they have queued their work. RMM has no counterpart; in C++, threads
 * share a `cudaStream_t`.
 * @throws UnsupportedError for a default stream, or if the object is from {@link Stream.fromHandle};
 * LifetimeError (`ERR_CISTERN_DISPOSED`) if the stream is disposed; CisternError (`ERR_CISTERN_CAPTURING`)
 * if it is captured.
 * @example
 * ```ts
 * const stream = new Stream({ nonBlocking: true });
 * worker.postMessage(shareStream(stream));
 * ```
 */
export function shareStream(stream: Stream): StreamMessage {
  const operation = 'share a stream';
  assertStream(stream, operation);
  stream.assertOwner(operation);
  const { identity } = stream;
  identity.shared ??= handOverStream(stream.handle, stream.id, true);
  return identity.shared as StreamMessage;
}
