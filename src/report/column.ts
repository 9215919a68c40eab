/**
 * Columns of integers as bytes that gzip makes small.
 *
 *     value[i] = minimum + unit · Σ plane[p][i] · 256^p        or, where `isDelta`, the sum of these up to i
 *
 * All lowest bytes come first, then all second ones: the bytes beside each other resemble each other, and the planes above the largest value
 * are left out, so that a column of zeros takes none.
 */

/** What is needed to read a packed column. */
export interface ColumnHead {
  readonly count: number;
  readonly minimum: number;
  readonly unit: number;
  readonly planes: number;
  readonly isDelta: boolean;
}

/** Packs integers of at most 2^53; they must not descend where `isDelta` is true. */
export function packColumn(values: ArrayLike<number>, isDelta = false): { head: ColumnHead; bytes: Uint8Array } {
  const count = values.length;
  const rests = Float64Array.from(values);
  if (isDelta) for (let i = count - 1; i > 0; i--) rests[i] = (rests[i] as number) - (rests[i - 1] as number);
  let minimum = count === 0 ? 0 : Number.POSITIVE_INFINITY;
  for (let i = 0; i < count; i++) minimum = Math.min(minimum, rests[i] as number);
  let unit = 0;
  let maximum = 0;
  for (let i = 0; i < count; i++) {
    const difference = (rests[i] as number) - minimum;
    rests[i] = difference;
    if (difference > maximum) maximum = difference;
    if (unit !== 1 && difference % unit !== 0) unit = greatestCommonDivisor(difference, unit);
  }
  unit = Math.max(1, unit);
  let planes = 0;
  while (maximum / unit >= 256 ** planes && maximum > 0) planes++;
  const bytes = new Uint8Array(count * planes);
  for (let i = 0; i < count; i++) {
    let rest = (rests[i] as number) / unit;
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
  return { head: { count, minimum, unit, planes, isDelta }, bytes };
}

/** Reads a column into an array of its length. */
export function unpackColumn<T extends { [index: number]: number }>(head: ColumnHead, bytes: Uint8Array, into: T): T {
  const { count, minimum, unit, planes, isDelta } = head;
  let sum = 0;
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
    into[i] = value;
  }
  return into;
}

function greatestCommonDivisor(a: number, b: number): number {
  let [x, y] = [a, b];
  while (y > 0) [x, y] = [y, x % y];
  return x;
}
