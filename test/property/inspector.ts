import { CudaMemoryResource, copy, copyToHostSync, Stream } from '../../src/index.js';
import { Violation } from './violation.js';

interface Inspection {
  readonly offset: number;
  readonly expected: Uint8Array;
  /** Which of the bytes are known; all if not set. */
  readonly known: Uint8Array | undefined;
  readonly what: string;
}

const capacity = 2 ** 21;

/**
 * Reads memory in the order of a stream, without a host wait: copies it to the inspector's own
 * memory, and compares it after everything has run. If a stream did not wait for another that stood
 * still, it finds the other's bytes.
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

  /** Compares what was read with the expected bytes. Everything must have run. */
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

/** @throws Violation if a known byte differs. */
export function compareBytes(found: Uint8Array, expected: Uint8Array, known: Uint8Array | undefined, what: string): void {
  if (known === undefined && Buffer.compare(found, expected) === 0) return;
  for (let i = 0; i < expected.length; i++) {
    if (found[i] === expected[i] || known?.[i] === 0) continue;
    throw new Violation(`byte ${i} of ${expected.length} of ${what} is ${found[i]}, but was written as ${expected[i]}`);
  }
}
