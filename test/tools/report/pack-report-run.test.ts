import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { RecordedRun } from '../../../src/tools/formats/index.js';
import { unpackReportRun } from '../../../src/tools/formats/report/report-data.js';
import { neverEnds, poolOf, type ReportRun } from '../../../src/tools/formats/report/report-run.js';
import { packReportRun } from '../../../src/tools/report/pack-report-run.js';
import { shortenPaths } from '../../../src/tools/report/shorten-paths.js';
import { allocate, anyRun, free, runOf } from '../formats/runs.js';
import { createReportRun } from './create-report-run.js';
import { RunWriter, trainingRun } from './runs.js';

describe('the run of a report', () => {
  test('pairs each allocation with its free, and keeps where each happened', () => {
    const run = packedAndRead(
      new RunWriter()
        .allocate(512, 100, { stream: '0x1', thread: '7', phase: 'load', stack: 'read (a.js:1:2)' })
        .label(512, 'table')
        .allocate(1024, 200, { phase: undefined, stack: undefined })
        .free(512, 100, { stream: '0x2' })
        .finish(),
    );
    const { spans, times } = run;
    expect(spans.count).toBe(2);
    expect([...spans.bytes]).toEqual([100, 200]);
    expect([...run.changes]).toEqual([0, 1, ~0]);
    expect([...spans.ends]).toEqual([2, neverEnds]);
    expect([...times]).toEqual([0, 2000, 3000]);
    expect([...run.addresses]).toEqual([512, 1024]);
    expect(run.streams[spans.streamOf[0] as number]).toBe('0x1');
    expect(run.streams[spans.endStreamOf[0] as number]).toBe('0x2');
    expect(run.labels[spans.labelOf[0] as number]).toBe('table');
    expect(run.phases[spans.phaseOf[0] as number]?.name).toBe('load');
    expect(run.stacks[spans.stackOf[0] as number]).toBe('read (a.js:1:2)');
    expect([spans.phaseOf[1], spans.stackOf[1], spans.labelOf[1]]).toEqual([0, 0, 0]);
  });

  test('ends a live allocation if the log allocates its address again', () => {
    const run = packedAndRead(runOf([allocate(512, 100), allocate(512, 50), free(512, 50)]));
    expect([...run.spans.ends]).toEqual([1, 3]);
    expect(run.unmatchedFreeCount).toBe(0);
  });

  test('counts frees of memory that the log never allocated, and leaves out zero bytes', () => {
    const run = packedAndRead(runOf([free(512, 100), allocate(0, 0), free(0, 0), allocate(1024, 8)]));
    expect(run.unmatchedFreeCount).toBe(1);
    expect(run.spans.count).toBe(1);
  });

  test('keeps the time if a log goes back', () => {
    const run = packedAndRead(runOf([allocate(256, 1, { time: 500 }), allocate(512, 1, { time: 400 }), allocate(768, 1, { time: 700 })]));
    expect([...run.times]).toEqual([0, 0, 200]);
    expect(run.durationNanoseconds).toBe(200);
  });

  test('keeps blocks apart from allocations at the same address, and layers from each other', () => {
    const run = packedAndRead(
      new RunWriter('statistics', 'pool')
        .grow(4096, 4096, { layer: 'pool' })
        .allocate(4096, 256, { layer: 'statistics' })
        .allocate(4096, 512, { layer: 'pool' })
        .free(4096, 256, { layer: 'statistics' })
        .release(4096, 4096, { layer: 'pool' })
        .finish(),
    );
    expect([...run.spans.isBlock]).toEqual([1, 0, 0]);
    expect([...run.spans.ends]).toEqual([4, 3, neverEnds]);
  });

  test('knows the outermost layer, and which layer holds its blocks', () => {
    const recorded = trainingRun({ steps: 1 });
    const run = packedAndRead(recorded);
    expect(run.layers[packReportRun(recorded).overview.layer]?.name).toBe('statistics');
    expect(poolOf(run, 0)).toBe(1);
    const upstreamOfPool = createReportRun(
      new RunWriter('pool', 'cuda')
        .allocate(256, 8, { layer: 'cuda' })
        .grow(256, 8, { layer: 'pool' })
        .allocate(256, 8, { layer: 'pool' })
        .finish(),
    );
    expect(poolOf(upstreamOfPool, 0)).toBe(0);
    expect(poolOf(upstreamOfPool, 1)).toBeUndefined();
  });

  test('omits from its stacks the folder of all files', () => {
    const stacks = [
      '',
      'f (file:///home/me/app/src/a.js:1:2)\nm (file:///home/me/app/main.js:3:4)\nr (node:internal/run:5:6)',
      'g (file:///home/me/app/b.js:1:1)',
    ];
    expect(shortenPaths(stacks)).toEqual(['', 'f (src/a.js:1:2)\nm (main.js:3:4)\nr (node:internal/run:5:6)', 'g (b.js:1:1)']);
    expect(shortenPaths(['f (/a/x.js:1:1)', 'g (/b/y.py:2:2)', 'h (a.js:1:1)', 'odd (/c'])).toEqual([
      'f (a/x.js:1:1)',
      'g (b/y.py:2:2)',
      'h (a.js:1:1)',
      'odd (/c',
    ]);
    expect(shortenPaths(['f (file:///a/$&.js:1:1)', 'g (/b/y.js:1:1)'])).toEqual(['f (a/$&.js:1:1)', 'g (b/y.js:1:1)']);
  });

  test('is unpacked as it was packed, whatever is recorded', () => {
    fc.assert(
      fc.property(anyRun, (recorded) => {
        expect(packedAndRead(recorded)).toEqual(createReportRun(recorded));
      }),
    );
    const recorded = trainingRun();
    expect(packedAndRead(recorded)).toEqual(createReportRun(recorded));
  });
});

function packedAndRead(recorded: RecordedRun): ReportRun {
  return unpackReportRun(Buffer.concat([...packReportRun(recorded).pieces()]));
}
