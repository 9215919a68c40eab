import { ArgumentTypeError, formatValue, OutOfMemoryError } from '../../basics/errors.js';
import { assertFunction, optionNames } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/**
 * Called when an allocation failed. Returns whether to try again.
 * @param bytes the size requested
 * @param error the error that the upstream threw
 */
export type FailureCallback<Failure extends Error = OutOfMemoryError> = (bytes: number, error: Failure) => boolean;

/** Options of {@link FailureCallbackResourceAdaptor}. */
export interface FailureCallbackResourceAdaptorOptions<Failure extends Error = OutOfMemoryError> extends DeallocationEventsOption {
  /**
   * The callback is called for errors of this class and its subclasses. Other errors are thrown
   * unchanged.
   * @defaultValue `OutOfMemoryError`
   */
  readonly errorClass?: (abstract new (...args: never[]) => Failure) | undefined;
}

const knownOptions = optionNames<FailureCallbackResourceAdaptorOptions>({ deallocationEvents: true, errorClass: true });

/**
 * Calls a function when an allocation fails, and tries again as long as the function returns true
 * (endlessly, if it always does). The function may use any resource, including this one; if its own
 * allocations through this adaptor fail, it is called again.
 *
 * Stream order and alignment are those of the upstream.
 *
 * Counterpart of `rmm::mr::failure_callback_resource_adaptor`.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * const cache = new Map<string, DeviceBuffer>();
 * using resource = new FailureCallbackResourceAdaptor(pool, () => {
 *   const [oldest] = cache;
 *   oldest?.[1].dispose();
 *   return oldest !== undefined && cache.delete(oldest[0]);
 * });
 * ```
 */
export class FailureCallbackResourceAdaptor<Failure extends Error = OutOfMemoryError> extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'FailureCallbackResourceAdaptor';
  /** Not set once this is disposed. */
  #callback: FailureCallback<Failure> | undefined;
  readonly #errorClass: abstract new (
    ...args: never[]
  ) => Error;

  /** @throws ArgumentTypeError for an invalid callback or error class. */
  constructor(upstream: MemoryResource, callback: FailureCallback<Failure>, options: FailureCallbackResourceAdaptorOptions<Failure> = {}) {
    super(upstream, options, knownOptions);
    const { errorClass = OutOfMemoryError } = options;
    assertFunction(callback, 'callback');
    assertFunction(errorClass, 'errorClass');
    this.#callback = callback;
    this.#errorClass = errorClass;
  }

  /**
   * @throws the upstream's last error, if the callback returns false; or an error of the callback,
   * with the upstream's error as its cause unless it already has one.
   * @throws ArgumentTypeError if the callback returns something other than true or false, such as a
   * promise.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    for (;;) {
      this.assertUsable(stream);
      try {
        return this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
      } catch (error) {
        if (!(error instanceof this.#errorClass) || !this.#shallRetry(bytes, error as Failure)) throw this.passOn(error);
      }
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
  }

  /**
   * Ends allocation through this object, and releases the callback. Memory allocated through it can
   * still be freed through it. Does not dispose the upstream. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#callback = undefined;
  }

  #shallRetry(bytes: number, error: Failure): boolean {
    if (this.#callback === undefined) return false;
    let answer: boolean;
    try {
      answer = this.#callback(bytes, error);
    } catch (thrown) {
      if (thrown === error) return false;
      if (thrown instanceof Error && thrown.cause === undefined && Object.isExtensible(thrown)) thrown.cause = error;
      throw thrown;
    }
    if (typeof answer === 'boolean') return answer;
    throw new ArgumentTypeError(`callback must return true or false, returned ${formatValue(answer)}`, { cause: error });
  }
}
