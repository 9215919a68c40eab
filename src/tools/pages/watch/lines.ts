import type { BufferSiteSample, StatisticsSample } from '../../watch/statistics-sample.js';
import { bytes, count, number, words } from '../common/columns.js';
import { formatBytes } from '../common/format.js';
import { type TableContents, table } from './tables.js';

/** Which lines hold memory: those that grew most over the samples first, since these may leak. */
export function lineTables(samples: readonly StatisticsSample[]): TableContents[] {
  const [first, last] = [samples[0], samples.at(-1)];
  if (first === undefined || last === undefined) return [];
  const before = new Map(first.bufferSites.map(({ site, bytes }) => [site, bytes]));
  const growthOf = ({ site, bytes }: BufferSiteSample) => bytes - (before.get(site) ?? 0);
  const live = last.bufferSites.toSorted((a, b) => growthOf(b) - growthOf(a) || b.bytes - a.bytes);
  const site = words<BufferSiteSample>('created at', (line) => line.site || 'unknown');
  const held = [bytes<BufferSiteSample>('bytes', (line) => line.bytes), count<BufferSiteSample>('buffers', ({ buffers }) => buffers)];
  return [
    table('Live buffers by call site', live, [site, number('change', (line) => changeOf(growthOf(line))), ...held]),
    table('Buffers that were dropped without being disposed', last.leakSites, [site, ...held]),
  ];
}

function changeOf(bytes: number): string {
  return bytes === 0 ? 'none' : `${bytes < 0 ? '−' : '+'}${formatBytes(Math.abs(bytes))}`;
}
