import { closeExport, type ExportedRange, exportIsUsed, exportMemory, handleBytes, refreshExport } from '../driver/process-memory.js';
import type { Stream } from '../driver/stream.js';

/** One piece of memory that other processes can open. */
export class ProcessExport {
  readonly #number: number;
  readonly #handle: Buffer;
  #isOver = false;

  private constructor(number: number, handle: Buffer) {
    this.#number = number;
    this.#handle = handle;
  }

  /** `undefined` if the driver cannot share the memory. */
  static begin(memory: ExportedRange, stream: Stream): ProcessExport | undefined {
    const handle = Buffer.alloc(handleBytes);
    const number = exportMemory(memory, stream, handle);
    return number === undefined ? undefined : new ProcessExport(number, handle);
  }

  /** A copy of the handle. */
  get handle(): Buffer {
    return Buffer.from(this.#handle);
  }

  /** Later opens are also ordered after what is queued on the stream now. */
  refresh(byteLength: number, stream: Stream): void {
    refreshExport(this.#number, byteLength, stream);
  }

  /** Whether other processes use the memory, or ended and were not noticed yet. */
  get isUsed(): boolean {
    return !this.#isOver && exportIsUsed(this.#number);
  }

  /**
   * No process can open the memory any more. Returns whether none uses it. If one does, this must be
   * called again later.
   */
  end(): boolean {
    this.#isOver = closeExport(this.#number, false);
    return this.#isOver;
  }

  /** The same, but if a process uses the memory, nothing changes. */
  endIfUnused(): boolean {
    this.#isOver = closeExport(this.#number, true);
    return this.#isOver;
  }
}
