import { InvalidLogError } from '../errors.js';
import { assertOptions, optionNames } from '../validation.js';
import type { AllocationLog } from './allocation-log.js';
import { AllocationLogBuilder } from './allocation-log-builder.js';
import { LayerLogs } from './layer-logs.js';
import { type LogSource, OpenLog, type ReadLogOptions } from './log-source.js';
import { readWholeSnapshot } from './read-recorded-run.js';
import type { RecordedRun } from './recorded-run.js';
import { RecordedNames } from './recorded-run-builder.js';
import type { RecordKind } from './recording/recording-format.js';
import { RecordingParser } from './recording/recording-parser.js';
import { LogParser } from './rmm-csv/log-parser.js';

/** Options of {@link readAllocationLog}. */
export interface ReadAllocationLogOptions extends ReadLogOptions {
  /**
   * The name of the layer of a recording whose allocations are read.
   * @defaultValue the one nearest to the program
   */
  readonly layer?: string;
}

const knownOptions = optionNames<ReadAllocationLogOptions>({ layer: true, name: true, onProgress: true, totalBytes: true });

/**
 * Reads the allocations of a log: one in the format of RMM's `logging_resource_adaptor` (`Thread,Time,Action,Pointer,Size,Stream`) or a
 * recording of cistern's (a memory snapshot of PyTorch's too), plain or gzip, whichever the bytes say. The source is read in pieces; memory is needed for the events alone, 20 bytes
 * each.
 *
 * Pointers and streams of an RMM log are hexadecimal, with or without `0x`. The log must hold: every free names a live allocation and its size,
 * and no allocation returns what is live. A recording that ends early, as that of a killed process does, is read up to there, which
 * {@link AllocationLog.truncation} tells.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @throws InvalidLogError naming the line, the event or the byte where something is wrong.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) for a file that cannot be read.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * console.log(log.eventCount, formatBytes(log.peakLiveBytes));
 * ```
 */
export async function readAllocationLog(source: LogSource, options: ReadAllocationLogOptions = {}): Promise<AllocationLog> {
  assertOptions(options, knownOptions);
  const log = await OpenLog.open(source, options);
  if (log.format === 'recording') return readRecording(log, options.layer);
  return log.format === 'pytorch-snapshot' ? allocationsOf(await readWholeSnapshot(log), options.layer) : readRows(log);
}

function allocationsOf(run: RecordedRun, layer: string | undefined): AllocationLog {
  const logs = new LayerLogs(run.source, layer, run);
  const { kinds, layerOf, streamOf, threadOf, times, firsts, seconds } = run;
  for (let i = 0; i < run.eventCount; i++) {
    const [first, second] = [firsts[i] as number, seconds[i] as number];
    logs.append(
      kinds[i] as RecordKind,
      layerOf[i] as number,
      streamOf[i] as number,
      threadOf[i] as number,
      0,
      0,
      times[i] as number,
      first,
      second,
    );
  }
  return logs.finish(run.damage);
}

async function readRecording(log: OpenLog, layer: string | undefined): Promise<AllocationLog> {
  const names = new RecordedNames();
  const logs = new LayerLogs(log.name, layer, names);
  const parser = new RecordingParser(log.name, names, logs);
  const gzipFault = await log.read(
    (piece) => parser.push(piece),
    () => logs.eventCount,
  );
  if (gzipFault === undefined) parser.finish();
  else parser.abandon(gzipFault.fault, gzipFault.isTruncation);
  return logs.finish(parser.damage);
}

async function readRows(log: OpenLog): Promise<AllocationLog> {
  const builder = new AllocationLogBuilder(log.name);
  const parser = new LogParser(log.name, builder);
  const gzipFault = await log.read(
    (piece) => parser.push(piece),
    () => builder.eventCount,
  );
  if (gzipFault !== undefined) {
    const { fault, cause } = gzipFault;
    throw new InvalidLogError(log.name, undefined, `${fault}, after ${parser.lineCount} lines`, { cause });
  }
  const fault = parser.finish();
  if (fault !== undefined) throw new InvalidLogError(log.name, parser.lineCount + 1, fault);
  return builder.finish();
}
