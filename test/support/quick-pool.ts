import { PoolMemoryResource } from '../../src/index.js';
import type { MemoryResource } from '../../src/memory-resource.js';

/** A pool that keeps freed blocks for requests of their sizes from the start, and not only once it has seen that this pays. */
export class QuickPool extends PoolMemoryResource {
  constructor(upstream: MemoryResource, options: ConstructorParameters<typeof PoolMemoryResource>[1]) {
    super(upstream, options);
    this.index.useQuickLists(true);
  }
}
