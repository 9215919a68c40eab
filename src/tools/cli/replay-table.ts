import { formatBytes, formatCount } from '../../basics/units.js';
import type { ReplayResult } from '../replay/replay-result.js';
import type { FailedReplay } from './failed-replay.js';
import type { Output } from './output.js';
import { type Column, formatTable } from './table.js';

const titles = [
  'resource',
  'events',
  'ns/op\nmedian',
  'ns/op\nminimum',
  'peak\nlive',
  'peak\nreserved',
  'high\nwater',
  'driver\nallocs',
  'driver\nfrees',
  'event\nrecords',
  'event\nwaits',
  'driver\nsyncs',
  'failures',
  'leaked',
];
const columns: readonly Column[] = titles.map((title, i) => ({ title, align: i < 2 ? 'left' : 'right' }));

/** The results of several stacks, one row each. */
export function replayTable(results: readonly (ReplayResult | FailedReplay)[], format: 'table' | 'markdown', stream: Output): string {
  return formatTable(columns, results.map(row), format, stream);
}

function row(result: ReplayResult | FailedReplay): string[] {
  if ('error' in result) return [result.resource, `failed: ${result.error.code}`];
  const { driver, nanosecondsPerOperation } = result;
  return [
    result.resource,
    result.events ?? '-',
    nanosecondsPerOperation.median.toFixed(1),
    nanosecondsPerOperation.minimum.toFixed(1),
    formatBytes(result.peakLiveBytes),
    result.peakReservedBytes === null ? '-' : formatBytes(result.peakReservedBytes),
    formatBytes(result.highWaterBytes),
    formatCount(driver.allocations),
    formatCount(driver.frees),
    formatCount(driver.eventRecords),
    formatCount(driver.eventWaits),
    formatCount(driver.synchronizations),
    formatCount(result.failures),
    result.leakedBytes === null ? '-' : formatBytes(result.leakedBytes),
  ];
}
