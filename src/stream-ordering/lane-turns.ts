import { StreamIdentity } from '../driver/streams/stream-identity.js';
import type { StreamLane } from './stream-lane.js';

/**
 * The lanes that other streams cannot take from, because each still held its memory back when it
 * was last checked. They are checked in turns, a few at a time, so that none is left out.
 *
 *     lanes   a  b  c  d  e
 *                ▲     ▲
 *                └─────┴ current: b and c were passed, and are still held back
 */
export class LaneTurns {
  readonly #lanes: StreamLane[] = [];
  #current = 0;
  /** How many consecutive lanes before the current one were passed since memory was last released. */
  #passed = 0;
  #releases = 0;

  add(lane: StreamLane): void {
    this.#lanes.push(lane);
  }

  get count(): number {
    return this.#lanes.length;
  }

  /** How many lanes may have changed since they were passed. */
  get unknownCount(): number {
    if (this.#releases !== StreamIdentity.releases) this.#passed = 0;
    this.#releases = StreamIdentity.releases;
    return this.#lanes.length - this.#passed;
  }

  get current(): StreamLane {
    if (this.#current >= this.#lanes.length) this.#current = 0;
    return this.#lanes[this.#current] as StreamLane;
  }

  /** Starts again with the first lane. */
  restart(): void {
    this.#current = this.#passed = 0;
  }

  /** The current lane is still held back. */
  pass(): void {
    this.#current++;
    this.#passed++;
  }

  /** Takes the current lane out; the last one takes its place. */
  remove(): void {
    this.#lanes[this.#current] = this.#lanes[this.#lanes.length - 1] as StreamLane;
    this.#lanes.pop();
    this.#passed = 0;
  }
}
