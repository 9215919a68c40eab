/**
 * The origin of a buffer's memory, which decides how the memory may be used. A buffer asks the origin
 * of its memory, and never checks its class.
 *
 *     allocated   by its resource, for this buffer: whatever names no other origin
 *     attached    from another worker, or shared with some
 *     imported    from another process
 *     foreign     from another library
 *
 * All but the first are resources with one piece of memory, which allocate nothing, and belong to the
 * capability that brings the memory in.
 */

import type { OwnedMemory } from '../collector/free-unreachable-buffers.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import type { StreamFor } from '../ownership/bulk-frees.js';

/** The property with which a resource names the origin of its memory. */
export const origin = Symbol('origin');

/** What the origin of a piece of memory decides. */
export interface Origin {
  /** Whether the bytes count as held by this environment, which collects garbage before it holds too many. */
  readonly isCounted: boolean;
  /** Whether other workers may be reading the memory, so that nobody may write to it. */
  readonly isShared: boolean;
  /** Why other workers cannot get the memory, as a clause; `undefined` if its origin does not prevent it. */
  readonly notToWorkers: string | undefined;
  /** Why other processes cannot use the memory, as a clause; `undefined` if its origin does not prevent it. */
  readonly notToProcesses: string | undefined;
  /** A buffer takes over memory that the program, or a thread of it, has allocated. */
  adopted?(pointer: DevicePointer, bytes: number): void;
  /** Frees memory that a resource takes back while a buffer has it, if `BufferMemory.free` is not enough. */
  end?(memory: OwnedMemory, streamFor: StreamFor): void;
}

/** A resource whose memory has another origin than its own `allocate` for a buffer. */
export interface ResourceWithOrigin extends MemoryResource {
  readonly [origin]: Origin;
}

/** Memory that its resource allocated. */
export const allocated: Origin = {
  isCounted: true,
  isShared: false,
  notToWorkers: undefined,
  notToProcesses: undefined,
};

/** The origin of the memory of a resource. */
export function originOf(resource: MemoryResource): Origin {
  return (resource as Partial<ResourceWithOrigin>)[origin] ?? allocated;
}
