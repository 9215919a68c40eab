import { ALLOCATION_ALIGNMENT, formatBytes } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertPointer } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEvents, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { none } from '../../suballocation/blocks.js';
import { FreeSpaceIndex, maximumUnits, unitBits, unitBytes } from '../../suballocation/free-space-index.js';
import { StreamOrderedMemoryResource } from './stream-ordered-memory-resource.js';

/** The largest block that the index can hold, in bytes. */
export const maximumBlockBytes = maximumUnits * unitBytes;

/**
 * The common part of the resources that cut allocations from larger blocks: the index of free
 * space, and the calls that must be fast.
 *
 * Every allocation is rounded up to a multiple of 256 bytes, and its alignment can be any power of
 * two. Allocating and freeing take constant time, however many blocks are live or free.
 */
export abstract class SuballocatingMemoryResource extends StreamOrderedMemoryResource {
  protected readonly index: FreeSpaceIndex;

  protected constructor(upstream: MemoryResource, deallocationEvents: DeallocationEvents) {
    const index = new FreeSpaceIndex();
    super(upstream, index, deallocationEvents);
    this.index = index;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');
    // Most sizes fit into 32-bit arithmetic; the others take the slow path.
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small !== bytes || small <= 0 || small > 0x7fffff00 || (alignment !== undefined && alignment !== ALLOCATION_ALIGNMENT))
      return this.#allocateUnusual(bytes, stream, alignment);
    const units = (small + (unitBytes - 1)) >> unitBits;
    const { number, owner } = this.lane;
    const address = this.index.allocate(units, (units << unitBits) - small, number, owner);
    return address === none ? this.allocateElsewhere(bytes, stream, ALLOCATION_ALIGNMENT) : address;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'deallocate');
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small !== bytes || typeof pointer !== 'number' || fence !== undefined) {
      this.#deallocateUnusual(pointer, bytes, stream, fence);
      return;
    }
    const { lane } = this;
    // Compared, as V8 otherwise tests for all values that count as false.
    const isRecorded = lane.recordsFrees === true;
    // The event comes first: a refused one leaves the memory allocated. If the free is refused, the
    // event does no harm, since it covers the same memory as the one before. Then one call of the
    // index frees, and nothing after it can fail.
    if (isRecorded) lane.record();
    if (!this.index.freeAt(pointer, small, lane.number)) this.#refuseFreeAt(pointer, bytes);
    else if (isRecorded) lane.freeCovered();
    else lane.freeUnrecorded();
  }

  /** Takes a block from a lane. Returns its address, or -1. */
  protected allocateIn(lane: number, bytes: number, alignment: number): number {
    const units = Math.ceil(bytes / unitBytes);
    const slack = units * unitBytes - bytes;
    const { owner } = this.lane;
    if (alignment === ALLOCATION_ALIGNMENT) return this.index.allocate(units, slack, lane, owner);
    return this.index.allocateAligned(units, slack, alignment, lane, owner);
  }

  /**
   * Takes a block from a lane if any fits, even one behind the first few of its size class. Returns
   * its address, or -1. Linear in the number of blocks of that class and above.
   */
  protected searchLane(lane: number, bytes: number, alignment: number): number {
    const units = Math.ceil(bytes / unitBytes);
    return this.index.allocateAligned(units, units * unitBytes - bytes, alignment, lane, this.lane.owner);
  }

  /** The other stream's memory is found by its size, and so is enough for any alignment. */
  protected override takeFromOthers(bytes: number, stream: Stream, alignment: number): number {
    const units = Math.ceil(bytes / unitBytes) + alignment / unitBytes - 1;
    const other = units > maximumUnits ? none : this.ordering.laneWith(stream, units);
    return other === none ? none : this.reuseFrom(other, bytes, stream, alignment);
  }

  /** With a fence, of 2 GiB and more, and of what is no pointer or no size. */
  #deallocateUnusual(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    assertPointer(pointer);
    assertBytes(bytes);
    const block = this.index.usedBlockOf(pointer, bytes);
    if (block === none) {
      this.#refuseFreeAt(pointer, bytes);
      return;
    }
    let { lane } = this;
    if (fence === undefined) this.ordering.freed(lane);
    else lane = this.ordering.freedWith(fence, stream, this.index.ownerOf(block));
    this.index.free(block, lane.number);
  }

  /** Zero bytes, 2 GiB and more, invalid sizes, and alignments other than 256. */
  #allocateUnusual(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment);
    if (bytes === 0) return 0;
    if (bytes > maximumBlockBytes) throw this.blockTooLarge(bytes);
    const aligned = Math.max(alignment, ALLOCATION_ALIGNMENT);
    const address = this.allocateIn(this.lane.number, bytes, aligned);
    return address === none ? this.allocateElsewhere(bytes, stream, aligned) : address;
  }

  #refuseFreeAt(pointer: DevicePointer, bytes: number): void {
    this.refuseFree(pointer, bytes, this.index.usedBlock(pointer));
  }

  protected blockTooLarge(bytes: number): Error {
    // The upstream was not called; an earlier refusal is unrelated.
    this.held.refusal = undefined;
    return this.outOfMemoryError(bytes, `one block can have at most ${formatBytes(maximumBlockBytes)}`);
  }
}
