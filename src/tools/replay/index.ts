export { AllocationLog, type EventChunk, type LogEvent } from './allocation-log.js';
export { type EstimateCheck, type EstimateSample, type EstimateSource, RunEstimator, type RunEstimatorOptions } from './estimate-run.js';
export {
  type ExplainFailureOptions,
  explainFailure,
  type FailureAlternative,
  type FailureExplanation,
  type FailureReason,
  type KeptMemoryState,
  type LiveMemory,
} from './explain-failure.js';
export { type FitOptions, type FitProgress, type FitResult, type FittedMaximum, fitLog } from './fit-log.js';
export { type GenerateLogOptions, generateLog, workloadNames } from './generate-log.js';
export type { WorkloadName } from './generate-workloads.js';
export { type ReadAllocationLogOptions, readAllocationLog, readGraphLogs } from './read-allocation-log.js';
export { type RecordedReplay, type RecordReplayOptions, recordReplay } from './record-replay.js';
export { defaultRepeat, type ReplayOptions, replayLog } from './replay-log.js';
export type { ReplayDriverCalls, ReplayFailure, ReplayResult, ReplayStreams, ReplayTime } from './replay-result.js';
export type { MemoryTaking } from './specification-maximum.js';

import '../every-kind.js';
