import { alignColumns, formatBytes, formatCount } from '../basics/units.js';

/**
 * A stage of recovering memory. The stages, in order:
 *
 * | stage | what it does |
 * |---|---|
 * | `'settle'` | frees buffers that are known to be unreachable, and waits for the device, so that queued frees take effect |
 * | `'trim'` | makes the resources below return the unused memory that they keep |
 * | `'minor-collection'` | collects recent objects, and frees the buffers among them |
 * | `'major-collection'` | collects all garbage, and frees the buffers among it |
 * | `'callback'` | calls the user's callback |
 */
export type ReclaimStage = 'settle' | 'trim' | 'minor-collection' | 'major-collection' | 'callback';

/** All stages, in their order. */
export const reclaimStages: readonly ReclaimStage[] = ['settle', 'trim', 'minor-collection', 'major-collection', 'callback'];

/** The cost and yield of one stage. */
export interface StageTiming {
  readonly stage: ReclaimStage;
  readonly calls: number;
  /** The time spent in it, without the allocations that were retried after it. */
  readonly milliseconds: number;
  /** `milliseconds` as a share of all time since the timings began, from 0 to 1. */
  readonly share: number;
  /** 0 if there was no call. */
  readonly averageMilliseconds: number;
  /**
   * A lower bound for the recovered bytes, because not every resource below reports the memory that
   * it keeps.
   */
  readonly recoveredBytes: number;
  /** Allocations that succeeded right after it. */
  readonly rescues: number;
}

/**
 * The cost and yield of reclaiming since the adaptor was made, or since its timings were reset: a
 * frozen copy.
 */
export interface ReclaimTimings {
  /** The time since then. */
  readonly elapsedMilliseconds: number;
  /**
   * All allocations, successful or not, without those that failed because of an invalid argument.
   */
  readonly allocations: number;
  /** The allocations that found no memory at first. */
  readonly exhaustions: number;
  /** How often the soft limit started a collection. */
  readonly softCollections: number;
  /** In their order; a stage that is off is left out. */
  readonly stages: readonly StageTiming[];
}

/** The sums of one stage. */
export class StageSums {
  readonly stage: ReclaimStage;
  calls = 0;
  milliseconds = 0;
  recoveredBytes = 0;
  rescues = 0;

  constructor(stage: ReclaimStage) {
    this.stage = stage;
  }

  snapshot(elapsedMilliseconds: number): StageTiming {
    const { stage, calls, milliseconds, recoveredBytes, rescues } = this;
    return Object.freeze({
      stage,
      calls,
      milliseconds,
      share: elapsedMilliseconds > 0 ? milliseconds / elapsedMilliseconds : 0,
      averageMilliseconds: calls > 0 ? milliseconds / calls : 0,
      recoveredBytes,
      rescues,
    });
  }
}

const titles = ['stage', 'calls', 'time', 'share', 'average', 'recovered', 'served'];

/** Formats the timings as a human-readable table, in lines that each end with a line feed. */
export function formatReclaimTimings({ elapsedMilliseconds, allocations, exhaustions, softCollections, stages }: ReclaimTimings): string {
  const rows = stages.map(({ stage, calls, milliseconds, share, averageMilliseconds, recoveredBytes, rescues }) => [
    stage,
    formatCount(calls),
    formatTime(milliseconds),
    formatShare(share),
    formatTime(averageMilliseconds),
    formatBytes(recoveredBytes),
    formatCount(rescues),
  ]);
  const firstTry = ['first try', formatCount(allocations), '-', '-', '-', '-', formatCount(allocations - exhaustions)];
  const [head, ...body] = alignColumns([titles, firstTry, ...rows]);
  const rule = '─'.repeat((head as string).length);
  const measured = stages.reduce((sum, { share }) => sum + share, 0);
  const soft = softCollections === 0 ? '' : `, ${formatCount(softCollections)} soft collections`;
  const total = `stages took ${formatShare(measured)} of ${formatTime(elapsedMilliseconds)}${soft}`;
  return [total, rule, head, rule, ...body, rule, ''].join('\n');
}

function formatShare(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

/** About three digits: `0 s`, `1.23 µs`, `45.6 ms`, `789 s`. */
function formatTime(milliseconds: number): string {
  if (milliseconds === 0) return '0 s';
  if (milliseconds < 1) return `${threeDigits(1e3 * milliseconds)} µs`;
  if (milliseconds < 1e3) return `${threeDigits(milliseconds)} ms`;
  return `${threeDigits(milliseconds / 1e3)} s`;
}

function threeDigits(value: number): string {
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
}
