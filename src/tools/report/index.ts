export { type DiffGroup, type DiffRow, type DiffRunsOptions, diffRuns, type RunDiff } from './diff-runs.js';
export type { DiffFigures } from './diff-side.js';
export { PackedReportRun } from './pack-report-run.js';
export { readReportRun } from './read-report-run.js';
export type { ReportFit, ReportGraphs } from './report-contents.js';
export { type WriteReportOptions, writeReport } from './write-report.js';
