import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertOptions } from '../basics/validation.js';
import { deviceOption } from '../driver/device.js';
import { PlainMemory } from '../driver/memory/plain-memory.js';
import { defineUpstream } from '../resource-kind.js';
import { PlainMemoryResource, type PlainMemoryResourceOptions, plainMemoryResourceOptionNames } from './plain-memory-resource.js';

/**
 * Page-locked host memory (`cuMemHostAlloc`), which devices access directly, and from which copies
 * run at full speed.
 *
 * Stream order: any stream can use an allocation immediately. A free waits for its stream, and the
 * driver may make it wait for all devices. Alignment: 256 bytes, no more.
 *
 * Counterpart of `rmm::mr::pinned_host_memory_resource`.
 */
export class PinnedHostMemoryResource extends PlainMemoryResource {
  /** @internal */
  static override readonly name = 'PinnedHostMemoryResource';
  constructor(options: PlainMemoryResourceOptions = {}) {
    assertOptions(options, plainMemoryResourceOptionNames);
    super(PlainMemory.of('pinned-host', deviceOption(options.device)), ALLOCATION_ALIGNMENT);
  }
}

/** `pinned-host` in a specification. */
export const pinnedHostKind = defineUpstream({
  name: 'pinned-host',
  summary: 'page-locked host memory, which devices access directly',
  options: {},
  example: 'pinned-host',
  create: ({ device }) => new PinnedHostMemoryResource({ device }),
});
