import type { StreamIdentity, StreamObserver } from '../driver/streams/stream-identity.js';

/** The name for events without a stream. */
const noStream = 'host';

/** The name for streams without their own number. */
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
  /**
   * The number of each device and handle, the latest if the driver reused the handle; and the reverse.
   * For work of streams that may have ended.
   */
  readonly #byHandle = new Map<string, number>();
  readonly #handles: string[] = [];
  /** The numbers that were given to a handle before its identity was seen. */
  readonly #unidentified = new Set<number>();
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

  /** The number of a stream by its driver handle; 0 stands for none. The stream may have ended. */
  indexOfHandle(device: number, handle: number): number {
    const index = this.#byHandle.get(keyOf(device, handle)) ?? this.#nextIndex();
    if (index < this.#maximum && this.#handles[index] !== keyOf(device, handle)) {
      this.#unidentified.add(index);
      this.#name(index, device, handle);
    }
    return index;
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
    const handle = identity.nativeHandle;
    const known = this.#byHandle.get(keyOf(identity.device, handle));
    const isKnown = known !== undefined && this.#unidentified.delete(known);
    const index = isKnown ? known : this.#nextIndex();
    this.#identities.set(identity, index);
    while (this.#indexes.length <= identity.slot) this.#indexes.push(-1);
    this.#indexes[identity.slot] = index;
    identity.observe(this);
    if (index < this.#maximum && !isKnown) this.#name(index, identity.device, handle);
    return index;
  }

  #name(index: number, device: number, handle: number): void {
    const before = this.#handles[index];
    if (before !== undefined && this.#byHandle.get(before) === index) this.#byHandle.delete(before);
    const key = keyOf(device, handle);
    this.#handles[index] = key;
    this.#byHandle.set(key, index);
    this.#define(index, handle === 0 ? noStream : `0x${handle.toString(16)}`);
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

function keyOf(device: number, handle: number): string {
  return `${device} ${handle}`;
}
