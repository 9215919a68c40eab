import { ArgumentTypeError, alreadyDisposed, DriverError, formatValue } from '../../basics/errors.js';
import { abandonCapture, areInOneCapture, captureStatusOf } from '../graphs/capture.js';
import { mailbox, native } from '../native.js';
import { check, checkBlocking, isCapturing } from '../status.js';
import type { Event } from './event.js';
import type { Stream } from './stream.js';

/** A user that holds memory back for a stream, and must know when the stream ends. */
export interface StreamObserver {
  /**
   * Whether it holds back memory that only an event recorded on the stream now can release to
   * others.
   */
  needsLastEvent(identity: StreamIdentity): boolean;
  /**
   * The stream ends. `event`, if given, was recorded after everything queued on it; all observers
   * share it. No call for this identity follows. Must not throw.
   */
  streamEnded(identity: StreamIdentity, event: Event | undefined): void;
  /**
   * The stream is captured from now on: check `isCaptured` before you rely on anything known about the
   * stream. Must not throw.
   */
  captureBegan?(identity: StreamIdentity): void;
}

/** Observes events. Its methods must not throw. */
export interface EventObserver {
  /** An event was recorded on a stream. `version` numbers the recordings of all events. */
  eventRecorded(identity: StreamIdentity, version: number): void;
  /** A stream waits for an event's latest recording. */
  eventAwaited(identity: StreamIdentity, version: number): void;
}

let eventObservers: readonly EventObserver[] = [];

const everyObserver: EventObserver = {
  eventRecorded: (identity, version) => {
    for (const observer of eventObservers) observer.eventRecorded(identity, version);
  },
  eventAwaited: (identity, version) => {
    for (const observer of eventObservers) observer.eventAwaited(identity, version);
  },
};

/**
 * Called for each recording of an event, and each wait for one, in this environment; `undefined` if
 * there are no observers.
 */
export let eventObserver: EventObserver | undefined;

/** Adds an observer. */
export function observeEvents(observer: EventObserver): void {
  setEventObservers([...eventObservers, observer]);
}

/** Removes an observer. */
export function unobserveEvents(observer: EventObserver): void {
  setEventObservers(eventObservers.filter((each) => each !== observer));
}

function setEventObservers(all: readonly EventObserver[]): void {
  eventObservers = all;
  eventObserver = all.length > 1 ? everyObserver : all[0];
}

/** The streams in captures that this environment has begun. */
const captured = new Set<StreamIdentity>();
const captureJoins: ((identity: StreamIdentity) => void)[] = [];
/** Whether there are any. */
export let isAnythingCaptured = false;
const captureEnds: (() => void)[] = [];

/** The handles of all streams in captures that this environment has begun. */
export function capturedHandles(): number[] {
  return Array.from(captured, ({ handle }) => handle);
}

/** Calls a function, which must not throw, whenever a stream enters a capture that this environment has begun. */
export function atCaptureJoins(onJoin: (identity: StreamIdentity) => void): void {
  captureJoins.push(onJoin);
}

/** Calls a function, which must not throw, whenever a capture that this environment has begun ends. */
export function atCaptureEnds(onEnd: () => void): void {
  captureEnds.push(onEnd);
}

const live = new Map<number, StreamIdentity>();
const vacantSlots: number[] = [];
let slots = 0;
let identities = 0;
/**
 * By device: how many streams have ended before their work had run, and that number when the device
 * was last known to be idle.
 */
const endedBusy: number[] = [];
const endedAndRun: number[] = [];

/**
 * The identity of one driver stream, shared by every `Stream` object that names it, with what this
 * environment knows of the stream: how far it has run, and who must be notified of its end. The
 * driver never reuses a stream's id on a device (it does reuse handles: rapidsai/rmm#2251). `slot`
 * is a small integer for arrays; another stream gets it only after every observer has been notified
 * of this one's end.
 */
export class StreamIdentity {
  /** The number of events recorded since the start, on all streams. */
  static records = 0;
  /**
   * Counts the occasions that release memory held back for a stream to other streams: a
   * synchronization has completed, or an event now covers the memory.
   */
  static releases = 0;

  // The fields that every change of streams reads come first, in one or two cache lines.
  readonly slot: number;
  /**
   * Synchronizations of the stream that have begun. Work queued while this is n is known to have
   * run once `synchronized` exceeds n.
   */
  synchronizing = 0;
  /** The number of the latest completed synchronization. */
  synchronized = 0;
  /**
   * The number of the latest recording when the stream last waited, or when memory last came into
   * its order. No event up to that number covers the work that the stream was then ordered after.
   */
  receivedAt = StreamIdentity.records;
  /** The stream on which this environment has begun the capture that this one is in. */
  #captureOrigin: StreamIdentity | undefined = undefined;
  /**
   * The native handle that every `Stream` object of this stream uses; valid until the stream ends.
   */
  handle: number;
  readonly id: number;
  /** Tells the streams of all devices apart; on the first device it is the id. */
  readonly key: number;
  /** A 32-bit integer that none of the last 2^32 streams of this environment had. */
  readonly serial = ++identities | 0;
  readonly device: number;
  /** Whether cistern created the driver's stream, and will destroy it. */
  isOwned: boolean;
  /** With what other environments attach the stream, if they share it. */
  shared: object | undefined = undefined;
  /**
   * Whether cistern is told before the stream ends, so that it can still record events then. The
   * first object for the stream decides.
   */
  readonly announcesEnd: boolean;
  #isEnding = false;
  /** Whether a function is being captured on this stream: the capture ends when it returns. */
  isRecorded = false;
  /** Whether a capture that began on this stream was given up, and the driver refused to end it. */
  #hasGivenUp = false;
  /** Weak references to the `Stream` objects for this stream. */
  readonly #streams = new Set<WeakRef<Stream>>();
  readonly #observers = new Set<StreamObserver>();

  private constructor(id: number, device: number, handle: number, isOwned: boolean, announcesEnd: boolean) {
    this.id = id;
    this.key = keyOf(id, device);
    this.handle = handle;
    this.slot = vacantSlots.pop() ?? slots++;
    this.device = device;
    this.isOwned = isOwned;
    this.announcesEnd = announcesEnd;
  }

  /** The identity of a driver stream. It takes over the native handle; call `join` next. */
  static of(id: number, device: number, handle: number, isOwned: boolean, announcesEnd: boolean): StreamIdentity {
    const known = live.get(keyOf(id, device));
    if (known !== undefined && !known.#isEnding) {
      if (isOwned && !known.isOwned) known.#own(handle);
      else native().releaseStream(handle);
      return known;
    }
    const identity = new StreamIdentity(id, device, handle, isOwned, announcesEnd);
    live.set(identity.key, identity);
    return identity;
  }

  /** The number of streams that this environment knows. */
  static get count(): number {
    return live.size;
  }

  /** The identities of a device, including those of streams that may be gone. */
  static ofDevice(device: number): StreamIdentity[] {
    return [...live.values()].filter((identity) => identity.device === device);
  }

  /**
   * Whether a device may still have queued work of a stream that has ended; only a synchronization
   * of the whole device can wait for that work.
   */
  static mayHaveEndedBusy(device: number): boolean {
    return (endedBusy[device] ?? 0) > (endedAndRun[device] ?? 0);
  }

  /** Begins a synchronization of a whole device; call the result once it is complete. */
  static beginDeviceSynchronization(device: number): () => void {
    const complete = StreamIdentity.beginSynchronizations(StreamIdentity.ofDevice(device));
    const before = endedBusy[device] ?? 0;
    return () => {
      complete();
      endedAndRun[device] = Math.max(endedAndRun[device] ?? 0, before);
    };
  }

  /** Begins a synchronization of several streams; call the result once it is complete. */
  static beginSynchronizations(identities: readonly StreamIdentity[]): () => void {
    const completions = identities.map((identity) => identity.beginSynchronization());
    return () => {
      for (const complete of completions) complete();
    };
  }

  /**
   * Whether the stream is in a capture that this environment has begun. Does not ask the driver, so it
   * does not see captures of other libraries and workers.
   */
  get isCaptured(): boolean {
    return this.#captureOrigin !== undefined;
  }

  /** The driver's own handle. */
  get nativeHandle(): number {
    native().streamAddress(this.handle);
    check('read the handle of a stream');
    return mailbox[1] as number;
  }

  /** Begins a synchronization; call the result once everything queued so far has run. */
  beginSynchronization(): () => void {
    const number = ++this.synchronizing;
    return () => this.#completeSynchronization(number);
  }

  #completeSynchronization(number: number): void {
    if (this.synchronized >= number) return;
    this.synchronized = number;
    StreamIdentity.releases++;
  }

  /** Whether everything queued on the stream has run. */
  query(): boolean {
    const number = ++this.synchronizing;
    mailbox[0] = this.handle;
    native().queryStream();
    check('query a stream');
    if (mailbox[1] !== 1) return false;
    this.#completeSynchronization(number);
    return true;
  }

  /** As `query`, but a stream that the driver cannot query, or that is captured, counts as busy. */
  isIdle(): boolean {
    try {
      return this.query();
    } catch (error) {
      if (error instanceof DriverError || isCapturing(error)) return false;
      throw error;
    }
  }

  /**
   * Blocks until everything queued on the stream has run; host functions of this thread run
   * meanwhile.
   */
  synchronizeSync(): void {
    const complete = this.beginSynchronization();
    checkBlocking('synchronize a stream', () => native().synchronizeStream(this.handle));
    complete();
  }

  /**
   * Makes later work on the stream wait for the event's latest recording. Refuses events and streams
   * of captures, because the wait would make the stream part of the capture. Does not block.
   */
  wait(event: Event): void {
    // Exports of another module are checked at each use; a local variable is not.
    const box = mailbox;
    box[0] = this.handle;
    box[1] = event.handle;
    box[2] = 1;
    native().waitEvent();
    check('wait for an event');
    this.noteWait(event);
  }

  /** The driver has made the stream wait for an event. */
  noteWait(event: Event): void {
    this.outdateFences();
    eventObserver?.eventAwaited(this, event.version);
    if (isAnythingCaptured) this.#joinCaptureOf(event);
  }

  /**
   * Notes that memory comes into the stream's order. Events recorded earlier do not cover it, even
   * if the stream never uses it.
   */
  outdateFences(): void {
    this.receivedAt = StreamIdentity.records;
  }

  /** A capture has begun on the stream. */
  captureBegan(): void {
    this.#enterCapture(this);
  }

  /** Calls a function that is captured on this stream, and returns its result. */
  recorded(record: () => unknown): unknown {
    this.isRecorded = true;
    try {
      return record();
    } finally {
      this.isRecorded = false;
    }
  }

  /** The capture that began on this stream has ended. */
  captureEnded(): void {
    this.#hasGivenUp = false;
    if (this.#captureOrigin === this) this.#endCapture();
  }

  /** The capture that began on this stream could not be ended, or has ended without a graph. Does not throw. */
  captureMayHaveEnded(): void {
    try {
      if (captureStatusOf(this.handle) === 'none') this.captureEnded();
    } catch {}
  }

  /** Abandons the capture that cistern has begun on this stream, if there is one. */
  abandonCapture(): void {
    abandonCapture(this.handle);
    this.captureEnded();
  }

  /** The same, after an error: if the driver refuses, it is tried again before the next capture. Does not throw. */
  giveUpCapture(): void {
    this.#hasGivenUp = true;
    try {
      this.abandonCapture();
    } catch {}
  }

  /** Before a capture: ends the one that was given up, if there is one. */
  endGivenUpCapture(): void {
    if (this.#hasGivenUp) this.abandonCapture();
  }

  /**
   * Notes that the stream has waited for an event. If the event was recorded in a capture, this stream is now
   * part of it.
   */
  #joinCaptureOf({ recordedOn }: Event): void {
    if (this.isCaptured || recordedOn === undefined) return;
    const recorder = live.get(recordedOn);
    const origin = recorder === undefined ? undefined : recorder.#captureOrigin;
    // The event may have been recorded before the capture began.
    if (origin !== undefined && captureStatusOf(this.handle) !== 'none') this.#enterCapture(origin);
  }

  /**
   * Whether the stream is in the capture of another one, even if other code made it join. If this
   * environment has begun that capture, the stream counts as captured from now on.
   */
  joinsCaptureOf(other: StreamIdentity): boolean {
    if (!areInOneCapture(this.handle, other.handle)) return false;
    if (other.#captureOrigin !== undefined && !this.isCaptured) this.#enterCapture(other.#captureOrigin);
    return true;
  }

  #enterCapture(origin: StreamIdentity): void {
    this.#captureOrigin = origin;
    captured.add(this);
    isAnythingCaptured = true;
    for (const observer of this.#observers) observer.captureBegan?.(this);
    for (const onJoin of captureJoins) onJoin(this);
  }

  #endCapture(): void {
    for (const identity of captured) {
      if (identity.#captureOrigin !== this) continue;
      identity.#captureOrigin = undefined;
      captured.delete(identity);
    }
    isAnythingCaptured = captured.size > 0;
    // Events can be recorded again for memory that was held back.
    StreamIdentity.releases++;
    for (const onEnd of captureEnds) onEnd();
  }

  observe(observer: StreamObserver): void {
    this.#observers.add(observer);
  }

  unobserve(observer: StreamObserver): void {
    this.#observers.delete(observer);
  }

  /** Adds an object for this stream. Pass the result to `leave` to remove it. */
  join(stream: Stream): WeakRef<Stream> {
    const reference = new WeakRef(stream);
    this.#streams.add(reference);
    return reference;
  }

  /**
   * Removes an object; removing the last one ends the identity. Does nothing if it has ended. If
   * the end was refused, you can repeat the call.
   */
  leave(reference: WeakRef<Stream>, record: () => Event | undefined): void {
    const wasRefused = this.#streams.size === 0 && live.get(this.key) === this;
    if (wasRefused || (this.#streams.size === 1 && this.#streams.has(reference))) this.end(record);
    else this.#streams.delete(reference);
  }

  /**
   * Ends the identity, and disposes the remaining objects for the stream. `record` is called if an
   * observer needs an event, before any observer is notified. If it throws, or if the driver
   * refuses to destroy the stream, the state is unchanged.
   * @param release releases the driver's stream; `undefined`: destroys it if it is cistern's
   */
  end(record: () => Event | undefined, release: (handle: number) => void = destroy): void {
    // An event recorded in the capture could not cover work queued before it. A stream whose end is not
    // announced may already be destroyed.
    if (this.isOwned || this.announcesEnd) this.abandonCapture();
    else if (this.#captureOrigin === this) this.#endCapture();
    const observers = [...this.#observers];
    // Host functions may run during `record`, but must not queue anything on the stream after it.
    this.#isEnding = true;
    for (const reference of this.#streams) setHandle(reference, -1);
    let event: Event | undefined;
    let isBusy: boolean;
    try {
      // A stream whose end is not announced may already be destroyed: do not use its handle.
      isBusy = observers.length > 0 && !(this.announcesEnd && this.isIdle());
      if (observers.some((observer) => observer.needsLastEvent(this))) event = record();
      release(this.handle);
    } catch (error) {
      this.#isEnding = false;
      for (const reference of this.#streams) if (!setHandle(reference, this.handle)) this.#streams.delete(reference);
      throw error;
    }
    this.#streams.clear();
    if (live.get(this.key) === this) live.delete(this.key);
    if (isBusy) endedBusy[this.device] = (endedBusy[this.device] ?? 0) + 1;
    this.#observers.clear();
    for (const observer of observers) observer.streamEnded(this, event);
    vacantSlots.push(this.slot);
  }

  /** Makes an attached stream, for which this environment had a foreign handle, its own. */
  #own(handle: number): void {
    native().releaseStream(this.handle);
    this.handle = handle;
    this.isOwned = true;
    for (const reference of this.#streams) setHandle(reference, handle);
  }
}

function destroy(handle: number): void {
  native().releaseStream(handle);
  check('destroy a stream');
}

/** The driver may give the default streams of every device the same ids. */
function keyOf(id: number, device: number): number {
  // A sum with a number beyond 2^31 would not be a small integer.
  return device === 0 ? id : device * 2 ** 45 + id;
}

/** Returns whether the object still exists. */
function setHandle(reference: WeakRef<Stream>, handle: number): boolean {
  const stream = reference.deref();
  if (stream === undefined) return false;
  stream.handle = handle;
  return true;
}

/** Throws what `assertStream` throws if something cannot be used as a stream. For classes that `Stream` imports. */
export function refuseStream(stream: unknown, operation: string): never {
  if (stream instanceof Object && (stream as Stream).identity instanceof StreamIdentity) {
    throw alreadyDisposed(operation, `stream ${(stream as Stream).id}`);
  }
  throw new ArgumentTypeError(`stream must be a Stream, got ${formatValue(stream)}`);
}
