/**
 * Columns of integers as bytes that gzip compresses well, in chunks of 65,536 values. In a chunk:
 *
 *     value[i] = minimum + unit · Σ plane[p][i] · 256^p        or, if `isDelta`, `base` plus the sum of these up to i
 *
 * The lowest bytes of all values in a chunk come first, then the second bytes, and so on:
 * neighbouring bytes resemble each other. Planes above the largest value are left out, so a chunk
 * of equal values takes no planes.
 */

export const chunkLength = 65_536;

/**
 * The data that a reader needs for a chunk: its minimum, unit and number of planes, and in a column
 * of differences the value before the first.
 */
type ChunkHead = readonly [minimum: number, unit: number, planes: number, base: number];

/** The data that a reader needs for a packed column. */
export interface ColumnHead {
  readonly count: number;
  readonly isDelta: boolean;
  /** Every chunk except the last holds 65,536 values. */
  readonly chunks: readonly ChunkHead[];
}

/** Packs integers from -2^53 to 2^53 as they come. Only the last chunk is in memory as numbers. */
export class ColumnWriter {
  readonly #isDelta: boolean;
  readonly #values = new Float64Array(chunkLength);
  readonly #chunks: ChunkHead[] = [];
  readonly #pieces: Uint8Array[] = [];
  #filled = 0;
  /** The last value of the previous chunk. */
  #base = 0;

  /**
   * @param isDelta whether to store differences: if they are smaller than the values, and mostly
   * not negative
   */
  constructor(isDelta = false) {
    this.#isDelta = isDelta;
  }

  add(value: number): void {
    if (this.#filled === chunkLength) this.#pack();
    this.#values[this.#filled++] = value;
  }

  /** The finished column. Nothing may be added afterwards. */
  finish(): PackedColumn {
    const count = this.#chunks.length * chunkLength + this.#filled;
    if (this.#filled > 0) this.#pack();
    return new PackedColumn({ count, isDelta: this.#isDelta, chunks: this.#chunks }, this.#pieces);
  }

  #pack(): void {
    const count = this.#filled;
    const values = this.#values;
    const base = this.#base;
    if (this.#isDelta) {
      this.#base = values[count - 1] as number;
      for (let i = count - 1; i > 0; i--) values[i] = (values[i] as number) - (values[i - 1] as number);
      values[0] = (values[0] as number) - base;
    }
    const { minimum, unit, planes } = scaled(values, count);
    const bytes = new Uint8Array(count * planes);
    for (let i = 0; i < count && planes > 0; i++) {
      let rest = ((values[i] as number) - minimum) / unit;
      let place = i;
      for (; rest > 0xffff_ffff; place += count) {
        bytes[place] = rest % 256;
        rest = Math.floor(rest / 256);
      }
      for (let bits = rest >>> 0; bits > 0; place += count) {
        bytes[place] = bits & 255;
        bits >>>= 8;
      }
    }
    this.#chunks.push([minimum, unit, planes, base]);
    this.#pieces.push(bytes);
    this.#filled = 0;
  }
}

/** A packed column. */
export class PackedColumn {
  readonly head: ColumnHead;
  /** The bytes of each chunk. */
  readonly pieces: readonly Uint8Array[];

  constructor(head: ColumnHead, pieces: readonly Uint8Array[]) {
    this.head = head;
    this.pieces = pieces;
  }

  /** The values, in arrays of at most 65,536; each array is valid only until the next. */
  *chunks(): Generator<Float64Array> {
    const values = new Float64Array(Math.min(chunkLength, this.head.count));
    for (const [chunk, bytes] of this.pieces.entries()) {
      const count = lengthOf(this.head, chunk);
      unpackChunk(this.head, chunk, bytes, values, 0);
      yield values.subarray(0, count);
    }
  }

  /** The column with each value replaced. */
  map(replace: (value: number) => number): PackedColumn {
    const writer = new ColumnWriter(this.head.isDelta);
    for (const values of this.chunks()) for (let i = 0; i < values.length; i++) writer.add(replace(values[i] as number));
    return writer.finish();
  }
}

/** Number of bytes in a packed column. */
export function packedBytes(head: ColumnHead): number {
  return head.chunks.reduce((sum, [, , planes], chunk) => sum + lengthOf(head, chunk) * planes, 0);
}

/** Reads a column, whose chunks' bytes are adjacent, into an array of its length. */
export function unpackColumn<T extends { [index: number]: number }>(head: ColumnHead, bytes: Uint8Array, into: T): T {
  let offset = 0;
  for (const [chunk, [, , planes]] of head.chunks.entries()) {
    unpackChunk(head, chunk, bytes.subarray(offset), into, chunk * chunkLength);
    offset += lengthOf(head, chunk) * planes;
  }
  return into;
}

function lengthOf({ count }: ColumnHead, chunk: number): number {
  return Math.min(chunkLength, count - chunk * chunkLength);
}

function unpackChunk(head: ColumnHead, chunk: number, bytes: Uint8Array, into: { [index: number]: number }, at: number): void {
  const [minimum, unit, planes, base] = head.chunks[chunk] as ChunkHead;
  const { isDelta } = head;
  const count = lengthOf(head, chunk);
  let sum = base;
  for (let i = 0; i < count; i++) {
    let value = 0;
    let weight = unit;
    for (let plane = 0; plane < planes; plane++) {
      value += weight * (bytes[plane * count + i] as number);
      weight *= 256;
    }
    value += minimum;
    if (isDelta) {
      sum += value;
      value = sum;
    }
    into[at + i] = value;
  }
}

/** The minimum, unit and number of planes of the first `count` values; at least one value. */
function scaled(values: Float64Array, count: number): { minimum: number; unit: number; planes: number } {
  let minimum = values[0] as number;
  let maximum = minimum;
  for (let i = 1; i < count; i++) {
    const value = values[i] as number;
    if (value < minimum) minimum = value;
    else if (value > maximum) maximum = value;
  }
  let unit = 0;
  for (let i = 0; i < count && unit !== 1; i++) {
    const difference = (values[i] as number) - minimum;
    if (difference % unit !== 0) unit = greatestCommonDivisor(difference, unit);
  }
  unit = Math.max(1, unit);
  let planes = 0;
  while ((maximum - minimum) / unit >= 256 ** planes && maximum > minimum) planes++;
  return { minimum, unit, planes };
}

function greatestCommonDivisor(a: number, b: number): number {
  let [x, y] = [a, b];
  while (y > 0) [x, y] = [y, x % y];
  return x;
}
