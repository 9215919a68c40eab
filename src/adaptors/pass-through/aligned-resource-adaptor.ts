import { ALLOCATION_ALIGNMENT, GiB } from '../../basics/units.js';
import { assertAlignment, assertBytes, optionNames } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { none } from '../../suballocation/blocks.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link AlignedResourceAdaptor}. */
export interface AlignedResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * Pointers are multiples of this, in bytes: a power of two up to 1 GiB. Values below 256 count as
   * 256.
   * @defaultValue 256
   */
  readonly alignment?: number | undefined;
  /**
   * Smaller allocations have only the alignment that their call asks for.
   * @defaultValue 0
   */
  readonly alignmentThresholdBytes?: number | undefined;
}

const knownOptions = optionNames<AlignedResourceAdaptorOptions>({
  alignment: true,
  alignmentThresholdBytes: true,
  deallocationEvents: true,
});

/**
 * Returns pointers that are multiples of an alignment: that of the option or of the call, whichever
 * is larger.
 *
 * If the upstream supports the alignment, the adaptor requests it there. Once the upstream has
 * refused an alignment, the adaptor requests extra bytes instead (the alignment minus 256), and
 * returns an aligned pointer into that block.
 *
 * Stream order is that of the upstream. The alignment can be any power of two up to 1 GiB, over any
 * upstream.
 *
 * Counterpart of `rmm::mr::aligned_resource_adaptor`. Unlike RMM's, it requests no extra bytes from
 * an upstream that can align, does not round sizes up, and honours the alignment of a call below
 * the threshold, too.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using resource = new AlignedResourceAdaptor(upstream, { alignment: 4096, alignmentThresholdBytes: 1 * MiB });
 * ```
 */
export class AlignedResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'AlignedResourceAdaptor';
  /** Pointers are multiples of this, in bytes; at least 256. */
  readonly alignment: number;
  /** Smaller allocations have only the alignment that their call asks for. */
  readonly alignmentThresholdBytes: number;
  /** The smallest size that `alignment` applies to. */
  readonly #leastAlignedBytes: number;
  /** The smallest size that is padded, because the upstream does not support `alignment`. */
  #leastPaddedBytes = Number.POSITIVE_INFINITY;
  /** The smallest alignment that the upstream is known not to support. */
  #refusedAlignment = Number.POSITIVE_INFINITY;
  /** The placement (`placementOf`) of each padded allocation, by pointer. */
  readonly #placements = new AddressMap();

  /** @throws ArgumentTypeError, ArgumentRangeError for an invalid option. */
  constructor(upstream: MemoryResource, options: AlignedResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { alignment = ALLOCATION_ALIGNMENT, alignmentThresholdBytes = 0 } = options;
    assertAlignment(alignment, maximumAlignment);
    assertBytes(alignmentThresholdBytes, 'alignmentThresholdBytes');
    this.alignment = Math.max(alignment, ALLOCATION_ALIGNMENT);
    this.alignmentThresholdBytes = alignmentThresholdBytes;
    this.#leastAlignedBytes = this.alignment === ALLOCATION_ALIGNMENT ? Number.POSITIVE_INFINITY : alignmentThresholdBytes;
  }

  /** Whether no page is padded. */
  override keepsPages(pageBytes: number): boolean {
    return this.alignment <= pageBytes;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    if (alignment !== undefined) return this.#allocateAsAsked(bytes, stream, alignment);
    if (bytes >= this.#leastPaddedBytes) return this.#allocatePadded(bytes, stream, this.alignment);
    if (bytes >= this.#leastAlignedBytes) return this.#allocateAligned(bytes, stream, this.alignment);
    try {
      return this.served(this.upstream.allocate(bytes, stream), bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (this.#placements.count > 0 && typeof pointer === 'number') {
      // Removed before the call, because a host function that runs during it may get the same
      // memory again.
      const placement = this.#placements.take(pointer);
      if (placement !== none) {
        this.#deallocatePadded(pointer, placement, bytes, stream, fence ?? this.deallocationEvents);
        return;
      }
    }
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
  }

  #allocatePadded(bytes: number, stream: Stream, alignment: number): DevicePointer {
    let base: DevicePointer;
    try {
      const padded = paddedBytes(bytes, alignment);
      base = this.served(this.upstream.allocate(padded, stream), padded, stream);
    } catch (error) {
      throw this.passOn(error, bytes);
    }
    // The distance to the next multiple. The lowest 32 bits of the address are enough for this.
    const offset = -base & (alignment - 1);
    if (base !== 0) this.#placements.insert(base + offset, placementOf(offset, alignment));
    return base + offset;
  }

  #deallocatePadded(pointer: DevicePointer, placement: number, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    try {
      this.freed(this.upstream.deallocate(pointer - offsetOf(placement), paddedBytes(bytes, alignmentOf(placement)), stream, fence));
    } catch (error) {
      this.#placements.insert(pointer, placement);
      throw error;
    }
  }

  #allocateAsAsked(bytes: number, stream: Stream, alignment: number): DevicePointer {
    assertAlignment(alignment, maximumAlignment);
    const wanted = bytes >= this.#leastAlignedBytes ? Math.max(alignment, this.alignment) : alignment;
    if (wanted > ALLOCATION_ALIGNMENT) {
      return wanted < this.#refusedAlignment ? this.#allocateAligned(bytes, stream, wanted) : this.#allocatePadded(bytes, stream, wanted);
    }
    try {
      return this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
  }

  /**
   * Requests the alignment from the upstream. If it is not supported, remembers that and pads
   * instead.
   */
  #allocateAligned(bytes: number, stream: Stream, alignment: number): DevicePointer {
    try {
      const pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
      if (pointer % alignment === 0) return pointer;
      this.giveBack(pointer, bytes, stream);
    } catch (error) {
      if (!(error instanceof RangeError)) throw this.passOn(error);
    }
    this.assertUsable(stream);
    // Also throws if the upstream refused for a reason other than the alignment.
    const pointer = this.#allocatePadded(bytes, stream, alignment);
    this.#refusedAlignment = Math.min(this.#refusedAlignment, alignment);
    if (this.alignment >= this.#refusedAlignment) this.#leastPaddedBytes = this.#leastAlignedBytes;
    return pointer;
  }
}

/** `aligned` in a specification. */
export const alignedKind = defineAdaptor({
  name: 'aligned',
  role: 'pass-through',
  summary: 'returns pointers that are multiples of an alignment',
  options: {
    alignment: { type: 'size', summary: 'pointers are multiples of this power of two', default: '256' },
    alignmentThresholdBytes: { type: 'size', summary: 'smaller allocations have only the requested alignment', default: '0' },
  },
  example: 'aligned(cuda, alignment=4KiB, alignmentThresholdBytes=2000)',
  create: ({ upstream, options }) => new AlignedResourceAdaptor(upstream, options),
});

/** The greatest alignment that fits into the bits of a placement. */
const maximumAlignment = GiB;

/**
 * A placement. The lowest 5 bits hold the binary logarithm of the alignment divided by 256; the
 * bits above hold the offset of the pointer in the upstream's block.
 */
function placementOf(offset: number, alignment: number): number {
  return offset | (23 - Math.clz32(alignment));
}

function offsetOf(placement: number): number {
  return placement & -ALLOCATION_ALIGNMENT;
}

function alignmentOf(placement: number): number {
  return ALLOCATION_ALIGNMENT << (placement & 31);
}

/** The size to request from the upstream, at most 2^53 - 1, which the upstream refuses. */
function paddedBytes(bytes: number, alignment: number): number {
  if (Number.isSafeInteger(bytes) && bytes > 0) return Math.min(bytes + (alignment - ALLOCATION_ALIGNMENT), Number.MAX_SAFE_INTEGER);
  assertBytes(bytes);
  return 0;
}
