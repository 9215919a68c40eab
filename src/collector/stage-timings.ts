import { formatBytes } from '../units.js';

/**
 * A way of getting memory back. In the order in which they are gone through:
 *
 * | stage | what it does |
 * |---|---|
 * | `'settle'` | frees buffers that are known to be unreachable, and waits for the device, so that frees that are queued take effect |
 * | `'trim'` | lets the resources below give back what they keep and nobody uses |
 * | `'minor-collection'` | collects what was made lately, and frees the buffers among it |
 * | `'major-collection'` | collects everything, and frees the buffers among it |
 * | `'callback'` | asks the user |
 */
export type ReclaimStage = 'settle' | 'trim' | 'minor-collection' | 'major-collection' | 'callback';

/** All stages, in their order. */
export const reclaimStages: readonly ReclaimStage[] = ['settle', 'trim', 'minor-collection', 'major-collection', 'callback'];

/** What one stage took and gave. */
export interface StageTiming {
  readonly stage: ReclaimStage;
  readonly calls: number;
  /** The time spent in it, without the allocations that were tried again after it. */
  readonly milliseconds: number;
  /** `milliseconds` as a part of all time since the timings began, from 0 to 1. */
  readonly share: number;
  /** 0 where there was no call. */
  readonly averageMilliseconds: number;
  /** At least so many bytes became free. What memory below it keeps cannot always be known. */
  readonly recoveredBytes: number;
  /** Allocations that found memory right after it. */
  readonly rescues: number;
}

/** What reclaiming took and gave since it was made, or since its timings were reset: a frozen copy. */
export interface ReclaimTimings {
  /** All time since then. */
  readonly elapsedMilliseconds: number;
  /** Allocations that found memory, or that did not; mistakes in an argument are none. */
  readonly allocations: number;
  /** Allocations of those that found none at first. */
  readonly exhaustions: number;
  /** How often the soft limit started a collection. */
  readonly softCollections: number;
  /** In the order in which they are gone through; a stage that is off is left out. */
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

/** The timings as a table for people, in lines that each end with a line feed. */
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
  const table = [titles, firstTry, ...rows];
  const widths = titles.map((_, column) => Math.max(...table.map((row) => (row[column] as string).length)));
  const lines = table.map((row) => row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i] as number) : cell.padStart(widths[i] as number))));
  const [head, ...body] = lines.map((cells) => cells.join('  '));
  const rule = '─'.repeat((head as string).length);
  const measured = stages.reduce((sum, { share }) => sum + share, 0);
  const soft = softCollections === 0 ? '' : `, ${formatCount(softCollections)} soft collections`;
  const total = `stages took ${formatShare(measured)} of ${formatTime(elapsedMilliseconds)}${soft}`;
  return [total, rule, head, rule, ...body, rule, ''].join('\n');
}

function formatCount(count: number): string {
  return count.toLocaleString('en-US');
}

function formatShare(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

/** Three digits or so: `0 s`, `1.23 µs`, `45.6 ms`, `789 s`. */
function formatTime(milliseconds: number): string {
  if (milliseconds === 0) return '0 s';
  if (milliseconds < 1) return `${threeDigits(1e3 * milliseconds)} µs`;
  if (milliseconds < 1e3) return `${threeDigits(milliseconds)} ms`;
  return `${threeDigits(milliseconds / 1e3)} s`;
}

function threeDigits(value: number): string {
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
}
