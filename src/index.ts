/// <reference lib="esnext.disposable" preserve="true" />
export { AlignedResourceAdaptor, type AlignedResourceAdaptorOptions } from './adaptors/aligned-resource-adaptor.js';
export { ArenaMemoryResource, type ArenaMemoryResourceOptions, type ArenaStatistics } from './adaptors/arena-memory-resource.js';
export { type Bin, BinningMemoryResource, type BinningMemoryResourceOptions } from './adaptors/binning-memory-resource.js';
export { CachingMemoryResource, type CachingMemoryResourceOptions, type CachingStatistics } from './adaptors/caching-memory-resource.js';
export {
  type FailureCallback,
  FailureCallbackResourceAdaptor,
  type FailureCallbackResourceAdaptorOptions,
} from './adaptors/failure-callback-resource-adaptor.js';
export { FallbackResourceAdaptor } from './adaptors/fallback-resource-adaptor.js';
export { FixedSizeMemoryResource, type FixedSizeMemoryResourceOptions } from './adaptors/fixed-size-memory-resource.js';
export { LimitingResourceAdaptor, type LimitingResourceAdaptorOptions } from './adaptors/limiting-resource-adaptor.js';
export {
  type FileLogOptions,
  LoggingResourceAdaptor,
  type LoggingResourceAdaptorOptions,
  type StreamLogOptions,
} from './adaptors/logging-resource-adaptor.js';
export {
  MonotonicMark,
  MonotonicMemoryResource,
  type MonotonicMemoryResourceOptions,
  type MonotonicStatistics,
} from './adaptors/monotonic-memory-resource.js';
export type { OutstandingAllocation } from './adaptors/outstanding-allocations.js';
export { PassThroughAdaptor } from './adaptors/pass-through-adaptor.js';
export {
  PoolMemoryResource,
  type PoolMemoryResourceOptions,
  type PoolStatistics,
} from './adaptors/pool-memory-resource.js';
export { PrefetchResourceAdaptor, type PrefetchResourceAdaptorOptions } from './adaptors/prefetch-resource-adaptor.js';
export { ReclaimingResourceAdaptor, type ReclaimingResourceAdaptorOptions } from './adaptors/reclaiming-resource-adaptor.js';
export { RecordingResourceAdaptor, type RecordingResourceAdaptorOptions } from './adaptors/recording-resource-adaptor.js';
export {
  type DivisionsRounding,
  type MultipleRounding,
  RoundingResourceAdaptor,
  type RoundingResourceAdaptorOptions,
  type TopBitsRounding,
} from './adaptors/rounding-resource-adaptor.js';
export {
  formatSanitizerReport,
  type LifetimeReport,
  type SanitizerReport,
  SanitizingResourceAdaptor,
  type SanitizingResourceAdaptorOptions,
} from './adaptors/sanitizing-resource-adaptor.js';
export {
  type AllocationStatistics,
  type CounterSnapshot,
  StatisticsResourceAdaptor,
  type StatisticsResourceAdaptorOptions,
} from './adaptors/statistics-resource-adaptor.js';
export { type KeeperStatistics, StreamOrderedMemoryResource } from './adaptors/stream-ordered-memory-resource.js';
export { SuballocatingMemoryResource } from './adaptors/suballocating-memory-resource.js';
export { TrackingResourceAdaptor, type TrackingResourceAdaptorOptions } from './adaptors/tracking-resource-adaptor.js';
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
export { AllocationLog, type EventChunk, type LogEvent } from './formats/allocation-log.js';
export {
  type Conversion,
  type ConversionProgress,
  type ConvertedFormat,
  type ConvertLogOptions,
  convertLog,
} from './formats/convert-log.js';
export type { LogFormat, LogProgress, LogSource, ReadLogOptions } from './formats/log-source.js';
export { type ReadAllocationLogOptions, readAllocationLog } from './formats/read-allocation-log.js';
export { type ReadRecordedRunOptions, readRecordedRun } from './formats/read-recorded-run.js';
export type { RecordedLayer, RecordedPhase, RecordedRun, RecordingDamage } from './formats/recorded-run.js';
export { annotate } from './formats/recording/annotate.js';
export { encodeRecording } from './formats/recording/convert-to-recording.js';
export { Recording, type RecordingOptions } from './formats/recording/recording.js';
export { type CsvSpelling, RecordKind } from './formats/recording/recording-format.js';
export type { WrittenEvents } from './formats/written-events.js';
export type * from './memory-resource.js';
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
export { type RecordedReplay, type RecordReplayOptions, recordReplay } from './replay/record-replay.js';
export { defaultRepeat, type ReplayOptions, replayLog } from './replay/replay-log.js';
export type { ReplayDriverCalls, ReplayFailure, ReplayResult, ReplayStreams, ReplayTime } from './replay/replay-result.js';
export type { MemoryTaking } from './replay/specification-maximum.js';
export { PackedReportRun } from './report/pack-report-run.js';
export { readReportRun } from './report/read-report-run.js';
export { type WriteReportOptions, writeReport } from './report/write-report.js';
export { uncached, withResource } from './resource-scope.js';
export {
  type AllocateCallback,
  CallbackMemoryResource,
  type CallbackMemoryResourceOptions,
  type DeallocateCallback,
} from './resources/callback-memory-resource.js';
export { CudaAsyncMemoryResource, type CudaAsyncMemoryResourceOptions } from './resources/cuda-async-memory-resource.js';
export { CudaMemoryResource } from './resources/cuda-memory-resource.js';
export { HostMemoryResource } from './resources/host-memory-resource.js';
export { ManagedMemoryResource } from './resources/managed-memory-resource.js';
export { PinnedHostMemoryResource } from './resources/pinned-host-memory-resource.js';
export { PlainMemoryResource, type PlainMemoryResourceOptions } from './resources/plain-memory-resource.js';
export { formatSpecification } from './specification/format-specification.js';
export { parseSpecification } from './specification/parse-specification.js';
export type { KindRole, ResourceKind } from './specification/resource-kind.js';
export { resourceKinds } from './specification/resource-kinds.js';
export {
  type CreateResourceOptions,
  createResource,
  createResourceStack,
  ResourceStack,
  type ResourceStackOptions,
} from './specification/resource-stack.js';
export type {
  OptionDefinition,
  OptionType,
  SourceRange,
  Specification,
  SpecificationValue,
} from './specification/specification.js';
export { ALLOCATION_ALIGNMENT, formatBytes, GiB, KiB, MiB, parseBytes } from './units.js';
export { observeStatistics, type StatisticsMeter, type StatisticsObserver } from './watch/observe-statistics.js';
export { prometheusText } from './watch/prometheus-text.js';
export { type PublishStatisticsOptions, publishStatistics } from './watch/publish-statistics.js';
export { sampleStatistics } from './watch/sample-statistics.js';
export { type ServeStatisticsOptions, type StatisticsServer, serveStatistics } from './watch/serve-statistics.js';
export type { DeviceSample, KeeperSample, LayerSample, ResourceSample, StatisticsSample } from './watch/statistics-sample.js';

import './watch/start-if-asked.js';
