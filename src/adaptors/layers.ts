import { attemptEach, throwFirst } from '../basics/errors.js';
import type { MemoryResource, MemoryResourceAdaptor } from '../memory-resource.js';

/**
 * The name that specifications use for a resource of this class: `cuda-async` for a
 * `CudaAsyncMemoryResource`. It follows from the name of the class, for classes of programs too.
 * cistern's own classes state theirs as a static `name`, which bundlers that shorten names keep. A
 * symbol that `defineAdaptor` sets on the class would not do: the call would then have a side effect,
 * and a bundle would hold every adaptor.
 */
export function kindOf(resource: MemoryResource): string {
  const name = (resource.constructor?.name ?? '').replace(/(Memory)?Resource(Adaptor)?$/, '');
  return name.replace(/(?<=[a-z0-9])(?=[A-Z])/g, '-').toLowerCase() || 'resource';
}

/** The kinds of a resource and of those that it is built on, as a specification writes them: `limiting(pool(cuda))`. */
export function stackName(resource: MemoryResource): string {
  const { upstream } = resource as Partial<MemoryResourceAdaptor>;
  return upstream === undefined ? kindOf(resource) : `${kindOf(resource)}(${stackName(upstream)})`;
}

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
 * is tried again at once. If that fails too, the layer may still hold memory from the layers below
 * it, so those are not disposed, and this can be called again.
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
