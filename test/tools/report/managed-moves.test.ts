import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { RecordedRun } from '../../../src/tools/formats/index.js';
import type { ReportRun } from '../../../src/tools/formats/report/report-run.js';
import { ownersOfPages, sumMoves } from '../../../src/tools/report/managed-moves.js';
import { createReportRun } from './create-report-run.js';
import { liveAfter } from './model.js';
import { RunWriter } from './runs.js';

const page = 4096;
const device = 'managed at device 0';

/** A run whose layers but the first are places. */
function withPlaces(run: RecordedRun): RecordedRun {
  const layers = run.layers.map(({ name }, layer) => ({ name, upstream: undefined, ...(layer > 0 ? { isPlace: true as const } : {}) }));
  return { ...run, layers };
}

/** Allocations of any size that do not overlap, among pages that come and go. */
const runs: fc.Arbitrary<ReportRun> = fc
  .array(fc.record({ isPage: fc.boolean(), slot: fc.nat({ max: 40 }), slots: fc.integer({ min: 1, max: 12 }) }), {
    maxLength: 120,
    size: 'max',
  })
  .map((steps) => {
    const writer = new RunWriter('pool', device);
    const slotBytes = 1024;
    const taken = new Map<number, number>();
    const pages = new Set<number>();
    for (const { isPage, slot, slots } of steps) {
      const pointer = 0x10000 + slot * slotBytes;
      if (isPage) {
        const start = pointer - (pointer % page);
        if (pages.delete(start)) {
          writer.free(start, page, { layer: device });
        } else {
          writer.allocate(start, page, { layer: device });
          pages.add(start);
        }
        continue;
      }
      const held = taken.get(slot);
      if (held !== undefined) {
        taken.delete(slot);
        writer.free(pointer, held * slotBytes, { layer: 'pool' });
      } else if ([...taken].every(([start, length]) => start + length <= slot || slot + slots <= start)) {
        taken.set(slot, slots);
        writer.allocate(pointer, slots * slotBytes, { layer: 'pool' });
      }
    }
    return createReportRun(withPlaces(writer.finish()));
  });

describe('the owner of a page', () => {
  test('is the allocation at its first byte when it came, else the last that begins in it', () => {
    fc.assert(
      fc.property(runs, (run) => {
        const { spans, addresses, layers } = run;
        const owners = ownersOfPages(run, 0);
        const startOf = (span: number) => addresses[spans.addressOf[span] as number] as number;
        const endOf = (span: number) => startOf(span) + (spans.bytes[span] as number);
        for (let span = 0; span < spans.count; span++) {
          if (!layers[spans.layerOf[span] as number]?.isPlace) {
            expect(owners[span]).toBe(-1);
            continue;
          }
          const start = startOf(span);
          const live = liveAfter(run, spans.starts[span] as number).filter((each) => spans.layerOf[each] === 0);
          const covering = live.find((each) => startOf(each) <= start && start < endOf(each));
          const within = live
            .filter((each) => startOf(each) > start && startOf(each) < start + page)
            .sort((a, b) => startOf(b) - startOf(a));
          expect(owners[span]).toBe(covering ?? within[0] ?? -1);
        }
      }),
    );
  });

  test('is found among many addresses', () => {
    const writer = new RunWriter('pool', device);
    for (let i = 0; i < 3000; i++) writer.allocate(page * (i + 1), 16, { layer: 'pool' });
    for (let i = 1; i < 3000; i++) writer.free(page * (i + 1), 16, { layer: 'pool' });
    writer.allocate(page, 16, { layer: device }).allocate(page * 3000, page, { layer: device });
    const run = createReportRun(withPlaces(writer.finish()));
    expect([...ownersOfPages(run, 0)].slice(3000)).toEqual([0, -1]);
  });
});

test('moves are summed up by place, reason, stream and label, the most bytes first', () => {
  const writer = new RunWriter('managed', device, 'managed at the host');
  writer.allocate(page, 3 * page, { layer: 'managed', stream: '0x1' }).label(page, 'weights');
  const come = (number: number, reason: string, stream: string, layer = device) =>
    writer.allocate(number * page, page, { layer, stream }).label(number * page, reason);
  const leave = (number: number) => writer.free(number * page, page, { layer: device });
  come(1, 'first use', '0x1');
  come(2, 'first use', '0x1');
  come(3, 'prefetch', '0x2');
  leave(1);
  come(1, 'eviction', '0x2', 'managed at the host');
  come(9, 'first use', '0x1');
  const run = createReportRun(withPlaces(writer.finish()));
  const inWords = (from: number, to: number) =>
    sumMoves(run, ownersOfPages(run, 0), from, to).map(({ layer, reason, stream, label, pages, bytes }) =>
      [run.layers[layer]?.name, run.labels[reason], run.streams[stream], run.labels[label], pages, bytes / page].join('|'),
    );
  expect(inWords(0, run.changes.length)).toEqual([
    `${device}|first use|0x1|weights|2|2`,
    `${device}|prefetch|0x2|weights|1|1`,
    'managed at the host|eviction|0x2|weights|1|1',
    `${device}|first use|0x1||1|1`,
  ]);
  expect(inWords(2, 4)).toEqual([`${device}|first use|0x1|weights|1|1`, `${device}|prefetch|0x2|weights|1|1`]);
});
