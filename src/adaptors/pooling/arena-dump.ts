import { alignColumns, formatBytes } from '../../basics/units.js';
import type { BlockView } from '../../suballocation/blocks.js';

/** The part of a dump that does not come from the blocks. */
export interface ArenaDumpHead {
  readonly arenaBytes: number;
  /** The last request that failed for lack of memory; `undefined` if none did. */
  readonly refusedBytes: number | undefined;
  /** The names of the lanes, in the order of the lines. */
  readonly laneNames: ReadonlyMap<number, string>;
}

/** The free memory of one lane. */
interface FreeSpace {
  ranges: number;
  freeBytes: number;
  largestBytes: number;
}

const pictureCells = 64;
const header = ['', 'free', 'largest', 'ranges', 'fragmentation'];

/**
 * The human-readable state of an arena: totals, a line for each lane, and a picture of the address
 * space.
 */
export function formatArenaDump({ arenaBytes, refusedBytes, laneNames }: ArenaDumpHead, blocks: readonly BlockView[]): string {
  const reservedBytes = sumOfBytes(blocks);
  const used = blocks.filter(({ lane }) => lane < 0);
  const segments = blocks.filter(({ isHead }) => isHead).length;
  const freeSpaces = freeSpaceByLane(blocks);
  const rows = [...laneNames].map(([lane, name]) => [name, ...freeSpaceCells(freeSpaces.get(lane))]);
  return [
    `arena of ${formatBytes(arenaBytes)}: ${formatBytes(reservedBytes)} held in ${counted(segments, 'block')} of the upstream`,
    `allocated: ${formatBytes(sumOfBytes(used))} in ${counted(used.length, 'block')}`,
    ...(refusedBytes === undefined ? [] : [`refused last: ${formatBytes(refusedBytes)} (${refusedBytes} bytes)`]),
    '',
    ...alignColumns([header, ...rows]),
    '',
    `[${picture(blocks, reservedBytes)}]`,
    `each character is ${formatBytes(Math.ceil(reservedBytes / pictureCells))}: # allocated, . free, + both`,
    '',
  ].join('\n');
}

/** The share of free memory outside the largest free block, in percent. */
export function fragmentationPercent(freeBytes: number, largestBytes: number): number {
  return freeBytes === 0 ? 0 : (1 - largestBytes / freeBytes) * 100;
}

function freeSpaceByLane(blocks: readonly BlockView[]): Map<number, FreeSpace> {
  const spaces = new Map<number, FreeSpace>();
  for (const { bytes, lane } of blocks) {
    const space = spaces.get(lane) ?? { ranges: 0, freeBytes: 0, largestBytes: 0 };
    space.ranges++;
    space.freeBytes += bytes;
    space.largestBytes = Math.max(space.largestBytes, bytes);
    spaces.set(lane, space);
  }
  return spaces;
}

function freeSpaceCells(space: FreeSpace | undefined): string[] {
  const { ranges, freeBytes, largestBytes } = space ?? { ranges: 0, freeBytes: 0, largestBytes: 0 };
  const percent = fragmentationPercent(freeBytes, largestBytes).toFixed(1);
  return [formatBytes(freeBytes), formatBytes(largestBytes), String(ranges), `${percent} %`];
}

function picture(blocks: readonly BlockView[], totalBytes: number): string {
  const used = new Float64Array(pictureCells);
  const cellBytes = totalBytes / pictureCells;
  let offset = 0;
  for (const { bytes, lane } of blocks) {
    const end = offset + bytes;
    if (lane < 0) {
      for (let cell = Math.floor(offset / cellBytes); cell < pictureCells && cell * cellBytes < end; cell++) {
        used[cell] = (used[cell] as number) + Math.min(end, (cell + 1) * cellBytes) - Math.max(offset, cell * cellBytes);
      }
    }
    offset = end;
  }
  return Array.from(used, (bytes) => (bytes === 0 ? '.' : bytes >= cellBytes ? '#' : '+')).join('');
}

function sumOfBytes(blocks: readonly BlockView[]): number {
  return blocks.reduce((sum, { bytes }) => sum + bytes, 0);
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}
