import { formatValue, OutOfMemoryError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertName, assertShared, optionNames } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import { SharedCounts } from '../../driver/workers/shared-counts.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
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
  /**
   * A name, for one limit for all workers of the process: adaptors with the same name, in any of
   * them, share the limit, and must have the same `limitBytes`.
   * @defaultValue not set: the limit is this adaptor's own
   */
  readonly shared?: string;
}

const knownOptions = optionNames<LimitingResourceAdaptorOptions>({
  alignment: true,
  deallocationEvents: true,
  limitBytes: true,
  shared: true,
});

/**
 * Refuses allocations that would bring the memory allocated through it above a limit. Exactly the
 * limit is allowed.
 *
 * With the option `shared`, the limit holds for the sum over all workers, and is not exceeded even
 * for a moment. What a worker held when it ended counts until its memory has been freed; if the limit
 * is reached, that is tried at once.
 *
 * Stream order, alignment: those of the upstream. Freed memory counts as free at once, even if its
 * stream still uses it.
 *
 * Counterpart of `rmm::mr::limiting_resource_adaptor`, which all threads of a process can share.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using resource = new LimitingResourceAdaptor(upstream, { limitBytes: 2 * GiB });
 * // The same in every worker: together they have 8 GiB.
 * using budget = new LimitingResourceAdaptor(upstream, { limitBytes: 8 * GiB, shared: 'service' });
 * ```
 */
export class LimitingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'LimitingResourceAdaptor';
  /** The most bytes that may be allocated at once. */
  readonly limitBytes: number;
  readonly #alignment: number;
  readonly #shared: SharedCounts | undefined;
  /** Unless the limit is shared. */
  #allocatedBytes = 0;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an option out of its range, or a limit other
   * than that of the adaptors which share it.
   */
  constructor(upstream: MemoryResource, options: LimitingResourceAdaptorOptions) {
    super(upstream, options, knownOptions);
    const { limitBytes, alignment = ALLOCATION_ALIGNMENT, shared } = options;
    assertBytes(limitBytes, 'limitBytes');
    assertAlignment(alignment);
    if (shared !== undefined) assertName(shared, 'shared');
    this.limitBytes = limitBytes;
    this.#alignment = alignment;
    this.#shared = shared === undefined ? undefined : openLimit(shared, limitBytes);
  }

  /**
   * Bytes allocated through this adaptor and not freed, each allocation rounded up to the alignment;
   * if the limit is shared, through all adaptors that share it. Once this adaptor is disposed, and
   * everything that adaptors of this thread allocated under the shared limit is freed, it is 0.
   */
  get allocatedBytes(): number {
    return this.#shared?.currentBytes ?? this.#allocatedBytes;
  }

  /**
   * @throws OutOfMemoryError if the limit would be exceeded, with `availableBytes` and
   * `limitBytes`; or the upstream's error.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    assertBytes(bytes);
    const accountedBytes = alignUp(bytes, this.#alignment);
    // Counted before the call: while an upstream waits for a stream, host functions run, and may
    // allocate through this adaptor.
    if (!this.#count(accountedBytes)) throw this.#limitError(bytes);
    try {
      return this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      this.#uncount(accountedBytes);
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    if (pointer !== 0) this.#uncount(alignUp(bytes, this.#alignment));
  }

  /**
   * Ends allocation through this object. Memory allocated through it can still be freed through it.
   * The upstream is left to its owner. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#shared?.close();
  }

  /** Returns false, and counts nothing, if the limit would be exceeded. */
  #count(bytes: number): boolean {
    if (bytes > this.limitBytes) return false;
    if (this.#shared !== undefined) return bytes === 0 || this.#shared.add(bytes) || this.#addOnceSettled(this.#shared, bytes);
    if (bytes > this.limitBytes - this.#allocatedBytes) return false;
    this.#allocatedBytes += bytes;
    return true;
  }

  #addOnceSettled(shared: SharedCounts, bytes: number): boolean {
    shared.settle();
    return shared.add(bytes);
  }

  #uncount(bytes: number): void {
    if (this.#shared === undefined) this.#allocatedBytes -= bytes;
    else if (bytes > 0) this.#shared.subtract(bytes);
  }

  #limitError(bytes: number): OutOfMemoryError {
    const availableBytes = Math.max(0, this.limitBytes - this.allocatedBytes);
    const sharing = this.#shared === undefined ? '' : ` that workers share as ${formatValue(this.#shared.name)}`;
    return new OutOfMemoryError(
      `the limit of ${formatBytes(this.limitBytes)}${sharing} is reached: ${formatBytes(bytes)} (${bytes} bytes) were asked for, ${formatBytes(availableBytes)} are left`,
      { requestedBytes: bytes, availableBytes, limitBytes: this.limitBytes, path: [this.constructor.name] },
    );
  }
}

function openLimit(name: string, limitBytes: number): SharedCounts {
  const counts = new SharedCounts(name, limitBytes);
  if (counts.limitBytes !== limitBytes) counts.close();
  assertShared(limitBytes, counts.limitBytes, name, 'limitBytes');
  return counts;
}

/** `limiting` in a specification. */
export const limitingKind = defineAdaptor({
  name: 'limiting',
  role: 'pass-through',
  summary: 'refuses allocations that would bring the live bytes above a limit',
  options: {
    limitBytes: { type: 'size', summary: 'the most bytes that may be live', required: true },
    alignment: { type: 'size', summary: 'each allocation counts as a multiple of this power of two', default: '256' },
    shared: { type: 'text', summary: 'the name of one limit for all workers', default: 'none' },
  },
  maximum: 'limitBytes',
  example: 'limiting(cuda, limitBytes=64MiB)',
  create: ({ upstream, options }) => new LimitingResourceAdaptor(upstream, options),
});
