import type { OwnedMemory } from '../collector/free-unreachable-buffers.js';
import type { Stream } from '../driver/streams/stream.js';

/** Memory with an owner, and the stream that it is ordered on. */
export interface OrderedMemory extends OwnedMemory {
  readonly stream: Stream;
}

/**
 * A way in which others use the memory of a buffer apart from its stream, such as the consumer of a tensor, or
 * another process. It may go on when the buffer has released the memory, which then outlives its buffer.
 */
export interface OutsideUse {
  /** Whether others use the memory now, or can begin to. */
  readonly isOpen: boolean;
  /** Who uses the memory, and that they do, as in `another process uses`. */
  readonly description: string;
  /** Whether a resource may not take memory back that is used in this way. */
  readonly holdsFromResource: boolean;
  /** If nobody uses the memory, prevents it until `reopen`. Returns whether nobody does; otherwise nothing changes. */
  closeIfUnused(): boolean;
  /** The buffer releases the memory: nobody can begin to use it until `reopen`. Returns whether nobody uses it. */
  close(): boolean;
  /** Undoes `close` or `closeIfUnused`. */
  reopen(): void;
  /** Nobody uses the closed memory any more, and it is freed or has another owner. */
  end(): void;
  /** Frees closed memory after its last use. */
  leave(memory: OrderedMemory): void;
}
