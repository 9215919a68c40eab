/**
 * Frees of many allocations by one call: a rewind, the end of a run, the end of a resource. Whoever does that announces it first, and those who
 * remember the allocations free them through everything that they were allocated through. So each adaptor in between sees an ordinary free, and
 * nobody is left to free the memory once more when it is somebody else's.
 *
 *     rewind ──► takeBack ──► buffers                     the latest first
 *                        └──► adaptors above the pooling resource   the outermost first, each its latest allocations first
 *
 * Buffers are always remembered. Bare pointers are remembered by every adaptor that is built on a resource which takes memory back while it is
 * in use; one that is not built on such a resource remembers nothing, and pays nothing.
 *
 * Data structure: a record for each allocation, found by its address, in a list from the latest to the first. Records have numbers that grow
 * over all lists, so that a search ends at the first one from before the mark or the run.
 *
 * Invariants: the numbers of a list fall from its head on; an address is in a list at most once; a record is in the list or spare.
 * Cost: adding and removing take constant time; `takeBack` looks at what was allocated since, is live, and is remembered.
 */
import type { Device } from './driver/device.js';
import { Stream } from './driver/stream.js';
import { LifetimeError } from './errors.js';
import type { DevicePointer, MemoryResource } from './memory-resource.js';
import { AddressMap } from './suballocation/address-map.js';
import { none } from './suballocation/blocks.js';

/** The number of the latest allocation that was remembered. */
let latestNumber = 0;

/** What was remembered before now has this number at the most. */
export function rememberedSoFar(): number {
  return latestNumber;
}

/** Live allocations, each with what it takes to free it, as records in a list. One address may have several. */
class AllocationList<Holder> {
  #pointers = new Float64Array(initialRecords);
  #bytes = new Float64Array(initialRecords);
  #numbers = new Float64Array(initialRecords);
  readonly #holders: (Holder | undefined)[] = [];
  /** By record: the one added after it, and the one before; the latter of a spare record is the next spare one. */
  #later = new Int32Array(initialRecords);
  #earlier = new Int32Array(initialRecords);
  #latest: number = none;
  #spare: number = none;
  #used = 0;

  /** Adds an allocation, and returns its record. */
  add(pointer: DevicePointer, bytes: number, holder: Holder): number {
    const record = this.#takeRecord();
    this.#pointers[record] = pointer;
    this.#bytes[record] = bytes;
    this.#holders[record] = holder;
    this.#numbers[record] = ++latestNumber;
    this.#later[record] = none;
    this.#earlier[record] = this.#latest;
    if (this.#latest !== none) this.#later[this.#latest] = record;
    this.#latest = record;
    return record;
  }

  holderOf(record: number): Holder | undefined {
    return this.#holders[record];
  }

  pointerOf(record: number): DevicePointer {
    return this.#pointers[record] as number;
  }

  bytesOf(record: number): number {
    return this.#bytes[record] as number;
  }

  /** The number of a record: the later it was added, the greater. */
  numberOf(record: number): number {
    return this.#numbers[record] as number;
  }

  remove(record: number): void {
    this.#unlink(record);
    this.#holders[record] = undefined;
    this.#earlier[record] = this.#spare;
    this.#spare = record;
  }

  /** The records among memory that is taken back, the latest first. */
  among(taken: TakenMemory): number[] {
    const records: number[] = [];
    for (let record = this.#latest; record !== none; record = this.#earlier[record] as number) {
      const number = this.numberOf(record);
      if (number <= taken.since) break;
      if (taken.has(this.pointerOf(record), number)) records.push(record);
    }
    return records;
  }

  #unlink(record: number): void {
    const later = this.#later[record] as number;
    const earlier = this.#earlier[record] as number;
    if (later === none) this.#latest = earlier;
    else this.#earlier[later] = earlier;
    if (earlier !== none) this.#later[earlier] = later;
  }

  #takeRecord(): number {
    const record = this.#spare;
    if (record !== none) {
      this.#spare = this.#earlier[record] as number;
      return record;
    }
    if (this.#used === this.#pointers.length) this.#grow();
    return this.#used++;
  }

  #grow(): void {
    const length = 2 * this.#used;
    const copy = <T extends Float64Array | Int32Array>(from: T, to: T): T => {
      to.set(from);
      return to;
    };
    this.#pointers = copy(this.#pointers, new Float64Array(length));
    this.#bytes = copy(this.#bytes, new Float64Array(length));
    this.#numbers = copy(this.#numbers, new Float64Array(length));
    this.#later = copy(this.#later, new Int32Array(length));
    this.#earlier = copy(this.#earlier, new Int32Array(length));
  }
}

const initialRecords = 16;

/** Live allocations that are found by their addresses, each of which has one at most. */
export class LiveAllocations<Holder> {
  readonly #list = new AllocationList<Holder>();
  readonly #records = new AddressMap();

  get count(): number {
    return this.#records.count;
  }

  /** Adds an allocation. One that is known at the address already was freed by somebody who did not say so. */
  add(pointer: DevicePointer, bytes: number, holder: Holder): void {
    this.remove(pointer);
    this.#records.insert(pointer, this.#list.add(pointer, bytes, holder));
  }

  /** The holder of the allocation at an address. */
  holderOf(pointer: DevicePointer): Holder | undefined {
    const record = this.#records.get(pointer);
    return record === none ? undefined : this.#list.holderOf(record);
  }

  /** The bytes of the allocation at an address, which is known. */
  bytesOf(pointer: DevicePointer): number {
    return this.#list.bytesOf(this.#records.get(pointer));
  }

  /** The number of the allocation at an address, which is known. */
  numberOf(pointer: DevicePointer): number {
    return this.#list.numberOf(this.#records.get(pointer));
  }

  /** Removes the allocation at an address, if one is known. */
  remove(pointer: DevicePointer): void {
    const record = this.#records.take(pointer);
    if (record !== none) this.#list.remove(record);
  }

  /** The addresses among memory that is taken back, the latest first. */
  among(taken: TakenMemory): DevicePointer[] {
    return this.#list.among(taken).map((record) => this.#list.pointerOf(record));
  }
}

/** Memory that a resource is about to take back. */
export interface TakenMemory {
  /** That resource. */
  readonly by: MemoryResource;
  /** Nothing of it was remembered with this number or a lower one. */
  readonly since: number;
  /** Why it goes, for whoever uses a buffer in it later: a clause such as `the pool is disposed`. */
  readonly reason: string;
  /**
   * Whether the allocation that was remembered with a number at an address lies in it. What the resource is built on may have one at the same
   * address, which stays: that was remembered before the resource had the memory.
   */
  has(pointer: DevicePointer, number: number): boolean;
}

/** The stream to free on what is ordered on a stream: that one, or another one after a wait. */
export type StreamFor = (stream: Stream) => Stream;

/** Owns memory, and gives it up when that is taken back. */
export interface MemoryOwner {
  readonly pointer: DevicePointer;
  /**
   * Frees the memory through everything that it was allocated through; the owner has none from then on. Where that is refused, `pointer` is as
   * before, unless the memory is lost for good.
   * @param streamFor the stream to free on what is ordered on a stream
   */
  endMemory(reason: string, streamFor: StreamFor): void;
}

/** Those whose memory has an owner. */
const owned = new AllocationList<MemoryOwner>();

/** Memory has an owner from now on, who is told when it is taken back. Returns a record for {@link removeOwner}. */
export function addOwner(pointer: DevicePointer, bytes: number, owner: MemoryOwner): number {
  return owned.add(pointer, bytes, owner);
}

/** Ends what {@link addOwner} began. */
export function removeOwner(record: number): void {
  owned.remove(record);
}

/** Resources that take memory back while they are in use. */
const takers = new WeakSet<MemoryResource>();

/** Adaptors built on a resource that was marked so before remember what is allocated through them. */
export function markAsTaker(resource: MemoryResource): void {
  takers.add(resource);
}

export function takesBack(resource: MemoryResource): boolean {
  return takers.has(resource);
}

/** Allocates and frees, and remembers what is live. */
interface RememberingResource {
  readonly live: LiveAllocations<Stream>;
  /** What it is built on. */
  readonly below: ReadonlySet<MemoryResource>;
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void;
}

/** From the first that was made to the last, so that each comes after those that it is built on. Weak: nobody says when the last free is over. */
let remembering: WeakRef<RememberingResource>[] = [];
const minimumSweepCount = 64;
let sweepCount = minimumSweepCount;

/** Adds one who remembers, for as long as it lives. */
export function addRemembering(resource: RememberingResource): void {
  if (remembering.length >= sweepCount) {
    remembering = remembering.filter((each) => each.deref() !== undefined);
    sweepCount = Math.max(minimumSweepCount, 2 * remembering.length);
  }
  remembering.push(new WeakRef(resource));
}

/** A free of memory that is taken back, which was refused. Who remembered the memory still does, and may free it later. */
export interface RefusedFree {
  readonly pointer: DevicePointer;
  readonly error: unknown;
}

/** So often foreign code may allocate anew, while its memory is taken back, what is taken back, too. */
const maximumPasses = 16;

/**
 * Lets everybody free what they remember of memory that is about to be taken back. Calls foreign code, which may use the resource that takes it
 * back, and even dispose it; what that allocates meanwhile is freed as well. Returns what was refused; a LifetimeError says that the memory was
 * lost already, and is no refusal.
 */
export function takeBack(taken: TakenMemory, waits = new DeviceWaits()): RefusedFree[] {
  const refused = new Refusals();
  for (let pass = 0; pass < maximumPasses; pass++) {
    const before = latestNumber;
    endOwned(taken, refused, waits);
    const all = remembering;
    for (let i = all.length - 1; i >= 0; i--) {
      const resource = (all[i] as WeakRef<RememberingResource>).deref();
      if (resource !== undefined && resource.live.count > 0 && resource.below.has(taken.by))
        freeRemembered(resource, taken, refused, waits);
    }
    // Nobody has allocated anything meanwhile.
    if (latestNumber === before) break;
  }
  return refused.frees;
}

/** What was refused so far, and to whom. */
class Refusals {
  readonly frees: RefusedFree[] = [];
  readonly #pointers = new Map<object, Set<DevicePointer>>();

  add(holder: object, pointer: DevicePointer, error: unknown): void {
    const pointers = this.#pointers.get(holder) ?? new Set();
    this.#pointers.set(holder, pointers.add(pointer));
    this.frees.push({ pointer, error });
  }

  has(holder: object, pointer: DevicePointer): boolean {
    return this.#pointers.get(holder)?.has(pointer) === true;
  }
}

function endOwned(taken: TakenMemory, refused: Refusals, waits: DeviceWaits): void {
  for (const record of owned.among(taken)) {
    const owner = owned.holderOf(record);
    const pointer = owned.pointerOf(record);
    // Foreign code may have freed it meanwhile.
    const number = owned.numberOf(record);
    if (owner === undefined || refused.has(owner, pointer) || !taken.has(pointer, number)) continue;
    try {
      owner.endMemory(taken.reason, (stream) => waits.streamFor(stream, number));
    } catch (error) {
      if (owner.pointer !== 0) refused.add(owner, pointer, error);
    }
  }
}

function freeRemembered(resource: RememberingResource, taken: TakenMemory, refused: Refusals, waits: DeviceWaits): void {
  const { live, deallocate } = resource;
  const isTaken = (pointer: DevicePointer) => taken.has(pointer, live.numberOf(pointer));
  for (const pointer of live.among(taken)) {
    const stream = live.holderOf(pointer);
    if (stream === undefined || refused.has(resource, pointer) || !isTaken(pointer)) continue;
    // What somebody above could not free is still theirs.
    const end = pointer + live.bytesOf(pointer);
    if (refused.frees.some((each) => each.pointer >= pointer && each.pointer < end)) continue;
    try {
      const usable = waits.streamFor(stream, live.numberOf(pointer));
      // Host functions may have run during a wait, and freed it.
      if (live.holderOf(pointer) === stream && isTaken(pointer)) deallocate(pointer, live.bytesOf(pointer), usable);
    } catch (error) {
      if (error instanceof LifetimeError) live.remove(pointer);
      else refused.add(resource, pointer, error);
    }
  }
}

/** The stream to free on what was allocated on a stream. Blocks until the device is idle if that stream was disposed. */
export function usableStream(stream: Stream): Stream {
  return stream.isDisposed ? idleStream(stream) : stream;
}

/**
 * The same for a free that the program did not ask for at this time. A stream made elsewhere, whose end is not announced, may be gone by then:
 * its handle must not be named, since the driver may have given it to another stream.
 */
export function lastingStream(stream: Stream): Stream {
  return new DeviceWaits().streamFor(stream);
}

/** Does what `lastingStream` does for all frees of one bulk free, and waits for each device once. */
export class DeviceWaits {
  /** What had been remembered when the wait for a device began has this number at the most. */
  readonly #begun = new Map<Device, number>();

  /** @param number with which the allocation was remembered; 0 for one that is older than the bulk free */
  streamFor(stream: Stream, number = 0): Stream {
    const { device, isDisposed, timeline } = stream;
    if (!isDisposed && timeline.announcesEnd) return stream;
    const begun = this.#begun.get(device);
    if (begun !== undefined && number <= begun) return Stream.legacyDefault(device);
    const remembered = latestNumber;
    const idle = idleStream(stream);
    this.#begun.set(device, remembered);
    return idle;
  }
}

/** The legacy default stream, once everything has run that was queued on the device: no event of the other stream can be had. */
function idleStream({ device }: Stream): Stream {
  device.synchronizeSync();
  return Stream.legacyDefault(device);
}
