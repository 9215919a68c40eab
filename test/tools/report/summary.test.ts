import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { RecordedRun } from '../../../src/tools/formats/index.js';
import { FragmentationSweep } from '../../../src/tools/report/fragmentation.js';
import { heldBytes, matchingAllocations, matchingBlocks } from '../../../src/tools/report/held-bytes.js';
import { packReportRun } from '../../../src/tools/report/pack-report-run.js';
import { anyRun } from '../formats/runs.js';
import { createReportRun } from './create-report-run.js';
import { anyRecordedRun } from './model.js';
import { trainingRun } from './runs.js';

/** The same figures of a layer, taken from the page's own curves. */
function readFromCurves(recorded: RecordedRun, layer: number) {
  const run = createReportRun(recorded);
  const live = heldBytes(run, matchingAllocations(run, { layer }));
  const peak = live.reduce((at, bytes, change) => (bytes > (live[at] as number) ? change : at), 0);
  const blocks = matchingBlocks(run, layer);
  const reserved = blocks === undefined ? undefined : heldBytes(run, blocks);
  const sweep = new FragmentationSweep(run, layer);
  sweep.sweep();
  return {
    curves: {
      peakLiveBytes: live[peak] ?? 0,
      peakLiveAt: run.times[peak] ?? 0,
      peakReservedBytes: reserved?.reduce((most, bytes) => Math.max(most, bytes), 0) ?? null,
      reservedBytes: reserved === undefined ? null : (reserved.at(-1) ?? 0),
    },
    holes: { holesAtPeak: sweep.holes[peak] ?? 0, largestHoleAtPeak: sweep.largestHole[peak] ?? 0 },
  };
}

describe("the summary of each layer agrees with the page's curves", () => {
  test('for any recording', () => {
    fc.assert(
      fc.property(anyRun, (recorded) => {
        for (const [layer, summary] of packReportRun(recorded).overview.layers.entries()) {
          expect(summary).toMatchObject(readFromCurves(recorded, layer).curves);
        }
      }),
    );
  });

  test.each([true, false])('in its holes, with blocks: %s', (hasBlocks) => {
    fc.assert(
      fc.property(anyRecordedRun({ hasBlocks }), (recorded) => {
        for (const [layer, summary] of packReportRun(recorded).overview.layers.entries()) {
          const { curves, holes } = readFromCurves(recorded, layer);
          expect(summary).toMatchObject({ ...curves, ...holes });
        }
      }),
    );
  });

  test('for a training loop', () => {
    const recorded = trainingRun();
    for (const [layer, summary] of packReportRun(recorded).overview.layers.entries()) {
      const { curves, holes } = readFromCurves(recorded, layer);
      expect(summary).toMatchObject({ ...curves, ...holes });
    }
  });
});
