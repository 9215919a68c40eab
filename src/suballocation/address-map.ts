/**
 * A map from addresses to small integers, for looking a block up by its pointer.
 *
 * Data structure: open addressing with linear probing over two typed arrays of a power-of-two length, at most half full. A removal shifts the
 * entries behind it back, so there are no tombstones and a map that only ever holds n entries never degrades.
 *
 *     home(k) = hash(k) mod length
 *     keys    [ . | a | b | . | c | . ]      b's home may be a's cell; no empty cell lies between b's home and b
 *
 * Invariants: every key is in [home, first empty cell after home); keys are distinct; count ≤ length / 2.
 * Cost: expected constant; 2 to 3 probes at the fullest.
 */
const absent = -1;

/** Marks an empty cell of `keys`; no address is negative. */
const empty = -1;

export class AddressMap {
  #keys: Float64Array;
  #values: Int32Array;
  #mask: number;
  #count = 0;
  /** The cell that `get` found last: a removal mostly follows a look-up of the same address. */
  #foundCell = 0;

  constructor(initialCapacity = 64) {
    let length = 16;
    while (length < initialCapacity * 2) length *= 2;
    this.#keys = new Float64Array(length).fill(empty);
    this.#values = new Int32Array(length);
    this.#mask = length - 1;
  }

  /** How many addresses the map holds. */
  get count(): number {
    return this.#count;
  }

  /** The value at an address, or -1. */
  get(address: number): number {
    const keys = this.#keys;
    const mask = this.#mask;
    for (let cell = home(address, mask); ; cell = (cell + 1) & mask) {
      const key = keys[cell];
      // First, since the mark of an empty cell must not be taken for an address that was asked for.
      if (key === empty) return absent;
      if (key === address) {
        this.#foundCell = cell;
        return this.#values[cell] as number;
      }
    }
  }

  /** Adds an address that the map does not hold. */
  insert(address: number, value: number): void {
    if (this.#count * 2 > this.#mask) this.#grow();
    const keys = this.#keys;
    const mask = this.#mask;
    let cell = home(address, mask);
    while (keys[cell] !== empty) cell = (cell + 1) & mask;
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
      hole = home(address, mask);
      while (keys[hole] !== address) hole = (hole + 1) & mask;
    }
    for (let next = (hole + 1) & mask; ; next = (next + 1) & mask) {
      const key = keys[next] as number;
      if (key === empty) break;
      // An entry may move into the hole only if that does not put it before its home.
      if (((next - home(key, mask)) & mask) >= ((next - hole) & mask)) {
        keys[hole] = key;
        this.#values[hole] = this.#values[next] as number;
        hole = next;
      }
    }
    keys[hole] = empty;
    this.#count--;
  }

  /** Throws where an invariant does not hold. For tests. */
  validate(): void {
    let count = 0;
    for (let cell = 0; cell <= this.#mask; cell++) {
      const key = this.#keys[cell] as number;
      if (key === empty) continue;
      count++;
      if (this.get(key) !== this.#values[cell]) throw new Error(`address map: ${key} is not found from its home`);
    }
    if (count !== this.#count) throw new Error(`address map: counts ${this.#count} addresses, holds ${count}`);
    if (count * 2 > this.#mask + 1) throw new Error(`address map: ${count} addresses in ${this.#mask + 1} cells`);
  }

  #grow(): void {
    const keys = this.#keys;
    const values = this.#values;
    const length = keys.length * 2;
    this.#keys = new Float64Array(length).fill(empty);
    this.#values = new Int32Array(length);
    this.#mask = length - 1;
    this.#count = 0;
    for (let cell = 0; cell < keys.length; cell++) {
      const key = keys[cell] as number;
      if (key !== empty) this.insert(key, values[cell] as number);
    }
  }
}

/** Blocks are 256 bytes apart or more, so the low eight bits carry nothing; the multiplication spreads runs of neighbours. */
function home(address: number, mask: number): number {
  const units = (address * (1 / 256)) | 0;
  const mixed = Math.imul(units, 0x9e3779b1);
  return (mixed ^ (mixed >>> 15)) & mask;
}
