import { alignedKind } from '../adaptors/pass-through/aligned-resource-adaptor.js';
import { fallbackKind } from '../adaptors/pass-through/fallback-resource-adaptor.js';
import { limitingKind } from '../adaptors/pass-through/limiting-resource-adaptor.js';
import { loggingKind } from '../adaptors/pass-through/logging-resource-adaptor.js';
import { perDeviceKind } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { prefetchKind } from '../adaptors/pass-through/prefetch-resource-adaptor.js';
import { reclaimingKind } from '../adaptors/pass-through/reclaiming-resource-adaptor.js';
import { roundingKind } from '../adaptors/pass-through/rounding-resource-adaptor.js';
import { sanitizingKind } from '../adaptors/pass-through/sanitizing-resource-adaptor.js';
import { statisticsKind } from '../adaptors/pass-through/statistics-resource-adaptor.js';
import { trackingKind } from '../adaptors/pass-through/tracking-resource-adaptor.js';
import { arenaKind } from '../adaptors/pooling/arena-memory-resource.js';
import { binningKind } from '../adaptors/pooling/binning-memory-resource.js';
import { cachingKind } from '../adaptors/pooling/caching-memory-resource.js';
import { fixedSizeKind } from '../adaptors/pooling/fixed-size-memory-resource.js';
import { monotonicKind } from '../adaptors/pooling/monotonic-memory-resource.js';
import { poolKind } from '../adaptors/pooling/pool-memory-resource.js';
import type { ResourceKind } from '../resource-kind.js';
import { cudaAsyncKind } from '../resources/cuda-async-memory-resource.js';
import { cudaKind } from '../resources/cuda-memory-resource.js';
import { hostKind } from '../resources/host-memory-resource.js';
import { managedAsyncKind } from '../resources/managed-async-memory-resource.js';
import { managedKind } from '../resources/managed-memory-resource.js';
import { pinnedAsyncKind } from '../resources/pinned-async-memory-resource.js';
import { pinnedHostKind } from '../resources/pinned-host-memory-resource.js';
import { virtualKind } from '../resources/virtual-memory-resource.js';

/** The kinds of resources of the core that a specification can name, in the order of listings. */
export const resourceKinds: readonly ResourceKind[] = [
  cudaKind,
  managedKind,
  cudaAsyncKind,
  managedAsyncKind,
  virtualKind,
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
  limitingKind,
  statisticsKind,
  trackingKind,
  sanitizingKind,
  alignedKind,
  roundingKind,
  prefetchKind,
  fallbackKind,
  perDeviceKind,
  loggingKind,
];
