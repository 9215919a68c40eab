/** Reads an input as values; past its end, everything is 0. */
export class ByteReader {
  readonly #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#bytes.length;
  }

  byte(): number {
    return this.#bytes[this.#at++] ?? 0;
  }

  /** From 0 to 65,535. */
  short(): number {
    return this.byte() + 256 * this.byte();
  }

  /** Any number at all. */
  float64(): number {
    const view = new DataView(new ArrayBuffer(8));
    for (let i = 0; i < 8; i++) view.setUint8(i, this.byte());
    return view.getFloat64(0);
  }

  /** The next bytes, fewer if the input ends. */
  take(length: number): Uint8Array {
    const taken = this.#bytes.subarray(this.#at, this.#at + length);
    this.#at += length;
    return taken;
  }
}
