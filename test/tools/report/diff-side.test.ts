import fc from 'fast-check';
import { expect, test } from 'vitest';
import { allocationsOf, chosenLayer } from '../../../src/tools/formats/layer-allocations.js';
import type { RecordedRun } from '../../../src/tools/formats/recorded-run.js';
import { encodeRecording } from '../../../src/tools/formats/recording/convert-to-recording.js';
import { diffGroups, diffRuns, diffSides } from '../../../src/tools/report/diff-runs.js';
import type { DiffFigures } from '../../../src/tools/report/diff-side.js';
import { readDiffSide } from '../../../src/tools/report/read-diff-side.js';
import { pieces } from '../formats/logs.js';
import { anyRun } from '../formats/runs.js';
import { RunWriter } from './runs.js';

/** The figures of the groups, once all events are known. */
function figuresByHand(run: RecordedRun, nameOf: (event: number, label: number) => string): Map<string, DiffFigures> {
  const { events, labels, operations } = allocationsOf(run, chosenLayer(run, undefined));
  const live = new Set<number>();
  const groups = new Map<string, Record<keyof DiffFigures, number>>();
  const bytesOf = (allocation: number) => run.seconds[events[allocation] as number] as number;
  const add = (allocation: number, what: 'peak' | 'end' | 'allocated') => {
    const name = nameOf(events[allocation] as number, labels[allocation] as number);
    const group = groups.get(name) ?? { peakBytes: 0, peakCount: 0, endBytes: 0, endCount: 0, allocatedBytes: 0, allocatedCount: 0 };
    groups.set(name, group);
    group[`${what}Bytes`] += bytesOf(allocation);
    group[`${what}Count`]++;
  };
  let [most, atPeak] = [0, new Set<number>()];
  for (const operation of operations) {
    if (operation < 0) live.delete(~operation);
    else {
      live.add(operation);
      add(operation, 'allocated');
    }
    const bytes = [...live].reduce((sum, allocation) => sum + bytesOf(allocation), 0);
    // Allocations of zero bytes are never live after their own operation, and never at a peak.
    if (bytes > most) [most, atPeak] = [bytes, new Set(live)];
  }
  for (const allocation of atPeak) add(allocation, 'peak');
  for (const allocation of live) add(allocation, 'end');
  return groups;
}

test('figures that are added up as events come are those of all events', async () => {
  await fc.assert(
    fc.asyncProperty(anyRun, async (run) => {
      // Beyond that, a sum of numbers depends on the order in which they are added.
      fc.pre(run.seconds.reduce((sum, bytes) => sum + bytes, 0) <= Number.MAX_SAFE_INTEGER);
      const recording = Buffer.concat([...encodeRecording(run)]);
      for (const by of diffGroups) {
        const { rows } = diffRuns(run, run, { by });
        if (by === 'label' || by === 'account' || by === 'phase') {
          const nameOf = (event: number, label: number) =>
            ({
              label: run.labels[label],
              account: run.accounts[run.accountOf[event] as number],
              phase: run.phases[run.phaseOf[event] as number]?.name,
            })[by] || `no ${by}`;
          expect(new Map(rows.map(({ name, before }) => [name, before]))).toEqual(figuresByHand(run, nameOf));
        }
        const side = await readDiffSide(pieces(recording, 1000), {}, by);
        expect(diffSides(side, side, { by }).rows).toEqual(rows);
      }
      const side = await readDiffSide(pieces(recording), {}, undefined);
      expect(diffSides(side, side, {})).toEqual(diffRuns(run, run));
    }),
    { numRuns: 150 },
  );
});

test('a label counts for all of the life of an allocation, wherever the peak is', () => {
  const run = new RunWriter()
    .allocate(256, 10)
    .label(256, 'early')
    .allocate(512, 20)
    .free(256, 10)
    .allocate(768, 5)
    // After the peak, at which it was live.
    .label(512, 'late')
    // After the peak, at which it was not.
    .label(768, 'later')
    .label(512, 'last')
    .free(512, 20)
    .finish();
  const { rows } = diffRuns(run, run, { by: 'label' });
  expect(rows.map(({ name, before }) => [name, before])).toEqual([
    ['early', { peakBytes: 10, peakCount: 1, endBytes: 0, endCount: 0, allocatedBytes: 10, allocatedCount: 1 }],
    ['last', { peakBytes: 20, peakCount: 1, endBytes: 0, endCount: 0, allocatedBytes: 20, allocatedCount: 1 }],
    ['later', { peakBytes: 0, peakCount: 0, endBytes: 5, endCount: 1, allocatedBytes: 5, allocatedCount: 1 }],
  ]);
});
