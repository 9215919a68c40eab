import type { Stream } from '../driver/stream.js';
import { OutOfMemoryError } from '../errors.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../units.js';
import { assertAlignment, assertBytes, optionNames } from '../validation.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link LimitingResourceAdaptor}. */
export interface LimitingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * The most bytes that may be allocated at once, each allocation rounded up to `alignment`; from 0
   * to 2^53 - 1.
   */
  readonly limitBytes: number;
  /**
   * Each allocation is rounded up to a multiple of this before it is counted, in bytes: a power of
   * two.
   * @defaultValue 256
   */
  readonly alignment?: number;
}

const knownOptions = optionNames<LimitingResourceAdaptorOptions>({ alignment: true, deallocationEvents: true, limitBytes: true });

/**
 * Refuses allocations that would bring the memory allocated through it above a limit. Exactly the
 * limit is allowed.
 *
 * Stream order, alignment: those of the upstream. Freed memory counts as free at once, even if its
 * stream still uses it.
 *
 * Counterpart of `rmm::mr::limiting_resource_adaptor`.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using resource = new LimitingResourceAdaptor(upstream, { limitBytes: 2 * GiB });
 * ```
 */
export class LimitingResourceAdaptor extends PassThroughAdaptor {
  /** The most bytes that may be allocated at once. */
  readonly limitBytes: number;
  readonly #alignment: number;
  #allocatedBytes = 0;

  /** @throws ArgumentTypeError, ArgumentRangeError for an option out of its range. */
  constructor(upstream: MemoryResource, options: LimitingResourceAdaptorOptions) {
    super(upstream, options, knownOptions);
    const { limitBytes, alignment = ALLOCATION_ALIGNMENT } = options;
    assertBytes(limitBytes, 'limitBytes');
    assertAlignment(alignment);
    this.limitBytes = limitBytes;
    this.#alignment = alignment;
  }

  /** Bytes allocated through this adaptor and not freed, each allocation rounded up to the alignment. */
  get allocatedBytes(): number {
    return this.#allocatedBytes;
  }

  /**
   * @throws OutOfMemoryError if the limit would be exceeded, with `availableBytes` and
   * `limitBytes`; or the upstream's error.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    assertBytes(bytes);
    const accountedBytes = alignUp(bytes, this.#alignment);
    if (accountedBytes > this.limitBytes - this.#allocatedBytes) throw this.#limitError(bytes);
    // Counted before the call: while an upstream waits for a stream, host functions run, and may
    // allocate through this adaptor.
    this.#allocatedBytes += accountedBytes;
    try {
      return this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      this.#allocatedBytes -= accountedBytes;
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
    if (pointer !== 0) this.#allocatedBytes -= alignUp(bytes, this.#alignment);
  }

  #limitError(bytes: number): OutOfMemoryError {
    const availableBytes = this.limitBytes - this.#allocatedBytes;
    return new OutOfMemoryError(
      `the limit of ${formatBytes(this.limitBytes)} is reached: ${formatBytes(bytes)} (${bytes} bytes) were asked for, ${formatBytes(availableBytes)} are left`,
      { requestedBytes: bytes, availableBytes, limitBytes: this.limitBytes, path: [this.constructor.name] },
    );
  }
}

/** `limiting` in a specification. */
export const limitingKind = defineAdaptor({
  name: 'limiting',
  role: 'pass-through',
  summary: 'refuses allocations that would bring the live bytes above a limit',
  options: { limit: { type: 'size', summary: 'the most bytes that may be live', required: true } },
  maximum: 'limit',
  example: 'limiting(cuda, limit=64MiB)',
  create: ({ upstream, options }) =>
    new LimitingResourceAdaptor(upstream, { limitBytes: options.limit, ...definedFields({ deallocationEvents: options.events }) }),
});
