import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { ReportRun } from '../../../src/tools/formats/report/report-run.js';
import { addressAt, layOutAddresses } from '../../../src/tools/report/address-layout.js';
import { externalFragmentation, FragmentationSweep } from '../../../src/tools/report/fragmentation.js';
import { createReportRun } from './create-report-run.js';
import { anyReportRun, liveAfter } from './model.js';
import { RunWriter } from './runs.js';

/** The holes after a change, found by sorting everything live. */
function holesAfter(run: ReportRun, change: number): number[] {
  const { spans, addresses } = run;
  const range = (span: number) => {
    const start = addresses[spans.addressOf[span] as number] as number;
    return { start, end: start + (spans.bytes[span] as number), index: spans.addressOf[span] as number };
  };
  const live = liveAfter(run, change);
  const ranges = (isBlock: 0 | 1) =>
    live
      .filter((span) => spans.isBlock[span] === isBlock)
      .map(range)
      .sort((a, b) => a.start - b.start);
  const allocations = ranges(0);
  const holes: number[] = [];
  if (!spans.isBlock.includes(1)) {
    const { segmentOf } = layOutAddresses(run, 0);
    for (const [i, { end, index }] of allocations.entries()) {
      const next = allocations[i + 1];
      if (next !== undefined && segmentOf[next.index] === segmentOf[index]) holes.push(next.start - end);
    }
  }
  for (const block of ranges(1)) {
    let at = block.start;
    for (const { start, end } of allocations.filter(({ start }) => start >= block.start && start < block.end)) {
      holes.push(start - at);
      at = end;
    }
    holes.push(block.end - at);
  }
  return holes;
}

describe('the sweep of holes', () => {
  for (const hasBlocks of [true, false]) {
    test(`finds all holes after every change, ${hasBlocks ? 'in blocks' : 'between allocations if no blocks are known'}`, () => {
      fc.assert(
        fc.property(anyReportRun({ hasBlocks }), fc.integer({ min: 1, max: 50 }), (run, piece) => {
          const sweep = new FragmentationSweep(run, 0);
          for (let until = piece; sweep.sweep(until); until += piece);
          for (let change = 0; change < run.changes.length; change++) {
            const holes = holesAfter(run, change);
            expect(sweep.holes[change]).toBe(holes.reduce((sum, hole) => sum + hole, 0));
            expect(sweep.largestHole[change]).toBe(Math.max(0, ...holes));
          }
        }),
      );
    });
  }

  test('measures fragmentation by the free memory outside the largest hole', () => {
    expect(externalFragmentation(75, 100)).toBe(0.25);
    expect(externalFragmentation(0, 0)).toBe(0);
  });
});

describe('the layout of addresses', () => {
  const run = createReportRun(
    new RunWriter()
      .allocate(0x7000_0000_0000, 1 << 20)
      .allocate(0x1000_0000, 1 << 20)
      .allocate(0x1000_0000 + (1 << 20) + 4096, 1 << 20)
      .finish(),
  );
  const layout = layOutAddresses(run, 0);

  test('leaves out long gaps and keeps short ones', () => {
    expect(layout.segments).toEqual([
      { start: 0x1000_0000, end: 0x1000_0000 + (2 << 20) + 4096, offset: 0 },
      { start: 0x7000_0000_0000, end: 0x7000_0000_0000 + (1 << 20), offset: (2 << 20) + 4096 },
    ]);
    expect(layout.totalBytes).toBe((3 << 20) + 4096);
  });

  test('maps an offset back to its address', () => {
    for (const [index, address] of run.addresses.entries()) expect(addressAt(layout, layout.offsetOf[index] as number)).toBe(address);
    expect(addressAt(layout, -1)).toBeUndefined();
    expect(addressAt(layout, layout.totalBytes)).toBeUndefined();
  });

  test('never gives two live allocations the same offset', () => {
    fc.assert(
      fc.property(anyReportRun(), (any) => {
        const { offsetOf, segmentOf } = layOutAddresses(any, 0);
        for (let index = 1; index < any.addresses.length; index++) {
          const distance = (offsetOf[index] as number) - (offsetOf[index - 1] as number);
          const isSame = segmentOf[index] === segmentOf[index - 1];
          if (isSame) expect(distance).toBe((any.addresses[index] as number) - (any.addresses[index - 1] as number));
          else expect(distance).toBeGreaterThan(0);
        }
      }),
    );
  });
});
