import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { Event } from '../driver/streams/event.js';
import { discardMessage, type EventMessage, handOverEvent, takeEvent } from './hand-over.js';

/**
 * Attaches an event that another worker, or this one, has detached or shared, with its latest
 * recording. It is returned to the driver once the last worker that uses it has disposed it, or
 * ended. Does not block, and does not call the driver.
 *
 * Resources do not accept the event as a fence, because they do not know on which stream it was
 * recorded. RMM has no counterpart; in C++, threads share a `cudaEvent_t`.
 * @param message from {@link detachEvent}, which one call can attach; or from {@link shareEvent}, which any number of
 * calls can attach
 * @throws as {@link attachStream}.
 * @example
 * ```ts
 * import { parentPort } from 'node:worker_threads';
 *
 * parentPort?.on('message', (message: EventMessage) => {
 *   using event = attachEvent(message);
 *   consumer.wait(event); // for what another worker had queued
 * });
 * ```
 */
export function attachEvent(message: EventMessage): Event {
  const attached = takeEvent(message);
  return new Event({ device: attached.device }, attached);
}

/** Discards a message without attaching it, as {@link discardStream} does. */
export function discardEvent(message: EventMessage): boolean {
  return discardMessage(message, 'event');
}

/**
 * Hands the event over to another worker: returns a message for {@link attachEvent}, which one call
 * in any worker of the process can attach. The object is disposed; streams that wait for the event go
 * on waiting. The receiver may record it again, and hand it back. Does not block, and does not call
 * the driver.
 *
 * The message can be attached as long as this worker lives. If it is never attached, the event
 * exists until this worker ends or {@link discardEvent} is called. RMM has no counterpart.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the event is disposed; CisternError
 * (`ERR_CISTERN_INVALID_STATE`) if it is shared, or while a promise of {@link Event.synchronize} is
 * pending, or (`ERR_CISTERN_CAPTURING`) if it was last recorded in a capture. The state is unchanged then.
 * @example
 * ```ts
 * const event = new Event();
 * event.record(producer);
 * worker.postMessage(detachEvent(event));
 * ```
 */
export function detachEvent(event: Event): EventMessage {
  const operation = 'detach an event';
  assertEvent(event, operation);
  event.assertNotShared(operation);
  return event.giveUp((handle) => handOverEvent(handle, false));
}

/**
 * Lets other workers wait for the event: returns a message that any number of calls of {@link
 * attachEvent} can attach, until the object is disposed. From now on the event keeps its
 * recording: no worker can record or detach it. It is returned to the driver once every worker has
 * disposed it. A second call returns the same message. Does not block, and does not call the
 * driver. RMM has no counterpart; in C++, threads share a `cudaEvent_t`.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the event is disposed; CisternError
 * (`ERR_CISTERN_CAPTURING`) if it was last recorded in a capture.
 * @example
 * ```ts
 * using event = new Event();
 * event.record(producer);
 * worker.postMessage(shareEvent(event));
 * ```
 */
export function shareEvent(event: Event): EventMessage {
  assertEvent(event, 'share an event');
  event.shared ??= handOverEvent(event.handle, true);
  return event.shared as EventMessage;
}

function assertEvent(event: Event, operation: string): void {
  if (!(event instanceof Event)) throw new ArgumentTypeError(`event must be an Event, got ${formatValue(event)}`);
  event.assertLive(operation);
}
