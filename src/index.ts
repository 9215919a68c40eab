/// <reference lib="esnext.disposable" preserve="true" />
export { LimitingResourceAdaptor, type LimitingResourceAdaptorOptions } from './adaptors/limiting-resource-adaptor.js';
export {
  type FileLogOptions,
  LoggingResourceAdaptor,
  type LoggingResourceAdaptorOptions,
  type StreamLogOptions,
} from './adaptors/logging-resource-adaptor.js';
export { PassThroughAdaptor } from './adaptors/pass-through-adaptor.js';
export {
  PoolMemoryResource,
  type PoolMemoryResourceOptions,
  type PoolStatistics,
} from './adaptors/pool-memory-resource.js';
export { type AllocationStatistics, type CounterSnapshot, StatisticsResourceAdaptor } from './adaptors/statistics-resource-adaptor.js';
export type { ByteRange } from './buffers/byte-range.js';
export { type BufferCopyOptions, DeviceBuffer, type DeviceBufferOptions, type HostData } from './buffers/device-buffer.js';
export { type CollectionKind, reclaimUnreachableBuffers } from './buffers/reclaim.js';
export type { BufferLeak } from './buffers/unreachable-buffers.js';
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
export type { MemoryKind } from './driver/plain-memory.js';
export {
  configureSoftwareDevice,
  driverFunctionNames,
  failCall,
  type SoftwareDeviceSettings,
  setCallLatency,
} from './driver/software-device.js';
export { type ForeignStreamOptions, Stream, StreamHold, type StreamOptions } from './driver/stream.js';
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
export * from './memory-resource.js';
export { AllocationLog, type EventChunk, type LogEvent } from './replay/allocation-log.js';
export { type LogProgress, type ReadAllocationLogOptions, readAllocationLog } from './replay/read-allocation-log.js';
export { defaultRepeat, type ReplayOptions, replayLog } from './replay/replay-log.js';
export type { ReplayDriverCalls, ReplayFailure, ReplayResult, ReplayStreams } from './replay/replay-result.js';
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
  type ResourceStackParts,
} from './specification/resource-stack.js';
export type {
  OptionDefinition,
  OptionType,
  SourceRange,
  Specification,
  SpecificationValue,
} from './specification/specification.js';
export { ALLOCATION_ALIGNMENT, formatBytes, GiB, KiB, MiB, parseBytes } from './units.js';
