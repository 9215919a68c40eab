import { CudaMemoryResource, copy, copyToHostSync, Stream } from '../../src/index.js';
import { Violation } from './violation.js';

interface Inspection {
  readonly offset: number;
  readonly expected: Uint8Array;
  /** Which of the bytes count; all where there is none. */
  readonly known: Uint8Array | undefined;
  readonly what: string;
}

const capacity = 2 ** 21;

/**
 * Reads memory in the order of a stream, without a wait of the host: what was there is copied to memory of this one's own, and looked at once
 * everything has run. A stream that did not wait for another then has the other's bytes, if one of them stood still.
 */
export class Inspector implements Disposable {
  readonly #resource = new CudaMemoryResource();
  readonly #stream = Stream.legacyDefault();
  readonly start = this.#resource.allocate(capacity, this.#stream);
  readonly end = this.start + capacity;
  #used = 0;
  #inspections: Inspection[] = [];

  read(pointer: number, stream: Stream, what: string, expected: Uint8Array, known?: Uint8Array): void {
    const bytes = expected.length;
    if (bytes === 0 || bytes > capacity - this.#used) return;
    copy(this.start + this.#used, pointer, bytes, stream);
    this.#inspections.push({ offset: this.#used, expected, known, what });
    this.#used += bytes;
  }

  /** Holds what was read against what should have been there. Everything must have run. */
  verify(): void {
    const inspections = this.#inspections;
    const found = new Uint8Array(this.#used);
    this.#inspections = [];
    this.#used = 0;
    if (inspections.length === 0) return;
    copyToHostSync(found, this.start, this.#stream);
    for (const { offset, expected, known, what } of inspections) {
      compareBytes(found.subarray(offset, offset + expected.length), expected, known, what);
    }
  }

  /** Forgets what was read. */
  clear(): void {
    this.#inspections = [];
    this.#used = 0;
  }

  [Symbol.dispose](): void {
    this.#resource.deallocate(this.start, capacity, this.#stream);
    this.#resource.dispose();
  }
}

/** @throws Violation where a byte that is known is another one. */
export function compareBytes(found: Uint8Array, expected: Uint8Array, known: Uint8Array | undefined, what: string): void {
  if (known === undefined && Buffer.compare(found, expected) === 0) return;
  for (let i = 0; i < expected.length; i++) {
    if (found[i] === expected[i] || known?.[i] === 0) continue;
    throw new Violation(`byte ${i} of ${expected.length} of ${what} is ${found[i]}, but was written as ${expected[i]}`);
  }
}
