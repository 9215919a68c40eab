/**
 * The order of captured work, as far as this environment determines it: which stream of a capture comes
 * after which point of another one.
 *
 * Every stream has an epoch, which ends whenever an event is recorded on it. The clock of a stream has, for
 * each stream, the epochs that are over for it: it is ordered after everything that happened in an earlier
 * epoch of that stream.
 *
 *     stream 0   free a   record e   free b          epochs 0 | 1
 *     stream 1            wait e     alloc c         clock [1, ·]: c comes after a, not after b
 *
 * `seen[s][t] > epoch` says that stream `s` comes after what happened on stream `t` in that epoch. A wait
 * takes the greater of each two numbers; a stream that joins takes the clock of the event. The events and
 * waits of cistern count; edges that another library adds by its own events can only add to the order.
 *
 * Cost: a record and a wait take time in proportion to the streams of the capture; a question is one
 * comparison.
 */
import type { EventObserver, StreamIdentity } from '../driver/streams/stream-identity.js';
import { none } from '../suballocation/blocks.js';

/** Is notified of changes in the order of a capture. */
export interface CaptureObserver {
  /** The stream with this number has ended an epoch, whose number is given. */
  epochEnded(stream: number, epoch: number): void;
}

export class CaptureOrder implements EventObserver {
  /** By stream of the capture: how many of its epochs are over. */
  readonly #epochs: number[] = [];
  /** By two streams: how many epochs of the second the first comes after; none if there is no number. */
  readonly #seen: number[][] = [];
  readonly #numbers = new Map<StreamIdentity, number>();
  /** By the number of a recording: what comes before it. */
  readonly #recorded = new Map<number, readonly number[]>();
  readonly #observer: CaptureObserver;

  constructor(origin: StreamIdentity, observer: CaptureObserver) {
    this.#observer = observer;
    this.#add(origin, []);
  }

  /** The number of a stream in the capture, or -1 if it has not joined. */
  numberOf(identity: StreamIdentity): number {
    return this.#numbers.get(identity) ?? none;
  }

  /**
   * A stream has joined because of work that another library has queued. It comes after some work of the
   * capture, but it is unknown which, so it counts as after nothing. Returns its number.
   */
  joinedUnseen(identity: StreamIdentity): number {
    this.#add(identity, []);
    return this.numberOf(identity);
  }

  /** The current epoch of a stream. */
  epochOf(stream: number): number {
    return this.#epochs[stream] as number;
  }

  /**
   * Whether work that is queued on a stream now comes after what happened on another one in an
   * epoch.
   */
  isAfter(stream: number, other: number, epoch: number): boolean {
    return stream === other || ((this.#seen[stream] as number[])[other] ?? 0) > epoch;
  }

  eventRecorded(identity: StreamIdentity, version: number): void {
    const stream = this.numberOf(identity);
    if (stream === none) return;
    const epoch = this.#epochs[stream] as number;
    this.#epochs[stream] = epoch + 1;
    const clock = [...(this.#seen[stream] as number[])];
    clock[stream] = epoch + 1;
    this.#recorded.set(version, clock);
    this.#observer.epochEnded(stream, epoch);
  }

  eventAwaited(identity: StreamIdentity, version: number): void {
    const clock = this.#recorded.get(version);
    if (clock === undefined) return;
    const stream = this.numberOf(identity);
    if (stream === none) {
      this.#add(identity, clock);
      return;
    }
    const seen = this.#seen[stream] as number[];
    for (let other = 0; other < clock.length; other++) seen[other] = Math.max(seen[other] ?? 0, clock[other] ?? 0);
  }

  #add(identity: StreamIdentity, clock: readonly number[]): void {
    this.#numbers.set(identity, this.#epochs.length);
    this.#epochs.push(0);
    this.#seen.push([...clock]);
  }
}
