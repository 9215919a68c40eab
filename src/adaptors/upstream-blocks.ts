/**
 * What a resource holds of its upstream: the blocks, their bytes, and what the upstream refused.
 *
 *     upstream ── allocate ──► blocks ── deallocate ──► upstream
 *                                │
 *                                ├── in use: lanes of the resource's index have them, whole or cut up
 *                                ├── late    to be used, or given back, once the device is idle
 *                                └── left    to be given back: the resource is disposed
 *
 * Calls of the upstream run foreign code, which may use the resource or dispose it: what is counted here is right before such a call and after it.
 */
import { addRemembering, LiveAllocations, rememberedSoFar } from '../bulk-frees.js';
import { attemptEach, throwFirst } from '../collect-errors.js';
import { Event } from '../driver/event.js';
import type { Stream } from '../driver/stream.js';
import { StreamTimeline } from '../driver/stream-timeline.js';
import type { OutOfMemoryError } from '../errors.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { withoutCaching } from '../resource-scope.js';
import { type Segment, segmentAround } from '../suballocation/blocks.js';

/** A block of the upstream. */
interface UpstreamBlock extends Segment {
  /** What was remembered before it came has this number at the most. */
  readonly remembered: number;
}

/** Hears of the blocks that a resource holds of its upstream. */
export interface GrowthObserver {
  /** Whether it need not hear of any more. */
  readonly isDone: boolean;
  /** A block came from the upstream, or the upstream did not take it back. */
  grew(pointer: DevicePointer, bytes: number, stream: Stream): void;
  /** A block is about to go back to the upstream. */
  releases(pointer: DevicePointer, bytes: number, stream: Stream): void;
  /** The resource is disposed and holds nothing. */
  ended(): void;
}

export class UpstreamBlocks {
  readonly #upstream: MemoryResource;
  /** What was remembered since this was made has higher numbers. */
  readonly remembered = rememberedSoFar();
  /** By address; and in the order of the addresses, once that was asked for. */
  readonly #blocks = new Map<DevicePointer, UpstreamBlock>();
  #sorted: readonly UpstreamBlock[] | undefined;
  #late: readonly Segment[] = [];
  #left: readonly Segment[] = [];
  /** Whether some of what is left may be in use, by any stream. */
  #isLeftInUse = false;
  #observers: readonly GrowthObserver[] = [];
  #reservedBytes = 0;
  #peakReservedBytes = 0;
  /** Bytes that the upstream is being asked for, and those that are being given back to it. */
  #arrivingBytes = 0;
  #leavingBytes = 0;
  /** The least that the upstream lately refused. Grows with what goes back there, and once others must have freed memory. */
  #refusedBytes = Number.POSITIVE_INFINITY;
  #growths = 0;
  /** Why the upstream last refused a block, if it did so during the current request. */
  refusal: OutOfMemoryError | undefined;

  constructor(upstream: MemoryResource) {
    this.#upstream = upstream;
  }

  get reservedBytes(): number {
    return this.#reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.#peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    this.#peakReservedBytes = this.#reservedBytes;
  }

  /** Bytes held of the upstream and on their way from it. */
  get claimedBytes(): number {
    return this.#reservedBytes + this.#arrivingBytes;
  }

  get count(): number {
    return this.#blocks.size;
  }

  /** How often a block was taken from the upstream. */
  get growths(): number {
    return this.#growths;
  }

  /** Takes a block from the upstream. Whoever has it keeps it, or says where it stays (`addLate`). */
  allocate(bytes: number, stream: Stream): DevicePointer {
    this.#arrivingBytes += bytes;
    let address: number;
    try {
      // A cache below must not take it back when a scope ends.
      address = withoutCaching(() => this.#upstream.allocate(bytes, stream));
    } finally {
      this.#arrivingBytes -= bytes;
    }
    // Others must have given memory back.
    if (bytes >= this.#refusedBytes) this.#refusedBytes = Number.POSITIVE_INFINITY;
    this.#growths++;
    this.#reservedBytes += bytes;
    if (this.#reservedBytes > this.#peakReservedBytes) this.#peakReservedBytes = this.#reservedBytes;
    this.#add({ address, bytes, remembered: rememberedSoFar() });
    for (const observer of this.#observers) observer.grew(address, bytes, stream);
    return address;
  }

  /** Gives a block back to the upstream. If that is refused, nothing has changed, and the caller still has the block. */
  deallocate({ address, bytes }: Segment, stream: Stream): void {
    for (const observer of this.#observers) observer.releases(address, bytes, stream);
    const block = this.#blocks.get(address);
    this.#blocks.delete(address);
    this.#sorted = undefined;
    this.#reservedBytes -= bytes;
    this.#leavingBytes += bytes;
    try {
      this.#upstream.deallocate(address, bytes, stream);
    } catch (error) {
      this.#reservedBytes += bytes;
      if (block !== undefined) this.#add(block);
      for (const observer of this.#observers) observer.grew(address, bytes, stream);
      throw error;
    } finally {
      this.#leavingBytes -= bytes;
    }
    this.#refusedBytes += bytes;
  }

  /** The upstream had not so many bytes. */
  refuse(bytes: number, refusal: OutOfMemoryError): void {
    this.refusal = refusal;
    this.#refusedBytes = Math.min(this.#refusedBytes, bytes);
  }

  /** Whether the upstream lately refused so many bytes, or fewer. It may have them again by now. */
  isRefused(bytes: number): boolean {
    return bytes >= this.#refusedBytes;
  }

  /** Less was to be had than the upstream had lately refused: the next request may try twice as much again. */
  doubleRefused(): void {
    this.#refusedBytes *= 2;
  }

  /** Whether a block begins at an address. */
  hasBlockAt(pointer: DevicePointer): boolean {
    return this.#blocks.has(pointer);
  }

  /** Whether an address lies in a block that came before something was remembered with a number. */
  hadBefore(pointer: DevicePointer, number: number): boolean {
    this.#sorted ??= [...this.#blocks.values()].sort((a, b) => a.address - b.address);
    const block = segmentAround(this.#sorted, pointer);
    return block !== undefined && block.remembered < number;
  }

  /** Lets an observer hear of every block that is held, and of each that comes or goes from now on. */
  observe(observer: GrowthObserver, stream: Stream): void {
    this.#observers = [...this.#observers.filter(({ isDone }) => !isDone), observer];
    for (const { address, bytes } of this.#blocks.values()) observer.grew(address, bytes, stream);
  }

  /** Blocks that no lane has: the late ones, and those that are left. */
  get outsideLanes(): readonly Segment[] {
    return [...this.#late, ...this.#left];
  }

  get late(): readonly Segment[] {
    return this.#late;
  }

  addLate(block: Segment): void {
    this.#late = [...this.#late, block];
  }

  /** The late blocks, which are so no more. */
  takeLate(): readonly Segment[] {
    const late = this.#late;
    this.#late = [];
    return late;
  }

  /** Blocks are to be given back, because the resource is disposed. `isInUse`: any stream may be using them. */
  leave(blocks: readonly Segment[], isInUse = false): void {
    this.#left = [...this.#left, ...blocks];
    if (isInUse) this.#isLeftInUse = true;
  }

  /**
   * Gives the blocks back that are left.
   * @throws what the upstream threw first, once everything was tried; what it refused is left.
   */
  giveBackLeft(stream: Stream): void {
    const blocks = this.#left;
    // Taken out first: the upstream may run host functions, and these may dispose the resource again.
    this.#left = [];
    const errors = attemptEach(blocks, (block) => {
      try {
        // The upstream may free in the order of this stream.
        if (this.#isLeftInUse) followEveryStream(stream);
        this.#isLeftInUse = false;
        this.deallocate(block, stream);
      } catch (error) {
        this.leave([block]);
        throw error;
      }
    });
    throwFirst(errors);
    if (this.#reservedBytes + this.#leavingBytes > 0) return;
    for (const observer of this.#observers) observer.ended();
    this.#observers = [];
  }

  /** Frees the blocks through `deallocate` when one of the resources below takes its memory back. */
  rememberFor(below: readonly MemoryResource[], stream: Stream, deallocate: (pointer: DevicePointer, bytes: number) => void): void {
    const live = new LiveAllocations<Stream>();
    const remembering = {
      live,
      below: new Set(below),
      deallocate,
      isDone: false,
      grew: (pointer: DevicePointer, bytes: number) => live.add(pointer, bytes, stream),
      releases: (pointer: DevicePointer) => live.remove(pointer),
      ended: () => {},
    };
    addRemembering(remembering);
    this.observe(remembering, stream);
  }

  #add(block: UpstreamBlock): void {
    this.#blocks.set(block.address, block);
    this.#sorted = undefined;
  }
}

/**
 * Makes a stream wait for every other one of its device. Of a stream that has ended no event can be had, and one whose end is not announced may be
 * gone: then the host waits for the device.
 */
function followEveryStream(stream: Stream): void {
  const others = StreamTimeline.ofDevice(stream.device.index).filter((timeline) => timeline !== stream.timeline);
  if (StreamTimeline.mayHaveEndedBusy(stream.device.index) || others.some(({ announcesEnd }) => !announcesEnd)) {
    stream.device.synchronizeSync();
    return;
  }
  for (const timeline of others) {
    const event = new Event({ device: stream.device });
    try {
      event.recordOn(timeline);
      stream.timeline.wait(event);
    } finally {
      event.dispose();
    }
  }
}
