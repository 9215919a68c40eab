import { captureStatusOf } from '../../driver/graphs/capture.js';
import { copy } from '../../driver/memory/transfer.js';
import { Event } from '../../driver/streams/event.js';
import { assertNotCaptured, assertStream, type Stream } from '../../driver/streams/stream.js';

/** Memory and the stream it is ordered on. */
export interface OrderedPointer {
  readonly pointer: number;
  readonly stream: Stream;
}

/**
 * Copies between memory ordered on two streams, which may be the same. The copy runs after what is
 * queued on either stream, and before what either stream queues later. Does not block, unless the
 * driver refuses the event that makes the source wait for the copy.
 */
export function copyOrdered(destination: OrderedPointer, source: OrderedPointer, bytes: number): void {
  assertStream(source.stream, 'copy');
  assertStream(destination.stream, 'copy');
  const separate = source.stream.identity !== destination.stream.identity;
  if (separate) follow(destination.stream, source.stream);
  copy(destination.pointer, source.pointer, bytes, destination.stream);
  if (!separate) return;
  // The source may be written, or freed, on its own stream next.
  try {
    follow(source.stream, destination.stream);
  } catch {
    // The copy is queued even so, and must have read the source before this returns.
    destination.stream.synchronizeSync();
  }
}

/**
 * Makes a stream wait for everything queued on another. Does not block. A stream that is not captured does not
 * join a capture by that: whoever captures would not know that it has to be waited for.
 */
export function follow(follower: Stream, leader: Stream): void {
  const operation = 'make a stream wait for another';
  assertStream(follower, operation);
  if (captureStatusOf(follower.handle) === 'none') assertNotCaptured(leader, operation);
  const event = new Event({ device: leader.device });
  try {
    event.record(leader);
    follower.wait(event);
  } finally {
    try {
      event.dispose();
    } catch {} // It is destroyed when the event is collected.
  }
}
