import { ArgumentTypeError, formatValue, InvalidLogError } from '../../basics/errors.js';
import type { Plan } from '../../plans/plan.js';
import type { AllocationSequence } from '../../plans/sequence.js';

/** A problem in the format of Google's MiniMalloc. */
export interface MinimallocProblem {
  /** The allocations in order of their times; those of one time in the order of the file. */
  readonly sequence: AllocationSequence;
  /** The header, and the rows in the order of the file. */
  readonly header: string;
  readonly rows: readonly string[];
  /** By row: the number of its allocation in the sequence. */
  readonly numbers: readonly number[];
}

/** Whether a text begins with the header of MiniMalloc's format. */
export function isMinimallocCsv(text: string): boolean {
  const columns =
    text
      .slice(0, 200)
      .split(/\r?\n/, 1)[0]
      ?.split(',')
      .map((name) => name.trim()) ?? [];
  return ['id', 'lower', 'upper', 'size'].every((name) => columns.includes(name));
}

/**
 * Reads a problem in the format of Google's MiniMalloc: CSV with the columns `id`, `lower`, `upper`
 * and `size`, in any order; a lifetime begins at `lower` and ends before `upper`. An allocation may
 * share bytes with one that ends when it begins.
 * @param name the name of the text in errors
 * @throws InvalidLogError naming the line at fault.
 * @example
 * ```ts
 * import { readFileSync, writeFileSync } from 'node:fs';
 *
 * const problem = readMinimallocCsv(readFileSync('A.1048576.csv', 'utf8'));
 * const plan = planAllocations(problem.sequence, { maximumBytes: 1 * MiB });
 * writeFileSync('A.solution.csv', writeMinimallocCsv(problem, plan));
 * ```
 */
export function readMinimallocCsv(text: string, name = 'the problem'): MinimallocProblem {
  if (typeof text !== 'string') throw new ArgumentTypeError(`text must be a string, got ${formatValue(text)}`);
  const [header = '', ...lines] = text.split(/\r?\n/);
  if (!isMinimallocCsv(text)) throw new InvalidLogError(name, 1, 'the header must have the columns id, lower, upper and size');
  const columns = header.split(',').map((column) => column.trim());
  const places = ['lower', 'upper', 'size'].map((column) => columns.indexOf(column));
  const rows: string[] = [];
  const events: { readonly time: number; readonly row: number; readonly isFree: boolean }[] = [];
  const bytes: number[] = [];
  for (const [i, line] of lines.entries()) {
    if (line.trim() === '') continue;
    const cells = line.split(',');
    const [lower, upper, size] = places.map((place) => Number(cells[place]));
    if (
      ![lower, upper, size].every((value) => Number.isSafeInteger(value)) ||
      (lower as number) >= (upper as number) ||
      (size as number) < 1
    ) {
      throw new InvalidLogError(name, i + 2, 'a row needs integers lower < upper, and a size of at least 1');
    }
    const row = rows.push(line) - 1;
    bytes.push(size as number);
    events.push({ time: lower as number, row, isFree: false }, { time: upper as number, row, isFree: true });
  }
  events.sort((a, b) => a.time - b.time || Number(b.isFree) - Number(a.isFree) || a.row - b.row);
  const numbers = new Array<number>(rows.length).fill(-1);
  const operations: number[] = [];
  const sizes: number[] = [];
  for (const { row, isFree } of events) {
    if (!isFree) numbers[row] = sizes.push(bytes[row] as number) - 1;
    operations.push(isFree ? ~(numbers[row] as number) : (numbers[row] as number));
  }
  const zeros = sizes.map(() => 0);
  const times = events.map(({ time }) => time);
  return { sequence: { operations, sizes, streams: zeros, freeStreams: zeros, times }, header, rows, numbers };
}

/** The rows of a problem with one more column, `offset`, as MiniMalloc writes its solutions. */
export function writeMinimallocCsv({ header, rows, numbers }: MinimallocProblem, plan: Plan): string {
  const lines = rows.map((row, i) => `${row},${plan.offsets[numbers[i] as number]}`);
  return `${[`${header},offset`, ...lines].join('\n')}\n`;
}
