import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { isPowerOfTwo } from '../../basics/units.js';
import { assertBytes, assertOneOf, optionNames } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Rounds sizes up to a multiple. */
export interface MultipleRounding extends DeallocationEventsOption {
  readonly kind: 'multiple';
  /** Sizes are rounded up to a multiple of this, in bytes; at least 1. */
  readonly multipleBytes: number;
}

/**
 * Rounds sizes up to the next of equal steps between two powers of two: PyTorch's
 * `roundup_power2_divisions`. With 4 divisions, 1200 becomes 1280, because the steps between 1024
 * and 2048 are 256 apart.
 */
export interface DivisionsRounding extends DeallocationEventsOption {
  readonly kind: 'divisions';
  /** Steps from one power of two to the next: a power of two. 1 rounds up to powers of two. */
  readonly divisions: number;
}

/**
 * Rounds sizes up to numbers with few significant bits, as Halide does; n bits are `2 ** (n - 1)`
 * divisions.
 */
export interface TopBitsRounding extends DeallocationEventsOption {
  readonly kind: 'top-bits';
  /**
   * The significant bits that a size keeps, from 1 to 53. This adds at most `2 ** (1 - bits)` of a
   * size: an eighth for 4 bits.
   * @defaultValue 4
   */
  readonly bits?: number | undefined;
}

/** Options of {@link RoundingResourceAdaptor}: how it rounds. */
export type RoundingResourceAdaptorOptions = MultipleRounding | DivisionsRounding | TopBitsRounding;

const knownOptions = {
  multiple: optionNames<MultipleRounding>({ deallocationEvents: true, kind: true, multipleBytes: true }),
  divisions: optionNames<DivisionsRounding>({ deallocationEvents: true, divisions: true, kind: true }),
  'top-bits': optionNames<TopBitsRounding>({ bits: true, deallocationEvents: true, kind: true }),
};
const kinds = Object.keys(knownOptions) as (keyof typeof knownOptions)[];

/**
 * Rounds requests up, so that similar sizes become equal, and a freed block serves the next
 * allocation whole. Zero stays zero, and a size that would exceed 2^53 - 1 is not rounded.
 *
 * A free is rounded in the same way. The upstream detects a wrong size of a free only if it rounds
 * to a different size; to check exact sizes, put a {@link TrackingResourceAdaptor} on this.
 *
 * Stream order and alignment are those of the upstream.
 *
 * Counterpart of `roundup_power2_divisions` in PyTorch's allocator and of the size quantization in
 * Halide's CUDA runtime.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new RoundingResourceAdaptor(pool, { kind: 'top-bits' });
 * ```
 */
export class RoundingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'RoundingResourceAdaptor';
  /** Steps from one power of two to the next; 0 for multiples. */
  readonly #divisions: number;
  readonly #multipleBytes: number;
  #askedBytes = 0;
  #roundedBytes = 0;

  /** @throws ArgumentTypeError, ArgumentRangeError for an invalid option. */
  constructor(upstream: MemoryResource, options: RoundingResourceAdaptorOptions) {
    super(upstream, options, namesOf(options));
    this.#divisions = divisionsOf(options);
    this.#multipleBytes = options.kind === 'multiple' ? positive(options.multipleBytes, 'multipleBytes') : 0;
  }

  /** Bytes that were requested and not freed. */
  get askedBytes(): number {
    return this.#askedBytes;
  }

  /** The same bytes, rounded: what was requested from the upstream. */
  get roundedBytes(): number {
    return this.#roundedBytes;
  }

  /** The rounded size. */
  round(bytes: number): number {
    if (!Number.isSafeInteger(bytes) || bytes < 0) assertBytes(bytes);
    const divisions = this.#divisions;
    const step = divisions === 0 ? this.#multipleBytes : greatestPowerOfTwo(bytes) / divisions;
    // Exact even for steps that are not powers of two, because the quotient of two sizes below 2^53
    // is never so close to the integer below it that it rounds to that.
    const rounded = Math.ceil(bytes / step) * step;
    return rounded <= Number.MAX_SAFE_INTEGER ? rounded : bytes;
  }

  /** Whether every number of pages is a size that stays as it is. */
  override keepsPages(pageBytes: number): boolean {
    return this.#divisions === 0 && pageBytes % this.#multipleBytes === 0;
  }

  /** @throws OutOfMemoryError as the upstream does, naming the size before rounding. */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    const rounded = this.round(bytes);
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(rounded, stream, alignment), rounded, stream);
    } catch (error) {
      throw this.passOn(error, bytes);
    }
    this.#askedBytes += bytes;
    this.#roundedBytes += rounded;
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const rounded = this.round(bytes);
    this.freed(this.upstream.deallocate(pointer, rounded, stream, fence ?? this.deallocationEvents));
    if (pointer === 0) return;
    this.#askedBytes -= bytes;
    this.#roundedBytes -= rounded;
  }
}

/** `rounding` in a specification. */
export const roundingKind = defineAdaptor({
  name: 'rounding',
  role: 'pass-through',
  summary: 'rounds sizes up, so that similar sizes become equal',
  options: {
    kind: { type: 'word', words: kinds, summary: 'how it rounds', required: true },
    multipleBytes: { type: 'size', summary: 'rounds up to a multiple of this, for the kind multiple', default: 'none' },
    divisions: {
      type: 'integer',
      summary: 'rounds up to this many steps between powers of two, a power of two, for the kind divisions',
      default: 'none',
    },
    bits: { type: 'integer', summary: 'rounds up to this many significant bits, for the kind top-bits', default: '4' },
  },
  example: 'rounding(cuda, kind=multiple, multipleBytes=1000)',
  create: ({ upstream, options }) => new RoundingResourceAdaptor(upstream, options as RoundingResourceAdaptorOptions),
});

/** @throws ArgumentTypeError, ArgumentRangeError for an invalid kind. */
function namesOf(options: RoundingResourceAdaptorOptions) {
  if (typeof options !== 'object' || options === null)
    throw new ArgumentTypeError(`options must be an object, got ${formatValue(options)}`);
  assertOneOf(options.kind, kinds, 'kind');
  return knownOptions[options.kind];
}

function divisionsOf(options: RoundingResourceAdaptorOptions): number {
  if (options.kind === 'multiple') return 0;
  if (options.kind === 'divisions') {
    const { divisions } = options;
    if (isPowerOfTwo(positive(divisions, 'divisions'))) return divisions;
    throw new ArgumentRangeError(`divisions must be a power of two, got ${divisions}`);
  }
  const bits = positive(options.bits ?? 4, 'bits');
  if (bits > 53) throw new ArgumentRangeError(`bits must be an integer from 1 to 53, got ${bits}`);
  return 2 ** (bits - 1);
}

function positive(value: number, name: string): number {
  assertBytes(value, name);
  if (value === 0) throw new ArgumentRangeError(`${name} must be at least 1, got 0`);
  return value;
}

/** The largest power of two that is at most a size from 1 to 2^53 - 1. */
function greatestPowerOfTwo(bytes: number): number {
  if (bytes < 2 ** 31) return 1 << (31 - Math.clz32(bytes));
  return 2 ** 22 * (1 << (31 - Math.clz32(bytes / 2 ** 22)));
}
