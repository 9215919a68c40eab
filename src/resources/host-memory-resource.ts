import { GiB } from '../basics/units.js';
import { assertOptions } from '../basics/validation.js';
import { deviceOption } from '../driver/device.js';
import { PlainMemory } from '../driver/memory/plain-memory.js';
import type { Stream } from '../driver/streams/stream.js';
import { defineUpstream } from '../resource-kind.js';
import { PlainMemoryResource, type PlainMemoryResourceOptions, plainMemoryResourceOptionNames } from './plain-memory-resource.js';

/**
 * Ordinary host memory, which the driver does not know. Copies to and from it are staged.
 *
 * Stream order: any stream can use an allocation immediately; a free waits for its stream.
 * Alignment: any power of two up to 1 GiB.
 *
 * Counterpart of `rmm::mr::new_delete_resource` for host code.
 */
export class HostMemoryResource extends PlainMemoryResource {
  /** @internal */
  static override readonly name = 'HostMemoryResource';
  constructor(options: PlainMemoryResourceOptions = {}) {
    assertOptions(options, plainMemoryResourceOptionNames);
    super(PlainMemory.of('host', deviceOption(options.device)), GiB);
  }

  protected override beforeFree(stream: Stream): void {
    if (!stream.query()) stream.synchronizeSync();
  }
}

/** `host` in a specification. */
export const hostKind = defineUpstream({
  name: 'host',
  summary: 'ordinary host memory',
  options: {},
  example: 'host',
  create: ({ device }) => new HostMemoryResource({ device }),
});
