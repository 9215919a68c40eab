import type { DeallocationEvents } from '../memory-resource.js';

/** Which streams a replay uses. */
export type ReplayStreams =
  /** Those of the log. Legacy default stream and created streams alike become created ones. */
  | 'log'
  /** One for each thread of the log, as with a per-thread default stream. */
  | 'thread'
  /** One for everything. */
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

/** Nanoseconds for each operation of a log, over several replays. */
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

/** What a replay of a log through a stack of resources showed. All of it can be written as JSON. */
export interface ReplayResult {
  /** The name of the stack: its specification, where it was made from one. */
  readonly resource: string;
  /** The policy in force where freed memory is kept, or null where none is. */
  readonly events: DeallocationEvents | null;
  readonly streams: ReplayStreams;
  readonly streamCount: number;
  /** Allocations and frees in the log. */
  readonly operations: number;
  /** How often the log was replayed to measure the time; one more replay before that observed the rest. */
  readonly repetitions: number;
  /** Wall-clock time of the replay loop alone, divided by the operations. */
  readonly nanosecondsPerOperation: ReplayTime;
  /** The most bytes that were live at once, as asked for. */
  readonly peakLiveBytes: number;
  /** The most that the leaf held of the device, for several leaves the sum of that, or null where a leaf does not say. */
  readonly peakReservedBytes: number | null;
  /** From the lowest address that was handed out to the end of the highest allocation. */
  readonly highWaterBytes: number;
  /** Allocations that ran out of memory. Their frees were skipped. */
  readonly failures: number;
  readonly firstFailure: ReplayFailure | null;
  /** What the leaves still held after everything was freed and every layer above them disposed, or null where one does not say. */
  readonly leakedBytes: number | null;
  /** What the log itself never frees; the replay frees it at the end. */
  readonly logLeakedBytes: number;
  /** Calls made by the stack, from its construction to the last event of the log. */
  readonly driver: ReplayDriverCalls;
  /** Calls made by the replay, for frees on another stream than the allocation's. */
  readonly replayer: { readonly eventRecords: number; readonly eventWaits: number };
}
