import { constants } from 'node:buffer';
import { InvalidLogError } from '../../basics/errors.js';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { readTrace } from './chrome-trace/read-trace.js';
import { EventColumnsBuilder, type EventSink } from './event-columns.js';
import { type LogFormat, type LogSource, OpenLog, type ReadLogOptions } from './log-source.js';
import { readNsight } from './nsight-sqlite/read-nsight.js';
import { SnapshotParser } from './pytorch-snapshot/snapshot-reader.js';
import { readRaftCsv } from './raft-csv/read-raft-csv.js';
import type { ReadingBudget } from './reading-budget.js';
import { finishRun, RecordedNames, type RecordedRun, type RecordedRunOrigin, type RecordingDamage } from './recorded-run.js';
import { RecordingParser } from './recording/recording-parser.js';
import { readReport } from './report/read-report.js';
import { LogParser } from './rmm-csv/log-parser.js';
import { readDebugLog } from './rmm-debug/read-debug-log.js';
import { readUmpireReplay } from './umpire/read-replay.js';

/** Options of {@link readRecordedRun}. */
export interface ReadRecordedRunOptions extends ReadLogOptions {
  /**
   * The format of the log.
   * @defaultValue detected from its bytes
   */
  readonly format?: LogFormat | undefined;
}

export const readRecordedRunOptionNames = optionNames<ReadRecordedRunOptions>({
  format: true,
  name: true,
  onProgress: 'function',
  totalBytes: true,
});

/**
 * Reads a whole log of any {@link LogFormat}, such as a cistern recording, an RMM log, a PyTorch memory snapshot or a report of one
 * log, plain or gzip, detected from the bytes. It needs memory for the events, 36 bytes each, and for the names;
 * for a snapshot, also 43 bytes for each entry of its traces, and objects for its segments and blocks.
 *
 * If a recording ends early or is damaged, the run has the events before that point, and {@link
 * RecordedRun.damage} says where it is. The same applies to an RMM log whose gzip data ends early, or
 * that ends, or may end, in the middle of a row (its last row has no newline, and its stream may be cut
 * off); an invalid row is an error. Records that a newer cistern wrote, of kinds that this one does not
 * know, are left out and counted in {@link RecordedRun.skippedRecordCount}. The events are not checked
 * against each other: a free may name memory that is not live.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @throws InvalidLogError if the source is not a log, if a snapshot is damaged, or if a row of an
 * RMM log is invalid; the message names the line.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) if the file cannot be read.
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
  if (isReadWhole(log)) return readWholeRun(log);
  const names = new RecordedNames();
  const events = new EventColumnsBuilder();
  const origin = await readEvents(log, names, events);
  return finishRun(origin, names, events);
}

/**
 * Whether a log can only be read as a whole.
 * @internal
 */
export function isReadWhole({ format }: OpenLog): boolean {
  return format !== 'recording' && format !== 'rmm-csv';
}

/** The readers of formats whose bytes are needed all at once. */
const wholeReaders: Readonly<
  Record<
    Exclude<LogFormat, 'recording' | 'rmm-csv' | 'pytorch-snapshot'>,
    (source: string, bytes: Buffer, budget: ReadingBudget) => RecordedRun
  >
> = {
  report: readReport,
  'chrome-trace': readTrace,
  'nsight-sqlite': readNsight,
  'rmm-debug': readDebugLog,
  umpire: readUmpireReplay,
  'raft-csv': readRaftCsv,
};

/**
 * Reads a log that can only be read as a whole.
 * @internal
 */
export async function readWholeRun(log: OpenLog): Promise<RecordedRun> {
  return log.format === 'pytorch-snapshot' ? readSnapshot(log) : readAllBytes(log);
}

async function readSnapshot(log: OpenLog): Promise<RecordedRun> {
  const parser = new SnapshotParser(log.name, log.budget);
  const gzipFault = await log.read(
    (piece) => parser.push(piece),
    () => 0,
  );
  if (gzipFault !== undefined) throw new InvalidLogError(log.name, undefined, gzipFault.fault, { cause: gzipFault.cause });
  return parser.finish();
}

async function readAllBytes(log: OpenLog): Promise<RecordedRun> {
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
    throw new InvalidLogError(log.name, undefined, `is a log (${log.format}) of more than ${constants.MAX_LENGTH} bytes`);
  const whole = Buffer.concat(pieces);
  // Not twice in memory while it is read.
  pieces.length = 0;
  return wholeReaders[log.format as keyof typeof wholeReaders](log.name, whole, log.budget);
}

/** Options of {@link readEvents}. */
interface ReadEventsOptions {
  /** Whether times are needed. If not, the times of an RMM log are neither read nor checked. */
  readonly readsTimes?: boolean | undefined;
  /** Whether an RMM log that ends early is an error. */
  readonly isWhole?: boolean | undefined;
}

/**
 * Reads a recording or an RMM log. Passes each event to `events` after adding the names it refers
 * to to `names`.
 * @internal
 */
export function readEvents(
  log: OpenLog,
  names: RecordedNames,
  events: EventSink,
  options: ReadEventsOptions = {},
): Promise<RecordedRunOrigin> {
  return log.format === 'recording' ? readRecording(log, names, events) : readRows(log, names, events, options);
}

async function readRecording(log: OpenLog, names: RecordedNames, events: EventSink): Promise<RecordedRunOrigin> {
  const parser = new RecordingParser(log.name, names, events);
  const gzipFault = await log.read(
    (piece) => parser.push(piece),
    () => events.eventCount,
  );
  if (gzipFault === undefined) parser.finish();
  else parser.abandon(gzipFault.fault, gzipFault.isTruncation);
  return { source: log.name, ...parser.header, damage: parser.damage, skippedRecordCount: parser.skippedRecords };
}

async function readRows(
  log: OpenLog,
  names: RecordedNames,
  events: EventSink,
  { readsTimes = true, isWhole = false }: ReadEventsOptions,
): Promise<RecordedRunOrigin> {
  const parser = new LogParser(log.name, names, events, readsTimes);
  const gzipFault = await log.read(
    (piece) => parser.push(piece),
    () => events.eventCount,
  );
  let damage: RecordingDamage | undefined;
  if (gzipFault !== undefined) {
    const { fault, isTruncation, cause } = gzipFault;
    if (isWhole || parser.lineCount === 0) {
      throw new InvalidLogError(log.name, undefined, `${fault}, after ${parser.lineCount} lines`, { cause });
    }
    damage = { offset: parser.offset, fault, isTruncation };
  } else {
    const fault = parser.finish();
    if (fault !== undefined) {
      if (isWhole) throw new InvalidLogError(log.name, parser.lineCount + 1, fault);
      damage = { offset: parser.offset, fault, isTruncation: true };
    }
  }
  return { source: log.name, startedAt: undefined, utcOffsetMinutes: 0, damage, skippedRecordCount: 0, csv: parser.spelling };
}
