/**
 * Finds the buffers that V8 has collected, and frees their memory.
 *
 *       buffer ───────► memory ──► resource, stream
 *          │               ▲
 *          ▼               │
 *       stand-in ──────► holder ◄── holders[i]
 *          ▲
 *          ┊ weak reference
 *     native watch, slot i
 *
 * The table holds everything needed to free a buffer's memory, but never the buffer. Creating and
 * ending a weak reference takes longer than allocating and freeing the memory. So it is not the
 * buffer that is watched, but a stand-in to which only the buffer refers: both become unreachable
 * together. A disposed buffer returns its stand-in, still watched, and the next buffer takes it.
 *
 * A stand-in is replaced after a number of uses: V8 moves surviving objects to a place where only a
 * major collection finds them, but a minor one should find a buffer that was dropped soon after its
 * creation. Stand-ins that were spare all the time between two sweeps are released.
 *
 * The weak references are Node-API's: unlike a `WeakRef` or a `FinalizationRegistry`, they are seen
 * to be cleared in the same job that collected the buffer. No buffer is registered with a
 * `FinalizationRegistry`, because V8's minor collections keep registered objects alive (up to Node
 * 24). A token object is registered instead; its collection shows that a collection took place.
 *
 * A resource may refuse a free, for example inside a host function, which must not wait. Memory
 * that no other code could then free is kept in a list. The next turn of the event loop tries it
 * once, and every sweep tries it first; so does the first turn after a capture that refused it.
 *
 * A free runs foreign code, which may itself collect garbage and sweep, for example in an
 * allocation that finds no memory. A nested sweep leaves the list alone, and no token is registered
 * until the outermost sweep is over. Otherwise each sweep would retry memory that is always
 * refused, and each retry would cause the collection that starts the next sweep.
 *
 * When a reference from an old object to a new one is stored, V8 records it, which takes longer than
 * everything else here. The table is old, and a memory is new. So the table refers to a holder,
 * which is made with its stand-in, and about as old as the memories that it has in turn.
 *
 * Invariants: slot i is watched ⇔ holders[i] is set; their number is watchedCount; only a buffer that is
 * not disposed refers to a stand-in that is not spare; a holder has a memory exactly while the buffer of
 * its stand-in is not disposed.
 * Cost: O(1) per buffer; a sweep reads every slot, and every memory in the list, once.
 */
import { channel } from 'node:diagnostics_channel';
import { captureStack } from '../basics/call-stack.js';
import { reasonOf } from '../basics/errors.js';
import type { MemoryKind } from '../driver/device.js';
import { letGoOfEnded } from '../driver/graphs/user-objects.js';
import { isCapturing } from '../driver/status.js';
import { atCaptureEnds } from '../driver/streams/stream-identity.js';
import { collectedSlots, unwatchObject, watchObject } from '../driver/workers/collected-objects.js';
import { DeviceWaits, type StreamFor } from '../ownership/bulk-frees.js';

/** The memory and origin of a buffer, which outlive it. Must not refer to the buffer. */
export interface OwnedMemory {
  readonly pointer: number;
  readonly bytes: number;
  readonly resource: { readonly memoryKind: MemoryKind };
  /** Where the buffer was created, if leak detection was on. */
  readonly createdAt: string | undefined;
  /** The buffer's label. */
  readonly label: string | undefined;
  /**
   * Frees the memory. If that is refused, `pointer` is 0 if the memory is lost permanently,
   * otherwise unchanged.
   */
  free(streamFor?: StreamFor): void;
}

/**
 * The message of the diagnostics channel `cistern:leak`, published for every buffer that V8
 * collected before it was disposed. Its memory is freed nevertheless; the message shows which
 * `dispose` or `using` is missing. Leak detection is on while the channel has a subscriber.
 * @example
 * ```ts
 * import { subscribe } from 'node:diagnostics_channel';
 *
 * subscribe('cistern:leak', (message) => {
 *   const { bytes, createdAt } = message as BufferLeak;
 *   console.warn(`a buffer of ${bytes} bytes was never disposed; it was created\n${createdAt ?? ''}`);
 * });
 * ```
 */
export interface BufferLeak {
  /** The former address of the memory. */
  readonly pointer: number;
  /** The capacity of the buffer, in bytes. */
  readonly bytes: number;
  readonly memoryKind: MemoryKind;
  /**
   * The stack of the constructor call, one frame per line; `undefined` if the buffer was created
   * before the first subscriber.
   */
  readonly createdAt: string | undefined;
  /** The label of the buffer, if it had one. */
  readonly label: string | undefined;
}

const leaks = channel('cistern:leak');
const minimumSweepCount = 1024;

const holders: (Holder | undefined)[] = [];
/** How many stand-ins are watched; those that are not spare have a buffer. */
let watchedCount = 0;
/** Memory whose free was refused and may be retried. */
let refused: OwnedMemory[] = [];
let isSweeping = false;
/** Whether a retry is scheduled for the next turn of the event loop. */
let isRetrying = false;
let collected = new Int32Array(minimumSweepCount);
/**
 * When this many are watched, a sweep is due even without a collection, because synchronous code
 * that drops buffers would otherwise make the table grow forever.
 */
let sweepCount = minimumSweepCount;

/** How many buffers a stand-in serves. */
const maximumUses = 64;

/**
 * Refers to the memory of the buffer that a stand-in represents. Must not refer to the stand-in.
 */
class Holder {
  memory: OwnedMemory | undefined;
}

/** Collected together with the buffer that it represents. */
export class StandIn {
  usesLeft = maximumUses;
  readonly slot = watchObject(this);
  readonly holder = new Holder();
}

/** The stand-ins of buffers that were disposed, the latest last. */
let spare: StandIn[] = [];
/** The fewest that were spare at any time since the last sweep. */
let unneeded = 0;

let tokenIsLive = false;
const majorCollections = new FinalizationRegistry<undefined>(() => {
  tokenIsLive = false;
  freeUnreachableBuffers();
  registerToken();
});

/**
 * Frees `memory` when the stand-in that it returns is collected, unless {@link disown} is called first.
 * Only the buffer may refer to the stand-in. If this throws, the memory is freed.
 */
export function own(memory: OwnedMemory): StandIn {
  let standIn = spare.pop();
  if (standIn === undefined) standIn = makeStandIn(memory);
  else if (spare.length < unneeded) unneeded = spare.length;
  standIn.holder.memory = memory;
  return standIn;
}

/** Ends what {@link own} began. The caller must no longer refer to the stand-in. */
export function disown(standIn: StandIn): void {
  standIn.holder.memory = undefined;
  if (--standIn.usesLeft > 0) spare.push(standIn);
  else retire(standIn.slot);
}

/** A stand-in has served enough buffers. */
function retire(slot: number): void {
  endWatch(slot);
  // A new array, as holders are new.
  if (spare.length === 0) spare = [];
}

/** Called if none is spare, so that every stand-in has a buffer. */
function makeStandIn(memory: OwnedMemory): StandIn {
  if (watchedCount >= sweepCount) {
    freeUnreachableBuffers();
    sweepCount = Math.max(minimumSweepCount, 2 * watchedCount);
  }
  try {
    const standIn = new StandIn();
    watchedCount++;
    holders[standIn.slot] = standIn.holder;
    registerToken();
    return standIn;
  } catch (error) {
    freeSoonerOrLater(memory);
    throw error;
  }
}

function endWatch(slot: number): void {
  unwatchObject(slot);
  holders[slot] = undefined;
  watchedCount--;
}

/** The number of watched buffers, of spare stand-ins, and of slots for both. */
export function watchedBuffers(): { readonly count: number; readonly spare: number; readonly slots: number } {
  return { count: watchedCount - spare.length, spare: spare.length, slots: holders.length };
}

/** The memory of live buffers, which are neither disposed nor known to be unreachable. */
export function* watchedMemory(): Generator<OwnedMemory> {
  for (const holder of holders) if (holder?.memory !== undefined) yield holder.memory;
}

/**
 * Frees memory that no buffer has. If that is refused, a later sweep tries again. Returns the freed
 * bytes. Never throws.
 */
export function freeSoonerOrLater(memory: OwnedMemory, streamFor?: StreamFor): number {
  const { bytes } = memory;
  try {
    memory.free(streamFor);
    return bytes;
  } catch {
    keepRefused(memory);
    return 0;
  }
}

function keepRefused(memory: OwnedMemory): void {
  if (memory.pointer === 0) return;
  refused.push(memory);
  registerToken();
  // Most refusals come from inside a host function, which will have returned by then.
  if (!isSweeping) retrySoon();
}

function retrySoon(): void {
  if (isRetrying) return;
  isRetrying = true;
  setImmediate(retryRefused).unref();
}

atCaptureEnds(() => {
  if (refused.length > 0) retrySoon();
});

/** Retries each refusal once; what is refused again waits for the next sweep. */
function retryRefused(): void {
  try {
    freeRefused();
  } finally {
    isRetrying = false;
  }
}

/**
 * Frees the memory of every collected buffer, in the order of its stream, memory whose free was
 * refused before, and memory that others have returned. Returns the freed bytes. Never throws.
 */
export function freeUnreachableBuffers(): number {
  if (isSweeping) return freeTaken(takeUnreachable());
  isSweeping = true;
  try {
    letGoOfEnded();
    const unreachable = takeUnreachable();
    let freedBytes = freeRefused() + freeTaken(unreachable);
    // A buffer that was just freed may have been attached here, so its memory is now returned.
    for (const other of otherFrees) freedBytes += other.free();
    return freedBytes;
  } finally {
    isSweeping = false;
    giveUpUnneeded();
    registerToken();
  }
}

/** A source of memory that others used and return without a collection in this environment. */
export interface OtherFrees {
  /** Whether collections in other workers may return some. */
  mayBeWithWorkers(): boolean;
  /** Frees returned memory. Returns its bytes. Must not throw. */
  free(): number;
}

const otherFrees: OtherFrees[] = [];

/** From now on, every sweep also frees memory that others return. */
export function freeAtSweeps(other: OtherFrees): void {
  otherFrees.push(other);
}

/** Whether collections in other workers may return memory. */
export function mayBeWithWorkers(): boolean {
  return otherFrees.some((other) => other.mayBeWithWorkers());
}

/** Ends the watch of those that were spare ever since the last sweep. */
function giveUpUnneeded(): void {
  for (const { slot } of spare.splice(0, unneeded)) endWatch(slot);
  unneeded = spare.length;
}

function freeTaken(unreachable: readonly OwnedMemory[]): number {
  let freedBytes = 0;
  let failures = 0;
  let firstFailure: unknown;
  const streamFor = waitingOnce();
  for (const memory of unreachable) {
    const { pointer, bytes } = memory;
    if (leaks.hasSubscribers && bytes > 0) {
      const { createdAt, label } = memory;
      const leak: BufferLeak = { pointer, bytes, memoryKind: memory.resource.memoryKind, createdAt, label };
      leaks.publish(leak);
    }
    try {
      memory.free(streamFor);
      freedBytes += bytes;
    } catch (error) {
      keepRefused(memory);
      // The end of the capture comes by itself.
      if (isCapturing(error)) continue;
      if (failures++ === 0) firstFailure = error;
    }
  }
  if (failures > 0) {
    const others = failures === 1 ? '' : `, and ${failures - 1} more`;
    process.emitWarning(`the memory of an unreachable buffer could not be freed: ${reasonOf(firstFailure)}${others}`, {
      code: 'CISTERN_UNREACHABLE_BUFFER',
    });
  }
  return freedBytes;
}

function freeRefused(): number {
  const memories = refused;
  refused = [];
  let freedBytes = 0;
  const streamFor = waitingOnce();
  for (const memory of memories) freedBytes += freeSoonerOrLater(memory, streamFor);
  return freedBytes;
}

/** This memory is no longer used, so one wait for a device covers all of it. */
function waitingOnce(): StreamFor {
  const waits = new DeviceWaits();
  return (stream) => waits.streamFor(stream);
}

/**
 * Takes all of them out of the table before any is freed: a resource is foreign code, and may
 * create buffers or sweep.
 */
function takeUnreachable(): OwnedMemory[] {
  if (watchedCount === spare.length) return [];
  if (collected.length < holders.length) collected = new Int32Array(2 * holders.length);
  const count = collectedSlots(collected);
  const unreachable: OwnedMemory[] = [];
  for (let i = 0; i < count; i++) {
    const slot = collected[i] as number;
    const memory = holders[slot]?.memory;
    if (memory === undefined) continue;
    endWatch(slot);
    unreachable.push(memory);
  }
  return unreachable;
}

/** Registers a token, unless there is one, none is needed, or a sweep is running. */
function registerToken(): void {
  if (tokenIsLive || isSweeping || watchedCount + refused.length === 0) return;
  tokenIsLive = true;
  majorCollections.register({}, undefined);
}

/** Whether leak detection is on. */
export function isFindingLeaks(): boolean {
  return leaks.hasSubscribers;
}

/** The stack above the call of a function or a constructor, while leak detection is on. */
export function creationStack(callee: (abstract new (...args: never[]) => unknown) | ((...args: never[]) => unknown)): string | undefined {
  if (!leaks.hasSubscribers) return undefined;
  return captureStack(callee);
}
