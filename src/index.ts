/// <reference lib="esnext.disposable" preserve="true" />
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
export { CudaAsyncMemoryResource, type CudaAsyncMemoryResourceOptions } from './resources/cuda-async-memory-resource.js';
export { CudaMemoryResource } from './resources/cuda-memory-resource.js';
export { HostMemoryResource } from './resources/host-memory-resource.js';
export { ManagedMemoryResource } from './resources/managed-memory-resource.js';
export { PinnedHostMemoryResource } from './resources/pinned-host-memory-resource.js';
export { PlainMemoryResource, type PlainMemoryResourceOptions } from './resources/plain-memory-resource.js';
export { ALLOCATION_ALIGNMENT, formatBytes, GiB, KiB, MiB, parseBytes } from './units.js';
