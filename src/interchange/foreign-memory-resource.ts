/**
 * Memory that neither cistern nor its driver pools allocated, behind the interface of a resource, so
 * that a buffer can own it like any other. Each object stands for one piece of memory.
 *
 *     live ── deallocate ──► ending ── the stream's work has run ──► released
 *                │                                                      ▲
 *                └── the stream has nothing to do ──────────────────────┘
 *
 * The owner of memory without stream order may reuse it immediately, on any stream. So it is
 * released only after the work queued on the freeing stream has run. No thread waits for that: an
 * event is recorded, and the event loop goes on. But if the resource that allocated the memory takes
 * it back meanwhile, it waits for the event, because `release` must run first.
 *
 * Invariants: `release` is called at most once; owned memory is in `unreleased` until `release` is
 * called.
 */

import { alreadyFreed, attemptEach, formatPointer, notAllocatedHere, UnsupportedError, wrongSize } from '../basics/errors.js';
import { assertBytes, assertPointer } from '../basics/validation.js';
import { type Origin, origin } from '../buffers/origin.js';
import { type Device, type MemoryKind, usedDevices } from '../driver/device.js';
import { type Event, recordedEvent } from '../driver/streams/event.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import { type Inspection, inspected, inspectedPointer, inspectObject, refuseCloning } from '../driver/workers/local-object.js';
import type { DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { addOwner, endOwnersOf, removeOwner, type StreamFor } from '../ownership/bulk-frees.js';
import { stackName } from '../resource-kind.js';

const whyNotGiven = 'its memory was wrapped, so its owner may take it back while others use it';

/** Memory that its owner keeps. */
const borrowed: Origin = {
  isCounted: false,
  isShared: false,
  notToWorkers: whyNotGiven,
  notToProcesses: whyNotGiven,
};

/** Memory that is released to its owner. */
const owned: Origin = {
  ...borrowed,
  isCounted: true,
  // Released as soon as the stream has run its work.
  end: (memory, streamFor) => memory.free((stream) => afterWait(streamFor(stream))),
};

/** Owned memory that is still to be released. */
const unreleased = new Set<ForeignMemoryResource>();
/** Whether the environment ends, so that nothing can be reported later. */
let isExiting = false;

/** The memory of a {@link ForeignMemoryResource}. */
export interface ForeignMemory {
  /** The address of the first byte; 0 if there are no bytes. */
  readonly ptr: DevicePointer;
  readonly byteLength: number;
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  /** Returns the memory to its owner; `undefined` if there is nothing to call. */
  readonly release: (() => void) | undefined;
  /** Whether somebody else keeps the memory, so that its end frees nothing. */
  readonly isBorrowed: boolean;
}

/**
 * The resource of a buffer from {@link wrapMemory}: one piece of memory that was allocated
 * elsewhere. It allocates nothing, so a buffer cannot grow in it, and frees that one piece, once.
 *
 * Stream order: a free does nothing to borrowed memory. Owned memory is released once the work
 * queued on the freeing stream has run. The alignment is that of the address.
 *
 * RMM has no counterpart; its users write a `device_memory_resource`, or keep the owner next to a
 * `device_span`.
 * @example
 * ```ts
 * using stream = new Stream();
 * using wrapped = wrapMemory({ ptr: buffer.ptr, byteLength: buffer.byteLength, stream });
 * console.log(wrapped.resource instanceof ForeignMemoryResource); // true
 * ```
 */
export class ForeignMemoryResource implements MemoryResource {
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  /** @internal Whether somebody else keeps the memory, so that its end frees nothing. */
  readonly isBorrowed: boolean;
  readonly #pointer: DevicePointer;
  readonly #bytes: number;
  #release: (() => void) | undefined;
  #isFreed = false;
  /** The event after which the memory is released, once the buffer no longer has it. */
  #ending: Event | undefined;
  /** @internal */
  ownerRecord = 0;

  /** @internal Buffers make it. Owns nothing before {@link ForeignMemoryResource.own}. */
  constructor({ ptr, byteLength, memoryKind, device, release, isBorrowed }: ForeignMemory) {
    this.memoryKind = memoryKind;
    this.device = device;
    this.#pointer = ptr;
    this.#bytes = byteLength;
    this.#release = release;
    this.isBorrowed = isBorrowed;
    refuseCloning(this);
  }

  /** The stack as a specification writes it, without options: `foreign`. */
  toString(): string {
    return stackName(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    const { memoryKind, device } = this;
    const fields = {
      device: device.index,
      memoryKind,
      ptr: inspectedPointer(this.#pointer),
      byteLength: this.#bytes,
      isFreed: this.#isFreed || undefined,
    };
    return inspectObject(this, fields, inspection);
  }

  /** @internal */
  get [origin](): Origin {
    return this.isBorrowed ? borrowed : owned;
  }

  /**
   * @internal Takes ownership: from now on, the memory will be released. Memory without bytes is
   * released immediately.
   */
  own(): void {
    if (this.#release === undefined) return;
    if (unreleased.size === 0) process.on('exit', releaseAll);
    unreleased.add(this);
    if (this.#pointer !== 0) return;
    this.#isFreed = true;
    this.end();
  }

  /**
   * Zero bytes give the null pointer.
   * @throws UnsupportedError for other sizes, because there is no more of this memory. To move a
   * buffer to another resource, use {@link DeviceBuffer.recast}.
   */
  allocate(bytes: number, stream: Stream, _alignment?: number): DevicePointer {
    assertBytes(bytes);
    assertStream(stream, 'allocate');
    if (bytes === 0) return 0;
    throw new UnsupportedError(
      `cannot allocate ${bytes} bytes: foreign memory has only the ${this.#bytes} bytes at ${formatPointer(this.#pointer)}; recast the buffer to another resource, or pass one`,
    );
  }

  /**
   * Releases the memory once the work queued on `stream` has run: during this call if it has
   * already run, otherwise from the event loop, possibly after `stream` was disposed. An error of
   * the owner's function is reported as an uncaught exception; while the environment ends, it is
   * printed, and the exit code is 1. A fence is ignored, because the wait covers it.
   * @throws LifetimeError for any other memory, or a second free; DriverError if the driver cannot
   * record an event. Nothing is then released.
   */
  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, _fence?: DeallocationFence): void {
    assertPointer(pointer);
    assertBytes(bytes);
    assertStream(stream, 'deallocate');
    if (this.memoryKind === 'device') assertStreamOf(stream, this.device, 'deallocate');
    if (pointer === 0) return;
    const refusal = `the ${this.constructor.name} cannot free ${formatPointer(pointer)}`;
    if (pointer !== this.#pointer) throw notAllocatedHere(refusal);
    if (this.#isFreed) throw alreadyFreed(refusal);
    if (bytes !== this.#bytes) throw wrongSize(refusal, bytes, this.#bytes);
    if (this.#release === undefined) {
      this.#isFreed = true;
    } else if (stream.query()) {
      this.#isFreed = true;
      this.end();
    } else {
      const event = recordedEvent(stream);
      this.#isFreed = true;
      this.#endAfter(event);
    }
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /** Does nothing: the memory is released when its buffer is disposed. */
  [Symbol.dispose](): void {}

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {}

  /** @internal The address while somebody must still release the memory. */
  get pointer(): DevicePointer {
    return this.#release === undefined ? 0 : this.#pointer;
  }

  /** @internal The resource that frees the memory. */
  get resource(): MemoryResource {
    return this;
  }

  /** @internal Blocks until the work before the release has run, and releases the memory. */
  endMemory(_reason: string, _streamFor: StreamFor): void {
    this.#ending?.synchronizeSync();
    this.end();
  }

  /** @internal Releases the memory, which no work uses any more, unless it is already released. */
  end(): void {
    const release = this.#release;
    if (release === undefined) return;
    this.#release = undefined;
    unreleased.delete(this);
    if (this.#ending !== undefined) removeOwner(this);
    if (unreleased.size === 0) process.off('exit', releaseAll);
    try {
      release();
    } catch (error) {
      report(error);
    }
  }

  async #endAfter(event: Event): Promise<void> {
    this.#ending = event;
    addOwner(this);
    try {
      await event.synchronize();
    } catch {
      try {
        await event.synchronize();
      } catch {} // The device is in error, and runs nothing any more.
    }
    try {
      event.dispose();
    } catch {} // It is destroyed when the event is collected.
    this.end();
  }
}

function afterWait(stream: Stream): Stream {
  stream.synchronizeSync();
  return stream;
}

/**
 * Releases everything at the end of the process or the worker: buffers first, so that later code
 * finds them disposed. If the wait for a device fails, its work may still use the memory, which is
 * then not released.
 */
function releaseAll(): void {
  if (attemptEach(usedDevices(), (device) => device.synchronizeSync()).length > 0) return;
  isExiting = true;
  endOwnersOf(unreleased, 'the environment ends');
  for (const memory of unreleased) memory.end();
}

/** Reports the error of an owner's function, which nobody can catch. */
function report(error: unknown): void {
  if (!isExiting) {
    process.nextTick(() => {
      throw error;
    });
    return;
  }
  // An exception would keep the other listeners from running, which write recordings to their files.
  console.error(error);
  if (Number(process.exitCode ?? 0) === 0) process.exitCode = 1;
}
