import type { MemoryResource, MemoryResourceAdaptor } from '../memory-resource.js';

/** A resource and everything that it takes memory from, each once, and each before what it is built on. */
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

/** Disposes all, whatever happens, and throws the first error. */
export function disposeAll(resources: readonly MemoryResource[]): void {
  const errors: unknown[] = [];
  for (const resource of resources) {
    try {
      resource[Symbol.dispose]();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}
