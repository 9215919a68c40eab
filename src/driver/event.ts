import { ArgumentTypeError, formatValue } from '../errors.js';
import { alreadyDisposed } from '../lifetime-errors.js';
import { assertOptions, optionNames } from '../validation.js';
import { type Device, deviceOption } from './device.js';
import { eventObserver } from './event-observer.js';
import { finalizationRegistry } from './finalization.js';
import { type Inspect, type InspectionOptions, inspected, inspectedDisposal, inspectObject, refuseCloning } from './local-object.js';
import { mailbox, native } from './native.js';
import { check, checkBlocking, statusError } from './status.js';
import type { Stream } from './stream.js';
import { StreamTimeline } from './stream-timeline.js';

/** Options of {@link Event}. */
export interface EventOptions {
  /**
   * The device that the event belongs to; it can be recorded on that device's streams only.
   * @defaultValue the first device
   */
  readonly device?: Device;
  /**
   * Whether {@link Event.elapsedMilliseconds} can be asked. Costs time at every recording.
   * @defaultValue false
   */
  readonly timing?: boolean;
}

const knownOptions = optionNames<EventOptions>({ device: true, timing: true });

const unreachable = finalizationRegistry<number>('event', 'CISTERN_UNREACHABLE_EVENT', destroy);

/**
 * A point in a stream's order, which other streams and the host can wait for.
 * @example
 * ```ts
 * using event = new Event();
 * event.record(producer);
 * consumer.wait(event); // what is queued on consumer from here runs after what was queued on producer
 * ```
 */
export class Event implements Disposable {
  readonly device: Device;
  /** @internal The native handle; -1 once disposed. */
  handle: number;
  /** @internal The number of its last recording, of all events': tells whether one that somebody relies on still stands, and which is later. */
  version = 0;
  /** @internal The key of the timeline it was recorded on last; `undefined` where that recording was refused. */
  recordedOn: number | undefined;

  /** @throws ArgumentTypeError for options that are none, DriverError where the driver refuses. */
  constructor(options: EventOptions = {}) {
    assertOptions(options, knownOptions);
    this.device = deviceOption(options.device);
    native().createEvent(this.device.index, options.timing === true);
    check('create an event');
    this.handle = mailbox[1] as number;
    unreachable.register(this, this.handle, this);
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(
      this,
      { device: this.device.index, recordedOn: this.recordedOn, isDisposed: inspectedDisposal(this.handle < 0) },
      depth,
      options,
      inspect,
    );
  }

  /**
   * Records everything queued on a stream so far; replaces the recording before.
   * @throws ArgumentTypeError for what is no stream, LifetimeError where the event or the stream is disposed.
   * @throws DriverError where the driver refuses; the recording before may be lost then.
   */
  record(stream: Stream): void {
    if (!(stream instanceof Object) || !(stream.timeline instanceof StreamTimeline) || stream.isDisposed) this.#refuseStream(stream);
    this.recordOn(stream.timeline);
  }

  /** @internal Records on a stream that may have no `Stream` object any more. */
  recordOn(timeline: StreamTimeline): void {
    // A recording that is refused may have been the end of the one before, too.
    this.version = ++StreamTimeline.recordings;
    this.recordedOn = undefined;
    mailbox[0] = this.handle;
    mailbox[1] = timeline.handle;
    native().recordEvent();
    if (mailbox[0] !== 0) this.#refuse('record an event');
    this.recordedOn = timeline.key;
    eventObserver?.eventRecorded(timeline, this.version);
  }

  /** Whether what was recorded has run; true where nothing was. */
  query(): boolean {
    mailbox[0] = this.handle;
    native().queryEvent();
    if (mailbox[0] !== 0) this.#refuse('query an event');
    return mailbox[1] === 1;
  }

  /**
   * Blocks until what was recorded by now has run; host functions of this thread run meanwhile. One of them may record the event again, or
   * dispose it.
   */
  synchronizeSync(): void {
    this.#assertLive('synchronize an event');
    const { handle } = this;
    checkBlocking('synchronize an event', () => native().synchronizeEvent(handle));
  }

  /** Resolves once what was recorded by now has run. The event loop goes on. */
  async synchronize(): Promise<void> {
    this.#assertLive('synchronize an event');
    mailbox[0] = await native().eventCompletion(this.handle);
    check('synchronize an event');
  }

  /**
   * Milliseconds on the device between a start and this event, both with `timing`, both over.
   * @throws DriverError (`CUDA_ERROR_NOT_READY`, `CUDA_ERROR_INVALID_HANDLE`) where they are not, ArgumentTypeError for what is no event.
   */
  elapsedMilliseconds(start: Event): number {
    if (!(start instanceof Event)) throw new ArgumentTypeError(`start must be an Event, got ${formatValue(start)}`);
    native().elapsedMilliseconds(start.handle, this.handle);
    check('measure between events');
    return mailbox[1] as number;
  }

  /**
   * Gives the driver's event back; what waits for it goes on waiting. Does nothing the second time.
   * @throws DriverError where the driver refuses; the event is not disposed then, and this can be tried again.
   */
  [Symbol.dispose](): void {
    if (this.handle < 0) return;
    destroy(this.handle);
    this.handle = -1;
    unreachable.unregister(this);
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  #assertLive(operation: string): void {
    if (this.handle < 0) throw alreadyDisposed(operation, 'the event');
  }

  #refuse(operation: string): never {
    const status = mailbox[0] as number;
    this.#assertLive(operation);
    throw statusError(operation, status);
  }

  #refuseStream(stream: unknown): never {
    if (stream instanceof Object && (stream as Stream).isDisposed) {
      throw alreadyDisposed('record an event', `stream ${(stream as Stream).id}`);
    }
    throw new ArgumentTypeError(`stream must be a Stream, got ${formatValue(stream)}`);
  }
}

function destroy(handle: number): void {
  native().destroyEvent(handle);
  check('destroy an event');
}
