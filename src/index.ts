/// <reference lib="esnext.disposable" preserve="true" />
export {
  type FailureCallback,
  FailureCallbackResourceAdaptor,
  type FailureCallbackResourceAdaptorOptions,
} from './adaptors/failure-callback-resource-adaptor.js';
export type { OutstandingAllocation } from './adaptors/outstanding-allocations.js';
export { PassThroughAdaptor } from './adaptors/pass-through-adaptor.js';
export { StreamOrderedMemoryResource, type StreamOrderedStatistics } from './adaptors/stream-ordered-memory-resource.js';
export { SuballocatingMemoryResource } from './adaptors/suballocating-memory-resource.js';
export type { ByteRange } from './buffers/byte-range.js';
export { currentResource, resetCurrentResource, setCurrentResource } from './buffers/current-resource.js';
export {
  type BufferAllocation,
  type BufferCopyOptions,
  DeviceBuffer,
  type DeviceBufferOptions,
  type DeviceMemory,
  type HostData,
} from './buffers/device-buffer.js';
export { configureEarlyCollection, type EarlyCollectionOptions } from './collector/early-collection.js';
export { type CollectionKind, reclaimUnreachableBuffers } from './collector/reclaim-unreachable-buffers.js';
export type { ReclaimStage, ReclaimTimings, StageTiming } from './collector/stage-timings.js';
export type { BufferLeak } from './collector/unreachable-buffers.js';
export { type Backend, type BackendChoice, cudaUnavailableReason, currentBackend, selectBackend } from './driver/backend.js';
export { type DriverCallCounts, driverCallCounts } from './driver/call-counts.js';
export { Device, type DeviceAttribute, type DeviceMemoryInfo } from './driver/device.js';
export { Event, type EventOptions } from './driver/event.js';
export {
  advise,
  type ManagedRangeAttributes,
  type MemoryAdvice,
  type MemoryLocation,
  managedRangeAttributes,
  prefetch,
} from './driver/managed-memory.js';
export type { MemoryPoolUsage } from './driver/memory-pool.js';
export {
  type CheckOrderOptions,
  checkOrder,
  declareAllocation,
  declareFree,
  formatOrderReport,
  isCheckingOrder,
  type MemoryAccess,
  OrderChecker,
  OrderError,
  type OrderReport,
  type OrderReportKind,
  type OrderReportSide,
} from './driver/order-checker.js';
export type { MemoryKind } from './driver/plain-memory.js';
export {
  configureSoftwareDevice,
  driverFunctionNames,
  failCall,
  type SoftwareDeviceSettings,
  setCallLatency,
} from './driver/software-device.js';
export { type ForeignStreamOptions, Stream, StreamHold, type StreamOptions } from './driver/stream.js';
export { StreamPool, type StreamPoolOptions } from './driver/stream-pool.js';
export {
  copy,
  copyFromHost,
  copySync,
  copyToHost,
  copyToHostSync,
  type PointerInfo,
  pointerInfo,
  set,
  setSync,
} from './driver/transfer.js';
export * from './errors.js';
export { type FileSink, type WriteWholeOptions, writeWhole } from './files/write-whole.js';
export {
  type Conversion,
  type ConversionProgress,
  type ConvertedFormat,
  type ConvertLogOptions,
  convertLog,
} from './formats/convert-log.js';
export { type EventColumns, EventKind } from './formats/event-columns.js';
export type { LogFormat, LogProgress, LogSource, ReadLogOptions } from './formats/log-source.js';
export { type ReadRecordedRunOptions, readRecordedRun } from './formats/read-recorded-run.js';
export type { CsvSpelling, RecordedLayer, RecordedPhase, RecordedRun, RecordingDamage, RunDescription } from './formats/recorded-run.js';
export { annotate } from './formats/recording/annotate.js';
export { encodeRecording } from './formats/recording/convert-to-recording.js';
export { Recording, type RecordingOptions } from './formats/recording/recording.js';
export type { WrittenEvents } from './formats/written-events.js';
export type * from './memory-resource.js';
export { AllocationLog, type EventChunk, type LogEvent } from './replay/allocation-log.js';
export {
  type ExplainFailureOptions,
  explainFailure,
  type FailureAlternative,
  type FailureExplanation,
  type FailureReason,
  type KeptMemoryState,
  type LiveMemory,
} from './replay/explain-failure.js';
export { type FitOptions, type FitProgress, type FitResult, type FittedMaximum, fitLog } from './replay/fit-log.js';
export { type GenerateLogOptions, generateLog, workloadNames } from './replay/generate-log.js';
export type { WorkloadName } from './replay/generate-workloads.js';
export { type ReadAllocationLogOptions, readAllocationLog } from './replay/read-allocation-log.js';
export { type RecordedReplay, type RecordReplayOptions, recordReplay } from './replay/record-replay.js';
export { defaultRepeat, type ReplayOptions, replayLog } from './replay/replay-log.js';
export type { ReplayDriverCalls, ReplayFailure, ReplayResult, ReplayStreams, ReplayTime } from './replay/replay-result.js';
export type { MemoryTaking } from './replay/specification-maximum.js';
export { PackedReportRun } from './report/pack-report-run.js';
export { readReportRun } from './report/read-report-run.js';
export { type WriteReportOptions, writeReport } from './report/write-report.js';
export type { KindRole, OptionDefinition, OptionType, ResourceKind } from './resource-kind.js';
export * from './resource-kinds.js';
export { uncached, withResource } from './resource-scope.js';
export {
  type AllocateCallback,
  CallbackMemoryResource,
  type CallbackMemoryResourceOptions,
  type DeallocateCallback,
} from './resources/callback-memory-resource.js';
export { PlainMemoryResource, type PlainMemoryResourceOptions } from './resources/plain-memory-resource.js';
export { formatSpecification } from './specification/format-specification.js';
export { parseSpecification } from './specification/parse-specification.js';
export {
  type CreateResourceOptions,
  createResource,
  createResourceStack,
  ResourceStack,
  type ResourceStackOptions,
} from './specification/resource-stack.js';
export type { SourceRange, Specification, SpecificationValue } from './specification/specification.js';
export { ALLOCATION_ALIGNMENT, formatBytes, GiB, KiB, MiB, parseBytes } from './units.js';
export { observeStatistics, type StatisticsMeter, type StatisticsObserver } from './watch/observe-statistics.js';
export { prometheusText } from './watch/prometheus-text.js';
export { type PublishStatisticsOptions, publishStatistics } from './watch/publish-statistics.js';
export { sampleStatistics } from './watch/sample-statistics.js';
export { type ServeStatisticsOptions, type StatisticsServer, serveStatistics } from './watch/serve-statistics.js';
export type { DeviceSample, LayerSample, PoolSample, ResourceSample, StatisticsSample } from './watch/statistics-sample.js';

import './watch/start-if-asked.js';
