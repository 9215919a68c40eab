/**
 * Which graph has an allocation at an address. Graphs share memory, so that several may have one at the same address; the
 * program frees it by address and size, and each of them only gives it up: the graphs go on using the memory.
 */

import { alreadyFreed, wrongSize } from '../basics/errors.js';
import { assertBytes, assertPointer } from '../basics/validation.js';
import type { DevicePointer } from '../memory-resource.js';
import { AddressTable } from '../suballocation/address-table.js';
import type { CapturedMemory } from './captured-memory.js';

/** An allocation of a graph, which the program may give up by its address. */
export interface Owned {
  readonly bytes: number;
  readonly memory: CapturedMemory;
  isGivenUp: boolean;
}

export class AddressesOfGraphs {
  readonly #owned = new AddressTable<Owned[]>();

  has(pointer: DevicePointer): boolean {
    return this.#owned.has(pointer);
  }

  /** A graph has an allocation at the address from now on. */
  add(pointer: DevicePointer, bytes: number, memory: CapturedMemory): void {
    const all = this.#owned.get(pointer);
    const owned = { bytes, memory, isGivenUp: false };
    memory.pointers.push(pointer);
    if (all === undefined) this.#owned.set(pointer, [owned]);
    else all.push(owned);
  }

  /** Whether a graph has an allocation at an address, of a size if one is given. */
  isOf(memory: CapturedMemory, pointer: DevicePointer, bytes?: number): boolean {
    return this.#owned.get(pointer)?.some((each) => each.memory === memory && (bytes === undefined || each.bytes === bytes)) === true;
  }

  /** Whether no other graph has an allocation at the address. */
  isOnlyOf(memory: CapturedMemory, pointer: DevicePointer): boolean {
    return this.#owned.get(pointer)?.every((each) => each.memory === memory) === true;
  }

  /** Whether a graph has an allocation of the size there that was not given up. */
  isHeld(pointer: DevicePointer, bytes: number): boolean {
    return this.#owned.size > 0 && this.#owned.get(pointer)?.some((each) => each.bytes === bytes && !each.isGivenUp) === true;
  }

  /**
   * The allocation that a free means, of all at the address: the latest one, or that of the graph whose memory is being
   * taken back.
   * @param refusal begins the message of an error
   * @throws LifetimeError if none has the size, or all were given up
   */
  meantBy(pointer: DevicePointer, bytes: number, ending: CapturedMemory | undefined, refusal: string): Owned {
    assertPointer(pointer);
    assertBytes(bytes);
    const all = this.#owned.get(pointer) as Owned[];
    const alike = all.filter((each) => each.bytes === bytes);
    if (alike.length === 0) throw wrongSize(refusal, bytes, (all.at(-1) as Owned).bytes);
    const left = alike.filter((each) => !each.isGivenUp);
    const found = left.find(({ memory }) => memory === ending) ?? left.at(-1);
    if (found === undefined) throw alreadyFreed(refusal);
    return found;
  }

  /** The memory of a graph has ended. */
  forget(memory: CapturedMemory): void {
    for (const pointer of new Set(memory.pointers)) {
      const all = this.#owned.get(pointer) as Owned[];
      const others = all.filter((each) => each.memory !== memory);
      if (others.length === 0) this.#owned.delete(pointer);
      else if (others.length < all.length) this.#owned.set(pointer, afterEndOf(memory, all, others));
    }
  }
}

/**
 * What others have at an address when the memory of a graph ends. Of two graphs with an output of the same
 * size there, it is not known whose was given up: what is left can be given up once more.
 */
function afterEndOf(memory: CapturedMemory, all: readonly Owned[], others: Owned[]): Owned[] {
  for (const ended of all) {
    if (ended.memory !== memory || ended.isGivenUp) continue;
    const other = others.find(({ bytes, isGivenUp }) => bytes === ended.bytes && isGivenUp);
    if (other !== undefined) other.isGivenUp = false;
  }
  return others;
}
