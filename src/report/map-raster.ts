/**
 * Which span is at which pixel of the map of addresses over time. Every span is drawn by writing its number into the pixels that it covers, at
 * least one; what is under the mouse, where borders are and which colour a pixel has all follow from these numbers.
 *
 * Cost: live allocations do not overlap, so that all together they write each pixel about once, plus one for every allocation that is smaller than
 * a pixel. Of those shorter than a pixel that lie in the same column, one that would only cover what another of them has is left out.
 */
import type { AddressLayout } from './address-layout.js';
import { endTimeOf, startTimeOf } from './find-allocations.js';
import { neverEnds, type ReportRun } from './report-run.js';

/** Pixels in which no address is reserved or known to be. */
export const emptyPixel = -1;
/** Pixels in a block that no allocation uses. */
export const reservedPixel = -2;

/** A part of the map. */
export interface MapWindow {
  /** Nanoseconds since the first event. */
  readonly fromTime: number;
  readonly toTime: number;
  /** Offsets in an {@link AddressLayout}. */
  readonly fromOffset: number;
  readonly toOffset: number;
}

/** Spans that are passed over at once where all of them ended before what is shown. */
const groupLength = 512;

/** Where some spans of a run are on the map, in the order of their beginnings: read from the first to the last for each picture. */
export class MapSpans {
  readonly count: number;
  readonly spans: Int32Array;
  readonly startTimes: Float64Array;
  /** Infinity for what never ends. */
  readonly endTimes: Float64Array;
  readonly lows: Float64Array;
  readonly highs: Float64Array;
  /** The last end of each 512 spans. */
  readonly lastEnds: Float64Array;

  constructor(run: ReportRun, layout: AddressLayout, mask: Uint8Array) {
    const { spans } = run;
    const count = mask.reduce((sum, is) => sum + is, 0);
    this.count = count;
    this.spans = new Int32Array(count);
    this.startTimes = new Float64Array(count);
    this.endTimes = new Float64Array(count);
    this.lows = new Float64Array(count);
    this.highs = new Float64Array(count);
    this.lastEnds = new Float64Array(Math.ceil(count / groupLength));
    let next = 0;
    for (let span = 0; span < spans.count; span++) {
      if (mask[span] !== 1) continue;
      const end = spans.ends[span] === neverEnds ? Number.POSITIVE_INFINITY : endTimeOf(run, span);
      const low = layout.offsetOf[spans.addressOf[span] as number] as number;
      this.spans[next] = span;
      this.startTimes[next] = startTimeOf(run, span);
      this.endTimes[next] = end;
      this.lows[next] = low;
      this.highs[next] = low + (spans.bytes[span] as number);
      const group = Math.floor(next / groupLength);
      if (end > (this.lastEnds[group] as number)) this.lastEnds[group] = end;
      next++;
    }
  }
}

/** The pixels of a map: row 0 is at the top and has the highest addresses. */
export class MapRaster {
  readonly width: number;
  readonly height: number;
  /** A span, {@link emptyPixel} or {@link reservedPixel} for each pixel, row by row. */
  readonly pixels: Int32Array;
  /** The column that a short span was last drawn in, for each first row, and the row behind its last. */
  readonly #drawnColumn: Int32Array;
  readonly #drawnEnd: Int32Array;

  constructor(width: number, height: number) {
    this.width = width;
    this.height = height;
    this.pixels = new Int32Array(width * height);
    this.#drawnColumn = new Int32Array(height);
    this.#drawnEnd = new Int32Array(height);
  }

  /** Draws the blocks, if there are any, and the allocations over them. */
  draw(view: MapWindow, allocations: MapSpans, blocks?: MapSpans): void {
    this.pixels.fill(emptyPixel);
    if (blocks !== undefined) this.#drawSpans(view, blocks, true);
    this.#drawSpans(view, allocations, false);
  }

  #drawSpans(view: MapWindow, drawn: MapSpans, areBlocks: boolean): void {
    const { width, height, pixels } = this;
    const { fromTime, toTime, fromOffset, toOffset } = view;
    const { count, spans, startTimes, endTimes, lows, highs, lastEnds } = drawn;
    const perColumn = width / Math.max(1e-9, toTime - fromTime);
    const perRow = height / Math.max(1e-9, toOffset - fromOffset);
    const drawnColumn = this.#drawnColumn.fill(-1);
    const drawnEnd = this.#drawnEnd;
    for (let i = 0; i < count; i++) {
      if (i % groupLength === 0 && (lastEnds[i / groupLength] as number) < fromTime) {
        i += groupLength - 1;
        continue;
      }
      const start = startTimes[i] as number;
      if (start > toTime) break;
      const end = endTimes[i] as number;
      const low = lows[i] as number;
      const high = highs[i] as number;
      if (end < fromTime || high <= fromOffset || low >= toOffset) continue;
      // What is positive is rounded down by `| 0`, at a fifth of the cost of Math.floor.
      const column = start <= fromTime ? 0 : Math.min(width - 1, ((start - fromTime) * perColumn) | 0);
      const columnEnd = end >= toTime ? width : Math.max(column + 1, Math.ceil((end - fromTime) * perColumn));
      const row = high >= toOffset ? 0 : Math.min(height - 1, ((toOffset - high) * perRow) | 0);
      const rowEnd = low <= fromOffset ? height : Math.max(row + 1, ((toOffset - low) * perRow + 0.5) | 0);
      const length = columnEnd - column;
      if (length === 1) {
        if (drawnColumn[row] === column && (drawnEnd[row] as number) >= rowEnd) continue;
        drawnColumn[row] = column;
        drawnEnd[row] = rowEnd;
      }
      const value = areBlocks ? reservedPixel : (spans[i] as number);
      for (let at = row * width + column, last = rowEnd * width; at < last; at += width) {
        // A call to fill costs more than a few writes.
        if (length < 16) for (let pixel = at; pixel < at + length; pixel++) pixels[pixel] = value;
        else pixels.fill(value, at, at + length);
      }
    }
  }
}
