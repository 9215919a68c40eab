import { close, constants, openSync, read, unlink, unlinkSync, write } from 'node:fs';
import { promisify } from 'node:util';
import { cancelFlushAtExit, flushAtExit } from '../../files/flush-at-exit.js';
import { createFile, newPath } from '../../files/new-file.js';

const writeTo = promisify(write);
const readFrom = promisify(read);
const closeFile = promisify(close);
const removeName = promisify(unlink);

/** Linux's flag for a file that never has a name, which Node does not list; needs `O_DIRECTORY`. */
const temporary = 0o20000000;

/**
 * A file that is read and written through this object only, and is gone when that is closed. It has no name while it is
 * open: the system removes it with its last descriptor, however the process ends. Reads and writes run on libuv's threads, one at a time.
 */
export class UnnamedFile {
  readonly #descriptor: number;
  /** Only where an open file keeps its name. */
  #path: string | undefined;
  /** The read or write that goes on: the descriptor must not be closed, and given to another file, under it. */
  #operation: Promise<unknown> = Promise.resolve();

  /**
   * @param name what the file is called where it must have a name: for a moment, on systems and disks without files that have none
   * @throws the system's error
   */
  constructor(folder: string, name: string) {
    const withoutName = openWithoutName(folder);
    if (withoutName !== undefined) {
      this.#descriptor = withoutName;
      return;
    }
    const path = newPath(folder, `${name}-${process.pid}-`);
    this.#descriptor = createFile(path, 'read and write', 0o600);
    try {
      unlinkSync(path);
    } catch {
      this.#path = path;
      flushAtExit(this);
    }
  }

  /** Writes all of the bytes, or throws the system's error. */
  async write(data: Uint8Array, position: number): Promise<void> {
    for (let done = 0; done < data.length; ) {
      const { bytesWritten } = await this.#run(() => writeTo(this.#descriptor, data, done, data.length - done, position + done));
      if (bytesWritten === 0) throw new Error('nothing more can be written');
      done += bytesWritten;
    }
  }

  /** Reads as many bytes as `data` has, or throws the system's error. */
  async read(data: Uint8Array, position: number): Promise<void> {
    for (let done = 0; done < data.length; ) {
      const { bytesRead } = await this.#run(() => readFrom(this.#descriptor, data, done, data.length - done, position + done));
      if (bytesRead === 0) throw new Error(`the file ends after ${position + done} bytes`);
      done += bytesRead;
    }
  }

  /** The contents are gone, once the read or write that goes on has ended. Does not throw: what a close could report was written for nobody. */
  async close(): Promise<void> {
    await this.#operation.catch(() => {});
    await closeFile(this.#descriptor).catch(() => {});
    if (this.#path === undefined) return;
    await removeName(this.#path).catch(() => {});
    this.#path = undefined;
    cancelFlushAtExit(this);
  }

  /** At the exit of the process. */
  flush(): void {
    if (this.#path !== undefined) unlinkSync(this.#path);
  }

  #run<T>(operation: () => Promise<T>): Promise<T> {
    const result = operation();
    this.#operation = result;
    return result;
  }
}

/** Not every file system can do this; what else may be wrong is found by the next attempt, with a name. */
function openWithoutName(folder: string): number | undefined {
  if (process.platform !== 'linux') return undefined;
  try {
    return openSync(folder, constants.O_RDWR | constants.O_DIRECTORY | temporary, 0o600);
  } catch {
    return undefined;
  }
}
