import { orderLayers } from '../formats/layers.js';
import { type LogSource, OpenLog } from '../formats/log-source.js';
import { type ReadRecordedRunOptions, readEvents, readRecordedRunOptionNames, readWholeSnapshot } from '../formats/read-recorded-run.js';
import { RecordedNames } from '../formats/recorded-run.js';
import { assertOptions } from '../validation.js';
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
  assertOptions(options, readRecordedRunOptionNames);
  const log = await OpenLog.open(source, options);
  if (log.format === 'pytorch-snapshot') return packReportRun(await readWholeSnapshot(log));
  const names = new RecordedNames();
  const packer = new ReportRunPacker(names.layers);
  const origin = await readEvents(log, names, packer);
  const { layers, places } = orderLayers(names.layers);
  return packer.finish({ ...origin, ...names, layers }, places);
}
