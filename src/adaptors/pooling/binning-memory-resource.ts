import {
  ArgumentRangeError,
  ArgumentTypeError,
  alreadyFreed,
  CisternError,
  formatPointer,
  formatValue,
  invalidValue,
  LifetimeError,
  wrongSize,
} from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp } from '../../basics/units.js';
import { assertBytes, assertInteger, assertMilliseconds, assertOptions, optionNames } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import {
  assertMemoryResource,
  type DeallocationEvents,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type TrimmingMemoryResource,
  type TrimOptions,
  trimOptionNames,
} from '../../memory-resource.js';
import { takesBack } from '../../ownership/bulk-frees.js';
import { defineAdaptor } from '../../resource-kind.js';
import { none } from '../../suballocation/blocks.js';
import { disposeAll, layersOf } from '../layers.js';
import { PassThroughAdaptor } from '../pass-through/pass-through-adaptor.js';
import { FixedSizeMemoryResource } from './fixed-size-memory-resource.js';
import { keepingOptions } from './keeper.js';
import { type GrowthOption, growsFirst, growthOption } from './order-of-tries.js';

/**
 * A bin of a {@link BinningMemoryResource}: requests up to a size, and the resource that serves
 * them.
 */
export interface Bin {
  /** The largest request, in bytes; rounded up to a multiple of 256. */
  readonly bytes: number;
  readonly resource: MemoryResource;
}

const knownOfBin = optionNames<Bin>({ bytes: true, resource: true });

/** Options of {@link BinningMemoryResource}. */
export interface BinningMemoryResourceOptions extends DeallocationEventsOption, GrowthOption {
  /**
   * With `maximumExponent`: creates a bin of fixed-size blocks for each power of two bytes, from
   * 2^minimumExponent; at least 8.
   */
  readonly minimumExponent?: number | undefined;
  /** The binary logarithm of the bytes of the largest of these bins; at most 30, which is 1 GiB. */
  readonly maximumExponent?: number | undefined;
  /**
   * More bins, in any order: a number of bytes for a bin of fixed-size blocks, or a resource with
   * the largest request that it serves.
   * @defaultValue none
   */
  readonly bins?: readonly (number | Bin)[] | undefined;
  /**
   * How many blocks each bin of fixed-size blocks takes at a time: when it is constructed, and
   * whenever it runs out. With 0, it takes none when constructed, and later one at a time.
   * @defaultValue 0
   */
  readonly blocksToPreallocate?: number | undefined;
  /**
   * The time in milliseconds after which bins of fixed-size blocks return blocks that nobody has needed, in the background, at most
   * twice that time after their last use.
   * @defaultValue not set: blocks that were needed once are kept
   */
  readonly idleMilliseconds?: number | undefined;
}

const knownOptions = optionNames<BinningMemoryResourceOptions>({
  bins: true,
  blocksToPreallocate: true,
  deallocationEvents: true,
  growth: true,
  idleMilliseconds: true,
  maximumExponent: true,
  minimumExponent: true,
});

/** Serves the requests of one bin, or the requests that fit into no bin. */
interface Server {
  readonly resource: MemoryResource;
  /**
   * The policy passed with each free; `undefined` for bins made here, which have the policy
   * themselves.
   */
  readonly policy: DeallocationEvents | undefined;
  /** Allocations that are not yet freed. */
  liveCount: number;
}

/**
 * Serves each request from the resource for its size: the smallest bin that it fits into, or the
 * upstream if it fits into none. A free finds that resource by its size.
 *
 * A bin given as a size, or by exponents, is a {@link FixedSizeMemoryResource} on the upstream. It
 * is disposed with this resource, so dispose this before the upstream. Bins given as resources
 * belong to their owners, as does the upstream. A bin that is out of memory throws, and no larger
 * bin is tried, because a free must find the resource by the size alone. Without bins, all requests
 * go to the upstream.
 *
 * Stream order and alignment are those of the bin or the upstream. `deallocationEvents` is the
 * policy of the bins made here (`'eager'` if not set), and is passed to all other resources at each
 * free.
 *
 * Counterpart of `rmm::mr::binning_memory_resource`. A request for zero bytes goes to the smallest
 * bin, as in RMM, but returns the null pointer, as everywhere in cistern. By default, bins take no
 * blocks before they are used; in RMM, bins from 256 KiB to 4 MiB start with 992 MiB.
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
  /** @internal */
  static override readonly name = 'BinningMemoryResource';
  readonly #growth: 'before-waits' | 'after-waits';
  readonly #blocksToPreallocate: number;
  readonly #idleMilliseconds: number | undefined;
  #bins: readonly Bin[] = Object.freeze([]);
  #made: readonly FixedSizeMemoryResource[] = [];
  /** Resources that could neither become bins nor be disposed. */
  #left: readonly FixedSizeMemoryResource[] = [];
  /** By bin; the upstream comes last. */
  #servers: readonly Server[];
  /** By bin: the size of its largest request. For the upstream it is Infinity. */
  #sizes = Float64Array.of(Number.POSITIVE_INFINITY);
  /** By the binary logarithm of a size, rounded up: the first bin that it can fit into. */
  readonly #firstBins = new Uint32Array(32);

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, two bins of the same size,
   * or a resource whose device or kind of memory differs from the upstream's.
   * @throws OutOfMemoryError if the upstream does not have the blocks to preallocate.
   */
  constructor(upstream: MemoryResource, options: BinningMemoryResourceOptions = {}) {
    super(upstream, options, knownOptions);
    const { blocksToPreallocate = 0, deallocationEvents, idleMilliseconds } = options;
    assertBytes(blocksToPreallocate, 'blocksToPreallocate');
    if (idleMilliseconds !== undefined) assertMilliseconds(idleMilliseconds, 'idleMilliseconds');
    this.#idleMilliseconds = idleMilliseconds;
    this.#blocksToPreallocate = blocksToPreallocate;
    this.#growth = growsFirst(options) ? 'before-waits' : 'after-waits';
    this.#servers = [{ resource: upstream, policy: deallocationEvents, liveCount: 0 }];
    const wanted = wantedBins(options, upstream);
    try {
      for (const bin of wanted) this.#add(bin);
    } catch (error) {
      disposeAll(this.#made);
      throw this.passOn(error);
    }
  }

  /** Whether every page comes from the upstream. */
  override keepsPages(pageBytes: number): boolean {
    return this.#bins.every(({ bytes }) => bytes < pageBytes);
  }

  /** The bins, smallest first. */
  get bins(): readonly Bin[] {
    return this.#bins;
  }

  /** The resources of the bins, each once. */
  get alternates(): readonly MemoryResource[] {
    return [...new Set(this.#bins.map(({ resource }) => resource))];
  }

  /**
   * Adds a bin. From now on, it serves requests up to its size that do not fit into the next
   * smaller bin. The resource that has served these must have no live allocations, because a free
   * finds its resource by the size alone.
   *
   * Counterpart of `rmm::mr::binning_memory_resource::add_bin`, which leaves that to the caller.
   * @param bin bytes for a bin of fixed-size blocks, or a resource with the largest request that it
   * serves
   * @throws ArgumentTypeError, ArgumentRangeError as the constructor does, and for a size that
   * already has a bin; also for a resource that takes memory back while it is in use, such as a
   * {@link CachingMemoryResource}, or that is built on one, unless this resource is already built
   * on it, because the adaptors above this one do not know it. Pass such a resource to the
   * constructor instead.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while the bin or the upstream that served
   * these requests has live allocations.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this resource is disposed.
   * @throws OutOfMemoryError if the upstream does not have the blocks to preallocate. The state is
   * unchanged after any error.
   * @example
   * ```ts
   * using pool = new PoolMemoryResource(new CudaMemoryResource());
   * using resource = new BinningMemoryResource(pool);
   * resource.addBin(64 * KiB);
   * resource.addBin({ bytes: 1 * MiB, resource: new FixedSizeMemoryResource(pool, { blockBytes: 1 * MiB }) });
   * ```
   */
  addBin(bin: number | Bin): void {
    const wanted = wantedBin(bin, 'bin', this.upstream);
    this.#assertAddable(wanted);
    try {
      this.#add(wanted);
    } catch (error) {
      throw this.passOn(error);
    }
  }

  /**
   * @throws OutOfMemoryError if the bin or the upstream is out of memory; also any other error that
   * they throw.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    const server = this.#servers[this.#binOf(bytes)] as Server;
    // Counted before the call: host functions may run during it, and add a bin.
    server.liveCount++;
    try {
      const { resource } = server;
      const pointer = this.served(resource.allocate(bytes, stream, alignment), bytes, stream, resource);
      if (pointer === 0) server.liveCount--;
      return pointer;
    } catch (error) {
      server.liveCount--;
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const bin = this.#binOf(bytes);
    const server = this.#servers[bin] as Server;
    if (bin === this.#bins.length) this.#refuseBlockOfBin(pointer, bytes);
    try {
      this.freed(server.resource.deallocate(pointer, bytes, stream, fence ?? server.policy), server.resource);
    } catch (error) {
      throw this.#wrongBin(error, pointer, bytes);
    }
    if (pointer !== 0) server.liveCount--;
  }

  /**
   * Returns batches that are entirely free, of the bins made here, to the upstream, as {@link
   * FixedSizeMemoryResource.trim} does.
   * @returns the bytes returned to the upstream
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    this.assertLive('trim');
    assertOptions(options, trimOptionNames);
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
   * Disposes the bins made here, which returns all of their memory to the upstream, even if it is
   * still allocated. A second call only retries what the upstream refused.
   * @throws the upstream's first error, after everything was tried.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    disposeAll([...this.#made, ...this.#left]);
  }

  /** @throws what `addBin` throws, if this bin cannot be added now. */
  #assertAddable({ bytes, resource }: WantedBin): void {
    this.assertLive('add a bin');
    if (this.#bins.some((bin) => bin.bytes === bytes)) {
      throw new ArgumentRangeError(`bins must differ in size, got a second one of ${bytes} bytes`);
    }
    const server = this.#servers[this.#binOf(bytes)] as Server;
    if (server.liveCount > 0) {
      const where = server.resource === this.upstream ? 'the upstream' : 'the next larger bin';
      throw new CisternError(
        'ERR_CISTERN_INVALID_STATE',
        `cannot add a bin of ${bytes} bytes: ${where}, which has served such requests, has ${server.liveCount} live allocations; free them first`,
      );
    }
    const layers = resource === undefined ? [] : layersOf(resource);
    if (layers.includes(this)) {
      throw invalidValue(`bin.resource must not be built on this resource, got ${formatValue(resource)}`);
    }
    const known = layersOf(this);
    const taker = layers.find((layer) => takesBack(layer) && !known.includes(layer));
    if (taker === undefined) return;
    throw invalidValue(
      `bin.resource must not be a resource that takes back memory in use, got ${formatValue(resource)}; pass it to the constructor instead`,
    );
  }

  /**
   * Makes a bin of a size that has none yet, and puts it in its place. If that fails, the state is
   * unchanged.
   */
  #add({ bytes, resource }: WantedBin): void {
    const { deallocationEvents } = this;
    let serves = resource;
    if (serves === undefined) {
      const policy = deallocationEvents === undefined ? {} : { deallocationEvents };
      const made = new FixedSizeMemoryResource(this.upstream, {
        blockBytes: bytes,
        blocksToPreallocate: this.#blocksToPreallocate,
        growth: this.#growth,
        idleMilliseconds: this.#idleMilliseconds,
        ...policy,
      });
      // The upstream is foreign code: it may have allocated from this, added a bin, or disposed
      // this.
      try {
        this.#assertAddable({ bytes });
      } catch (error) {
        try {
          made.dispose();
        } catch {
          this.#left = [...this.#left, made];
        }
        throw error;
      }
      this.#made = [...this.#made, made].sort((a, b) => a.blockBytes - b.blockBytes);
      serves = made;
    }
    this.rememberIfTakenBack(serves);
    const place = this.#bins.filter((bin) => bin.bytes < bytes).length;
    const server: Server = { resource: serves, policy: resource === undefined ? undefined : deallocationEvents, liveCount: 0 };
    this.#bins = Object.freeze(this.#bins.toSpliced(place, 0, Object.freeze({ bytes, resource: serves })));
    this.#servers = this.#servers.toSpliced(place, 0, server);
    this.#sizes = Float64Array.of(...this.#bins.map((bin) => bin.bytes), Number.POSITIVE_INFINITY);
    for (let exponent = 0; exponent < 32; exponent++) {
      this.#firstBins[exponent] = this.#sizes.findIndex((size) => size > 2 ** (exponent - 1));
    }
  }

  /**
   * The index of the smallest bin that a size fits into. For an invalid size, any index, because
   * its resource refuses the size.
   */
  #binOf(bytes: number): number {
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    let bin = small === bytes && small > 0 ? (this.#firstBins[32 - Math.clz32(small - 1)] as number) : 0;
    // At most once if the bins are powers of two.
    while (bytes > (this.#sizes[bin] as number)) bin++;
    return bin;
  }

  /** If another bin has the pointer, the error is that the caller passed the wrong size. */
  #wrongBin(error: unknown, pointer: DevicePointer, bytes: number): unknown {
    if (!(error instanceof LifetimeError) || error.code === 'ERR_CISTERN_DISPOSED') return error;
    const asked = this.#made.reduce((found, bin) => Math.max(found, bin.askedBytesAt(pointer)), none);
    return asked === none ? error : this.#wrongSize(pointer, bytes, asked);
  }

  /**
   * If the wrong size is that of a whole block that a bin holds, the upstream would free that
   * block.
   */
  #refuseBlockOfBin(pointer: DevicePointer, bytes: number): void {
    const owner = this.#made.find((bin) => bin.hasUpstreamBlockAt(pointer));
    if (owner === undefined) return;
    assertBytes(bytes);
    const asked = owner.askedBytesAt(pointer);
    if (asked !== none) throw this.#wrongSize(pointer, bytes, asked);
    const where = `the ${this.constructor.name} cannot free ${formatPointer(pointer)}`;
    throw alreadyFreed(where);
  }

  #wrongSize(pointer: DevicePointer, bytes: number, asked: number): LifetimeError {
    return wrongSize(`the ${this.constructor.name} cannot free ${formatPointer(pointer)}`, bytes, asked);
  }
}

/** `binning` in a specification. */
export const binningKind = defineAdaptor({
  name: 'binning',
  role: 'pooling',
  summary: 'serves each size from its own bin of blocks, and larger sizes from the upstream',
  options: {
    minimumExponent: {
      type: 'integer',
      summary: 'power-of-two bins from 2^minimumExponent bytes, at least 8; requires maximumExponent',
      default: 'none',
    },
    maximumExponent: { type: 'integer', summary: 'to 2^maximumExponent bytes, at most 30; requires minimumExponent', default: 'none' },
    bins: { type: 'sizes', summary: 'more bins', default: 'none' },
    blocksToPreallocate: {
      type: 'integer',
      summary: 'blocks that a bin takes at a time, also in advance; 0: one at a time, none in advance',
      default: '0',
    },
    growth: growthOption,
    idleMilliseconds: keepingOptions.idleMilliseconds,
  },
  example: 'binning(cuda, minimumExponent=16, maximumExponent=20, bins=[300, 5000], blocksToPreallocate=1)',
  create: ({ upstream, options }) => {
    const { minimumExponent, maximumExponent, bins } = options;
    // A program can add bins later, but a resource made from a specification would never have any.
    if (minimumExponent === undefined && maximumExponent === undefined && bins === undefined) {
      throw new ArgumentRangeError('there must be at least one bin: give minimumExponent and maximumExponent, or bins');
    }
    return new BinningMemoryResource(upstream, options);
  },
});

interface WantedBin {
  readonly bytes: number;
  /** Not set if a resource is to be made. */
  readonly resource?: MemoryResource;
}

/** The bins that the options ask for, smallest first. */
function wantedBins(options: BinningMemoryResourceOptions, upstream: MemoryResource): WantedBin[] {
  const { minimumExponent, maximumExponent, bins = [] } = options;
  const wanted: WantedBin[] = [];
  if ((minimumExponent === undefined) !== (maximumExponent === undefined)) {
    throw new ArgumentTypeError('minimumExponent and maximumExponent, the smallest and the largest bin, must be given together');
  }
  if (minimumExponent !== undefined) {
    assertExponent(minimumExponent, 8, 'minimumExponent');
    assertExponent(maximumExponent, minimumExponent, 'maximumExponent');
    for (let exponent = minimumExponent; exponent <= maximumExponent; exponent++) wanted.push({ bytes: 2 ** exponent });
  }
  if (!Array.isArray(bins)) throw new ArgumentTypeError(`bins must be an array, got ${formatValue(bins)}`);
  for (const [i, bin] of bins.entries()) wanted.push(wantedBin(bin, `bins[${i}]`, upstream));
  wanted.sort((a, b) => a.bytes - b.bytes);
  for (const [i, { bytes }] of wanted.entries()) {
    if (bytes === wanted[i + 1]?.bytes) throw new ArgumentRangeError(`bins must differ in size, got two of ${bytes} bytes`);
  }
  return wanted;
}

function wantedBin(bin: number | Bin, name: string, upstream: MemoryResource): WantedBin {
  if (typeof bin !== 'object') return { bytes: wantedBytes(bin, name) };
  assertOptions(bin, knownOfBin, name);
  const { bytes, resource } = bin;
  assertMemoryResource(resource, `${name}.resource`);
  if (resource.device !== upstream.device || resource.memoryKind !== upstream.memoryKind) {
    const describe = ({ memoryKind, device }: MemoryResource) => `${memoryKind} memory of device ${device.index}`;
    throw invalidValue(`${name}.resource must have ${describe(upstream)}, as the upstream does, got one with ${describe(resource)}`);
  }
  return { bytes: wantedBytes(bytes, `${name}.bytes`), resource };
}

function wantedBytes(bytes: number, name: string): number {
  assertBytes(bytes, name);
  if (bytes === 0) throw new ArgumentRangeError(`${name} must be at least 1, got 0`);
  return alignUp(bytes, ALLOCATION_ALIGNMENT);
}

function assertExponent(exponent: unknown, least: number, name: string): asserts exponent is number {
  assertInteger(exponent, name, least, 30);
}
