import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { EventKind, type RecordedPhase } from '../../../src/tools/formats/index.js';
import {
  GroupedBytes,
  type Grouping,
  groupSpans,
  heldBytes,
  matchingAllocations,
  matchingBlocks,
  phasesWithin,
} from '../../../src/tools/report/held-bytes.js';
import { phaseIntervals } from '../../../src/tools/report/phase-intervals.js';
import { type RunEvent, runOf } from '../formats/runs.js';
import { createReportRun } from './create-report-run.js';
import { anyReportRun, liveAfter } from './model.js';
import { RunWriter } from './runs.js';

const sumOf = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0);

describe('held bytes', () => {
  test('are those of the live allocations after every change, whatever the filter', () => {
    const filter = fc.record({
      layer: fc.constant(0),
      stream: fc.option(fc.nat({ max: 3 }), { nil: undefined }),
      phase: fc.option(fc.constantFrom(1, 2), { nil: undefined }),
    });
    fc.assert(
      fc.property(anyReportRun({ hasBlocks: true }), filter, (run, wanted) => {
        const { spans } = run;
        const held = heldBytes(run, matchingAllocations(run, wanted));
        for (let change = 0; change < run.changes.length; change++) {
          const live = liveAfter(run, change).filter(
            (span) =>
              spans.isBlock[span] === 0 &&
              (wanted.stream === undefined || spans.streamOf[span] === wanted.stream) &&
              (wanted.phase === undefined || spans.phaseOf[span] === wanted.phase),
          );
          expect(held[change]).toBe(sumOf(live.map((span) => spans.bytes[span] as number)));
        }
      }),
    );
  });

  test('of blocks are those of the layer below', () => {
    fc.assert(
      fc.property(anyReportRun({ hasBlocks: true }), (run) => {
        const blocks = matchingBlocks(run, 0);
        fc.pre(blocks !== undefined);
        const held = heldBytes(run, blocks as Uint8Array);
        for (let change = 0; change < run.changes.length; change++) {
          const live = liveAfter(run, change).filter((span) => run.spans.isBlock[span] === 1);
          expect(held[change]).toBe(sumOf(live.map((span) => run.spans.bytes[span] as number)));
        }
      }),
    );
  });

  test('of a phase include those of the phases within it', () => {
    const run = createReportRun(
      new RunWriter()
        .beginPhase('step')
        .beginPhase('forward', 'step')
        .allocate(256, 10, { phase: 'forward' })
        .allocate(512, 5, { phase: 'step' })
        .allocate(768, 3, { phase: undefined })
        .finish(),
    );
    expect(heldBytes(run, matchingAllocations(run, { layer: 0, phase: 1 })).at(-1)).toBe(15);
    expect(heldBytes(run, matchingAllocations(run, { layer: 0, phase: 2 })).at(-1)).toBe(10);
  });
});

describe('groups of allocations', () => {
  test('add up to the total, at whatever changes are requested', () => {
    const groupings = fc.constantFrom<Grouping>('stream', 'phase', 'size', 'thread', 'label');
    fc.assert(
      fc.property(anyReportRun(), groupings, fc.nat({ max: 7 }), (run, by, stride) => {
        const mask = matchingAllocations(run, { layer: 0 });
        const groups = groupSpans(run, mask, by, 4);
        const grouped = new GroupedBytes(run, mask, groups);
        const changes = Array.from(run.changes.keys()).filter((change) => change % (stride + 1) === 0);
        const held = grouped.after(changes);
        const all = heldBytes(run, mask);
        for (const [i, change] of changes.entries()) expect(sumOf(held.map((values) => values[i] as number))).toBe(all[change]);
        expect(Math.max(0, ...groups.of)).toBeLessThan(groups.names.length);
      }),
    );
  });

  test('continue from the saved states', () => {
    const writer = new RunWriter();
    for (let i = 0; i < 3000; i++) writer.allocate(256 * (i + 1), 100 + i, { stream: `0x${i % 2}` });
    const run = createReportRun(writer.finish());
    const mask = matchingAllocations(run, { layer: 0 });
    const held = new GroupedBytes(run, mask, groupSpans(run, mask, 'stream')).after([1023, 1024, 2999]);
    const all = heldBytes(run, mask);
    expect([0, 1, 2].map((i) => sumOf(held.map((values) => values[i] as number)))).toEqual([all[1023], all[1024], all[2999]]);
  });

  test('are the largest ones, and one for the rest', () => {
    const writer = new RunWriter();
    for (const [i, bytes] of [10, 50, 20, 40, 30].entries()) writer.allocate(4096 * (i + 1), bytes, { stream: `0x${i}` });
    const run = createReportRun(writer.finish());
    const { names, of } = groupSpans(run, matchingAllocations(run, { layer: 0 }), 'stream', 3);
    expect(names).toEqual(['stream 0x1', 'stream 0x3', '3 others']);
    expect([...of]).toEqual([2, 0, 2, 1, 2]);
  });
});

describe('phases within each other', () => {
  /** As many as a recording can name, each within the one before, begun one after the other. */
  const depth = 65_535;
  const phases: RecordedPhase[] = Array.from({ length: depth + 1 }, (_, phase) => ({ name: String(phase), outer: Math.max(0, phase - 1) }));
  const events = phases.slice(1).map((_, i): RunEvent => ({ kind: EventKind.phaseBegin, first: i + 1, second: 0 }));

  test('are looked at once each, however deep they are', () => {
    const run = createReportRun(runOf(events, { phases }));
    const within = phasesWithin(run, 40_000);
    expect([within.indexOf(1), within.lastIndexOf(1), sumOf([...within])]).toEqual([40_000, depth, depth - 39_999]);
    expect(phaseIntervals(run).every(({ phase: of, depth: found }) => found === of - 1)).toBe(true);
  });

  test('are the phase itself and those in it; all that are in no other phase are outside', () => {
    const run = createReportRun(runOf([], { phases: [0, 0, 3, 1, 0, 2].map((outer) => ({ name: '', outer })) }));
    expect([...phasesWithin(run, 1)]).toEqual([0, 1, 1, 1, 0, 1]);
    expect([...phasesWithin(run, 2)]).toEqual([0, 0, 1, 0, 0, 1]);
    expect([...phasesWithin(run, 0)]).toEqual([1, 0, 0, 0, 0, 0]);
  });

  test('in a circle, as only a damaged log has them, end', () => {
    const run = createReportRun(runOf([], { phases: [0, 2, 3, 1, 3, 9].map((outer) => ({ name: '', outer })) }));
    expect(phasesWithin(run, 3)[4]).toBe(1);
    expect(phasesWithin(run, 5)[4]).toBe(0);
  });
});
