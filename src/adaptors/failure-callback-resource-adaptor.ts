import type { Stream } from '../driver/stream.js';
import { ArgumentTypeError, formatValue, OutOfMemoryError } from '../errors.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { assertFunction, optionNames } from '../validation.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/**
 * Called where an allocation failed. Returns whether to try it again.
 * @param bytes what was asked for
 * @param error what the upstream threw
 */
export type FailureCallback<Failure extends Error = OutOfMemoryError> = (bytes: number, error: Failure) => boolean;

/** Options of {@link FailureCallbackResourceAdaptor}. */
export interface FailureCallbackResourceAdaptorOptions<Failure extends Error = OutOfMemoryError> extends DeallocationEventsOption {
  /**
   * The class of the errors that the callback is called for; its subclasses count as well. Every other error passes.
   * @defaultValue `OutOfMemoryError`
   */
  readonly errorClass?: abstract new (
    ...args: never[]
  ) => Failure;
}

const knownOptions = optionNames<FailureCallbackResourceAdaptorOptions>({ deallocationEvents: true, errorClass: true });

/**
 * Calls a function where an allocation fails, and tries again for as long as that returns true: forever, where it always does. The callback may
 * use every resource, this one as well; a failure of its own allocations through this calls it again.
 *
 * Stream order, alignment: those of the upstream.
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
  readonly #callback: FailureCallback<Failure>;
  readonly #errorClass: abstract new (
    ...args: never[]
  ) => Error;

  /** @throws ArgumentTypeError for a callback or an error class that is none. */
  constructor(upstream: MemoryResource, callback: FailureCallback<Failure>, options: FailureCallbackResourceAdaptorOptions<Failure> = {}) {
    super(upstream, options, knownOptions);
    const { errorClass = OutOfMemoryError } = options;
    assertFunction(callback, 'callback');
    assertFunction(errorClass, 'errorClass');
    this.#callback = callback;
    this.#errorClass = errorClass;
  }

  /**
   * @throws what the upstream threw last, once the callback returned false; or what the callback throws, with the upstream's error as its cause
   * where it has none.
   * @throws ArgumentTypeError where the callback returns something else than true or false, such as a promise.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    for (;;) {
      if (this.isDisposed) this.assertLive('allocate');
      try {
        return this.upstream.allocate(bytes, stream, alignment);
      } catch (error) {
        if (!(error instanceof this.#errorClass) || !this.#shallRetry(bytes, error as Failure)) throw this.passOn(error);
      }
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
  }

  #shallRetry(bytes: number, error: Failure): boolean {
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
