import { type RecordedEvents, RecordedNames } from '../recorded-run-builder.js';
import { RecordKind } from '../recording/recording-format.js';
import type { LogRows } from './log-parser.js';

const nanosecondsPerDay = 86_400e9;

/** Threads that write to one log do not always write in the order of their clocks; none is late by more than this. */
const longestStepBack = 60e9;

/** A stream or a thread is a number of 16 bits in a run. */
const maximumNames = 2 ** 16;

/** Makes events of a recording out of the rows of an RMM log. */
export class RecordedRows implements LogRows {
  readonly readsTimes = true;
  /** What the events refer to. */
  readonly names = new RecordedNames();
  readonly #events: RecordedEvents;
  readonly #threadIndexes = new Map<number, number>();
  #lastThread = -1;
  #lastThreadIndex = 0;
  /** By the handle, and by its complement where it is written without `0x`: the two are kept apart, to be written as they were. */
  readonly #streamIndexes = new Map<number, number>();
  #lastStream = Number.NaN;
  #lastStreamIndex = 0;
  /** Nanoseconds from the first midnight to the one before the last row. */
  #day = 0;
  #lastTime = 0;

  constructor(events: RecordedEvents) {
    this.#events = events;
    this.names.layers.push({ name: 'rmm', upstream: undefined });
  }

  get eventCount(): number {
    return this.#events.eventCount;
  }

  allocate(thread: number, pointer: number, bytes: number, stream: number, time: number, isPrefixed: boolean): string | undefined {
    return this.#append(RecordKind.allocate, thread, pointer, bytes, stream, time, isPrefixed);
  }

  free(thread: number, pointer: number, bytes: number, stream: number, time: number, isPrefixed: boolean): string | undefined {
    return this.#append(RecordKind.free, thread, pointer, bytes, stream, time, isPrefixed);
  }

  fail(thread: number, bytes: number, rest: number, stream: number, time: number, isPrefixed: boolean): string | undefined {
    if (bytes === Number.POSITIVE_INFINITY) return 'is of more bytes than any number';
    return this.#append(RecordKind.failure, thread, rest, bytes, stream, time, isPrefixed);
  }

  #append(
    kind: RecordKind,
    thread: number,
    first: number,
    second: number,
    stream: number,
    timeOfDay: number,
    isPrefixed: boolean,
  ): string | undefined {
    if (thread !== this.#lastThread) this.#enterThread(thread);
    const spelledStream = isPrefixed ? stream : ~0 - stream;
    if (spelledStream !== this.#lastStream) this.#enterStream(stream, spelledStream);
    if (this.names.threads.length > maximumNames) return `is of one thread more than ${maximumNames}`;
    if (this.names.streams.length > maximumNames) return `is on one stream more than ${maximumNames}`;
    this.#events.append(kind, 0, this.#lastStreamIndex, this.#lastThreadIndex, 0, 0, this.#timeOf(timeOfDay), first, second);
    return undefined;
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

  #enterThread(thread: number): void {
    let index = this.#threadIndexes.get(thread);
    if (index === undefined) {
      index = this.names.threads.push(String(thread)) - 1;
      this.#threadIndexes.set(thread, index);
    }
    this.#lastThread = thread;
    this.#lastThreadIndex = index;
  }

  #enterStream(stream: number, spelledStream: number): void {
    let index = this.#streamIndexes.get(spelledStream);
    if (index === undefined) {
      index = this.names.streams.push(`${spelledStream < 0 ? '' : '0x'}${stream.toString(16)}`) - 1;
      this.#streamIndexes.set(spelledStream, index);
    }
    this.#lastStream = spelledStream;
    this.#lastStreamIndex = index;
  }
}
