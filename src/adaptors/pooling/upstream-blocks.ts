/**
 * The memory that a resource holds of its upstream: the blocks, their bytes, and the requests that
 * the upstream refused.
 *
 *     upstream ── allocate ──► blocks ── deallocate ──► upstream
 *                                │
 *                                ├── in use: lanes of the resource's index have them, whole or split
 *                                ├── late    to be used, or given back, when the device is idle
 *                                └── left    to be given back: the resource is disposed
 *
 * Calls of the upstream run foreign code, which may use or dispose the resource. So the counts here
 * are correct before and after each such call.
 */

import { attemptEach, type OutOfMemoryError, throwFirst } from '../../basics/errors.js';
import { type Device, devicesUsing } from '../../driver/device.js';
import { Event } from '../../driver/streams/event.js';
import type { Stream } from '../../driver/streams/stream.js';
import { StreamIdentity } from '../../driver/streams/stream-identity.js';
import { takingFromBelow } from '../../kept-memory/neighbours.js';
import type { DevicePointer, MemoryResource } from '../../memory-resource.js';
import { addRemembering, LiveAllocations, rememberedSoFar } from '../../ownership/bulk-frees.js';
import { noteFree, servedPointer, servedTwice } from '../../ownership/served-memory.js';
import { withoutCaching } from '../../scopes/resource-scope.js';
import { AddressTable } from '../../suballocation/address-table.js';
import type { Segment } from '../../suballocation/blocks.js';
import { SegmentMap } from '../../suballocation/segment-map.js';

/** A block of the upstream. */
interface UpstreamBlock extends Segment {
  /** Allocations remembered before this block came have at most this number. */
  readonly remembered: number;
}

/** Called for the blocks that a resource holds of its upstream. */
export interface GrowthObserver {
  /** Whether it wants no more calls. */
  readonly isDone: boolean;
  /** A block came from the upstream, or the upstream refused to take it back. */
  grew(pointer: DevicePointer, bytes: number, stream: Stream): void;
  /** A block is about to go back to the upstream. */
  releases(pointer: DevicePointer, bytes: number, stream: Stream): void;
  /** The resource is disposed and holds nothing. */
  ended(): void;
}

export class UpstreamBlocks {
  readonly #upstream: MemoryResource;
  /** Allocations remembered since this was made have higher numbers. */
  readonly remembered = rememberedSoFar();
  /** By address, and by every address in them. */
  readonly #blocks = new AddressTable<UpstreamBlock>();
  readonly #segments = new SegmentMap<UpstreamBlock>();
  #late: readonly Segment[] = [];
  #left: readonly Segment[] = [];
  /** Whether any stream may be using some of the blocks that are left. */
  #isLeftInUse = false;
  #observers: readonly GrowthObserver[] = [];
  #reservedBytes = 0;
  #peakReservedBytes = 0;
  /** Bytes that are being requested from the upstream, and bytes that are being returned to it. */
  #arrivingBytes = 0;
  #leavingBytes = 0;
  /**
   * The smallest size that the upstream recently refused. Grows with memory that is returned to it,
   * and is reset when other users must have freed memory.
   */
  #refusedBytes = Number.POSITIVE_INFINITY;
  #growths = 0;
  /** Is told of all bytes that come, and, as a negative number, go. */
  count: (bytes: number) => void = () => {};
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

  /** Bytes held of the upstream, plus those being requested from it. */
  get claimedBytes(): number {
    return this.#reservedBytes + this.#arrivingBytes;
  }

  /** Whether a call of the upstream for a block has not returned. */
  get isTaking(): boolean {
    return this.#arrivingBytes > 0;
  }

  /** How often a block was taken from the upstream. */
  get growths(): number {
    return this.#growths;
  }

  /**
   * Takes a block from the upstream. The caller keeps it, or passes it to `addLate`.
   * @throws FaultyResourceError if the upstream returns something other than memory that is not held
   * here yet.
   */
  allocate(bytes: number, stream: Stream): DevicePointer {
    this.#arrivingBytes += bytes;
    let address: number;
    try {
      // A cache below must not take it back when a scope ends.
      const pointer = takingFromBelow(() => withoutCaching(() => this.#upstream.allocate(bytes, stream)));
      address = this.servedOutside(pointer, bytes, stream);
    } finally {
      this.#arrivingBytes -= bytes;
    }
    // Other users must have returned memory.
    if (bytes >= this.#refusedBytes) this.#refusedBytes = Number.POSITIVE_INFINITY;
    this.#growths++;
    this.#reservedBytes += bytes;
    if (this.#reservedBytes > this.#peakReservedBytes) this.#peakReservedBytes = this.#reservedBytes;
    this.#add({ address, bytes, remembered: rememberedSoFar() });
    this.count(bytes);
    for (const observer of this.#observers) observer.grew(address, bytes, stream);
    return address;
  }

  /**
   * Returns a pointer that `allocate` of a resource, by default the upstream, returned, if its memory
   * is outside every block.
   * @throws FaultyResourceError otherwise.
   */
  servedOutside(pointer: DevicePointer, bytes: number, stream: Stream, by = this.#upstream): DevicePointer {
    const address = servedPointer(pointer, by, bytes, stream);
    const held = bytes === 0 ? undefined : this.#segments.overlapping(address, bytes);
    if (held !== undefined) throw servedTwice(address, by, bytes, held);
    return address;
  }

  /**
   * The same for memory that passes through, at a lower cost: detects an overlap only if it begins
   * where a block does.
   */
  servedElsewhere(pointer: DevicePointer, bytes: number, stream: Stream, by = this.#upstream): DevicePointer {
    const address = servedPointer(pointer, by, bytes, stream);
    const held = this.#blocks.size === 0 ? undefined : this.#blocks.get(address);
    if (held !== undefined) throw servedTwice(address, by, bytes, held);
    return address;
  }

  /**
   * Returns a block to the upstream, or a range of adjacent ones if the upstream grows in place. If
   * the upstream refuses, the caller still has the range.
   */
  deallocate({ address, bytes }: Segment, stream: Stream): void {
    if (this.#blocks.get(address)?.bytes !== bytes) this.#makeBlock({ address, bytes }, stream);
    for (const observer of this.#observers) observer.releases(address, bytes, stream);
    const block = this.#blocks.get(address);
    if (block !== undefined) this.#remove(block);
    this.#reservedBytes -= bytes;
    this.#leavingBytes += bytes;
    try {
      noteFree(this.#upstream.deallocate(address, bytes, stream), this.#upstream);
      this.count(-bytes);
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

  /** Records that the upstream did not have this many bytes. */
  refuse(bytes: number, refusal: OutOfMemoryError): void {
    this.refusal = refusal;
    this.#refusedBytes = Math.min(this.#refusedBytes, bytes);
  }

  /** Whether the upstream recently refused this many bytes, or fewer. It may have them again. */
  isRefused(bytes: number): boolean {
    return bytes >= this.#refusedBytes;
  }

  /**
   * Lets the next request try twice as much, because the upstream has served one.
   */
  doubleRefused(): void {
    this.#refusedBytes *= 2;
  }

  /** Whether a block begins at an address. */
  hasBlockAt(pointer: DevicePointer): boolean {
    return this.#blocks.has(pointer);
  }

  /**
   * Whether an address is in a block that was taken before the allocation remembered with a number.
   */
  hadBefore(pointer: DevicePointer, number: number): boolean {
    const block = this.#segments.find(pointer);
    return block !== undefined && block.remembered < number;
  }

  /**
   * Calls an observer for every block that is held, and for each that comes or goes from now on.
   */
  observe(observer: GrowthObserver, stream: Stream): void {
    this.#observers = [...this.#observers.filter(({ isDone }) => !isDone), observer];
    for (const { address, bytes } of this.#blocks.values()) observer.grew(address, bytes, stream);
  }

  /** The blocks that are in no lane: the late ones, and those that are left. */
  get outsideLanes(): readonly Segment[] {
    return [...this.#late, ...this.#left];
  }

  get late(): readonly Segment[] {
    return this.#late;
  }

  addLate(block: Segment): void {
    this.#late = [...this.#late, block];
  }

  /** Returns the late blocks, and forgets them here. */
  takeLate(): readonly Segment[] {
    const late = this.#late;
    this.#late = [];
    return late;
  }

  /**
   * Adds blocks that must be returned, because the resource is disposed. `isInUse`: any stream may
   * be using them.
   */
  leave(blocks: readonly Segment[], isInUse = false): void {
    this.#left = [...this.#left, ...blocks];
    if (isInUse) this.#isLeftInUse = true;
  }

  /**
   * Returns the blocks that are left.
   * @throws the upstream's first error, after everything was tried; blocks that it refused are
   * still left.
   */
  giveBackLeft(stream: Stream): void {
    const blocks = this.#left;
    // Removed first: the upstream may run host functions, which may dispose the resource again.
    this.#left = [];
    const errors = attemptEach(blocks, (block) => {
      try {
        // The upstream may free in the order of this stream.
        if (this.#isLeftInUse) {
          for (const device of devicesUsing(this.#upstream.memoryKind, this.#upstream.device)) followEveryStream(stream, device);
        }
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

  /**
   * Frees the blocks through `deallocate` when one of the resources below takes its memory back.
   */
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

  /** Turns a range that covers other blocks, or parts of them, into one block. */
  #makeBlock(range: Segment, stream: Stream): void {
    const end = range.address + range.bytes;
    let remembered = 0;
    for (const block of [...this.#blocks.values()]) {
      const { address, bytes } = block;
      const blockEnd = address + bytes;
      if (address >= end || blockEnd <= range.address) continue;
      remembered = Math.max(remembered, block.remembered);
      for (const observer of this.#observers) observer.releases(address, bytes, stream);
      this.#remove(block);
      if (address < range.address) this.#addPiece({ ...block, bytes: range.address - address }, stream);
      if (blockEnd > end) this.#addPiece({ ...block, address: end, bytes: blockEnd - end }, stream);
    }
    this.#addPiece({ ...range, remembered }, stream);
  }

  #addPiece(block: UpstreamBlock, stream: Stream): void {
    this.#add(block);
    for (const observer of this.#observers) observer.grew(block.address, block.bytes, stream);
  }

  #add(block: UpstreamBlock): void {
    this.#blocks.set(block.address, block);
    this.#segments.add(block);
  }

  #remove(block: UpstreamBlock): void {
    this.#blocks.delete(block.address);
    this.#segments.remove(block);
  }
}

/**
 * Makes a stream wait for all other streams of a device. If one has ended, or may no longer exist
 * because its end is not announced, no event can be recorded on it, and the host waits for the
 * device instead.
 */
function followEveryStream(stream: Stream, device: Device): void {
  const others = StreamIdentity.ofDevice(device.index).filter((identity) => identity !== stream.identity);
  if (StreamIdentity.mayHaveEndedBusy(device.index) || others.some(({ announcesEnd }) => !announcesEnd)) {
    device.synchronizeSync();
    return;
  }
  for (const identity of others) {
    const event = new Event({ device });
    try {
      event.recordOn(identity, 1);
      stream.identity.wait(event);
    } finally {
      event.dispose();
    }
  }
}
