import type { Writable } from 'node:stream';
import { ArgumentTypeError, formatValue, invalidValue } from '../../basics/errors.js';
import { optionNames } from '../../basics/validation.js';
import { assertStream, type Stream } from '../../driver/streams/stream.js';
import type { RowText } from '../../files/csv-rows.js';
import { FileTarget, type LogTarget, WritableTarget } from '../../files/log-target.js';
import { LogAction, LogWriter, streamSuffix } from '../../files/log-writer.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { GraphOutputs } from './graph-outputs.js';
import { isAllocationFailure, PassThroughAdaptor } from './pass-through-adaptor.js';

interface CommonOptions extends DeallocationEventsOption {
  /**
   * Whether to write each row immediately instead of in batches.
   * @defaultValue false
   */
  readonly autoFlush?: boolean | undefined;
}

/** Options of {@link LoggingResourceAdaptor} for a log in a file, which is overwritten if it exists. */
export interface FileLogOptions extends CommonOptions {
  readonly file: string;
  readonly stream?: never;
}

/**
 * Options of {@link LoggingResourceAdaptor} for a log to a Node stream, which the adaptor does not
 * end.
 */
export interface StreamLogOptions extends CommonOptions {
  readonly stream: Writable;
  readonly file?: never;
}

/** Options of {@link LoggingResourceAdaptor}: where the log goes, and how. */
export type LoggingResourceAdaptorOptions = FileLogOptions | StreamLogOptions;

const knownOptions = optionNames<LoggingResourceAdaptorOptions>({
  autoFlush: 'boolean',
  deallocationEvents: true,
  file: true,
  stream: true,
});

/**
 * Writes a row of RMM's CSV log for each allocation, failed allocation and free: thread, local time
 * of day, action, pointer, size and the driver's handle of the stream. `cistern replay` and RMM's
 * own replay tool read it.
 *
 * Rows are buffered, and written 64 KiB at a time, by {@link LoggingResourceAdaptor.flush}, at
 * dispose, and when the process or worker exits by itself. If a process is killed or a worker is
 * terminated, unwritten rows are lost, unless `autoFlush` is set. A row is added after the upstream
 * has succeeded, for a free, too, so that the log contains only what happened (RMM writes a free
 * before it is tried). A call with an invalid argument leaves no row.
 *
 * If the log cannot be written, neither rows nor memory are lost: `allocate` throws before it calls
 * the upstream, and `deallocate` frees the memory and keeps its row for later. A Node stream
 * reports a failed write only after the call, and the rows passed to it are lost.
 *
 * Stream order and alignment are those of the upstream.
 *
 * Counterpart of `rmm::mr::logging_resource_adaptor`.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using resource = new LoggingResourceAdaptor(upstream, { file: 'allocations.csv' });
 * ```
 */
export class LoggingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'LoggingResourceAdaptor';
  readonly #writer: LogWriter;
  readonly #writesEveryRow: boolean;
  /** The stream of the last call, and the text that ends its rows. */
  #stream: Stream | undefined;
  #suffix: RowText | undefined;
  readonly #outputs = new GraphOutputs<RowText>(this, (pointer, bytes, suffix) =>
    this.#writer.append(LogAction.free, pointer, bytes, suffix),
  );

  /**
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the file cannot be opened.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option.
   */
  constructor(upstream: MemoryResource, options: LoggingResourceAdaptorOptions) {
    super(upstream, options, knownOptions);
    const { autoFlush = false } = options;
    this.#writesEveryRow = autoFlush;
    this.#writer = new LogWriter(openTarget(options), this.#writesEveryRow);
  }

  /**
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if rows are due and cannot be written; the
   * upstream is not called then.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    if (stream !== this.#stream) this.#enter(stream);
    const writer = this.#writer;
    if (writer.isFull) writer.flush();
    // Read before the call, because host functions that run while an upstream waits for a stream
    // may call this adaptor for another stream.
    const suffix = this.#suffix as RowText;
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      if (isAllocationFailure(error)) writer.append(LogAction.allocateFailure, 0, bytes, suffix);
      if (this.#writesEveryRow) writer.tryFlush();
      throw this.passOn(error);
    }
    writer.append(pointer === 0 ? LogAction.allocateNothing : LogAction.allocate, pointer, bytes, suffix);
    this.#outputs.allocated(pointer, bytes, suffix);
    if (this.#writesEveryRow) writer.tryFlush();
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
    const suffix = this.#suffix as RowText;
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    if (!this.#outputs.hasFreed(pointer)) {
      this.#writer.append(pointer === 0 ? LogAction.freeNothing : LogAction.free, pointer, bytes, suffix);
      this.#writer.tryFlush();
    }
    this.#outputs.freed(pointer);
  }

  /**
   * Writes the buffered rows.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if they cannot be written; they are kept for the
   * next attempt.
   */
  flush(): void {
    this.assertLive('flush');
    this.#writer.flush();
  }

  /**
   * Writes the remaining rows and closes the file. Does not dispose the upstream or end a Node
   * stream. A second call does nothing.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if rows cannot be written; they are then lost.
   */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    super[Symbol.dispose]();
    this.#stream = undefined;
    this.#writer.close();
  }

  #enter(stream: Stream): void {
    this.#suffix = streamSuffix(stream.nativeHandle);
    this.#stream = stream;
  }
}

/** `logging` in a specification. */
export const loggingKind = defineAdaptor({
  name: 'logging',
  role: 'pass-through',
  summary: 'writes every allocation and free to a file that replay reads',
  options: {
    file: { type: 'text', summary: 'the path of the log, which is overwritten', required: true, file: 'overwritten' },
    autoFlush: { type: 'boolean', summary: 'whether each row is written immediately', default: 'false' },
  },
  example: 'logging(cuda, file=allocations.csv)',
  create: ({ upstream, options }) => new LoggingResourceAdaptor(upstream, options),
});

function openTarget(options: LoggingResourceAdaptorOptions): LogTarget {
  const { file, stream } = options;
  if ((file === undefined) === (stream === undefined)) {
    throw invalidValue('a log needs either a file or a stream: give one of them');
  }
  if (file !== undefined) {
    if (typeof file !== 'string') throw new ArgumentTypeError(`file must be a string, got ${formatValue(file)}`);
    return new FileTarget(file);
  }
  if (typeof stream?.write !== 'function') throw new ArgumentTypeError(`stream must be a Writable, got ${formatValue(stream)}`);
  return new WritableTarget(stream);
}
