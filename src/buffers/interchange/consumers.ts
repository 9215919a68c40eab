import { freeSoonerOrLater, type OwnedMemory } from '../../collector/free-unreachable-buffers.js';
import type { Stream } from '../../driver/streams/stream.js';
import { lastingStream } from '../../lifetimes/bulk-frees.js';
import { follow } from '../transfers/ordered-copy.js';

/** Memory with an owner, and the stream that it is ordered on. */
interface OrderedMemory extends OwnedMemory {
  readonly stream: Stream;
}

/** How often the driver may refuse to order a stream before its device counts as failed. */
const maximumTries = 3;

/**
 * The consumers of tensors in one piece of memory. Its buffer's stream waits for each of them when it is
 * done. If the buffer gives the memory up before that, the last of them frees it.
 */
export class Consumers {
  #owner: OrderedMemory;
  readonly #pointer: number;
  #uses = 0;
  #isKept = false;

  constructor(owner: OrderedMemory) {
    this.#owner = owner;
    this.#pointer = owner.pointer;
  }

  get isInUse(): boolean {
    return this.#uses > 0;
  }

  begin(): void {
    this.#uses++;
  }

  /** The buffer releases the memory: it is freed after the last use. */
  keep(owner: OrderedMemory): void {
    this.#owner = owner;
    this.#isKept = true;
  }

  /**
   * Ends a use.
   * @param consumer the stream that the consumer worked on; `undefined` if there is nothing to wait
   * for
   */
  end(consumer: Stream | undefined, triesLeft = maximumTries): void {
    // Otherwise its resource took it back.
    if (this.#owner.pointer === this.#pointer && consumer !== undefined) {
      try {
        orderAfter(this.#owner.stream, consumer);
      } catch {
        if (triesLeft > 1) {
          setImmediate(() => this.end(consumer, triesLeft - 1)).unref();
          return;
        }
      }
    }
    this.#uses--;
    if (this.#uses === 0 && this.#isKept) freeSoonerOrLater(this.#owner);
  }
}

/** Orders later work of a stream after the work that is now queued on the consumer's. */
function orderAfter(stream: Stream, consumer: Stream): void {
  if (stream.isDisposed) {
    consumer.device.synchronizeSync();
    return;
  }
  const leader = lastingStream(consumer);
  // Otherwise the device was waited for.
  if (leader === consumer && leader.identity !== stream.identity) follow(stream, leader);
}
