import { ArgumentTypeError, alreadyDisposed, CisternError, formatValue } from '../../basics/errors.js';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { markCopy } from '../../package/copy.js';
import { type Device, deviceOption } from '../device.js';
import { keptResult, mailbox, native } from '../native.js';
import { check, checkBlocking, statusError } from '../status.js';
import { finalizationRegistry } from '../workers/collected-objects.js';
import { cannotBeCloned, type Inspection, inspected, inspectObject } from '../workers/local-object.js';
import type { Stream } from './stream.js';
import { eventObserver, refuseStream, StreamIdentity } from './stream-identity.js';

/** Options of {@link Event}. */
export interface EventOptions {
  /**
   * The device that the event belongs to. It can only be recorded on streams of that device.
   * @defaultValue the first device
   */
  readonly device?: Device | undefined;
  /**
   * Whether you can call {@link Event.elapsedMilliseconds}. Makes every recording slower.
   * @defaultValue false
   */
  readonly timing?: boolean | undefined;
}

const knownOptions = optionNames<EventOptions>({ device: true, timing: 'boolean' });

/** An event of another worker. */
interface AttachedEvent {
  readonly handle: number;
  readonly shared: object | undefined;
}

const unreachable = finalizationRegistry<number>('event', 'CISTERN_UNREACHABLE_EVENT', destroy);

/**
 * A point in a stream's order that other streams and the host can wait for.
 * @example
 * ```ts
 * using event = new Event();
 * event.record(producer);
 * consumer.wait(event); // later work on consumer runs after everything that was queued on producer
 * ```
 */
export class Event implements Disposable {
  /** @internal */
  readonly cannotBeCloned = cannotBeCloned;
  readonly device: Device;
  /** @internal The native handle; -1 once disposed. */
  handle: number;
  /**
   * @internal The number of its latest recording, counted over all events. It shows whether a
   * recording has been replaced, and which of two recordings is later.
   */
  version = 0;
  /**
   * @internal The key of the stream that it was last recorded on; `undefined` if that recording
   * failed, or another worker made it.
   */
  recordedOn: number | undefined;
  /** @internal With what other workers attach it, if they share it. */
  shared: object | undefined;

  /** @throws ArgumentTypeError for invalid options, DriverError if the driver refuses. */
  constructor(options?: EventOptions);
  /** @internal */
  constructor(options: EventOptions, attached: AttachedEvent);
  constructor(options: EventOptions = {}, attached?: AttachedEvent) {
    assertOptions(options, knownOptions);
    this.device = deviceOption(options.device);
    if (attached === undefined) {
      native().createEvent(this.device.index, options.timing === true);
      check('create an event');
    }
    this.handle = attached?.handle ?? keptResult(1);
    this.shared = attached?.shared;
    unreachable.register(this, this.handle, this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { device: this.device.index, recordedOn: this.recordedOn, isDisposed: this.handle < 0 }, inspection);
  }

  /**
   * Records everything queued on a stream before this call. Replaces the previous recording.
   * @throws ArgumentTypeError if `stream` is not a stream, LifetimeError if the event or the stream
   * is disposed, CisternError (`ERR_CISTERN_INVALID_STATE`) if the event is shared.
   * @throws DriverError if the driver refuses; the previous recording may then be lost.
   */
  record(stream: Stream): void {
    if (!(stream instanceof Object) || !(stream.identity instanceof StreamIdentity) || stream.isDisposed)
      refuseStream(stream, 'record an event');
    this.assertNotShared('record an event');
    this.recordOn(stream.identity, 0);
  }

  /**
   * @internal Records on a stream whose `Stream` objects may all be gone.
   * @param outsideOfCaptures 1: refuses a stream that is captured
   */
  recordOn(identity: StreamIdentity, outsideOfCaptures: 0 | 1): void {
    this.version = ++StreamIdentity.records;
    this.recordedOn = identity.key;
    // Exports of another module are checked at each use; a local variable is not.
    const box = mailbox;
    box[0] = this.handle;
    box[1] = identity.handle;
    box[2] = outsideOfCaptures;
    native().recordEvent();
    if (box[0] !== 0) this.#refuseRecording();
    eventObserver?.eventRecorded(identity, this.version);
  }

  /** Whether the recorded work has run; true if nothing was recorded. */
  query(): boolean {
    mailbox[0] = this.handle;
    native().queryEvent();
    if (mailbox[0] !== 0) this.#refuse('query an event');
    return mailbox[1] === 1;
  }

  /**
   * Blocks until the work recorded before this call has run; host functions of this thread run
   * meanwhile. One of them may record the event again, or dispose it.
   */
  synchronizeSync(): void {
    this.assertLive('synchronize an event');
    const { handle } = this;
    checkBlocking('synchronize an event', () => native().synchronizeEvent(handle));
  }

  /** Resolves once the work recorded before this call has run. Does not block the event loop. */
  async synchronize(): Promise<void> {
    this.assertLive('synchronize an event');
    mailbox[0] = await native().eventCompletion(this.handle);
    check('synchronize an event');
  }

  /**
   * Milliseconds on the device between a start event and this one. Both need `timing` and must have
   * completed.
   * @throws DriverError if one has not completed (`CUDA_ERROR_NOT_READY`) or lacks `timing`
   * (`CUDA_ERROR_INVALID_HANDLE`); ArgumentTypeError if `start` is not an event.
   */
  elapsedMilliseconds(start: Event): number {
    if (!(start instanceof Event)) throw new ArgumentTypeError(`start must be an Event, got ${formatValue(start)}`);
    native().elapsedMilliseconds(start.handle, this.handle);
    check('measure between events');
    return mailbox[1] as number;
  }

  /**
   * Returns the event to the driver. Streams that wait for it go on waiting. A second call does
   * nothing.
   * @throws DriverError if the driver refuses; the event is then not disposed, and you can repeat
   * the call.
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

  /** @internal As `dispose`, but the driver's event is not destroyed: a function takes it over. */
  giveUp<Result>(take: (handle: number) => Result): Result {
    const result = take(this.handle);
    this.handle = -1;
    unreachable.unregister(this);
    return result;
  }

  /** @internal */
  assertLive(operation: string): void {
    if (this.handle < 0) throw alreadyDisposed(operation, 'the event');
  }

  /** @internal */
  assertNotShared(operation: string): void {
    if (this.shared === undefined) return;
    this.assertLive(operation);
    throw new CisternError(
      'ERR_CISTERN_INVALID_STATE',
      `cannot ${operation}: it is shared, so that other workers may be waiting for its recording`,
    );
  }

  #refuseRecording(): never {
    // A failed recording may have destroyed the previous one.
    this.recordedOn = undefined;
    this.#refuse('record an event');
  }

  #refuse(operation: string): never {
    const status = mailbox[0] as number;
    this.assertLive(operation);
    throw statusError(operation, status);
  }
}

markCopy(Event);

function destroy(handle: number): void {
  native().destroyEvent(handle);
  check('destroy an event');
}

/** A new event, recorded on a stream. */
export function recordedEvent(stream: Stream): Event {
  const event = new Event({ device: stream.device });
  try {
    event.record(stream);
    return event;
  } catch (error) {
    event.dispose();
    throw error;
  }
}
