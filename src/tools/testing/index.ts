/// <reference lib="esnext.disposable" preserve="true" />
export type { ConformanceCase, ConformanceSubject, ResourceHarness, ResourceSupport } from './harness.js';
export { resourceConformance } from './resource-conformance.js';
