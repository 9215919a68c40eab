import { ArgumentRangeError, ArgumentTypeError, formatValue, LifetimeError } from '../errors.js';
import { alreadyDisposed } from '../lifetime-errors.js';
import { assertOptions, optionNames } from '../validation.js';
import { type Device, deviceOption } from './device.js';
import { Event } from './event.js';
import { finalizationRegistry } from './finalization.js';
import { type Inspect, type InspectionOptions, inspected, inspectedDisposal, inspectObject, refuseCloning } from './local-object.js';
import { mailbox, native } from './native.js';
import { isCheckingOrder, type MemoryAccess, touch } from './order-checker.js';
import { check, checkBlocking } from './status.js';
import { StreamTimeline } from './stream-timeline.js';

/** Options of {@link Stream}. */
export interface StreamOptions {
  /** @defaultValue the first device */
  readonly device?: Device;
  /**
   * Whether the stream runs independently of the legacy default stream.
   * @defaultValue false
   */
  readonly nonBlocking?: boolean;
  /**
   * An integer of 32 bits. Lower is more urgent; clamped to the device's range.
   * @defaultValue 0
   */
  readonly priority?: number;
}

const streamOptions = optionNames<StreamOptions>({ device: true, nonBlocking: true, priority: true });

/** Options of {@link Stream.fromHandle}. */
export interface ForeignStreamOptions {
  /** @defaultValue the first device */
  readonly device?: Device;
  /**
   * A promise of the stream's owner to dispose this object *before* destroying the stream. Without it, resources record an event at every
   * free on the stream even under `'deferred'`, because the stream may be gone when they would need one. Disposing an object with the promise
   * disposes every other one for the stream; of several objects, the first one says whether events are recorded. A {@link Stream} that was
   * not made elsewhere needs no promise, and is not disposed with an object that has it.
   * @defaultValue false
   */
  readonly announcesEnd?: boolean;
}

const foreignStreamOptions = optionNames<ForeignStreamOptions>({ announcesEnd: true, device: true });

/** What it takes to end a stream whose object became unreachable. */
interface Ending {
  readonly device: Device;
  readonly timeline: StreamTimeline;
  readonly reference: WeakRef<Stream>;
}

const unreachable = finalizationRegistry<Ending>('stream', 'CISTERN_UNREACHABLE_STREAM', ({ device, timeline, reference }) =>
  timeline.leave(reference, () => settlement(device, timeline, timeline.announcesEnd)),
);
const undestroyed = finalizationRegistry<number>('stream', 'CISTERN_UNREACHABLE_STREAM', (handle) => {
  native().releaseStream(handle);
  check('destroy a stream');
});
const defaultStreams = new Map<string, Stream>();

/**
 * An in-order queue of work on a device. Memory that is freed on a stream may be reused in that stream's order.
 *
 * Disposing a stream first settles, by one event, what resources still hold back for it; work that is queued still runs. Other objects for
 * the same stream are disposed with it.
 *
 * Counterpart of `rmm::cuda_stream` and `rmm::cuda_stream_view`.
 * @example
 * ```ts
 * using stream = new Stream({ nonBlocking: true });
 * const pointer = resource.allocate(4096, stream);
 * resource.deallocate(pointer, 4096, stream);
 * await stream.synchronize();
 * ```
 */
export class Stream implements Disposable {
  readonly device: Device;
  /**
   * The driver's id of the stream: unique among the streams of its device, never reused. The default streams of two devices may have the same.
   */
  readonly id: number;
  /** @internal The native handle; -1 once disposed. */
  handle: number;
  /** @internal What the environment knows of the driver's stream. */
  readonly timeline: StreamTimeline;
  readonly #isDefault: boolean;
  /** Whether the driver's stream may be gone once this object is disposed, whatever other objects there are. */
  readonly #endsTimeline: boolean;
  readonly #reference: WeakRef<Stream>;

  /** @throws ArgumentTypeError, ArgumentRangeError for options that are none, DriverError where the driver refuses. */
  constructor(options: StreamOptions = {}, /** @internal */ wrapped?: { handle: number; announcesEnd: boolean }) {
    if (wrapped === undefined) assertOptions(options, streamOptions);
    this.device = deviceOption(options.device);
    this.#isDefault = wrapped !== undefined && wrapped.handle <= 2;
    if (wrapped === undefined) {
      const priority = options.priority ?? 0;
      assertPriority(priority);
      native().createStream(this.device.index, options.nonBlocking === true, priority);
      check('create a stream');
    } else {
      native().wrapStream(this.device.index, wrapped.handle);
      check(`use the stream with handle ${wrapped.handle}`);
    }
    const handle = mailbox[1] as number;
    this.id = identify(handle);
    const isOwned = wrapped === undefined;
    const announcesEnd = wrapped?.announcesEnd ?? true;
    this.timeline = StreamTimeline.of(this.id, this.device.index, handle, isOwned, announcesEnd);
    this.#endsTimeline = isOwned || (announcesEnd && !this.timeline.isOwned);
    this.handle = this.timeline.handle;
    this.#reference = this.timeline.join(this);
    unreachable.register(this, { device: this.device, timeline: this.timeline, reference: this.#reference }, this);
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(
      this,
      { id: this.id, device: this.device.index, isDisposed: inspectedDisposal(this.isDisposed) },
      depth,
      options,
      inspect,
    );
  }

  /** The legacy default stream of a device, which waits for and is waited for by every blocking stream. Disposing it does nothing. */
  static legacyDefault(device?: Device): Stream {
    return defaultStream(1, device);
  }

  /** The default stream of this thread on a device. Disposing it does nothing. */
  static perThreadDefault(device?: Device): Stream {
    return defaultStream(2, device);
  }

  /**
   * A stream made elsewhere, by its driver handle (a `CUstream` or `cudaStream_t` as an address). The stream stays its owner's. Without a
   * promise ({@link ForeignStreamOptions.announcesEnd}) the owner may destroy it at any time, if nothing is queued through this object any more.
   * @throws ArgumentRangeError for what cannot be a handle, DriverError for a handle that the driver does not know.
   */
  static fromHandle(handle: number | bigint, options: ForeignStreamOptions = {}): Stream {
    if (typeof handle !== 'number' && typeof handle !== 'bigint') {
      throw new ArgumentTypeError(`handle must be a number or a bigint, got ${formatValue(handle)}`);
    }
    const address = Number(handle);
    if (!Number.isSafeInteger(address) || address < 0) {
      throw new ArgumentRangeError(`handle must be an integer from 0 to 2^53 - 1, got ${handle}`);
    }
    assertOptions(options, foreignStreamOptions);
    if (address <= 2) return defaultStream(address === 2 ? 2 : 1, options.device);
    return new Stream(options, { handle: address, announcesEnd: options.announcesEnd === true });
  }

  /** The driver's own handle, for other libraries. */
  get nativeHandle(): number {
    this.#assertLive('read the handle of a stream');
    return this.timeline.nativeHandle;
  }

  /** The priority, as the driver clamped it. */
  get priority(): number {
    this.#assertLive('read the priority of a stream');
    native().streamInfo(this.handle);
    check('read the priority of a stream');
    return mailbox[1] as number;
  }

  /** Whether it runs independently of the legacy default stream. */
  get isNonBlocking(): boolean {
    this.#assertLive('read the flags of a stream');
    native().streamInfo(this.handle);
    check('read the flags of a stream');
    return mailbox[2] === 1;
  }

  /** Whether it is disposed. */
  get isDisposed(): boolean {
    return this.handle < 0;
  }

  /** Lets what is queued from here on run only after what the event recorded last. Does not block. */
  wait(event: Event): void {
    if (!(event instanceof Event)) throw new ArgumentTypeError(`event must be an Event, got ${formatValue(event)}`);
    mailbox[0] = this.handle;
    mailbox[1] = event.handle;
    native().waitEvent();
    if (mailbox[0] === 0) {
      this.timeline.noteWait(event);
      return;
    }
    this.#assertLive('wait for an event');
    if (event.handle < 0) throw new LifetimeError('ERR_CISTERN_DISPOSED', 'cannot wait for an event: it is already disposed');
    check('wait for an event');
  }

  /** Whether everything queued has run. */
  query(): boolean {
    this.#assertLive('query a stream');
    return this.timeline.query();
  }

  /** Resolves once everything queued by now has run. The event loop goes on. */
  async synchronize(): Promise<void> {
    this.#assertLive('synchronize a stream');
    const complete = this.timeline.beginSynchronization();
    const status = await native().streamCompletion(this.handle);
    mailbox[0] = status;
    check('synchronize a stream');
    complete();
  }

  /** Blocks until everything queued by now has run; host functions of this thread run meanwhile. One of them may dispose the stream. */
  synchronizeSync(): void {
    this.#assertLive('synchronize a stream');
    this.timeline.synchronizeSync();
  }

  /**
   * Queues a function: the stream stands still until its turn has come and it has run, on this thread, from the event loop or from within
   * a blocking call. What it throws is reported as an uncaught exception. If the device fails before, the function never runs, and a process
   * warning (`CISTERN_LOST_HOST_FUNCTION`) says so.
   *
   * As with CUDA's own host functions, nothing in it may wait for a device: synchronizing, and allocating or freeing plain memory, are refused
   * there with a {@link DriverError} (`CUDA_ERROR_NOT_PERMITTED`). What a pool has in stock can be had.
   */
  launchHostFunction(callback: () => void): void {
    this.#assertLive('launch a host function');
    if (typeof callback !== 'function') throw new ArgumentTypeError(`callback must be a function, got ${formatValue(callback)}`);
    const run = (status: number) => {
      if (status > 0) warnOfLostFunction(this.id, status);
      else callback();
    };
    checkBlocking('launch a host function', () => native().launchHostFunction(this.handle, run));
  }

  /**
   * Stands for a use of memory by work that is queued on the stream here and that cistern does not know of, such as a kernel of another
   * library. While stream order is checked ({@link checkOrder}) the use is held against the others; else this does nothing.
   * @param pointer where the memory begins that is used
   * @throws ArgumentTypeError, ArgumentRangeError, LifetimeError (all of them only while stream order is checked)
   * @example
   * ```ts
   * using checker = checkOrder();
   * const pointer = resource.allocate(4096, producer);
   * producer.touch(pointer, 4096, 'write');
   * consumer.touch(pointer, 4096, 'read'); // reported: consumer did not wait for producer
   * ```
   */
  touch(pointer: number, bytes: number, access: MemoryAccess): void {
    if (!isCheckingOrder()) return;
    this.#assertLive('touch memory');
    touch(pointer, bytes, this, access);
  }

  /**
   * Makes the stream stand still from here until the hold is released. For tests of stream order; a blocking call that waits for a held
   * stream never returns.
   *
   * Any number of streams can be held at a time. On a GPU, streams that share one of its queues (there are `CUDA_DEVICE_MAX_CONNECTIONS` of them)
   * may stand still with a held one; and a device without memory operations in streams, on which a host function of the driver waits instead,
   * can be held on one stream at a time, with no other host function outstanding.
   */
  hold(): StreamHold {
    this.#assertLive('hold a stream');
    checkBlocking('hold a stream', () => native().holdStream(this.handle));
    return new StreamHold(mailbox[1] as number);
  }

  /**
   * Settles what resources hold back for the stream and gives it back to the driver. Work that is queued still runs. Does nothing the second
   * time. An object for a foreign stream whose end is not announced ({@link ForeignStreamOptions.announcesEnd}) leaves that alone, since it may
   * be gone: if there is something to settle it waits for the device.
   * @throws DriverError where nothing can be settled, because the driver neither records an event nor waits, and where it refuses to destroy the
   * stream; the stream is not disposed then, and this can be tried again.
   */
  [Symbol.dispose](): void {
    if (this.handle < 0 || this.#isDefault) return;
    // Only an owner that announces the stream's end is known not to have destroyed it.
    const settle = () => settlement(this.device, this.timeline, this.#endsTimeline || this.timeline.announcesEnd);
    if (this.#endsTimeline) this.timeline.end(settle);
    else this.timeline.leave(this.#reference, settle);
    this.handle = -1;
    unreachable.unregister(this);
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  #assertLive(operation: string): void {
    if (this.handle < 0) throw alreadyDisposed(operation, `stream ${this.id}`);
  }
}

/** Keeps a stream from going on; see {@link Stream.hold}. */
export class StreamHold implements Disposable {
  readonly #handle: number;
  #released = false;

  /** @internal */
  constructor(handle: number) {
    this.#handle = handle;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(this, { isReleased: this.#released }, depth, options, inspect);
  }

  /** Lets the stream go on. Does nothing the second time. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    native().releaseHold(this.#handle);
    check('release a hold');
  }

  /** The same as `release()`. */
  [Symbol.dispose](): void {
    this.release();
  }
}

/**
 * @internal Stands for "no stream yet" where the stream of the last call is kept: no argument is equal to it, not even `undefined`.
 */
export const noStream = Object.freeze({ handle: -1 }) as Stream;

/**
 * The stream that an argument must be.
 * @throws ArgumentTypeError for what is no stream, LifetimeError for one that is disposed.
 */
export function assertStream(stream: unknown, operation: string): asserts stream is Stream {
  if (!(stream instanceof Stream)) throw new ArgumentTypeError(`stream must be a Stream, got ${formatValue(stream)}`);
  if (stream.isDisposed) throw alreadyDisposed(operation, `stream ${stream.id}`);
}

/** @throws ArgumentRangeError for a stream of another device. */
export function assertStreamOf(stream: Stream, device: Device): void {
  if (stream.device === device) return;
  throw new ArgumentRangeError(
    `stream must be of device ${device.index}, got one of device ${stream.device.index}`,
    'ERR_INVALID_ARG_VALUE',
  );
}

function defaultStream(handle: 1 | 2, device: Device | undefined): Stream {
  const owner = deviceOption(device);
  const key = `${handle}:${owner.index}`;
  let stream = defaultStreams.get(key);
  if (stream === undefined) {
    stream = new Stream({ device: owner }, { handle, announcesEnd: true });
    defaultStreams.set(key, stream);
  }
  return stream;
}

function warnOfLostFunction(stream: number, status: number): void {
  const name = native().statusName(status) || `status ${status}`;
  process.emitWarning(`a host function of stream ${stream} will never run: ${name}`, { code: 'CISTERN_LOST_HOST_FUNCTION' });
}

/** The id of the driver's stream. Where the driver does not tell it the handle is given back, now or with the next collection. */
function identify(handle: number): number {
  native().streamId(handle);
  try {
    check('identify a stream');
  } catch (error) {
    native().releaseStream(handle);
    if (mailbox[0] !== 0) undestroyed.register({}, handle);
    throw error;
  }
  return mailbox[1] as number;
}

function assertPriority(priority: unknown): asserts priority is number {
  if (typeof priority !== 'number') throw new ArgumentTypeError(`priority must be a number, got ${formatValue(priority)}`);
  if (Number.isInteger(priority) && priority >= -(2 ** 31) && priority < 2 ** 31) return;
  throw new ArgumentRangeError(`priority must be an integer from -2^31 to 2^31 - 1, got ${priority}`);
}

/**
 * An event after everything that was queued on a stream; where none can be had, `undefined` once all of that has run.
 * @param isAlive whether the driver's stream is known to exist still
 */
function settlement(device: Device, timeline: StreamTimeline, isAlive: boolean): Event | undefined {
  if (isAlive) {
    try {
      const event = new Event({ device });
      event.recordOn(timeline);
      return event;
    } catch {
      // What cannot be recorded can still be waited for.
    }
  }
  // Without an event, the end must be waited for: memory held back for the stream could not be given to anybody safely.
  device.synchronizeSync();
  return undefined;
}
