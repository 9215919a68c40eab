import type { StreamObserver, StreamTimeline } from '../../driver/stream-timeline.js';

/** What stands for streams that there is no number left for. */
export const moreStreams = '(more streams)';

/**
 * Numbers for streams, from 0 on. When all are given, those of streams that have ended are given again, the one that ended first before the
 * others. Where none has ended, further streams have the last number together.
 */
export class StreamTable implements StreamObserver {
  readonly #maximum: number;
  readonly #define: (index: number, handle: string) => void;
  readonly #timelines = new Map<StreamTimeline, number>();
  /** By slot of a timeline: its number, or -1. */
  readonly #indexes: number[] = [];
  /** The numbers of streams that have ended, in that order. */
  readonly #vacant = new Set<number>();
  #count = 0;

  /**
   * @param maximum the last number
   * @param define called with each number before it is given, also again
   */
  constructor(maximum: number, define: (index: number, handle: string) => void) {
    this.#maximum = maximum;
    this.#define = define;
  }

  /** The number of a stream. */
  indexOf(timeline: StreamTimeline): number {
    const index = this.#indexes[timeline.slot] ?? -1;
    return index >= 0 ? index : this.#add(timeline);
  }

  /** Ends the use of the table. */
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
