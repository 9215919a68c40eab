import type { StreamObserver, StreamTimeline } from '../../driver/stream-timeline.js';

/** Stands for streams without a number of their own. */
export const moreStreams = '(more streams)';

/**
 * Numbers for streams, from 0 on. When all are in use, the numbers of ended streams are reused, the
 * stream that ended first going first. If none has ended, further streams share the last number.
 */
export class StreamTable implements StreamObserver {
  readonly #maximum: number;
  readonly #define: (index: number, handle: string) => void;
  readonly #timelines = new Map<StreamTimeline, number>();
  /** The number of each timeline by its slot, or -1. */
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

  indexOf(timeline: StreamTimeline): number {
    const index = this.#indexes[timeline.slot] ?? -1;
    return index >= 0 ? index : this.#add(timeline);
  }

  clear(): void {
    for (const timeline of this.#timelines.keys()) timeline.unobserve(this);
    this.#timelines.clear();
    this.#indexes.length = 0;
  }

  needsLastEvent(): boolean {
    return false;
  }

  streamEnded(timeline: StreamTimeline): void {
    const index = this.#timelines.get(timeline);
    this.#timelines.delete(timeline);
    this.#indexes[timeline.slot] = -1;
    if (index !== undefined && index !== this.#maximum) this.#vacant.add(index);
  }

  #add(timeline: StreamTimeline): number {
    const handle = `0x${timeline.nativeHandle.toString(16)}`;
    const index = this.#nextIndex();
    this.#timelines.set(timeline, index);
    while (this.#indexes.length <= timeline.slot) this.#indexes.push(-1);
    this.#indexes[timeline.slot] = index;
    timeline.observe(this);
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
