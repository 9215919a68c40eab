/**
 * Maps addresses to small integers, to look a block up by its pointer.
 *
 * Data structure: open addressing with linear probing over two typed arrays of a power-of-two
 * length, at most a quarter full. A removal shifts the following entries back, so there are no
 * tombstones, and a map that never holds more than n entries does not degrade.
 *
 *     home(k) = the topmost log2(length) of the 32 bits of k / 256 · 2^32 / φ
 *     keys    [ . | a | b | . | c | . ]      b's home may be a's cell; no empty cell lies between b's home and b
 *
 * Invariants: every key is in [home, first empty cell after home); keys are distinct; count ≤
 * length / 4.
 * Cost: expected constant time; 1 to 2 probes when fullest, so that a look-up is seldom mispredicted.
 */
const absent = -1;

/** Marks an empty cell of `keys`; no address is negative. */
const empty = -1;

export class AddressMap {
  #keys: Float64Array;
  #values: Int32Array;
  #mask: number;
  /** Shifting a hash right by this leaves a cell number. */
  #shift: number;
  #count = 0;
  /** The cell that `get` found last: a removal usually follows a look-up of the same address. */
  #foundCell = 0;

  constructor(initialCapacity = 64) {
    let length = 16;
    while (length < initialCapacity * 4) length *= 2;
    this.#keys = new Float64Array(length).fill(empty);
    this.#values = new Int32Array(length);
    this.#mask = length - 1;
    this.#shift = Math.clz32(this.#mask);
  }

  /** The number of addresses in the map. */
  get count(): number {
    return this.#count;
  }

  /** The value at an address, or -1. */
  get(address: number): number {
    const keys = this.#keys;
    const mask = this.#mask;
    for (let cell = home(address, this.#shift); ; cell = (cell + 1) & mask) {
      const key = keys[cell];
      // Checked first: an address that equals the mark of an empty cell must not be found.
      if (key === empty) return absent;
      if (key === address) {
        this.#foundCell = cell;
        return this.#values[cell] as number;
      }
    }
  }

  /** Adds an address, or replaces the value of one that the map holds. */
  insert(address: number, value: number): void {
    if (this.#count * 4 > this.#mask) this.#grow();
    const keys = this.#keys;
    const mask = this.#mask;
    let cell = home(address, this.#shift);
    while (keys[cell] !== empty) {
      if (keys[cell] === address) {
        this.#values[cell] = value;
        return;
      }
      cell = (cell + 1) & mask;
    }
    keys[cell] = address;
    this.#values[cell] = value;
    this.#count++;
  }

  /** Removes an address that the map holds. */
  remove(address: number): void {
    const keys = this.#keys;
    const mask = this.#mask;
    let hole = this.#foundCell;
    if (keys[hole] !== address) {
      hole = home(address, this.#shift);
      while (keys[hole] !== address) hole = (hole + 1) & mask;
    }
    this.#empty(hole);
  }

  /** Removes an address and returns its value, or -1 if the map does not hold it. */
  take(address: number): number {
    const keys = this.#keys;
    const mask = this.#mask;
    for (let cell = home(address, this.#shift); ; cell = (cell + 1) & mask) {
      const key = keys[cell];
      if (key === empty) return absent;
      if (key === address) {
        const value = this.#values[cell] as number;
        this.#empty(cell);
        return value;
      }
    }
  }

  /** Throws if an invariant does not hold. For tests. */
  validate(): void {
    let count = 0;
    for (let cell = 0; cell <= this.#mask; cell++) {
      const key = this.#keys[cell] as number;
      if (key === empty) continue;
      count++;
      if (this.get(key) !== this.#values[cell]) throw new Error(`address map: ${key} is not found from its home`);
    }
    if (count !== this.#count) throw new Error(`address map: counts ${this.#count} addresses, holds ${count}`);
    if (count * 4 > this.#mask + 1) throw new Error(`address map: ${count} addresses in ${this.#mask + 1} cells`);
  }

  /** Empties a cell, and moves back the entries that could no longer be found. */
  #empty(cell: number): void {
    const keys = this.#keys;
    const mask = this.#mask;
    let hole = cell;
    for (let next = (hole + 1) & mask; ; next = (next + 1) & mask) {
      const key = keys[next] as number;
      if (key === empty) break;
      // An entry may move into the hole only if that does not put it before its home.
      if (((next - home(key, this.#shift)) & mask) >= ((next - hole) & mask)) {
        keys[hole] = key;
        this.#values[hole] = this.#values[next] as number;
        hole = next;
      }
    }
    keys[hole] = empty;
    this.#count--;
  }

  #grow(): void {
    const keys = this.#keys;
    const values = this.#values;
    const length = keys.length * 2;
    this.#keys = new Float64Array(length).fill(empty);
    this.#values = new Int32Array(length);
    this.#mask = length - 1;
    this.#shift = Math.clz32(this.#mask);
    this.#count = 0;
    for (let cell = 0; cell < keys.length; cell++) {
      const key = keys[cell] as number;
      if (key !== empty) this.insert(key, values[cell] as number);
    }
  }
}

/**
 * Blocks start at least 256 bytes apart, so the low eight bits carry no information. The topmost
 * bits of the product (Fibonacci hashing) are far apart for neighbouring addresses and for most
 * other series, which halves the cost of a map whose addresses were allocated in sequence.
 */
function home(address: number, shift: number): number {
  return Math.imul((address * (1 / 256)) | 0, 0x9e3779b1) >>> shift;
}
