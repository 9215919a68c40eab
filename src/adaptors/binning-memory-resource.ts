import type { Stream } from '../driver/stream.js';
import { ArgumentRangeError, ArgumentTypeError, formatPointer, formatValue, LifetimeError } from '../errors.js';
import type {
  DeallocationEvents,
  DeallocationEventsOption,
  DeallocationFence,
  DevicePointer,
  MemoryResource,
  TrimmingMemoryResource,
  TrimOptions,
} from '../memory-resource.js';
import { none } from '../suballocation/blocks.js';
import { ALLOCATION_ALIGNMENT, alignUp } from '../units.js';
import { assertBytes, assertOptions } from '../validation.js';
import { FixedSizeMemoryResource } from './fixed-size-memory-resource.js';
import { disposeAll } from './layers.js';
import { assertMemoryResource, PassThroughAdaptor } from './pass-through-adaptor.js';

/** A bin of a {@link BinningMemoryResource}: the requests up to a size, and what serves them. */
export interface Bin {
  /** The largest request, in bytes; rounded up to a multiple of 256. */
  readonly bytes: number;
  readonly resource: MemoryResource;
}

/** Options of {@link BinningMemoryResource}. At least one bin must come of them. */
export interface BinningMemoryResourceOptions extends DeallocationEventsOption {
  /** Together with `maximumExponent`: a bin of fixed-size blocks for each power of two of bytes from 2^minimumExponent on; at least 8. */
  readonly minimumExponent?: number;
  /** The binary logarithm of the largest of these bins; at most 30, which is 1 GiB. */
  readonly maximumExponent?: number;
  /**
   * Further bins, in any order: a number of bytes for one of fixed-size blocks, or a resource with the largest request that it serves.
   * @defaultValue none
   */
  readonly bins?: readonly (number | Bin)[];
  /**
   * How many blocks each bin of fixed-size blocks takes at a time, when it is made and whenever it has none; with 0, nothing when it is made,
   * and one block after another later.
   * @defaultValue 0
   */
  readonly blocksToPreallocate?: number;
}

/**
 * Serves each request from the resource of its size: the smallest bin that it fits into, or the upstream where it fits into none. The same size
 * leads to the same resource when it is freed.
 *
 * A bin given as a size, or by exponents, is a {@link FixedSizeMemoryResource} on the upstream, which is disposed with this resource, and
 * before the upstream may be. Bins given as resources stay their owner's, as the upstream does. A bin that is out of memory throws, and no
 * larger one is asked: the size alone must tell where memory is freed.
 *
 * Stream order, alignment: those of the bin or the upstream. `deallocationEvents` is the policy of the bins made here, `'eager'` where it is
 * not set, and what is asked of all the others at each free.
 *
 * Counterpart of `rmm::mr::binning_memory_resource`. Zero bytes go to the smallest bin as there, but give the null pointer, as everywhere here.
 * Bins take no blocks before they are used, if not asked to: there, bins from 256 KiB to 4 MiB begin with 992 MiB.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new BinningMemoryResource(pool, { minimumExponent: 18, maximumExponent: 22 });
 * using stream = new Stream();
 * const pointer = resource.allocate(300_000, stream); // a block of 512 KiB
 * resource.deallocate(pointer, 300_000, stream);
 * ```
 */
export class BinningMemoryResource extends PassThroughAdaptor implements TrimmingMemoryResource {
  /** The smallest first. */
  readonly bins: readonly Bin[];
  /** The resources of the bins. */
  readonly alternates: readonly MemoryResource[];
  readonly #made: readonly FixedSizeMemoryResource[];
  /** By bin: what serves it; the upstream comes last. */
  readonly #resources: readonly MemoryResource[];
  /** By bin: its largest request; that of the upstream is Infinity. */
  readonly #sizes: Float64Array;
  /** By bin: what is asked of it at a free; nothing of those made here, which have the policy themselves. */
  readonly #policies: readonly (DeallocationEvents | undefined)[];
  /** The first bin that a size can fit into, by the binary logarithm of the size, rounded up. */
  readonly #firstBins = new Uint32Array(32);

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an option out of its range, no bin at all, two bins of one size, or a resource that is of
   * another device or kind of memory than the upstream.
   * @throws OutOfMemoryError where the upstream has not the blocks to be taken at once.
   */
  constructor(upstream: MemoryResource, options: BinningMemoryResourceOptions) {
    super(upstream, options);
    const { blocksToPreallocate = 0, deallocationEvents } = options;
    const wanted = wantedBins(options, upstream);
    const made: FixedSizeMemoryResource[] = [];
    const bins: Bin[] = [];
    const policy = deallocationEvents === undefined ? {} : { deallocationEvents };
    try {
      for (const { bytes, resource } of wanted) {
        if (resource !== undefined) {
          bins.push(Object.freeze({ bytes, resource }));
          continue;
        }
        const bin = new FixedSizeMemoryResource(upstream, { blockBytes: bytes, blocksToPreallocate, ...policy });
        made.push(bin);
        bins.push(Object.freeze({ bytes, resource: bin }));
      }
    } catch (error) {
      disposeAll(made);
      throw this.passOn(error);
    }
    this.bins = Object.freeze(bins);
    this.#made = made;
    this.#resources = [...bins.map(({ resource }) => resource), upstream];
    this.alternates = Object.freeze([...new Set(bins.map(({ resource }) => resource))]);
    this.#sizes = Float64Array.of(...bins.map(({ bytes }) => bytes), Number.POSITIVE_INFINITY);
    this.#policies = [...wanted.map(({ resource }) => (resource === undefined ? undefined : deallocationEvents)), deallocationEvents];
    for (let exponent = 0; exponent < 32; exponent++) {
      this.#firstBins[exponent] = this.#sizes.findIndex((bytes) => bytes > 2 ** (exponent - 1));
    }
  }

  /** @throws OutOfMemoryError where the bin, or the upstream, has no memory; or what it throws else. */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    try {
      return (this.#resources[this.#binOf(bytes)] as MemoryResource).allocate(bytes, stream, alignment);
    } catch (error) {
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const bin = this.#binOf(bytes);
    try {
      (this.#resources[bin] as MemoryResource).deallocate(pointer, bytes, stream, fence ?? this.#policies[bin]);
    } catch (error) {
      throw this.#wrongBin(error, pointer, bytes);
    }
  }

  /**
   * Gives blocks of the bins made here that are wholly free back to the upstream, as {@link FixedSizeMemoryResource.trim} does.
   * @returns the bytes given back
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    this.assertLive('trim');
    assertOptions(options);
    const { bytesToKeep = 0 } = options;
    assertBytes(bytesToKeep, 'bytesToKeep');
    let released = 0;
    let keep = bytesToKeep;
    for (const bin of this.#made) {
      released += bin.trim(stream, { bytesToKeep: keep });
      keep = Math.max(0, keep - bin.reservedBytes);
    }
    return released;
  }

  /**
   * Disposes the bins made here, which gives everything back to the upstream, also what is still allocated in them. The second time only what
   * the upstream refused is tried again.
   * @throws what the upstream threw first, once everything was tried.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    disposeAll(this.#made);
  }

  /** The number of the smallest bin that a size fits into. For what is no size, any: its resource refuses it. */
  #binOf(bytes: number): number {
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    let bin = small === bytes && small > 0 ? (this.#firstBins[32 - Math.clz32(small - 1)] as number) : 0;
    // At most once where bins are powers of two.
    while (bytes > (this.#sizes[bin] as number)) bin++;
    return bin;
  }

  /** Where another bin has the pointer, the caller got the size wrong. */
  #wrongBin(error: unknown, pointer: DevicePointer, bytes: number): unknown {
    if (!(error instanceof LifetimeError) || error.code === 'ERR_CISTERN_DISPOSED') return error;
    const asked = this.#made.reduce((found, bin) => Math.max(found, bin.askedBytesAt(pointer)), none);
    if (asked === none) return error;
    return new LifetimeError(
      'ERR_CISTERN_WRONG_SIZE',
      `the ${this.constructor.name} cannot free ${formatPointer(pointer)} with ${bytes} bytes: it was allocated with ${asked} bytes`,
    );
  }
}

interface WantedBin {
  readonly bytes: number;
  /** Not set where a resource is to be made. */
  readonly resource?: MemoryResource;
}

/** The bins that the options ask for, the smallest first. */
function wantedBins(options: BinningMemoryResourceOptions, upstream: MemoryResource): WantedBin[] {
  const { minimumExponent, maximumExponent, bins = [] } = options;
  const wanted: WantedBin[] = [];
  if ((minimumExponent === undefined) !== (maximumExponent === undefined)) {
    throw new ArgumentTypeError('minimumExponent and maximumExponent, the least and the greatest bin, must be given together');
  }
  if (minimumExponent !== undefined) {
    assertExponent(minimumExponent, 8, 'minimumExponent');
    assertExponent(maximumExponent, minimumExponent, 'maximumExponent');
    for (let exponent = minimumExponent; exponent <= maximumExponent; exponent++) wanted.push({ bytes: 2 ** exponent });
  }
  if (!Array.isArray(bins)) throw new ArgumentTypeError(`bins must be an array, got ${formatValue(bins)}`);
  for (const [i, bin] of bins.entries()) wanted.push(wantedBin(bin, `bins[${i}]`, upstream));
  if (wanted.length === 0)
    throw new ArgumentRangeError('there must be at least one bin: give minimumExponent and maximumExponent, or bins');
  wanted.sort((a, b) => a.bytes - b.bytes);
  for (const [i, { bytes }] of wanted.entries()) {
    if (bytes === wanted[i + 1]?.bytes) throw new ArgumentRangeError(`bins must differ in size, got two of ${bytes} bytes`);
  }
  return wanted;
}

function wantedBin(bin: number | Bin, name: string, upstream: MemoryResource): WantedBin {
  if (typeof bin !== 'object') return { bytes: wantedBytes(bin, name) };
  assertOptions(bin, name);
  const { bytes, resource } = bin;
  assertMemoryResource(resource, `${name}.resource`);
  if (resource.device !== upstream.device || resource.memoryKind !== upstream.memoryKind) {
    const describe = ({ memoryKind, device }: MemoryResource) => `${memoryKind} memory of device ${device.index}`;
    throw new ArgumentRangeError(
      `${name}.resource must be of ${describe(upstream)}, as the upstream, got one of ${describe(resource)}`,
      'ERR_INVALID_ARG_VALUE',
    );
  }
  return { bytes: wantedBytes(bytes, `${name}.bytes`), resource };
}

function wantedBytes(bytes: number, name: string): number {
  assertBytes(bytes, name);
  if (bytes === 0) throw new ArgumentRangeError(`${name} must be at least 1, got 0`);
  return alignUp(bytes, ALLOCATION_ALIGNMENT);
}

function assertExponent(exponent: unknown, least: number, name: string): asserts exponent is number {
  if (typeof exponent !== 'number') throw new ArgumentTypeError(`${name} must be a number, got ${formatValue(exponent)}`);
  if (Number.isInteger(exponent) && exponent >= least && exponent <= 30) return;
  throw new ArgumentRangeError(`${name} must be an integer from ${least} to 30, got ${exponent}`);
}
