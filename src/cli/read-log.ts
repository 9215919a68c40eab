import { formatBytes, formatCount } from '../basics/units.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { readAllocationLog } from '../replay/read-allocation-log.js';
import { logNamed } from './log-argument.js';
import { progressBar } from './progress-bar.js';
import { type Terminal, warn, warnOfSkipped } from './terminal.js';

/**
 * Reads a log for a command that replays it, and warns about anything that cannot be replayed as it
 * was.
 * @param layer the layer of a recording
 */
export async function readLog(argument: string, terminal: Terminal, layer?: string): Promise<AllocationLog> {
  const { source, name } = logNamed(argument);
  const bar = progressBar(terminal, 'reading', 1, (bytesPerSecond) => `${formatBytes(Math.round(bytesPerSecond))}/s`);
  try {
    const log = await readAllocationLog(source, {
      name,
      ...(layer === undefined ? {} : { layer }),
      onProgress: ({ bytesRead, totalBytes, events }) => bar.update(bytesRead, `${formatCount(events)} events`, totalBytes ?? bytesRead),
    });
    bar.stop();
    if (log.truncation !== undefined) {
      const { offset, fault } = log.truncation;
      warn(terminal, `${name} ends early, at byte ${formatCount(offset)}: ${fault}; the events before that are used`);
    }
    warnOfSkipped(terminal, name, log.skippedRecordCount);
    if (log.failureCount > 0) warn(terminal, `${name} reports ${formatCount(log.failureCount)} failed allocations, which are skipped`);
    if (log.unfreedCount > 0) {
      const what = `${formatCount(log.unfreedCount)} allocations (${formatBytes(log.unfreedBytes)})`;
      warn(terminal, `${name} never frees ${what}; they are freed at the end`);
    }
    return log;
  } finally {
    bar.stop();
  }
}

/** One line that describes a log. */
export function logTitle(log: AllocationLog): string {
  const counts = `${formatCount(log.eventCount)} events, threads: ${log.threads.length}, streams: ${log.streams.length}`;
  return `${log.source}: ${counts}, at most ${formatBytes(log.peakLiveBytes)} live`;
}
