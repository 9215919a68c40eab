import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { neverEnds } from '../../../src/tools/formats/report/report-run.js';
import { layOutAddresses } from '../../../src/tools/report/address-layout.js';
import { endTimeOf, startTimeOf } from '../../../src/tools/report/find-allocations.js';
import { matchingAllocations, matchingBlocks } from '../../../src/tools/report/held-bytes.js';
import { emptyPixel, MapRaster, MapSpans, reservedPixel } from '../../../src/tools/report/map-raster.js';
import { anyReportRun } from './model.js';

const width = 24;
const height = 20;

describe('the map of addresses', () => {
  test('has at each pixel an allocation that touches it, and nothing if none does', () => {
    const anyPart = fc.tuple(fc.nat({ max: 90 }), fc.integer({ min: 5, max: 100 }), fc.nat({ max: 90 }), fc.integer({ min: 5, max: 100 }));
    fc.assert(
      fc.property(anyReportRun({ hasBlocks: true }), anyPart, (run, [time, length, address, rows]) => {
        fc.pre(run.spans.count > 0 && run.durationNanoseconds > 0);
        const layout = layOutAddresses(run, 0);
        const fromTime = (run.durationNanoseconds * time) / 100;
        const fromOffset = (layout.totalBytes * address) / 100;
        const view = {
          fromTime,
          toTime: fromTime + (run.durationNanoseconds * length) / 100,
          fromOffset,
          toOffset: fromOffset + (layout.totalBytes * rows) / 100,
        };
        const allocations = matchingAllocations(run, { layer: 0 });
        const blocks = matchingBlocks(run, 0) as Uint8Array;
        const raster = new MapRaster(width, height);
        raster.draw(view, new MapSpans(run, layout, allocations), new MapSpans(run, layout, blocks));

        const perColumn = (view.toTime - view.fromTime) / width;
        const perRow = (view.toOffset - view.fromOffset) / height;
        /** Whether a span touches a pixel, or one within a distance of `slack`. */
        const touches = (span: number, row: number, column: number, slack: number) => {
          const low = layout.offsetOf[run.spans.addressOf[span] as number] as number;
          const end = run.spans.ends[span] === neverEnds ? Number.POSITIVE_INFINITY : endTimeOf(run, span);
          return (
            startTimeOf(run, span) <= view.fromTime + (column + 1 + slack) * perColumn &&
            end >= view.fromTime + (column - slack) * perColumn &&
            low <= view.toOffset - (row - slack) * perRow &&
            low + (run.spans.bytes[span] as number) >= view.toOffset - (row + 1 + slack) * perRow
          );
        };
        const spans = [...run.spans.bytes.keys()];
        const faults: string[] = [];
        for (let row = 0; row < height; row++) {
          for (let column = 0; column < width; column++) {
            const pixel = raster.pixels[row * width + column] as number;
            const isRight =
              pixel >= 0
                ? allocations[pixel] === 1 && touches(pixel, row, column, 1)
                : pixel === emptyPixel ||
                  (pixel === reservedPixel && spans.some((span) => blocks[span] === 1 && touches(span, row, column, 1)));
            // A span well inside the pixel must not be missed.
            const isMissing =
              (pixel < 0 && spans.some((span) => allocations[span] === 1 && touches(span, row, column, -1))) ||
              (pixel === emptyPixel && spans.some((span) => blocks[span] === 1 && touches(span, row, column, -1)));
            if (!isRight || isMissing) faults.push(`row ${row}, column ${column}: ${pixel}`);
          }
        }
        expect(faults).toEqual([]);
      }),
      { numRuns: 40 },
    );
  });

  test('shows all of a short, high allocation, whatever else is in its column', () => {
    const raster = new MapRaster(10, 10);
    const short = {
      count: 2,
      spans: Int32Array.of(1, 2),
      startTimes: Float64Array.of(500, 501),
      endTimes: Float64Array.of(500, 501),
      lows: Float64Array.of(90, 20),
      highs: Float64Array.of(100, 100),
      lastEnds: Float64Array.of(501),
    } as MapSpans;
    raster.draw({ fromTime: 0, toTime: 1000, fromOffset: 0, toOffset: 100 }, short);
    expect(Array.from({ length: 10 }, (_, row) => raster.pixels[row * 10 + 5])).toEqual([2, 2, 2, 2, 2, 2, 2, 2, -1, -1]);
  });

  test('shows an allocation far smaller than a pixel', () => {
    const raster = new MapRaster(10, 10);
    const tiny = {
      count: 1,
      spans: Int32Array.of(7),
      startTimes: Float64Array.of(500),
      endTimes: Float64Array.of(500),
      lows: Float64Array.of(1_000_000),
      highs: Float64Array.of(1_000_001),
      lastEnds: Float64Array.of(500),
    } as MapSpans;
    raster.draw({ fromTime: 0, toTime: 1000, fromOffset: 0, toOffset: 2_000_000 }, tiny);
    expect(raster.pixels.filter((pixel) => pixel === 7).length).toBe(1);
    expect(raster.pixels[4 * 10 + 5]).toBe(7);
  });
});
