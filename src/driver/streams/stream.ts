import {
  ArgumentRangeError,
  ArgumentTypeError,
  alreadyDisposed,
  CisternError,
  formatValue,
  invalidValue,
  LifetimeError,
  UnsupportedError,
} from '../../basics/errors.js';
import {
  assertBytes,
  assertInteger,
  assertMadeByCistern,
  assertNoPromise,
  assertOneOf,
  assertOptions,
  assertPointer,
  optionNames,
} from '../../basics/validation.js';
import { markCopy, otherCopyHint } from '../../package/copy.js';
import { type Device, deviceOption, mayUseMemoryOf } from '../device.js';
import { beginCapture, type CaptureMode, type CaptureStatus, captureStatusOf } from '../graphs/capture.js';
import { Graph } from '../graphs/graph.js';
import { assertGraph } from '../graphs/graph-object.js';
import { letGoOfEnded } from '../graphs/user-objects.js';
import { keptResult, mailbox, NativeStatus, native } from '../native.js';
import { isCheckingOrder, type MemoryAccess } from '../order-checks.js';
import { check, checkBlocking, isCapturing, statusError, warnOfLost } from '../status.js';
import { finalizationRegistry } from '../workers/collected-objects.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../workers/local-object.js';
import { Event } from './event.js';
import { currentScope, runInScope } from './scope-of-host-functions.js';
import { StreamIdentity } from './stream-identity.js';

/** Options of {@link Stream}. */
export interface StreamOptions {
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
  /**
   * Whether the stream runs independently of the legacy default stream.
   * @defaultValue false
   */
  readonly nonBlocking?: boolean | undefined;
  /**
   * A 32-bit integer. Lower is more urgent. Clamped to the device's range.
   * @defaultValue 0
   */
  readonly priority?: number | undefined;
}

const streamOptions = optionNames<StreamOptions>({ device: true, nonBlocking: 'boolean', priority: true });

/** Options of {@link Stream.fromHandle}. */
export interface ForeignStreamOptions {
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
  /**
   * You promise to dispose this object *before* the stream's owner destroys the stream. Without
   * this promise, resources record an event at every free on the stream, even under `'deferred'`,
   * because the stream may no longer exist when they need the event.
   *
   * Disposing an object with this promise also disposes every other object for the stream. If there
   * are several objects, the first one decides whether resources record events at every free. A
   * {@link Stream} that cistern created needs no promise, and is not disposed with such an object.
   * @defaultValue false
   */
  readonly announcesEnd?: boolean | undefined;
}

const foreignStreamOptions = optionNames<ForeignStreamOptions>({ announcesEnd: 'boolean', device: true });

/** A stream that was created elsewhere. */
type ExistingStream =
  | { readonly address: number; readonly announcesEnd: boolean }
  | { readonly id: number; readonly handle: number; readonly shared: object | undefined };

/** The data needed to end a stream whose object became unreachable. */
interface Ending {
  readonly device: Device;
  readonly identity: StreamIdentity;
  readonly reference: WeakRef<Stream>;
}

const unreachable = finalizationRegistry<Ending>('stream', 'CISTERN_UNREACHABLE_STREAM', ({ device, identity, reference }) =>
  identity.leave(reference, () => lastEventOf(device, identity, identity.announcesEnd)),
);
const undestroyed = finalizationRegistry<number>('stream', 'CISTERN_UNREACHABLE_STREAM', (handle) => {
  native().releaseStream(handle);
  check('destroy a stream');
});
const defaultStreams = new Map<string, Stream>();

/**
 * An in-order queue of work on a device. Memory that is freed on a stream can be reused in that
 * stream's order.
 *
 * Disposing a stream first records one event for all the memory that resources hold back for it.
 * Queued work still runs. Other objects for the same stream are disposed, too.
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
   * The driver's id of the stream: unique among the streams of its device, and never reused. The
   * default streams of two devices may have the same id.
   */
  readonly id: number;
  /** @internal The native handle; -1 once disposed. */
  handle: number;
  /** @internal What the environment knows about the driver's stream. */
  readonly identity: StreamIdentity;
  readonly #isDefault: boolean;
  /**
   * Whether the driver's stream may be destroyed once this object is disposed, even if there are
   * other objects for it.
   */
  readonly #endsStream: boolean;
  readonly #reference: WeakRef<Stream>;

  /**
   * @throws ArgumentTypeError or ArgumentRangeError for invalid options, DriverError if the driver
   * refuses.
   */
  constructor(options?: StreamOptions);
  /** @internal */
  constructor(options: StreamOptions, existing: ExistingStream);
  constructor(options: StreamOptions = {}, existing?: ExistingStream) {
    if (existing === undefined) assertOptions(options, streamOptions);
    this.device = deviceOption(options.device);
    const attached = existing !== undefined && 'id' in existing ? existing : undefined;
    const foreign = existing !== undefined && 'address' in existing ? existing : undefined;
    this.#isDefault = foreign !== undefined && foreign.address <= 2;
    if (foreign !== undefined) {
      native().wrapStream(this.device.index, foreign.address);
      checkContext(foreign.address, this.device);
      check(`use the stream with handle ${foreign.address}`);
    } else if (attached === undefined) {
      const { priority = 0 } = options;
      assertPriority(priority);
      native().createStream(this.device.index, options.nonBlocking === true, priority);
      check('create a stream');
    }
    const handle = attached?.handle ?? keptResult(1);
    this.id = attached?.id ?? identify(handle);
    const isOwned = foreign === undefined;
    const announcesEnd = foreign?.announcesEnd ?? true;
    this.identity = StreamIdentity.of(this.id, this.device.index, handle, isOwned, announcesEnd);
    this.identity.shared ??= attached?.shared;
    this.#endsStream = isOwned || (announcesEnd && !this.identity.isOwned);
    this.handle = this.identity.handle;
    this.#reference = this.identity.join(this);
    unreachable.register(this, { device: this.device, identity: this.identity, reference: this.#reference }, this);
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { id: this.id, device: this.device.index, isDisposed: this.isDisposed }, inspection);
  }

  /**
   * The legacy default stream of a device. It waits for every blocking stream, and every blocking
   * stream waits for it. Disposing it does nothing.
   */
  static legacyDefault(device?: Device): Stream {
    return defaultStream(1, device);
  }

  /** The default stream of this thread on a device. Disposing it does nothing. */
  static perThreadDefault(device?: Device): Stream {
    return defaultStream(2, device);
  }

  /**
   * A stream created elsewhere, by its driver handle (a `CUstream` or `cudaStream_t` as an
   * address). It still belongs to its owner. Without a promise ({@link
   * ForeignStreamOptions.announcesEnd}), the owner may destroy it at any time, provided that you
   * queue nothing more through this object.
   * @throws ArgumentTypeError or ArgumentRangeError for an invalid handle, or one of another device's
   * stream; DriverError for a handle that the driver does not know.
   * @throws CisternError (`ERR_CISTERN_CAPTURING`) for a stream that is captured now, unless this worker has created or attached
   * it: the driver would end the capture. So call this before the capture begins, and keep the result.
   * @throws UnsupportedError for a stream of a context other than the device's primary one, such as a
   * green context or one from `cuCtxCreate`: CUDA cannot record an event of one context on a stream
   * of another.
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
    return new Stream(options, { address, announcesEnd: options.announcesEnd === true });
  }

  /** The driver's own handle, for other libraries. */
  get nativeHandle(): number {
    this.#assertLive('read the handle of a stream');
    return this.identity.nativeHandle;
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

  /** Whether the stream is disposed. */
  get isDisposed(): boolean {
    return this.handle < 0;
  }

  /** Makes later work on the stream wait for the event's latest recording. Does not block. */
  wait(event: Event): void {
    if (!(event instanceof Event)) throw new ArgumentTypeError(`event must be an Event, got ${formatValue(event)}`);
    // Exports of another module are checked at each use; a local variable is not.
    const box = mailbox;
    box[0] = this.handle;
    box[1] = event.handle;
    box[2] = 0;
    native().waitEvent();
    if (box[0] === 0) {
      this.identity.noteWait(event);
      return;
    }
    this.#assertLive('wait for an event');
    if (event.handle < 0) throw new LifetimeError('ERR_CISTERN_DISPOSED', 'cannot wait for an event: it is already disposed');
    check('wait for an event');
  }

  /** Whether everything queued on the stream has run. */
  query(): boolean {
    this.#assertLive('query a stream');
    return this.identity.query();
  }

  /** Resolves once everything queued before this call has run. Does not block the event loop. */
  async synchronize(): Promise<void> {
    this.#assertLive('synchronize a stream');
    const complete = this.identity.beginSynchronization();
    const status = await native().streamCompletion(this.handle);
    mailbox[0] = status;
    check('synchronize a stream');
    complete();
  }

  /**
   * Blocks until everything queued before this call has run; host functions of this thread run
   * meanwhile. One of them may dispose the stream.
   */
  synchronizeSync(): void {
    this.#assertLive('synchronize a stream');
    this.identity.synchronizeSync();
    letGoOfEnded();
  }

  /**
   * Queues a function. When its turn comes, the stream pauses until the function has run on this
   * thread, either from the event loop or inside a blocking call. Meanwhile, other streams of the
   * same hardware queue may pause, too, as with {@link Stream.hold}. If the function throws, the
   * error is reported as an uncaught exception. If the device fails first, the function never runs,
   * and a process warning (`CISTERN_LOST_HOST_FUNCTION`) says so.
   *
   * Like CUDA's own host functions, it must not wait for a device: inside it, synchronizing, and allocating
   * or freeing plain memory, fail with a {@link DriverError} (`CUDA_ERROR_NOT_PERMITTED`). So does a copy
   * from or to an array that needs more pinned memory for staging than cistern keeps, which is enough for
   * sixteen copies of 64 KiB that have not run yet. A pool can still serve requests from memory that it
   * holds.
   *
   * It runs in the scopes of this call, such as that of an account, a grant or a current resource, and not
   * in those of a call that waits meanwhile.
   *
   * On a captured stream, it becomes part of the graph, and runs at each launch. The graph keeps the
   * function alive, and everything that the function refers to. If the function refers to the graph
   * itself, you must dispose the graph to free it.
   * @throws ArgumentTypeError if `callback` is not a function, LifetimeError if the stream is disposed,
   * CisternError (`ERR_CISTERN_CAPTURING`) in a capture that another library or another worker has begun,
   * because only they know when the graph runs, DriverError if the driver refuses.
   */
  launchHostFunction(callback: () => void): void {
    this.#assertLive('launch a host function');
    if (typeof callback !== 'function') throw new ArgumentTypeError(`callback must be a function, got ${formatValue(callback)}`);
    const scope = currentScope();
    const run = (status: number) => {
      if (status > 0) return warnOfLostFunction(this.id, status);
      try {
        runInScope(scope, callback);
      } catch (error) {
        // Null tells the addon that a time-out cut the function off.
        throw error ?? undefined;
      }
    };
    checkBlocking('launch a host function', () => native().launchHostFunction(this.handle, run));
  }

  /**
   * Whether work queued on the stream runs or is recorded. Other streams join a capture by waiting for an
   * event that was recorded in it.
   * @throws LifetimeError if the stream is disposed, DriverError if the driver refuses.
   */
  get captureStatus(): CaptureStatus {
    this.#assertLive('ask whether a stream is captured');
    return captureStatusOf(this.handle);
  }

  /**
   * Records the work queued on the stream from now on, instead of running it, until {@link
   * Stream.endCapture}. Prefer {@link Stream.capture}, which does both and is harder to get wrong.
   *
   * Fills, host functions, and copies other than those to arrays become part of the graph, as does the work
   * of other libraries. Events and waits give it an order: a stream that waits for an event of the capture
   * joins it, and before the end, the first stream must wait for an event of each stream that joined. Other
   * calls are refused with `ERR_CISTERN_CAPTURING`, and the capture goes on. If a call of another library
   * makes the driver invalidate it, {@link Stream.captureStatus} says so, and `endCapture` fails.
   *
   * Keep memory that a graph uses allocated until its last launch has run. RMM has no counterpart;
   * CUDA's is `cuStreamBeginCapture`.
   * @param mode which potentially unsafe calls of other libraries invalidate the capture
   * @throws ArgumentTypeError or ArgumentRangeError for an invalid mode; LifetimeError if the stream is
   * disposed; CisternError (`ERR_CISTERN_CAPTURING`) if it is captured already; DriverError if the driver
   * refuses, as it does on the legacy default stream.
   */
  beginCapture(mode: CaptureMode = 'thread-local'): void {
    this.#assertLive('begin a capture');
    this.identity.endGivenUpCapture();
    const { isCaptured } = this.identity;
    try {
      beginCapture(this.handle, mode);
    } catch (error) {
      // The capture may have begun nevertheless.
      if (!isCaptured && !isCapturing(error)) this.identity.giveUpCapture();
      throw error;
    }
    this.identity.captureBegan();
  }

  /**
   * Ends the capture that began on this stream.
   * @returns what was recorded
   * @throws LifetimeError if the stream is disposed. CisternError (`ERR_CISTERN_INVALID_STATE`) in the function of
   * {@link Stream.capture}, which ends that capture. DriverError if cistern began no capture on this
   * stream and thread, which changes nothing; or if the capture was invalidated
   * (`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`), or this stream has not waited for a stream that joined
   * (`CUDA_ERROR_STREAM_CAPTURE_UNJOINED`): the capture has then ended without a graph.
   */
  endCapture(): Graph {
    this.#assertLive('end a capture');
    if (this.identity.isRecorded) {
      throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot end a capture: it ends when the function that is captured returns');
    }
    native().endCapture(this.handle);
    try {
      check('end a capture');
    } catch (error) {
      this.identity.captureMayHaveEnded();
      throw error;
    }
    const graph = new Graph(this.device);
    this.identity.captureEnded();
    return graph;
  }

  /**
   * Records the work that a function queues on the stream, and on streams that join. If the function throws, or
   * the driver refuses to end the capture, the capture is abandoned, or if the driver refuses that, too, before
   * the next capture.
   * @param record a synchronous function: the capture ends when it returns
   * @param mode as for {@link Stream.beginCapture}
   * @throws any error that `record` throws; ArgumentTypeError if it is not a function, or returns a promise;
   * otherwise as {@link Stream.beginCapture} and {@link Stream.endCapture}
   * @example
   * ```ts
   * using stream = new Stream();
   * using upstream = new CudaMemoryResource();
   * const source = upstream.allocate(4096, stream);
   * const target = upstream.allocate(4096, stream);
   * using graph = stream.capture(() => {
   *   copy(target, source, 4096, stream);
   *   set(source, 0, 1, 4096, stream);
   * });
   * using exec = graph.instantiate();
   * for (let step = 0; step < 100; step++) exec.launch(stream);
   * await stream.synchronize();
   * upstream.deallocate(target, 4096, stream);
   * upstream.deallocate(source, 4096, stream);
   * ```
   */
  capture(record: () => void, mode: CaptureMode = 'thread-local'): Graph {
    if (typeof record !== 'function') throw new ArgumentTypeError(`record must be a function, got ${formatValue(record)}`);
    this.beginCapture(mode);
    try {
      assertNoPromise(this.identity.recorded(record), 'record', 'the capture');
      return this.endCapture();
    } catch (error) {
      if (!this.isDisposed) this.identity.giveUpCapture();
      throw error;
    }
  }

  /**
   * Adds a graph as a node to the one that this stream is captured into: all of its work runs after the work
   * captured on the stream so far, and before later work. The node is a copy of the graph as it is now, with
   * the objects that it retains ({@link Graph.retain}) and its host functions, so you can dispose the graph
   * afterwards. You can add it any number of times, to any number of graphs. Does not block.
   *
   * RMM has no counterpart; CUDA's is `cuGraphAddChildGraphNode`.
   * @throws ArgumentTypeError if `graph` is not a graph; LifetimeError if it or the stream is disposed;
   * UnsupportedError if it allocates or frees memory, which CUDA does not allow in a child graph, or was
   * captured by a `GraphMemoryResource`, whose graphs take turns; CisternError (`ERR_CISTERN_CAPTURING`) if it
   * has host functions and another library or worker has begun the capture; DriverError if the stream is not
   * captured, or the driver refuses. If the driver refuses after it has added the child, the capture becomes
   * invalid, so that no graph has the child out of order.
   * @example
   * ```ts
   * using stream = new Stream();
   * const buffer = new DeviceBuffer(4096, { stream });
   * using layer = stream.capture(() => set(buffer.ptr, 0, 1, 4096, stream));
   * using graph = stream.capture(() => {
   *   for (let i = 0; i < 3; i++) stream.addChildGraph(layer);
   * });
   * console.log(graph.nodeCounts.childGraphs); // 3
   * ```
   */
  addChildGraph(graph: Graph): void {
    const operation = 'add a child graph';
    this.#assertLive(operation);
    assertGraph(graph, operation);
    if (graph.memory !== undefined) {
      throw new UnsupportedError(`cannot ${operation}: it shares memory with other graphs, with which it takes turns`);
    }
    const { allocations, frees } = graph.nodeCounts;
    if (allocations + frees > 0) {
      throw new UnsupportedError(
        `cannot ${operation}: it has ${allocations} allocations and ${frees} frees of memory, which CUDA does not allow in a child graph`,
      );
    }
    native().addChildGraph(this.handle, graph.handle);
    check(operation);
  }

  /**
   * Declares that work which cistern cannot see, such as another library's kernel, uses memory at
   * this point of the stream. While stream order is checked ({@link checkOrder}), this use is
   * checked against the others; otherwise the call does nothing.
   * @param pointer the start of the used memory
   * @throws ArgumentTypeError, ArgumentRangeError, LifetimeError (only while stream order is
   * checked)
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
    assertPointer(pointer);
    assertBytes(bytes);
    assertOneOf(access, ['read', 'write'], 'access');
    native().touch(pointer, bytes, this.handle, access === 'write');
    check('touch memory');
  }

  /**
   * Pauses the stream here until the hold is released. For tests of stream order. A blocking call
   * that waits for a held stream never returns.
   *
   * You can hold any number of streams at a time. On a GPU, streams that share a hardware queue with a
   * held one may pause, too: there are `CUDA_DEVICE_MAX_CONNECTIONS` queues, 8 unless this environment
   * variable is set (up to 32) before the process first uses the device. On a device without stream
   * memory operations, a host function of the driver waits instead; then you can hold only one stream at
   * a time, while no other host function is outstanding.
   */
  hold(): StreamHold {
    this.#assertLive('hold a stream');
    checkBlocking('hold a stream', () => native().holdStream(this.handle));
    return new StreamHold(mailbox[1] as number);
  }

  /**
   * Records an event for the memory that resources hold back for the stream, and returns the stream
   * to the driver. Queued work still runs. A second call does nothing. If the object is for a
   * foreign stream whose end is not announced ({@link ForeignStreamOptions.announcesEnd}), the
   * stream may no longer exist: the call does not touch it, and if an event would be needed, waits
   * for the device instead.
   * @throws DriverError if the driver can neither record an event nor wait, or if it refuses to
   * destroy the stream; the stream is then not disposed, and you can repeat the call.
   */
  [Symbol.dispose](): void {
    if (this.handle < 0 || this.#isDefault) return;
    // Only an owner that announces the stream's end is known to have kept it alive.
    const record = () => lastEventOf(this.device, this.identity, this.#endsStream || this.identity.announcesEnd);
    if (this.#endsStream && this.identity.shared === undefined) this.identity.end(record);
    else this.identity.leave(this.#reference, record);
    this.handle = -1;
    unreachable.unregister(this);
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal The same, but the driver's stream is not destroyed: a function takes it over. */
  giveUp<Result>(take: (handle: number) => Result): Result {
    let result: Result | undefined;
    this.identity.end(
      () => lastEventOf(this.device, this.identity, true),
      (handle) => {
        result = take(handle);
      },
    );
    unreachable.unregister(this);
    return result as Result;
  }

  #assertLive(operation: string): void {
    if (this.handle < 0) throw alreadyDisposed(operation, `stream ${this.id}`);
  }

  /** @internal @throws UnsupportedError if this object does not own the driver's stream; LifetimeError if it is disposed. */
  assertOwner(operation: string): void {
    this.#assertLive(operation);
    if (this.#endsStream && this.identity.isOwned) return;
    throw new UnsupportedError(
      this.#isDefault
        ? `cannot ${operation}: every worker has the default streams`
        : `cannot ${operation}: this object did not create stream ${this.id}; pass its nativeHandle to Stream.fromHandle`,
    );
  }
}

markCopy(Stream);

/** Keeps a stream paused; see {@link Stream.hold}. */
export class StreamHold implements Disposable {
  readonly #handle: number;
  #released = false;

  /** @internal */
  constructor(handle: number) {
    assertMadeByCistern(handle, 'StreamHold', 'Stream.hold');
    this.#handle = handle;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { isReleased: this.#released }, inspection);
  }

  /** Resumes the stream. A second call does nothing. */
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
 * @internal Means "no stream yet" in a cache of the last call's stream. No argument equals it, not
 * even `undefined`.
 */
export const noStream = Object.freeze({ handle: -1 }) as Stream;

/**
 * Checks that an argument is a live stream.
 * @throws ArgumentTypeError if it is not a stream, LifetimeError if it is disposed.
 */
export function assertStream(stream: unknown, operation: string): asserts stream is Stream {
  if (!(stream instanceof Stream) || stream.handle < 0) throw unusableStream(stream, operation);
}

/** Apart (V8: inlining). */
function unusableStream(stream: unknown, operation: string): Error {
  if (stream instanceof Stream) return alreadyDisposed(operation, `stream ${stream.id}`);
  return new ArgumentTypeError(`stream must be a Stream, got ${formatValue(stream)}`);
}

/**
 * Refuses an operation that cannot be part of a graph, before any part of it is queued.
 * @throws as `assertStream`; CisternError (`ERR_CISTERN_CAPTURING`) if the stream is captured
 */
export function assertNotCaptured(stream: Stream, operation: string): void {
  assertStream(stream, operation);
  if (captureStatusOf(stream.handle) !== 'none') throw statusError(operation, NativeStatus.capturing);
}

/**
 * @param operation the operation that needs the stream; any except `'allocate'` is allowed after
 * access was disabled
 * @throws ArgumentRangeError for a stream of another device that has no access to the device's memory.
 */
export function assertStreamOf(stream: Stream, device: Device, operation?: string): void {
  if (stream.device !== device) assertAccess(stream, device, operation);
}

/** As `assertStreamOf`, for a stream of another device. Apart (V8: inlining). */
function assertAccess(stream: Stream, device: Device, operation: string | undefined): void {
  if (stream.device.hasAccessTo(device)) return;
  if (operation !== undefined && operation !== 'allocate' && mayUseMemoryOf(stream.device, device)) return;
  const { index } = stream.device;
  const cure = `; call Device.get(${index}).enablePeerAccess(Device.get(${device.index})) to give it access`;
  throw invalidValue(
    `stream must belong to device ${device.index}${otherCopyHint(device)}, got one of device ${index}${index === device.index ? '' : cure}`,
  );
}

function defaultStream(handle: 1 | 2, device: Device | undefined): Stream {
  const owner = deviceOption(device);
  const key = `${handle}:${owner.index}`;
  let stream = defaultStreams.get(key);
  if (stream === undefined) {
    stream = new Stream({ device: owner }, { address: handle, announcesEnd: true });
    defaultStreams.set(key, stream);
  }
  return stream;
}

/** Throws if the last native call found that a stream is not of a device's primary context. */
function checkContext(address: number, device: Device): void {
  if (mailbox[0] !== NativeStatus.foreignContext) return;
  const other = mailbox[1] as number;
  const handle = `0x${address.toString(16)}`;
  if (other >= 0) {
    throw invalidValue(`handle must be of a stream of device ${device.index}, got ${handle}, which is a stream of device ${other}`);
  }
  throw new UnsupportedError(
    `cannot use the stream with handle ${handle}: it belongs to a context other than the primary one of device ${device.index}, ` +
      "such as a green context or one from cuCtxCreate; create it in the primary context, as CUDA's runtime does",
  );
}

function warnOfLostFunction(stream: number, status: number): void {
  warnOfLost(`a host function of stream ${stream}`, status);
}

/**
 * The driver's id of a stream. If the driver does not answer, the handle is released, now or at the
 * next collection.
 */
function identify(handle: number): number {
  native().streamId(handle);
  try {
    check('identify a stream');
  } catch (error) {
    native().releaseStream(handle);
    if (mailbox[0] !== 0) undestroyed.register({}, handle);
    throw error;
  }
  return keptResult(1);
}

function assertPriority(priority: unknown): asserts priority is number {
  assertInteger(priority, 'priority', -(2 ** 31), 2 ** 31 - 1, '-2^31 to 2^31 - 1');
}

/**
 * An event recorded after everything that was queued on a stream. If none can be recorded, waits
 * for that work and returns `undefined`.
 * @param isAlive whether the driver's stream is known to exist
 */
function lastEventOf(device: Device, identity: StreamIdentity, isAlive: boolean): Event | undefined {
  if (isAlive) {
    try {
      const event = new Event({ device });
      event.recordOn(identity, 1);
      return event;
    } catch {
      // Without an event, wait below.
    }
  }
  // Without an event or a wait, memory held back for the stream could never be reused safely.
  device.synchronizeSync();
  return undefined;
}
