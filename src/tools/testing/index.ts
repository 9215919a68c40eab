/// <reference lib="esnext.disposable" preserve="true" />

export { type DriverCallCounts, driverCallCounts } from './driver-call-counts.js';
export { driverFunctionNames, failCall, setCallLatency } from './driver-faults.js';
export type { ConformanceCase, ConformanceSubject, ResourceHarness, ResourceSupport } from './harness.js';
export { resourceConformance } from './resource-conformance.js';
