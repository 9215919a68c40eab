import { attemptEach, throwFirst } from '../basics/errors.js';
import type { GrowingMemoryResource, MemoryResource, MemoryResourceAdaptor } from '../memory-resource.js';

/** A resource and everything below it, each once, and each before the resources it is built on. */
export function layersOf(resource: MemoryResource): MemoryResource[] {
  const visited = new Set<MemoryResource>();
  const layers: MemoryResource[] = [];
  const visit = (layer: MemoryResource) => {
    if (visited.has(layer)) return;
    visited.add(layer);
    const { upstream, alternates } = layer as Partial<MemoryResourceAdaptor>;
    alternates?.forEach(visit);
    if (upstream !== undefined) visit(upstream);
    layers.push(layer);
  };
  visit(resource);
  return layers.reverse();
}

/**
 * Disposes layers, each before those it is built on, and throws the first error. A layer that fails
 * is immediately tried again. If that fails, too, the layer may still hold memory from the layers
 * below it, so those are not disposed, and the call can be repeated.
 */
export function disposeLayers(layers: readonly MemoryResource[]): void {
  const needed = new Set<MemoryResource>();
  const errors = attemptEach(layers, (layer) => {
    if (needed.has(layer)) return;
    try {
      layer[Symbol.dispose]();
    } catch (error) {
      try {
        layer[Symbol.dispose]();
      } catch {
        for (const below of layersOf(layer)) needed.add(below);
      }
      throw error;
    }
  });
  throwFirst(errors);
}

/** Disposes every resource even if some fail, and throws the first error. */
export function disposeAll(resources: readonly MemoryResource[]): void {
  throwFirst(attemptEach(resources, (resource) => resource[Symbol.dispose]()));
}

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
