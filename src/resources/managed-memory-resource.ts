import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertOptions } from '../basics/validation.js';
import { deviceOption } from '../driver/device.js';
import { PlainMemory } from '../driver/memory/plain-memory.js';
import { defineUpstream } from '../resource-kind.js';
import { PlainMemoryResource, type PlainMemoryResourceOptions, plainMemoryResourceOptionNames } from './plain-memory-resource.js';

/**
 * Managed memory (`cuMemAllocManaged`), which host and devices access at the same address, and
 * which may exceed the device's memory. See {@link advise} and {@link prefetch}.
 *
 * Stream order: any stream can use an allocation immediately. A free waits for its stream, and the
 * driver may make it wait for all devices. Alignment: 256 bytes, no more.
 *
 * Counterpart of `rmm::mr::managed_memory_resource`.
 */
export class ManagedMemoryResource extends PlainMemoryResource {
  /** @internal */
  static override readonly name = 'ManagedMemoryResource';
  constructor(options: PlainMemoryResourceOptions = {}) {
    assertOptions(options, plainMemoryResourceOptionNames);
    super(PlainMemory.of('managed', deviceOption(options.device)), ALLOCATION_ALIGNMENT);
  }
}

/** `managed` in a specification. */
export const managedKind = defineUpstream({
  name: 'managed',
  summary: 'managed memory, which the host and devices access at the same address',
  options: {},
  example: 'managed',
  create: ({ device }) => new ManagedMemoryResource({ device }),
});
