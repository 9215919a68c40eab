import type { BufferSiteSample, StatisticsSample } from '../../watch/statistics-sample.js';
import { formatBytes, formatCount } from '../common/format.js';
import type { TableContents } from './tables.js';

/** Which lines hold memory: those that grew most over the samples first, since these may leak. */
export function lineTables(samples: readonly StatisticsSample[]): TableContents[] {
  const [first, last] = [samples[0], samples.at(-1)];
  if (first === undefined || last === undefined) return [];
  const before = new Map(first.bufferSites.map(({ site, bytes }) => [site, bytes]));
  const growthOf = ({ site, bytes }: BufferSiteSample) => bytes - (before.get(site) ?? 0);
  const live = last.bufferSites.toSorted((a, b) => growthOf(b) - growthOf(a) || b.bytes - a.bytes);
  return [
    {
      caption: 'Live buffers by call site',
      columns: ['created at', 'change', 'bytes', 'buffers'],
      rows: live.map((site) => [nameOf(site), changeOf(growthOf(site)), formatBytes(site.bytes), formatCount(site.buffers)]),
    },
    {
      caption: 'Buffers that were dropped without being disposed',
      columns: ['created at', 'bytes', 'buffers'],
      rows: last.leakSites.map((site) => [nameOf(site), formatBytes(site.bytes), formatCount(site.buffers)]),
    },
  ];
}

function nameOf({ site }: BufferSiteSample): string {
  return site || 'unknown';
}

function changeOf(bytes: number): string {
  return bytes === 0 ? 'none' : `${bytes < 0 ? '−' : '+'}${formatBytes(Math.abs(bytes))}`;
}
