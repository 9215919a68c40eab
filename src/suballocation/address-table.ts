import { AddressMap } from './address-map.js';
import { none } from './blocks.js';

/**
 * Maps addresses to objects. A `Map` that is keyed by addresses becomes many times slower while addresses come and go,
 * since V8 stores them as objects, and hashes them anew.
 *
 * Data structure: an `AddressMap` has, for each address, the place of its object in an array, whose free places are
 * reused. Cost: constant time for each call.
 */
export class AddressTable<T> {
  readonly #places = new AddressMap();
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
    }
    this.#values[place] = value;
  }

  /** Removes an address. Returns its value, if the table held it. */
  take(address: number): T | undefined {
    const place = this.#places.take(address);
    if (place === none) return undefined;
    const value = this.#values[place];
    this.#values[place] = undefined;
    this.#vacant.push(place);
    return value;
  }

  /** The values, in no order. */
  *values(): Generator<T> {
    for (const value of this.#values) if (value !== undefined) yield value;
  }
}
