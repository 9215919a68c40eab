import type { Stream } from '../driver/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import { AddressMap } from '../suballocation/address-map.js';
import { none } from '../suballocation/blocks.js';
import { ALLOCATION_ALIGNMENT, GiB } from '../units.js';
import { assertAlignment, assertBytes, optionNames } from '../validation.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link AlignedResourceAdaptor}. */
export interface AlignedResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * What pointers are multiples of, in bytes: a power of two up to 1 GiB. Less than 256 is as much as 256.
   * @defaultValue 256
   */
  readonly alignment?: number;
  /**
   * Allocations of fewer bytes have the alignment that their call asks for, and no other.
   * @defaultValue 0
   */
  readonly alignmentThresholdBytes?: number;
}

const knownOptions = optionNames<AlignedResourceAdaptorOptions>({
  alignment: true,
  alignmentThresholdBytes: true,
  deallocationEvents: true,
});

/**
 * Gives pointers that are multiples of an alignment: the greater one of the option and of what the call asks for.
 *
 * An upstream that has the alignment itself is asked for it. From the first alignment on that the upstream refuses, this asks it for as many
 * bytes more as the alignment exceeds 256, and gives a pointer into that.
 *
 * Stream order: that of the upstream. Alignment: any power of two up to 1 GiB, over any upstream.
 *
 * Counterpart of `rmm::mr::aligned_resource_adaptor`. Unlike there, an upstream that can align is not asked for more than it needs, sizes are
 * not rounded up, and an alignment that a call asks for holds for sizes below the threshold as well.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using resource = new AlignedResourceAdaptor(upstream, { alignment: 4096, alignmentThresholdBytes: 1 * MiB });
 * ```
 */
export class AlignedResourceAdaptor extends PassThroughAdaptor {
  /** What pointers are multiples of, in bytes; at least 256. */
  readonly alignment: number;
  /** Allocations of fewer bytes have the alignment that their call asks for, and no other. */
  readonly alignmentThresholdBytes: number;
  /** What `alignment` holds for. */
  readonly #leastAlignedBytes: number;
  /** What the upstream is asked for more bytes for, since it does not have `alignment`. */
  #leastPaddedBytes = Number.POSITIVE_INFINITY;
  /** The least alignment that the upstream is known not to have. */
  #refusedAlignment = Number.POSITIVE_INFINITY;
  /** By pointer, for what was asked with more bytes: how far that is into the upstream's allocation, and how many more (`placement`). */
  readonly #placements = new AddressMap();

  /** @throws ArgumentTypeError, ArgumentRangeError for an option out of its range. */
  constructor(upstream: MemoryResource, options: AlignedResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { alignment = ALLOCATION_ALIGNMENT, alignmentThresholdBytes = 0 } = options;
    assertAlignment(alignment, maximumAlignment);
    assertBytes(alignmentThresholdBytes, 'alignmentThresholdBytes');
    this.alignment = Math.max(alignment, ALLOCATION_ALIGNMENT);
    this.alignmentThresholdBytes = alignmentThresholdBytes;
    this.#leastAlignedBytes = this.alignment === ALLOCATION_ALIGNMENT ? Number.POSITIVE_INFINITY : alignmentThresholdBytes;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    if (alignment !== undefined) return this.#allocateAsAsked(bytes, stream, alignment);
    if (bytes >= this.#leastPaddedBytes) return this.#allocatePadded(bytes, stream, this.alignment);
    if (bytes >= this.#leastAlignedBytes) return this.#allocateAligned(bytes, stream, this.alignment);
    try {
      return this.upstream.allocate(bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (this.#placements.count > 0 && typeof pointer === 'number') {
      // Taken out before the call: a host function that runs in it may be given the same memory again.
      const placement = this.#placements.take(pointer);
      if (placement !== none) {
        this.#deallocatePadded(pointer, placement, bytes, stream, fence ?? this.deallocationEvents);
        return;
      }
    }
    this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
  }

  #allocatePadded(bytes: number, stream: Stream, alignment: number): DevicePointer {
    let base: DevicePointer;
    try {
      base = this.upstream.allocate(paddedBytes(bytes, alignment), stream);
    } catch (error) {
      throw this.passOn(error, bytes);
    }
    // How far it is to the next multiple, for which the lowest 32 bits of the address are enough.
    const offset = -base & (alignment - 1);
    if (base !== 0) this.#placements.insert(base + offset, placementOf(offset, alignment));
    return base + offset;
  }

  #deallocatePadded(pointer: DevicePointer, placement: number, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    try {
      this.upstream.deallocate(pointer - offsetOf(placement), paddedBytes(bytes, alignmentOf(placement)), stream, fence);
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
      return this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      throw this.passOn(error);
    }
  }

  /** Asks the upstream for the alignment; where it does not have it, learns that, and asks for more bytes instead. */
  #allocateAligned(bytes: number, stream: Stream, alignment: number): DevicePointer {
    try {
      const pointer = this.upstream.allocate(bytes, stream, alignment);
      if (pointer % alignment === 0) return pointer;
      this.upstream.deallocate(pointer, bytes, stream, this.deallocationEvents);
    } catch (error) {
      if (!(error instanceof RangeError)) throw this.passOn(error);
    }
    this.assertLive('allocate');
    // Throws as well where it was not for the alignment that the upstream refused.
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
  summary: 'gives pointers that are multiples of an alignment',
  options: {
    alignment: { type: 'size', summary: 'what pointers are multiples of: a power of two', default: '256' },
    threshold: { type: 'size', summary: 'smaller allocations have no alignment but what is asked for', default: '0' },
  },
  example: 'aligned(cuda, alignment=4KiB, threshold=2000)',
  create: ({ upstream, options }) =>
    new AlignedResourceAdaptor(
      upstream,
      definedFields({
        alignment: options.alignment,
        alignmentThresholdBytes: options.threshold,
        deallocationEvents: options.events,
      }),
    ),
});

/** What a placement has bits for. */
const maximumAlignment = GiB;

/** A placement: in the lowest 5 bits the alignment over 256 as a power of two, above them how far the pointer is into the upstream's block. */
function placementOf(offset: number, alignment: number): number {
  return offset | (23 - Math.clz32(alignment));
}

function offsetOf(placement: number): number {
  return placement & -ALLOCATION_ALIGNMENT;
}

function alignmentOf(placement: number): number {
  return ALLOCATION_ALIGNMENT << (placement & 31);
}

/** What to ask the upstream for. More than 2^53 - 1 is no size, and as much is for the upstream to refuse. */
function paddedBytes(bytes: number, alignment: number): number {
  if (Number.isSafeInteger(bytes) && bytes > 0) return Math.min(bytes + (alignment - ALLOCATION_ALIGNMENT), Number.MAX_SAFE_INTEGER);
  assertBytes(bytes);
  return 0;
}
