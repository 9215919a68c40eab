/** What memory checkers of others are told about pools: the memory extension of NVTX. */
import { PassThroughAdaptor } from '../adaptors/pass-through/pass-through-adaptor.js';
import { native } from '../driver/native.js';
import { check } from '../driver/status.js';
import type { Stream } from '../driver/streams/stream.js';
import { assertMemoryResource, type DeallocationFence, type DevicePointer, type MemoryResource } from '../memory-resource.js';
import { setting } from '../settings.js';

/** What native/addon/tool_memory.cc counts from 0. */
const heap = { begins: 0, ends: 1, endsFirst: true };
const region = { begins: 2, ends: 3, endsFirst: false };

/** Whether a tool listens in this process; asked once, since a program is started under a tool. */
let isListening: boolean | undefined;

/**
 * Whether a memory checker, such as `compute-sanitizer`, wants to be told about the memory of pools. It names itself in `NVTX_INJECTION64_PATH`, which is read
 * at the first call. If it cannot be told, a process warning with the code `CISTERN_TOOL_MEMORY` says why.
 */
export function isToolListening(): boolean {
  if (isListening !== undefined) return isListening;
  const path = setting('NVTX_INJECTION64_PATH');
  if (path === undefined) {
    isListening = false;
    return false;
  }
  const failure = native().openToolMemory(path);
  check('open the library of a tool');
  isListening = failure === '';
  if (!isListening) process.emitWarning(`no tool is told about the memory of pools: ${failure}`, { code: 'CISTERN_TOOL_MEMORY' });
  return isListening;
}

/**
 * Tells a memory checker that what `upstream` allocates belongs to a pool, which gives parts of it to others. Put this below a pool, and {@link announceAllocations}
 * above it.
 * @returns `upstream` itself if no tool listens, so that nothing costs anything then
 * @throws ArgumentTypeError if it is not a resource
 */
export function announcePools(upstream: MemoryResource): MemoryResource {
  return announced(upstream, heap);
}

/**
 * Tells a memory checker which memory is allocated. It then reports a kernel that uses what is free in a pool, such as one that writes past the end of an
 * allocation, which the device itself does not notice.
 *
 * A tool learns of a free at the time of the call, and not in stream order: run it in such a way that each launch is awaited.
 * @example
 * ```ts
 * using pool = new PoolMemoryResource(announcePools(new CudaMemoryResource()));
 * const resource = announceAllocations(pool); // the pool itself, unless a tool listens
 * ```
 * @returns `upstream` itself if no tool listens
 * @throws ArgumentTypeError if it is not a resource
 */
export function announceAllocations(upstream: MemoryResource): MemoryResource {
  return announced(upstream, region);
}

function announced(upstream: MemoryResource, what: AnnouncedEvents): MemoryResource {
  assertMemoryResource(upstream, 'upstream');
  return isToolListening() ? new AnnouncingResourceAdaptor(upstream, what) : upstream;
}

interface AnnouncedEvents {
  readonly begins: number;
  readonly ends: number;
  /** Another worker may be given the memory of a pool, at the same address, as soon as the driver has it. What is within a pool stays with its worker. */
  readonly endsFirst: boolean;
}

class AnnouncingResourceAdaptor extends PassThroughAdaptor {
  readonly #what: AnnouncedEvents;

  constructor(upstream: MemoryResource, what: AnnouncedEvents) {
    super(upstream, {});
    this.#what = what;
  }

  /** An allocation that grew in place would be parts of several pools to the tool. */
  override keepsPages(): boolean {
    return false;
  }

  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
    tell(this.#what.begins, pointer, bytes);
    return pointer;
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const { begins, ends, endsFirst } = this.#what;
    if (endsFirst) tell(ends, pointer, bytes);
    try {
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence));
    } catch (error) {
      if (endsFirst) tell(begins, pointer, bytes);
      throw error;
    }
    if (!endsFirst) tell(ends, pointer, bytes);
  }
}

function tell(what: number, pointer: DevicePointer, bytes: number): void {
  if (pointer === 0) return;
  native().tellToolMemory(what, pointer, bytes);
  check('tell a tool about memory');
}
