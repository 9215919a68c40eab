import type { DeallocationEvents } from '../../memory-resource.js';

/** The streams that a replay uses. */
export type ReplayStreams =
  /** Those of the log; a created stream replaces the legacy default stream. */
  | 'log'
  /** One per thread of the log, as with a per-thread default stream. */
  | 'thread'
  /** One for all events. */
  | 'single';

/** How often the driver was called. */
export interface ReplayDriverCalls {
  readonly allocations: number;
  readonly frees: number;
  readonly eventRecords: number;
  readonly eventWaits: number;
  /** Blocking synchronizations of a stream, an event or the device. */
  readonly synchronizations: number;
}

/** Nanoseconds per operation of a log, over several replays. */
export interface ReplayTime {
  readonly median: number;
  readonly minimum: number;
}

/** The first allocation of a replay that ran out of memory. */
export interface ReplayFailure {
  /** The line of the log, from 1. */
  readonly line: number;
  /** The number of the event, from 0. */
  readonly event: number;
  readonly bytes: number;
  /** The stream or thread, as the log names it; `all` for a replay on one stream. */
  readonly stream: string;
  readonly message: string;
}

/** The result of replaying a log through a stack of resources. You can write it as JSON. */
export interface ReplayResult {
  /** The name of the stack: its specification, if it was made from one. */
  readonly resource: string;
  /** The policy in force where freed memory is kept, or null if no resource keeps any. */
  readonly events: DeallocationEvents | null;
  readonly streams: ReplayStreams;
  readonly streamCount: number;
  /** Allocations and frees in the log. */
  readonly operations: number;
  /** Number of measured replays; one more replay before them observed the rest. */
  readonly repetitions: number;
  /** Wall-clock time of the replay loop alone, divided by the operations. */
  readonly nanosecondsPerOperation: ReplayTime;
  /** The most bytes live at once, as requested. */
  readonly peakLiveBytes: number;
  /**
   * The most bytes of the device that the leaf held, or the sum over several leaves; null if a leaf
   * does not report it.
   */
  readonly peakReservedBytes: number | null;
  /** The distance from the lowest address to the end of the highest allocation. */
  readonly highWaterBytes: number;
  /** Allocations that ran out of memory. Their frees were skipped. */
  readonly failures: number;
  readonly firstFailure: ReplayFailure | null;
  /**
   * Bytes that the leaves still held after everything was freed and every layer above them was
   * disposed; null if a leaf does not report it.
   */
  readonly leakedBytes: number | null;
  /** Bytes that the log itself never frees; the replay frees them at the end. */
  readonly logLeakedBytes: number;
  /** Calls made by the stack, from its construction to the last event of the log. */
  readonly driver: ReplayDriverCalls;
  /** Calls made by the replay, for frees on a stream other than the allocation's. */
  readonly replayer: { readonly eventRecords: number; readonly eventWaits: number };
}
