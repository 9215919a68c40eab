import type { ReportRun } from '../formats/report/report-run.js';
import { fromOutermostPhase } from './phase-nesting.js';

/** An interval that a program spent in a phase. */
export interface PhaseInterval {
  /** An index into {@link ReportRun.phases}. */
  readonly phase: number;
  /** 0 for a phase that is not within another. */
  readonly depth: number;
  /** Nanoseconds since the first event. */
  readonly from: number;
  readonly to: number;
}

/**
 * The intervals of a log's phases, in order of their starts. A phase that the log does not end
 * lasts to the end of the log.
 */
export function phaseIntervals(run: ReportRun): PhaseInterval[] {
  const { phaseMarks, phases } = run;
  const depths = fromOutermostPhase(phases, -1, (outer) => outer + 1);
  const begun = new Map<number, number[]>();
  const intervals: { phase: number; depth: number; from: number; to: number }[] = [];
  for (let mark = 0; mark < phaseMarks.count; mark++) {
    const phase = phaseMarks.phaseOf[mark] as number;
    const time = phaseMarks.times[mark] as number;
    const open = begun.get(phase) ?? [];
    begun.set(phase, open);
    if (phaseMarks.isEnd[mark] !== 0) {
      const index = open.pop();
      if (index !== undefined) (intervals[index] as { to: number }).to = time;
    } else {
      open.push(intervals.length);
      intervals.push({ phase, depth: Math.max(0, depths[phase] ?? 0), from: time, to: run.durationNanoseconds });
    }
  }
  return intervals;
}
