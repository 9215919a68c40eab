import { neverEnds } from '../../formats/report/report-run.js';
import { endTimeOf, lifetimeOf, startTimeOf } from '../../report/find-allocations.js';
import type { Grouping } from '../../report/held-bytes.js';
import { emptyPixel, MapRaster, reservedPixel } from '../../report/map-raster.js';
import { element } from '../common/dom.js';
import { formatBytes, formatDuration, formatTime } from '../common/format.js';
import { onColorSchemeChange, resolveColor } from '../common/series-style.js';
import type { ReportState } from './report-state.js';
import type { RunModel } from './run-model.js';
import { areaColors } from './textures.js';

/** As wide as the y axis of the charts, so that the same time is at the same x. */
const leftSpace = 84;
const rightSpace = 16;
const bottomSpace = 24;
const topSpace = 4;
const plotHeight = 420;
/** At most this many allocations show their names. */
const mostLabels = 150;
const help =
  'Press the left and right arrow keys to go to the next allocation in time, up and down to go to the next in address, and Enter to zoom to it. Plus and minus zoom the time, Page Up and Page Down the addresses. Shift with an arrow key moves the view; 0 shows everything.';

/** Called with the allocation under the mouse or with the focus. */
export type OnSpan = (span: number | undefined, isByKey: boolean) => void;

/** A run's memory drawn as addresses over time. */
export class AddressChart {
  readonly root: HTMLElement;
  readonly model: RunModel;
  readonly #state: ReportState;
  readonly #onSpan: OnSpan;
  readonly #image = element('canvas', { 'aria-hidden': 'true' });
  readonly #overlay = element('canvas', { 'aria-hidden': 'true' });
  readonly #frame: HTMLElement;
  readonly #ends: (() => void)[] = [];
  #raster = new MapRaster(1, 1);
  #pixels = new ImageData(1, 1);
  #scale = 1;
  #width = 0;
  #offsets: { readonly from: number; readonly to: number } | undefined;
  #grouping: Grouping = 'size';
  #focused: number | undefined;
  #hovered: number | undefined;
  #drag: { readonly x: number; readonly y: number; toX: number; toY: number } | undefined;
  #layer: number;
  #isDrawn = false;

  constructor(state: ReportState, model: RunModel, title: string, onSpan: OnSpan) {
    this.#state = state;
    this.model = model;
    this.#onSpan = onSpan;
    this.#layer = model.filter.layer;
    this.#frame = element(
      'div',
      { class: 'map', tabindex: '0', role: 'group', 'aria-label': `${title}. ${help}` },
      this.#image,
      this.#overlay,
    );
    this.root = element('div', {}, this.#frame);
    this.#listen();
  }

  destroy(): void {
    for (const end of this.#ends) end();
    this.root.remove();
  }

  get focused(): number | undefined {
    return this.#focused;
  }

  /** The visible offsets. */
  get offsets(): { readonly from: number; readonly to: number } {
    return this.#offsets ?? { from: 0, to: Math.max(1, this.model.layout.totalBytes) };
  }

  focus(): void {
    this.#frame.focus({ preventScroll: true });
  }

  /** Draws everything according to the state. */
  draw(grouping: Grouping): void {
    this.#grouping = grouping;
    const { layer } = this.model.filter;
    if (layer !== this.#layer) {
      this.#layer = layer;
      this.#offsets = undefined;
      this.#focused = undefined;
      this.#hovered = undefined;
    }
    this.#resize();
    this.#drawImage();
    this.#drawOverlay();
  }

  zoomAddresses(factor: number, around?: number): void {
    const { from, to } = this.offsets;
    const center = around ?? (from + to) / 2;
    this.#setOffsets(center - (center - from) * factor, center + (to - center) * factor);
  }

  panAddresses(share: number): void {
    const { from, to } = this.offsets;
    const distance = Math.max(-from, Math.min(this.model.layout.totalBytes - to, (to - from) * share));
    this.#setOffsets(from + distance, to + distance);
  }

  showAll(): void {
    this.#offsets = undefined;
    this.#state.select(undefined);
    this.draw(this.#grouping);
  }

  /** Focuses an allocation and makes sure that it is visible. */
  showSpan(span: number, isZoom: boolean): void {
    const { run, layout } = this.model;
    this.#focused = span;
    const start = startTimeOf(run, span);
    const end = endTimeOf(run, span);
    const { range } = this.#state;
    const low = layout.offsetOf[run.spans.addressOf[span] as number] as number;
    const bytes = run.spans.bytes[span] as number;
    if (isZoom) {
      const margin = Math.max(10, (end - start) * 1.5);
      this.#setOffsets(low - 12 * bytes, low + 13 * bytes, false);
      this.#state.select({ from: start - margin, to: end + margin });
    } else {
      if (end < range.from || start > range.to) {
        const length = range.to - range.from;
        this.#state.select({ from: start - length / 2, to: start + length / 2 });
      }
      const { from, to } = this.offsets;
      if (low + bytes <= from || low >= to) this.#setOffsets(low - (to - from) / 2, low + (to - from) / 2, false);
    }
    this.draw(this.#grouping);
    this.#onSpan(span, true);
  }

  #setOffsets(from: number, to: number, isDrawing = true): void {
    const { totalBytes } = this.model.layout;
    const length = Math.min(totalBytes, Math.max(Math.min(256, totalBytes), to - from));
    const start = Math.min(Math.max(0, from), totalBytes - length);
    this.#offsets = length >= totalBytes ? undefined : { from: start, to: start + length };
    if (isDrawing) this.draw(this.#grouping);
  }

  #resize(): void {
    const width = Math.max(200, this.#frame.clientWidth);
    const scale = Math.min(2, devicePixelRatio);
    if (width === this.#width && scale === this.#scale) return;
    this.#width = width;
    this.#scale = scale;
    const columns = Math.round((width - leftSpace - rightSpace) * scale);
    const rows = Math.round(plotHeight * scale);
    this.#raster = new MapRaster(columns, rows);
    this.#pixels = new ImageData(columns, rows);
    Object.assign(this.#image, { width: columns, height: rows });
    Object.assign(this.#image.style, {
      left: `${leftSpace}px`,
      top: `${topSpace}px`,
      width: `${width - leftSpace - rightSpace}px`,
      height: `${plotHeight}px`,
    });
    const height = plotHeight + topSpace + bottomSpace;
    Object.assign(this.#overlay, { width: Math.round(width * scale), height: Math.round(height * scale) });
    Object.assign(this.#overlay.style, { width: `${width}px`, height: `${height}px` });
    this.#frame.style.height = `${height}px`;
  }

  #drawImage(): void {
    const { model } = this;
    const { range } = this.#state;
    const { from, to } = this.offsets;
    const raster = this.#raster;
    const view = { fromTime: range.from, toTime: range.to, fromOffset: from, toOffset: to };
    raster.draw(view, model.mapSpans, model.mapBlocks);
    const { width, height, pixels } = raster;
    const colors = areaColors();
    const out = new Uint32Array(this.#pixels.data.buffer);
    const styles = model.mapStyles(this.#grouping);
    // Nothing is known past the end of the log.
    const known = Math.ceil(((model.run.durationNanoseconds - range.from) / (range.to - range.from)) * width);
    const { tiles, reserved, empty, border } = colors;
    for (let row = 0, at = 0; row < height; row++) {
      const textureRow = (row & 7) << 3;
      let last = emptyPixel;
      let tile = 0;
      for (let column = 0; column < width; column++, at++) {
        const span = pixels[at] as number;
        if (span < 0 || column >= known) {
          out[at] = span === reservedPixel && column < known ? reserved : empty;
          last = emptyPixel;
          continue;
        }
        // Draw a border if there is room: inside boxes that go on for two more pixels.
        if (
          (last !== span && last !== emptyPixel && pixels[at + 1] === span && pixels[at + 2] === span) ||
          (row > 0 && pixels[at - width] !== span && pixels[at + width] === span && pixels[at + 2 * width] === span)
        ) {
          out[at] = border;
          last = span;
          tile = ((styles[span] as number) << 6) | textureRow;
          continue;
        }
        if (span !== last) {
          last = span;
          tile = ((styles[span] as number) << 6) | textureRow;
        }
        out[at] = tiles[tile | (column & 7)] as number;
      }
    }
    this.#image.getContext('2d')?.putImageData(this.#pixels, 0, 0);
    this.#isDrawn = true;
  }

  /**
   * Draws the axes, the removed gaps, names, and marks around the hovered and focused allocations.
   */
  #drawOverlay(): void {
    const context = this.#overlay.getContext('2d');
    if (context === null) return;
    const width = this.#width;
    const plotWidth = width - leftSpace - rightSpace;
    context.setTransform(this.#scale, 0, 0, this.#scale, 0, 0);
    context.clearRect(0, 0, width, plotHeight + topSpace + bottomSpace);
    this.#drawAxes(context, plotWidth);
    this.#drawNames(context);
    context.save();
    context.beginPath();
    context.rect(leftSpace - 2, 0, plotWidth + 4, plotHeight + topSpace + 2);
    context.clip();
    for (const [span, color] of [
      [this.#hovered, '--text'],
      [this.#focused, '--accent'],
    ] as const) {
      if (span === undefined) continue;
      const { left, right, top, bottom } = this.#boxOf(span);
      context.lineWidth = 5;
      context.strokeStyle = resolveColor('--background');
      context.strokeRect(left - 1.5, top - 1.5, Math.max(3, right - left + 3), Math.max(3, bottom - top + 3));
      context.lineWidth = 2;
      context.strokeStyle = resolveColor(color);
      context.strokeRect(left - 1.5, top - 1.5, Math.max(3, right - left + 3), Math.max(3, bottom - top + 3));
    }
    if (this.#drag !== undefined) {
      const { left, right, top, bottom } = this.#dragBox(this.#drag);
      context.fillStyle = resolveColor('--accent');
      context.globalAlpha = 0.2;
      context.fillRect(left, top, right - left, bottom - top);
      context.globalAlpha = 1;
      context.strokeStyle = resolveColor('--accent');
      context.lineWidth = 1;
      context.strokeRect(left, top, right - left, bottom - top);
    }
    context.restore();
  }

  #drawAxes(context: CanvasRenderingContext2D, plotWidth: number): void {
    const { range, extent } = this.#state;
    const { from, to } = this.offsets;
    const { layout } = this.model;
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = resolveColor('--muted');
    context.strokeStyle = resolveColor('--border');
    context.lineWidth = 1;
    context.strokeRect(leftSpace - 0.5, topSpace - 0.5, plotWidth + 1, plotHeight + 1);
    context.textAlign = 'center';
    context.textBaseline = 'top';
    const length = range.to - range.from;
    for (const time of ticks(range.from, range.to, plotWidth / 90)) {
      const x = leftSpace + ((time - range.from) / length) * plotWidth;
      context.fillText(formatTime(time, extent.to, length), x, topSpace + plotHeight + 8);
      context.fillRect(x, topSpace + plotHeight, 1, 5);
    }
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.font = '10px ui-monospace, monospace';
    const yOf = (offset: number) => topSpace + plotHeight - ((offset - from) / (to - from)) * plotHeight;
    const labels: number[] = [];
    const label = (text: string, offset: number) => {
      const y = yOf(offset);
      if (y > topSpace + plotHeight || y < topSpace || labels.some((other) => Math.abs(other - y) < 15)) return;
      labels.push(y);
      context.fillText(text, leftSpace - 5, Math.min(Math.max(y, topSpace + 6), topSpace + plotHeight - 6));
    };
    const lines: number[] = [];
    // The starts of segments get labels first.
    for (const { start, end, offset } of layout.segments) {
      if (offset >= to || offset + end - start <= from) continue;
      const y = Math.round(yOf(offset)) + 0.5;
      // There may be thousands, more than fit.
      if (labels.length === 0 || (labels.at(-1) as number) - y >= 15) label(start.toString(16), offset);
      if (offset > from && (lines.at(-1) ?? Number.POSITIVE_INFINITY) - y >= 4) lines.push(y);
    }
    for (const { start, end, offset } of layout.segments) {
      const low = Math.max(from, offset) - offset;
      const high = Math.min(to - offset, end - start);
      const rows = ((high - low) / (to - from)) * plotHeight;
      if (rows < 30) continue;
      for (const distance of ticks(low, high, rows / 60, 2)) if (distance > 0) label(`+${formatBytes(distance)}`, offset + distance);
    }
    context.strokeStyle = resolveColor('--text');
    context.setLineDash([1, 3]);
    context.beginPath();
    for (const y of lines) {
      context.moveTo(leftSpace - 4, y);
      context.lineTo(leftSpace + plotWidth, y);
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** Draws the labels and sizes of allocations that have room for them. */
  #drawNames(context: CanvasRenderingContext2D): void {
    const { run, mask } = this.model;
    const { pixels, width, height } = this.#raster;
    const scale = this.#scale;
    context.font = '11px system-ui, sans-serif';
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    const named = new Set<number>();
    // An allocation with room for a name covers a point of a grid as wide as the shortest name.
    const stepX = Math.round(30 * scale);
    const stepY = Math.round(7 * scale);
    for (let row = stepY; row < height && named.size < mostLabels; row += stepY) {
      for (let column = stepX >> 1; column < width && named.size < mostLabels; column += stepX) {
        const span = pixels[row * width + column] as number;
        if (span < 0 || named.has(span) || mask[span] !== 1) continue;
        const { left, right, top, bottom } = this.#boxOf(span);
        if (right - left < 46 || bottom - top < 14) continue;
        named.add(span);
        const label = run.labels[run.spans.labelOf[span] as number] ?? '';
        const size = formatBytes(run.spans.bytes[span] as number);
        const isFitting = (each: string) => each !== '' && context.measureText(each).width < right - left - 10;
        const text = (label === '' ? [size] : [`${label}, ${size}`, label, size]).find(isFitting);
        if (text === undefined) continue;
        context.globalAlpha = 0.85;
        context.fillStyle = resolveColor('--background');
        context.fillRect(left + 3, (top + bottom) / 2 - 7, context.measureText(text).width + 6, 14);
        context.globalAlpha = 1;
        context.fillStyle = resolveColor('--text');
        context.fillText(text, left + 6, (top + bottom) / 2);
      }
    }
  }

  /** The box of an allocation, in CSS pixels, clipped at the edges. */
  #boxOf(span: number): { left: number; right: number; top: number; bottom: number } {
    const { run, layout } = this.model;
    const { range } = this.#state;
    const { from, to } = this.offsets;
    const plotWidth = this.#width - leftSpace - rightSpace;
    const x = (time: number) => leftSpace + Math.min(plotWidth, Math.max(0, ((time - range.from) / (range.to - range.from)) * plotWidth));
    const y = (offset: number) => topSpace + plotHeight - Math.min(plotHeight, Math.max(0, ((offset - from) / (to - from)) * plotHeight));
    const low = layout.offsetOf[run.spans.addressOf[span] as number] as number;
    const isHeld = run.spans.ends[span] === neverEnds;
    return {
      left: x(startTimeOf(run, span)),
      right: x(isHeld ? range.to : endTimeOf(run, span)),
      top: y(low + (run.spans.bytes[span] as number)),
      bottom: y(low),
    };
  }

  #dragBox({ x, y, toX, toY }: { x: number; y: number; toX: number; toY: number }) {
    const isTimeOnly = Math.abs(toY - y) < 10;
    return {
      left: Math.max(leftSpace, Math.min(x, toX)),
      right: Math.min(this.#width - rightSpace, Math.max(x, toX)),
      top: isTimeOnly ? topSpace : Math.max(topSpace, Math.min(y, toY)),
      bottom: isTimeOnly ? topSpace + plotHeight : Math.min(topSpace + plotHeight, Math.max(y, toY)),
    };
  }

  /** The allocation at or near a point of the frame. */
  #spanAt(x: number, y: number): number | undefined {
    const { pixels, width, height } = this.#raster;
    const column = Math.floor((x - leftSpace) * this.#scale);
    const row = Math.floor((y - topSpace) * this.#scale);
    for (const [right, down] of [
      [0, 0],
      [0, 1],
      [0, -1],
      [1, 0],
      [-1, 0],
    ] as const) {
      const [atColumn, atRow] = [column + right, row + down];
      if (atColumn < 0 || atColumn >= width || atRow < 0 || atRow >= height) continue;
      const span = pixels[atRow * width + atColumn] as number;
      if (span >= 0) return span;
    }
    return undefined;
  }

  #timeAt(x: number): number {
    const { range } = this.#state;
    return range.from + ((x - leftSpace) / (this.#width - leftSpace - rightSpace)) * (range.to - range.from);
  }

  #offsetAt(y: number): number {
    const { from, to } = this.offsets;
    return to - ((y - topSpace) / plotHeight) * (to - from);
  }

  #listen(): void {
    const frame = this.#frame;
    frame.addEventListener('pointermove', (event) => {
      const { x, y } = place(event, frame);
      if (this.#drag !== undefined) {
        this.#drag.toX = x;
        this.#drag.toY = y;
      } else {
        const span = this.#isDrawn ? this.#spanAt(x, y) : undefined;
        if (span === this.#hovered) return;
        this.#hovered = span;
        this.#onSpan(span ?? this.#focused, false);
      }
      this.#drawOverlay();
    });
    frame.addEventListener('pointerleave', () => {
      this.#hovered = undefined;
      this.#onSpan(this.#focused, false);
      this.#drawOverlay();
    });
    frame.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      const { x, y } = place(event, frame);
      this.#drag = { x, y, toX: x, toY: y };
      frame.setPointerCapture(event.pointerId);
    });
    frame.addEventListener('pointerup', (event) => {
      const drag = this.#drag;
      this.#drag = undefined;
      if (drag === undefined) return;
      if (Math.hypot(drag.toX - drag.x, drag.toY - drag.y) < 5) {
        const { x, y } = place(event, frame);
        this.#focused = this.#spanAt(x, y);
        this.#onSpan(this.#focused, false);
        this.#drawOverlay();
        return;
      }
      const { left, right, top, bottom } = this.#dragBox(drag);
      const [from, to, low, high] = [this.#timeAt(left), this.#timeAt(right), this.#offsetAt(bottom), this.#offsetAt(top)];
      if (Math.abs(drag.toY - drag.y) >= 10) this.#setOffsets(low, high, false);
      this.#state.select({ from, to });
      this.draw(this.#grouping);
    });
    frame.addEventListener('pointercancel', () => {
      this.#drag = undefined;
      this.#drawOverlay();
    });
    frame.addEventListener('dblclick', () => this.showAll());
    frame.addEventListener(
      'wheel',
      (event) => {
        // Without the focus, the wheel scrolls the page as usual.
        if (document.activeElement !== frame && !event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        const { x, y } = place(event, frame);
        const factor = 1.0015 ** (event.deltaY + event.deltaX);
        if (event.shiftKey) this.zoomAddresses(factor, this.#offsetAt(y));
        else this.#state.zoom(factor, this.#timeAt(x));
      },
      { passive: false },
    );
    frame.addEventListener('keydown', (event) => this.#onKey(event));
    const resizes = new ResizeObserver(() => {
      if (frame.clientWidth > 0 && frame.clientWidth !== this.#width && this.#isDrawn) this.draw(this.#grouping);
    });
    resizes.observe(frame);
    this.#ends.push(
      () => resizes.disconnect(),
      onColorSchemeChange(() => {
        if (this.#isDrawn) this.draw(this.#grouping);
      }),
    );
  }

  #onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const state = this.#state;
    const moves: Readonly<Record<string, () => void>> = {
      ArrowLeft: () => (event.shiftKey ? state.pan(-0.25) : this.#moveFocus('before')),
      ArrowRight: () => (event.shiftKey ? state.pan(0.25) : this.#moveFocus('after')),
      ArrowUp: () => (event.shiftKey ? this.panAddresses(0.25) : this.#moveFocus('above')),
      ArrowDown: () => (event.shiftKey ? this.panAddresses(-0.25) : this.#moveFocus('below')),
      Enter: () => {
        if (this.#focused !== undefined) this.showSpan(this.#focused, true);
      },
      '+': () => state.zoom(0.5, this.#focusedTime()),
      '=': () => state.zoom(0.5, this.#focusedTime()),
      '-': () => state.zoom(2, this.#focusedTime()),
      PageUp: () => this.zoomAddresses(0.5, this.#focusedOffset()),
      PageDown: () => this.zoomAddresses(2, this.#focusedOffset()),
      '0': () => this.showAll(),
      Escape: () => this.showAll(),
    };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    move();
  }

  #focusedTime(): number | undefined {
    const { range } = this.#state;
    const start = this.#focused === undefined ? undefined : startTimeOf(this.model.run, this.#focused);
    return start === undefined || start < range.from || start > range.to ? undefined : start;
  }

  #focusedOffset(): number | undefined {
    if (this.#focused === undefined) return undefined;
    const { run, layout } = this.model;
    return layout.offsetOf[run.spans.addressOf[this.#focused] as number];
  }

  /**
   * Moves to the next allocation: in time by its start, or in address among those live at the same
   * time.
   */
  #moveFocus(direction: 'before' | 'after' | 'above' | 'below'): void {
    const { run, mask, layout } = this.model;
    const { spans } = run;
    const { range } = this.#state;
    const current = this.#focused;
    if (current === undefined) {
      const seen = this.#raster.pixels.find((span) => span >= 0 && mask[span] === 1);
      if (seen !== undefined) this.showSpan(seen, false);
      return;
    }
    if (direction === 'before' || direction === 'after') {
      const step = direction === 'after' ? 1 : -1;
      for (let span = current + step; span >= 0 && span < spans.count; span += step) {
        if (mask[span] !== 1) continue;
        this.showSpan(span, false);
        return;
      }
      return;
    }
    const time = Math.max(range.from, startTimeOf(run, current));
    const { to: change } = this.model.changesIn({ from: time, to: time });
    const own = layout.offsetOf[spans.addressOf[current] as number] as number;
    let best = -1;
    let distance = Number.POSITIVE_INFINITY;
    for (let span = 0; span < spans.count && (spans.starts[span] as number) < change; span++) {
      if (mask[span] !== 1 || (spans.ends[span] as number) < change) continue;
      const offset = layout.offsetOf[spans.addressOf[span] as number] as number;
      const away = direction === 'above' ? offset - own : own - offset;
      if (away > 0 && away < distance) [best, distance] = [span, away];
    }
    if (best >= 0) this.showSpan(best, false);
  }
}

/** The facts about an allocation, as names and texts. */
export function spanFacts(model: RunModel, span: number): [name: string, value: string][] {
  const { run } = model;
  const { spans } = run;
  const isHeld = spans.ends[span] === neverEnds;
  const address = run.addresses[spans.addressOf[span] as number] as number;
  const bytes = spans.bytes[span] as number;
  const time = (nanoseconds: number) => formatTime(nanoseconds, run.durationNanoseconds, run.durationNanoseconds / 1000);
  const stream = run.streams[spans.streamOf[span] as number] ?? '';
  const endStream = run.streams[spans.endStreamOf[span] as number] ?? '';
  const facts: [string, string][] = [
    ['Size', `${formatBytes(bytes)} (${bytes.toLocaleString('en-US')} bytes)`],
    ['Address', `${hexadecimal(address)} – ${hexadecimal(address + bytes)}`],
    ['Allocated', time(startTimeOf(run, span))],
    ['Freed', isHeld ? 'never' : time(endTimeOf(run, span))],
    ['Lifetime', `${formatDuration(lifetimeOf(run, span) / 1e6)}${isHeld ? ' until the log ends' : ''}`],
    ['Stream', endStream === stream ? stream : `${stream}, freed on ${endStream}`],
    ['Thread', run.threads[spans.threadOf[span] as number] ?? ''],
  ];
  const phase = spans.phaseOf[span] as number;
  if (phase > 0) facts.push(['Phase', run.phases[phase]?.name ?? '']);
  const account = spans.accountOf[span] as number;
  if (account > 0) facts.push(['Account', run.accounts[account] ?? '']);
  const label = spans.labelOf[span] as number;
  if (label > 0) facts.push(['Label', run.labels[label] ?? '']);
  return facts;
}

/** An address in the notation of debuggers. */
export function hexadecimal(address: number): string {
  return `0x${address.toString(16)}`;
}

/** About `count` round values between two; `base` 2 gives round byte counts. */
function ticks(from: number, to: number, count: number, base: 2 | 10 = 10): number[] {
  const rough = (to - from) / Math.max(1, count);
  let step: number;
  if (base === 2) step = 2 ** Math.ceil(Math.log2(rough));
  else {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  }
  const found: number[] = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) found.push(value);
  return found;
}

function place(event: MouseEvent, frame: HTMLElement): { x: number; y: number } {
  const box = frame.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}
