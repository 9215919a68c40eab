import { assertOptions } from '../basics/validation.js';
import { defineUpstream } from '../resource-kind.js';
import { DriverPoolMemoryResource, type ManagedAsyncMemoryResourceOptions, ownPoolOptionNames } from './driver-pool-memory-resource.js';

/**
 * Managed memory from a stream-ordered pool of the driver: `cuMemAllocFromPoolAsync` from a pool
 * whose allocation type is managed. It needs a driver for CUDA 13.0 or newer, on Linux. The pool has
 * no preferred location; see {@link advise} and {@link prefetch}. Sizes are bytes.
 *
 * Stream order: use an allocation on its stream, and on streams of any device that are ordered after
 * it. Memory freed on a stream is reused in that stream's order. Before the host uses the memory,
 * make it wait for the stream. Advice outlives an allocation, so give your own when you get memory
 * that was advised before. Alignment: 256 bytes, no more.
 *
 * Counterpart of `rmm::mr::cuda_async_managed_memory_resource`.
 * @example
 * ```ts
 * using resource = new ManagedAsyncMemoryResource();
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(64 * MiB, { resource, stream });
 * buffer.to(stream.device);
 * ```
 */
export class ManagedAsyncMemoryResource extends DriverPoolMemoryResource {
  /** @internal */
  static override readonly name = 'ManagedAsyncMemoryResource';
  /**
   * @throws UnsupportedError if the driver has no pools of managed memory; OutOfMemoryError if
   * `initialBytes` cannot be allocated.
   */
  constructor(options: ManagedAsyncMemoryResourceOptions = {}) {
    assertOptions(options, ownPoolOptionNames);
    super('managed', options, {}, 'of managed memory, which need CUDA 13.0 or newer: use a pool over ManagedMemoryResource');
  }
}

/** `managed-async` in a specification. */
export const managedAsyncKind = defineUpstream({
  name: 'managed-async',
  summary: 'managed memory from a stream-ordered pool of the driver (CUDA 13)',
  options: {
    initialBytes: { type: 'size', summary: 'reserved at once', default: '0' },
    releaseThresholdBytes: { type: 'size', summary: 'kept when a stream is synchronized', default: 'everything' },
  },
  example: 'managed-async(initialBytes=64KiB)',
  create: ({ device, options }) => new ManagedAsyncMemoryResource({ device, ...options }),
});
