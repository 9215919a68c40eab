import { captureStack } from '../call-stack.js';
import type { Stream } from '../driver/stream.js';
import { ArgumentRangeError } from '../errors.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import { none } from '../suballocation/blocks.js';
import { assertBytes, optionNames } from '../validation.js';
import { formatOutstandingAllocations, type OutstandingAllocation, OutstandingAllocations } from './outstanding-allocations.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link TrackingResourceAdaptor}. */
export interface TrackingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * Whether the JavaScript stack of each allocation is kept until it is freed. Costs some microseconds for each, and memory.
   * @defaultValue false
   */
  readonly captureStacks?: boolean;
  /**
   * Frames that are kept of a stack, from 1 to 1000.
   * @defaultValue 64
   */
  readonly stackDepth?: number;
}

const knownOptions = optionNames<TrackingResourceAdaptorOptions>({ captureStacks: true, deallocationEvents: true, stackDepth: true });

/**
 * Knows every allocation that passed through it and was not freed, and refuses frees that are wrong before they reach the upstream: of a pointer
 * that was not allocated here, of one that was freed before, and with another size.
 *
 * Disposing it while allocations are outstanding emits a process warning with the code `CISTERN_OUTSTANDING_ALLOCATIONS` and the report as its
 * message. They stay allocated, and what is known of them can still be read.
 *
 * Stream order, alignment: those of the upstream. What is freed is gone from the books at once, whatever its stream still does.
 *
 * Counterpart of `rmm::mr::tracking_resource_adaptor`, which logs wrong frees and passes them on. Memory that was freed past this, at the
 * upstream, stays in the books until its address is allocated again.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using resource = new TrackingResourceAdaptor(upstream, { captureStacks: true });
 * train(resource);
 * console.log(resource.report());
 * ```
 */
export class TrackingResourceAdaptor extends PassThroughAdaptor {
  readonly #captureStacks: boolean;
  readonly #stackDepth: number;
  readonly #allocations = new OutstandingAllocations(0);
  /** By record. */
  readonly #stacks: (string | undefined)[] = [];

  /** @throws ArgumentTypeError, ArgumentRangeError for an option out of its range. */
  constructor(upstream: MemoryResource, options: TrackingResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { captureStacks = false, stackDepth = 64 } = options;
    assertBytes(stackDepth, 'stackDepth');
    if (stackDepth < 1 || stackDepth > 1000) throw new ArgumentRangeError(`stackDepth must be from 1 to 1000, got ${stackDepth}`);
    this.#captureStacks = captureStacks === true;
    this.#stackDepth = stackDepth;
  }

  /** Bytes that are outstanding, as they were asked for. */
  get allocatedBytes(): number {
    return this.#allocations.allocatedBytes;
  }

  /** What was not freed, the largest first. A copy, linear in their number. */
  outstandingAllocations(): readonly OutstandingAllocation[] {
    return this.#allocations.list((record) => this.#stacks[record]);
  }

  /**
   * What was not freed, for people: the total, then what came from one stack together, that with the most bytes first, and of each the
   * largest allocations.
   */
  report(): string {
    return formatOutstandingAllocations(this.outstandingAllocations());
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    let pointer: DevicePointer;
    try {
      pointer = this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      throw this.passOn(error);
    }
    if (pointer === 0) return pointer;
    const record = this.#allocations.add(pointer, bytes, stream.id);
    if (this.#captureStacks) this.#stacks[record] = captureStack(this.allocate, this.#stackDepth);
    return pointer;
  }

  /**
   * @throws LifetimeError (`ERR_CISTERN_FOREIGN_POINTER`, `ERR_CISTERN_DOUBLE_FREE`, `ERR_CISTERN_WRONG_SIZE`) for what is not outstanding here
   * with this size; the upstream does not hear of it.
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
      this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
    } catch (error) {
      if (record !== none) allocations.undoFree(pointer, record);
      throw error;
    }
    if (record === none) return;
    allocations.finishFree(record);
    if (this.#captureStacks) this.#stacks[record] = undefined;
  }

  /** Ends the use of this object, and warns of what is outstanding. The upstream stays as it is. Does nothing the second time. */
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
  summary: 'knows what was not freed, and refuses wrong frees',
  options: { stacks: { type: 'boolean', summary: 'whether it keeps the stack of each allocation', default: 'false' } },
  example: 'tracking(cuda, stacks=true)',
  create: ({ upstream, options }) =>
    new TrackingResourceAdaptor(upstream, definedFields({ captureStacks: options.stacks, deallocationEvents: options.events })),
});
