import { closeSync, openSync, writeSync } from 'node:fs';
import type { Writable } from 'node:stream';
import { CisternError } from '../basics/errors.js';

/** The destination of a log's bytes. */
export interface LogTarget {
  /**
   * Writes from the start of `bytes`, which the caller may reuse afterwards, and returns how many
   * were written.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if none can be written, or if an earlier write
   * turned out to have failed.
   */
  write(bytes: Uint8Array): number;
  /** Ends the use of the target. */
  close(): void;
}

/** A file, written synchronously. Its previous contents are lost. */
export class FileTarget implements LogTarget {
  readonly #path: string;
  readonly #descriptor: number;

  constructor(path: string) {
    this.#path = path;
    try {
      this.#descriptor = openSync(path, 'w');
    } catch (error) {
      throw logWriteError(`file ${path}`, error);
    }
  }

  write(bytes: Uint8Array): number {
    if (bytes.length === 0) return 0;
    try {
      return writeSync(this.#descriptor, bytes);
    } catch (error) {
      throw logWriteError(`file ${this.#path}`, error);
    }
  }

  close(): void {
    try {
      closeSync(this.#descriptor);
    } catch (error) {
      throw logWriteError(`file ${this.#path}`, error);
    }
  }
}

/**
 * A Node stream, which its owner keeps. A failure shows only after the write that caused it; every
 * write from then on fails too.
 */
export class WritableTarget implements LogTarget {
  readonly #stream: Writable;
  #failure: Error | undefined;
  readonly #onError = (error: Error): void => {
    this.#failure = error;
  };

  constructor(stream: Writable) {
    this.#stream = stream;
    stream.on('error', this.#onError);
  }

  write(bytes: Uint8Array): number {
    if (this.#failure !== undefined) throw logWriteError('stream', this.#failure);
    // A stream that has ended or was destroyed silently loses what is written to it.
    if (!this.#stream.writable) throw logWriteError('stream', new Error('it has ended'));
    if (bytes.length > 0) this.#stream.write(Buffer.from(bytes));
    return bytes.length;
  }

  close(): void {
    this.#stream.off('error', this.#onError);
  }
}

function logWriteError(target: string, cause: unknown): CisternError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new CisternError('ERR_CISTERN_LOG_WRITE', `cannot write the log to the ${target}: ${reason}`, { cause });
}
