import { AddressMap } from './address-map.js';
import { none } from './blocks.js';

/**
 * Maps addresses to objects: a `Map` for addresses that come and go. V8 stores addresses as objects, and its own `Map`s and
 * `Set`s of them take up to a hundred times longer for the same call once many have been added and removed.
 *
 * Data structure: an `AddressMap` has, for each address, the place of its value in an array, whose free places are
 * reused. Cost: constant time for each call, without an object.
 */
export class AddressTable<T> {
  readonly #places = new AddressMap();
  /** By place; the address of a free place is -1. */
  readonly #addresses: number[] = [];
  readonly #values: (T | undefined)[] = [];
  readonly #vacant: number[] = [];

  /** The number of addresses in the table. */
  get size(): number {
    return this.#places.count;
  }

  has(address: number): boolean {
    return this.#places.get(address) !== none;
  }

  get(address: number): T | undefined {
    const place = this.#places.get(address);
    return place === none ? undefined : this.#values[place];
  }

  /** Adds an address, or replaces the value of one that the table holds. */
  set(address: number, value: T): void {
    let place = this.#places.get(address);
    if (place === none) {
      place = this.#vacant.pop() ?? this.#values.length;
      this.#places.insert(address, place);
      this.#addresses[place] = address;
    }
    this.#values[place] = value;
  }

  /** Removes an address. Returns whether the table held it. */
  delete(address: number): boolean {
    const place = this.#places.take(address);
    if (place === none) return false;
    this.#addresses[place] = none;
    this.#values[place] = undefined;
    this.#vacant.push(place);
    return true;
  }

  /** The addresses and their values, in no order. Those that were removed meanwhile are left out. */
  *[Symbol.iterator](): Generator<[address: number, value: T]> {
    for (let place = 0; place < this.#addresses.length; place++) {
      const address = this.#addresses[place] as number;
      if (address !== none) yield [address, this.#values[place] as T];
    }
  }

  /** The values, in no order. */
  *values(): Generator<T> {
    for (const [, value] of this) yield value;
  }
}
