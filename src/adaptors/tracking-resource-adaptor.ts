import type { Stream } from '../driver/stream.js';
import { ArgumentRangeError, formatPointer, LifetimeError } from '../errors.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { AddressMap } from '../suballocation/address-map.js';
import { none } from '../suballocation/blocks.js';
import { formatBytes } from '../units.js';
import { assertBytes, assertPointer } from '../validation.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link TrackingResourceAdaptor}. */
export interface TrackingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * Whether the JavaScript stack of each allocation is kept until it is freed. Costs about a microsecond for each, and memory.
   * @defaultValue false
   */
  readonly captureStacks?: boolean;
  /**
   * Frames that are kept of a stack, from 1 to 1000.
   * @defaultValue 64
   */
  readonly stackDepth?: number;
}

/** An allocation that was not freed. */
export interface OutstandingAllocation {
  readonly pointer: DevicePointer;
  /** Bytes, as they were asked for. */
  readonly bytes: number;
  /** The {@link Stream.id} of the stream it was allocated on. */
  readonly streamId: number;
  /** The stack it was allocated at, one line a frame, from the call of this resource outwards; `undefined` where stacks are not captured. */
  readonly stack: string | undefined;
}

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
  /** The record of each outstanding pointer. */
  readonly #records = new AddressMap();
  /** By record. What was freed stays until the record serves another allocation, so that a second free can be told. */
  #pointers = new Float64Array(initialRecords);
  #bytes = new Float64Array(initialRecords);
  #streamIds = new Float64Array(initialRecords);
  /** By record: the next free one for a free record, `outstanding` for another. */
  #next = new Int32Array(initialRecords);
  readonly #stacks: ({ readonly stack?: string } | undefined)[] = [];
  /** The record that was freed last, or none; and how many have ever been used. */
  #firstFree: number = none;
  #used = 0;
  #allocatedBytes = 0;

  /** @throws ArgumentTypeError, ArgumentRangeError for an option out of its range. */
  constructor(upstream: MemoryResource, options: TrackingResourceAdaptorOptions = {}) {
    super(upstream, options);
    const { captureStacks = false, stackDepth = 64 } = options;
    assertBytes(stackDepth, 'stackDepth');
    if (stackDepth < 1 || stackDepth > 1000) throw new ArgumentRangeError(`stackDepth must be from 1 to 1000, got ${stackDepth}`);
    this.#captureStacks = captureStacks === true;
    this.#stackDepth = stackDepth;
  }

  /** Bytes that are outstanding, as they were asked for. */
  get allocatedBytes(): number {
    return this.#allocatedBytes;
  }

  /** What was not freed, the largest first. A copy, linear in their number. */
  outstandingAllocations(): readonly OutstandingAllocation[] {
    const allocations: OutstandingAllocation[] = [];
    for (let record = 0; record < this.#used; record++) if (this.#next[record] === outstanding) allocations.push(this.#view(record));
    allocations.sort((a, b) => b.bytes - a.bytes || a.pointer - b.pointer);
    return Object.freeze(allocations);
  }

  /**
   * What was not freed, for people: the total, then what came from one stack together, that with the most bytes first, and of each the
   * largest allocations.
   */
  report(): string {
    return formatReport(this.outstandingAllocations());
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    let pointer: DevicePointer;
    try {
      pointer = this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      throw this.passOn(error);
    }
    if (pointer !== 0) this.#add(pointer, bytes, stream.id);
    return pointer;
  }

  /**
   * @throws LifetimeError (`ERR_CISTERN_FOREIGN_POINTER`, `ERR_CISTERN_DOUBLE_FREE`, `ERR_CISTERN_WRONG_SIZE`) for what is not outstanding here
   * with this size; the upstream does not hear of it.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (this.isDisposed) this.assertLive('deallocate');
    const record = typeof pointer === 'number' ? this.#records.get(pointer) : none;
    if (record === none || this.#bytes[record] !== bytes) {
      this.#refuse(pointer, bytes, record);
    } else {
      // Before the call: a host function that runs in it may be given the same memory again. The record serves no other allocation meanwhile.
      this.#records.remove(pointer);
      this.#next[record] = leaving;
    }
    try {
      this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
    } catch (error) {
      if (record !== none) {
        this.#records.insert(pointer, record);
        this.#next[record] = outstanding;
      }
      throw error;
    }
    if (record !== none) this.#release(record);
  }

  /** Ends the use of this object, and warns of what is outstanding. The upstream stays as it is. Does nothing the second time. */
  override [Symbol.dispose](): void {
    if (this.isDisposed) return;
    super[Symbol.dispose]();
    if (this.#records.count > 0) process.emitWarning(this.report(), { code: 'CISTERN_OUTSTANDING_ALLOCATIONS' });
  }

  #add(pointer: DevicePointer, bytes: number, streamId: number): void {
    let record = this.#records.get(pointer);
    if (record === none) {
      record = this.#takeRecord();
      this.#records.insert(pointer, record);
    } else {
      // Its memory was freed past this.
      this.#allocatedBytes -= this.#bytes[record] as number;
    }
    this.#pointers[record] = pointer;
    this.#bytes[record] = bytes;
    this.#streamIds[record] = streamId;
    this.#next[record] = outstanding;
    this.#allocatedBytes += bytes;
    if (this.#captureStacks) this.#stacks[record] = captureStack(this.#stackDepth);
  }

  #takeRecord(): number {
    const record = this.#firstFree;
    if (record !== none) {
      this.#firstFree = this.#next[record] as number;
      return record;
    }
    if (this.#used === this.#next.length) this.#grow();
    return this.#used++;
  }

  #release(record: number): void {
    this.#allocatedBytes -= this.#bytes[record] as number;
    this.#next[record] = this.#firstFree;
    this.#firstFree = record;
    if (this.#captureStacks) this.#stacks[record] = undefined;
  }

  #grow(): void {
    const length = 2 * this.#used;
    const copy = (from: Float64Array) => {
      const to = new Float64Array(length);
      to.set(from);
      return to;
    };
    this.#pointers = copy(this.#pointers);
    this.#bytes = copy(this.#bytes);
    this.#streamIds = copy(this.#streamIds);
    const next = new Int32Array(length);
    next.set(this.#next);
    this.#next = next;
  }

  #view(record: number): OutstandingAllocation {
    // The first line says that it is an error, which it is not.
    const stack = this.#stacks[record]?.stack?.split('\n').slice(1);
    return Object.freeze({
      pointer: this.#pointers[record] as number,
      bytes: this.#bytes[record] as number,
      streamId: this.#streamIds[record] as number,
      stack: stack?.map((line) => line.trim()).join('\n'),
    });
  }

  /** Explains why a free is refused, unless it is that of the null pointer. Linear in the number of records. */
  #refuse(pointer: number, bytes: number, record: number): void {
    assertPointer(pointer);
    assertBytes(bytes);
    if (pointer === 0) return;
    const where = `the ${this.constructor.name} cannot free ${formatPointer(pointer)}`;
    if (record !== none) {
      const asked = this.#bytes[record];
      throw new LifetimeError('ERR_CISTERN_WRONG_SIZE', `${where} with ${bytes} bytes: it was allocated with ${asked} bytes`);
    }
    let isFreed = false;
    for (let other = 0; other < this.#used; other++) {
      const offset = pointer - (this.#pointers[other] as number);
      if (offset === 0) {
        isFreed = true;
      } else if (this.#next[other] === outstanding && offset > 0 && offset < (this.#bytes[other] as number)) {
        throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${where}: it lies inside an allocation, not at its start`);
      }
    }
    if (isFreed) throw new LifetimeError('ERR_CISTERN_DOUBLE_FREE', `${where}: it is already freed`);
    throw new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${where}: it was not allocated by this resource`);
  }
}

const initialRecords = 64;

/** Marks in place of the next free record: of an allocation that is live, and of one whose free the upstream is at. */
const outstanding = -2;
const leaving = -3;

/** How many allocations of one stack, and how many stacks, a report shows. */
const shownAllocations = 10;
const shownStacks = 20;

/** The stack of the code that called `allocate`; its text is made when it is read. */
function captureStack(depth: number): { readonly stack?: string } {
  const holder = {};
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = depth;
  Error.captureStackTrace(holder, TrackingResourceAdaptor.prototype.allocate);
  Error.stackTraceLimit = stackTraceLimit;
  return holder;
}

/** @param allocations the largest first */
function formatReport(allocations: readonly OutstandingAllocation[]): string {
  if (allocations.length === 0) return 'no outstanding allocations';
  const groups = new Map<string | undefined, OutstandingAllocation[]>();
  for (const allocation of allocations) {
    const group = groups.get(allocation.stack);
    if (group === undefined) groups.set(allocation.stack, [allocation]);
    else group.push(allocation);
  }
  const stacks = [...groups].sort(([, a], [, b]) => totalBytes(b) - totalBytes(a));
  const lines = [`${formatTotal(allocations)} outstanding`];
  for (const [stack, group] of stacks.slice(0, shownStacks)) {
    if (stack !== undefined) lines.push('', `${formatTotal(group)}, allocated`, ...stack.split('\n').map((line) => `    ${line}`));
    for (const { pointer, bytes, streamId } of group.slice(0, shownAllocations)) {
      lines.push(`  ${formatPointer(pointer)}: ${formatSize(bytes)} on stream ${streamId}`);
    }
    if (group.length > shownAllocations) lines.push(`  and ${formatTotal(group.slice(shownAllocations))} more`);
  }
  const hidden = stacks.slice(shownStacks).flatMap(([, group]) => group);
  if (hidden.length > 0) lines.push('', `and ${formatTotal(hidden)} from ${stacks.length - shownStacks} other stacks`);
  return lines.join('\n');
}

/** `2 allocations of 3 MiB (3145728 bytes)` */
function formatTotal(allocations: readonly OutstandingAllocation[]): string {
  return `${allocations.length} allocation${allocations.length === 1 ? '' : 's'} of ${formatSize(totalBytes(allocations))}`;
}

function formatSize(bytes: number): string {
  return bytes < 1024 ? `${bytes} bytes` : `${formatBytes(bytes)} (${bytes} bytes)`;
}

function totalBytes(allocations: readonly OutstandingAllocation[]): number {
  return allocations.reduce((sum, { bytes }) => sum + bytes, 0);
}
