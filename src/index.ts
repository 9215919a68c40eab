/// <reference lib="esnext.disposable" preserve="true" />

export { AlignedResourceAdaptor, type AlignedResourceAdaptorOptions } from './adaptors/pass-through/aligned-resource-adaptor.js';
export {
  type FailureCallback,
  FailureCallbackResourceAdaptor,
  type FailureCallbackResourceAdaptorOptions,
} from './adaptors/pass-through/failure-callback-resource-adaptor.js';
export { FallbackResourceAdaptor } from './adaptors/pass-through/fallback-resource-adaptor.js';
export { LimitingResourceAdaptor, type LimitingResourceAdaptorOptions } from './adaptors/pass-through/limiting-resource-adaptor.js';
export {
  type FileLogOptions,
  LoggingResourceAdaptor,
  type LoggingResourceAdaptorOptions,
  type StreamLogOptions,
} from './adaptors/pass-through/logging-resource-adaptor.js';
export type { OutstandingAllocation } from './adaptors/pass-through/outstanding-allocations.js';
export { PassThroughAdaptor } from './adaptors/pass-through/pass-through-adaptor.js';
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
export type { Keeper, KeepingOptions, StreamOrderedStatistics } from './adaptors/pooling/keeper.js';
export {
  MonotonicMark,
  MonotonicMemoryResource,
  type MonotonicMemoryResourceOptions,
  type MonotonicStatistics,
} from './adaptors/pooling/monotonic-memory-resource.js';
export { type GrowthOption, type Strategy, Tries } from './adaptors/pooling/order-of-tries.js';
export { PoolMemoryResource, type PoolMemoryResourceOptions, type PoolStatistics } from './adaptors/pooling/pool-memory-resource.js';
export { StreamOrderedMemoryResource } from './adaptors/pooling/stream-ordered-memory-resource.js';
export {
  AddonMissingError,
  type ArgumentErrorCode,
  ArgumentRangeError,
  ArgumentTypeError,
  CisternError,
  type CisternErrorCode,
  DeviceUnavailableError,
  DriverError,
  FaultyResourceError,
  InvalidLogError,
  LifetimeError,
  type MemoryHolder,
  NotAdmittedError,
  type NotAdmittedReason,
  type OutOfMemoryDetails,
  OutOfMemoryError,
  PeerAccessError,
  ProcessSleepError,
  type ProcessSleepReason,
  type RecoveryStage,
  ReplayError,
  SpecificationError,
  type SpecificationErrorDetails,
  UnsupportedError,
} from './basics/errors.js';
export { ALLOCATION_ALIGNMENT, formatBytes, GiB, KiB, MiB } from './basics/units.js';
export { parseBytes } from './basics/validation.js';
export type { ExportableBuffer } from './buffers/buffer-memory.js';
export type { BufferAllocation, DeviceBufferOptions, ReleasedAllocation } from './buffers/create-memory.js';
export { currentResource, resetCurrentResource, setCurrentResource } from './buffers/current-resource.js';
export { DeviceBuffer } from './buffers/device-buffer.js';
export type { BufferContents, BufferCopyOptions, HostData, RecastOptions } from './buffers/transfers/buffer-contents.js';
export type { BlockingBufferTransferOptions, BufferTransfer, BufferTransferOptions } from './buffers/transfers/buffer-transfer.js';
export type { ByteRange } from './buffers/transfers/byte-range.js';
export type { HostViewOptions, TypedArrayClass } from './buffers/transfers/host-view.js';
export { configureEarlyCollection, type EarlyCollectionOptions } from './collector/early-collection.js';
export type { BufferLeak } from './collector/free-unreachable-buffers.js';
export { type CollectionKind, reclaimUnreachableBuffers } from './collector/reclaim-unreachable-buffers.js';
export type { ReclaimStage, ReclaimTimings, StageTiming } from './collector/stage-timings.js';
export { type Backend, type BackendChoice, cudaUnavailableReason, currentBackend, selectBackend } from './driver/backend.js';
export { Device, type DeviceAttribute, type DeviceMemoryInfo, type MemoryKind } from './driver/device.js';
export type { CaptureMode, CaptureStatus } from './driver/graphs/capture.js';
export { Graph, type GraphInstantiationOptions, type GraphNodeCounts } from './driver/graphs/graph.js';
export { GraphExec } from './driver/graphs/graph-exec.js';
export type { GraphObject } from './driver/graphs/graph-object.js';
export { declareAllocation, declareFree } from './driver/memory/declare-to-order-checker.js';
export {
  advise,
  type ManagedRangeAttributes,
  type MemoryAdvice,
  type MemoryLocation,
  managedRangeAttributes,
  prefetch,
} from './driver/memory/managed-memory.js';
export type { MemoryPoolUsage } from './driver/memory/memory-pool.js';
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
} from './driver/memory/transfer.js';
export { isCheckingOrder, type MemoryAccess } from './driver/order-checks.js';
export { configureSoftwareDevice, type SoftwareDeviceSettings } from './driver/software-device.js';
export { Event, type EventOptions } from './driver/streams/event.js';
export { type ForeignStreamOptions, Stream, StreamHold, type StreamOptions } from './driver/streams/stream.js';
export { StreamPool, type StreamPoolOptions } from './driver/streams/stream-pool.js';
export type * from './memory-resource.js';
export type { KindRole, OptionDefinition, OptionType, ResourceKind } from './resource-kind.js';
export {
  type AllocateCallback,
  CallbackMemoryResource,
  type CallbackMemoryResourceOptions,
  type DeallocateCallback,
} from './resources/callback-memory-resource.js';
export { CudaAsyncMemoryResource, type CudaAsyncMemoryResourceOptions } from './resources/cuda-async-memory-resource.js';
export { CudaMemoryResource } from './resources/cuda-memory-resource.js';
export { DriverPoolMemoryResource, type ManagedAsyncMemoryResourceOptions } from './resources/driver-pool-memory-resource.js';
export { HostMemoryResource } from './resources/host-memory-resource.js';
export { LeafMemoryResource } from './resources/leaf-memory-resource.js';
export { ManagedAsyncMemoryResource } from './resources/managed-async-memory-resource.js';
export { ManagedMemoryResource } from './resources/managed-memory-resource.js';
export { PinnedAsyncMemoryResource, type PinnedAsyncMemoryResourceOptions } from './resources/pinned-async-memory-resource.js';
export { PinnedHostMemoryResource, type PinnedHostMemoryResourceOptions } from './resources/pinned-host-memory-resource.js';
export { PlainMemoryResource, type PlainMemoryResourceOptions } from './resources/plain-memory-resource.js';
export { VirtualMemoryResource, type VirtualMemoryResourceOptions } from './resources/virtual-memory-resource.js';
export { uncached, withResource } from './scopes/resource-scope.js';
export { formatSpecification } from './specification/format-specification.js';
export { addResourceKinds, resourceKinds } from './specification/kinds-by-name.js';
export { parseSpecification } from './specification/parse-specification.js';
export {
  type CreateResourceOptions,
  createResource,
  createResourceStack,
  ResourceStack,
  type ResourceStackOptions,
} from './specification/resource-stack.js';
export type { SourceRange, Specification, SpecificationValue } from './specification/specification.js';

import './start-if-asked.js';
