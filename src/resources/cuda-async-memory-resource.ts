import { ArgumentRangeError, ArgumentTypeError, formatValue, invalidValue } from '../basics/errors.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import { defineUpstream } from '../resource-kind.js';
import { DriverPoolMemoryResource, type ManagedAsyncMemoryResourceOptions } from './driver-pool-memory-resource.js';

/** Options of {@link CudaAsyncMemoryResource}. */
export interface CudaAsyncMemoryResourceOptions extends ManagedAsyncMemoryResourceOptions {
  /**
   * A pool that was created elsewhere: `'default'` for the device's own, which other libraries of the process may
   * use, too; `'current'` for the one that `cuMemAllocAsync` uses when this object is constructed, which is the
   * default pool unless other code has set another; or the driver's handle of a pool of the device (a
   * `CUmemoryPool` or `cudaMemPool_t` as an address). The resource does not destroy it, and its settings belong
   * to its owner: you cannot give `initialBytes`, `maximumBytes` or `releaseThresholdBytes` with it. `usage()`,
   * `reservedBytes` and its peak count the whole pool, with all its users, and resetting the peaks resets them
   * for all. Keep a handle valid as long as the resource and everything allocated from it; CUDA may not detect a
   * wrong one. To find out which memory the pool has, the constructor allocates and frees a byte on the legacy
   * default stream.
   *
   * Counterpart of `rmm::mr::cuda_async_view_memory_resource`.
   * @defaultValue a new pool, destroyed with the resource
   */
  readonly pool?: 'default' | 'current' | number | bigint | undefined;
  /**
   * Whether buffers in the pool's memory can be exported to other processes ({@link exportBuffer}). CUDA then creates the pool with the handle type of POSIX file
   * descriptors, and the software device uses shared pages. You cannot give it with a `pool`, whose
   * creator has decided it.
   *
   * CUDA returns no memory of such a pool to the device before the pool is destroyed: `trim` has no effect, and `releaseThresholdBytes` is
   * ignored. So give it a `maximumBytes`, or allocate from it only what you export.
   *
   * Counterpart of the handle type of `rmm::mr::cuda_async_memory_resource`.
   * @defaultValue false
   */
  readonly exportable?: boolean | undefined;
  /**
   * The most bytes that the pool may hold, at least 1 and at least `initialBytes`. The driver counts what it reserves,
   * in blocks of a few MiB, so you can allocate somewhat less. You cannot give it with a `pool`.
   *
   * RMM has no counterpart; it is `maxSize` of `CUmemPoolProps`.
   * @defaultValue Infinity, the driver's own limit
   */
  readonly maximumBytes?: number | undefined;
}

const knownOptions = optionNames<CudaAsyncMemoryResourceOptions>({
  device: true,
  exportable: 'boolean',
  initialBytes: true,
  maximumBytes: true,
  pool: true,
  releaseThresholdBytes: true,
});

/**
 * Device memory from a stream-ordered pool of the driver (`cuMemAllocFromPoolAsync`,
 * `cuMemFreeAsync`).
 *
 * Stream order: use an allocation on its stream, and on streams ordered after it. Memory freed on a
 * stream is reused in that stream's order; the driver inserts the dependencies that it needs.
 * Alignment: 256 bytes, no more.
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
  /** @internal */
  static override readonly name = 'CudaAsyncMemoryResource';
  /**
   * @throws OutOfMemoryError if `initialBytes`, or a byte of the given pool, cannot be allocated;
   * UnsupportedError if the driver has no pools, or no exportable ones.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or a pool of another device
   * or of managed memory; DriverError if the driver
   * does not know the pool's handle.
   */
  constructor(options: CudaAsyncMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { exportable: isExportable = false, maximumBytes } = options;
    super(
      'device',
      options,
      { address: poolAddress(options), isExportable, maximumBytes },
      `${isExportable ? 'that can be exported to other processes' : 'of memory (cuMemAllocAsync)'}: use a pool over CudaMemoryResource`,
    );
  }

  /**
   * Makes the pool the current one of its device: from now on, other libraries of the process that
   * allocate with `cuMemAllocAsync` or `cudaMallocAsync`, which do not name a pool, use it, and its
   * figures count their memory. When it is destroyed, the device's default pool becomes the current
   * one again, and their memory stays valid.
   *
   * Counterpart of `cudaDeviceSetMemPool`.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this object is disposed; DriverError if the driver refuses.
   */
  makeCurrent(): void {
    this.makePoolCurrent();
  }
}

/** The pool that was created elsewhere: the driver's handle, or a name for a pool of the device. */
function poolAddress(options: CudaAsyncMemoryResourceOptions): number | 'default' | 'current' | undefined {
  const { pool } = options;
  if (pool === undefined) return undefined;
  if (typeof pool !== 'string' && typeof pool !== 'number' && typeof pool !== 'bigint') {
    throw new ArgumentTypeError(`pool must be 'default', 'current', a number or a bigint, got ${formatValue(pool)}`);
  }
  const address = pool === 'default' || pool === 'current' ? pool : Number(pool);
  if (typeof address === 'number' && (typeof pool === 'string' || !Number.isSafeInteger(address) || address <= 0)) {
    throw new ArgumentRangeError(`pool must be 'default', 'current' or a handle from 1 to 2^53 - 1, got ${formatValue(pool)}`);
  }
  for (const name of ['exportable', 'initialBytes', 'maximumBytes', 'releaseThresholdBytes'] as const) {
    if (options[name] === undefined) continue;
    throw invalidValue(`${name} must not be given with a pool, because the pool's owner has set it, got ${formatValue(options[name])}`);
  }
  return address;
}

/** `cuda-async` in a specification. */
export const cudaAsyncKind = defineUpstream({
  name: 'cuda-async',
  summary: 'device memory from a stream-ordered pool of the driver',
  options: {
    pool: { type: 'word', words: ['default', 'current'], summary: 'takes memory from a pool of the device', default: 'a new pool' },
    initialBytes: { type: 'size', summary: 'reserved at once', default: '0' },
    maximumBytes: { type: 'size', summary: 'the most it holds', default: "the driver's own limit" },
    releaseThresholdBytes: { type: 'size', summary: 'kept when a stream is synchronized', default: 'everything' },
    exportable: { type: 'boolean', summary: 'whether other processes can open buffers in it', default: 'false' },
  },
  example: 'cuda-async(initialBytes=64KiB)',
  create: ({ device, options }) => new CudaAsyncMemoryResource({ device, ...options }),
});
