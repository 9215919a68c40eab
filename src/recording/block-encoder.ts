/**
 * Encodes the blocks of a recording; `recording-format.ts` describes their bytes. Records are
 * collected as numbers in typed arrays:
 *     bytes   [ head | record | record | definition, text ... | record |            ]
 *     place     0      1        2        3                      at
 *
 * A block is passed on when it is full, when the time of a record does not fit into it, and when it
 * is closed; the next block reuses the memory. A record costs four stores and allocates nothing.
 */
import { blockMarker, maximumPayloadBytes, paddedToRecord, recordBytes } from './recording-format.js';

const blockPlaces = maximumPayloadBytes / recordBytes + 1;
const recordWords = recordBytes / 4;
const recordNumbers = recordBytes / 8;

/** Collects records in blocks. */
export class BlockEncoder {
  readonly #take: (block: Uint8Array) => void;
  readonly #maximumNanoseconds: number;
  /** Not imported: most programs record nothing, and loading this module takes a millisecond. */
  readonly #crc32 = process.getBuiltinModule('node:zlib').crc32;
  #bytes = new Uint8Array(blockPlaces * recordBytes);
  #words = new Uint32Array(this.#bytes.buffer);
  #numbers = new Float64Array(this.#bytes.buffer);
  /** The next free place. */
  #at = 1;
  #records = 0;
  /** Number of places in the blocks before. */
  #base = 0;
  /** The time of the block's first record; NaN for a block without records. */
  #time = Number.NaN;

  /**
   * @param maximumNanoseconds the time that a block may span; less than 2^32
   * @param take receives each block, whose bytes are overwritten afterwards
   */
  constructor(maximumNanoseconds: number, take: (block: Uint8Array) => void) {
    this.#maximumNanoseconds = maximumNanoseconds;
    this.#take = take;
  }

  /** The time of the block's first record in nanoseconds; NaN if it has no records. */
  get blockTime(): number {
    return this.#time;
  }

  /**
   * Adds a record. Returns its position, for `retract`.
   * @param head kind, layer and stream
   * @param time in nanoseconds; a whole number of nanoseconds after the block's first record
   */
  record(head: number, time: number, first: number, second: number): number {
    let elapsed = time - this.#time;
    if (!(elapsed >= 0 && elapsed <= this.#maximumNanoseconds) || this.#at === blockPlaces) {
      this.close();
      this.#time = time;
      elapsed = 0;
    }
    const at = this.#at++;
    this.#records++;
    const word = recordWords * at;
    const number = recordNumbers * at;
    this.#words[word] = head;
    this.#words[word + 1] = elapsed;
    this.#numbers[number + 1] = first;
    this.#numbers[number + 2] = second;
    return this.#base + at;
  }

  /** Adds a record that is followed by a text, given as bytes. */
  define(head: number, time: number, index: number, text: Uint8Array): void {
    const padded = paddedToRecord(text.length);
    const places = 1 + padded / recordBytes;
    if (this.#at + places > blockPlaces) this.close();
    // Only a text that has a block to itself needs more.
    if ((1 + places) * recordBytes > this.#bytes.length) this.#grow((1 + places) * recordBytes);
    this.record(head, time, index, text.length);
    const start = recordBytes * this.#at;
    this.#bytes.set(text, start);
    this.#bytes.fill(0, start + text.length, start + padded);
    this.#at += padded / recordBytes;
    if (this.#at > blockPlaces) this.close();
  }

  /** Removes a record that turned out to be wrong, unless its block was passed on. */
  retract(position: number): void {
    const at = position - this.#base;
    if (at < 1) return;
    this.#bytes.copyWithin(recordBytes * at, recordBytes * (at + 1), recordBytes * this.#at);
    this.#at--;
    this.#records--;
  }

  /** Ends the block, and passes it on unless it is empty. */
  close(): void {
    if (this.#records > 0) {
      const bytes = recordBytes * this.#at;
      this.#words[0] = blockMarker;
      this.#words[1] = bytes - recordBytes;
      this.#words[3] = this.#records;
      this.#numbers[2] = this.#time;
      this.#words[2] = this.#crc32(this.#bytes.subarray(12, bytes));
      this.#base += this.#at;
      this.#take(this.#bytes.subarray(0, bytes));
    }
    this.#at = 1;
    this.#records = 0;
    this.#time = Number.NaN;
  }

  /** Grows the buffer to `bytes`. The block must be empty. */
  #grow(bytes: number): void {
    this.#bytes = new Uint8Array(bytes);
    this.#words = new Uint32Array(this.#bytes.buffer);
    this.#numbers = new Float64Array(this.#bytes.buffer);
  }
}
