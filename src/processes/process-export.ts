import type { OrderedMemory, OutsideUse } from '../buffers/memory-uses.js';
import { freeSoonerOrLater } from '../collector/free-unreachable-buffers.js';
import type { Stream } from '../driver/streams/stream.js';
import {
  closeExport,
  type ExportedRange,
  endExport,
  exportIsUsed,
  exportMemory,
  handleBytes,
  refreshExport,
  reopenExport,
} from './process-memory.js';
import { endLater } from './wait-for-processes.js';

/** One piece of memory that other processes can open. */
export class ProcessExport implements OutsideUse {
  readonly description = 'another process uses';
  readonly holdsFromResource = true;
  readonly #number: number;
  readonly #handle: Buffer;
  /** How often it was closed without being reopened. */
  #closings = 0;
  #isOver = false;

  constructor(number: number, handle: Buffer) {
    this.#number = number;
    this.#handle = handle;
  }

  /** `undefined` if the driver cannot share the memory. */
  static begin(memory: ExportedRange, stream: Stream): ProcessExport | undefined {
    const handle = Buffer.alloc(handleBytes);
    const number = exportMemory(memory, stream, handle);
    return number === undefined ? undefined : new ProcessExport(number, handle);
  }

  get isOpen(): boolean {
    return !this.#isOver;
  }

  /** A copy of the handle. */
  get handle(): Buffer {
    return Buffer.from(this.#handle);
  }

  /** Orders later opens also after the work that is now queued on the stream. */
  refresh(byteLength: number, stream: Stream): void {
    refreshExport(this.#number, byteLength, stream);
  }

  /** Whether other processes use the memory, or have ended without being detected yet. */
  get isUsed(): boolean {
    return !this.#isOver && exportIsUsed(this.#number);
  }

  /**
   * Prevents processes from opening the memory until `reopen` is called as often as this. Returns
   * whether none uses it.
   */
  close(): boolean {
    this.#closings++;
    return closeExport(this.#number, false);
  }

  /** The same, but if a process uses the memory, nothing changes. */
  closeIfUnused(): boolean {
    if (!closeExport(this.#number, true)) return false;
    this.#closings++;
    return true;
  }

  leave(memory: OrderedMemory): void {
    endLater({
      endIfOver: () => {
        if (this.isUsed) return false;
        freeSoonerOrLater(memory);
        return true;
      },
    });
  }

  /** Undoes a `close`. */
  reopen(): void {
    this.#closings--;
    if (this.#closings === 0) reopenExport(this.#number);
  }

  /** Ends a closed export that no process uses. A second call does nothing. */
  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    endExport(this.#number);
  }
}
