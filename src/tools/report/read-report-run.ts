import { assertOptions } from '../../basics/validation.js';
import { appendEvents, type EventSink, type LoggedEvent } from '../formats/event-columns.js';
import { orderLayers } from '../formats/layers.js';
import { type LogSource, OpenLog } from '../formats/log-source.js';
import {
  isReadWhole,
  type ReadRecordedRunOptions,
  readEvents,
  readRecordedRunOptionNames,
  readWholeRun,
} from '../formats/read-recorded-run.js';
import { RecordedNames, type RecordedRun } from '../formats/recorded-run.js';
import { type PackedReportRun, packReportRun, ReportRunPacker } from './pack-report-run.js';

/**
 * Reads a log for {@link writeReport}, packing it as it is read: a recording or an RMM log is never
 * completely in memory. Accepts the same logs as `readRecordedRun`, and throws the same
 * errors.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @throws InvalidLogError if the source is not a log, if a snapshot is damaged, or if a row of an
 * RMM log is invalid; the message names the line.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) if the file cannot be read.
 * @example
 * ```ts
 * await writeReport([await readReportRun('run.cistern')], 'report.html');
 * ```
 */
export async function readReportRun(source: LogSource, options: ReadRecordedRunOptions = {}): Promise<PackedReportRun> {
  return readReportRunAnd(source, options);
}

/**
 * The same; each event is also passed to the sink that `alsoFor` makes for the log's names.
 * @internal
 */
export async function readReportRunAnd(
  source: LogSource,
  options: ReadRecordedRunOptions,
  alsoFor?: (names: ReplayedNames) => Pick<EventSink, 'append'>,
): Promise<PackedReportRun> {
  assertOptions(options, readRecordedRunOptionNames);
  const log = await OpenLog.open(source, options);
  if (isReadWhole(log)) {
    const run = await readWholeRun(log);
    const also = alsoFor?.(run);
    if (also !== undefined) appendEvents(run, also);
    return packReportRun(run);
  }
  const names = new RecordedNames();
  const packer = new ReportRunPacker(names.layers);
  const also = alsoFor?.(names);
  const origin = await readEvents(log, names, also === undefined ? packer : new Both(packer, also));
  const { layers, places } = orderLayers(names.layers);
  return packer.finish({ ...origin, ...names, layers }, places);
}

/** The names that an event refers to; they may still grow. */
type ReplayedNames = Pick<RecordedRun, 'layers' | 'streams' | 'threads' | 'phases'>;

/** Passes each event to two sinks. */
class Both implements EventSink {
  readonly #first: EventSink;
  readonly #second: Pick<EventSink, 'append'>;

  constructor(first: EventSink, second: Pick<EventSink, 'append'>) {
    this.#first = first;
    this.#second = second;
  }

  get eventCount(): number {
    return this.#first.eventCount;
  }

  append(event: Readonly<LoggedEvent>): void {
    this.#first.append(event);
    this.#second.append(event);
  }
}
