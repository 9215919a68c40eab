import { definedFields, defineUpstream } from '../resource-kind.js';
import { type CudaAsyncMemoryResourceOptions, DriverPoolMemoryResource } from './driver-pool-memory-resource.js';

/**
 * Device memory from a stream-ordered pool of the driver (`cuMemAllocFromPoolAsync`,
 * `cuMemFreeAsync`).
 *
 * Stream order: an allocation may be used on its stream, and on streams ordered after it; memory
 * freed on a stream is reused in that stream's order, and the driver inserts the dependencies that
 * it needs. Alignment: 256 bytes, no more.
 *
 * Counterpart of `rmm::mr::cuda_async_memory_resource`.
 * @example
 * ```ts
 * using resource = new CudaAsyncMemoryResource({ releaseThresholdBytes: 512 * MiB });
 * using stream = new Stream();
 * const pointer = resource.allocate(1 * MiB, stream);
 * resource.deallocate(pointer, 1 * MiB, stream);
 * ```
 */
export class CudaAsyncMemoryResource extends DriverPoolMemoryResource {
  /** @throws OutOfMemoryError if `initialBytes` cannot be allocated. */
  constructor(options: CudaAsyncMemoryResourceOptions = {}) {
    super('device', options);
  }
}

/** `cuda-async` in a specification. */
export const cudaAsyncKind = defineUpstream({
  name: 'cuda-async',
  summary: 'device memory from a stream-ordered pool of the driver',
  options: {
    initial: { type: 'size', summary: 'reserved at once', default: '0' },
    'release-threshold': { type: 'size', summary: 'kept when a stream is synchronized', default: 'everything' },
  },
  example: 'cuda-async(initial=64KiB)',
  create: ({ device, options }) =>
    new CudaAsyncMemoryResource({
      device,
      ...definedFields({ initialBytes: options.initial, releaseThresholdBytes: options['release-threshold'] }),
    }),
});
