/**
 * Groups of blocks; each block is in at most one. A group has the blocks that one scope has
 * allocated, so that the end of the scope finds exactly these.
 *
 * Data structure. A group is a doubly linked list, the latest block first; the links are in one
 * typed array, at the offsets of the blocks' records in `BlockLists`. The numbers of removed groups
 * are reused.
 *
 *     group 0 -> a -> b -> c        group 1 -> d
 *
 * Invariants: a block is in the list of its group and in no other; Σ lengths = count.
 *
 * Cost: constant; `validate` is linear.
 */
import { blockFields } from './block-lists.js';
import { none } from './blocks.js';

// A record is as long as that of the block, although it needs one field less.
const groupField = 0;
const previousField = 1;
const nextField = 2;

export class BlockGroups {
  #records = new Int32Array(0);
  /** By group: its first block. */
  readonly #firsts: number[] = [];
  readonly #vacant: number[] = [];
  #count = 0;

  /** Adds an empty group, and returns its number. */
  addGroup(): number {
    const vacant = this.#vacant.pop();
    return vacant ?? this.#firsts.push(none) - 1;
  }

  /** Removes an empty group. */
  removeGroup(group: number): void {
    this.#vacant.push(group);
  }

  /** The number of blocks in all groups. */
  get count(): number {
    return this.#count;
  }

  /** The block of a group that was added last, or -1. */
  first(group: number): number {
    return this.#firsts[group] as number;
  }

  /** The blocks of a group, the latest first. The group must not change meanwhile. */
  *blocks(group: number): Generator<number> {
    for (let block = this.first(group); block !== none; block = this.#records[block + nextField] as number) yield block;
  }

  /** The group of a block, or -1. */
  groupOf(block: number): number {
    return block < this.#records.length ? (this.#records[block + groupField] as number) : none;
  }

  /** Adds a block that is in no group. */
  add(block: number, group: number): void {
    if (block >= this.#records.length) this.#grow(block);
    const records = this.#records;
    const first = this.#firsts[group] as number;
    records[block + groupField] = group;
    records[block + previousField] = none;
    records[block + nextField] = first;
    if (first !== none) records[first + previousField] = block;
    this.#firsts[group] = block;
    this.#count++;
  }

  /** Removes a block from its group, if it is in one. */
  remove(block: number): void {
    const group = this.groupOf(block);
    if (group === none) return;
    const records = this.#records;
    const previous = records[block + previousField] as number;
    const next = records[block + nextField] as number;
    if (next !== none) records[next + previousField] = previous;
    if (previous !== none) records[previous + nextField] = next;
    else this.#firsts[group] = next;
    records[block + groupField] = none;
    this.#count--;
  }

  /** Throws if an invariant does not hold. For tests. */
  validate(): void {
    let count = 0;
    for (const [group, first] of this.#firsts.entries()) {
      let previous: number = none;
      for (let block = first; block !== none; count++) {
        if (this.groupOf(block) !== group) fail(`block ${block} is in the list of group ${group}, but says ${this.groupOf(block)}`);
        if (this.#records[block + previousField] !== previous) fail(`block ${block} does not point back`);
        previous = block;
        block = this.#records[block + nextField] as number;
      }
    }
    if (count !== this.#count) fail(`counts ${this.#count} blocks, has ${count}`);
    for (const group of this.#vacant) if (this.first(group) !== none) fail(`group ${group} is vacant, but has a block`);
    let marked = 0;
    for (let block = 0; block < this.#records.length; block += blockFields) if (this.groupOf(block) !== none) marked++;
    if (marked !== count) fail(`${marked} blocks say that they are in a group, ${count} are`);
  }

  #grow(block: number): void {
    const records = new Int32Array(Math.max(2 * this.#records.length, block + blockFields, 64 * blockFields)).fill(none);
    records.set(this.#records);
    this.#records = records;
  }
}

function fail(message: string): never {
  throw new Error(`block groups: ${message}`);
}
