import type { GrowingMemoryResource, MemoryResource, MemoryResourceAdaptor } from '../memory-resource.js';

/** How the memory of a resource grows in place. */
export interface GrowthInPlace {
  /** The size of a page: consecutive allocations of whole pages are adjacent, unless an older hole fits. */
  readonly pageBytes: number;
  /**
   * Whether adjacent pages can be freed in any pieces. If not, they must be freed as they were
   * allocated, because an adaptor may remember each allocation.
   */
  readonly takesPieces: boolean;
}

/** An adaptor through which memory may grow in place: every one that passes calls on. */
interface PagesAdaptor extends MemoryResourceAdaptor {
  keepsPages(pageBytes: number): boolean;
}

/**
 * How the memory of a resource grows in place, if it does, or if the memory of a resource below it
 * does and the adaptors between do not change its pages.
 */
export function growthInPlace(resource: MemoryResource): GrowthInPlace | undefined {
  const { granularityBytes } = resource as Partial<GrowingMemoryResource>;
  if (typeof granularityBytes === 'number') return { pageBytes: granularityBytes, takesPieces: true };
  if (!mayKeepPages(resource)) return undefined;
  const below = growthInPlace(resource.upstream);
  if (below === undefined || !resource.keepsPages(below.pageBytes)) return undefined;
  return { pageBytes: below.pageBytes, takesPieces: false };
}

function mayKeepPages(resource: MemoryResource): resource is PagesAdaptor {
  return typeof (resource as Partial<PagesAdaptor>).keepsPages === 'function';
}
