import { layersOf } from '../../adaptors/layers.js';
import { ArgumentTypeError, CisternError, formatValue, invalidValue, LifetimeError, OutOfMemoryError } from '../../basics/errors.js';
import { assertMadeByCistern, assertOptions, optionNames } from '../../basics/validation.js';
import type { ExportableBuffer } from '../../buffers/buffer-memory.js';
import { type BufferMemory, memoryOf } from '../../buffers/buffer-memory.js';
import { anyMemory } from '../../buffers/create-memory.js';
import { currentResource } from '../../buffers/current-resource.js';
import type { BufferCopyOptions, HostData } from '../../buffers/transfers/buffer-contents.js';
import type { ByteRange } from '../../buffers/transfers/byte-range.js';
import { copyInto, copyOut, fill } from '../../buffers/transfers/copies.js';
import { disown, freeSoonerOrLater, own, type StandIn } from '../../collector/free-unreachable-buffers.js';
import { assertStream, type Stream } from '../../driver/streams/stream.js';
import { finalizationRegistry } from '../../driver/workers/collected-objects.js';
import { type Inspection, inspected, inspectedPointer, inspectObject, refuseCloning } from '../../driver/workers/local-object.js';
import type { DeviceMemory, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { tentatively } from '../../observing/failed-allocations.js';
import { markCopy } from '../../package/copy.js';
import { assertWait, type WaitOptions, waitOptionNames } from '../waiting/wait-options.js';
import { AddressUses } from './address-uses.js';
import { followOnce } from './moves.js';
import { type PinState, SpillableMemory } from './spillable-memory.js';
import { SpillingResourceAdaptor } from './spilling-resource-adaptor.js';

/** Options of {@link SpillableBuffer}. */
export interface SpillableBufferOptions {
  /**
   * A stack with a {@link SpillingResourceAdaptor}, whose top allocates and frees the memory each time.
   * @defaultValue the current resource of the stream's device
   */
  readonly resource?: MemoryResource | undefined;
  /** The stream that the contents are first ordered on, and the default stream of pins. */
  readonly stream: Stream;
  /**
   * A power of two that the resource supports; at least 256 is always given.
   * @defaultValue 256
   */
  readonly alignment?: number | undefined;
  /**
   * A human-readable name, shown in recordings and leak reports.
   * @defaultValue none
   */
  readonly label?: string | undefined;
}

/** Options of {@link SpillableBuffer.create}. */
export interface SpillableBufferCreateOptions extends SpillableBufferOptions, WaitOptions {}

const bufferOptions = optionNames<SpillableBufferOptions>({ alignment: true, label: true, resource: true, stream: true });

const createOptions = optionNames<SpillableBufferCreateOptions>({
  alignment: true,
  label: true,
  resource: true,
  signal: true,
  stream: true,
  timeoutMilliseconds: true,
});

/**
 * Memory that may leave the device while nobody uses it: when memory is short, its contents go to the host, or on to a file, and its device memory to others.
 * Who uses it pins it, which brings it back: the address is known only within a pin.
 *
 * ```text
 * {
 *   using pin = await buffer.pin();   // the contents are on the device, in the order of the pin's stream
 *   kernel(pin.ptr, pin.byteLength);
 * }                                   // from here on, the buffer may leave
 * ```
 *
 * The memory is charged to the account and the grant in whose scope you created the buffer, even if another one brings
 * it back. It is freed when you dispose the buffer, or otherwise after the garbage collector finds it unreachable.
 *
 * Stream order: a pin's stream is ordered after the contents' way back, and after what was queued for the pins before it. What is queued
 * later for pins that overlap on several streams, the program orders, except by the methods of pins, which do. Nothing here waits on the host, except for memory that was used
 * on a stream that has ended since.
 *
 * RMM has no counterpart; cuDF's spillable buffers are similar.
 * @example
 * ```ts
 * using device = new CudaMemoryResource();
 * using pinned = new PinnedHostMemoryResource();
 * using host = new PoolMemoryResource(pinned);
 * using resource = new SpillingResourceAdaptor(device, host);
 * using stream = new Stream();
 * using weights = new SpillableBuffer(Float32Array.of(1, 2, 3), { stream, resource });
 * resource.spill();
 * console.log(weights.isOnDevice); // false
 * using pin = await weights.pin();
 * console.log(new Float32Array((await pin.toHost()).buffer)); // 1, 2, 3
 * ```
 */
export class SpillableBuffer implements Disposable {
  readonly #memory: SpillableMemory;
  readonly #adaptor: SpillingResourceAdaptor;
  readonly #stream: Stream;
  /** Is collected together with this buffer; `undefined` once disposed. */
  #standIn: StandIn | undefined;

  /**
   * Allocates and, if you give data, queues a copy of it, as {@link DeviceBuffer} does. Other
   * buffers are spilled if memory is short.
   * @param source the length in bytes; or host data or device memory to copy
   * @throws OutOfMemoryError if there is no memory even after others were spilled.
   * @throws ArgumentTypeError, ArgumentRangeError for any other argument, or a resource without a {@link SpillingResourceAdaptor};
   * LifetimeError (`ERR_CISTERN_DISPOSED`), DriverError as {@link DeviceBuffer}.
   */
  constructor(source: number | HostData | DeviceMemory, options: SpillableBufferOptions) {
    assertOptions(options, bufferOptions);
    const { stream } = options;
    assertStream(stream, 'create a buffer');
    const resource = options.resource ?? currentResource(stream.device);
    // What outlives the buffer has these functions, which must not refer to it.
    const adaptor = spillingAdaptorOf(resource);
    this.#adaptor = adaptor;
    this.#stream = stream;
    const graphs = new AddressUses(() => adaptor.isIdle());
    const allocate = (memory: BufferMemory, bytes: number) => {
      adaptor.reclaiming(() => memory.allocateAtOnce(bytes));
      if (bytes === 0) return;
      try {
        graphs.note(stream);
      } catch (error) {
        freeSoonerOrLater(memory);
        throw error;
      }
    };
    this.#memory = new SpillableMemory(anyMemory(source, { ...options, resource }, new.target, allocate), adaptor, graphs);
    this.#standIn = own(this.#memory);
    refuseCloning(this);
  }

  /**
   * The same as the constructor, but waits for memory if it may be returned because it is pinned or
   * allocated by others. Waiting calls are served in order.
   * @throws OutOfMemoryError if there is no memory, and none that could be returned, or the time is
   * over; the reason of the signal; other errors as the constructor.
   */
  static async create(source: number | HostData | DeviceMemory, options: SpillableBufferCreateOptions): Promise<SpillableBuffer> {
    assertOptions(options, createOptions);
    const { signal, timeoutMilliseconds, ...rest } = options;
    assertStream(rest.stream, 'create a buffer');
    const adaptor = spillingAdaptorOf(rest.resource ?? currentResource(rest.stream.device));
    return adaptor.inTurn(() => new SpillableBuffer(source, rest), { signal, timeoutMilliseconds });
  }

  /**
   * Pins several buffers together, or none. It holds nothing while it waits, so calls of this
   * method cannot wait for each other. If you pin one buffer after the other instead, two calls
   * that each hold what the other needs wait forever, or for their `timeoutMilliseconds`; in the scopes of grants, one of them is refused.
   * @param stream the stream of all pins
   * @defaultValue stream that of each buffer
   * @throws as {@link SpillableBuffer.pin}; ArgumentRangeError for buffers of several {@link SpillingResourceAdaptor}s.
   */
  static async pinAll(buffers: readonly SpillableBuffer[], stream?: Stream, options: WaitOptions = {}): Promise<SpillPin[]> {
    assertOptions(options, waitOptionNames);
    assertWait(options);
    const adaptor = commonAdaptor(buffers);
    for (const buffer of buffers) buffer.#assertPinnable(stream);
    if (adaptor === undefined) return [];
    const states = await adaptor.inTurn(() => SpillableBuffer.#pinEach(buffers, stream), options);
    return SpillableBuffer.#onceReady(buffers, states, options);
  }

  /** Whether it is disposed, or its memory was taken back, for example when a pool was disposed. */
  get isDisposed(): boolean {
    return this.#memory.endReason !== undefined;
  }

  /** The length in bytes; 0 once disposed. */
  get byteLength(): number {
    return this.isDisposed ? 0 : this.#memory.bytes;
  }

  /** Whether the contents are on the device, or on the way there from the host. */
  get isOnDevice(): boolean {
    return this.#memory.isOnDevice;
  }

  /** Whether it has a pin that has not ended. */
  get isPinned(): boolean {
    return this.#memory.isPinned;
  }

  /** The resource that allocates and frees the memory on the device. */
  get resource(): MemoryResource {
    return this.#memory.stack;
  }

  /** A human-readable name. */
  get label(): string | undefined {
    return this.#memory.label;
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    const { isDisposed, isOnDevice, isPinned, byteLength, label, resource } = this;
    const shown = isDisposed ? { isDisposed: true, label } : { byteLength, isOnDevice, isPinned, label, resource };
    return inspectObject(this, shown, inspection);
  }

  /**
   * Brings the contents back if they have left, and keeps them on the device until the pin is disposed. If there is no memory,
   * other buffers leave; if none can, this waits for those who may give memory back, in the order of the calls. What is
   * resolved is that the copy is queued: work on the pin's stream runs after it. If they are in a file, this waits until they have been read.
   *
   * In a capture on the stream, the contents must be on the device already. The buffer then stays there, even after the pin has ended, until the
   * graph, the executable graphs made from it, and their launches have ended, since the graph has its address. So does a buffer that was pinned before the capture, if
   * the pin's stream is captured, or if its address is read during a capture on another stream. The launches must be ordered after what was queued for it before, and what uses
   * it next after the launches.
   * @param stream the stream whose work uses the memory
   * @defaultValue stream that of the constructor
   * @throws OutOfMemoryError if there is no memory, and none that could be returned, or the time is
   * over; the reason of the signal; NotAdmittedError (`'deadlock'`) in the scope of a grant, if all who pin buffers or hold promised memory wait for
   * more, and this call is the youngest of the lowest priority.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer, the stream or the resource is disposed, meanwhile too;
   * CisternError (`ERR_CISTERN_CAPTURING`) if it would have to come back in a capture; ArgumentTypeError, ArgumentRangeError for invalid
   * arguments; DriverError if the driver refuses, CisternError (`ERR_CISTERN_SPILL_FILE`) if their file cannot be read. The contents are then where they
   * were.
   */
  async pin(stream: Stream = this.#stream, options: WaitOptions = {}): Promise<SpillPin> {
    assertOptions(options, waitOptionNames);
    assertWait(options);
    this.#assertPinnable(stream);
    if (this.isOnDevice) return this.#pin(stream);
    const state = await this.#adaptor.inTurn(() => this.#memory.pin(stream), options);
    const [pin] = await SpillableBuffer.#onceReady([this], [state], options);
    return pin as SpillPin;
  }

  /**
   * The same as {@link SpillableBuffer.pin}, but fails instead of waiting for memory, and does not
   * queue behind waiting calls. Does not block.
   * @throws OutOfMemoryError if there is no memory even after others have left; CisternError (`ERR_CISTERN_INVALID_STATE`) if the contents are in a file, or on
   * the way from there; otherwise as `pin`.
   */
  pinSync(stream: Stream = this.#stream): SpillPin {
    this.#assertPinnable(stream);
    if (this.#memory.isInFile) {
      throw new CisternError(
        'ERR_CISTERN_INVALID_STATE',
        'cannot pin a buffer at once: its contents are in a file; await pin, or prefetch before',
      );
    }
    return this.#adaptor.reclaiming(() => this.#pin(stream));
  }

  /**
   * Begins to bring the contents back before you pin them, so that the copy overlaps with other
   * work. Other buffers are spilled if necessary. Does not block, and counts as a use.
   * @returns whether they are on the device or on the way there; false if there is no memory
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or the resource is disposed; DriverError if the driver refuses.
   */
  prefetch(): boolean {
    try {
      tentatively(() => this.#memory.prefetch());
      return true;
    } catch (error) {
      if (error instanceof OutOfMemoryError) return false;
      throw error;
    }
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /**
   * Frees the memory, wherever it is, in the order of its last use, and ends its pins. A second call does
   * nothing.
   * @throws DriverError, or any other error of the resource; the buffer is then unchanged, and you
   * can repeat the call.
   */
  [Symbol.dispose](): void {
    if (this.#standIn === undefined) return;
    this.#memory.dispose();
    disown(this.#standIn);
    this.#standIn = undefined;
  }

  /** Pins all, or none if one of them fails. None of them leaves for another. */
  static #pinEach(buffers: readonly SpillableBuffer[], stream: Stream | undefined): PinState[] {
    const states: PinState[] = [];
    let finished = 0;
    try {
      for (const buffer of buffers) states.push(buffer.#memory.beginPin(stream ?? buffer.#stream));
      SpillableMemory.returnAll(buffers.map((buffer) => buffer.#memory));
      const order = followOnce();
      for (const state of states) {
        state.memory.finishPin(state, order);
        finished++;
      }
    } catch (error) {
      for (const state of states.splice(finished)) state.memory.cancelPin(state);
      SpillableBuffer.#undoEach(buffers, states);
      throw error;
    }
    return states;
  }

  /** Waits for contents that come from files. If they do not come, or the wait is aborted, all pins end. */
  static async #onceReady(buffers: readonly SpillableBuffer[], states: readonly PinState[], { signal }: WaitOptions): Promise<SpillPin[]> {
    try {
      await Promise.all(states.map(({ ready }) => ready));
      signal?.throwIfAborted();
    } catch (error) {
      SpillableBuffer.#undoEach(buffers, states);
      throw error;
    }
    return buffers.map((buffer, i) => buffer.#pinned(states[i] as PinState));
  }

  static #undoEach(buffers: readonly SpillableBuffer[], states: readonly PinState[]): void {
    states.forEach((state, i) => {
      (buffers[i] as SpillableBuffer).#undo(state);
    });
  }

  /** Ends a pin that is not returned; if the driver refuses, it ends when it is collected. */
  #undo(state: PinState): void {
    try {
      this.#memory.unpin(state);
    } catch {
      new SpillPin(this, this.#memory, state);
    }
  }

  #pin(stream: Stream): SpillPin {
    return this.#pinned(this.#memory.pin(stream));
  }

  #pinned(state: PinState): SpillPin {
    this.#memory.noteUse();
    return new SpillPin(this, this.#memory, state);
  }

  /** @internal */
  static adaptorOf(buffer: unknown): SpillingResourceAdaptor {
    if (!(buffer instanceof SpillableBuffer)) throw new ArgumentTypeError(`buffers must be SpillableBuffers, got ${formatValue(buffer)}`);
    return buffer.#adaptor;
  }

  #assertPinnable(stream: Stream = this.#stream): void {
    this.#memory.assertLive('pin a buffer');
    assertStream(stream, 'pin a buffer');
  }
}

markCopy(SpillableBuffer);

interface Unfinished {
  readonly memory: SpillableMemory;
  readonly state: PinState;
}

const unreachable = finalizationRegistry<Unfinished>('pin', 'CISTERN_UNREACHABLE_PIN', ({ memory, state }) => memory.unpin(state));

/**
 * Keeps a {@link SpillableBuffer} on the device until it is disposed. It has a `ptr` and a
 * `byteLength`, so existing GPU libraries accept it as memory. A pin that is collected without
 * having been disposed ends, too.
 *
 * Stream order: `stream` is ordered after earlier uses of the memory, and work queued on it until this is disposed is
 * ordered before later uses.
 */
export class SpillPin implements Disposable, ExportableBuffer {
  /** The stream whose work uses the memory. */
  readonly stream: Stream;
  /** Is not collected before this. */
  readonly #buffer: SpillableBuffer;
  readonly #memory: SpillableMemory;
  readonly #state: PinState;

  /** @internal */
  constructor(buffer: SpillableBuffer, memory: SpillableMemory, state: PinState) {
    assertMadeByCistern(buffer, 'SpillPin', 'SpillableBuffer.pin');
    this.#buffer = buffer;
    this.#memory = memory;
    this.#state = state;
    this.stream = state.stream;
    unreachable.register(this, { memory, state }, this);
  }

  /**
   * The address of the first byte; 0 if there are none.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) once the pin or the buffer is disposed; CisternError (`ERR_CISTERN_ASLEEP`) while the memory is asleep;
   * DriverError if the driver does not tell whether the address may go into a graph.
   */
  get ptr(): DevicePointer {
    const { pointer } = this.#held('read the address of a buffer');
    this.#memory.noteCapture(this.#state);
    return pointer;
  }

  /** The length in bytes; 0 once the pin or the buffer is disposed. */
  get byteLength(): number {
    return this.isDisposed ? 0 : this.#memory.bytes;
  }

  /** Whether it has ended, or its buffer has. */
  get isDisposed(): boolean {
    return !this.#memory.hasPin(this.#state) || this.#buffer.isDisposed;
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    const { isDisposed, byteLength, stream } = this;
    const shown = isDisposed ? { isDisposed } : { ptr: inspectedPointer(this.#memory.devicePointer), byteLength, stream };
    return inspectObject(this, shown, inspection);
  }

  /** Queues a copy into the buffer, as {@link DeviceBuffer.copyFrom} does, on the pin's stream. */
  copyFrom(source: HostData | DeviceMemory, options: BufferCopyOptions = {}): void {
    copyInto(this.#used('copy to a buffer'), source, options);
  }

  /** Queues a copy of the contents on the pin's stream, as {@link DeviceBuffer.toHost} does. The pin may end before it resolves. */
  async toHost(range: Partial<ByteRange> = {}): Promise<Uint8Array<ArrayBuffer>> {
    return (await copyOut(this.#used('copy from a buffer'), range, {})) as Uint8Array<ArrayBuffer>;
  }

  /** Sets every byte of a range, as {@link DeviceBuffer.fill} does, on the pin's stream. */
  fill(value: number, range: Partial<ByteRange> = {}): void {
    fill(this.#used('fill a buffer'), value, range);
  }

  /** @internal What others use of it: from then on, the buffer stays on the device. */
  get [memoryOf](): BufferMemory {
    return this.#used('export a buffer');
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /**
   * Ends the use of the memory. The buffer may then be spilled, after the work queued on the stream
   * so far. Does not block. A second call does nothing.
   * @throws DriverError if the driver refuses; the pin then goes on, and you can repeat the call.
   */
  [Symbol.dispose](): void {
    this.#memory.unpin(this.#state);
    unreachable.unregister(this);
  }

  #held(operation: string): BufferMemory {
    if (this.isDisposed) {
      const reason = this.#buffer.isDisposed ? 'the buffer is already disposed' : 'its pin has ended; pin it again';
      throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: ${reason}`);
    }
    const memory = this.#memory[memoryOf];
    memory.assertLive(operation);
    return memory;
  }

  #used(operation: string): BufferMemory {
    this.#held(operation);
    return this.#memory.use(this.#state);
  }
}

function spillingAdaptorOf(resource: MemoryResource): SpillingResourceAdaptor {
  const found = layersOf(resource).find((layer) => layer instanceof SpillingResourceAdaptor);
  if (found !== undefined) return found;
  throw invalidValue(`resource must have a SpillingResourceAdaptor, got a ${resource.constructor.name} without one`);
}

function commonAdaptor(buffers: readonly SpillableBuffer[]): SpillingResourceAdaptor | undefined {
  if (!Array.isArray(buffers)) throw new ArgumentTypeError(`buffers must be an array, got ${formatValue(buffers)}`);
  const [first, ...others] = buffers.map(SpillableBuffer.adaptorOf);
  if (others.every((each) => each === first)) return first;
  throw invalidValue('buffers must be of one SpillingResourceAdaptor');
}
