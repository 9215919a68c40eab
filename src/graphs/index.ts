/** `cistern/graphs`: captured graphs with memory of their own. */
import type { ResourceKind } from '../resource-kind.js';
import { graphKind } from './graph-memory-resource.js';

export type { GraphDeviation } from './capture-allocator.js';
export {
  type GraphCaptureOptions,
  type GraphMemoryOfGraph,
  GraphMemoryResource,
  type GraphMemoryResourceOptions,
  type GraphMemoryStatistics,
} from './graph-memory-resource.js';

/** The kinds of resources of this entry. A specification loads them by itself, unless the program is bundled: see {@link addResourceKinds}. */
export const resourceKinds: readonly ResourceKind[] = [graphKind];
