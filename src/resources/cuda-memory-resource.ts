import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertOptions } from '../basics/validation.js';
import { deviceOption } from '../driver/device.js';
import { PlainMemory } from '../driver/memory/plain-memory.js';
import { defineUpstream } from '../resource-kind.js';
import { PlainMemoryResource, type PlainMemoryResourceOptions, plainMemoryResourceOptionNames } from './plain-memory-resource.js';

/**
 * Device memory straight from the driver (`cuMemAlloc`, `cuMemFree`). Every allocation is a driver
 * call, and a free makes the host wait, so put a pool on it.
 *
 * Stream order: any stream can use an allocation immediately. A free waits for its stream, and the
 * driver may make it wait for the whole device. Alignment: 256 bytes, no more.
 *
 * Counterpart of `rmm::mr::cuda_memory_resource`.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream, { initialBytes: 256 * MiB });
 * ```
 */
export class CudaMemoryResource extends PlainMemoryResource {
  /** @internal */
  static override readonly name = 'CudaMemoryResource';
  constructor(options: PlainMemoryResourceOptions = {}) {
    assertOptions(options, plainMemoryResourceOptionNames);
    super(PlainMemory.of('device', deviceOption(options.device)), ALLOCATION_ALIGNMENT);
  }
}

/** `cuda` in a specification. */
export const cudaKind = defineUpstream({
  name: 'cuda',
  summary: 'device memory, one driver call for each allocation',
  options: {},
  example: 'cuda',
  create: ({ device }) => new CudaMemoryResource({ device }),
});
