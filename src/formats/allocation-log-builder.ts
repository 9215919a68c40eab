import { formatPointer } from '../errors.js';
import { AddressMap } from '../suballocation/address-map.js';
import { AllocationLog, chunkCapacity, type EventChunk } from './allocation-log.js';
import type { RecordingDamage } from './recorded-run.js';
import type { LogRows } from './rmm-csv/log-parser.js';

/** RMM's stream handles with a meaning of their own. */
const legacyDefaultStream = 0;
const legacyDefaultStreamAlias = 1;
const perThreadDefaultStream = 2;

/** Makes an {@link AllocationLog} out of rows, and holds them against each other. */
export class AllocationLogBuilder implements LogRows {
  readonly readsTimes = false;
  readonly #source: string;
  readonly #names: readonly string[];
  readonly #full: EventChunk[] = [];
  #operations = new Int32Array(chunkCapacity);
  #sizes = new Float64Array(chunkCapacity);
  #threadColumn = new Uint32Array(chunkCapacity);
  #streamColumn = new Uint32Array(chunkCapacity);
  #count = 0;

  readonly #slots = new AddressMap();
  #slotSizes = new Float64Array(1024);
  #vacantSlots = new Int32Array(1024);
  #vacantCount = 0;
  #slotCount = 0;
  /** The slot that all allocations of zero bytes share: they have no memory, and may have the same pointer. */
  #emptySlot = -1;

  readonly #threads: string[] = [];
  readonly #threadIndexes = new Map<number, number>();
  #lastThread = -1;
  #lastThreadIndex = 0;
  readonly #streams: string[] = [];
  readonly #streamIndexes = new Map<string, number>();
  #lastStream = -1;
  #lastStreamThread = -1;
  #lastStreamIndex = 0;

  #allocationCount = 0;
  #liveBytes = 0;
  #peakLiveBytes = 0;
  readonly #skippedRows: number[] = [];

  /** @param names of streams: the complement of an index stands for one that has no handle */
  constructor(source: string, names: readonly string[] = []) {
    this.#source = source;
    this.#names = names;
  }

  get eventCount(): number {
    return this.#full.length * chunkCapacity + this.#count;
  }

  /** Adds an allocation. Returns what is wrong with it, in which case nothing was added. */
  allocate(thread: number, pointer: number, bytes: number, stream: number): string | undefined {
    let slot: number;
    if (bytes === 0) {
      if (this.#emptySlot < 0) this.#emptySlot = this.#takeSlot();
      slot = this.#emptySlot;
    } else {
      if (pointer === 0) return `allocates ${bytes} bytes at the null pointer`;
      const live = this.#slots.get(pointer);
      if (live >= 0) return `allocates ${formatPointer(pointer)}, which is live with ${this.#slotSizes[live]} bytes`;
      slot = this.#takeSlot();
      this.#slots.insert(pointer, slot);
      this.#slotSizes[slot] = bytes;
      this.#liveBytes += bytes;
      if (this.#liveBytes > this.#peakLiveBytes) this.#peakLiveBytes = this.#liveBytes;
    }
    this.#allocationCount++;
    this.#append(slot, thread, bytes, stream);
    return undefined;
  }

  /** Adds a free. Returns what is wrong with it, in which case nothing was added. */
  free(thread: number, pointer: number, bytes: number, stream: number): string | undefined {
    const slot = pointer === 0 ? -1 : this.#slots.get(pointer);
    if (slot < 0) {
      if (bytes !== 0 || this.#emptySlot < 0) return `frees ${formatPointer(pointer)}, which is not live`;
      this.#append(~this.#emptySlot, thread, 0, stream);
      return undefined;
    }
    if (this.#slotSizes[slot] !== bytes) {
      return `frees ${formatPointer(pointer)} with ${bytes} bytes, which was allocated with ${this.#slotSizes[slot]}`;
    }
    this.#slots.remove(pointer);
    this.#liveBytes -= bytes;
    if (this.#vacantCount === this.#vacantSlots.length) this.#vacantSlots = doubled(this.#vacantSlots, Int32Array);
    this.#vacantSlots[this.#vacantCount++] = slot;
    this.#append(~slot, thread, bytes, stream);
    return undefined;
  }

  /** Counts an allocation that failed, which is no event. */
  fail(): undefined {
    this.#skippedRows.push(this.eventCount);
  }

  /**
   * The log. The builder must not be used any more.
   * @param truncation where the log ends before its time
   */
  finish(truncation?: RecordingDamage): AllocationLog {
    if (this.#count > 0) this.#closeChunk();
    const eventCount = this.#full.reduce((total, chunk) => total + chunk.count, 0);
    const unfreedCount = this.#slots.count;
    return new AllocationLog({
      source: this.#source,
      chunks: this.#full,
      eventCount,
      allocationCount: this.#allocationCount,
      failureCount: this.#skippedRows.length,
      slotCount: this.#slotCount,
      threads: this.#threads,
      streams: this.#streams,
      peakLiveBytes: this.#peakLiveBytes,
      unfreedBytes: this.#liveBytes,
      unfreedCount,
      skippedRows: this.#skippedRows,
      truncation,
    });
  }

  #append(operation: number, thread: number, bytes: number, stream: number): void {
    if (this.#count === chunkCapacity) this.#closeChunk();
    const row = this.#count++;
    this.#operations[row] = operation;
    this.#sizes[row] = bytes;
    this.#threadColumn[row] = thread === this.#lastThread ? this.#lastThreadIndex : this.#threadIndex(thread);
    const isLastStream = stream === this.#lastStream && thread === this.#lastStreamThread;
    this.#streamColumn[row] = isLastStream ? this.#lastStreamIndex : this.#streamIndex(stream, thread);
  }

  #closeChunk(): void {
    const count = this.#count;
    this.#full.push({
      count,
      operations: this.#operations,
      sizes: this.#sizes,
      threads: this.#threadColumn,
      streams: this.#streamColumn,
    });
    this.#operations = new Int32Array(chunkCapacity);
    this.#sizes = new Float64Array(chunkCapacity);
    this.#threadColumn = new Uint32Array(chunkCapacity);
    this.#streamColumn = new Uint32Array(chunkCapacity);
    this.#count = 0;
  }

  #takeSlot(): number {
    if (this.#vacantCount > 0) return this.#vacantSlots[--this.#vacantCount] as number;
    if (this.#slotCount === this.#slotSizes.length) this.#slotSizes = doubled(this.#slotSizes, Float64Array);
    return this.#slotCount++;
  }

  #threadIndex(thread: number): number {
    let index = this.#threadIndexes.get(thread);
    if (index === undefined) {
      index = this.#threads.push(String(thread)) - 1;
      this.#threadIndexes.set(thread, index);
    }
    this.#lastThread = thread;
    this.#lastThreadIndex = index;
    return index;
  }

  #streamIndex(stream: number, thread: number): number {
    const name = stream < 0 ? this.#names[~stream] : undefined;
    const isLegacy = stream === legacyDefaultStream || stream === legacyDefaultStreamAlias;
    // The per-thread default stream is a different stream on every thread, under one handle.
    const key = name ?? (isLegacy ? '0x0' : stream === perThreadDefaultStream ? `0x2 of thread ${thread}` : `0x${stream.toString(16)}`);
    let index = this.#streamIndexes.get(key);
    if (index === undefined) {
      index = this.#streams.push(key) - 1;
      this.#streamIndexes.set(key, index);
    }
    this.#lastStream = stream;
    this.#lastStreamThread = thread;
    this.#lastStreamIndex = index;
    return index;
  }
}

function doubled<T extends Int32Array | Float64Array>(array: T, type: new (length: number) => T): T {
  const larger = new type(array.length * 2);
  larger.set(array);
  return larger;
}
