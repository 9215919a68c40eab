import { assertOptions, optionNames } from '../../basics/validation.js';
import { appendEvents } from '../formats/event-columns.js';
import { type LogSource, OpenLog, type ReadLogOptions } from '../formats/log-source.js';
import { isReadWhole, readEvents, readWholeRun } from '../formats/read-recorded-run.js';
import { RecordedNames } from '../formats/recorded-run.js';
import type { AllocationLog } from './allocation-log.js';
import { AllocationProjection, type LogEnd } from './project-allocations.js';

/** Options of {@link readAllocationLog}. */
export interface ReadAllocationLogOptions extends ReadLogOptions {
  /**
   * The name of the recording's layer whose allocations are read.
   * @defaultValue the layer nearest to the program that has allocations
   */
  readonly layer?: string | undefined;
}

const knownOptions = optionNames<ReadAllocationLogOptions>({ layer: true, name: true, onProgress: 'function', totalBytes: true });

/**
 * Reads the allocations of a log: a log in the format of RMM's `logging_resource_adaptor`
 * (`Thread,Time,Action,Pointer,Size,Stream`), a cistern recording or a PyTorch memory snapshot,
 * plain or gzip, detected from the bytes. The source is read in pieces; memory is needed only for
 * the events: 20 bytes for each allocation and each free, and 24 for each CUDA event that was
 * recorded, and for each wait.
 *
 * Pointers and streams of an RMM log are hexadecimal, with or without `0x`. The log must be
 * consistent: each free names a live allocation and its size, and no allocation returns memory that
 * is live. A recording that ends early, as it does if the process was killed, is read up to that
 * point, and {@link AllocationLog.truncation} is set.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @throws InvalidLogError naming the line, event or byte at fault.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) if the file cannot be read.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * console.log(log.eventCount, formatBytes(log.peakLiveBytes));
 * ```
 */
export async function readAllocationLog(source: LogSource, options: ReadAllocationLogOptions = {}): Promise<AllocationLog> {
  const { projection, end } = await project(source, options);
  return projection.finish(end);
}

/**
 * Reads the allocations of the CUDA graphs in a log, one log for each graph: what `planGraphs` of
 * `cistern/planning` compares. A PyTorch snapshot has a private pool for each graph, or for several that
 * share one. A recording has a phase for each graph that a `GraphMemoryResource` has captured; of captures of one
 * name in one place, the last counts. The name of the pool or graph is added to {@link AllocationLog.source}. A
 * log that does not tell graphs apart is one graph, and so is a layer of a snapshot that is asked for.
 *
 * A snapshot's trace does not name pools. Its allocations belong to the pool of the segment that they lie
 * in at the end, so pools whose segments were freed before the snapshot are missing.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @returns at least one log
 * @throws InvalidLogError naming the line, event or byte at fault.
 * @throws a system error of Node (`ENOENT`, `EACCES`, …) if the file cannot be read.
 * @example
 * ```ts
 * for (const graph of await readGraphLogs('trace.csv.gz')) console.log(graph.source, graph.peakLiveBytes);
 * ```
 */
export async function readGraphLogs(source: LogSource, options: ReadAllocationLogOptions = {}): Promise<AllocationLog[]> {
  const { projection, end } = await project(source, options);
  const graphs = projection.finishGraphs(end);
  return graphs.length > 0 ? graphs : [projection.finish(end)];
}

async function project(source: LogSource, options: ReadAllocationLogOptions): Promise<{ projection: AllocationProjection; end: LogEnd }> {
  assertOptions(options, knownOptions);
  const log = await OpenLog.open(source, options);
  if (isReadWhole(log)) {
    const run = await readWholeRun(log);
    const projection = new AllocationProjection(log.name, run, options.layer);
    appendEvents(run, projection);
    return { projection, end: run };
  }
  const names = new RecordedNames();
  const isText = log.format === 'rmm-csv';
  const projection = new AllocationProjection(log.name, names, options.layer, isText);
  return { projection, end: await readEvents(log, names, projection, { readsTimes: false, isWhole: true }) };
}
