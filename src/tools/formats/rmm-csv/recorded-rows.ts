import { nanosecondsPerDay } from '../../../files/csv-rows.js';
import { type EventKind, type EventSink, emptyEvent, maximumNames } from '../event-columns.js';
import type { RecordedNames } from '../recorded-run.js';

/**
 * Threads that share a log may write slightly out of order; a time that goes back further than this
 * is on the next day.
 */
const longestStepBack = 60e9;

/** Turns the rows of an RMM log into events. */
export class RecordedRows {
  readonly #names: RecordedNames;
  readonly #events: EventSink;
  readonly #threadIndexes = new Map<number, number>();
  #lastThread = -1;
  #lastThreadIndex = 0;
  /**
   * By handle, or by its complement if written without `0x`: the two are kept apart, to be written
   * again unchanged.
   */
  readonly #streamIndexes = new Map<number, number>();
  #lastStream = Number.NaN;
  #lastStreamIndex = 0;
  /** Nanoseconds from the first midnight to the one before the last row. */
  #day = 0;
  #lastTime = 0;
  /** The last event. */
  readonly #event = emptyEvent();

  /** @param names receives the names that the events refer to */
  constructor(names: RecordedNames, events: EventSink) {
    this.#names = names;
    this.#events = events;
    names.layers.push({ name: 'rmm', upstream: undefined });
  }

  /**
   * Adds a row. Returns its fault, if any, in which case nothing was added.
   * @param kind an event kind that rows can have
   * @param timeOfDay in nanoseconds, or -1 if times are not read
   * @param isPrefixed whether the stream is written with `0x`
   */
  append(
    kind: EventKind,
    thread: number,
    first: number,
    second: number,
    stream: number,
    timeOfDay: number,
    isPrefixed: boolean,
  ): string | undefined {
    const spelledStream = isPrefixed ? stream : ~0 - stream;
    if (thread !== this.#lastThread && !this.#enterThread(thread)) return `exceeds the maximum of ${maximumNames} threads`;
    if (spelledStream !== this.#lastStream && !this.#enterStream(stream, spelledStream))
      return `exceeds the maximum of ${maximumNames} streams`;
    if (second === Number.POSITIVE_INFINITY) return 'has a size above the range of numbers';
    const time = timeOfDay < 0 ? 0 : this.#timeOf(timeOfDay);
    const event = this.#event;
    event.kind = kind;
    event.stream = this.#lastStreamIndex;
    event.thread = this.#lastThreadIndex;
    event.time = time;
    event.first = first;
    event.second = second;
    this.#events.append(event);
    return undefined;
  }

  /**
   * Whether a stream at the end of a row that may be cut off is complete: if it is the only handle that
   * no digit can follow, or if earlier rows have it and no longer one that begins like it.
   */
  isWholeStream(text: string): boolean {
    if (text === '0x0') return true;
    const { streams } = this.#names;
    return streams.includes(text) && !streams.some((other) => other.length > text.length && other.startsWith(text));
  }

  /** Nanoseconds since the first midnight. */
  #timeOf(timeOfDay: number): number {
    let time = this.#day + timeOfDay;
    if (time < this.#lastTime - longestStepBack) time += nanosecondsPerDay;
    else if (time > this.#lastTime + nanosecondsPerDay - longestStepBack && this.#day > 0) time -= nanosecondsPerDay;
    this.#day = time - timeOfDay;
    this.#lastTime = time;
    return time;
  }

  /** Returns whether there is room for the thread. */
  #enterThread(thread: number): boolean {
    let index = this.#threadIndexes.get(thread);
    if (index === undefined) {
      if (this.#threadIndexes.size === maximumNames) return false;
      index = this.#names.threads.push(String(thread)) - 1;
      this.#threadIndexes.set(thread, index);
    }
    this.#lastThread = thread;
    this.#lastThreadIndex = index;
    return true;
  }

  /** Returns whether there is room for the stream. */
  #enterStream(stream: number, spelledStream: number): boolean {
    let index = this.#streamIndexes.get(spelledStream);
    if (index === undefined) {
      if (this.#streamIndexes.size === maximumNames) return false;
      index = this.#names.streams.push(`${spelledStream < 0 ? '' : '0x'}${stream.toString(16)}`) - 1;
      this.#streamIndexes.set(spelledStream, index);
    }
    this.#lastStream = spelledStream;
    this.#lastStreamIndex = index;
    return true;
  }
}
