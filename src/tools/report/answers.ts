/**
 * The main answers of a report: which memory was never freed, which was live at the peak, and why
 * more was reserved than used.
 */
import { ALLOCATION_ALIGNMENT, alignUp } from '../../basics/units.js';
import { neverEnds, type ReportRun } from '../formats/report/report-run.js';
import { type Grouping, groupKeys } from './held-bytes.js';

/** A group of allocations, added up. */
export interface GroupSum {
  readonly name: string;
  readonly bytes: number;
  readonly count: number;
  /** The largest of them. */
  readonly largest: number;
  /** 1 for each of them. */
  readonly mask: Uint8Array;
}

/** Adds up the allocations in `mask` by group, and returns the groups with the most bytes first. */
export function sumGroups(run: ReportRun, mask: Uint8Array, by: Grouping): GroupSum[] {
  const { bytes: sizes, count: spanCount } = run.spans;
  const { keys, name } = groupKeys(run, by);
  const sums = new Map<number, { key: number; bytes: number; count: number; largest: number }>();
  for (let span = 0; span < spanCount; span++) {
    if (mask[span] !== 1) continue;
    const key = keys[span] as number;
    const bytes = sizes[span] as number;
    const sum = sums.get(key);
    if (sum === undefined) {
      sums.set(key, { key, bytes, count: 1, largest: span });
      continue;
    }
    sum.bytes += bytes;
    sum.count++;
    if (bytes > (sizes[sum.largest] as number)) sum.largest = span;
  }
  return [...sums.values()]
    .sort((a, b) => b.bytes - a.bytes || a.key - b.key)
    .map(({ key, ...sum }) => ({
      ...sum,
      name: name(key),
      get mask() {
        return mask.map((is, span) => (is === 1 && keys[span] === key ? 1 : 0));
      },
    }));
}

/** 1 for each allocation in `mask` that was made from change `from` up to `to` and never freed. */
export function neverFreed(run: ReportRun, mask: Uint8Array, from: number, to: number): Uint8Array {
  const { starts, ends } = run.spans;
  return mask.map((is, span) =>
    is === 1 && ends[span] === neverEnds && (starts[span] as number) >= from && (starts[span] as number) < to ? 1 : 0,
  );
}

/** 1 for each span in `mask` that is live after a change. */
export function liveAfter(run: ReportRun, mask: Uint8Array, change: number): Uint8Array {
  const { starts, ends } = run.spans;
  return mask.map((is, span) => (is === 1 && (starts[span] as number) <= change && (ends[span] as number) > change ? 1 : 0));
}

/** The bytes of the blocks in `blocks` that no allocation in `mask` ever used. */
export function neverUsedBytes(run: ReportRun, mask: Uint8Array, blocks: Uint8Array): number {
  const { addresses, spans } = run;
  const ends = new Float64Array(addresses.length);
  const blockEnds = new Float64Array(addresses.length);
  for (let span = 0; span < spans.count; span++) {
    const index = spans.addressOf[span] as number;
    const end = (addresses[index] as number) + (spans.bytes[span] as number);
    if (mask[span] === 1) ends[index] = Math.max(ends[index] as number, end);
    if (blocks[span] === 1) blockEnds[index] = Math.max(blockEnds[index] as number, end);
  }
  let unused = 0;
  /** Up to here, everything is used, counted, or in no block. */
  let done = 0;
  let blockEnd = 0;
  const pass = (until: number) => {
    unused += Math.max(0, Math.min(until, blockEnd) - done);
    done = Math.max(done, Math.min(until, blockEnd));
  };
  for (let index = 0; index < addresses.length; index++) {
    const start = addresses[index] as number;
    pass(start);
    if ((blockEnds[index] as number) > 0) {
      done = Math.max(done, start);
      blockEnd = Math.max(blockEnd, blockEnds[index] as number);
    }
    done = Math.max(done, ends[index] as number);
  }
  pass(Number.POSITIVE_INFINITY);
  return unused;
}

/**
 * Why a block was taken: too little was free; enough was free, but in holes that were too small; or
 * a hole was large enough, but could not be used.
 */
export type GrowthReason = 'full' | 'holes' | 'apart';

/** A block that a layer took from its upstream. */
export interface Growth {
  readonly change: number;
  readonly bytes: number;
  readonly reason: GrowthReason;
}

/** The request that a block was taken for comes within so many changes. */
const nearChanges = 64;

/**
 * The reason of each growth.
 * @param mask the allocations that lie in the blocks
 * @param blocks the blocks
 * @param holes the free bytes of the blocks, after each change
 * @param largestHole the largest of them
 */
export function explainGrowth(
  run: ReportRun,
  mask: Uint8Array,
  blocks: Uint8Array,
  holes: Float64Array,
  largestHole: Float64Array,
): Growth[] {
  const { changes, spans } = run;
  const growths: Growth[] = [];
  for (let change = 0; change < changes.length; change++) {
    const span = changes[change] as number;
    if (span < 0 || blocks[span] !== 1) continue;
    const request = requestFor(run, mask, span, change);
    const free = change === 0 ? 0 : (holes[change - 1] as number);
    const largest = change === 0 ? 0 : (largestHole[change - 1] as number);
    const reason = request === undefined || free < request ? 'full' : largest < request ? 'holes' : 'apart';
    growths.push({ change, bytes: spans.bytes[span] as number, reason });
  }
  return growths;
}

/** The bytes of the first allocation in a new block, or `undefined` if it does not follow at once. */
function requestFor(run: ReportRun, mask: Uint8Array, block: number, growth: number): number | undefined {
  const { addresses, changes, spans } = run;
  const start = addresses[spans.addressOf[block] as number] as number;
  const end = start + (spans.bytes[block] as number);
  for (let change = growth + 1; change < Math.min(changes.length, growth + nearChanges); change++) {
    const span = changes[change] as number;
    if (span < 0 || mask[span] !== 1) continue;
    const address = addresses[spans.addressOf[span] as number] as number;
    if (address >= start && address < end) return alignUp(spans.bytes[span] as number, ALLOCATION_ALIGNMENT);
  }
  return undefined;
}
