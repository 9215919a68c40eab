import { assertInteger, assertOptions, optionNames } from '../basics/validation.js';
import { defineUpstream } from '../resource-kind.js';
import { DriverPoolMemoryResource, type ManagedAsyncMemoryResourceOptions } from './driver-pool-memory-resource.js';

/** Options of {@link PinnedAsyncMemoryResource}. */
export interface PinnedAsyncMemoryResourceOptions extends ManagedAsyncMemoryResourceOptions {
  /**
   * The most bytes that the pool may hold, at least 1 and at least `initialBytes`. The driver counts what it reserves,
   * in blocks of some MiB, so somewhat less can be allocated.
   * @defaultValue Infinity, the driver's own limit
   */
  readonly maximumBytes?: number | undefined;
  /**
   * The NUMA node of the host whose memory the pool takes, from 0.
   * @defaultValue no particular node; with a driver before CUDA 13, the node that is closest to the device
   */
  readonly numaNode?: number | undefined;
}

const knownOptions = optionNames<PinnedAsyncMemoryResourceOptions>({
  device: true,
  initialBytes: true,
  maximumBytes: true,
  numaNode: true,
  releaseThresholdBytes: true,
});

/**
 * Page-locked host memory from a stream-ordered pool of the driver: `cuMemAllocFromPoolAsync` from a
 * pool whose location is the host, or a NUMA node of it. It needs a driver for CUDA 12.6 or newer.
 * Unlike {@link PinnedHostMemoryResource}, a free waits for nothing, and what was pinned once is
 * reused. Sizes are bytes.
 *
 * Stream order: an allocation may be used on its stream, and on streams ordered after it, of any
 * device; memory freed on a stream is reused in that stream's order. Order the host after the stream
 * before it uses the memory. Alignment: 256 bytes, no more. Memory of this kind cannot be allocated
 * while a stream is captured.
 *
 * RMM has no counterpart (rapidsai/rmm#2054); in CCCL it is `cuda::pinned_memory_pool`.
 * @example
 * ```ts
 * using resource = new PinnedAsyncMemoryResource({ initialBytes: 64 * MiB });
 * using stream = new Stream();
 * using staging = new DeviceBuffer(16 * MiB, { resource, stream });
 * ```
 */
export class PinnedAsyncMemoryResource extends DriverPoolMemoryResource {
  /** @internal */
  static override readonly name = 'PinnedAsyncMemoryResource';
  /**
   * @throws UnsupportedError if the driver has no pools of pinned host memory, or not at this NUMA
   * node; OutOfMemoryError if `initialBytes` cannot be allocated.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option.
   */
  constructor(options: PinnedAsyncMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { maximumBytes, numaNode } = options;
    if (numaNode !== undefined) assertInteger(numaNode, 'numaNode', 0, 2 ** 31 - 1, '0 to 2^31 - 1');
    const place = numaNode === undefined ? '' : ` at NUMA node ${numaNode}`;
    const advice =
      numaNode === undefined ? 'use a pool over PinnedHostMemoryResource' : 'name a node that the machine has, or leave it out';
    super('pinned-host', options, { maximumBytes, numaNode }, `of pinned host memory${place}, which need CUDA 12.6 or newer: ${advice}`);
  }
}

/** `pinned-async` in a specification. */
export const pinnedAsyncKind = defineUpstream({
  name: 'pinned-async',
  summary: 'page-locked host memory from a stream-ordered pool of the driver (CUDA 12.6)',
  options: {
    initialBytes: { type: 'size', summary: 'reserved at once', default: '0' },
    maximumBytes: { type: 'size', summary: 'the most it holds', default: "the driver's own limit" },
    releaseThresholdBytes: { type: 'size', summary: 'kept when a stream is synchronized', default: 'everything' },
    numaNode: { type: 'integer', summary: 'the NUMA node whose memory it takes', default: 'no particular one' },
  },
  example: 'pinned-async(initialBytes=64KiB)',
  create: ({ device, options }) => new PinnedAsyncMemoryResource({ device, ...options }),
});
