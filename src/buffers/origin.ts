/**
 * The origin of a buffer's memory, which decides how the memory may be used. A buffer asks the origin
 * of its memory, and never checks its class.
 *
 *     allocated   by its resource, for this buffer: whatever names no other origin
 *     attached    from another worker, or shared with some
 *     imported    from another process
 *     foreign     from another library
 *
 * All but the first are resources with one piece of memory, which allocate nothing. Such a class is
 * its own origin, so a new origin needs only one file here.
 */
import type { BufferMessage } from '../driver/workers/hand-over.js';
import type { MemoryResource } from '../memory-resource.js';
import type { StreamFor } from '../ownership/bulk-frees.js';
import type { BufferMemory } from './buffer-memory.js';

/** The property with which a resource names the origin of its memory. */
export const origin = Symbol('origin');

/** What the origin of a piece of memory decides. */
export interface Origin {
  /** Whether the bytes count as held by this environment, which collects garbage before it holds too many. */
  readonly isCounted: boolean;
  /** Whether other workers may be reading the memory, so that nobody may write to it. */
  readonly isShared: boolean;
  /** How to hand the memory over to other workers; or, as a clause, why that is impossible. */
  readonly toWorkers: HandOvers | string;
  /** Why other processes cannot use the memory, as a clause; `undefined` if its origin does not prevent it. */
  readonly notToProcesses: string | undefined;
  /** Frees memory that a resource takes back while a buffer has it, if `BufferMemory.free` is not enough. */
  end?(memory: BufferMemory, streamFor: StreamFor): void;
}

/**
 * How memory is handed over to other workers. If it throws, nothing changes, except that host views have no
 * bytes.
 */
export interface HandOvers {
  /** Hands the memory over to another worker: the object that had it then has none. */
  give(memory: BufferMemory): BufferMessage;
  /** Shares the memory with other workers. */
  share(memory: BufferMemory): SharedMemory;
}

/** Memory that was just shared. */
export interface SharedMemory {
  readonly message: BufferMessage;
  /**
   * The memory that the buffer uses from now on; the same object as before if it was already shared.
   */
  readonly memory: BufferMemory;
}

/** A resource of memory that it did not allocate. */
export interface ResourceWithOrigin extends MemoryResource {
  readonly [origin]: Origin;
}
