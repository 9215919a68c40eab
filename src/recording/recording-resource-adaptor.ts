import { GraphOutputs } from '../adaptors/pass-through/graph-outputs.js';
import { isAllocationFailure, PassThroughAdaptor } from '../adaptors/pass-through/pass-through-adaptor.js';
import { callStack } from '../basics/call-stack.js';
import { ArgumentTypeError, alreadyDisposed, formatValue, invalidValue } from '../basics/errors.js';
import { assertBytes, assertPointer, optionNames } from '../basics/validation.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import type {
  DeallocationEventsOption,
  DeallocationFence,
  DevicePointer,
  MemoryResource,
  MemoryResourceAdaptor,
} from '../memory-resource.js';
import { observeLabels } from '../observing/labels.js';
import { defineAdaptor } from '../resource-kind.js';
import { type AdaptorLayer, addAdaptorLayer } from './recorded-layers.js';
import { Recording } from './recording.js';
import { RecordKind } from './recording-format.js';
import { acquireRecording, environmentRecording, releaseRecording } from './shared-recordings.js';

/** Options of {@link RecordingResourceAdaptor}. */
export interface RecordingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * The recording to write to, instead of `file`. It still belongs to its owner, and is not
   * disposed with the adaptor.
   * @defaultValue the recording of `file`
   */
  readonly recording?: Recording | undefined;
  /**
   * The path of the file, which is overwritten if it exists. Adaptors of a thread that name the
   * same file share a recording, which ends when the last of them is disposed.
   * @defaultValue the file of the environment variable `CISTERN_LOG_FILE`, which stays open until
   * the process or worker ends
   */
  readonly file?: string | undefined;
  /**
   * The name of the layer in reports. A pooling resource has one layer in a recording, however many
   * adaptors are directly above it; the first of them names it.
   * @defaultValue the kind of the upstream, such as `'pool'`
   */
  readonly layer?: string | undefined;
  /**
   * Records the JavaScript stack of an allocation whenever this many bytes have been allocated
   * since the last stack, so that large allocations have one; with 0, the stack of every
   * allocation. Failed allocations also have a stack then. A stack costs about ten microseconds.
   * @defaultValue Infinity: no stacks
   */
  readonly stackSampleBytes?: number | undefined;
}

const knownOptions = optionNames<RecordingResourceAdaptorOptions>({
  deallocationEvents: true,
  file: true,
  layer: true,
  recording: true,
  stackSampleBytes: true,
});

/**
 * Records each allocation, failed allocation and free in a {@link Recording}: layer, pointer, size,
 * stream, time, thread, phase, and the stack if requested. The growth of pooling resources below is
 * recorded as well, without an adaptor below them.
 *
 * A failed allocation is written to the file before the error is thrown. A free is recorded before
 * the upstream is called, so that memory never appears live twice; if the upstream refuses, the
 * record is removed again, unless it was written in the meantime. A call with an invalid argument
 * leaves no record.
 *
 * If the file cannot be written, neither records nor memory are lost: `allocate` throws before it
 * calls the upstream; `deallocate` frees the memory and keeps its record for later. After the
 * recording is disposed, the adaptor only passes calls on.
 *
 * Stream order and alignment are those of the upstream.
 *
 * RMM has only `rmm::mr::logging_resource_adaptor`, whose counterpart is
 * {@link LoggingResourceAdaptor}.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new RecordingResourceAdaptor(pool, { file: 'run.cistern' });
 * ```
 */
export class RecordingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'RecordingResourceAdaptor';
  static readonly #unseen = new WeakMap<MemoryResource, RecordingResourceAdaptor>();
  /** The recording that is written to. */
  readonly recording: Recording;
  readonly #isShared: boolean;
  readonly #layer: AdaptorLayer;
  readonly #stackSampleBytes: number;
  /** Bytes to allocate until the next stack; `undefined` if no stacks are recorded. */
  #bytesToStack: number | undefined;
  readonly #outputs = new GraphOutputs<number>(this, (pointer, bytes, head) =>
    this.recording.append(head | RecordKind.free, pointer, bytes),
  );
  /** The stream of the last call, and the head of its records. */
  #stream: Stream | undefined;
  #head = 0;

  /**
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the file cannot be opened.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, and if there is neither a
   * recording nor a file.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the recording is disposed.
   */
  constructor(upstream: MemoryResource, options: RecordingResourceAdaptorOptions = {}, /** @internal */ sharesLayer = false) {
    super(upstream, options, knownOptions);
    const { layer, stackSampleBytes = Number.POSITIVE_INFINITY } = options;
    if (layer !== undefined && typeof layer !== 'string') throw new ArgumentTypeError(`layer must be a string, got ${formatValue(layer)}`);
    const wantsStacks = stackSampleBytes !== Number.POSITIVE_INFINITY;
    if (wantsStacks) assertBytes(stackSampleBytes, 'stackSampleBytes');
    this.#stackSampleBytes = stackSampleBytes;
    this.#bytesToStack = wantsStacks ? stackSampleBytes : undefined;
    this.#isShared = options.recording === undefined && options.file !== undefined;
    this.recording = recordingOf(options);
    this.#layer = addAdaptorLayer(this.recording, this, layer, sharesLayer);
  }

  /**
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if records are due and cannot be written; the
   * upstream is not called then.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    if (stream !== this.#stream) this.#enter(stream);
    const { recording } = this;
    if (recording.isBehind) recording.flush();
    // Read before the call, because host functions that run while an upstream waits for a stream
    // may call this adaptor for another stream.
    const head = this.#head;
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      if (isAllocationFailure(error)) this.#recordFailure(head, bytes);
      throw this.passOn(error);
    }
    if (this.#bytesToStack === undefined) recording.append(head | RecordKind.allocate, pointer, bytes);
    else this.#recordSampled(head, pointer, bytes, this.#bytesToStack);
    this.#outputs.allocated(pointer, bytes, head);
    recording.flushIfAuto();
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (this.isDisposed) {
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
      return;
    }
    if (stream !== this.#stream) {
      assertStream(stream, 'deallocate');
      this.#enter(stream);
    }
    const { recording } = this;
    // A value that is not a number cannot be recorded, and the upstream refuses it.
    const isRecorded = typeof pointer === 'number' && typeof bytes === 'number' && !this.#outputs.hasFreed(pointer);
    const position = isRecorded ? recording.append(this.#head | RecordKind.free, pointer, bytes) : 0;
    try {
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    } catch (error) {
      if (isRecorded) recording.retract(position);
      throw error;
    }
    this.#outputs.freed(pointer);
    recording.flushIfAuto();
  }

  /**
   * Names a live allocation of this adaptor for reports. {@link DeviceBuffer.label} does the same
   * for a buffer.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid pointer or label.
   */
  label(pointer: DevicePointer, label: string): void {
    this.assertLive('label an allocation');
    assertPointer(pointer);
    if (typeof label !== 'string') throw new ArgumentTypeError(`label must be a string, got ${formatValue(label)}`);
    this.recording.label(this.#layer.index, pointer, label);
  }

  /**
   * Writes the buffered records.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if they cannot be written; they are kept for the
   * next attempt.
   */
  flush(): void {
    this.assertLive('flush');
    this.recording.flush();
  }

  /**
   * Ends allocation through this object, and the recording if no other adaptor for the same `file`
   * uses it. Does not dispose the upstream. A second call does nothing.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the remaining records cannot be written; they
   * are then lost.
   */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    super[Symbol.dispose]();
    this.#stream = undefined;
    if (this.#layer.isOwn) this.recording.removeLayer(this.#layer.index);
    if (this.#isShared) releaseRecording(this.recording);
  }

  static {
    observeLabels(RecordingResourceAdaptor.#labelAllocation);
  }

  /**
   * Names an allocation in the recording of the outermost `RecordingResourceAdaptor` that it went through,
   * if there is one.
   */
  static #labelAllocation(resource: MemoryResource, pointer: DevicePointer, label: string): void {
    let each: MemoryResource | undefined = resource;
    for (; each !== undefined; each = (each as Partial<MemoryResourceAdaptor>).upstream) {
      const adaptor = each instanceof RecordingResourceAdaptor ? each : RecordingResourceAdaptor.#unseen.get(each);
      if (adaptor === undefined) continue;
      adaptor.recording.label(adaptor.#layer.index, pointer, label);
      return;
    }
  }

  /** @internal Registers an adaptor that records a resource without being part of the stack. */
  static labelThrough(resource: MemoryResource, adaptor: RecordingResourceAdaptor): void {
    RecordingResourceAdaptor.#unseen.set(resource, adaptor);
  }

  /** @internal The index of its layer in the recording. */
  get layerIndex(): number {
    return this.#layer.index;
  }

  #recordFailure(head: number, bytes: number): void {
    const asked = typeof bytes === 'number' ? bytes : 0;
    if (this.#bytesToStack === undefined) this.recording.append(head | RecordKind.failure, 0, asked);
    else this.recording.appendWithStack(head | RecordKind.failure, 0, asked, callStack(this.allocate));
    this.recording.tryFlush();
  }

  #recordSampled(head: number, pointer: DevicePointer, bytes: number, bytesToStack: number): void {
    this.#bytesToStack = bytesToStack - bytes;
    if (this.#bytesToStack > 0) {
      this.recording.append(head | RecordKind.allocate, pointer, bytes);
      return;
    }
    this.#bytesToStack = this.#stackSampleBytes;
    this.recording.appendWithStack(head | RecordKind.allocate, pointer, bytes, callStack(this.allocate));
  }

  #enter(stream: Stream): void {
    this.#head = this.recording.headOf(this.#layer.index, stream.identity);
    this.#stream = stream;
  }
}

/** `recording` in a specification. */
export const recordingKind = defineAdaptor({
  name: 'recording',
  role: 'pass-through',
  summary: 'records allocations, frees, growth, events and phases in a file that report and replay read',
  options: {
    file: {
      type: 'text',
      summary: 'the path of the recording, which is overwritten',
      default: 'the value of CISTERN_LOG_FILE',
      file: 'overwritten',
    },
    layer: { type: 'text', summary: 'the name of the layer in reports', default: 'the kind of the upstream' },
    stackSampleBytes: { type: 'size', summary: 'bytes between two recorded stacks; 0: a stack for every allocation', default: 'none' },
  },
  example: 'recording(cuda, file=run.cistern, stackSampleBytes=1MiB)',
  create: ({ upstream, options }) => new RecordingResourceAdaptor(upstream, options),
});

function recordingOf({ recording, file }: RecordingResourceAdaptorOptions): Recording {
  if (recording !== undefined) {
    if (!(recording instanceof Recording)) throw new ArgumentTypeError(`recording must be a Recording, got ${formatValue(recording)}`);
    if (file !== undefined) {
      throw invalidValue('recording and file must not be given together');
    }
    if (recording.isDisposed) throw alreadyDisposed('record', 'the Recording');
    return recording;
  }
  if (file !== undefined) {
    if (typeof file !== 'string') throw new ArgumentTypeError(`file must be a string, got ${formatValue(file)}`);
    return acquireRecording(file);
  }
  const ofEnvironment = environmentRecording();
  if (ofEnvironment !== undefined) return ofEnvironment;
  throw invalidValue('a recording needs a file: set the option file or the environment variable CISTERN_LOG_FILE');
}
