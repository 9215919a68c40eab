import { assertInteger } from '../../basics/validation.js';
import { refuseCloning } from '../../driver/workers/local-object.js';
import type { RecordingDamage } from '../formats/recorded-run.js';

/** Events of a log in columns; the first `count` entries of each column are set. */
export interface EventChunk {
  readonly count: number;
  /** The slot for an allocation, `~slot` (a negative number) for a free. */
  readonly operations: Int32Array;
  /** Requested bytes, for a free too. */
  readonly sizes: Float64Array;
  /** An index into {@link AllocationLog.threads}. */
  readonly threads: Uint32Array;
  /** An index into {@link AllocationLog.streams}. */
  readonly streams: Uint32Array;
}

/**
 * The order between the streams of a log, in columns: one entry for each CUDA event that was
 * recorded, and one for each wait.
 */
export interface StreamOrders {
  /** How many allocations and frees come before. */
  readonly positions: readonly number[];
  /** The stream that records or waits, as the log names it. It may have no allocations. */
  readonly streams: readonly string[];
  /** The number of the event's recording; negated for a wait. */
  readonly recordings: readonly number[];
}

/** One event, for inspection; loops read the chunks. */
export interface LogEvent {
  readonly action: 'allocate' | 'free';
  readonly bytes: number;
  /** Identifies the allocation while it is live. */
  readonly slot: number;
  /** An index into {@link AllocationLog.threads}. */
  readonly thread: number;
  /** An index into {@link AllocationLog.streams}. */
  readonly stream: number;
  /** The line of the log, from 1; for a recording, the line it would have if converted to CSV. */
  readonly line: number;
}

/** The data of an {@link AllocationLog}: its fields, and the rows that it skips. */
export interface AllocationLogContents extends Omit<AllocationLog, 'event' | 'lineOf'> {
  /** For each skipped row, the number of events before it; ascending. */
  readonly skippedRows: readonly number[];
}

/** Events per chunk. */
export const chunkCapacity = 65_536;

/** Number of rows before the first event. */
export const headerLines = 1;

/**
 * The allocations and frees of a program, in order. `readAllocationLog` makes it from an RMM log or
 * a layer of a recording.
 */
export class AllocationLog {
  /** The path or name of the log. */
  readonly source: string;
  /** The events, in order. Every chunk except the last is full. */
  readonly chunks: readonly EventChunk[];
  /** Number of allocations and frees. */
  readonly eventCount: number;
  /** Number of allocations. */
  readonly allocationCount: number;
  /** Rows with the action `allocate failure`. They are counted and otherwise skipped. */
  readonly failureCount: number;
  /**
   * Number of slots. A slot is a small integer that identifies a live allocation and is reused
   * after its free, so that a program finds an allocation's pointer by indexing an array.
   */
  readonly slotCount: number;
  /** The threads, as the log names them. */
  readonly threads: readonly string[];
  /** The streams, as the log names them; `0`, `0x0` and `0x1` are the same stream. */
  readonly streams: readonly string[];
  /** The most bytes live at once. */
  readonly peakLiveBytes: number;
  /** Bytes that the log never frees. */
  readonly unfreedBytes: number;
  /** Number of allocations that the log never frees. */
  readonly unfreedCount: number;
  /**
   * Set if a recording ends early, for example because the process was killed; the events are those
   * before that point.
   */
  readonly truncation: RecordingDamage | undefined;
  /** Number of records of a recording that are left out: a newer cistern wrote them. */
  readonly skippedRecordCount: number;
  /** @internal */
  readonly orders: StreamOrders;
  readonly #skippedRows: readonly number[];

  /** @internal */
  constructor(contents: AllocationLogContents) {
    refuseCloning(this);
    this.source = contents.source;
    this.chunks = contents.chunks;
    this.eventCount = contents.eventCount;
    this.allocationCount = contents.allocationCount;
    this.failureCount = contents.failureCount;
    this.slotCount = contents.slotCount;
    this.threads = contents.threads;
    this.streams = contents.streams;
    this.peakLiveBytes = contents.peakLiveBytes;
    this.unfreedBytes = contents.unfreedBytes;
    this.unfreedCount = contents.unfreedCount;
    this.truncation = contents.truncation;
    this.skippedRecordCount = contents.skippedRecordCount;
    this.orders = contents.orders;
    this.#skippedRows = contents.skippedRows;
  }

  /**
   * An event by its number, from 0.
   * @throws ArgumentRangeError if the log has no event of that number.
   */
  event(index: number): LogEvent {
    assertInteger(index, 'index', 0, this.eventCount - 1);
    const chunk = this.chunks[Math.floor(index / chunkCapacity)] as EventChunk;
    const row = index % chunkCapacity;
    const operation = chunk.operations[row] as number;
    return {
      action: operation >= 0 ? 'allocate' : 'free',
      bytes: chunk.sizes[row] as number,
      slot: operation >= 0 ? operation : ~operation,
      thread: chunk.threads[row] as number,
      stream: chunk.streams[row] as number,
      line: this.lineOf(index),
    };
  }

  /** The line of an event, from 1; for a recording, the line it would have if converted to CSV. */
  lineOf(index: number): number {
    let skipped = 0;
    while (skipped < this.#skippedRows.length && (this.#skippedRows[skipped] as number) <= index) skipped++;
    return headerLines + 1 + index + skipped;
  }
}
