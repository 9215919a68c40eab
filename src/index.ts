/// <reference lib="esnext.disposable" preserve="true" />

export {
  type FailureCallback,
  FailureCallbackResourceAdaptor,
  type FailureCallbackResourceAdaptorOptions,
} from './adaptors/pass-through/failure-callback-resource-adaptor.js';
export type { OutstandingAllocation } from './adaptors/pass-through/outstanding-allocations.js';
export { PassThroughAdaptor } from './adaptors/pass-through/pass-through-adaptor.js';
export type { StreamOrderedStatistics } from './adaptors/pooling/keeper.js';
export { type GrowthOption, type Strategy, Tries } from './adaptors/pooling/order-of-tries.js';
export { StreamOrderedMemoryResource } from './adaptors/pooling/stream-ordered-memory-resource.js';
export * from './basics/errors.js';
export { ALLOCATION_ALIGNMENT, formatBytes, GiB, KiB, MiB } from './basics/units.js';
export { parseBytes } from './basics/validation.js';
export type { BufferAllocation, DeviceBufferOptions } from './buffers/create-memory.js';
export { currentResource, resetCurrentResource, setCurrentResource } from './buffers/current-resource.js';
export { DeviceBuffer } from './buffers/device-buffer.js';
export type { BufferContents, BufferCopyOptions, DeviceMemory, HostData, RecastOptions } from './buffers/transfers/buffer-contents.js';
export type { BlockingBufferTransferOptions, BufferTransfer, BufferTransferOptions } from './buffers/transfers/buffer-transfer.js';
export type { ByteRange } from './buffers/transfers/byte-range.js';
export type { HostViewOptions, TypedArrayClass } from './buffers/transfers/host-view.js';
export { configureEarlyCollection, type EarlyCollectionOptions } from './collector/early-collection.js';
export type { BufferLeak } from './collector/free-unreachable-buffers.js';
export { type CollectionKind, reclaimUnreachableBuffers } from './collector/reclaim-unreachable-buffers.js';
export type { ReclaimStage, ReclaimTimings, StageTiming } from './collector/stage-timings.js';
export { type Backend, type BackendChoice, cudaUnavailableReason, currentBackend, selectBackend } from './driver/backend.js';
export { type DriverCallCounts, driverCallCounts } from './driver/call-counts.js';
export { Device, type DeviceAttribute, type DeviceMemoryInfo } from './driver/device.js';
export type { CaptureMode, CaptureStatus } from './driver/graphs/capture.js';
export { Graph, type GraphInstantiationOptions, type GraphNodeCounts } from './driver/graphs/graph.js';
export { GraphExec } from './driver/graphs/graph-exec.js';
export type { GraphObject } from './driver/graphs/graph-object.js';
export { type ManagedActivity, managedActivity, resetManagedActivity, residentBytes } from './driver/memory/managed-activity.js';
export {
  advise,
  type ManagedRangeAttributes,
  type MemoryAdvice,
  type MemoryLocation,
  managedRangeAttributes,
  prefetch,
} from './driver/memory/managed-memory.js';
export type { MemoryPoolUsage } from './driver/memory/memory-pool.js';
export type { MemoryKind } from './driver/memory/plain-memory.js';
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
export {
  type CheckOrderOptions,
  checkOrder,
  declareAllocation,
  declareFree,
  formatOrderViolation,
  isCheckingOrder,
  type MemoryAccess,
  OrderChecker,
  OrderError,
  type OrderViolation,
  type OrderViolationKind,
  type OrderViolationSide,
} from './driver/order-checker.js';
export {
  configureSoftwareDevice,
  driverFunctionNames,
  failCall,
  type SoftwareDeviceSettings,
  setCallLatency,
} from './driver/software-device.js';
export { Event, type EventOptions } from './driver/streams/event.js';
export { type ForeignStreamOptions, Stream, StreamHold, type StreamOptions } from './driver/streams/stream.js';
export { StreamPool, type StreamPoolOptions } from './driver/streams/stream-pool.js';
export type { BufferMessage, EventMessage, StreamMessage } from './driver/workers/hand-over.js';
export { type AddonInterface, addonInterface } from './interchange/addon-interface.js';
export type { BufferInterchange } from './interchange/buffer-interchange.js';
export type {
  CudaArray,
  CudaArrayInterface,
  CudaArrayInterfaceOptions,
  FromCudaArrayInterfaceOptions,
} from './interchange/cuda-array-interface.js';
export type { DLPackCapsule, DLPackDataType, DLPackOptions, DLPackTypeName } from './interchange/dlpack.js';
export { ForeignMemoryResource } from './interchange/foreign-memory-resource.js';
export { type DLPackTensor, type FromDLPackOptions, fromDLPack } from './interchange/from-dlpack.js';
export type { WrapOptions } from './interchange/wrap.js';
export type * from './memory-resource.js';
export { formatPlan, type Plan, parsePlan } from './plans/plan.js';
export type { AllocationSequence, OrderedSequence, StreamWait } from './plans/sequence.js';
export type { HandleInJson, OpenOptions } from './processes/open-from-process.js';
export { annotate } from './recording/annotate.js';
export { Recording, type RecordingOptions } from './recording/recording.js';
export type { KindRole, OptionDefinition, OptionType, ResourceKind } from './resource-kind.js';
export * from './resource-kinds.js';
export {
  type AllocateCallback,
  CallbackMemoryResource,
  type CallbackMemoryResourceOptions,
  type DeallocateCallback,
} from './resources/callback-memory-resource.js';
export { LeafMemoryResource } from './resources/leaf-memory-resource.js';
export { PlainMemoryResource, type PlainMemoryResourceOptions } from './resources/plain-memory-resource.js';
export { uncached, withResource } from './scopes/resource-scope.js';
export { Account, type AccountOptions, currentAccount, withQuota } from './serving/accounts/account.js';
export type { WaitOptions } from './serving/admission/waits.js';
export { memorySummary } from './serving/out-of-memory/memory-summary.js';
export { type BudgetEvent, type BudgetObserver, type BudgetOptions, observeBudget } from './serving/out-of-memory/observe-budget.js';
export {
  type SleepOptions,
  type SleepReport,
  sleepResource,
  type WakeOptions,
  type WakeReport,
  wakeResource,
} from './serving/sleep/sleep.js';
export type { SpillCandidate, SpillPolicy } from './serving/spilling/spill-policy.js';
export {
  SpillableBuffer,
  type SpillableBufferCreateOptions,
  type SpillableBufferOptions,
  SpillPin,
} from './serving/spilling/spillable-buffer.js';
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
export type { AttachOptions, BufferSharing } from './workers/buffer-sharing.js';
export type { GlobalArenaMemoryKind } from './workers/global-arena.js';
export type { ThreadSafeArenaStatistics } from './workers/thread-safe-arena.js';

import './serving/out-of-memory/dump.js';
import './recording/record-everything.js';
import './tools/watch/start-if-asked.js';
