import { alignedKind } from '../adaptors/pass-through/aligned-resource-adaptor.js';
import { fallbackKind } from '../adaptors/pass-through/fallback-resource-adaptor.js';
import { limitingKind } from '../adaptors/pass-through/limiting-resource-adaptor.js';
import { loggingKind } from '../adaptors/pass-through/logging-resource-adaptor.js';
import { perDeviceKind } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { prefetchKind } from '../adaptors/pass-through/prefetch-resource-adaptor.js';
import { reclaimingKind } from '../adaptors/pass-through/reclaiming-resource-adaptor.js';
import { roundingKind } from '../adaptors/pass-through/rounding-resource-adaptor.js';
import { statisticsKind } from '../adaptors/pass-through/statistics-resource-adaptor.js';
import { trackingKind } from '../adaptors/pass-through/tracking-resource-adaptor.js';
import { arenaKind } from '../adaptors/pooling/arena-memory-resource.js';
import { binningKind } from '../adaptors/pooling/binning-memory-resource.js';
import { cachingKind } from '../adaptors/pooling/caching-memory-resource.js';
import { fixedSizeKind } from '../adaptors/pooling/fixed-size-memory-resource.js';
import { monotonicKind } from '../adaptors/pooling/monotonic-memory-resource.js';
import { poolKind } from '../adaptors/pooling/pool-memory-resource.js';
import { UnsupportedError } from '../basics/errors.js';
import { loadEntry } from '../package/file.js';
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
  alignedKind,
  roundingKind,
  prefetchKind,
  fallbackKind,
  perDeviceKind,
  loggingKind,
];

/** The kinds of the capabilities, with the entries of the package that have them. */
const entryOfKind: Readonly<Record<string, string>> = {
  'global-arena': 'workers',
  'thread-safe-arena': 'workers',
  planned: 'plans',
  graph: 'graphs',
  accounting: 'serving',
  admitting: 'serving',
  spilling: 'serving',
  recording: 'recording',
  sanitizing: 'checking',
};

const known = new Map<string, ResourceKind>();

/**
 * Makes kinds known to specifications. Those of `cistern`, and of its other entries in a program that is not
 * bundled, are known already; a bundle contains only what it imports.
 * @param kinds the `resourceKinds` of an entry
 * @example
 * ```ts
 * import { resourceKinds } from 'cistern/serving';
 *
 * addResourceKinds(resourceKinds);
 * using resource = createResource('accounting(pool(cuda))');
 * ```
 */
export function addResourceKinds(kinds: readonly ResourceKind[]): void {
  for (const kind of kinds) known.set(kind.name, kind);
}

addResourceKinds(resourceKinds);

/** The names of all kinds. */
export const kindNames: readonly string[] = [...known.keys(), ...Object.keys(entryOfKind)];

/**
 * The kind with a name, or `undefined`. Loads the entry that has it.
 * @throws UnsupportedError if the entry is not in the program's bundle
 */
export function resourceKind(name: string): ResourceKind | undefined {
  const kind = known.get(name);
  if (kind !== undefined || !Object.hasOwn(entryOfKind, name)) return kind;
  const entry = entryOfKind[name] as string;
  const loaded = loadEntry(entry) as { readonly resourceKinds: readonly ResourceKind[] } | undefined;
  if (loaded === undefined) {
    throw new UnsupportedError(
      `this program is bundled without the kind ${name}: call addResourceKinds with the resourceKinds of 'cistern/${entry}' before`,
    );
  }
  addResourceKinds(loaded.resourceKinds);
  return known.get(name);
}
