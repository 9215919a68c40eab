import type { LayerSummary } from './summary.js';

/**
 * The memory that a stack of resources needs to complete a run; see {@link
 * WriteReportOptions.fits}.
 */
export interface ReportFit {
  /** The stack's specification. */
  readonly resource: string;
  /** The specification with the smallest maximum, or `null` if none was found. */
  readonly fitted: string | null;
  /** In bytes. */
  readonly smallestMaximumBytes: number | null;
  /** The excess over the peak of live bytes: 0.05 is 5 % more. */
  readonly overheadRatio: number | null;
  /** Whether the search for a smaller maximum than `smallestMaximumBytes` was complete. */
  readonly isComplete: boolean;
}

/**
 * The memory of the graphs of a run; see {@link WriteReportOptions.graphs}. All in bytes, except counts.
 */
export interface ReportGraphs {
  readonly graphs: readonly {
    readonly name: string;
    readonly allocationCount: number;
    readonly peakLiveBytes: number;
    readonly lowerBoundBytes: number;
    /** A private pool of its own. */
    readonly poolBytes: number;
    readonly plannedBytes: number;
  }[];
  readonly lowerBoundBytes: number;
  /** A private pool for each. */
  readonly poolsBytes: number;
  /** One private pool for all, captured in this order. */
  readonly sharedPoolBytes: number;
  readonly plannedApartBytes: number;
  /** One planned region for all. */
  readonly plannedBytes: number;
}

/** The facts about a run that a report shows before unpacking its data. */
export interface RunOverview {
  readonly source: string;
  /** Milliseconds since 1970 at the first event, or `null` if the log has no date. */
  readonly startedAt: number | null;
  readonly durationNanoseconds: number;
  readonly eventCount: number;
  readonly isDamaged: boolean;
  readonly threadCount: number;
  readonly streamCount: number;
  /** The layer shown first. */
  readonly layer: number;
  readonly layers: readonly (LayerSummary & { readonly name: string })[];
  readonly fits: readonly ReportFit[];
  /** `null` if the log has no graphs. */
  readonly graphs: ReportGraphs | null;
}

/** The JSON in a report. */
export interface ReportContents {
  readonly title: string;
  readonly runs: readonly RunOverview[];
  /** The run that the first is compared with at first, or `null`. */
  readonly comparedRun: number | null;
}
