import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { pipeline, Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { createGunzip } from 'node:zlib';
import { InvalidLogError } from '../errors.js';
import { KiB } from '../units.js';
import type { AllocationLog } from './allocation-log.js';
import { LogParser } from './log-parser.js';

/** How far the reading of a log has come. */
export interface LogProgress {
  /** Bytes read of the source, as they are in the file: compressed where it is compressed. */
  readonly bytesRead: number;
  /** All its bytes, where that is known. */
  readonly totalBytes: number | undefined;
  /** Events so far. */
  readonly events: number;
}

/** Options of {@link readAllocationLog}. */
export interface ReadAllocationLogOptions {
  /**
   * What errors call the log.
   * @defaultValue the path, or `log` for a source that is none
   */
  readonly name?: string;
  /**
   * The length of a source that is no path, for `onProgress`.
   * @defaultValue not known
   */
  readonly totalBytes?: number;
  /** Called after every piece that was read. */
  readonly onProgress?: (progress: LogProgress) => void;
}

const pieceBytes = 256 * KiB;

/**
 * Reads a log in the format of RMM's `logging_resource_adaptor` (`Thread,Time,Action,Pointer,Size,Stream`), plain or gzip, whichever the
 * bytes say. The source is read in pieces; memory is needed for the events alone, 20 bytes each.
 *
 * Pointers and streams are hexadecimal, with or without `0x`. The log must hold: every free names a live allocation and its size, and no
 * allocation returns what is live.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @throws InvalidLogError naming the line where something is wrong.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) for a file that cannot be read.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * console.log(log.eventCount, formatBytes(log.peakLiveBytes));
 * ```
 */
export async function readAllocationLog(
  source: string | URL | AsyncIterable<Uint8Array>,
  options: ReadAllocationLogOptions = {},
): Promise<AllocationLog> {
  const path = typeof source === 'string' ? source : source instanceof URL ? fileURLToPath(source) : undefined;
  const name = options.name ?? path ?? 'log';
  const totalBytes = path === undefined ? options.totalBytes : await fileBytes(path);
  const bytes = path === undefined ? (source as AsyncIterable<Uint8Array>) : createReadStream(path, { highWaterMark: pieceBytes });

  const parser = new LogParser(name);
  let bytesRead = 0;
  async function* counted(): AsyncGenerator<Uint8Array> {
    for await (const piece of bytes) {
      bytesRead += piece.length;
      yield piece;
    }
  }
  try {
    for await (const piece of await decompressed(counted())) {
      parser.push(piece);
      options.onProgress?.({ bytesRead, totalBytes, events: parser.eventCount });
    }
  } catch (error) {
    throw gzipError(error, name, parser.lineCount) ?? error;
  }
  return parser.finish();
}

/** The length of a file, or `undefined` for a pipe. */
async function fileBytes(path: string): Promise<number | undefined> {
  const information = await stat(path);
  if (information.isDirectory()) throw new InvalidLogError(path, undefined, 'is a directory');
  return information.isFile() ? information.size : undefined;
}

/** The bytes themselves, or what they hold where they begin as gzip does. */
async function decompressed(pieces: AsyncGenerator<Uint8Array>): Promise<AsyncIterable<Uint8Array>> {
  let head = Buffer.alloc(0);
  while (head.length < 2) {
    const next = await pieces.next();
    if (next.done === true) break;
    head = Buffer.concat([head, next.value]);
  }
  async function* whole(): AsyncGenerator<Uint8Array> {
    if (head.length > 0) yield head;
    yield* pieces;
  }
  if (head[0] !== 0x1f || head[1] !== 0x8b) return whole();
  const gunzip = createGunzip({ chunkSize: pieceBytes });
  // An error of either side destroys the other and reaches the reader of `gunzip`.
  pipeline(Readable.from(whole(), { objectMode: false, highWaterMark: pieceBytes }), gunzip, () => {});
  return gunzip;
}

function gzipError(error: unknown, name: string, lines: number): InvalidLogError | undefined {
  const code = (error as NodeJS.ErrnoException | null)?.code;
  if (typeof code !== 'string' || !code.startsWith('Z_')) return undefined;
  const what = code === 'Z_BUF_ERROR' ? 'the gzip data ends early' : `the gzip data is damaged (${(error as Error).message})`;
  return new InvalidLogError(name, undefined, `${what}, after ${lines} lines`, { cause: error });
}
