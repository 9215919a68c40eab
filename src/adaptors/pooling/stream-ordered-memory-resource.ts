import { ALLOCATION_ALIGNMENT, formatBytes } from '../../basics/units.js';
import { assertAlignment, assertBytes, assertPointer } from '../../basics/validation.js';
import type { Device, MemoryKind } from '../../driver/device.js';
import { isAnythingAsleep } from '../../driver/memory/guarded-addresses.js';
import { noStream, Stream } from '../../driver/streams/stream.js';
import { isAnythingCaptured } from '../../driver/streams/stream-identity.js';
import { type Inspection, inspected } from '../../driver/workers/local-object.js';
import {
  assertMemoryResource,
  type DeallocationEvents,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type TrimOptions,
} from '../../memory-resource.js';
import { stackName } from '../../resource-kind.js';
import { noLane } from '../../stream-ordering/stream-lane.js';
import type { StreamOrdering } from '../../stream-ordering/stream-ordering.js';
import { none } from '../../suballocation/blocks.js';
import { FreeSpaceIndex, maximumUnits, unitBits, unitBytes } from '../../suballocation/free-space-index.js';
import { Keeper, type KeepingOptions, type KeepingResource } from './keeper.js';
import type { CutMemory, Tries } from './order-of-tries.js';
import type { GrowthObserver } from './upstream-blocks.js';

/** The index, in the calls that resources over another one override. */
type CutFromLarger<Index> = Index & FreeSpaceIndex;

/** The largest block that a free-space index can hold, in bytes. */
export const maximumBlockBytes = maximumUnits * unitBytes;

/**
 * The base of the resources that keep freed memory: their public members, and the calls that must
 * be fast. This class serves hits; `order-of-tries.ts` describes where else memory comes from.
 *
 * A resource over a free-space index cuts allocations from larger blocks: every allocation is rounded
 * up to a multiple of 256 bytes, its alignment can be any power of two, and allocating and freeing
 * take constant time, however many blocks are live or free. A resource over another index overrides
 * `allocate` and `deallocate`.
 *
 * A class of your own composes its `tries` of its protected members `keeper`, a {@link Keeper}, and `index`: see {@link Tries}, and the guide
 * on writing a resource.
 *
 * Disposing it returns everything to the upstream, ordered on the legacy default stream after every
 * free. The upstream must outlive the resource, and is not disposed with it.
 */
export abstract class StreamOrderedMemoryResource<Index extends CutMemory = FreeSpaceIndex> implements KeepingResource {
  readonly upstream: MemoryResource;
  readonly device: Device;
  readonly memoryKind: MemoryKind;
  /** The policy of a free without a fence. */
  readonly deallocationEvents: DeallocationEvents;
  /** The stream of the last call, and its lane. */
  protected lastStream: Stream = noStream;
  protected lane = noLane;
  protected readonly index: Index;
  protected readonly keeper: Keeper;
  protected readonly ordering: StreamOrdering;
  /** The keeper again, in a field that a Proxy does not have, so that none can stand for the resource. */
  readonly #keeper: Keeper;
  /** Where memory comes from if the stream's own lane has none. */
  protected abstract readonly tries: Tries;

  /**
   * @param index the index that allocations are taken from; by default, one that cuts blocks from
   * larger ones
   * @param options the options of every resource that keeps memory
   */
  protected constructor(upstream: MemoryResource, deallocationEvents: DeallocationEvents, index?: Index, options?: KeepingOptions) {
    assertMemoryResource(upstream, 'upstream');
    this.upstream = upstream;
    this.device = upstream.device;
    this.memoryKind = upstream.memoryKind;
    this.deallocationEvents = deallocationEvents;
    this.index = index ?? (new FreeSpaceIndex() as CutFromLarger<Index>);
    this.keeper = new Keeper(this, this.index, deallocationEvents, options);
    this.#keeper = this.keeper;
    this.ordering = this.keeper.ordering;
  }

  /** The stack as a specification writes it, without options: `pool(cuda)`. */
  toString(): string {
    return stackName(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return this.keeper.inspect(inspection);
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'allocate');
    // Most sizes fit into 32-bit arithmetic; the others take the slow path.
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small !== bytes || small <= 0 || small > 0x7fffff00 || (alignment !== undefined && alignment !== ALLOCATION_ALIGNMENT))
      return this.#allocateUnusual(bytes, stream, alignment);
    const units = (small + (unitBytes - 1)) >> unitBits;
    const { number, owner } = this.lane;
    const address = (this.index as CutFromLarger<Index>).allocate(units, (units << unitBits) - small, number, owner);
    return address === none ? this.miss(bytes, stream, ALLOCATION_ALIGNMENT) : address;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (stream !== this.lastStream || stream.handle < 0) this.enter(stream, 'deallocate');
    const small = typeof bytes === 'number' ? bytes | 0 : none;
    if (small !== bytes || typeof pointer !== 'number' || fence !== undefined) {
      this.#deallocateUnusual(pointer, bytes, stream, fence);
      return;
    }
    const { lane } = this;
    // V8: explicit comparison.
    const isRecorded = lane.recordsFrees === true;
    // Records the event first, so that the memory stays allocated if the event is refused. If the
    // free is refused, the event does no harm, because it covers the same memory as the one before.
    // Then one call of the index frees, and nothing after it can fail.
    if (isRecorded) lane.record();
    if (!(this.index as CutFromLarger<Index>).freeAt(pointer, small, lane.number)) this.keeper.refuseFree(pointer, bytes);
    else if (isRecorded) lane.freeCovered();
    else lane.freeUnrecorded();
  }

  get reservedBytes(): number {
    return this.keeper.held.reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.keeper.held.peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    this.keeper.held.resetPeakReservedBytes();
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /**
   * Returns blocks that are entirely free to the upstream, ordered on `stream`, which first waits
   * for everything freed on other streams; afterwards, all free memory belongs to `stream`. The
   * host waits only if the upstream makes it wait, or if memory is held for a stream that may no
   * longer exist because its end is not announced.
   * @returns the bytes returned to the upstream
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    return this.keeper.trim(stream, options);
  }

  /**
   * Free bytes that a stream cannot use until the other streams that freed them are known to be
   * idle. Linear in the number of blocks.
   */
  heldBackFrom(stream: Stream): number {
    return this.keeper.heldBackFrom(stream);
  }

  /**
   * For tests: throws if the data structures are inconsistent. Linear in the number of blocks.
   */
  validate(): void {
    this.keeper.validate();
  }

  /**
   * Returns everything to the upstream, even memory that is still allocated; buffers in it are
   * disposed first. Memory that is still allocated is returned after everything that is now queued
   * on the streams of the device that this environment knows. A second call does nothing, except
   * retry what the upstream refused.
   * @throws the error of a buffer's free, if the buffer still has its memory: then the other
   * buffers are disposed, but this resource is not, and you can repeat the call. Otherwise the
   * upstream's first error, after everything was tried.
   */
  [Symbol.dispose](): void {
    this.keeper.dispose();
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal */
  get isTaking(): boolean {
    return this.keeper.held.isTaking;
  }

  /** @internal Whether one of its blocks of the upstream begins at an address. */
  hasUpstreamBlockAt(pointer: DevicePointer): boolean {
    return this.keeper.held.hasBlockAt(pointer);
  }

  /** @internal */
  observeGrowth(observer: GrowthObserver): void {
    this.keeper.held.observe(observer, Stream.legacyDefault(this.device));
  }

  /**
   * @internal Makes the checks that can fail only if the stream differs from the last call's. Sets
   * `lane`.
   */
  enter(stream: Stream, operation: string): void {
    if (this.#keeper.isSpecial || isAnythingAsleep || isAnythingCaptured) {
      this.#enterSpecially(stream, operation);
      return;
    }
    this.lane = this.ordering.laneOf(stream, operation);
    this.lastStream = stream;
  }

  /** Apart, so that `enter` is short (V8: inlining). */
  #enterSpecially(stream: Stream, operation: string): void {
    this.lane = this.keeper.laneOf(stream, operation);
    this.lastStream = this.keeper.isAsleep ? noStream : stream;
  }

  /** @internal */
  ended(): void {
    this.forgetLastStream();
  }

  /** @internal */
  forgetLastStream(): void {
    this.lastStream = noStream;
    this.lane = noLane;
  }

  protected get isDisposed(): boolean {
    return this.keeper.isDisposed;
  }

  protected assertLive(operation: string): void {
    this.keeper.assertLive(operation);
  }

  /** The stream's own lane has no block for the request. */
  protected miss(bytes: number, stream: Stream, alignment: number): DevicePointer {
    return this.tries.find(bytes, stream, alignment);
  }

  /** Frees with a fence, of 2 GiB and more, and of invalid pointers or sizes. */
  #deallocateUnusual(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    assertPointer(pointer);
    assertBytes(bytes);
    const block = (this.index as CutFromLarger<Index>).usedBlockOf(pointer, bytes);
    if (block === none) {
      this.keeper.refuseFree(pointer, bytes);
      return;
    }
    let { lane } = this;
    if (fence === undefined) this.ordering.freed(lane);
    else lane = this.ordering.freedWith(fence, stream, (this.index as CutFromLarger<Index>).ownerOf(block));
    this.index.free(block, lane.number);
  }

  /** Zero bytes, 2 GiB and more, invalid sizes, and alignments other than 256. */
  #allocateUnusual(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment);
    if (bytes === 0) return 0;
    if (bytes > maximumBlockBytes) throw blockTooLarge(this.keeper, bytes);
    const aligned = Math.max(alignment, ALLOCATION_ALIGNMENT);
    const { number, owner } = this.lane;
    const address = this.index.cut(bytes, aligned, number, owner);
    return address === none ? this.miss(bytes, stream, aligned) : address;
  }
}

export function blockTooLarge(keeper: Keeper, bytes: number): Error {
  return keeper.blockTooLarge(bytes, `one block can have at most ${formatBytes(maximumBlockBytes)}`);
}
