import { CisternError, formatValue, OutOfMemoryError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertName, assertShared, optionNames } from '../../basics/validation.js';
import { bytesOfSizeOrShare } from '../../budget/memory-budget.js';
import type { Stream } from '../../driver/streams/stream.js';
import { SharedCounts } from '../../driver/workers/shared-counts.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { layersOf } from '../layers.js';
import { couldNotLeave, type Helps, makeRoomBelow } from '../room-for-limits.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link LimitingResourceAdaptor}. */
export interface LimitingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * The most bytes that may be allocated at the same time, each allocation rounded up to
   * `alignment`; from 0 to 2^53 - 1. As a text, a size such as `'8GiB'`, or a share such as `'80%'` of what the process may use of this
   * memory: `memoryBudget` of `cistern/machine`.
   */
  readonly limitBytes: number | string;
  /**
   * Each allocation is rounded up to a multiple of this before it is counted, in bytes: a power of
   * two.
   * @defaultValue 256
   */
  readonly alignment?: number | undefined;
  /**
   * A name. Adaptors with the same name, in all workers of the process, share one limit, and must
   * have the same `limitBytes`.
   * @defaultValue not set: the limit is this adaptor's own
   */
  readonly shared?: string | undefined;
}

const knownOptions = optionNames<LimitingResourceAdaptorOptions>({
  alignment: true,
  deallocationEvents: true,
  limitBytes: true,
  shared: true,
});

/**
 * Refuses an allocation if the memory allocated through it would exceed a limit. Exactly the limit
 * is allowed. Above a {@link SpillingResourceAdaptor}, idle buffers that the limit counts leave before it refuses.
 *
 * With the option `shared`, the limit applies to the sum over all workers, and is never exceeded,
 * even for a moment. Memory that a worker held when it ended counts until it has been freed; if the
 * limit is reached, the adaptor immediately tries to free it.
 *
 * Stream order and alignment are those of the upstream. Freed memory counts as free immediately,
 * even if its stream still uses it.
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
  #limitBytes: number;
  readonly #alignment: number;
  readonly #shared: SharedCounts | undefined;
  /** Unless the limit is shared. */
  #allocatedBytes = 0;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or a limit that differs
   * from that of the adaptors sharing it.
   */
  constructor(upstream: MemoryResource, options: LimitingResourceAdaptorOptions) {
    super(upstream, options, knownOptions);
    const { limitBytes: limit, alignment = ALLOCATION_ALIGNMENT, shared } = options;
    const limitBytes = typeof limit === 'string' ? bytesOfSizeOrShare(limit, 'limitBytes', this.memoryKind, this.device) : limit;
    assertBytes(limitBytes, 'limitBytes');
    assertAlignment(alignment);
    if (shared !== undefined) assertName(shared, 'shared');
    this.#limitBytes = limitBytes;
    this.#alignment = alignment;
    this.#shared = shared === undefined ? undefined : openLimit(shared, limitBytes);
  }

  /** The most bytes that may be allocated at the same time. */
  get limitBytes(): number {
    return this.#limitBytes;
  }

  /**
   * Changes the limit. What is allocated stays; if it is more, allocations are refused until enough is freed.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if other workers share the limit
   */
  setLimit(limitBytes: number): void {
    assertBytes(limitBytes, 'limitBytes');
    if (this.#shared !== undefined) {
      throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot set the limit: workers share it as ${formatValue(this.#shared.name)}`);
    }
    this.#limitBytes = limitBytes;
  }

  /** @internal The largest request that the limit leaves room for. */
  roomBytes(): number {
    return alignDown(Math.max(0, this.limitBytes - this.allocatedBytes), this.#alignment);
  }

  /**
   * Bytes allocated through this adaptor, or through all adaptors that share the limit, and not
   * freed; each allocation counts rounded up to the alignment. Once this adaptor is disposed, and
   * adaptors of this thread have freed everything that they allocated under the shared limit, it is
   * 0.
   */
  get allocatedBytes(): number {
    return this.#shared?.currentBytes ?? this.#allocatedBytes;
  }

  /**
   * @throws OutOfMemoryError, with `availableBytes` and `limitBytes`, if the limit would be
   * exceeded; also the upstream's error.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    assertBytes(bytes);
    const accountedBytes = alignUp(bytes, this.#alignment);
    // Counted before the call, because host functions that run while an upstream waits for a stream
    // may allocate through this adaptor.
    if (!this.#count(accountedBytes)) this.#countOnceThereIsRoom(accountedBytes, bytes, stream);
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
   * Does not dispose the upstream. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#shared?.close();
  }

  /** Returns false, and counts nothing, if the limit would be exceeded. */
  #count(bytes: number): boolean {
    if (bytes > this.#limitBytes) return false;
    if (this.#shared !== undefined) return bytes === 0 || this.#shared.add(bytes) || this.#addOnceSettled(this.#shared, bytes);
    if (bytes > this.#limitBytes - this.#allocatedBytes) return false;
    this.#allocatedBytes += bytes;
    return true;
  }

  /** Counts bytes after idle memory that the limit counts has left, or throws. */
  #countOnceThereIsRoom(accountedBytes: number, bytes: number, stream: Stream): void {
    const known = new Map<MemoryResource, boolean>();
    const isCounted: Helps = (_pointer, resource) => {
      const isThrough = known.get(resource) ?? layersOf(resource).includes(this);
      known.set(resource, isThrough);
      return isThrough;
    };
    do {
      const missingBytes = accountedBytes - (this.limitBytes - this.allocatedBytes);
      const mayFit = accountedBytes <= this.limitBytes;
      const { isGiven, kept } = mayFit ? makeRoomBelow(this.upstream, missingBytes, stream, isCounted) : { isGiven: false };
      if (!isGiven)
        throw kept === undefined ? this.#limitError(bytes) : couldNotLeave(this.constructor.name, this.#limitError(bytes), kept);
    } while (!this.#count(accountedBytes));
    this.assertUsable(stream);
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
  summary: 'refuses allocations if the live bytes would exceed a limit',
  options: {
    limitBytes: { type: 'size', summary: 'the most bytes that may be live', required: true },
    alignment: { type: 'size', summary: 'each allocation counts as a multiple of this power of two', default: '256' },
    shared: { type: 'text', summary: 'the name of one limit for all workers', default: 'none' },
  },
  maximum: 'limitBytes',
  example: 'limiting(cuda, limitBytes=64MiB)',
  create: ({ upstream, options }) => new LimitingResourceAdaptor(upstream, options),
});
