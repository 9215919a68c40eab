import { ArgumentRangeError, ArgumentTypeError, DriverError, formatValue, UnsupportedError } from '../basics/errors.js';
import { assertBytes, assertOptions, optionNames } from '../basics/validation.js';
import { invalidValueStatus, notSupportedStatus } from '../driver/status.js';
import { defineUpstream } from '../resource-kind.js';
import { DriverPoolMemoryResource, type ManagedAsyncMemoryResourceOptions } from './driver-pool-memory-resource.js';

/** Options of {@link CudaAsyncMemoryResource}. */
export interface CudaAsyncMemoryResourceOptions extends ManagedAsyncMemoryResourceOptions {
  /**
   * A pool that was made elsewhere: `'default'` for the device's own, which other libraries of the
   * process may use too; `'current'` for the one that `cuMemAllocAsync` takes memory from when this is constructed, which is the default pool unless
   * somebody has set another; or the driver's handle of a pool of the device (a `CUmemoryPool` or
   * `cudaMemPool_t` as an address). It is used and not destroyed, and its settings are its owner's:
   * `initialBytes`, `maximumBytes` and `releaseThresholdBytes` cannot be given with it. The figures of `usage()`,
   * `reservedBytes` and its peak are those of the whole pool, whoever uses it, and resetting the
   * peaks resets them for everybody. A handle must stay valid as long as the resource or anything
   * allocated from it; CUDA may not notice one that is wrong.
   * To see whose memory the pool has, a byte is allocated from it and freed, on the legacy default
   * stream.
   *
   * Counterpart of `rmm::mr::cuda_async_view_memory_resource`.
   * @defaultValue a new pool, destroyed with the resource
   */
  readonly pool?: 'default' | 'current' | number | bigint;
  /**
   * Whether buffers in the pool's memory can be exported to other processes
   * ({@link DeviceBuffer.export}). CUDA then creates the pool with a handle type, POSIX file
   * descriptors; the software device takes shared pages for it. Cannot be given with a `pool`, whose
   * creator has decided that.
   *
   * Counterpart of the handle type of `rmm::mr::cuda_async_memory_resource`.
   * @defaultValue false
   */
  readonly exportable?: boolean;
  /**
   * The most bytes that the pool may hold, at least 1 and at least `initialBytes`. The driver counts what it reserves,
   * in blocks of some MiB, so somewhat less can be allocated. Cannot be given with a `pool`.
   *
   * RMM has no counterpart; it is `maxSize` of `CUmemPoolProps`.
   * @defaultValue Infinity, the driver's own limit
   */
  readonly maximumBytes?: number;
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
  /** @internal */
  static override readonly name = 'CudaAsyncMemoryResource';
  /**
   * @throws OutOfMemoryError if `initialBytes`, or a byte of the given pool, cannot be allocated;
   * UnsupportedError if the driver has no exportable pools.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or a pool of another device
   * or of managed memory; DriverError if the driver
   * does not know the pool's handle.
   */
  constructor(options: CudaAsyncMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { exportable = false, initialBytes = 0, maximumBytes = Number.POSITIVE_INFINITY } = options;
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    if (maximumBytes < Math.max(initialBytes, 1)) {
      const least = initialBytes > 0 ? `initialBytes (${initialBytes})` : '1';
      throw new ArgumentRangeError(`maximumBytes must be at least ${least}, got ${maximumBytes}`);
    }
    try {
      super('device', options, poolAddress(options), exportable, maximumBytes);
    } catch (error) {
      if (!exportable || !(error instanceof DriverError) || ![invalidValueStatus, notSupportedStatus].includes(error.driverStatus))
        throw error;
      throw new UnsupportedError('the driver has no pools that can be exported to other processes: use a pool over CudaMemoryResource');
    }
  }

  /**
   * Makes the pool the current one of its device: what other libraries of the process allocate with `cuMemAllocAsync` or
   * `cudaMallocAsync`, which name no pool, comes from it from now on, and counts in its figures. If it is destroyed, the device's default
   * pool is the current one again; memory that others have of it stays valid.
   *
   * Counterpart of `cudaDeviceSetMemPool`.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this object is disposed; DriverError if the driver refuses.
   */
  makeCurrent(): void {
    this.makePoolCurrent();
  }
}

/** The pool that was made elsewhere: by the driver's handle, or as a pool of the device. */
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
    throw new ArgumentRangeError(
      `${name} must not be given with a pool, whose settings are its owner's, got ${formatValue(options[name])}`,
      'ERR_INVALID_ARG_VALUE',
    );
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
