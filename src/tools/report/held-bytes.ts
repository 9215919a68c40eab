import { formatBytes, KiB, MiB } from '../../basics/units.js';
import { poolOf, type ReportRun } from '../formats/report/report-run.js';
import { callSites } from './call-sites.js';
import { fromOutermostPhase } from './phase-nesting.js';

/** Which allocations the reader wants to see. */
export interface SpanFilter {
  readonly layer: number;
  /** An index into {@link ReportRun.streams}. */
  readonly stream?: number | undefined;
  /** An index into {@link ReportRun.phases}; phases within it are included. */
  readonly phase?: number | undefined;
  /** Some allocations, such as those that were never freed. */
  readonly only?: { readonly name: string; readonly mask: Uint8Array } | undefined;
}

/** 1 for each phase that is `phase` or within it. */
export function phasesWithin(run: ReportRun, phase: number): Uint8Array {
  const isWithin = Uint8Array.from(fromOutermostPhase(run.phases, 0, (outer, index) => (index === phase ? 1 : outer)));
  isWithin[phase] = 1;
  return isWithin;
}

/** 1 for each allocation that passes the filter; 0 for other allocations and for all blocks. */
export function matchingAllocations(run: ReportRun, { layer, stream, phase, only }: SpanFilter): Uint8Array {
  const { spans } = run;
  const isWithin = phase === undefined ? undefined : phasesWithin(run, phase);
  const mask = new Uint8Array(spans.count);
  for (let span = 0; span < spans.count; span++) {
    if (spans.isBlock[span] === 1 || spans.layerOf[span] !== layer) continue;
    if (stream !== undefined && spans.streamOf[span] !== stream) continue;
    if (isWithin !== undefined && isWithin[spans.phaseOf[span] as number] !== 1) continue;
    if (only !== undefined && only.mask[span] !== 1) continue;
    mask[span] = 1;
  }
  return mask;
}

/** 1 for each block that the allocations of a layer lie in; `undefined` if the log has none. */
export function matchingBlocks(run: ReportRun, layer: number): Uint8Array | undefined {
  const pool = poolOf(run, layer);
  if (pool === undefined) return undefined;
  const { isBlock, layerOf } = run.spans;
  return isBlock.map((is, span) => (is === 1 && layerOf[span] === pool ? 1 : 0));
}

/** The bytes held by the spans in `mask`, after each change. */
export function heldBytes(run: ReportRun, mask: Uint8Array): Float64Array {
  const { changes, spans } = run;
  const held = new Float64Array(changes.length);
  let sum = 0;
  for (let change = 0; change < changes.length; change++) {
    const span = changes[change] as number;
    if (span >= 0) {
      if (mask[span] === 1) sum += spans.bytes[span] as number;
    } else if (mask[~span] === 1) sum -= spans.bytes[~span] as number;
    held[change] = sum;
  }
  return held;
}

/** What allocations can be grouped by. */
export type Grouping = 'site' | 'stream' | 'phase' | 'size' | 'thread' | 'label' | 'account';

/** The groups of allocations: the largest groups, and one for the rest. */
export interface SpanGroups {
  readonly names: readonly string[];
  /** The group of each span. */
  readonly of: Uint8Array;
}

const sizeClasses = [4 * KiB, 64 * KiB, MiB, 16 * MiB, 256 * MiB];
const sizeNames = [...sizeClasses.map((bytes) => `up to ${formatBytes(bytes)}`), `over ${formatBytes(sizeClasses.at(-1) as number)}`];

/** A number for the group of each span, and the names of the groups. */
export interface GroupKeys {
  readonly keys: Uint8Array | Uint16Array | Uint32Array;
  readonly name: (key: number) => string;
}

/** The group of each span. */
export function groupKeys(run: ReportRun, by: Grouping): GroupKeys {
  const { spans } = run;
  switch (by) {
    case 'site': {
      const sites = callSites(run.stacks);
      return { keys: spans.stackOf.map((stack) => sites.of[stack] as number), name: (key) => sites.names[key] ?? `call site ${key}` };
    }
    case 'stream':
      return { keys: spans.streamOf, name: (key) => `stream ${run.streams[key]}` };
    case 'thread':
      return { keys: spans.threadOf, name: (key) => `thread ${run.threads[key]}` };
    case 'label':
      return { keys: spans.labelOf, name: (key) => (key === 0 ? 'no label' : (run.labels[key] ?? `label ${key}`)) };
    case 'account':
      return { keys: spans.accountOf, name: (key) => (key === 0 ? 'no account' : (run.accounts[key] ?? `account ${key}`)) };
    case 'phase':
      return { keys: spans.phaseOf, name: (key) => (key === 0 ? 'no phase' : (run.phases[key]?.name ?? `phase ${key}`)) };
    case 'size':
      return { keys: Uint8Array.from(spans.bytes, classOf), name: (key) => sizeNames[key] as string };
  }
}

/**
 * At most `limit` groups of the allocations in `mask`, by the bytes of each at its own peak, in
 * descending order; size classes ascend.
 */
export function groupSpans(run: ReportRun, mask: Uint8Array, by: Grouping, limit = 6): SpanGroups {
  const { keys, name } = groupKeys(run, by);
  if (by === 'size') return { names: sizeNames, of: keys as Uint8Array };
  const peaks = peaksByKey(run, mask, keys);
  const ranked = [...peaks.keys()].filter((key) => (peaks[key] as number) > 0).sort((a, b) => (peaks[b] as number) - (peaks[a] as number));
  const hasRest = ranked.length > limit;
  const named = ranked.slice(0, hasRest ? limit - 1 : limit);
  const groupOf = new Uint8Array(peaks.length).fill(hasRest ? limit - 1 : 0);
  for (const [group, key] of named.entries()) groupOf[key] = group;
  const names = named.map(name);
  if (hasRest) names.push(`${ranked.length - named.length} others`);
  if (names.length === 0) names.push('nothing');
  return { names, of: Uint8Array.from(keys, (key) => groupOf[key] as number) };
}

function classOf(bytes: number): number {
  const index = sizeClasses.findIndex((limit) => bytes <= limit);
  return index < 0 ? sizeClasses.length : index;
}

function peaksByKey(run: ReportRun, mask: Uint8Array, keys: GroupKeys['keys']): Float64Array {
  let count = 1;
  for (const key of keys) count = Math.max(count, key + 1);
  const held = new Float64Array(count);
  const peaks = new Float64Array(count);
  const { changes, spans } = run;
  for (let change = 0; change < changes.length; change++) {
    const at = changes[change] as number;
    const span = at >= 0 ? at : ~at;
    if (mask[span] !== 1) continue;
    const key = keys[span] as number;
    held[key] = (held[key] as number) + (at >= 0 ? 1 : -1) * (spans.bytes[span] as number);
    if ((held[key] as number) > (peaks[key] as number)) peaks[key] = held[key] as number;
  }
  return peaks;
}

/** Number of changes between two saved states. */
const checkpointInterval = 1024;

/**
 * The bytes held by each group of spans after a change. The sums at every 1024th change are stored;
 * the others are computed from these.
 */
export class GroupedBytes {
  readonly groupCount: number;
  readonly #run: ReportRun;
  readonly #mask: Uint8Array;
  readonly #groupOf: Uint8Array;
  readonly #checkpoints: Float64Array;

  constructor(run: ReportRun, mask: Uint8Array, groups: SpanGroups) {
    this.#run = run;
    this.#mask = mask;
    this.#groupOf = groups.of;
    this.groupCount = groups.names.length;
    const sums = new Float64Array(this.groupCount);
    const checkpoints = Math.ceil(run.changes.length / checkpointInterval);
    this.#checkpoints = new Float64Array(checkpoints * this.groupCount);
    for (let checkpoint = 0; checkpoint < checkpoints; checkpoint++) {
      this.#checkpoints.set(sums, checkpoint * this.groupCount);
      this.#add(sums, checkpoint * checkpointInterval, Math.min((checkpoint + 1) * checkpointInterval, run.changes.length));
    }
  }

  /** The bytes of each group after each of the given changes, which must ascend. */
  after(changes: ArrayLike<number>): Float64Array[] {
    const held = Array.from({ length: this.groupCount }, () => new Float64Array(changes.length));
    const sums = new Float64Array(this.groupCount);
    let next = 0;
    for (let i = 0; i < changes.length; i++) {
      const change = changes[i] as number;
      const checkpoint = Math.floor(change / checkpointInterval);
      if (i === 0 || checkpoint * checkpointInterval > next) {
        next = checkpoint * checkpointInterval;
        sums.set(this.#checkpoints.subarray(checkpoint * this.groupCount, (checkpoint + 1) * this.groupCount));
      }
      this.#add(sums, next, change + 1);
      next = change + 1;
      for (let group = 0; group < this.groupCount; group++) (held[group] as Float64Array)[i] = sums[group] as number;
    }
    return held;
  }

  #add(sums: Float64Array, from: number, to: number): void {
    const { changes, spans } = this.#run;
    for (let change = from; change < to; change++) {
      const at = changes[change] as number;
      const span = at >= 0 ? at : ~at;
      if (this.#mask[span] !== 1) continue;
      const group = this.#groupOf[span] as number;
      sums[group] = (sums[group] as number) + (at >= 0 ? (spans.bytes[span] as number) : -(spans.bytes[span] as number));
    }
  }
}
