import { freeSoonerOrLater } from '../collector/free-unreachable-buffers.js';
import type { Stream } from '../driver/streams/stream.js';
import type { BufferMemory } from './buffer-memory.js';
import { Consumers } from './interchange/consumers.js';
import { ProcessExport } from './sharing/process-export.js';
import { endLater } from './sharing/wait-for-processes.js';
import { type HostArray, HostArrays } from './transfers/host-arrays.js';

/**
 * The uses of one piece of memory apart from its buffer's stream. Arrays of the host end before the buffer
 * releases the memory; consumers of tensors and other processes may go on, and the memory then outlives its
 * buffer.
 */
export class MemoryUses {
  #hostArrays: HostArrays | undefined;
  #consumers: Consumers | undefined;
  /** Set while other processes can open the memory, or use it. */
  #processes: ProcessExport | undefined;

  /** Whether the consumer of a tensor uses the memory. */
  get isConsumed(): boolean {
    return this.#consumers?.isInUse === true;
  }

  get processes(): ProcessExport | undefined {
    return this.#processes;
  }

  /** An array of the host that contains a range of the memory. */
  hostArray(byteOffset: number, bytes: number, memory: BufferMemory): HostArray {
    this.#hostArrays ??= new HostArrays();
    return this.#hostArrays.containing(byteOffset, bytes, memory.pointer, memory.bytes);
  }

  /** Detaches the host's arrays. */
  endHostArrays(): void {
    this.#hostArrays?.end();
  }

  /** Begins a consumer's use: until it ends, the memory is not freed. */
  consume(memory: BufferMemory): Consumers {
    if (!this.isConsumed) this.#consumers = new Consumers(memory);
    (this.#consumers as Consumers).begin();
    return this.#consumers as Consumers;
  }

  /** Called when the resource takes the memory back, which does not wait for consumers. */
  forgetConsumers(): void {
    this.#consumers = undefined;
  }

  /**
   * Lets other processes open the memory, ordered after the work queued on the stream so far.
   * Returns the handle, or `undefined` if the driver cannot share the memory.
   */
  export({ pointer, bytes, byteLength, alignment }: BufferMemory, stream: Stream): Buffer | undefined {
    if (this.#processes !== undefined) this.#processes.refresh(byteLength, stream);
    else this.#processes = ProcessExport.begin({ pointer, bytes, byteLength, alignment }, stream);
    return this.#processes?.handle;
  }

  /** Called when no process uses the memory, or can open it any more. */
  endExport(): void {
    this.#processes?.end();
    this.#processes = undefined;
  }

  /**
   * The buffer releases the memory: no other process can open it any more. Returns whether it is still
   * used.
   */
  close(): boolean {
    const isUsedElsewhere = this.#processes?.close() === false;
    return this.isConsumed || isUsedElsewhere;
  }

  /** Undoes `close`. */
  reopen(): void {
    this.#processes?.reopen();
  }

  /** Lets the last user of the memory free it. */
  leaveTo(memory: BufferMemory): void {
    if (this.isConsumed) (this.#consumers as Consumers).keep(memory);
    else endLater({ endIfOver: () => this.#endIfUnused(memory) });
  }

  /** Frees memory that no buffer has any more, once no other process uses it. */
  #endIfUnused(memory: BufferMemory): boolean {
    if (this.#processes?.isUsed === true) return false;
    freeSoonerOrLater(memory);
    return true;
  }
}
