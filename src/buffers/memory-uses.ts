import { freeSoonerOrLater } from '../collector/free-unreachable-buffers.js';
import type { Stream } from '../driver/streams/stream.js';
import type { BufferMemory } from './buffer-memory.js';
import { Consumers } from './interchange/consumers.js';
import { ProcessExport } from './sharing/process-export.js';
import { endLater } from './sharing/wait-for-processes.js';
import { type HostArray, HostArrays } from './transfers/host-arrays.js';

/**
 * How one piece of memory is used besides by its buffer's stream: the host's arrays end before the memory
 * is given up; consumers of tensors and other processes may go on, and the memory then outlives its buffer.
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

  /** The resource takes the memory back, and does not wait for consumers. */
  forgetConsumers(): void {
    this.#consumers = undefined;
  }

  /**
   * Lets other processes open the memory, after what is queued on the stream by now. Returns the
   * handle; `undefined` if the driver cannot share the memory.
   */
  export({ pointer, bytes, byteLength, alignment }: BufferMemory, stream: Stream): Buffer | undefined {
    if (this.#processes !== undefined) this.#processes.refresh(byteLength, stream);
    else this.#processes = ProcessExport.begin({ pointer, bytes, byteLength, alignment }, stream);
    return this.#processes?.handle;
  }

  /** No process can open the memory any more, and no other uses it. */
  endExport(): void {
    this.#processes?.end();
    this.#processes = undefined;
  }

  /**
   * The buffer gives the memory up: no other process can open it any more. Returns whether somebody still
   * uses it.
   */
  close(): boolean {
    const isUsedElsewhere = this.#processes?.close() === false;
    return this.isConsumed || isUsedElsewhere;
  }

  /** Undoes `close`. */
  reopen(): void {
    this.#processes?.reopen();
  }

  /** The last of those that use the memory frees it. */
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
