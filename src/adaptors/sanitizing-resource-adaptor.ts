import { Event } from '../driver/event.js';
import {
  callReporter,
  checkOrder,
  declareAllocation,
  declareFree,
  formatOrderReport,
  formatSide,
  nextOperationNumber,
  type OrderChecker,
  type OrderReport,
  type OrderReportSide,
  stackOf,
} from '../driver/order-checker.js';
import { assertStream, Stream } from '../driver/stream.js';
import { formatPointer } from '../errors.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import { none } from '../suballocation/blocks.js';
import { assertFunction, optionNames } from '../validation.js';
import { formatOutstandingAllocations, type OutstandingAllocation, OutstandingAllocations } from './outstanding-allocations.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link SanitizingResourceAdaptor}. */
export interface SanitizingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * Called with each report, from within the call that gave rise to it. What it throws is reported as an uncaught exception.
   */
  readonly onReport?: (report: SanitizerReport) => void;
  /**
   * Whether a report about stream order becomes an {@link OrderError} of the call that gave rise to it. A copy, set or touch is submitted all
   * the same; an allocation is given back; a free does not take place, and the memory is from there on the stream's on which it was to be freed.
   * Frees that are wrong in another way always throw.
   * @defaultValue false
   */
  readonly throwOnReport?: boolean;
  /**
   * Whether reports say where in the program both sides come from. Costs some tens of microseconds for each operation.
   * @defaultValue true
   */
  readonly stacks?: boolean;
}

const knownOptions = optionNames<SanitizingResourceAdaptorOptions>({
  deallocationEvents: true,
  onReport: true,
  stacks: true,
  throwOnReport: true,
});

/** A free that is wrong whatever the order of streams, or an allocation that was never freed. */
export interface LifetimeReport {
  readonly kind: 'double-free' | 'wrong-size' | 'foreign-pointer' | 'leak';
  /** What was freed, or of a leak what was not. */
  readonly pointer: DevicePointer;
  readonly bytes: number;
  /** The allocation that it is about, of a double free the first free; `undefined` where there is none (any more). */
  readonly earlier: OrderReportSide | undefined;
  /** The free, which did not take place; `undefined` for a leak. */
  readonly later: OrderReportSide | undefined;
}

/** What a {@link SanitizingResourceAdaptor} reports. */
export type SanitizerReport = OrderReport | LifetimeReport;

/** How many reports are kept, and how many frees in any case. */
const reportLimit = 1000;
const keptFrees = 4096;

/**
 * Holds a program to the rules of memory, whatever resource is below: memory may be used on the stream that it was allocated on and on streams
 * that wait for the allocation, uses that conflict must be in order, memory is freed once, with its size, on a stream that waits for every use,
 * and all of it. And it holds the resource below to them: what it gives out must be ordered after the last free.
 *
 * While it lives, stream order is checked in the whole process ({@link checkOrder}): every copy and set is a use, those of buffers included, and
 * so is a {@link Stream.touch}, which stands for a kernel. `reports` has what was found, with the stacks of both sides. A free that is wrong in
 * itself also throws, and the upstream does not hear of it. Disposing it while allocations are outstanding reports each of them as a leak, and
 * emits a process warning with the code `CISTERN_OUTSTANDING_ALLOCATIONS`.
 *
 * All that uses the resource below must go through this adaptor, or through others of its kind: what a pool gives to somebody else, while it
 * was last freed through here, looks as if it were used after it was freed. Of memory that was not allocated through cistern, or that the driver
 * does not know, such as that of a {@link HostMemoryResource}, only the lifetime is watched.
 *
 * Stream order, alignment: those of the upstream. What PyTorch's CUDA sanitizer is to tensors; RMM has no counterpart.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using sanitizer = new SanitizingResourceAdaptor(upstream, { onReport: (report) => console.log(formatSanitizerReport(report)) });
 * const pointer = sanitizer.allocate(4096, producer);
 * set(pointer, 0, 1, 4096, producer);
 * sanitizer.deallocate(pointer, 4096, consumer); // reported: consumer does not wait for producer
 * ```
 */
export class SanitizingResourceAdaptor extends PassThroughAdaptor {
  readonly #checker: OrderChecker;
  readonly #onReport: ((report: SanitizerReport) => void) | undefined;
  readonly #wantsStacks: boolean;
  readonly #allocations = new OutstandingAllocations(keptFrees);
  /** By record: its allocation, and once that is freed, the free. */
  readonly #sides: OrderReportSide[] = [];
  #reports: SanitizerReport[] = [];
  #droppedReports = 0;

  /** @throws ArgumentTypeError, ArgumentRangeError for options that are none. */
  constructor(upstream: MemoryResource, options: SanitizingResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { onReport, throwOnReport = false, stacks = true } = options;
    if (onReport !== undefined) assertFunction(onReport, 'onReport');
    this.#onReport = onReport;
    this.#wantsStacks = stacks !== false;
    this.#checker = checkOrder({
      stacks: this.#wantsStacks,
      throwOnReport: throwOnReport === true,
      onReport: (report) => this.#take(report),
    });
  }

  /**
   * The first 1,000 reports since the beginning or the last `clear`, in their order: on the lifetime of what passed through here, and on the
   * stream order of all memory of the process ({@link OrderChecker.reports}).
   */
  get reports(): readonly SanitizerReport[] {
    this.#collect();
    return [...this.#reports];
  }

  /** How many reports there were beyond those. */
  get droppedReports(): number {
    this.#collect();
    return this.#droppedReports;
  }

  /** Bytes that are outstanding, as they were asked for. */
  get allocatedBytes(): number {
    return this.#allocations.allocatedBytes;
  }

  /** What was not freed, the largest first. A copy, linear in their number. */
  outstandingAllocations(): readonly OutstandingAllocation[] {
    return this.#allocations.list((record) => this.#sides[record]?.stack);
  }

  /** Forgets the reports. What was used before is still held against what comes. */
  clear(): void {
    this.#collect();
    this.#reports = [];
    this.#droppedReports = 0;
  }

  /** @throws OrderError for memory that `stream` must not have yet, where reports are to throw; it is given back. */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    let pointer: DevicePointer;
    try {
      pointer = this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      throw this.passOn(error);
    }
    if (pointer === 0) return pointer;
    const number = nextOperationNumber();
    try {
      // A host function that ran in the upstream may have disposed the stream.
      if (!stream.isDisposed) declareAllocation(pointer, bytes, stream);
    } catch (error) {
      this.upstream.deallocate(pointer, bytes, stream, this.deallocationEvents);
      throw error;
    }
    const record = this.#allocations.add(pointer, bytes, stream.id);
    this.#sides[record] = sideOf('allocate', pointer, bytes, stream.id, number, stackOf(number));
    return pointer;
  }

  /**
   * @throws LifetimeError (`ERR_CISTERN_FOREIGN_POINTER`, `ERR_CISTERN_DOUBLE_FREE`, `ERR_CISTERN_WRONG_SIZE`) for what is not outstanding here
   * with this size; the upstream does not hear of it.
   * @throws OrderError for memory that may be in use, where reports are to throw; it is not freed.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const allocations = this.#allocations;
    const record = allocations.find(pointer);
    if (record === none || allocations.bytesOf(record) !== bytes) {
      this.#refuse(pointer, bytes, stream, record);
      this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
      return;
    }
    assertStream(stream, 'deallocate');
    // The place of an event is not the end of its stream, which is all that could be declared: what comes after the event is not waited for.
    // Without a declaration the next owner is held against the uses themselves.
    const isDeclared = !(fence instanceof Event);
    const number = isDeclared ? nextOperationNumber() : 0;
    allocations.beginFree(pointer, record);
    let free: OrderReportSide;
    try {
      if (isDeclared) declareFree(pointer, bytes, stream);
      free = sideOf('free', pointer, bytes, stream.id, number, isDeclared || !this.#wantsStacks ? stackOf(number) : framesOf(new Error()));
      this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
    } catch (error) {
      allocations.undoFree(pointer, record);
      if (isDeclared && !stream.isDisposed) declareAllocation(pointer, bytes, stream);
      throw error;
    }
    allocations.finishFree(record);
    this.#sides[record] = free;
  }

  /**
   * Ends the use of this object, and the check of stream order unless somebody else goes on; reports what is outstanding. The reports stay. The
   * upstream stays as it is. Does nothing the second time.
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
      this.#wantsStacks ? framesOf(error) : undefined,
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

  #report(report: LifetimeReport): void {
    Object.freeze(report);
    callReporter((each: SanitizerReport) => this.#take(each), report);
  }

  #take(report: SanitizerReport): void {
    if (this.#reports.length < reportLimit) this.#reports.push(report);
    else this.#droppedReports++;
    this.#onReport?.(report);
  }

  /** Reports of threads that do not check themselves wait until somebody asks. */
  #collect(): void {
    void this.#checker.reports;
  }
}

/** `sanitizing` in a specification. */
export const sanitizingKind = defineAdaptor({
  name: 'sanitizing',
  role: 'pass-through',
  summary: 'checks stream order, and reports what is used or freed wrongly or not freed',
  options: { stacks: { type: 'boolean', summary: 'whether reports say where both sides come from', default: 'true' } },
  example: 'sanitizing(cuda, stacks=false)',
  create: ({ upstream, options }) =>
    new SanitizingResourceAdaptor(upstream, definedFields({ stacks: options.stacks, deallocationEvents: options.events })),
});

const refusalKinds = {
  ERR_CISTERN_DOUBLE_FREE: 'double-free',
  ERR_CISTERN_WRONG_SIZE: 'wrong-size',
  ERR_CISTERN_FOREIGN_POINTER: 'foreign-pointer',
} as const;

const headings: Readonly<Record<LifetimeReport['kind'], string>> = {
  'double-free': 'memory is freed twice',
  'wrong-size': 'memory is freed with another size than it was allocated with',
  'foreign-pointer': 'memory is freed that was not allocated here',
  leak: 'memory was not freed',
};

/** A report as a text of several lines, for people. */
export function formatSanitizerReport(report: SanitizerReport): string {
  if ('missing' in report) return formatOrderReport(report);
  const { kind, pointer, bytes, earlier, later } = report;
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
): OrderReportSide {
  return Object.freeze({ operation, access: undefined, streamId, pointer, bytes, number, stack });
}

/** The stack of an error without its message, one line a frame. */
function framesOf({ stack }: Error): string | undefined {
  return stack?.match(/^ {4}at .*$/gm)?.join('\n');
}
