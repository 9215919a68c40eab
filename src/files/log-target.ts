import { closeSync, constants, fstatSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import type { Writable } from 'node:stream';
import { CisternError, reasonOf } from '../basics/errors.js';

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

/** The files that this thread writes logs to, by device and number. */
const openFiles = new Set<string>();

/** A file, written synchronously. Its previous contents are lost, unless it is the file of another log of this thread. */
export class FileTarget implements LogTarget {
  readonly #path: string;
  readonly #descriptor: number;
  /** Its key in `openFiles`; not set for a device or a pipe, which several logs may share. */
  #key: string | undefined;

  constructor(path: string) {
    this.#path = path;
    try {
      this.#descriptor = openSync(path, constants.O_WRONLY | constants.O_CREAT);
    } catch (error) {
      throw logWriteError(`file ${path}`, error);
    }
    try {
      this.#begin();
    } catch (error) {
      closeSync(this.#descriptor);
      throw logWriteError(`file ${path}`, error);
    }
  }

  /** Empties the file, unless another log is written to it, perhaps by another path. */
  #begin(): void {
    const status = fstatSync(this.#descriptor, { bigint: true });
    if (!status.isFile()) return;
    const key = `${status.dev} ${status.ino}`;
    if (openFiles.has(key)) throw new Error('another log is being written to it; dispose that one first, or name another file');
    ftruncateSync(this.#descriptor);
    openFiles.add(key);
    this.#key = key;
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
    if (this.#key !== undefined) openFiles.delete(this.#key);
    this.#key = undefined;
    try {
      closeSync(this.#descriptor);
    } catch (error) {
      throw logWriteError(`file ${this.#path}`, error);
    }
  }
}

/**
 * A Node stream, which still belongs to its owner. A failure shows only after the write that caused
 * it; later writes fail, too.
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
  const reason = reasonOf(cause);
  return new CisternError('ERR_CISTERN_LOG_WRITE', `cannot write the log to the ${target}: ${reason}`, { cause });
}
