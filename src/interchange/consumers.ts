import type { BufferMemory } from '../buffers/buffer-memory.js';
import type { OrderedMemory, OutsideUse } from '../buffers/memory-uses.js';
import { follow } from '../buffers/transfers/ordered-copy.js';
import { freeSoonerOrLater } from '../collector/free-unreachable-buffers.js';
import type { Stream } from '../driver/streams/stream.js';
import { lastingStream } from '../ownership/bulk-frees.js';

/** How often the driver may refuse to order a stream before its device counts as failed. */
const maximumTries = 3;

/**
 * The consumers of tensors in one piece of memory. Its buffer's stream waits for each of them when it is
 * done. If the buffer gives the memory up before that, the last of them frees it. If its resource takes it
 * back, they have lost it.
 */
export class Consumers implements OutsideUse {
  readonly description = 'the consumer of a DLPack tensor uses';
  readonly holdsFromResource = false;
  #owner: OrderedMemory;
  readonly #pointer: number;
  #uses = 0;
  #isLeft = false;

  constructor(owner: OrderedMemory) {
    this.#owner = owner;
    this.#pointer = owner.pointer;
  }

  get isOpen(): boolean {
    return this.#uses > 0;
  }

  /** Begins a use of a buffer's memory: until `endUse`, the memory is not freed. */
  static begin(memory: BufferMemory): Consumers {
    const consumers = memory.outsideUse(Consumers) ?? memory.addOutsideUse(new Consumers(memory));
    if (consumers.#uses++ === 0) consumers.#owner = memory;
    return consumers;
  }

  closeIfUnused(): boolean {
    return !this.isOpen;
  }

  close(): boolean {
    return !this.isOpen;
  }

  reopen(): void {}

  end(): void {}

  leave(owner: OrderedMemory): void {
    this.#owner = owner;
    this.#isLeft = true;
  }

  /**
   * Ends a use.
   * @param consumer the stream that the consumer worked on; `undefined` if there is nothing to wait
   * for
   */
  endUse(consumer: Stream | undefined, triesLeft = maximumTries): void {
    // Otherwise its resource took it back.
    if (this.#owner.pointer === this.#pointer && consumer !== undefined) {
      try {
        orderAfter(this.#owner.stream, consumer);
      } catch {
        if (triesLeft > 1) {
          setImmediate(() => this.endUse(consumer, triesLeft - 1)).unref();
          return;
        }
      }
    }
    this.#uses--;
    if (this.#uses === 0 && this.#isLeft) freeSoonerOrLater(this.#owner);
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
