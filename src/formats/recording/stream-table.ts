import type { StreamIdentity, StreamObserver } from '../../driver/stream-identity.js';

/** Stands for streams without a number of their own. */
export const moreStreams = '(more streams)';

/**
 * Numbers for streams, from 0 on. When all are in use, the numbers of ended streams are reused, the
 * stream that ended first going first. If none has ended, further streams share the last number.
 */
export class StreamTable implements StreamObserver {
  readonly #maximum: number;
  readonly #define: (index: number, handle: string) => void;
  readonly #identities = new Map<StreamIdentity, number>();
  /** The number of each identity by its slot, or -1. */
  readonly #indexes: number[] = [];
  /** The numbers of ended streams, in the order in which they ended. */
  readonly #vacant = new Set<number>();
  #count = 0;

  /**
   * @param maximum the last number
   * @param define called with each number before each use for another stream
   */
  constructor(maximum: number, define: (index: number, handle: string) => void) {
    this.#maximum = maximum;
    this.#define = define;
  }

  indexOf(identity: StreamIdentity): number {
    const index = this.#indexes[identity.slot] ?? -1;
    return index >= 0 ? index : this.#add(identity);
  }

  clear(): void {
    for (const identity of this.#identities.keys()) identity.unobserve(this);
    this.#identities.clear();
    this.#indexes.length = 0;
  }

  needsLastEvent(): boolean {
    return false;
  }

  streamEnded(identity: StreamIdentity): void {
    const index = this.#identities.get(identity);
    this.#identities.delete(identity);
    this.#indexes[identity.slot] = -1;
    if (index !== undefined && index !== this.#maximum) this.#vacant.add(index);
  }

  #add(identity: StreamIdentity): number {
    const handle = `0x${identity.nativeHandle.toString(16)}`;
    const index = this.#nextIndex();
    this.#identities.set(identity, index);
    while (this.#indexes.length <= identity.slot) this.#indexes.push(-1);
    this.#indexes[identity.slot] = index;
    identity.observe(this);
    if (index < this.#maximum) this.#define(index, handle);
    return index;
  }

  #nextIndex(): number {
    if (this.#count < this.#maximum) return this.#count++;
    for (const index of this.#vacant) {
      this.#vacant.delete(index);
      return index;
    }
    if (this.#count === this.#maximum) this.#define(this.#count++, moreStreams);
    return this.#maximum;
  }
}
