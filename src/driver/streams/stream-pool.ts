import { alreadyDisposed, attemptEach, throwFirst } from '../../basics/errors.js';
import { assertInteger, assertOptions, optionNames } from '../../basics/validation.js';
import type { Device } from '../device.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../workers/local-object.js';
import { Stream, type StreamOptions } from './stream.js';

/** Options of {@link StreamPool}; those of {@link StreamOptions} apply to each of its streams. */
export interface StreamPoolOptions extends StreamOptions {
  /**
   * The number of streams, from 1 to 65,536.
   * @defaultValue 16
   */
  readonly size?: number | undefined;
}

const knownOptions = optionNames<StreamPoolOptions>({ device: true, nonBlocking: 'boolean', priority: true, size: true });
const maximumSize = 65_536;

/**
 * Streams that are created once and then used in turn, so that you can split work into parts
 * without creating a stream for each. The pool owns and disposes them; several users may share one
 * stream.
 *
 * Counterpart of `rmm::cuda_stream_pool`.
 * @example
 * ```ts
 * using pool = new StreamPool({ size: 4, nonBlocking: true });
 * for (let part = 0; part < 16; part++) {
 *   using buffer = new DeviceBuffer(4096, { stream: pool.next() });
 *   buffer.fill(part);
 * }
 * for (const stream of pool) await stream.synchronize();
 * ```
 */
export class StreamPool implements Disposable, Iterable<Stream> {
  readonly device: Device;
  readonly #streams: readonly Stream[];
  #next = 0;
  #isDisposed = false;

  /**
   * @throws ArgumentTypeError or ArgumentRangeError for an invalid option, DriverError if the
   * driver refuses a stream; none is then left behind.
   */
  constructor(options: StreamPoolOptions = {}) {
    assertOptions(options, knownOptions);
    const { size = 16, ...streamOptions } = options;
    assertInteger(size, 'size', 1, maximumSize);
    const streams: Stream[] = [];
    try {
      while (streams.length < size) streams.push(new Stream(streamOptions));
    } catch (error) {
      attemptEach(streams, (stream) => stream.dispose());
      throw error;
    }
    this.#streams = streams;
    this.device = (streams[0] as Stream).device;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { device: this.device.index, size: this.size, isDisposed: this.#isDisposed }, inspection);
  }

  /** The number of streams. Counterpart of `rmm::cuda_stream_pool::get_pool_size`. */
  get size(): number {
    return this.#streams.length;
  }

  /**
   * The next stream; after the last one, the first one again. Counterpart of
   * `rmm::cuda_stream_pool::get_stream()`.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) once the pool is disposed.
   */
  next(): Stream {
    this.#assertLive();
    const stream = this.#streams[this.#next] as Stream;
    this.#next = (this.#next + 1) % this.#streams.length;
    return stream;
  }

  /**
   * The same stream for the same number, so that related work stays in order. Numbers beyond the
   * last stream wrap around. Counterpart of `rmm::cuda_stream_pool::get_stream(stream_id)`.
   * @param index an integer from 0 to 2^53 - 1
   * @throws ArgumentTypeError, ArgumentRangeError for any other index.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) once the pool is disposed.
   */
  at(index: number): Stream {
    this.#assertLive();
    assertInteger(index, 'index', 0);
    return this.#streams[index % this.#streams.length] as Stream;
  }

  /** Every stream once. */
  [Symbol.iterator](): Iterator<Stream> {
    this.#assertLive();
    return this.#streams[Symbol.iterator]();
  }

  /**
   * Disposes the streams. Work queued on them still runs. A second call only retries the streams
   * that could not be disposed.
   */
  [Symbol.dispose](): void {
    this.#isDisposed = true;
    throwFirst(attemptEach(this.#streams, (stream) => stream.dispose()));
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  #assertLive(): void {
    if (this.#isDisposed) throw alreadyDisposed('take a stream', 'the StreamPool');
  }
}
