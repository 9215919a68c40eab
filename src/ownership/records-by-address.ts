/**
 * Finds records by an address, of which several may have the same: memory that a buffer owns, and views of it.
 *
 *     AddressMap: address ─► latest record ─► the one before it at the same address ─► … ─► none
 */
import { AddressMap } from '../suballocation/address-map.js';
import { none } from '../suballocation/blocks.js';

export class RecordsByAddress {
  readonly #latest = new AddressMap();
  /** By record, if it has an address. */
  readonly #before: number[] = [];

  add(address: number, record: number): void {
    this.#before[record] = this.#latest.get(address);
    this.#latest.insert(address, record);
  }

  /** Removes a record that was added with the address. */
  remove(address: number, record: number): void {
    const before = this.#before[record] as number;
    let later = this.#latest.get(address);
    if (later === record) {
      if (before === none) this.#latest.remove(address);
      else this.#latest.insert(address, before);
      return;
    }
    while (this.#before[later] !== record) later = this.#before[later] as number;
    this.#before[later] = before;
  }

  /** The latest record at an address for which a condition holds, or `none`. */
  find(address: number, isWanted: (record: number) => boolean): number {
    let record = this.#latest.get(address);
    while (record !== none && !isWanted(record)) record = this.#before[record] as number;
    return record;
  }
}
