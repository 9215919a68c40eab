import {
  formatOutstandingAllocations,
  type OutstandingAllocation,
  OutstandingAllocations,
} from '../adaptors/pass-through/outstanding-allocations.js';
import { PassThroughAdaptor } from '../adaptors/pass-through/pass-through-adaptor.js';
import { captureStack } from '../basics/call-stack.js';
import { formatPointer } from '../basics/errors.js';
import { optionNames } from '../basics/validation.js';
import { declareAllocation, declareFree } from '../driver/memory/declare-to-order-checker.js';
import { Event } from '../driver/streams/event.js';
import { assertStream, Stream } from '../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { defineAdaptor } from '../resource-kind.js';
import { none } from '../suballocation/blocks.js';
import {
  callObserver,
  checkOrder,
  formatOrderViolation,
  formatSide,
  nextOperationNumber,
  type OrderChecker,
  type OrderViolation,
  type OrderViolationSide,
  stackOf,
} from './order-checker.js';

/** Options of {@link SanitizingResourceAdaptor}. */
export interface SanitizingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * Called with each violation, during the call that caused it. If it throws, the error is reported
   * as an uncaught exception.
   */
  readonly onViolation?: ((violation: SanitizerViolation) => void) | undefined;
  /**
   * Whether a violation about stream order is thrown as an {@link OrderError} from the call that
   * caused it. A copy, set or touch is submitted nevertheless; an allocation is freed again; a free
   * does not take place, and the memory then belongs to the stream on which it was to be freed.
   * Frees that are wrong in another way always throw.
   * @defaultValue false
   */
  readonly throwOnViolation?: boolean | undefined;
  /**
   * Whether violations have the stacks of both calls. Costs tens of microseconds for each operation.
   * @defaultValue true
   */
  readonly stacks?: boolean | undefined;
}

const knownOptions = optionNames<SanitizingResourceAdaptorOptions>({
  deallocationEvents: true,
  onViolation: 'function',
  stacks: 'boolean',
  throwOnViolation: 'boolean',
});

/** A free that is wrong regardless of stream order, or an allocation that was never freed. */
export interface LifetimeViolation {
  readonly kind: 'double-free' | 'wrong-size' | 'foreign-pointer' | 'leak';
  /** The pointer that was freed, or that leaked. */
  readonly pointer: DevicePointer;
  readonly bytes: number;
  /** The allocation concerned; for a double free, the first free; `undefined` if none is known. */
  readonly earlier: OrderViolationSide | undefined;
  /** The free, which did not take place; `undefined` for a leak. */
  readonly later: OrderViolationSide | undefined;
}

/** A violation that a {@link SanitizingResourceAdaptor} reports. */
export type SanitizerViolation = OrderViolation | LifetimeViolation;

/** The most violations that are kept, and the least number of frees that are remembered. */
const violationLimit = 1000;
const keptFrees = 4096;

/**
 * Checks that a program uses memory correctly, over any resource. Memory may be used on the stream
 * that it was allocated on, and on streams that wait for the allocation. Conflicting uses must be
 * ordered. Memory must be freed once, with its size, on a stream that waits for every use, and all
 * memory must be freed. It also checks the resource below: memory that it returns must be ordered
 * after the last free.
 *
 * Until the adaptor is disposed, stream order is checked in the whole process ({@link checkOrder}): every
 * copy and set is a use, including those of buffers, and so is a {@link Stream.touch}, which stands for a
 * kernel. `violations` lists the violations, with the stacks of both sides. A free that is itself wrong
 * also throws, and the upstream is not called. Disposing the adaptor while allocations are outstanding
 * reports each of them as a leak, and emits a process warning with the code
 * `CISTERN_OUTSTANDING_ALLOCATIONS`.
 *
 * All users of the resource below must go through this adaptor, or through others of its kind.
 * Otherwise, memory that was last freed through here and is then allocated to another user looks
 * like a use after free. For memory that was not allocated through cistern, or that the driver does
 * not know, such as that of a {@link HostMemoryResource}, only the lifetime is checked.
 *
 * Stream order and alignment are those of the upstream. It does for memory what PyTorch's CUDA
 * sanitizer does for tensors; RMM has no counterpart.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using sanitizer = new SanitizingResourceAdaptor(upstream, { onViolation: (violation) => console.log(formatSanitizerViolation(violation)) });
 * const pointer = sanitizer.allocate(4096, producer);
 * set(pointer, 0, 1, 4096, producer);
 * sanitizer.deallocate(pointer, 4096, consumer); // reported: consumer does not wait for producer
 * ```
 */
export class SanitizingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'SanitizingResourceAdaptor';
  readonly #checker: OrderChecker;
  readonly #onViolation: ((violation: SanitizerViolation) => void) | undefined;
  readonly #wantsStacks: boolean;
  readonly #allocations = new OutstandingAllocations(keptFrees);
  /** By record: its allocation, or its free after it is freed. */
  readonly #sides: OrderViolationSide[] = [];
  #violations: SanitizerViolation[] = [];
  #droppedViolations = 0;

  /** @throws ArgumentTypeError, ArgumentRangeError for invalid options. */
  constructor(upstream: MemoryResource, options: SanitizingResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { onViolation, throwOnViolation = false, stacks = true } = options;
    this.#onViolation = onViolation;
    this.#wantsStacks = stacks;
    this.#checker = checkOrder({
      stacks: this.#wantsStacks,
      throwOnViolation,
      onViolation: (violation) => this.#take(violation),
    });
  }

  /**
   * The first 1,000 violations since construction or the last `clear`, in order: those about the
   * lifetime of memory that passed through here, and those about the stream order of all memory of
   * the process ({@link OrderChecker.violations}).
   */
  get violations(): readonly SanitizerViolation[] {
    this.#collect();
    return [...this.#violations];
  }

  /** The number of further violations. */
  get droppedViolations(): number {
    this.#collect();
    return this.#droppedViolations;
  }

  /** Outstanding bytes, as requested. */
  get allocatedBytes(): number {
    return this.#allocations.allocatedBytes;
  }

  /** The outstanding allocations, largest first. A copy, linear in their number. */
  outstandingAllocations(): readonly OutstandingAllocation[] {
    return this.#allocations.list((record) => this.#sides[record]?.stack);
  }

  /**
   * Forgets the violations found so far. Later operations are still checked against earlier uses.
   */
  clear(): void {
    this.#collect();
    this.#violations = [];
    this.#droppedViolations = 0;
  }

  /**
   * @throws OrderError if violations are thrown and `stream` must not have the memory yet; the memory
   * is freed again.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
    if (pointer === 0) return pointer;
    const number = nextOperationNumber();
    try {
      // A host function that ran in the upstream may have disposed the stream.
      if (!stream.isDisposed) declareAllocation(pointer, bytes, stream);
    } catch (error) {
      this.giveBack(pointer, bytes, stream);
      throw error;
    }
    const record = this.#allocations.add(pointer, bytes, stream.id);
    this.#sides[record] = sideOf('allocate', pointer, bytes, stream.id, number, stackOf(number));
    return pointer;
  }

  /**
   * @throws LifetimeError (`ERR_CISTERN_FOREIGN_POINTER`, `ERR_CISTERN_DOUBLE_FREE`,
   * `ERR_CISTERN_WRONG_SIZE`) if the pointer is not outstanding here with this size; the upstream
   * is not called.
   * @throws OrderError if violations are thrown and the memory may be in use; it is not freed.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const allocations = this.#allocations;
    const record = allocations.find(pointer);
    if (record === none || allocations.bytesOf(record) !== bytes) {
      this.#refuse(pointer, bytes, stream, record);
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
      return;
    }
    assertStream(stream, 'deallocate');
    // A declared free counts at the current end of its stream, but an event may have been recorded
    // earlier, and does not cover work queued after it. So with an event, the free is not declared,
    // and the next owner is checked against the uses themselves.
    const isDeclared = !(fence instanceof Event);
    const number = isDeclared ? nextOperationNumber() : 0;
    allocations.beginFree(pointer, record);
    let free: OrderViolationSide;
    try {
      if (isDeclared) declareFree(pointer, bytes, stream);
      free = sideOf(
        'free',
        pointer,
        bytes,
        stream.id,
        number,
        isDeclared || !this.#wantsStacks ? stackOf(number) : captureStack(undefined),
      );
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    } catch (error) {
      allocations.undoFree(pointer, record);
      if (isDeclared && !stream.isDisposed) declareAllocation(pointer, bytes, stream);
      throw error;
    }
    allocations.finishFree(record);
    this.#sides[record] = free;
  }

  /**
   * Ends allocation through this object, and the check of stream order unless there is another
   * checker, and reports outstanding allocations. Keeps the violations, and does not dispose the
   * upstream. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    super[Symbol.dispose]();
    this.#checker.dispose();
    const leaks = this.outstandingAllocations();
    for (const { pointer, bytes } of leaks) {
      this.#report({ kind: 'leak', pointer, bytes, earlier: this.#sides[this.#allocations.find(pointer)], later: undefined });
    }
    if (leaks.length > 0) process.emitWarning(formatOutstandingAllocations(leaks), { code: 'CISTERN_OUTSTANDING_ALLOCATIONS' });
  }

  #refuse(pointer: DevicePointer, bytes: number, stream: Stream, record: number): void {
    const refusal = this.#allocations.refusal(this.constructor.name, pointer, bytes, record);
    if (refusal === undefined) return;
    const { error } = refusal;
    const later = sideOf(
      'free',
      pointer,
      bytes,
      stream instanceof Stream ? stream.id : undefined,
      0,
      this.#wantsStacks ? captureStack(undefined) : undefined,
    );
    this.#report({
      kind: refusalKinds[error.code as keyof typeof refusalKinds],
      pointer,
      bytes,
      earlier: refusal.record === none ? undefined : this.#sides[refusal.record],
      later,
    });
    throw error;
  }

  #report(violation: LifetimeViolation): void {
    Object.freeze(violation);
    callObserver((each: SanitizerViolation) => this.#take(each), violation);
  }

  #take(violation: SanitizerViolation): void {
    if (this.#violations.length < violationLimit) this.#violations.push(violation);
    else this.#droppedViolations++;
    this.#onViolation?.(violation);
  }

  /** Violations by threads that do not check themselves are fetched only on request. */
  #collect(): void {
    void this.#checker.violations;
  }
}

/** `sanitizing` in a specification. */
export const sanitizingKind = defineAdaptor({
  name: 'sanitizing',
  role: 'pass-through',
  summary: 'checks stream order, wrong uses, wrong frees and leaks',
  options: {
    stacks: { type: 'boolean', summary: 'whether violations have the stacks of both sides', default: 'true' },
    throwOnViolation: { type: 'boolean', summary: 'whether violations about stream order are thrown', default: 'false' },
  },
  example: 'sanitizing(cuda, stacks=false)',
  create: ({ upstream, options }) => new SanitizingResourceAdaptor(upstream, options),
});

const refusalKinds = {
  ERR_CISTERN_DOUBLE_FREE: 'double-free',
  ERR_CISTERN_WRONG_SIZE: 'wrong-size',
  ERR_CISTERN_FOREIGN_POINTER: 'foreign-pointer',
} as const;

const headings: Readonly<Record<LifetimeViolation['kind'], string>> = {
  'double-free': 'memory is freed twice',
  'wrong-size': 'memory is freed with a wrong size',
  'foreign-pointer': 'the freed memory was not allocated here',
  leak: 'memory was not freed',
};

/** A violation as human-readable text of several lines. */
export function formatSanitizerViolation(violation: SanitizerViolation): string {
  if ('missing' in violation) return formatOrderViolation(violation);
  const { kind, pointer, bytes, earlier, later } = violation;
  const lines = [`${headings[kind]}: ${bytes} bytes from ${formatPointer(pointer)}`];
  if (later !== undefined) lines.push(`  later:   ${formatSide(later)}`);
  if (earlier !== undefined) lines.push(`  earlier: ${formatSide(earlier)}`);
  return lines.join('\n');
}

function sideOf(
  operation: 'allocate' | 'free',
  pointer: DevicePointer,
  bytes: number,
  streamId: number | undefined,
  number: number,
  stack: string | undefined,
): OrderViolationSide {
  return Object.freeze({ operation, access: undefined, streamId, pointer, bytes, number, stack });
}
