import { alignedKind } from './adaptors/pass-through/aligned-resource-adaptor.js';
import { fallbackKind } from './adaptors/pass-through/fallback-resource-adaptor.js';
import { limitingKind } from './adaptors/pass-through/limiting-resource-adaptor.js';
import { loggingKind } from './adaptors/pass-through/logging-resource-adaptor.js';
import { perDeviceKind } from './adaptors/pass-through/per-device-resource-adaptor.js';
import { prefetchKind } from './adaptors/pass-through/prefetch-resource-adaptor.js';
import { reclaimingKind } from './adaptors/pass-through/reclaiming-resource-adaptor.js';
import { roundingKind } from './adaptors/pass-through/rounding-resource-adaptor.js';
import { sanitizingKind } from './adaptors/pass-through/sanitizing-resource-adaptor.js';
import { statisticsKind } from './adaptors/pass-through/statistics-resource-adaptor.js';
import { trackingKind } from './adaptors/pass-through/tracking-resource-adaptor.js';
import { arenaKind } from './adaptors/pooling/arena-memory-resource.js';
import { binningKind } from './adaptors/pooling/binning-memory-resource.js';
import { cachingKind } from './adaptors/pooling/caching-memory-resource.js';
import { fixedSizeKind } from './adaptors/pooling/fixed-size-memory-resource.js';
import { monotonicKind } from './adaptors/pooling/monotonic-memory-resource.js';
import { poolKind } from './adaptors/pooling/pool-memory-resource.js';
import { graphKind } from './graphs/graph-memory-resource.js';
import { plannedKind } from './plans/planned-memory-resource.js';
import { recordingKind } from './recording/recording-resource-adaptor.js';
import type { ResourceKind } from './resource-kind.js';
import { cudaAsyncKind } from './resources/cuda-async-memory-resource.js';
import { cudaKind } from './resources/cuda-memory-resource.js';
import { hostKind } from './resources/host-memory-resource.js';
import { managedAsyncKind } from './resources/managed-async-memory-resource.js';
import { managedKind } from './resources/managed-memory-resource.js';
import { pinnedAsyncKind } from './resources/pinned-async-memory-resource.js';
import { pinnedHostKind } from './resources/pinned-host-memory-resource.js';
import { virtualKind } from './resources/virtual-memory-resource.js';
import { accountingKind } from './serving/accounts/accounting-resource-adaptor.js';
import { admittingKind } from './serving/admission/admitting-resource-adaptor.js';
import { spillingKind } from './serving/spilling/spilling-resource-adaptor.js';
import { globalArenaKind } from './workers/global-arena-memory-resource.js';
import { threadSafeArenaKind } from './workers/thread-safe-arena-memory-resource.js';

export { AlignedResourceAdaptor, type AlignedResourceAdaptorOptions } from './adaptors/pass-through/aligned-resource-adaptor.js';
export { FallbackResourceAdaptor } from './adaptors/pass-through/fallback-resource-adaptor.js';
export { LimitingResourceAdaptor, type LimitingResourceAdaptorOptions } from './adaptors/pass-through/limiting-resource-adaptor.js';
export {
  type FileLogOptions,
  LoggingResourceAdaptor,
  type LoggingResourceAdaptorOptions,
  type StreamLogOptions,
} from './adaptors/pass-through/logging-resource-adaptor.js';
export { PerDeviceResourceAdaptor } from './adaptors/pass-through/per-device-resource-adaptor.js';
export { PrefetchResourceAdaptor, type PrefetchResourceAdaptorOptions } from './adaptors/pass-through/prefetch-resource-adaptor.js';
export { ReclaimingResourceAdaptor, type ReclaimingResourceAdaptorOptions } from './adaptors/pass-through/reclaiming-resource-adaptor.js';
export {
  type DivisionsRounding,
  type MultipleRounding,
  RoundingResourceAdaptor,
  type RoundingResourceAdaptorOptions,
  type TopBitsRounding,
} from './adaptors/pass-through/rounding-resource-adaptor.js';
export {
  formatSanitizerViolation,
  type LifetimeViolation,
  type SanitizerViolation,
  SanitizingResourceAdaptor,
  type SanitizingResourceAdaptorOptions,
} from './adaptors/pass-through/sanitizing-resource-adaptor.js';
export {
  type AllocationStatistics,
  type CounterSnapshot,
  StatisticsResourceAdaptor,
  type StatisticsResourceAdaptorOptions,
} from './adaptors/pass-through/statistics-resource-adaptor.js';
export { TrackingResourceAdaptor, type TrackingResourceAdaptorOptions } from './adaptors/pass-through/tracking-resource-adaptor.js';
export { ArenaMemoryResource, type ArenaMemoryResourceOptions, type ArenaStatistics } from './adaptors/pooling/arena-memory-resource.js';
export { type Bin, BinningMemoryResource, type BinningMemoryResourceOptions } from './adaptors/pooling/binning-memory-resource.js';
export {
  CachingMemoryResource,
  type CachingMemoryResourceOptions,
  type CachingStatistics,
} from './adaptors/pooling/caching-memory-resource.js';
export { FixedSizeMemoryResource, type FixedSizeMemoryResourceOptions } from './adaptors/pooling/fixed-size-memory-resource.js';
export {
  MonotonicMark,
  MonotonicMemoryResource,
  type MonotonicMemoryResourceOptions,
  type MonotonicStatistics,
} from './adaptors/pooling/monotonic-memory-resource.js';
export {
  PoolMemoryResource,
  type PoolMemoryResourceOptions,
  type PoolStatistics,
} from './adaptors/pooling/pool-memory-resource.js';
export type { GraphDeviation } from './graphs/capture-allocator.js';
export {
  type GraphCaptureOptions,
  type GraphMemoryOfGraph,
  GraphMemoryResource,
  type GraphMemoryResourceOptions,
  type GraphMemoryStatistics,
} from './graphs/graph-memory-resource.js';
export type { Planner } from './plans/plan-learner.js';
export {
  type PlanDeviation,
  PlannedMemoryResource,
  type PlannedMemoryResourceOptions,
  type PlannedStatistics,
} from './plans/planned-memory-resource.js';
export { RecordingResourceAdaptor, type RecordingResourceAdaptorOptions } from './recording/recording-resource-adaptor.js';
export { CudaAsyncMemoryResource, type CudaAsyncMemoryResourceOptions } from './resources/cuda-async-memory-resource.js';
export { CudaMemoryResource } from './resources/cuda-memory-resource.js';
export { DriverPoolMemoryResource, type ManagedAsyncMemoryResourceOptions } from './resources/driver-pool-memory-resource.js';
export { HostMemoryResource } from './resources/host-memory-resource.js';
export { ManagedAsyncMemoryResource } from './resources/managed-async-memory-resource.js';
export { ManagedMemoryResource } from './resources/managed-memory-resource.js';
export { PinnedAsyncMemoryResource, type PinnedAsyncMemoryResourceOptions } from './resources/pinned-async-memory-resource.js';
export { PinnedHostMemoryResource, type PinnedHostMemoryResourceOptions } from './resources/pinned-host-memory-resource.js';
export { VirtualMemoryResource, type VirtualMemoryResourceOptions } from './resources/virtual-memory-resource.js';
export { AccountingResourceAdaptor } from './serving/accounts/accounting-resource-adaptor.js';
export type { AdmissionStatistics } from './serving/admission/admission-statistics.js';
export {
  type AdmissionEvent,
  AdmittingResourceAdaptor,
  type AdmittingResourceAdaptorOptions,
  type ReserveOptions,
} from './serving/admission/admitting-resource-adaptor.js';
export { Grant } from './serving/admission/grant.js';
export type { SpillStatistics } from './serving/spilling/spill-statistics.js';
export { SpillingResourceAdaptor, type SpillingResourceAdaptorOptions } from './serving/spilling/spilling-resource-adaptor.js';
export {
  GlobalArenaMemoryResource,
  type GlobalArenaMemoryResourceOptions,
  type GlobalArenaStatistics,
} from './workers/global-arena-memory-resource.js';
export {
  ThreadSafeArenaMemoryResource,
  type ThreadSafeArenaMemoryResourceOptions,
} from './workers/thread-safe-arena-memory-resource.js';

/** Every kind of resource that a specification can name, in the order of listings. */
export const resourceKinds: readonly ResourceKind[] = [
  cudaKind,
  managedKind,
  cudaAsyncKind,
  managedAsyncKind,
  virtualKind,
  globalArenaKind,
  threadSafeArenaKind,
  pinnedHostKind,
  pinnedAsyncKind,
  hostKind,
  poolKind,
  reclaimingKind,
  arenaKind,
  fixedSizeKind,
  binningKind,
  monotonicKind,
  cachingKind,
  plannedKind,
  graphKind,
  limitingKind,
  accountingKind,
  admittingKind,
  spillingKind,
  statisticsKind,
  trackingKind,
  sanitizingKind,
  alignedKind,
  roundingKind,
  prefetchKind,
  fallbackKind,
  perDeviceKind,
  loggingKind,
  recordingKind,
];
