import { captureIdOf } from '../../driver/graphs/capture.js';
import { GraphUse, retainInCapture } from '../../driver/graphs/user-objects.js';
import type { Stream } from '../../driver/streams/stream.js';
import { capturedHandles, isAnythingCaptured } from '../../driver/streams/stream-identity.js';

/**
 * The graphs that may have an address: those into which streams were captured while somebody could read it. The driver tells
 * when the last executable graph and launch of each have ended.
 */
export class AddressUses {
  /** The driver's ids of the captures. */
  readonly #captures = new Set<number>();
  #isForEver = false;
  readonly #ended: () => void;

  /** @param ended called when no graph has the address any more. Must not throw. */
  constructor(ended: () => void) {
    this.#ended = ended;
  }

  /** Whether no graph has the address. */
  get isEmpty(): boolean {
    return !this.#isForEver && this.#captures.size === 0;
  }

  /**
   * Somebody may use the address from now on: on this stream, or on any that is captured.
   * @throws DriverError if the driver does not tell which graph it is, or when that ends: nobody may use the address then
   */
  note(stream: Stream): void {
    if (isAnythingCaptured) for (const handle of capturedHandles()) this.#noteCapture(handle);
    if (!stream.isDisposed) this.#noteCapture(stream.handle);
  }

  /** The same for somebody who may use the address already. Does not throw. */
  noteUser(stream: Stream): void {
    try {
      this.note(stream);
    } catch {
      this.#isForEver = true;
    }
  }

  #noteCapture(handle: number): void {
    // An invalid capture has no graph.
    const id = captureIdOf(handle);
    if (id === 0 || this.#captures.has(id)) return;
    const use = new GraphUse(() => {
      this.#captures.delete(id);
      if (this.isEmpty) this.#ended();
    });
    retainInCapture(handle, use);
    this.#captures.add(id);
  }
}
