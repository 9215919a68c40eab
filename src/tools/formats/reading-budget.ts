import { getHeapStatistics } from 'node:v8';
import { InvalidLogError } from '../../basics/errors.js';
import { formatBytes, MiB } from '../../basics/units.js';

/** What any file may cost, and what each of its bytes adds to that. */
const leastBytes = 64 * MiB;
const costPerByte = 128;

/** V8 ends the process when its heap is full, so a reader stops before. Looking at the heap takes time, so it is rarely done. */
const mostOfHeap = 0.85;
/** The part of V8's limit for what was just made, where nothing stays. */
const youngBytes = 48 * MiB;
const thingsBetweenLooks = 2 ** 16;

/**
 * What things that a file claims cost, about the bytes of memory that they take: so many bytes out
 * of gzip data, an object, a value of a column, and so on.
 */
export const Cost = {
  /** Out of gzip data. With a cost of 2, a file may expand to 64 times its bytes, and 32 MiB more. */
  unpackedByte: 2,
  /** In a text of JSON, which stands for objects. */
  jsonByte: 16,
  /** In a row of a database, whose bytes may be shared by others. */
  rowByte: 2,
  /** An object of a pickle, each time it is used: it may be referred to any number of times. */
  node: 128,
  /** Going past something in a search. */
  step: 8,
  /** A number in a column, which takes no bytes in the file if all numbers near it are the same. */
  value: 4,
  /** A character of a call stack, each time it is put together. */
  stackCharacter: 1 / 32,
} as const;

/**
 * What reading one file may cost. A small file can claim to hold far more than its bytes: gzip data
 * expands a thousand times, a pickle refers to the same object again and again, and a report counts
 * columns whose values take no bytes. All readers of a file spend from one budget before they
 * believe such a claim, and a file that exceeds it is refused: work and memory stay in
 * proportion to its bytes. Logs of real programs stay below a tenth of it.
 */
export class ReadingBudget {
  readonly #name: string;
  #left = leastBytes;
  #fileBytes = 0;
  #things = 0;

  /** @param name the file, in errors */
  constructor(name: string) {
    this.#name = name;
  }

  /**
   * To be called for each thing that is kept until the whole file is read.
   * @throws InvalidLogError if this process will soon have no memory for more
   */
  keepOne(): void {
    if (++this.#things % thingsBetweenLooks === 0) this.assertHeap(0);
  }

  /** @throws InvalidLogError if so many more bytes do not fit into V8's heap */
  assertHeap(bytes: number): void {
    const { used_heap_size: used, heap_size_limit: limit } = getHeapStatistics();
    if (used + bytes < (limit - youngBytes) * mostOfHeap) return;
    const size = `its ${formatBytes(this.#fileBytes)} need more memory than Node may use here (${formatBytes(limit)})`;
    throw new InvalidLogError(
      this.#name,
      undefined,
      `is too large: ${size}; set NODE_OPTIONS=--max-old-space-size to more MiB, or record fewer events`,
    );
  }

  /** More bytes of the file have been read. */
  add(fileBytes: number): void {
    this.#left += fileBytes * costPerByte;
    this.#fileBytes += fileBytes;
  }

  /** How much more there may be of something. */
  affordable(cost: number): number {
    return Math.floor(this.#left / cost);
  }

  /**
   * @param what is too much if the file cannot afford it, such as `gzip data`
   * @param advice what to do about it
   * @throws InvalidLogError
   */
  spend(cost: number, what: string, advice?: string): void {
    this.#left -= cost;
    if (!(this.#left >= 0)) throw this.excess(what, advice);
  }

  excess(what: string, advice?: string, cause?: unknown): InvalidLogError {
    const limit = `${formatBytes(leastBytes)} and ${costPerByte} times its bytes`;
    const fault = `holds ${what} that would take far more memory than a file of its size should (more than ${limit})${advice === undefined ? '' : `; ${advice}`}`;
    return new InvalidLogError(this.#name, undefined, fault, { cause });
  }
}
