/**
 * Which span is at which pixel of the map of addresses over time. A span is drawn by writing its
 * number into the pixels that it covers, at least one. Hit testing, borders and colours all follow
 * from these numbers.
 *
 * Cost: live allocations do not overlap, so all of them together write each pixel about once, plus
 * one write for every allocation smaller than a pixel. An allocation shorter than a pixel is
 * skipped if another such allocation already covers the same pixels of the column.
 */

import { neverEnds, type ReportRun } from '../formats/report/report-run.js';
import type { AddressLayout } from './address-layout.js';
import { endTimeOf, startTimeOf } from './find-allocations.js';

/** No address of the pixel is known to be reserved. */
export const emptyPixel = -1;
/** The pixel is in a block, but no allocation uses it. */
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

/** Group size: a group whose spans all ended before the visible part is skipped. */
const groupLength = 512;

/**
 * The positions of spans on the map, in order of their starts; read from first to last for each
 * picture.
 */
export class MapSpans {
  readonly count: number;
  readonly spans: Int32Array;
  readonly startTimes: Float64Array;
  /** Infinity for a span that never ends. */
  readonly endTimes: Float64Array;
  readonly lows: Float64Array;
  readonly highs: Float64Array;
  /** The latest end in each group of 512 spans. */
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

/** The pixels of a map: row 0 is at the top, with the highest addresses. */
export class MapRaster {
  readonly width: number;
  readonly height: number;
  /** For each pixel, row by row: a span, {@link emptyPixel} or {@link reservedPixel}. */
  readonly pixels: Int32Array;
  /**
   * For each first row, the column in which a short span was last drawn, and the row after its last
   * row.
   */
  readonly #drawnColumn: Int32Array;
  readonly #drawnEnd: Int32Array;

  constructor(width: number, height: number) {
    this.width = width;
    this.height = height;
    this.pixels = new Int32Array(width * height);
    this.#drawnColumn = new Int32Array(height);
    this.#drawnEnd = new Int32Array(height);
  }

  /** Draws the blocks, if any, and the allocations over them. */
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
      // `| 0` rounds a positive number down at a fifth of the cost of Math.floor.
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
        // Below this length, single writes cost less than a call of fill.
        if (length < 16) for (let pixel = at; pixel < at + length; pixel++) pixels[pixel] = value;
        else pixels.fill(value, at, at + length);
      }
    }
  }
}
