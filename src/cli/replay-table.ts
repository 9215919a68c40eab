import Table from 'cli-table3';
import type { ReplayResult } from '../replay/replay-result.js';
import { formatBytes } from '../units.js';
import { bold, formatCount, type OutputStream } from './terminal.js';

/** A stack that could not be replayed to the end. */
export interface FailedReplay {
  readonly resource: string;
  readonly error: { readonly code: string; readonly message: string };
}

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
] as const;

/** The results of several stacks, one row each. */
export function replayTable(results: readonly (ReplayResult | FailedReplay)[], stream: OutputStream): string {
  const table = new Table({
    head: titles.map((title) =>
      title
        .split('\n')
        .map((line) => bold(line, stream))
        .join('\n'),
    ),
    colAligns: titles.map((_, i) => (i < 2 ? 'left' : 'right')),
    chars: { ...noLines, mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 2 },
  });
  for (const result of results) {
    if ('error' in result) table.push([result.resource, { content: `failed: ${result.error.code}`, colSpan: titles.length - 1 }]);
    else table.push(row(result));
  }
  return `${table.toString().replace(/ +$/gm, '')}\n`;
}

function row(result: ReplayResult): string[] {
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

const noLines = {
  top: '',
  'top-mid': '',
  'top-left': '',
  'top-right': '',
  bottom: '',
  'bottom-mid': '',
  'bottom-left': '',
  'bottom-right': '',
  left: '',
  right: '',
  middle: '',
};
