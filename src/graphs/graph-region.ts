/**
 * The memory that the graphs of one resource share: extents of the upstream, each as large as any graph
 * needs it.
 *
 * Over an upstream that grows in place there is one extent, whose end moves. Over any other, a request that does not
 * fit into an extent needs another one. If an adaptor is between the memory and the region, an extent is returned only
 * in the pieces in which it was taken, because the adaptor may remember these. The upstream is called on a separate
 * stream, which is never captured, so the call is not part of a graph.
 */

import { type GrowthInPlace, growthInPlace } from '../adaptors/layers.js';
import { OutOfMemoryError } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../basics/units.js';
import { recordedEvent } from '../driver/streams/event.js';
import { Stream } from '../driver/streams/stream.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { tentatively } from '../observing/failed-allocations.js';
import { noteFree, servedPointer } from '../ownership/served-memory.js';
import { outsideGraph } from '../recording/annotate.js';
import { isWithin, leastBlockBytes, type Segment } from '../suballocation/blocks.js';
import type { LaunchOrder } from './launch-order.js';

export class GraphRegion {
  /** By address. */
  #extents: Segment[] = [];
  /** What the extents are made of, as it came; not if they go back in any pieces. */
  #arrivals: Segment[] = [];
  /** Memory that the upstream has refused to take back. */
  #refused: Segment[] = [];
  readonly #upstream: MemoryResource;
  readonly #growth: GrowthInPlace | undefined;
  readonly #order: LaunchOrder;
  /** Where the upstream is called. Made at the first call. */
  #stream: Stream | undefined;
  /** How many calls of the upstream have not returned: during one, a host function or the upstream may call this resource. */
  #calls = 0;
  /** Whether memory has come that no launch has waited for. */
  #isFresh = false;
  readonly #maximumBytes: number;
  reservedBytes = 0;
  peakReservedBytes = 0;

  constructor(upstream: MemoryResource, order: LaunchOrder, maximumBytes: number) {
    this.#upstream = upstream;
    this.#maximumBytes = maximumBytes;
    this.#growth = growthInPlace(upstream);
    this.#order = order;
  }

  get extents(): readonly Segment[] {
    return this.#extents;
  }

  /** The least bytes that come at once. */
  get granularityBytes(): number {
    return this.#growth?.pageBytes ?? ALLOCATION_ALIGNMENT;
  }

  /** Whether extents grow in place. */
  get growsInPlace(): boolean {
    return this.#growth !== undefined;
  }

  /**
   * The address of so many adjacent bytes, after growth if necessary: in the smallest extent that has them, so that a graph
   * which is captured again keeps its addresses.
   */
  reserve(bytes: number, alignment: number): DevicePointer {
    const known = this.#smallestWith(bytes, alignment);
    if (known !== undefined) return known;
    const last = this.#extents.at(-1);
    if (this.growsInPlace && last !== undefined) {
      this.grow(alignUp(last.address, alignment) + bytes - (last.address + last.bytes));
      const grown = this.#smallestWith(bytes, alignment);
      if (grown !== undefined) return grown;
    }
    this.#add(this.#takeMore(leastBlockBytes(bytes, alignment)));
    return this.#smallestWith(bytes, alignment) as DevicePointer;
  }

  /**
   * Takes more of the upstream: at least so many bytes, and as many as there are already if extents do not
   * grow in place, so that there are few. Returns what came.
   */
  grow(bytes: number): Segment {
    const segment = this.#takeMore(bytes);
    this.#add(segment);
    return segment;
  }

  /** Gives extents back, apart from the first bytes of each that are still needed, and what could not go back before. */
  shrink(needed: ReadonlyMap<DevicePointer, number>): void {
    const kept: Segment[] = [];
    const given = this.#refused;
    this.#refused = [];
    for (const extent of this.#extents) {
      const bytes = needed.get(extent.address) ?? 0;
      const rest = bytes === 0 ? 0 : this.#endOf(extent, bytes);
      if (rest > 0) kept.push({ address: extent.address, bytes: rest });
      if (rest < extent.bytes) given.push(...this.#takePieces({ address: extent.address + rest, bytes: extent.bytes - rest }));
    }
    this.#extents = kept;
    for (const segment of given) this.giveBack(segment);
  }

  /** Takes memory that is not part of the extents. */
  take(bytes: number): Segment {
    if (bytes > this.#maximumBytes - this.reservedBytes) throw this.#outOfMemory(bytes);
    const stream = this.#ownStream();
    const allocate = () => this.#upstream.allocate(bytes, stream);
    const address = this.#calling(() => servedPointer(outsideGraph(allocate), this.#upstream, bytes, stream));
    this.#isFresh = true;
    this.reservedBytes += bytes;
    this.peakReservedBytes = Math.max(this.peakReservedBytes, this.reservedBytes);
    return { address, bytes };
  }

  /**
   * Returns memory, after every launch so far. If the upstream refuses, `shrink` and the end try again.
   */
  giveBack(segment: Segment): void {
    try {
      this.#return(segment);
    } catch {
      this.#refused.push(segment);
    }
  }

  /** What is queued on a stream now may use memory that goes back later, and comes before the next launch. */
  follow(stream: Stream): void {
    this.#orderAfter(stream, this.#ownStream());
    this.#isFresh = true;
  }

  /**
   * Orders a launch after the upstream's own work on the memory, and after streams that were followed.
   */
  orderLaunch(stream: Stream): void {
    if (this.#isFresh) this.#orderAfter(this.#ownStream(), stream);
  }

  /** A launch was queued after `orderLaunch`; every later one comes after it. */
  launched(): void {
    this.#isFresh = false;
  }

  /** Tries again to give back what was refused, and ends. Throws why it is refused once more. */
  [Symbol.dispose](): void {
    this.shrink(new Map());
    if (this.#refused.length > 0) this.#retry();
    // A call of the upstream in which this was disposed still uses the stream; the collector disposes it then.
    if (this.#refused.length > 0 || this.#calls > 0) return;
    this.#stream?.dispose();
    this.#stream = undefined;
  }

  /** The least bytes of an extent that can be kept if its first ones are needed. */
  #endOf({ address, bytes }: Segment, needed: number): number {
    if (this.#takesPieces) return Math.min(alignUp(needed, this.granularityBytes), bytes);
    const last = this.#arrivals.find((each) => isWithin([each], address + needed - 1)) as Segment;
    return last.address + last.bytes - address;
  }

  /** The pieces in which a part of an extent goes back. */
  #takePieces(range: Segment): Segment[] {
    if (this.#takesPieces) return [range];
    const pieces = this.#arrivals.filter(({ address }) => isWithin([range], address));
    this.#arrivals = this.#arrivals.filter((each) => !pieces.includes(each));
    return pieces;
  }

  get #takesPieces(): boolean {
    return this.#growth?.takesPieces === true;
  }

  #smallestWith(bytes: number, alignment: number): DevicePointer | undefined {
    let smallest: Segment | undefined;
    for (const extent of this.#extents) {
      const rest = extent.address + extent.bytes - alignUp(extent.address, alignment);
      if (rest >= bytes && extent.bytes < (smallest?.bytes ?? Number.POSITIVE_INFINITY)) smallest = extent;
    }
    return smallest === undefined ? undefined : alignUp(smallest.address, alignment);
  }

  #takeMore(bytes: number): Segment {
    const least = alignUp(bytes, this.granularityBytes);
    const held = this.#extents.reduce((sum, extent) => sum + extent.bytes, 0);
    const wanted = this.growsInPlace ? least : Math.max(least, held);
    if (wanted === least) return this.take(least);
    try {
      return tentatively(() => this.take(wanted));
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      return this.take(least);
    }
  }

  #outOfMemory(bytes: number): OutOfMemoryError {
    const [asked, reserved, maximum] = [bytes, this.reservedBytes, this.#maximumBytes].map((each) => formatBytes(each));
    return new OutOfMemoryError(
      `${asked} (${bytes} bytes) more are needed for graphs; ${reserved} are reserved, and the maximum is ${maximum}`,
      { requestedBytes: bytes, limitBytes: this.#maximumBytes, path: [] },
    );
  }

  #orderAfter(earlier: Stream, later: Stream): void {
    if (earlier.identity === later.identity || earlier.query()) return;
    using event = recordedEvent(earlier);
    later.wait(event);
  }

  /** Returns memory that was refused before. Throws the first refusal. */
  #retry(): void {
    for (let segment = this.#refused.pop(); segment !== undefined; segment = this.#refused.pop()) {
      try {
        this.#return(segment);
      } catch (error) {
        this.#refused.push(segment);
        throw error;
      }
    }
  }

  /** Returns memory, after every launch so far. */
  #return({ address, bytes }: Segment): void {
    this.reservedBytes -= bytes;
    try {
      const stream = this.#ownStream();
      this.#order.order(stream);
      this.#calling(() => noteFree(this.#upstream.deallocate(address, bytes, stream), this.#upstream));
    } catch (error) {
      this.reservedBytes += bytes;
      throw error;
    }
  }

  /** Adds an extent, or makes one longer that it touches. */
  #add(segment: Segment): void {
    const before = this.#extents.find((extent) => this.growsInPlace && extent.address + extent.bytes === segment.address);
    const others = this.#extents.filter((extent) => extent !== before);
    const grown = before === undefined ? segment : { address: before.address, bytes: before.bytes + segment.bytes };
    this.#extents = [...others, grown].sort((a, b) => a.address - b.address);
    if (!this.#takesPieces) this.#arrivals.push(segment);
  }

  #calling<T>(call: () => T): T {
    this.#calls++;
    try {
      return call();
    } finally {
      this.#calls--;
    }
  }

  #ownStream(): Stream {
    this.#stream ??= new Stream({ device: this.#upstream.device, nonBlocking: true });
    return this.#stream;
  }
}
