import { captureStack } from '../../basics/call-stack.js';
import { ArgumentRangeError } from '../../basics/errors.js';
import { assertBytes, optionNames } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { none } from '../../suballocation/blocks.js';
import { formatOutstandingAllocations, type OutstandingAllocation, OutstandingAllocations } from './outstanding-allocations.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link TrackingResourceAdaptor}. */
export interface TrackingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * Whether to keep the JavaScript stack of each allocation until it is freed. A stack costs a few
   * microseconds, and memory.
   * @defaultValue false
   */
  readonly captureStacks?: boolean | undefined;
  /**
   * How many frames of a stack to keep, from 1 to 1000.
   * @defaultValue 64
   */
  readonly stackDepth?: number | undefined;
}

const knownOptions = optionNames<TrackingResourceAdaptorOptions>({ captureStacks: 'boolean', deallocationEvents: true, stackDepth: true });

/**
 * Tracks every allocation that passed through it and is not yet freed. Refuses wrong frees before
 * they reach the upstream: of a pointer that was not allocated here, or is already freed, or with a
 * wrong size.
 *
 * Disposing it while allocations are outstanding emits a process warning with the code
 * `CISTERN_OUTSTANDING_ALLOCATIONS` and the report as its message. The allocations stay allocated,
 * and can still be listed.
 *
 * Stream order and alignment are those of the upstream. Freed memory is no longer outstanding, even
 * if its stream still uses it.
 *
 * Counterpart of `rmm::mr::tracking_resource_adaptor`, which logs wrong frees and passes them on.
 * Memory that is freed directly at the upstream, past this adaptor, stays outstanding until its
 * address is allocated again.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using resource = new TrackingResourceAdaptor(upstream, { captureStacks: true });
 * train(resource);
 * console.log(resource.report());
 * ```
 */
export class TrackingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'TrackingResourceAdaptor';
  readonly #captureStacks: boolean;
  readonly #stackDepth: number;
  readonly #allocations = new OutstandingAllocations(0);
  /** By record. */
  readonly #stacks: (string | undefined)[] = [];

  /** @throws ArgumentTypeError, ArgumentRangeError for an invalid option. */
  constructor(upstream: MemoryResource, options: TrackingResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { captureStacks = false, stackDepth = 64 } = options;
    assertBytes(stackDepth, 'stackDepth');
    if (stackDepth < 1 || stackDepth > 1000) throw new ArgumentRangeError(`stackDepth must be from 1 to 1000, got ${stackDepth}`);
    this.#captureStacks = captureStacks;
    this.#stackDepth = stackDepth;
  }

  /** Outstanding bytes, as requested. */
  get allocatedBytes(): number {
    return this.#allocations.allocatedBytes;
  }

  /** The outstanding allocations, largest first. A copy, linear in their number. */
  outstandingAllocations(): readonly OutstandingAllocation[] {
    return this.#allocations.list((record) => this.#stacks[record]);
  }

  /**
   * The outstanding allocations as human-readable text: the total, then a group for each stack,
   * with its largest allocations; the stack with the most bytes comes first.
   */
  report(): string {
    return formatOutstandingAllocations(this.outstandingAllocations());
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
    if (pointer === 0) return pointer;
    const record = this.#allocations.add(pointer, bytes, stream.id);
    if (this.#captureStacks) this.#stacks[record] = captureStack(this.allocate, this.#stackDepth);
    return pointer;
  }

  /**
   * @throws LifetimeError (`ERR_CISTERN_FOREIGN_POINTER`, `ERR_CISTERN_DOUBLE_FREE`,
   * `ERR_CISTERN_WRONG_SIZE`) if the pointer is not outstanding here with this size; the upstream
   * is not called.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const allocations = this.#allocations;
    const record = allocations.find(pointer);
    if (record === none || allocations.bytesOf(record) !== bytes) {
      const refusal = allocations.refusal(this.constructor.name, pointer, bytes, record);
      if (refusal !== undefined) throw refusal.error;
    } else {
      allocations.beginFree(pointer, record);
    }
    try {
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    } catch (error) {
      if (record !== none) allocations.undoFree(pointer, record);
      throw error;
    }
    if (record === none) return;
    allocations.finishFree(record);
    if (this.#captureStacks) this.#stacks[record] = undefined;
  }

  /**
   * Ends allocation through this object, and warns of outstanding allocations. Does not dispose the
   * upstream. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    super[Symbol.dispose]();
    if (this.#allocations.count > 0) process.emitWarning(this.report(), { code: 'CISTERN_OUTSTANDING_ALLOCATIONS' });
  }
}

/** `tracking` in a specification. */
export const trackingKind = defineAdaptor({
  name: 'tracking',
  role: 'pass-through',
  summary: 'lists outstanding allocations, and refuses wrong frees',
  options: {
    captureStacks: { type: 'boolean', summary: 'whether it keeps the stack of each allocation', default: 'false' },
    stackDepth: { type: 'integer', summary: 'the frames of a stack, from 1 to 1000', default: '64' },
  },
  example: 'tracking(cuda, captureStacks=true)',
  create: ({ upstream, options }) => new TrackingResourceAdaptor(upstream, options),
});
