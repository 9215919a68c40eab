import { Device } from '../driver/device.js';
import type { Event } from '../driver/streams/event.js';
import type { Stream } from '../driver/streams/stream.js';
import type { StreamIdentity, StreamObserver } from '../driver/streams/stream-identity.js';
import type { DeallocationEvents } from '../memory-resource.js';
import { StreamLane } from '../stream-ordering/stream-lane.js';

/**
 * Orders uses of memory one after the other, on any streams: each comes after the one before, so only
 * the last must be remembered.
 *
 *     use on stream 1 ── event ──► use on stream 2 ── event ──► …
 *
 * The event is recorded right after each use (`'eager'`), when another stream comes (`'deferred'`), or
 * never (`'off'`: the host waits for the stream instead).
 */
export class LaunchOrder implements StreamObserver {
  readonly #policy: DeallocationEvents;
  /** The stream of the last use, if it has not ended. */
  #last: StreamLane | undefined;
  /** Comes after the last use, whose stream has ended. */
  #ended: Event | undefined;

  constructor(policy: DeallocationEvents) {
    this.#policy = policy;
  }

  /** Makes a stream wait for the last use. Blocks under `'off'` if that was on another stream, which is busy. */
  order(stream: Stream): void {
    const last = this.#last;
    if (last !== undefined && last.identity !== stream.identity) {
      if (this.#policy === 'off' && !last.identity.isIdle()) last.identity.synchronizeSync();
      last.order(stream);
    }
    if (this.#ended !== undefined) stream.identity.wait(this.#ended);
  }

  /**
   * Notes a use of the memory on a stream, after `order`. Does not throw: an event that is refused is recorded
   * later.
   */
  used(stream: Stream): void {
    const { identity } = stream;
    if (this.#last?.identity !== identity) this.#follow(identity);
    const last = this.#last as StreamLane;
    last.freeUnrecorded();
    if (!last.recordsFrees) return;
    try {
      last.record();
    } catch {}
  }

  needsLastEvent(identity: StreamIdentity): boolean {
    return this.#last?.identity === identity && this.#last.needsLastEvent;
  }

  streamEnded(identity: StreamIdentity, event: Event | undefined): void {
    if (this.#last?.identity !== identity) return;
    this.#ended = this.#last.afterEnd(event);
    this.#last = undefined;
  }

  [Symbol.dispose](): void {
    this.#last?.identity.unobserve(this);
    this.#last = undefined;
  }

  /** From now on another stream has the last use. */
  #follow(identity: StreamIdentity): void {
    this.#last?.identity.unobserve(this);
    this.#last = new StreamLane(0, identity, Device.get(identity.device), false, this.#policy === 'eager');
    this.#ended = undefined;
    identity.observe(this);
  }
}
