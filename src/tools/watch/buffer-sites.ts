import { subscribe } from 'node:diagnostics_channel';
import { callerOf } from '../../basics/call-stack.js';
import { type BufferLeak, isFindingLeaks, watchedMemory } from '../../collector/free-unreachable-buffers.js';
import type { BufferSiteSample } from './statistics-sample.js';

/** The most call sites in a sample; the rest are one row. */
const mostSites = 20;
/** The most call sites of leaks that are distinguished; only generated code has more. */
const mostLeakSites = 1000;

const otherSites = 'other call sites';
const leaked = new Map<string, BufferSite>();
let isFinding = false;

interface BufferSite {
  buffers: number;
  bytes: number;
}

/**
 * From now on, every buffer remembers the line that created it, which takes a few microseconds, and
 * buffers that were dropped without being disposed are counted by that line.
 */
export function findBufferSites(): void {
  if (isFinding) return;
  isFinding = true;
  subscribe('cistern:leak', (message) => {
    const { createdAt, bytes } = message as BufferLeak;
    const site = callerOf(createdAt);
    add(leaked, leaked.has(site) || leaked.size < mostLeakSites ? site : otherSites, bytes);
  });
}

/**
 * The call sites of live buffers, those with the most bytes first; none unless leak detection is
 * on.
 */
export function liveBufferSites(): BufferSiteSample[] {
  if (!isFindingLeaks()) return [];
  const live = new Map<string, BufferSite>();
  const names = new Map<string | undefined, string>();
  for (const { createdAt, bytes } of watchedMemory()) {
    let site = names.get(createdAt);
    if (site === undefined) {
      site = callerOf(createdAt);
      names.set(createdAt, site);
    }
    add(live, site, bytes);
  }
  return largest(live);
}

/** The call sites of buffers that were dropped without being disposed, most bytes first. */
export function leakedBufferSites(): BufferSiteSample[] {
  return largest(leaked);
}

function add(sites: Map<string, BufferSite>, name: string, bytes: number): void {
  const site = sites.get(name);
  if (site === undefined) {
    sites.set(name, { buffers: 1, bytes });
    return;
  }
  site.buffers++;
  site.bytes += bytes;
}

function largest(sites: ReadonlyMap<string, BufferSite>): BufferSiteSample[] {
  const sorted = [...sites].map(([site, counts]) => ({ site, ...counts })).sort((one, other) => other.bytes - one.bytes);
  const rest = sorted.slice(mostSites);
  if (rest.length === 0) return sorted;
  const sum = (field: 'buffers' | 'bytes') => rest.reduce((total, site) => total + site[field], 0);
  return [...sorted.slice(0, mostSites), { site: otherSites, buffers: sum('buffers'), bytes: sum('bytes') }];
}
