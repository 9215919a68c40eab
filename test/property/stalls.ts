/**
 * What keeps streams from going on, in the order of the program and not of the clock.
 *
 * The streams of the software device run on threads of their own, so what a query says, and when a host function runs, is as time will have
 * it. A program that is to do the same every time needs two rules, which are put in front of the driver layer here:
 *
 *  - A query of a stream or an event is true exactly if nothing that was queued is stalled: no hold, no host function that has not run. Those
 *    that are not stalled are asked until they are done.
 *  - Whatever blocks lets every hold go first, so that nothing waits for ever; and host functions run in it either because it waits for them,
 *    or all of them before it waits.
 *
 * For the second, host functions are only ever pending on one stream at a time.
 */
import { native } from '../../src/driver/native.js';
import { StreamTimeline } from '../../src/driver/stream-timeline.js';
import { Device, Event, Stream, type StreamHold } from '../../src/index.js';

/** Something that a stream stands still for. */
interface Stall {
  isOver: boolean;
}

interface Hold extends Stall {
  readonly hold: StreamHold;
}

const patience = 10_000;

/** One for a process: it changes classes of the driver layer until it is disposed. */
export class Stalls implements Disposable {
  /** Streams that are ordered with the legacy default stream. */
  readonly #blockingStreams = new Set<StreamTimeline>();
  readonly #legacyDefault = Stream.legacyDefault().timeline;
  #stalledTimelines = new Map<StreamTimeline, Set<Stall>>();
  #stalledEvents = new WeakMap<Event, Set<Stall>>();
  readonly #holds: Hold[] = [];
  readonly #hostFunctions: Stall[] = [];
  #hostFunctionStream: Stream | undefined;
  #runningHostFunctions = 0;
  /** The stream that is being waited for, while host functions run that nobody waits for. */
  #awaited: StreamTimeline | undefined;
  readonly #restore: () => void;

  constructor() {
    this.#restore = this.#install();
  }

  /** Whether this is called from a host function, which must not block. */
  get isInHostFunction(): boolean {
    return this.#runningHostFunctions > 0;
  }

  get holds(): number {
    return this.#holds.length;
  }

  /** The stream that host functions are pending on. */
  get hostFunctionStream(): Stream | undefined {
    return this.#hostFunctions.length > 0 ? this.#hostFunctionStream : undefined;
  }

  /** Whether a stream must not end now, because somebody waits for it who does not know of host functions. */
  isAwaited(stream: Stream): boolean {
    return stream.timeline === this.#awaited;
  }

  /** To be told of every stream that is not non-blocking. */
  addBlocking(stream: Stream): void {
    this.#blockingStreams.add(stream.timeline);
  }

  /** To be told that something was queued on a stream. */
  submitted(stream: Stream): void {
    this.#joinLegacy(stream.timeline);
  }

  hold(stream: Stream): void {
    this.#stall(stream, { isOver: false, hold: stream.hold() }, this.#holds);
  }

  /** Releases one of the holds. */
  release(which: number): void {
    const [released] = this.#holds.splice(which % this.#holds.length, 1);
    if (released !== undefined) releaseHold(released);
  }

  /** Queues a function on the stream that has others pending, or on the given one. */
  launchHostFunction(stream: Stream, fn: () => void): void {
    const stall = { isOver: false };
    stream.launchHostFunction(() => {
      this.#runningHostFunctions++;
      this.#hostFunctions.splice(this.#hostFunctions.indexOf(stall), 1);
      try {
        fn();
      } finally {
        this.#runningHostFunctions--;
        stall.isOver = true;
      }
    });
    this.#hostFunctionStream = stream;
    this.#stall(stream, stall, this.#hostFunctions);
  }

  /** To be called before a call that waits for the device. */
  beforeBlocking(): void {
    if (this.isInHostFunction) return;
    for (const held of this.#holds.splice(0)) releaseHold(held);
  }

  /** Lets everything run, and forgets all streams. */
  finish(): void {
    this.beforeBlocking();
    Device.get().synchronizeSync();
    this.#blockingStreams.clear();
    this.#stalledTimelines = new Map();
    this.#stalledEvents = new WeakMap();
  }

  [Symbol.dispose](): void {
    this.finish();
    this.#restore();
  }

  #stall<T extends Stall>(stream: Stream, stall: T, all: T[]): void {
    this.#joinLegacy(stream.timeline);
    this.#stallsOf(stream.timeline).add(stall);
    all.push(stall);
  }

  #stallsOf(timeline: StreamTimeline): Set<Stall> {
    let stalls = this.#stalledTimelines.get(timeline);
    if (stalls === undefined) {
      stalls = new Set();
      this.#stalledTimelines.set(timeline, stalls);
    }
    return stalls;
  }

  #joinLegacy(timeline: StreamTimeline): void {
    if (timeline === this.#legacyDefault) for (const other of this.#blockingStreams) this.#join(timeline, this.#stallsOf(other));
    else if (this.#blockingStreams.has(timeline)) this.#join(timeline, this.#stallsOf(this.#legacyDefault));
  }

  #join(timeline: StreamTimeline, stalls: ReadonlySet<Stall>): void {
    const own = this.#stallsOf(timeline);
    for (const stall of stalls) if (!stall.isOver) own.add(stall);
  }

  #recorded(event: Event, timeline: StreamTimeline): void {
    this.#joinLegacy(timeline);
    this.#stalledEvents.set(event, new Set(this.#stallsOf(timeline)));
  }

  #waited(timeline: StreamTimeline, event: Event): void {
    this.#join(timeline, this.#stalledEvents.get(event) ?? new Set());
  }

  #isStalled(timeline: StreamTimeline): boolean {
    if (timeline === this.#legacyDefault && [...this.#blockingStreams].some((other) => isAnyLeft(this.#stallsOf(other)))) return true;
    return isAnyLeft(this.#stallsOf(timeline));
  }

  /** A wait has begun: for a stream, an event, or, where nothing is given, for the device. */
  #blocks(stalls: ReadonlySet<Stall> | undefined, timeline: StreamTimeline | undefined): void {
    this.beforeBlocking();
    if (this.isInHostFunction || stalls === undefined) return;
    if (this.#hostFunctions.every((stall) => stalls.has(stall))) return;
    this.#awaited = timeline;
    while (this.#hostFunctions.length > 0) {
      native().waitForHostFunction();
      native().runHostFunctions();
    }
    this.#awaited = undefined;
  }

  #install(): () => void {
    const timelines = StreamTimeline.prototype;
    const { query, wait, beginSynchronization, synchronizeSync } = timelines;
    const { beginSynchronizations } = StreamTimeline;
    const { recordOn, query: queryEvent, synchronizeSync: synchronizeEvent } = Event.prototype;
    const streamWait = Stream.prototype.wait;
    const { synchronizeSync: synchronizeDevice } = Device.prototype;
    const stalls = this;
    /** Called once the next synchronization has begun. */
    let blocks: (() => void) | undefined;
    const begun = () => {
      const call = blocks;
      blocks = undefined;
      call?.();
    };

    timelines.query = function () {
      return stalls.#isStalled(this) ? query.call(this) : untilTrue(() => query.call(this));
    };
    timelines.wait = function (event) {
      wait.call(this, event);
      stalls.#waited(this, event);
    };
    Stream.prototype.wait = function (event) {
      streamWait.call(this, event);
      stalls.#waited(this.timeline, event);
    };
    timelines.beginSynchronization = function () {
      const complete = beginSynchronization.call(this);
      begun();
      return complete;
    };
    timelines.synchronizeSync = function () {
      blocks = () => stalls.#blocks(stalls.#stallsOf(this), this);
      synchronizeSync.call(this);
    };
    StreamTimeline.beginSynchronizations = (all) => {
      const call = blocks;
      blocks = undefined;
      const complete = beginSynchronizations(all);
      call?.();
      return complete;
    };
    Device.prototype.synchronizeSync = function () {
      blocks = () => stalls.#blocks(undefined, undefined);
      synchronizeDevice.call(this);
    };
    Event.prototype.recordOn = function (timeline) {
      recordOn.call(this, timeline);
      stalls.#recorded(this, timeline);
    };
    Event.prototype.query = function () {
      const isStalled = isAnyLeft(stalls.#stalledEvents.get(this) ?? new Set());
      return isStalled ? queryEvent.call(this) : untilTrue(() => queryEvent.call(this));
    };
    Event.prototype.synchronizeSync = function () {
      stalls.#blocks(stalls.#stalledEvents.get(this) ?? new Set(), undefined);
      synchronizeEvent.call(this);
    };
    return () => {
      Object.assign(timelines, { query, wait, beginSynchronization, synchronizeSync });
      Object.assign(StreamTimeline, { beginSynchronizations });
      Object.assign(Event.prototype, { recordOn, query: queryEvent, synchronizeSync: synchronizeEvent });
      Object.assign(Stream.prototype, { wait: streamWait });
      Object.assign(Device.prototype, { synchronizeSync: synchronizeDevice });
    };
  }
}

function releaseHold(held: Hold): void {
  held.isOver = true;
  held.hold.release();
}

function isAnyLeft(stalls: ReadonlySet<Stall>): boolean {
  for (const stall of stalls) if (!stall.isOver) return true;
  return false;
}

function untilTrue(ask: () => boolean): true {
  if (ask()) return true;
  const end = performance.now() + patience;
  while (performance.now() < end) if (ask()) return true;
  throw new Error('a stream that nothing stalls does not go on');
}
