import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { pipeline, Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { createGunzip } from 'node:zlib';
import { ArgumentTypeError, formatValue, InvalidLogError } from '../../basics/errors.js';
import { KiB } from '../../basics/units.js';
import { logHeader } from '../../files/csv-rows.js';
import { recordingMagic } from '../../recording/recording-format.js';
import { nameOfBytes } from './name-of-bytes.js';
import { sqliteMagic } from './nsight-sqlite/sqlite-table.js';
import { raftBeginning } from './raft-csv/read-raft-csv.js';
import { Cost, ReadingBudget } from './reading-budget.js';
import { htmlBeginning } from './report/read-report.js';
import { debugLogBeginning } from './rmm-debug/read-debug-log.js';
import { umpireBeginning } from './umpire/read-replay.js';

/** The progress of reading a log. */
export interface LogProgress {
  /** Bytes read from the source. For a compressed file, these are compressed bytes. */
  readonly bytesRead: number;
  /** The source's total bytes, if known. */
  readonly totalBytes: number | undefined;
  /** Events read. */
  readonly events: number;
}

/** Options of every function that reads a log. */
export interface ReadLogOptions {
  /**
   * The log's name in error messages.
   * @defaultValue the path, or `log` if the source is not a path
   */
  readonly name?: string | undefined;
  /**
   * The length of a source that is not a path, for `onProgress`.
   * @defaultValue unknown
   */
  readonly totalBytes?: number | undefined;
  /** Called after each piece is read. */
  readonly onProgress?: ((progress: LogProgress) => void) | undefined;
}

/**
 * Formats that cistern reads. `pytorch-snapshot` is the pickle of PyTorch's memory snapshots, `chrome-trace` the JSON of its profiler or of
 * cistern, `nsight-sqlite` an export of Nsight Systems, `rmm-debug` RMM's debug log, `umpire` Umpire's replay log, and `raft-csv`
 * the CSV of RAFT's `memory_tracking_resources`; a report holds its log.
 */
export type LogFormat =
  | 'rmm-csv'
  | 'recording'
  | 'pytorch-snapshot'
  | 'report'
  | 'chrome-trace'
  | 'nsight-sqlite'
  | 'rmm-debug'
  | 'umpire'
  | 'raft-csv';

export const logFormats = [
  'rmm-csv',
  'recording',
  'pytorch-snapshot',
  'report',
  'chrome-trace',
  'nsight-sqlite',
  'rmm-debug',
  'umpire',
  'raft-csv',
] as const satisfies readonly LogFormat[];

/** A path, a `file:` URL, or bytes in pieces. */
export type LogSource = string | URL | AsyncIterable<Uint8Array>;

const pieceBytes = 256 * KiB;
const magic = Buffer.from(recordingMagic);
/** Enough for the first lines of a text, which may begin with a comment. */
const examinedBytes = 4 * KiB;
/** The end of the header of a CSV log, which may follow a byte order mark. */
const maximumHeader = logHeader.length + 3;

/** @throws ArgumentTypeError */
function assertSource(source: unknown): void {
  if (typeof source === 'string' || source instanceof URL) return;
  const pieces = source as Partial<AsyncIterable<unknown> & Iterable<unknown>> | null | undefined;
  const isIterable = typeof pieces?.[Symbol.asyncIterator] === 'function' || typeof pieces?.[Symbol.iterator] === 'function';
  // The pieces of bytes would be numbers.
  if (typeof source === 'object' && isIterable && !ArrayBuffer.isView(source)) return;
  throw new ArgumentTypeError(`source must be a path, a file: URL, or an iterable of Uint8Arrays, got ${formatValue(source)}`);
}

/** A log whose first bytes have been examined. */
export class OpenLog {
  readonly name: string;
  /** The format given, or detected from the bytes; RMM's CSV if nothing is detected. */
  readonly format: LogFormat;
  /** What reading the log may cost. */
  readonly budget: ReadingBudget;
  readonly #pieces: AsyncIterable<Uint8Array>;
  readonly #progress: (events: number) => void;

  private constructor(
    name: string,
    format: LogFormat,
    budget: ReadingBudget,
    pieces: AsyncIterable<Uint8Array>,
    progress: (events: number) => void,
  ) {
    this.name = name;
    this.format = format;
    this.budget = budget;
    this.#pieces = pieces;
    this.#progress = progress;
  }

  /**
   * Opens a log, plain or gzip.
   * @throws ArgumentTypeError for any other source.
   * @throws InvalidLogError if the source is a folder, or its gzip data is damaged at the start.
   * Its pieces throw one, too, if the data expands to far more than its bytes.
   */
  static async open(source: LogSource, options: ReadLogOptions & { readonly format?: LogFormat | undefined }): Promise<OpenLog> {
    assertSource(source);
    const path = typeof source === 'string' ? source : source instanceof URL ? fileURLToPath(source) : undefined;
    const name = options.name ?? path ?? 'log';
    const totalBytes = path === undefined ? options.totalBytes : await fileBytes(path);
    const bytes = path === undefined ? (source as AsyncIterable<Uint8Array>) : createReadStream(path, { highWaterMark: pieceBytes });
    const budget = new ReadingBudget(name);
    let bytesRead = 0;
    async function* counted(): AsyncGenerator<Uint8Array> {
      for await (const piece of bytes) {
        if (!(piece instanceof Uint8Array))
          throw new ArgumentTypeError(`source must give pieces that are Uint8Arrays, got ${formatValue(piece)}`);
        bytesRead += piece.length;
        budget.add(piece.length);
        yield piece;
      }
    }
    const compressed = await Beginning.of(counted(), 2);
    const isGzip = compressed.head[0] === 0x1f && compressed.head[1] === 0x8b;
    try {
      const whole = isGzip
        ? await Beginning.of(gunzipped(compressed.whole(), budget), examinedBytes)
        : await compressed.upTo(examinedBytes);
      const progress = (events: number) => options.onProgress?.({ bytesRead, totalBytes, events });
      const format = options.format ?? formatOf(whole.head);
      const kind = format === 'rmm-csv' && options.format === undefined ? nameOfBytes(whole.head) : undefined;
      if (kind !== undefined) throw new InvalidLogError(name, undefined, `is ${kind}, which cistern does not read`);
      return new OpenLog(name, format, budget, whole.whole(), progress);
    } catch (error) {
      const fault = gzipFault(error);
      throw fault === undefined ? error : new InvalidLogError(name, undefined, `${fault.fault}, after 0 lines`, { cause: error });
    }
  }

  /**
   * Passes the bytes to `take` in pieces of at most 256 KiB until it returns `false` or they end,
   * and reports progress after each piece. Returns the fault of the gzip data, if any; everything
   * before the fault has been passed on.
   */
  async read(take: (piece: Uint8Array) => boolean, events: () => number): Promise<GzipFault | undefined> {
    try {
      for await (const piece of this.#pieces) {
        for (let start = 0; start < piece.length; start += pieceBytes) {
          const wantsMore = take(piece.subarray(start, start + pieceBytes));
          this.#progress(events());
          if (!wantsMore) return undefined;
        }
      }
      return undefined;
    } catch (error) {
      const fault = gzipFault(error);
      if (fault === undefined) throw error;
      return fault;
    }
  }
}

/** A fault in gzip data. */
export interface GzipFault {
  readonly fault: string;
  readonly isTruncation: boolean;
  readonly cause: unknown;
}

/** Pieces whose first bytes were examined. */
class Beginning {
  readonly #rest: AsyncIterator<Uint8Array>;
  readonly head: Uint8Array;

  private constructor(head: Uint8Array, rest: AsyncIterator<Uint8Array>) {
    this.head = head;
    this.#rest = rest;
  }

  static of(pieces: AsyncIterable<Uint8Array>, count: number): Promise<Beginning> {
    return new Beginning(new Uint8Array(0), pieces[Symbol.asyncIterator]()).upTo(count);
  }

  /** The same with at least `count` bytes in its head, unless the source is shorter. */
  async upTo(count: number): Promise<Beginning> {
    let head = this.head;
    while (head.length < count) {
      const next = await this.#rest.next();
      if (next.done === true) break;
      head = Buffer.concat([head, next.value]);
    }
    return new Beginning(head, this.#rest);
  }

  async *whole(): AsyncGenerator<Uint8Array> {
    try {
      if (this.head.length > 0) yield this.head;
      for (let next = await this.#rest.next(); next.done !== true; next = await this.#rest.next()) yield next.value;
    } finally {
      await this.#rest.return?.();
    }
  }
}

/** The format that the first bytes of a log show; RMM's CSV shows nothing in the first few. */
function formatOf(beginning: Uint8Array): LogFormat {
  // A source may give all its bytes in one piece.
  const head = beginning.subarray(0, pieceBytes);
  const length = Math.min(head.length, magic.length);
  if (length > 0 && magic.subarray(0, length).equals(head.subarray(0, length))) return 'recording';
  if (Buffer.from(head.subarray(0, htmlBeginning.length)).toString().toLowerCase() === htmlBeginning) return 'report';
  if (Buffer.from(head.subarray(0, sqliteMagic.length)).equals(sqliteMagic)) return 'nsight-sqlite';
  const text = Buffer.from(head).toString('latin1');
  if (raftBeginning.test(Buffer.from(head).toString())) return 'raft-csv';
  if (debugLogBeginning.test(text)) return 'rmm-debug';
  if (umpireBeginning.test(text)) return 'umpire';
  if (/^(?:\xef\xbb\xbf)?\s*[{[]/.test(text)) return 'chrome-trace';
  const [first, protocol] = head;
  // Protocols 0 and 1 have no number: they begin with a dict or a list.
  if (/^(?:\(d|\(l|\}q|\]q)/.test(Buffer.from(head.subarray(0, 2)).toString('latin1'))) return 'pytorch-snapshot';
  return first === 0x80 && protocol !== undefined && protocol >= 2 && protocol <= 5 ? 'pytorch-snapshot' : 'rmm-csv';
}

/**
 * The format of the log that a file holds, by its first bytes, or `undefined` if they are not those
 * of a log, or those of a report.
 */
export async function detectLog(path: string): Promise<LogFormat | undefined> {
  try {
    const log = await OpenLog.open(path, {});
    // A report can be made again, and so can a trace of cistern's; most other files of JSON are no logs.
    if (log.format === 'report' || log.format === 'chrome-trace') return undefined;
    if (log.format !== 'rmm-csv') return log.format;
    let head = '';
    await log.read(
      (piece) => {
        head += Buffer.from(piece).toString('latin1');
        return head.length < maximumHeader;
      },
      () => 0,
    );
    return head.slice(0, maximumHeader).includes(logHeader) ? 'rmm-csv' : undefined;
  } catch {
    return undefined;
  }
}

/** The length of a file, or `undefined` for a pipe. */
async function fileBytes(path: string): Promise<number | undefined> {
  const information = await stat(path);
  if (information.isDirectory()) throw new InvalidLogError(path, undefined, 'is a directory');
  return information.isFile() ? information.size : undefined;
}

async function* gunzipped(pieces: AsyncIterable<Uint8Array>, budget: ReadingBudget): AsyncGenerator<Uint8Array> {
  const gunzip = createGunzip({ chunkSize: pieceBytes });
  // An error on either side destroys the other and reaches the reader of `gunzip`.
  pipeline(Readable.from(pieces, { objectMode: false, highWaterMark: pieceBytes }), gunzip, () => {});
  for await (const piece of gunzip as AsyncIterable<Uint8Array>) {
    budget.spend(piece.length * Cost.unpackedByte, 'gzip data', 'if you trust it, decompress it first');
    yield piece;
  }
}

function gzipFault(error: unknown): GzipFault | undefined {
  const code = (error as NodeJS.ErrnoException | null)?.code;
  if (typeof code !== 'string' || !code.startsWith('Z_')) return undefined;
  const isTruncation = code === 'Z_BUF_ERROR';
  const fault = isTruncation ? 'the gzip data ends early' : `the gzip data is damaged (${(error as Error).message})`;
  return { fault, isTruncation, cause: error };
}
