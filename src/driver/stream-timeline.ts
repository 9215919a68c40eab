import type { Event } from './event.js';
import { mailbox, native } from './native.js';
import { check, checkBlocking } from './status.js';

/** Something that keeps memory back for a stream and must know of the stream's end. */
export interface StreamObserver {
  /** Whether it holds memory back that only an event recorded on the stream now can release to others. */
  needsSettlement(timeline: StreamTimeline): boolean;
  /**
   * The stream ends. `event`, where it is given, was recorded after everything that was queued on it; one event is shared by all.
   * No call for this timeline follows.
   */
  streamEnded(timeline: StreamTimeline, event: Event | undefined): void;
}

const live = new Map<number, StreamTimeline>();
const vacantSlots: number[] = [];
let slots = 0;

/**
 * What this environment knows of one driver stream, shared by every `Stream` object that names it: its identity, and how far it is known
 * to have run. The driver's stream id is never reused (a handle is: rapidsai/rmm#2251); `slot` is a small integer for arrays, which is given
 * to another stream only after every observer heard of this one's end.
 */
export class StreamTimeline {
  readonly id: number;
  readonly slot: number;
  readonly device: number;
  /** The native handle that every `Stream` object of this stream uses; valid until the timeline ends. */
  readonly handle: number;
  /** Whether cistern is told before the stream ends, so that events can be recorded on it as late as then. */
  readonly announcesEnd: boolean;
  /** Synchronizations of the stream that have begun. Work queued while this is n is known to have run once `synchronized` exceeds n. */
  synchronizing = 0;
  /** The number of the latest synchronization that is over. */
  synchronized = 0;
  #references = 1;
  readonly #observers = new Set<StreamObserver>();

  private constructor(id: number, device: number, handle: number, announcesEnd: boolean) {
    this.id = id;
    this.handle = handle;
    this.slot = vacantSlots.pop() ?? slots++;
    this.device = device;
    this.announcesEnd = announcesEnd;
  }

  /** The timeline of a driver stream, which takes over the native handle; each call must be matched by `release`. */
  static acquire(id: number, device: number, handle: number, announcesEnd: boolean): StreamTimeline {
    const known = live.get(id);
    if (known !== undefined) {
      native().releaseStream(handle);
      known.#references++;
      return known;
    }
    const timeline = new StreamTimeline(id, device, handle, announcesEnd);
    live.set(id, timeline);
    return timeline;
  }

  /** Begins a synchronization of every stream of a device; call the result once it is over. */
  static beginDeviceSynchronization(device: number): () => void {
    const completions = [...live.values()]
      .filter((timeline) => timeline.device === device)
      .map((timeline) => timeline.beginSynchronization());
    return () => {
      for (const complete of completions) complete();
    };
  }

  /** The native handles of the streams of a device. */
  static handlesOf(device: number): number[] {
    return [...live.values()].filter((timeline) => timeline.device === device).map((timeline) => timeline.handle);
  }

  /** Begins a synchronization; call the result once everything that was queued by now has run. */
  beginSynchronization(): () => void {
    const number = ++this.synchronizing;
    return () => {
      if (this.synchronized < number) this.synchronized = number;
    };
  }

  /** Whether everything queued on the stream has run. */
  query(): boolean {
    const complete = this.beginSynchronization();
    mailbox[0] = this.handle;
    native().queryStream();
    check('query a stream');
    if (mailbox[1] !== 1) return false;
    complete();
    return true;
  }

  /** Blocks until everything queued on the stream has run; host functions of this thread run meanwhile. */
  synchronizeSync(): void {
    const complete = this.beginSynchronization();
    checkBlocking('synchronize a stream', () => native().synchronizeStream(this.handle));
    complete();
  }

  observe(observer: StreamObserver): void {
    this.#observers.add(observer);
  }

  unobserve(observer: StreamObserver): void {
    this.#observers.delete(observer);
  }

  /** One user less. The last one ends the timeline: `record` is called if an observer needs an event, before anybody hears of the end. */
  release(record: () => Event | undefined): void {
    if (--this.#references > 0) return;
    const observers = [...this.#observers];
    const event = observers.some((observer) => observer.needsSettlement(this)) ? record() : undefined;
    live.delete(this.id);
    this.#observers.clear();
    for (const observer of observers) observer.streamEnded(this, event);
    native().releaseStream(this.handle);
    vacantSlots.push(this.slot);
  }
}
