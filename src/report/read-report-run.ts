import { EventColumnsBuilder } from '../formats/event-columns.js';
import { orderLayers } from '../formats/layers.js';
import { type LogSource, OpenLog } from '../formats/log-source.js';
import { type ReadRecordedRunOptions, readEvents, readRecordedRunOptionNames, readWholeSnapshot } from '../formats/read-recorded-run.js';
import { RecordedNames } from '../formats/recorded-run.js';
import { assertOptions } from '../validation.js';
import { type PackedReportRun, packReportRun, ReportRunPacker } from './pack-report-run.js';

/**
 * Reads a log for {@link writeReport}, packing it meanwhile: a recording or an RMM log is never in memory as a whole. What is read, and what
 * is an error, is as for {@link readRecordedRun}.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @throws InvalidLogError for what is no log, for a snapshot that is damaged, and naming the line where an RMM log is wrong.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) for a file that cannot be read.
 * @example
 * ```ts
 * await writeReport([await readReportRun('run.cistern')], 'report.html');
 * ```
 */
export async function readReportRun(source: LogSource, options: ReadRecordedRunOptions = {}): Promise<PackedReportRun> {
  assertOptions(options, readRecordedRunOptionNames);
  const log = await OpenLog.open(source, options);
  if (log.format === 'pytorch-snapshot') return packReportRun(await readWholeSnapshot(log));
  const packer = new ReportRunPacker();
  const names = new RecordedNames();
  const events = new EventColumnsBuilder();
  const origin = await readEvents(log, names, events, { onEvents: () => packer.take(events.take()) });
  const { layers, places } = orderLayers(names.layers);
  return packer.finish({ ...origin, ...names, layers }, places);
}
