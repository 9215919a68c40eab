import { type LogSource, OpenLog, type ReadLogOptions } from '../formats/log-source.js';
import { readEvents, readWholeSnapshot } from '../formats/read-recorded-run.js';
import { RecordedNames } from '../formats/recorded-run.js';
import { assertOptions, optionNames } from '../validation.js';
import type { AllocationLog } from './allocation-log.js';
import { AllocationProjection } from './project-allocations.js';

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
  if (log.format === 'pytorch-snapshot') {
    const run = await readWholeSnapshot(log);
    const projection = new AllocationProjection(log.name, run, options.layer);
    projection.appendAll(run);
    return projection.finish(run.damage);
  }
  const names = new RecordedNames();
  const isText = log.format === 'rmm-csv';
  // The layer of an RMM log has a name, which nobody asks for.
  const projection = new AllocationProjection(log.name, names, isText ? undefined : options.layer, isText);
  const { damage } = await readEvents(log, names, projection, { readsTimes: false, isWhole: true });
  return projection.finish(damage);
}
