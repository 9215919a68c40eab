/**
 * Writes Python pickles of protocol 2, using only opcodes that PyTorch's viewer understands. A
 * repeated text or value is written once, then referred to by its number in the pickle's memo.
 */

/**
 * The viewer passes the items of a batch to a function as arguments, and a call stack limits their
 * number.
 */
const batchItems = 1000;

const initialBytes = 64 * 1024;

/** Integers above this need a long form. */
const maximumInt32 = 2 ** 31 - 1;

export class PickleWriter {
  #bytes = Buffer.allocUnsafe(initialBytes);
  #length = 0;
  readonly #texts = new Map<string, number>();
  #memoized = 0;

  constructor() {
    this.#put(0x80, 2);
  }

  /** Returns the bytes since the last call. */
  take(): Uint8Array {
    const taken = this.#bytes.subarray(0, this.#length);
    this.#bytes = Buffer.allocUnsafe(initialBytes);
    this.#length = 0;
    return taken;
  }

  /** Number of bytes not yet taken. */
  get length(): number {
    return this.#length;
  }

  /** Ends the pickle. */
  end(): void {
    this.#put(0x2e);
  }

  /** Begins a dict; alternating keys and values follow. */
  beginDict(): void {
    this.#put(0x7d, 0x28);
  }

  endDict(): void {
    this.#put(0x75);
  }

  /** Begins a list; its items follow, each after a call of `item`. */
  beginList(): void {
    this.#put(0x5d);
  }

  /**
   * Announces that the next value is an item of a list.
   * @param index its number in the list, from 0
   */
  item(index: number): void {
    if (index % batchItems !== 0) return;
    if (index > 0) this.#put(0x65);
    this.#put(0x28);
  }

  /** Ends a list of `items` items. */
  endList(items: number): void {
    if (items > 0) this.#put(0x65);
  }

  /** Makes the last two values a tuple. */
  pair(): void {
    this.#put(0x86);
  }

  boolean(value: boolean): void {
    this.#put(value ? 0x88 : 0x89);
  }

  integer(value: number | bigint): void {
    if (value >= 0 && value <= 0xff) this.#put(0x4b, Number(value));
    else if (value >= 0 && value <= 0xffff) this.#put(0x4d, Number(value) & 0xff, Number(value) >>> 8);
    else if (value >= 0 && value <= maximumInt32) {
      this.#reserve(5);
      this.#bytes[this.#length] = 0x4a;
      this.#bytes.writeInt32LE(Number(value), this.#length + 1);
      this.#length += 5;
    } else this.#longInteger(BigInt(value));
  }

  text(value: string): void {
    const known = this.#texts.get(value);
    if (known !== undefined) {
      this.recall(known);
      return;
    }
    const bytes = Buffer.byteLength(value);
    this.#reserve(5 + bytes);
    this.#bytes[this.#length] = 0x58;
    this.#bytes.writeUInt32LE(bytes, this.#length + 1);
    this.#bytes.write(value, this.#length + 5);
    this.#length += 5 + bytes;
    this.#texts.set(value, this.memoize());
  }

  /** Gives the last value a number for {@link PickleWriter.recall}. */
  memoize(): number {
    const index = this.#memoized++;
    this.#putIndexed(0x71, 0x72, index);
    return index;
  }

  /** Writes a value that has a number. */
  recall(index: number): void {
    this.#putIndexed(0x68, 0x6a, index);
  }

  /** Writes a negative integer, or one above 31 bits, as two's complement in the fewest bytes. */
  #longInteger(value: bigint): void {
    const bytes: number[] = [];
    let rest = value;
    do {
      bytes.push(Number(rest & 0xffn));
      rest >>= 8n;
    } while (rest !== 0n && rest !== -1n);
    const isNegative = value < 0n;
    if ((bytes.at(-1) as number) >= 0x80 !== isNegative) bytes.push(isNegative ? 0xff : 0);
    this.#put(0x8a, bytes.length, ...bytes);
  }

  #putIndexed(short: number, long: number, index: number): void {
    if (index <= 0xff) {
      this.#put(short, index);
      return;
    }
    this.#reserve(5);
    this.#bytes[this.#length] = long;
    this.#bytes.writeUInt32LE(index, this.#length + 1);
    this.#length += 5;
  }

  #put(...bytes: readonly number[]): void {
    this.#reserve(bytes.length);
    for (const byte of bytes) this.#bytes[this.#length++] = byte;
  }

  #reserve(bytes: number): void {
    if (this.#length + bytes <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(2 * (this.#length + bytes));
    this.#bytes.copy(larger, 0, 0, this.#length);
    this.#bytes = larger;
  }
}
