/** One kibibyte, in bytes. */
export const KiB = 1024;
/** One mebibyte, in bytes. */
export const MiB = 1024 * KiB;
/** One gibibyte, in bytes. */
export const GiB = 1024 * MiB;

/**
 * The alignment, in bytes, of every pointer that a memory resource of any kind returns.
 *
 * Counterpart of `rmm::CUDA_ALLOCATION_ALIGNMENT`.
 */
export const ALLOCATION_ALIGNMENT = 256;

/** `value` rounded up to a multiple of `alignment`, a power of two. Exact up to 2^53. */
export function alignUp(value: number, alignment: number): number {
  // A division by a power of two is exact. It costs a third of a remainder, which is a library call
  // for doubles.
  return Math.ceil(value / alignment) * alignment;
}

/** `value` rounded down to a multiple of `alignment`. */
export function alignDown(value: number, alignment: number): number {
  return value - (value % alignment);
}

/** Whether `value` is a power of two, up to 2^53. */
export function isPowerOfTwo(value: number): boolean {
  if (!Number.isSafeInteger(value) || value < 1) return false;
  // Bitwise operators use only the lower 32 bits.
  const upper = Math.floor(value / 2 ** 32);
  return upper === 0 ? (value & (value - 1)) === 0 : value >>> 0 === 0 && (upper & (upper - 1)) === 0;
}
const binarySuffixes = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** A human-readable number of bytes: `1536` gives `1.5 KiB`, `-1` gives `-1 B`. */
export function formatBytes(bytes: number): string {
  // Whoever passes something else wants to see it, rather than an error.
  let value = Number(bytes);
  let suffix = 0;
  while (Math.abs(value) >= 1024 && suffix < binarySuffixes.length - 1) {
    value /= 1024;
    suffix++;
  }
  return `${Number.isInteger(value) ? value : value.toFixed(value < 10 ? 2 : 1)} ${binarySuffixes[suffix]}`;
}

/**
 * A human-readable count, an integer from 0: `194854` gives `194,854`. `Intl.NumberFormat` would load
 * its tables for that, which takes a third of the time in which the command starts.
 */
export function formatCount(count: number): string {
  let text = String(count);
  for (let end = text.length - 3; end > 0; end -= 3) text = `${text.slice(0, end)},${text.slice(end)}`;
  return text;
}

const bytesOfUnit: Readonly<Record<string, number>> = {
  '': 1,
  B: 1,
  KiB,
  MiB,
  GiB,
  TiB: 1024 * GiB,
  kB: 1e3,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  K: KiB,
  M: MiB,
  G: GiB,
  T: 1024 * GiB,
};

/** What the public `parseBytes` returns for a text. */
export function bytesOf(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$/.exec(text.trim());
  if (match === null) return undefined;
  const unit = bytesOfUnit[match[2] as string];
  if (unit === undefined) return undefined;
  const bytes = Number(match[1]) * unit;
  return Number.isSafeInteger(bytes) ? bytes : undefined;
}

/** The size that a text with letters of the wrong case means, such as `2GiB` for `2gib` and `5MiB` for `5m`, or `undefined`. */
export function sizeMeant(text: string): string | undefined {
  const [, number, letters = ''] = /^(\d+(?:\.\d+)?)\s*([A-Za-z]+)$/.exec(text.trim()) ?? [];
  if (number === undefined || bytesOf(text) !== undefined) return undefined;
  const lower = letters.toLowerCase();
  const unit = Object.keys(bytesOfUnit).find((each) => each.toLowerCase() === lower);
  return unit === undefined ? undefined : `${number}${unit.length === 1 && unit !== 'B' ? `${unit}iB` : unit}`;
}

/**
 * The share that a text such as `50%` or `12.5 %` names, above 0 and up to 1, or `undefined` if it
 * names none.
 */
export function parseShare(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?)\s*%$/.exec(text.trim());
  const percent = match === null ? 0 : Number(match[1]);
  return percent > 0 && percent <= 100 ? percent / 100 : undefined;
}

/** A share of a number of bytes, rounded down to a multiple of 256. */
export function shareOf(bytes: number, share: number): number {
  return alignDown(Math.floor(bytes * share), ALLOCATION_ALIGNMENT);
}

/** Rows of a table as lines: the first column at the left, the others at the right. */
export function alignColumns(rows: readonly (readonly string[])[]): string[] {
  const widths: number[] = [];
  for (const row of rows) for (const [column, { length }] of row.entries()) widths[column] = Math.max(widths[column] ?? 0, length);
  const aligned = (cell: string, column: number) =>
    column === 0 ? cell.padEnd(widths[0] as number) : cell.padStart(widths[column] as number);
  return rows.map((row) => row.map(aligned).join('  '));
}
