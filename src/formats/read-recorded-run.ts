import { constants } from 'node:buffer';
import { InvalidLogError } from '../errors.js';
import { assertOptions, optionNames } from '../validation.js';
import { type LogFormat, type LogSource, OpenLog, type ReadLogOptions } from './log-source.js';
import { readSnapshot } from './pytorch-snapshot/snapshot-reader.js';
import type { RecordedRun, RecordingDamage } from './recorded-run.js';
import { type RecordedEvents, RecordedNames, RecordedRunBuilder, type RecordedRunOrigin } from './recorded-run-builder.js';
import { RecordingParser } from './recording/recording-parser.js';
import { LogParser } from './rmm-csv/log-parser.js';
import { RecordedRows } from './rmm-csv/recorded-rows.js';

/** Options of {@link readRecordedRun}. */
export interface ReadRecordedRunOptions extends ReadLogOptions {
  /**
   * What the log is.
   * @defaultValue what its bytes say
   */
  readonly format?: LogFormat;
}

export const readRecordedRunOptionNames = optionNames<ReadRecordedRunOptions>({
  format: true,
  name: true,
  onProgress: true,
  totalBytes: true,
});

/**
 * Reads all that a log holds: a recording of cistern's, an RMM log or a memory snapshot of PyTorch's, plain or gzip, whichever the bytes
 * say. Memory is needed for the events, 36 bytes each, and for the names; for a snapshot some fifteen times its size.
 *
 * Where a recording ends early or is damaged, the events before that are there, and {@link RecordedRun.damage} says where they end. Of an RMM log
 * that goes for an end in the middle of a row, or of its gzip data; a row that is wrong is an error. Whether the events go together, as that a
 * free names what is live, is not asked.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @throws InvalidLogError for what is no log, for a snapshot that is damaged, and naming the line where an RMM log is wrong.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) for a file that cannot be read.
 * @example
 * ```ts
 * const run = await readRecordedRun('run.cistern');
 * console.log(run.eventCount, run.layers.map(({ name }) => name));
 * if (run.damage !== undefined) console.log(`ends at byte ${run.damage.offset}: ${run.damage.fault}`);
 * ```
 */
export async function readRecordedRun(source: LogSource, options: ReadRecordedRunOptions = {}): Promise<RecordedRun> {
  assertOptions(options, readRecordedRunOptionNames);
  const log = await OpenLog.open(source, options);
  if (log.format === 'pytorch-snapshot') return readWholeSnapshot(log);
  const builder = new RecordedRunBuilder();
  const { origin, names } = await readEvents(log, builder);
  return builder.finish(origin, names);
}

/**
 * Reads a snapshot, which only makes sense as a whole.
 * @internal
 */
export async function readWholeSnapshot(log: OpenLog): Promise<RecordedRun> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  const gzipFault = await log.read(
    (piece) => {
      pieces.push(piece);
      bytes += piece.length;
      return bytes <= constants.MAX_LENGTH;
    },
    () => 0,
  );
  if (gzipFault !== undefined) throw new InvalidLogError(log.name, undefined, gzipFault.fault, { cause: gzipFault.cause });
  if (bytes > constants.MAX_LENGTH)
    throw new InvalidLogError(log.name, undefined, `is a snapshot of more than ${constants.MAX_LENGTH} bytes`);
  return readSnapshot(log.name, Buffer.concat(pieces));
}

/**
 * Reads a recording or an RMM log event by event.
 * @internal
 */
export async function readEvents(log: OpenLog, events: RecordedEvents): Promise<{ origin: RecordedRunOrigin; names: RecordedNames }> {
  return log.format === 'recording' ? readRecording(log, events) : readRows(log, events);
}

async function readRecording(log: OpenLog, events: RecordedEvents): Promise<{ origin: RecordedRunOrigin; names: RecordedNames }> {
  const names = new RecordedNames();
  const parser = new RecordingParser(log.name, names, events);
  const gzipFault = await log.read(
    (piece) => parser.push(piece),
    () => events.eventCount,
  );
  if (gzipFault === undefined) parser.finish();
  else parser.abandon(gzipFault.fault, gzipFault.isTruncation);
  return { origin: { source: log.name, ...parser.header, damage: parser.damage }, names };
}

async function readRows(log: OpenLog, events: RecordedEvents): Promise<{ origin: RecordedRunOrigin; names: RecordedNames }> {
  const rows = new RecordedRows(events);
  const parser = new LogParser(log.name, rows);
  const gzipFault = await log.read(
    (piece) => parser.push(piece),
    () => rows.eventCount,
  );
  let damage: RecordingDamage | undefined;
  if (gzipFault !== undefined) {
    const { fault, isTruncation, cause } = gzipFault;
    if (parser.lineCount === 0) throw new InvalidLogError(log.name, undefined, `${fault}, after 0 lines`, { cause });
    damage = { offset: parser.offset, fault, isTruncation };
  } else {
    const fault = parser.finish();
    if (fault !== undefined) damage = { offset: parser.offset, fault, isTruncation: true };
  }
  const origin = { source: log.name, startedAt: undefined, utcOffsetMinutes: 0, damage, csv: parser.spelling };
  return { origin, names: rows.names };
}
