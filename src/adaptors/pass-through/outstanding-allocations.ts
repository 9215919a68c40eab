/**
 * The allocations that passed through a resource and are not yet freed, for the adaptors that track
 * each of them.
 *
 * Data structure: a record of numbers for each allocation, found by its pointer. The record of a
 * freed allocation goes to the end of a queue, and is reused only when it reaches the front. Until
 * then, a second free can be distinguished from the free of a foreign pointer, and matched to the
 * first free.
 *
 *     records  [ out | free | out | leaving | free ]       a pointer map has those that are out
 *                       ^------------------------^         the queue: oldest free first
 *
 * Invariants: Σ bytes of the records that are out or leaving = bytes; a pointer is out at most
 * once. Cost: expected constant, except for `list` and `refusal`, which are linear.
 */
import { alreadyFreed, formatPointer, insideAllocation, type LifetimeError, notAllocatedHere, wrongSize } from '../../basics/errors.js';
import { formatBytes } from '../../basics/units.js';
import { assertBytes, assertPointer } from '../../basics/validation.js';
import type { DevicePointer } from '../../memory-resource.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { none } from '../../suballocation/blocks.js';

/** An allocation that is not yet freed. */
export interface OutstandingAllocation {
  readonly pointer: DevicePointer;
  /** Bytes, as requested. */
  readonly bytes: number;
  /** The {@link Stream.id} of the stream that it was allocated on. */
  readonly streamId: number;
  /**
   * The stack of the allocation, one frame per line, from the call of this resource outwards;
   * `undefined` if stacks are not captured.
   */
  readonly stack: string | undefined;
}

/** The reason why a free is wrong, and the record that shows it, or none. */
export interface Refusal {
  readonly error: LifetimeError;
  readonly record: number;
}

/**
 * Values in place of the next free record: for a live allocation, and for one that the upstream is
 * freeing.
 */
const outstanding = -2;
const leaving = -3;

export class OutstandingAllocations {
  readonly #keptFrees: number;
  /** The record of each outstanding pointer. */
  readonly #records = new AddressMap();
  /** By record. The data of a freed allocation stays until the record is reused. */
  #pointers = new Float64Array(initialRecords);
  #bytes = new Float64Array(initialRecords);
  #streamIds = new Float64Array(initialRecords);
  /**
   * By record: the next free record or none if it is free, otherwise `outstanding` or `leaving`.
   */
  #next = new Int32Array(initialRecords);
  #firstFree: number = none;
  #lastFree: number = none;
  #free = 0;
  /** How many records have ever been used. */
  #used = 0;
  #allocatedBytes = 0;

  /** @param keptFrees the least number of frees to remember */
  constructor(keptFrees: number) {
    this.#keptFrees = keptFrees;
  }

  get count(): number {
    return this.#records.count;
  }

  get allocatedBytes(): number {
    return this.#allocatedBytes;
  }

  /** The record of an outstanding pointer, or none. */
  find(pointer: unknown): number {
    return typeof pointer === 'number' ? this.#records.get(pointer) : none;
  }

  bytesOf(record: number): number {
    return this.#bytes[record] as number;
  }

  /**
   * Returns the record. If the pointer still has one, its memory was freed past the resource, and
   * the record is reused.
   */
  add(pointer: DevicePointer, bytes: number, streamId: number): number {
    let record = this.#records.get(pointer);
    if (record === none) {
      record = this.#takeRecord();
      this.#records.insert(pointer, record);
    } else {
      this.#allocatedBytes -= this.#bytes[record] as number;
    }
    this.#pointers[record] = pointer;
    this.#bytes[record] = bytes;
    this.#streamIds[record] = streamId;
    this.#next[record] = outstanding;
    this.#allocatedBytes += bytes;
    return record;
  }

  /**
   * To be called before the upstream frees, because a host function that runs during its call may
   * get the same memory again. The record is not reused before `finishFree` or `undoFree`.
   */
  beginFree(pointer: DevicePointer, record: number): void {
    this.#records.remove(pointer);
    this.#next[record] = leaving;
  }

  undoFree(pointer: DevicePointer, record: number): void {
    this.#records.insert(pointer, record);
    this.#next[record] = outstanding;
  }

  finishFree(record: number): void {
    this.#allocatedBytes -= this.#bytes[record] as number;
    this.#next[record] = none;
    if (this.#lastFree === none) this.#firstFree = record;
    else this.#next[this.#lastFree] = record;
    this.#lastFree = record;
    this.#free += 1;
  }

  /** The allocations that are not yet freed, largest first. */
  list(stackOf: (record: number) => string | undefined): readonly OutstandingAllocation[] {
    const allocations: OutstandingAllocation[] = [];
    for (let record = 0; record < this.#used; record++) {
      if (this.#next[record] !== outstanding) continue;
      allocations.push(
        Object.freeze({
          pointer: this.#pointers[record] as number,
          bytes: this.#bytes[record] as number,
          streamId: this.#streamIds[record] as number,
          stack: stackOf(record)?.replace(/^ +/gm, ''),
        }),
      );
    }
    allocations.sort((a, b) => b.bytes - a.bytes || a.pointer - b.pointer);
    return Object.freeze(allocations);
  }

  /**
   * Why the resource called `name` refuses a free; `undefined` for a free of the null pointer,
   * which does nothing.
   * @param record the result of `find`
   * @throws ArgumentTypeError, ArgumentRangeError for invalid arguments.
   */
  refusal(name: string, pointer: unknown, bytes: unknown, record: number): Refusal | undefined {
    assertPointer(pointer);
    assertBytes(bytes);
    if (pointer === 0) return undefined;
    const where = `the ${name} cannot free ${formatPointer(pointer)}`;
    if (record !== none) return { error: wrongSize(where, bytes, this.bytesOf(record)), record };
    let freed: number = none;
    for (let other = 0; other < this.#used; other++) {
      const offset = pointer - (this.#pointers[other] as number);
      if (offset === 0) freed = other;
      else if (this.#next[other] === outstanding && offset > 0 && offset < (this.#bytes[other] as number)) {
        return { error: insideAllocation(where), record: other };
      }
    }
    if (freed === none) return { error: notAllocatedHere(where), record: none };
    // An address may have been freed several times; the queue has the latest free last.
    for (let other = this.#firstFree; other !== none; other = this.#next[other] as number) {
      if (this.#pointers[other] === pointer) freed = other;
    }
    return { error: alreadyFreed(where), record: freed };
  }

  #takeRecord(): number {
    const record = this.#firstFree;
    if (this.#free > this.#keptFrees) {
      this.#firstFree = this.#next[record] as number;
      if (this.#firstFree === none) this.#lastFree = none;
      this.#free -= 1;
      return record;
    }
    if (this.#used === this.#next.length) this.#grow();
    return this.#used++;
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
}

const initialRecords = 64;

/** How many allocations per stack, and how many stacks, a report shows. */
const shownAllocations = 10;
const shownStacks = 20;

/**
 * A human-readable report: the total, then a group for each stack, with its largest allocations;
 * the stack with the most bytes comes first.
 * @param allocations sorted, the largest first
 */
export function formatOutstandingAllocations(allocations: readonly OutstandingAllocation[]): string {
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
