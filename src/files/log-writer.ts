import { operatingSystemThreadId } from '../driver/workers/thread.js';
import { CsvRows, defaultNullPointer, RowText, rowActions } from './csv-rows.js';
import { cancelFlushAtExit, flushAtExit } from './flush-at-exit.js';
import type { LogTarget } from './log-target.js';

/** Rows are offered to the target once there are this many bytes; a few more may arrive first. */
const bufferBytes = 64 * 1024;
const spareBytes = 128;

/** The actions as written to new logs. */
export const LogAction = rowActions(defaultNullPointer);

/**
 * Writes rows as the program runs: collects them in memory and passes them to a target, many at a
 * time.
 */
export class LogWriter {
  readonly #target: LogTarget;
  /** Rows are offered to the target at this many bytes. */
  readonly #fullBytes: number;
  readonly #thread = operatingSystemThreadId();
  /** Wall-clock milliseconds at zero of the monotonic clock. */
  readonly #clockOffset = Math.round(Date.now() - performance.now());
  /** The monotonic clock at the start of the second that the prefix names. */
  #secondStart = Number.NEGATIVE_INFINITY;
  #prefix = new RowText('');
  readonly #rows = new CsvRows(bufferBytes + spareBytes);

  constructor(target: LogTarget, writesEveryRow: boolean) {
    this.#target = target;
    this.#fullBytes = writesEveryRow ? 1 : bufferBytes;
    flushAtExit(this);
  }

  /** Whether the rows are due to be written. */
  get isFull(): boolean {
    return this.#rows.length >= this.#fullBytes;
  }

  /** Adds a row. May grow the buffer; cannot fail. */
  append(action: RowText, pointer: number, bytes: number, suffix: RowText): void {
    let elapsed = performance.now() - this.#secondStart;
    if (elapsed >= 1000) elapsed = this.#beginSecond();
    this.#rows.add(this.#prefix, (elapsed * 1000) | 0, action, pointer, bytes, suffix);
  }

  /**
   * Passes every row to the target.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the target does not take them; they are kept,
   * to be tried again.
   */
  flush(): void {
    let written = 0;
    try {
      do {
        written += this.#target.write(this.#rows.bytesFrom(written));
      } while (written < this.#rows.length);
    } finally {
      this.#rows.drop(written);
    }
  }

  /**
   * Passes the rows to the target if they are due. If it does not take them, they stay due, and the
   * next `flush` throws the error.
   */
  tryFlush(): void {
    if (!this.isFull) return;
    try {
      this.flush();
    } catch {}
  }

  /** Writes the remaining rows, and closes the target. */
  close(): void {
    cancelFlushAtExit(this);
    try {
      this.flush();
    } finally {
      this.#target.close();
    }
  }

  /** Makes the prefix of the current second. Returns the milliseconds since its start. */
  #beginSecond(): number {
    const now = performance.now();
    const wallClock = now + this.#clockOffset;
    const date = new Date(wallClock);
    this.#secondStart = Math.floor(wallClock / 1000) * 1000 - this.#clockOffset;
    this.#prefix = new RowText(`${this.#thread},${date.toTimeString().slice(0, 8)}.`);
    return now - this.#secondStart;
  }
}

/** The end of every row of a stream, from the driver's handle. */
export function streamSuffix(handle: number): RowText {
  return new RowText(`,0x${handle.toString(16)}\n`);
}
