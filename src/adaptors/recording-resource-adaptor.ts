import { callStack } from '../call-stack.js';
import { assertStream, type Stream } from '../driver/stream.js';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../errors.js';
import { Recording } from '../formats/recording/recording.js';
import { RecordKind } from '../formats/recording/recording-format.js';
import { acquireRecording, environmentRecording, releaseRecording } from '../formats/recording/shared-recordings.js';
import { alreadyDisposed } from '../lifetime-errors.js';
import type {
  DeallocationEventsOption,
  DeallocationFence,
  DevicePointer,
  MemoryResource,
  MemoryResourceAdaptor,
} from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import { assertBytes, assertPointer, optionNames } from '../validation.js';
import { isAllocationFailure, PassThroughAdaptor } from './pass-through-adaptor.js';
import { type AdaptorLayer, addAdaptorLayer } from './recorded-layers.js';

/** Options of {@link RecordingResourceAdaptor}. */
export interface RecordingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * What is recorded to; it stays its owner's, and is not disposed with the adaptor. Instead of `file`.
   * @defaultValue that of the file
   */
  readonly recording?: Recording;
  /**
   * The path of the file, which is overwritten if it exists. Adaptors of a thread that name the same one share a recording, which ends when the
   * last of them is disposed.
   * @defaultValue that of the environment variable `CISTERN_LOG_FILE`, which is kept open until the process or worker ends
   */
  readonly file?: string;
  /**
   * What reports call the layer. What keeps memory has one layer in a recording, however many adaptors are right on top of it; the first of
   * them names it.
   * @defaultValue the kind of the upstream, such as `'pool'`
   */
  readonly layer?: string;
  /**
   * Records the JavaScript stack of an allocation whenever so many bytes were allocated since the last one, so that what is large has one; with
   * 0, of every allocation. Failed allocations have theirs then, too. A stack costs some ten microseconds.
   * @defaultValue Infinity: no stacks
   */
  readonly stackSampleBytes?: number;
}

const knownOptions = optionNames<RecordingResourceAdaptorOptions>({
  deallocationEvents: true,
  file: true,
  layer: true,
  recording: true,
  stackSampleBytes: true,
});

/**
 * Records each allocation, failed allocation and free in a {@link Recording}: layer, pointer, size, stream, time, thread, phase, and the stack
 * if that is asked for. What keeps memory below, such as a pool, has its growth recorded as well, without an adaptor below it.
 *
 * A failed allocation is written to the file before the error is thrown. A free is recorded before the upstream is asked, so that memory is
 * never seen live twice; where the upstream refuses, the record is taken back, unless it was written meanwhile. A mistake in an argument
 * leaves none.
 *
 * Where the file cannot be written, no record is lost and no memory is: `allocate` throws before it asks the upstream, `deallocate` frees and
 * keeps its record for later. Once the recording is disposed, calls pass and nothing is recorded.
 *
 * Stream order, alignment: those of the upstream.
 *
 * RMM has only `rmm::mr::logging_resource_adaptor`, for which there is {@link LoggingResourceAdaptor}.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new RecordingResourceAdaptor(pool, { file: 'run.cistern' });
 * ```
 */
export class RecordingResourceAdaptor extends PassThroughAdaptor {
  /** What is recorded to. */
  readonly recording: Recording;
  readonly #isShared: boolean;
  readonly #layer: AdaptorLayer;
  readonly #stackSampleBytes: number;
  /** Bytes to be allocated until the next stack; `undefined` where none is wanted. */
  #bytesToStack: number | undefined;
  /** The stream of the last call, and what its records begin with. */
  #stream: Stream | undefined;
  #head = 0;

  /**
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) where the file cannot be opened.
   * @throws ArgumentTypeError, ArgumentRangeError for an option that is none, and where there is neither a recording nor a file.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) where the recording is disposed.
   */
  constructor(upstream: MemoryResource, options: RecordingResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { layer, stackSampleBytes = Number.POSITIVE_INFINITY } = options;
    if (layer !== undefined && typeof layer !== 'string') throw new ArgumentTypeError(`layer must be a string, got ${formatValue(layer)}`);
    const wantsStacks = stackSampleBytes !== Number.POSITIVE_INFINITY;
    if (wantsStacks) assertBytes(stackSampleBytes, 'stackSampleBytes');
    this.#stackSampleBytes = stackSampleBytes;
    this.#bytesToStack = wantsStacks ? stackSampleBytes : undefined;
    this.#isShared = options.recording === undefined && options.file !== undefined;
    this.recording = recordingOf(options);
    this.#layer = addAdaptorLayer(this.recording, this, layer);
  }

  /** @throws CisternError (`ERR_CISTERN_LOG_WRITE`) where records are due and cannot be written; the upstream is not asked then. */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    if (stream !== this.#stream) this.#enter(stream, 'allocate');
    const { recording } = this;
    if (recording.isBehind) recording.flush();
    // Taken now: while an upstream waits for a stream, host functions run, and may call this adaptor for another stream.
    const head = this.#head;
    let pointer: DevicePointer;
    try {
      pointer = this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      if (isAllocationFailure(error)) this.#recordFailure(head, bytes);
      throw this.passOn(error);
    }
    if (this.#bytesToStack === undefined) recording.append(head | RecordKind.allocate, pointer, bytes);
    else this.#recordSampled(head, pointer, bytes, this.#bytesToStack);
    recording.flushIfAuto();
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (this.isDisposed) {
      this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
      return;
    }
    if (stream !== this.#stream) this.#enter(stream, 'deallocate');
    const { recording } = this;
    // What is no number cannot be recorded, and is refused below.
    const isRecorded = typeof pointer === 'number' && typeof bytes === 'number';
    const position = isRecorded ? recording.append(this.#head | RecordKind.free, pointer, bytes) : 0;
    try {
      this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
    } catch (error) {
      if (isRecorded) recording.retract(position);
      throw error;
    }
    recording.flushIfAuto();
  }

  /**
   * Names a live allocation that was made here, for reports. {@link DeviceBuffer.label} does it for a buffer.
   * @throws ArgumentTypeError, ArgumentRangeError for what is no pointer or no text.
   */
  label(pointer: DevicePointer, label: string): void {
    this.assertLive('label an allocation');
    assertPointer(pointer);
    if (typeof label !== 'string') throw new ArgumentTypeError(`label must be a string, got ${formatValue(label)}`);
    this.recording.label(this.#layer.index, pointer, label);
  }

  /**
   * Writes what was recorded so far.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) where it cannot be written; it is kept, to be tried again.
   */
  flush(): void {
    this.assertLive('flush');
    this.recording.flush();
  }

  /**
   * Ends the use of this object, and of a recording that no other adaptor to the same `file` uses. The upstream stays as it is. Does nothing
   * the second time.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) where what is left cannot be written; it is lost then.
   */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    super[Symbol.dispose]();
    this.#stream = undefined;
    if (this.#layer.isOwn) this.recording.removeLayer(this.#layer.index);
    if (this.#isShared) releaseRecording(this.recording);
  }

  /** @internal Names an allocation of a resource in the recording nearest to the program that it went through, if there is one. */
  static labelAllocation(resource: MemoryResource, pointer: DevicePointer, label: string): void {
    let each: MemoryResource | undefined = resource;
    for (; each !== undefined; each = (each as Partial<MemoryResourceAdaptor>).upstream) {
      if (!(each instanceof RecordingResourceAdaptor)) continue;
      each.recording.label(each.#layer.index, pointer, label);
      return;
    }
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

  #enter(stream: Stream, operation: string): void {
    assertStream(stream, operation);
    this.#head = this.recording.headOf(this.#layer.index, stream.timeline);
    this.#stream = stream;
  }
}

/** `recording` in a specification. */
export const recordingKind = defineAdaptor({
  name: 'recording',
  role: 'pass-through',
  summary: 'records allocations, frees, growth, events and phases in a file that report and replay read',
  options: {
    file: { type: 'text', summary: 'the path of the recording, which is overwritten', default: 'what CISTERN_LOG_FILE says' },
    layer: { type: 'text', summary: 'what reports call the layer', default: 'the kind of the upstream' },
    'stack-sample': { type: 'size', summary: 'bytes between two recorded stacks; 0: a stack for every allocation', default: 'none' },
  },
  example: 'recording(cuda, file=run.cistern, stack-sample=1MiB)',
  create: ({ upstream, options }) =>
    new RecordingResourceAdaptor(
      upstream,
      definedFields({
        file: options.file,
        layer: options.layer,
        stackSampleBytes: options['stack-sample'],
        deallocationEvents: options.events,
      }),
    ),
});

function recordingOf({ recording, file }: RecordingResourceAdaptorOptions): Recording {
  if (recording !== undefined) {
    if (!(recording instanceof Recording)) throw new ArgumentTypeError(`recording must be a Recording, got ${formatValue(recording)}`);
    if (file !== undefined) {
      throw new ArgumentRangeError('either a recording or a file can be recorded to, not both', 'ERR_INVALID_ARG_VALUE');
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
  throw new ArgumentRangeError(
    'a recording needs a file, by the option file or by the environment variable CISTERN_LOG_FILE',
    'ERR_INVALID_ARG_VALUE',
  );
}
