/**
 * Frees many allocations in one call: at a rewind, at the end of a run, or when a resource is
 * disposed. The resource first announces the bulk free, and buffers and adaptors that remember the
 * allocations free them through all the resources that they were allocated through. So each adaptor
 * in between sees an ordinary free, and the memory is not freed again once it belongs to another
 * user.
 *
 *     rewind ──► takeBack ──► buffers            the latest first
 *                        └──► adaptors above     the outermost first, each its latest allocations first
 *
 * Buffers are always remembered. Bare pointers are remembered by every adaptor that is built on a
 * resource that takes memory back while it is in use. Other adaptors remember nothing, and pay
 * nothing.
 *
 * Data structure: one record per allocation, found by its address, in a list from the latest to the
 * first. Records are numbered in ascending order across all lists, so that a search ends at the
 * first record from before the mark or the run.
 *
 * Invariants: the numbers of a list descend from its head; an address is in a list at most once; a
 * record is in the list or spare.
 * Cost: adding and removing take constant time; `takeBack` looks at the remembered live allocations
 * since the mark or the run.
 */

import { LifetimeError } from '../basics/errors.js';
import type { Device } from '../driver/device.js';
import { Stream } from '../driver/streams/stream.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { AddressMap } from '../suballocation/address-map.js';
import { none } from '../suballocation/blocks.js';
import { RecordsByAddress } from './records-by-address.js';

/** The number of the latest remembered allocation. */
let latestNumber = 0;

/** The greatest number of any allocation remembered before now. */
export function rememberedSoFar(): number {
  return latestNumber;
}

/**
 * Live allocations, each with what is needed to free it, as records in a list. One address may have
 * several.
 */
class AllocationList<Holder> {
  #pointers = new Float64Array(initialRecords);
  #numbers = new Float64Array(initialRecords);
  readonly #holders: (Holder | undefined)[] = [];
  /**
   * By record: the one added after it, and the one added before it. For a spare record, the latter
   * is the next spare one.
   */
  #later = new Int32Array(initialRecords);
  #earlier = new Int32Array(initialRecords);
  #latest: number = none;
  #spare: number = none;
  #used = 0;

  /** Adds an allocation with a number above those that the list has, and returns its record. */
  add(pointer: DevicePointer, holder: Holder, number: number): number {
    const record = this.#takeRecord();
    this.#pointers[record] = pointer;
    this.#holders[record] = holder;
    this.#numbers[record] = number;
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

  /** The number of a record; later records have greater numbers. */
  numberOf(record: number): number {
    return this.#numbers[record] as number;
  }

  remove(record: number): void {
    this.#unlink(record);
    this.#holders[record] = undefined;
    this.#earlier[record] = this.#spare;
    this.#spare = record;
  }

  /** The records in memory that is taken back, the latest first. */
  among(taken: Pick<TakenMemory, 'since' | 'has'>): number[] {
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
    this.#numbers = copy(this.#numbers, new Float64Array(length));
    this.#later = copy(this.#later, new Int32Array(length));
    this.#earlier = copy(this.#earlier, new Int32Array(length));
  }
}

const initialRecords = 16;

/** Live allocations, found by their addresses; at most one per address. */
export class LiveAllocations<Holder> {
  readonly #list = new AllocationList<Holder>();
  /** By record. */
  readonly #bytes: number[] = [];
  readonly #records = new AddressMap();

  get count(): number {
    return this.#records.count;
  }

  /** Adds an allocation. If one is already known at the address, it was freed without notice. */
  add(pointer: DevicePointer, bytes: number, holder: Holder): void {
    this.remove(pointer);
    const record = this.#list.add(pointer, holder, ++latestNumber);
    this.#bytes[record] = bytes;
    this.#records.insert(pointer, record);
  }

  /** The holder of the allocation at an address. */
  holderOf(pointer: DevicePointer): Holder | undefined {
    const record = this.#records.get(pointer);
    return record === none ? undefined : this.#list.holderOf(record);
  }

  /** The size of the allocation at a known address. */
  bytesOf(pointer: DevicePointer): number {
    return this.#bytes[this.#records.get(pointer)] as number;
  }

  /** The number of the allocation at a known address. */
  numberOf(pointer: DevicePointer): number {
    return this.#list.numberOf(this.#records.get(pointer));
  }

  /** Removes the allocation at an address, if one is known. */
  remove(pointer: DevicePointer): void {
    const record = this.#records.take(pointer);
    if (record !== none) this.#list.remove(record);
  }

  /** The addresses in memory that is taken back, the latest first. */
  among(taken: TakenMemory): DevicePointer[] {
    return this.#list.among(taken).map((record) => this.#list.pointerOf(record));
  }
}

/** Memory that a resource is about to take back. */
export interface TakenMemory {
  /** The resource that takes it back. */
  readonly by: MemoryResource;
  /** All allocations in it were remembered with higher numbers than this. */
  readonly since: number;
  /**
   * The reason, for errors of later uses of a buffer in it: a clause such as `the pool is
   * disposed`.
   */
  readonly reason: string;
  /**
   * Whether the allocation remembered with a number at an address lies in the memory. The
   * resource's upstream may have one at the same address, which stays: it was remembered before the
   * resource had the memory.
   */
  has(pointer: DevicePointer, number: number): boolean;
}

/**
 * Returns the stream on which to free memory that is ordered on a given stream: that stream, or
 * another one after a wait.
 */
export type StreamFor = (stream: Stream) => Stream;

/** Owns memory, and frees it when it is taken back. */
export interface MemoryOwner {
  readonly pointer: DevicePointer;
  /** The resource that frees the memory. */
  readonly resource: MemoryResource;
  /** Where its memory is remembered, between {@link addOwner} and {@link removeOwner}. */
  ownerRecord: number;
  /**
   * Frees the memory through all the resources that it was allocated through; the owner then has
   * none. If the free is refused, `pointer` is unchanged, unless the memory is lost for good.
   * @param streamFor returns the stream to free on
   */
  endMemory(reason: string, streamFor: StreamFor): void;
}

/** The allocations that have an owner, except the latest. */
const owned = new AllocationList<MemoryOwner>();

/** The same by their addresses, once somebody has asked: most programs adopt no memory. */
let ownedByAddress: RecordsByAddress | undefined;

/** How many of the latest allocations are not in the list yet. */
const maximumLatest = 64;

/**
 * The owners of the latest allocations, most of which are freed soon; by the complement of their record.
 * The array is replaced often enough to be as new as what it refers to (V8: old to new).
 */
let latestOwners: (MemoryOwner | undefined)[] = new Array(maximumLatest);
const latestNumbers = new Float64Array(maximumLatest);
let latestCount = 0;

/** Registers an owner of memory, which is notified when that is taken back. */
export function addOwner(owner: MemoryOwner): void {
  if (latestCount === maximumLatest) listLatest();
  latestNumbers[latestCount] = ++latestNumber;
  latestOwners[latestCount] = owner;
  owner.ownerRecord = ~latestCount++;
}

/** Ends what {@link addOwner} began. */
export function removeOwner(owner: MemoryOwner): void {
  const record = owner.ownerRecord;
  if (record < 0) {
    latestOwners[~record] = undefined;
    return;
  }
  ownedByAddress?.remove(owned.pointerOf(record), record);
  owned.remove(record);
}

/** Whether an owner has the memory at an address that a resource frees, so that nobody else may own it. */
export function isOwned(pointer: DevicePointer, resource: MemoryResource): boolean {
  listLatest();
  if (ownedByAddress === undefined) {
    ownedByAddress = new RecordsByAddress();
    for (const record of owned.among({ since: 0, has: () => true })) ownedByAddress.add(owned.pointerOf(record), record);
  }
  const isFreedBy = (record: number) => owned.holderOf(record)?.resource.isEqual(resource) === true;
  return ownedByAddress.find(pointer, isFreedBy) !== none;
}

/** Puts the latest that are still owned into the list. */
function listLatest(): void {
  for (let i = 0; i < latestCount; i++) {
    const owner = latestOwners[i];
    if (owner === undefined) continue;
    owner.ownerRecord = owned.add(owner.pointer, owner, latestNumbers[i] as number);
    ownedByAddress?.add(owner.pointer, owner.ownerRecord);
  }
  latestOwners = new Array(maximumLatest);
  latestCount = 0;
}

/** The records of owners of memory that is taken back, the latest first. */
function ownersAmong(taken: Pick<TakenMemory, 'since' | 'has'>): number[] {
  listLatest();
  return owned.among(taken);
}

/** Resources that take memory back while it is in use. */
const takers = new WeakSet<MemoryResource>();

/** Marks a resource, so that adaptors built on it later remember what is allocated through them. */
export function markAsTaker(resource: MemoryResource): void {
  takers.add(resource);
}

export function takesBack(resource: MemoryResource): boolean {
  return takers.has(resource);
}

/** Allocates and frees, and remembers what is live. */
interface RememberingResource {
  readonly live: LiveAllocations<Stream>;
  /** The resources that it is built on. */
  readonly below: ReadonlySet<MemoryResource>;
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void;
}

/**
 * In the order of creation, so that each comes after those that it is built on. Weak, because
 * nobody announces the last free.
 */
let remembering: WeakRef<RememberingResource>[] = [];
const minimumSweepCount = 64;
let sweepCount = minimumSweepCount;

/** Adds a resource that remembers, for as long as it lives. */
export function addRemembering(resource: RememberingResource): void {
  if (remembering.length >= sweepCount) {
    remembering = remembering.filter((each) => each.deref() !== undefined);
    sweepCount = Math.max(minimumSweepCount, 2 * remembering.length);
  }
  remembering.push(new WeakRef(resource));
}

/**
 * A refused free of memory that is taken back. Whoever remembered the memory still does, and may
 * free it later.
 */
export interface RefusedFree {
  readonly pointer: DevicePointer;
  readonly error: unknown;
}

/** How often to try again if foreign code allocates more of the memory while it is taken back. */
const maximumPasses = 16;

/**
 * Makes buffers and adaptors free the allocations that they remember in memory that is about to be
 * taken back. Runs foreign code, which may use or even dispose the resource; memory that it
 * allocates meanwhile is freed, too. Returns the refused frees. A LifetimeError means that the
 * memory was already lost, and does not count as refused.
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
    // Nothing was allocated meanwhile.
    if (latestNumber === before) break;
  }
  return refused.frees;
}

/** Makes the owners of memory of some resources free it, the latest first. Refused frees are left. */
export function endOwnersOf(resources: ReadonlySet<MemoryResource>, reason: string): void {
  const waits = new DeviceWaits();
  for (const record of ownersAmong({ since: 0, has: () => true })) {
    const owner = owned.holderOf(record);
    if (owner === undefined || !resources.has(owner.resource)) continue;
    const number = owned.numberOf(record);
    try {
      owner.endMemory(reason, (stream) => waits.streamFor(stream, number));
    } catch {}
  }
}

/** The refused frees, by who tried them. */
class Refusals {
  readonly frees: RefusedFree[] = [];
  readonly #pointers = new Map<object, AddressMap>();

  add(holder: object, pointer: DevicePointer, error: unknown): void {
    const pointers = this.#pointers.get(holder) ?? new AddressMap();
    pointers.insert(pointer, 0);
    this.#pointers.set(holder, pointers);
    this.frees.push({ pointer, error });
  }

  has(holder: object, pointer: DevicePointer): boolean {
    return (this.#pointers.get(holder)?.get(pointer) ?? none) !== none;
  }
}

function endOwned(taken: TakenMemory, refused: Refusals, waits: DeviceWaits): void {
  for (const record of ownersAmong(taken)) {
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
    // What an adaptor above could not free still belongs to it.
    const end = pointer + live.bytesOf(pointer);
    if (refused.frees.some((each) => each.pointer >= pointer && each.pointer < end)) continue;
    try {
      const usable = waits.streamFor(stream, live.numberOf(pointer));
      // Host functions may have run during a wait, and freed the memory.
      if (live.holderOf(pointer) === stream && isTaken(pointer)) deallocate(pointer, live.bytesOf(pointer), usable);
    } catch (error) {
      if (error instanceof LifetimeError) live.remove(pointer);
      else refused.add(resource, pointer, error);
    }
  }
}

/**
 * The stream on which to free what was allocated on a stream. Blocks until the device is idle if
 * that stream is disposed.
 */
export function usableStream(stream: Stream): Stream {
  return stream.isDisposed ? idleStream(stream) : stream;
}

/**
 * The same, for a free that the program did not request at this time. A foreign stream whose end is
 * not announced may no longer exist: do not use its handle, because the driver may have given it to
 * another stream.
 */
export function lastingStream(stream: Stream): Stream {
  return new DeviceWaits().streamFor(stream);
}

/** `lastingStream` for all frees of one bulk free, with a single wait for each device. */
export class DeviceWaits {
  /** By device: the greatest number remembered when the wait for it began. */
  readonly #begun = new Map<Device, number>();

  /**
   * @param number the number that the allocation was remembered with; 0 if it is older than the
   * bulk free
   */
  streamFor(stream: Stream, number = 0): Stream {
    const { device, isDisposed, identity } = stream;
    if (!isDisposed && identity.announcesEnd) return stream;
    const begun = this.#begun.get(device);
    if (begun !== undefined && number <= begun) return Stream.legacyDefault(device);
    const remembered = latestNumber;
    const idle = idleStream(stream);
    this.#begun.set(device, remembered);
    return idle;
  }
}

/**
 * The legacy default stream, after all work queued on the device has run: no event can be recorded
 * on the other stream.
 */
function idleStream({ device }: Stream): Stream {
  device.synchronizeSync();
  return Stream.legacyDefault(device);
}
