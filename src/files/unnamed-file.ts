import { randomUUID } from 'node:crypto';
import { unlinkSync } from 'node:fs';
import { type FileHandle, open, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { cancelFlushAtExit, flushAtExit } from './flush-at-exit.js';

/**
 * A file that is read and written through this object only, and is gone when that is closed. It has no name while it is
 * open: the system removes it with its last descriptor, however the process ends. Reads and writes run on libuv's threads.
 */
export class UnnamedFile {
  readonly #handle: FileHandle;
  /** Only where an open file keeps its name. */
  #path: string | undefined;

  private constructor(handle: FileHandle, path: string) {
    this.#handle = handle;
    this.#path = path;
  }

  /** @param name what the file is called until its name is removed, and where that is impossible */
  static async make(folder: string, name: string): Promise<UnnamedFile> {
    const path = join(folder, `${name}-${process.pid}-${randomUUID()}`);
    const file = new UnnamedFile(await open(path, 'wx+', 0o600), path);
    try {
      await unlink(path);
      file.#path = undefined;
    } catch {
      flushAtExit(file);
    }
    return file;
  }

  /** Writes all of the bytes, or throws the system's error. */
  async write(data: Uint8Array, position: number): Promise<void> {
    for (let done = 0; done < data.length; ) {
      const { bytesWritten } = await this.#handle.write(data, done, data.length - done, position + done);
      if (bytesWritten === 0) throw new Error('nothing more can be written');
      done += bytesWritten;
    }
  }

  /** Reads as many bytes as `data` has, or throws the system's error. */
  async read(data: Uint8Array, position: number): Promise<void> {
    for (let done = 0; done < data.length; ) {
      const { bytesRead } = await this.#handle.read(data, done, data.length - done, position + done);
      if (bytesRead === 0) throw new Error(`the file ends after ${position + done} bytes`);
      done += bytesRead;
    }
  }

  /** The contents are gone. Does not throw: what a close could still report was written for nobody. */
  async close(): Promise<void> {
    await this.#handle.close().catch(() => {});
    if (this.#path === undefined) return;
    await unlink(this.#path).catch(() => {});
    this.#path = undefined;
    cancelFlushAtExit(this);
  }

  /** At the exit of the process. */
  flush(): void {
    if (this.#path !== undefined) unlinkSync(this.#path);
  }
}
