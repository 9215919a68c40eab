/**
 * Which buffers V8 has collected, so that their memory can be freed.
 *
 *       buffer ──────────────► memory ──► resource, stream
 *         ▲                      ▲
 *         ┊ weak reference       │
 *     native watch, slot i     owned[i]
 *
 * The table holds what is needed to free a buffer's memory and never the buffer. The weak references are Node-API's: they are seen to be
 * cleared in the very job that collected the buffer, which a `WeakRef` and a `FinalizationRegistry` are not. No buffer is registered with a
 * `FinalizationRegistry`, because V8's minor collections keep what is registered there alive (up to Node 24); a token object is, whose own
 * collection says that there was one.
 *
 * A resource may refuse to free, for example from within a host function, where nothing can be waited for. What nobody else could free then is
 * kept in a list, which the next turn of the event loop tries once, and every sweep tries first.
 *
 * To free is foreign code, which may collect garbage and sweep in turn, for example by an allocation that finds no memory. A sweep within a
 * sweep leaves the list alone, and no token is registered before the outermost one is over: else memory that is always refused would be tried
 * again by each of them, and each try would be the collection that starts the next.
 *
 * Invariants: owned[i] is set ⇔ slot i is watched; Σ set = ownedCount; a memory is in the table exactly while its buffer is not disposed.
 * Cost: O(1) a buffer; a sweep reads every slot, and every memory of the list, once.
 */
import { channel } from 'node:diagnostics_channel';
import { DeviceWaits, type StreamFor } from '../bulk-frees.js';
import { captureStack } from '../call-stack.js';
import { collectedSlots, unwatchObject, watchObject } from '../driver/object-watch.js';
import type { MemoryKind } from '../driver/plain-memory.js';

/** What remains of a buffer that was collected. Must not lead to the buffer. */
export interface OwnedMemory {
  readonly pointer: number;
  readonly bytes: number;
  readonly resource: { readonly memoryKind: MemoryKind };
  /** Where the buffer was made, if anybody wants to know. */
  readonly createdAt: string | undefined;
  /** What people call the buffer. */
  readonly label: string | undefined;
  /** Gives the memory back. Where that is refused, `pointer` is 0 if it is lost for good, else as before. */
  free(streamFor?: StreamFor): void;
}

/**
 * The message of the diagnostics channel `cistern:leak`, published for every buffer that V8 collected before anybody disposed it. Its memory
 * is freed all the same; the message says which `dispose` or `using` is missing. Leak detection is on while the channel has a subscriber.
 * @example
 * ```ts
 * import { subscribe } from 'node:diagnostics_channel';
 *
 * subscribe('cistern:leak', (message) => {
 *   const { bytes, createdAt } = message as BufferLeak;
 *   console.warn(`a buffer of ${bytes} bytes was never disposed; it was made\n${createdAt ?? ''}`);
 * });
 * ```
 */
export interface BufferLeak {
  /** The address the memory had. */
  readonly pointer: number;
  /** The capacity of the buffer, in bytes. */
  readonly bytes: number;
  readonly memoryKind: MemoryKind;
  /** The stack of the constructor call, one frame a line; `undefined` for a buffer that was made before anybody subscribed. */
  readonly createdAt: string | undefined;
  /** The label of the buffer, if it had one. */
  readonly label: string | undefined;
}

const leaks = channel('cistern:leak');
const minimumSweepCount = 1024;

const owned: (OwnedMemory | undefined)[] = [];
let ownedCount = 0;
/** What was refused and may be freed later. */
let refused: OwnedMemory[] = [];
let isSweeping = false;
/** Whether a turn of the event loop that tries what was refused is due. */
let isRetrying = false;
let collected = new Int32Array(minimumSweepCount);
/** A sweep without a collection is due when so many are owned: synchronous code that drops buffers would let the table grow without end. */
let sweepCount = minimumSweepCount;

let tokenIsLive = false;
const majorCollections = new FinalizationRegistry<undefined>(() => {
  tokenIsLive = false;
  freeUnreachableBuffers();
  registerToken();
});

/** Frees `memory` once `owner` is collected, unless {@link disown} comes first. Returns the slot to disown. */
export function own(owner: object, memory: OwnedMemory): number {
  if (ownedCount >= sweepCount) {
    freeUnreachableBuffers();
    sweepCount = Math.max(minimumSweepCount, 2 * ownedCount);
  }
  const slot = watchObject(owner);
  owned[slot] = memory;
  ownedCount++;
  registerToken();
  return slot;
}

/** Ends what {@link own} began. */
export function disown(slot: number): void {
  owned[slot] = undefined;
  ownedCount--;
  unwatchObject(slot);
}

/** How many buffers are watched, and how many slots there are for them. */
export function watchedBuffers(): { readonly count: number; readonly slots: number } {
  return { count: ownedCount, slots: owned.length };
}

/** Frees memory that no buffer has; where that is refused, a later sweep does. Returns how many bytes were freed. Never throws. */
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
  // Most refusals are those of a host function that runs, which is over by then.
  if (isRetrying || isSweeping) return;
  isRetrying = true;
  setImmediate(retryRefused).unref();
}

/** Once for each refusal: what is refused again waits for the next sweep. */
function retryRefused(): void {
  try {
    freeRefused();
  } finally {
    isRetrying = false;
  }
}

/**
 * Frees the memory of every buffer that was collected by now, in the order of its stream, and what was refused before. Returns how many bytes
 * were freed. Never throws.
 */
export function freeUnreachableBuffers(): number {
  if (isSweeping) return freeTaken(takeUnreachable());
  isSweeping = true;
  try {
    const unreachable = takeUnreachable();
    return freeRefused() + freeTaken(unreachable);
  } finally {
    isSweeping = false;
    registerToken();
  }
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
      if (failures++ === 0) firstFailure = error;
      keepRefused(memory);
    }
  }
  if (failures > 0) {
    const others = failures === 1 ? '' : `, and ${failures - 1} more`;
    process.emitWarning(`the memory of an unreachable buffer could not be freed: ${describe(firstFailure)}${others}`, {
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

/** Nobody uses what is freed here any more: one wait for a device covers all of it. */
function waitingOnce(): StreamFor {
  const waits = new DeviceWaits();
  return (stream) => waits.streamFor(stream);
}

/** Takes them all out of the table before any is freed: a resource is foreign code, and may make buffers or sweep itself. */
function takeUnreachable(): OwnedMemory[] {
  if (ownedCount === 0) return [];
  if (collected.length < owned.length) collected = new Int32Array(2 * owned.length);
  const count = collectedSlots(collected);
  const unreachable: OwnedMemory[] = [];
  for (let i = 0; i < count; i++) {
    const slot = collected[i] as number;
    const memory = owned[slot];
    if (memory === undefined) continue;
    disown(slot);
    unreachable.push(memory);
  }
  return unreachable;
}

/** Unless there is one, or nobody needs it, or a sweep goes on. */
function registerToken(): void {
  if (tokenIsLive || isSweeping || (ownedCount === 0 && refused.length === 0)) return;
  tokenIsLive = true;
  majorCollections.register({}, undefined);
}

function describe(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The stack above the call of a function or a constructor, while leak detection is on. */
export function creationStack(callee: (abstract new (...args: never[]) => unknown) | ((...args: never[]) => unknown)): string | undefined {
  if (!leaks.hasSubscribers) return undefined;
  return captureStack(callee);
}
