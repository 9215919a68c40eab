/**
 * Hands memory of this environment over to other workers. Another object represents it until it has been
 * returned: see `bring-home-from-workers.ts`.
 */
import { deviceOfMemory } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { CisternError, formatPointer } from '../basics/errors.js';
import { BufferMemory } from '../buffers/buffer-memory.js';
import type { Stream } from '../driver/streams/stream.js';
import type { StreamFor } from '../ownership/bulk-frees.js';
import { adoptInScope } from '../scopes/resource-scope.js';
import { type HandedMemory, type HandOver, handOver, recall } from './hand-over.js';
import { expectReturn, freeReturned } from './take-returned-memory.js';

/** Memory that other workers have, with everything needed to free it. */
class AwayMemory extends BufferMemory {
  /** The number of the hand-over; none once the memory has been returned. */
  #handOver: number | undefined;

  /** Takes ownership of the memory that was handed over. */
  stay(handOver: number, from: BufferMemory): void {
    const { pointer, bytes, home } = from;
    this.#handOver = handOver;
    expectReturn(handOver, this);
    from.release();
    this.hold(pointer, bytes);
    // The end of a run must not take it back.
    this.leaveScopes();
    adoptInScope(pointer, this, home);
  }

  comeHome(stream: Stream): void {
    this.#handOver = undefined;
    this.stream = stream;
  }

  override endMemory(reason: string, streamFor: StreamFor): void {
    if (this.#handOver !== undefined) this.#bringHome(this.#handOver);
    super.endMemory(reason, streamFor);
  }

  /** @throws CisternError if another worker uses the memory. */
  #bringHome(handOver: number): void {
    recall(handOver);
    freeReturned(true);
    if (this.#handOver === undefined) return;
    throw new CisternError(
      'ERR_CISTERN_INVALID_STATE',
      `cannot take ${formatPointer(this.pointer)} back: another worker uses these ${this.bytes} bytes`,
    );
  }
}

/** The description of memory for other workers. */
export function handedMemory({ resource, alignment, byteLength, pointer, bytes }: BufferMemory): HandedMemory {
  return { pointer, bytes, byteLength, alignment, memoryKind: resource.memoryKind, device: deviceOfMemory(resource, pointer) };
}

/**
 * Hands memory over, ordered after the work queued on its stream: the object then has none. If it
 * throws, the state is unchanged.
 * @returns a message that can be attached once; or, if the memory is shared, any number of times
 */
export function giveToWorker(memory: BufferMemory, isShared: boolean): HandOver {
  const { origin, resource, stream, alignment, label, createdAt } = memory;
  const given = handedMemory(memory);
  const away = new AwayMemory(origin, resource, stream, alignment, label, createdAt);
  const handedOver = handOver(given, stream, isShared, label);
  away.stay(handedOver.handOver, memory);
  return handedOver;
}
