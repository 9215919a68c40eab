import { formatBytes, formatCount } from '../../basics/units.js';
import type { LogProgress, LogSource } from '../formats/log-source.js';
import { readRecordedRun } from '../formats/read-recorded-run.js';
import type { RecordedRun, RunDescription } from '../formats/recorded-run.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { type ReadAllocationLogOptions, readAllocationLog, readGraphLogs } from '../replay/read-allocation-log.js';
import { logNamed } from './log-argument.js';
import { visibleInLine } from './output.js';
import { progressBar } from './progress-bar.js';
import { type Terminal, warn, warnOfDamage, warnOfSkipped } from './terminal.js';

/**
 * Reads a log for a command that replays it, and warns about anything that cannot be replayed as it
 * was.
 * @param layer the layer of a recording
 */
export async function readLog(argument: string, terminal: Terminal, layer?: string): Promise<AllocationLog> {
  const log = await readNamed(argument, terminal, layer, readAllocationLog);
  warnOfRest(log, terminal);
  if (log.failureCount > 0) warn(terminal, `${log.source} reports ${formatCount(log.failureCount)} failed allocations, which are skipped`);
  if (log.unfreedCount > 0) {
    const what = `${formatCount(log.unfreedCount)} allocations (${formatBytes(log.unfreedBytes)})`;
    warn(terminal, `${log.source} never frees ${what}; they are freed at the end`);
  }
  return log;
}

/**
 * Reads the graphs in a log. Does not warn of memory that a graph never frees, because that is its
 * output.
 */
export async function readGraphs(argument: string, terminal: Terminal, layer?: string): Promise<AllocationLog[]> {
  const logs = await readNamed(argument, terminal, layer, readGraphLogs);
  warnOfRest(logs[0] as AllocationLog, terminal);
  return logs;
}

/**
 * Reads a whole log, and warns if it cannot be read to its end.
 * @param consequence says what happens to the events before the damage
 */
export async function readRun(argument: string, terminal: Terminal, consequence: string): Promise<RecordedRun> {
  const { source, name } = logNamed(argument);
  return await readWithWarnings(terminal, consequence, (onProgress) => readRecordedRun(source, { name, onProgress }));
}

/** The same, for any way of reading it. */
export async function readWithWarnings<Run extends Pick<RunDescription, 'source' | 'damage' | 'skippedRecordCount'>>(
  terminal: Terminal,
  consequence: string,
  read: (onProgress: (progress: LogProgress) => void) => Promise<Run>,
): Promise<Run> {
  const run = await withProgress(terminal, read);
  if (run.damage !== undefined) warnOfDamage(terminal, run.source, run.damage, consequence);
  warnOfSkipped(terminal, run.source, run.skippedRecordCount);
  return run;
}

/** Shows the progress of reading one log. */
async function withProgress<Read>(terminal: Terminal, read: (onProgress: (progress: LogProgress) => void) => Promise<Read>): Promise<Read> {
  const bar = progressBar(terminal, 'reading', 1, (bytesPerSecond) => `${formatBytes(Math.round(bytesPerSecond))}/s`);
  try {
    return await read(({ bytesRead, totalBytes, events }) =>
      bar.update(bytesRead, `${formatCount(events)} events`, totalBytes ?? bytesRead),
    );
  } finally {
    bar.stop();
  }
}

async function readNamed<Read>(
  argument: string,
  terminal: Terminal,
  layer: string | undefined,
  read: (source: LogSource, options: ReadAllocationLogOptions) => Promise<Read>,
): Promise<Read> {
  const { source, name } = logNamed(argument);
  return await withProgress(terminal, (onProgress) => read(source, { name, onProgress, layer }));
}

/** Warns of parts of a log that its reader left out. */
function warnOfRest({ source, truncation, skippedRecordCount }: AllocationLog, terminal: Terminal): void {
  if (truncation !== undefined) warnOfDamage(terminal, source, truncation, 'only the events before that are used');
  warnOfSkipped(terminal, source, skippedRecordCount);
}

/** One line that describes a log. */
export function logTitle(log: AllocationLog): string {
  const counts = `${formatCount(log.eventCount)} events, threads: ${log.threads.length}, streams: ${log.streams.length}`;
  return `${visibleInLine(log.source)}: ${counts}, at most ${formatBytes(log.peakLiveBytes)} live`;
}
