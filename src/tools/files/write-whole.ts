/**
 * Writes files as a whole or not at all.
 *
 * Bytes go to a temporary file beside the target, which is renamed once everything is written.
 * Until then an error, the end of the process, or a signal that ends it removes the temporary file.
 * It is not created before the first bytes arrive, so work before them can be interrupted without
 * cleaning up. It is a new file of a name that nobody can guess: in a folder that others may write to, a
 * link of theirs would have the bytes written to another file.
 */
import { createWriteStream, fstatSync, type Stats, unlinkSync, type WriteStream } from 'node:fs';
import { access, constants, realpath, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { PassThrough, type Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertFunction, assertOptions, optionNames } from '../../basics/validation.js';
import { createFile, newPath } from '../../files/new-file.js';

/** Takes the contents of a file, in order. */
export interface FileSink {
  /**
   * Adds bytes, or text as UTF-8, and waits until more can be written. The bytes may then be
   * reused.
   * @throws a system error of Node (`ENOSPC`, `EIO`, …) if they cannot be written.
   */
  write(contents: string | Uint8Array): Promise<void>;
}

/** Options of {@link writeWhole}. */
export interface WriteWholeOptions {
  /**
   * Whether the file is compressed with gzip.
   * @defaultValue whether the path ends in `.gz`
   */
  readonly gzip?: boolean | undefined;
}

const knownOptions = optionNames<WriteWholeOptions>({ gzip: 'boolean' });

/** Signals that end a process, and that a program can handle. */
const endingSignals = ['SIGHUP', 'SIGINT', 'SIGTERM'] as const;

/** The files to remove if the process ends. */
const unfinished = new Set<string>();

/**
 * Writes a file that replaces whatever is at its path once it is complete. If anything goes wrong,
 * or if the process ends in any way short of being killed, the previous file stays, and no partial
 * file is left.
 *
 * Anything but an ordinary file, such as a pipe or a terminal, is written to directly.
 * @param write receives a sink to write to
 * @returns what `write` returns
 * @throws a system error of Node (`ENOENT`, `EACCES`, `EISDIR`, `ENOSPC`, …) if the file cannot be
 * written.
 * @throws ArgumentTypeError if the path is not a string, or `write` not a function; whatever `write` throws.
 * @example
 * ```ts
 * await writeWhole('trace.csv.gz', async (sink) => {
 *   for await (const piece of generateLog('multi-stream', { events: 10_000 })) await sink.write(piece);
 * });
 * ```
 */
export async function writeWhole<T>(path: string, write: (sink: FileSink) => Promise<T>, options: WriteWholeOptions = {}): Promise<T> {
  if (typeof path !== 'string') throw new ArgumentTypeError(`path must be a string, got ${formatValue(path)}`);
  assertFunction(write, 'write');
  assertOptions(options, knownOptions);
  const { gzip = path.endsWith('.gz') } = options;
  const before = await assertWritable(path);
  const isDirect = before !== undefined && !before.isFile();
  // A symbolic link stays; its target is replaced. /dev/stdout may lead to a pipe, which has no
  // path.
  const target = before?.isFile() ? await realpath(path) : path;
  const neighbour = newPath(dirname(target), `.${basename(target)}.`, '.partial');
  const written = new FileWriter(() => (isDirect ? openDevice(target) : createUnfinished(neighbour, before?.mode)), gzip);
  try {
    const result = await write(written);
    await written.end();
    if (!isDirect) await rename(neighbour, target);
    return result;
  } catch (error) {
    await written.abandon();
    if (unfinished.has(neighbour)) await rm(neighbour, { force: true });
    throw renamed(written.failure ?? error, neighbour, path);
  } finally {
    unprotect(neighbour);
  }
}

/**
 * Checks that a file can be written, before there is anything to write.
 * @internal
 * @returns what is there already
 * @throws a system error of Node if it is a folder, or permissions or a missing folder forbid it.
 */
export async function assertWritable(path: string): Promise<Stats | undefined> {
  const before = await existing(path);
  if (before?.isDirectory()) throw fileError('EISDIR', 'is a directory', path);
  await access(before === undefined ? dirname(path) : path, constants.W_OK);
  return before;
}

class FileWriter implements FileSink {
  readonly #create: () => WriteStream;
  readonly #gzip: boolean;
  #head: Transform | undefined;
  #end: Promise<void> | undefined;
  /** Why bytes cannot be written; undefined if they can. */
  failure: unknown;

  constructor(create: () => WriteStream, gzip: boolean) {
    this.#create = create;
    this.#gzip = gzip;
  }

  async write(contents: string | Uint8Array): Promise<void> {
    const head = this.#open();
    const taken = new Promise<void>((resolve, reject) => {
      head.write(contents, (error) => (error ? reject(error) : resolve()));
    });
    // If the file fails, pending writes never call back.
    await Promise.race([taken, this.#end as Promise<void>]);
  }

  /** Resolves when everything is written. */
  async end(): Promise<void> {
    this.#open().end();
    await this.#end;
  }

  /** Stops writing. */
  async abandon(): Promise<void> {
    const failure = this.failure;
    this.#head?.destroy();
    await this.#end?.catch(() => {});
    this.failure = failure;
  }

  #open(): Transform {
    if (this.#head !== undefined) return this.#head;
    const file = this.#create();
    this.#head = this.#gzip ? createGzip() : new PassThrough();
    this.#end = pipeline(this.#head, file);
    this.#end.catch((error) => {
      this.failure = error;
    });
    return this.#head;
  }
}

/**
 * Creates a file that is removed if the process ends before `unprotect`. It exists when this
 * returns: a thread that created it later could do so after its removal.
 */
function createUnfinished(path: string, mode = 0o666): WriteStream {
  protect(path);
  try {
    return createWriteStream(path, { fd: createFile(path, 'write', mode & 0o777) });
  } catch (error) {
    // It is not ours.
    unprotect(path);
    throw error;
  }
}

/** Opens a device or a pipe, and neither creates nor empties a file that may have taken its place. */
function openDevice(path: string): WriteStream {
  const stream = createWriteStream(path, { flags: constants.O_WRONLY as unknown as string });
  stream.once('open', (descriptor) => {
    if (fstatSync(descriptor).isFile()) stream.destroy(new Error(`${path} has become a file`));
  });
  return stream;
}

/** Makes the end of the process remove the file, until `unprotect`. */
function protect(path: string): void {
  if (unfinished.size === 0) {
    process.on('exit', removeUnfinished);
    for (const signal of endingSignals) process.on(signal, endBySignal);
  }
  unfinished.add(path);
}

function unprotect(path: string): void {
  if (!unfinished.delete(path) || unfinished.size > 0) return;
  process.off('exit', removeUnfinished);
  for (const signal of endingSignals) process.off(signal, endBySignal);
}

function removeUnfinished(): void {
  for (const path of unfinished) {
    try {
      unlinkSync(path);
    } catch {}
  }
}

/**
 * Ends the process as the signal would have. A program with its own listener decides for itself.
 */
function endBySignal(signal: NodeJS.Signals): void {
  if (process.listenerCount(signal) > 1) return;
  removeUnfinished();
  process.off(signal, endBySignal);
  process.kill(process.pid, signal);
}

async function existing(path: string): Promise<Stats | undefined> {
  try {
    return await stat(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** Changes an error into what Node would have thrown for the file itself. */
function renamed(error: unknown, from: string, to: string): unknown {
  if (!(error instanceof Error)) return error;
  const { path, syscall } = error as NodeJS.ErrnoException;
  // A failed write does not say where.
  if (path === undefined && syscall === 'write') {
    error.message += ` '${to}'`;
    return Object.assign(error, { path: to });
  }
  if (path !== from) return error;
  error.message = error.message.replaceAll(from, to);
  return Object.assign(error, { path: to });
}

function fileError(code: string, what: string, path: string): Error {
  return Object.assign(new Error(`${code}: ${what}, open '${path}'`), { code, path, syscall: 'open' });
}
