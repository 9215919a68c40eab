import type { LayerSummary } from './summary.js';

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
}

/** The JSON in a report. */
export interface ReportContents {
  readonly title: string;
  readonly runs: readonly RunOverview[];
  /** The run that the first is compared with at first, or `null`. */
  readonly comparedRun: number | null;
}
