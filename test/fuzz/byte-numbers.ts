/** Numbers that depend only on the input's bytes, so that one input always does the same. */
export class ByteNumbers {
  #state = 0x811c9dc5;

  constructor(bytes: Uint8Array) {
    for (const byte of bytes) this.#state = Math.imul(this.#state ^ byte, 0x01000193);
  }

  /** An integer from 0 to `limit - 1`. */
  below(limit: number): number {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) | 0;
    return (this.#state >>> 8) % limit;
  }
}
