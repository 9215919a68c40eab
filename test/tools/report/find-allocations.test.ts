import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { neverEnds } from '../../../src/tools/formats/report/report-run.js';
import { type AllocationOrder, endTimeOf, findAllocations, lifetimeOf, startTimeOf } from '../../../src/tools/report/find-allocations.js';
import { matchingAllocations } from '../../../src/tools/report/held-bytes.js';
import { createReportRun } from './create-report-run.js';
import { anyReportRun } from './model.js';
import { trainingRun } from './runs.js';

const everything = { from: 0, to: Number.MAX_SAFE_INTEGER, offset: 0, limit: 100_000 };

describe('finding allocations', () => {
  test('lists those of a time range in order, page by page', () => {
    const orders = fc.constantFrom<AllocationOrder>('bytes', 'lifetime', 'start', 'address', 'stream');
    fc.assert(
      fc.property(
        anyReportRun(),
        orders,
        fc.boolean(),
        fc.nat({ max: 30 }),
        fc.nat({ max: 100 }),
        (run, order, isDescending, offset, share) => {
          const { spans } = run;
          const key = {
            bytes: (span: number) => spans.bytes[span] as number,
            lifetime: (span: number) => lifetimeOf(run, span),
            start: (span: number) => spans.starts[span] as number,
            address: (span: number) => spans.addressOf[span] as number,
            stream: (span: number) => spans.streamOf[span] as number,
          }[order as 'bytes'];
          const [from, to] = [(run.durationNanoseconds * share) / 200, (run.durationNanoseconds * (100 + share)) / 200];
          const wanted = [...spans.bytes.keys()]
            .filter((span) => startTimeOf(run, span) <= to && endTimeOf(run, span) >= from)
            .sort((a, b) => (isDescending ? key(b) - key(a) : key(a) - key(b)) || a - b);
          const found = findAllocations(run, matchingAllocations(run, { layer: 0 }), { order, isDescending, from, to, offset, limit: 7 });
          expect(found.spans).toEqual(wanted.slice(offset, offset + 7));
          expect(found.count).toBe(wanted.length);
        },
      ),
    );
  });

  test('pages through a long list without losing or repeating any', () => {
    const run = createReportRun(trainingRun());
    const mask = matchingAllocations(run, { layer: 0 });
    for (const order of ['bytes', 'start', 'lifetime', 'phase'] as const) {
      const all = findAllocations(run, mask, { ...everything, order, isDescending: true }).spans;
      expect(new Set(all).size).toBe(mask.filter((is) => is === 1).length);
      for (let offset = 0; offset < all.length; offset += 7) {
        expect(findAllocations(run, mask, { ...everything, order, isDescending: true, offset, limit: 7 }).spans).toEqual(
          all.slice(offset, offset + 7),
        );
      }
    }
  });

  test('finds text in labels and stacks, ignoring case', () => {
    const run = createReportRun(trainingRun({ steps: 2 }));
    const mask = matchingAllocations(run, { layer: 0 });
    const find = (text: string) => findAllocations(run, mask, { ...everything, order: 'label', isDescending: false, text }).spans;
    expect(find('WEIGHTS.1').map((span) => run.labels[run.spans.labelOf[span] as number])).toEqual([
      'weights.1',
      'weights.10',
      'weights.11',
    ]);
    expect(find('loader.js').every((span) => run.stacks[run.spans.stackOf[span] as number]?.includes('loader.js'))).toBe(true);
    expect(find('loader.js').length).toBeGreaterThan(0);
    expect(find('nowhere')).toEqual([]);
  });

  test('finds never-freed allocations and large ones', () => {
    const run = createReportRun(trainingRun({ steps: 1 }));
    const mask = matchingAllocations(run, { layer: 0 });
    const query = { ...everything, order: 'bytes', isDescending: true } as const;
    const held = findAllocations(run, mask, { ...query, neverFreed: true });
    expect(held.count).toBe(3);
    expect(held.spans.every((span) => run.spans.ends[span] === neverEnds)).toBe(true);
    const large = findAllocations(run, mask, { ...query, minimumBytes: 8 << 20 });
    expect(large.count).toBeGreaterThan(3);
    expect(large.spans.every((span) => (run.spans.bytes[span] as number) >= 8 << 20)).toBe(true);
  });
});
