/**
 * Frees of many allocations by one call: a rewind, the end of a run, the end of a resource. Whoever does that announces it first, and those who
 * remember the allocations free them through everything that they were allocated through. So each adaptor in between sees an ordinary free, and
 * nobody is left to free the memory once more when it is somebody else's.
 *
 *     rewind ──► takeBack ──► buffers                     the latest first
 *                        └──► adaptors above the keeper   the outermost first, each its latest allocations first
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

/** Live allocations, each with what it takes to free it. */
export class LiveAllocations<Holder> {
  readonly #records = new AddressMap();
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

  get count(): number {
    return this.#records.count;
  }

  /** Adds an allocation. One that is known at the address already was freed by somebody who did not say so. */
  add(pointer: DevicePointer, bytes: number, holder: Holder): void {
    const known = this.#records.get(pointer);
    const record = known === none ? this.#takeRecord() : known;
    if (known === none) this.#records.insert(pointer, record);
    else this.#unlink(record);
    this.#pointers[record] = pointer;
    this.#bytes[record] = bytes;
    this.#holders[record] = holder;
    this.#numbers[record] = ++latestNumber;
    this.#later[record] = none;
    this.#earlier[record] = this.#latest;
    if (this.#latest !== none) this.#later[this.#latest] = record;
    this.#latest = record;
  }

  /** The holder of the allocation at an address. */
  holderOf(pointer: DevicePointer): Holder | undefined {
    const record = this.#records.get(pointer);
    return record === none ? undefined : this.#holders[record];
  }

  /** The bytes of the allocation at an address, which is known. */
  bytesOf(pointer: DevicePointer): number {
    return this.#bytes[this.#records.get(pointer)] as number;
  }

  /** Removes the allocation at an address, if one is known. */
  remove(pointer: DevicePointer): void {
    const record = this.#records.take(pointer);
    if (record === none) return;
    this.#unlink(record);
    this.#holders[record] = undefined;
    this.#earlier[record] = this.#spare;
    this.#spare = record;
  }

  /** The addresses among memory that is taken back, the latest first. */
  among(taken: TakenMemory): DevicePointer[] {
    const pointers: DevicePointer[] = [];
    for (let record = this.#latest; record !== none; record = this.#earlier[record] as number) {
      if ((this.#numbers[record] as number) <= taken.since) break;
      const pointer = this.#pointers[record] as number;
      if (taken.has(pointer)) pointers.push(pointer);
    }
    return pointers;
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

/** Memory that a resource is about to take back. */
export interface TakenMemory {
  /** That resource. What it is built on has allocations at the same addresses, which stay. */
  readonly by: MemoryResource;
  /** Nothing of it was remembered with this number or a lower one. */
  readonly since: number;
  /** Why it goes, for whoever uses a buffer in it later: a clause such as `the pool is disposed`. */
  readonly reason: string;
  /** Whether an address lies in it. */
  has(pointer: DevicePointer): boolean;
}

/** Owns memory, and gives it up when that is taken back. */
export interface MemoryOwner {
  readonly pointer: DevicePointer;
  /**
   * Frees the memory through everything that it was allocated through; the owner has none from then on. Where that is refused, `pointer` is as
   * before, unless the memory is lost for good.
   */
  endMemory(reason: string): void;
}

/** Those whose memory has an owner. */
const owned = new LiveAllocations<MemoryOwner>();

/** Memory has an owner from now on, who is told when it is taken back. */
export function addOwner(pointer: DevicePointer, bytes: number, owner: MemoryOwner): void {
  owned.add(pointer, bytes, owner);
}

/** Ends what {@link addOwner} began. */
export function removeOwner(pointer: DevicePointer, owner: MemoryOwner): void {
  if (owned.holderOf(pointer) === owner) owned.remove(pointer);
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

/**
 * Lets everybody free what they remember of memory that is about to be taken back. Calls foreign code, which may use the resource that takes it
 * back, and even dispose it. Returns what was refused; a LifetimeError says that the memory was lost already, and is no refusal.
 */
export function takeBack(taken: TakenMemory): RefusedFree[] {
  const refused: RefusedFree[] = [];
  for (const pointer of owned.count === 0 ? [] : owned.among(taken)) {
    const owner = owned.holderOf(pointer);
    // Foreign code may have freed it meanwhile.
    if (owner === undefined || !taken.has(pointer)) continue;
    try {
      owner.endMemory(taken.reason);
    } catch (error) {
      if (owner.pointer !== 0) refused.push({ pointer, error });
    }
  }
  const all = remembering;
  for (let i = all.length - 1; i >= 0; i--) {
    const resource = (all[i] as WeakRef<RememberingResource>).deref();
    if (resource !== undefined && resource.live.count > 0 && resource.below.has(taken.by)) freeRemembered(resource, taken, refused);
  }
  return refused;
}

function freeRemembered({ live, deallocate }: RememberingResource, taken: TakenMemory, refused: RefusedFree[]): void {
  for (const pointer of live.among(taken)) {
    const stream = live.holderOf(pointer);
    if (stream === undefined || !taken.has(pointer)) continue;
    // What somebody above could not free is still theirs.
    const end = pointer + live.bytesOf(pointer);
    if (refused.some((each) => each.pointer >= pointer && each.pointer < end)) continue;
    try {
      const usable = lastingStream(stream);
      // Host functions may have run during a wait, and freed it.
      if (live.holderOf(pointer) === stream && taken.has(pointer)) deallocate(pointer, live.bytesOf(pointer), usable);
    } catch (error) {
      if (error instanceof LifetimeError) live.remove(pointer);
      else refused.push({ pointer, error });
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
  return stream.isDisposed || !stream.timeline.announcesEnd ? idleStream(stream) : stream;
}

/** The legacy default stream, once everything has run that was queued on the device: no event of the other stream can be had. */
function idleStream({ device }: Stream): Stream {
  device.synchronizeSync();
  return Stream.legacyDefault(device);
}
