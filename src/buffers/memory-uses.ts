import type { OwnedMemory } from '../collector/free-unreachable-buffers.js';
import type { Stream } from '../driver/streams/stream.js';
import { type HostArray, HostArrays } from './transfers/host-arrays.js';

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

/**
 * The uses of one piece of memory apart from its buffer's stream. Arrays of the host end before the buffer
 * releases the memory; outside uses may go on, and the memory then outlives its buffer.
 */
export class MemoryUses {
  #hostArrays: HostArrays | undefined;
  #outside: OutsideUse[] = [];

  /** Whether there is any outside use. */
  get areAnyOpen(): boolean {
    return this.#outside.some(({ isOpen }) => isOpen);
  }

  /** The outside use of a kind. */
  find<Use extends OutsideUse>(kind: abstract new (...args: never[]) => Use): Use | undefined {
    return this.#outside.find((use) => use instanceof kind) as Use | undefined;
  }

  add(use: OutsideUse): void {
    this.#outside.push(use);
  }

  /** An array of the host that contains a range of the memory. */
  hostArray(byteOffset: number, bytes: number, memory: OwnedMemory): HostArray {
    this.#hostArrays ??= new HostArrays();
    return this.#hostArrays.containing(byteOffset, bytes, memory.pointer, memory.bytes);
  }

  /** Detaches the host's arrays. */
  endHostArrays(): void {
    this.#hostArrays?.end();
  }

  /** The resource takes the memory back: it does not wait for those that cannot hold it. */
  forgetOthers(): void {
    this.#outside = this.#outside.filter(({ holdsFromResource }) => holdsFromResource);
  }

  /**
   * Prevents all outside uses until `reopen`, if there are none. Returns the one that there is; nothing has
   * changed then.
   * @param isTakenBack whether the resource takes the memory back, so that only those count that can hold it
   */
  closeIfUnused(isTakenBack: boolean): OutsideUse | undefined {
    const asked = isTakenBack ? this.#outside.filter(({ holdsFromResource }) => holdsFromResource) : this.#outside;
    const used = asked.findIndex((use) => !use.closeIfUnused());
    if (used === -1) return undefined;
    for (const use of asked.slice(0, used)) use.reopen();
    return asked[used];
  }

  /**
   * The buffer releases the memory: nobody can begin to use it any more. Returns one of those who still do, who
   * can free it in the end.
   */
  close(): OutsideUse | undefined {
    const used = this.#outside.filter((use) => !use.close());
    return used[0];
  }

  /** Undoes `close` or `closeIfUnused`. */
  reopen(): void {
    for (const use of this.#outside) use.reopen();
  }

  /** Nobody uses the closed memory any more. */
  end(): void {
    for (const use of this.#outside) use.end();
    this.#outside = [];
  }
}
