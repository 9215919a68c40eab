import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { lastAtMost } from '../../report/extremes.js';
import { element } from './dom.js';
import { formatBytes } from './format.js';
import { onColorSchemeChange, resolveColor, seriesDash, seriesSwatch, seriesVariable } from './series-style.js';

/** One line of a chart. */
export interface ChartSeries {
  readonly label: string;
  /** Its colour and dash: see `series-style.ts`. */
  readonly style: number;
  /** Whether a value applies until the next one. */
  readonly isStepped?: boolean;
  /** Fills the area below it. */
  readonly fill?: () => string | CanvasPattern;
  /** Its symbol in the legend, if that is not a sample of its line. */
  readonly swatch?: () => Element;
}

/** How to make a chart. */
export interface ChartOptions {
  /** The chart's subject, for its heading and for screen readers. */
  readonly title: string;
  readonly series: readonly ChartSeries[];
  /** In CSS pixels. */
  readonly height: number;
  /** Formats a value of y. */
  readonly formatY: (value: number) => string;
  /** Formats a value of x. */
  readonly formatX: (value: number) => string;
  /** Whether x is in seconds since 1970, so that the axis has ticks at whole minutes and hours. */
  readonly xIsTime?: boolean;
  /** Called when the user changes the visible range. */
  readonly onZoom?: (range: XRange | undefined) => void;
  /** Charts with the same key show their cursors at the same x. */
  readonly syncKey?: string;
  /**
   * Whether the lines are stacked: the last one at the bottom, the first on top. The values at the
   * cursor are not summed.
   */
  readonly isStacked?: boolean;
  /** CSS pixels to leave free above the lines, for `onDraw`. */
  readonly topSpace?: number;
  /** The whole range of x, if the data do not cover it. */
  readonly extent?: () => XRange;
  /** Draws additional marks after the lines. */
  readonly onDraw?: (plot: uPlot) => void;
}

/** A part of the x axis. */
export interface XRange {
  readonly minimum: number;
  readonly maximum: number;
}

/** The values of x, ascending, and those of each series; `null` is a gap. */
export type ChartData = readonly [x: ArrayLike<number>, ...y: ArrayLike<number | null>[]];

const powersOfTwo = Array.from({ length: 50 }, (_, exponent) => 2 ** exponent);
const help = 'Press the left and right arrow keys to read values, plus and minus to zoom, 0 to show everything.';

/**
 * A line chart with a legend that shows the values at the cursor and can hide series. Dragging
 * zooms, a double click shows everything; the keys in `help` do the same. The colours follow the
 * page.
 */
export class Chart {
  /** The element to insert into the page. */
  readonly root: HTMLElement;
  readonly #options: ChartOptions;
  readonly #plot: uPlot;
  readonly #plotPlace: HTMLElement;
  readonly #readouts: HTMLOutputElement[] = [];
  /** Where the cursor is. */
  readonly #position = element('output', { class: 'chart-position' });
  /** Whether each value applies until the next one. */
  readonly #isStepped: boolean;
  /** Where the keys have moved the cursor, until the mouse moves it. */
  #keyX: number | undefined;
  readonly #announcement: HTMLElement;
  readonly #ends: (() => void)[] = [];
  /** The data passed to `setData`. */
  #data: ChartData;
  #zoomed: XRange | undefined;

  constructor(options: ChartOptions) {
    this.#options = options;
    this.#isStepped = options.series.every(({ isStepped }) => isStepped === true);
    this.#data = [[], ...options.series.map(() => [])];
    this.#plotPlace = element('div', {
      class: 'chart-plot',
      tabindex: '0',
      role: 'group',
      'aria-label': `${options.title}: chart. ${help}`,
    });
    this.#announcement = element('p', { class: 'visually-hidden', 'aria-live': 'polite' });
    this.#plot = new uPlot(this.#plotOptions(), [[], ...options.series.map(() => [])], this.#plotPlace);
    this.root = element(
      'section',
      { class: 'chart' },
      element('h3', {}, options.title),
      this.#plotPlace,
      this.#legend(),
      this.#announcement,
    );
    this.#plotPlace.addEventListener('keydown', (event) => this.#onKey(event));
    this.#plotPlace.addEventListener('pointermove', () => {
      this.#keyX = undefined;
    });
    const resizes = new ResizeObserver(() => {
      if (this.#plotPlace.clientWidth > 0) this.#plot.setSize({ width: this.#plotPlace.clientWidth, height: options.height });
    });
    resizes.observe(this.#plotPlace);
    this.#ends.push(
      () => resizes.disconnect(),
      onColorSchemeChange(() => this.#plot.redraw(false)),
    );
  }

  /** The visible range if the user zoomed, else `undefined`. */
  get zoomed(): XRange | undefined {
    return this.#zoomed;
  }

  /** Shows other values. A zoomed range stays. */
  setData(data: ChartData): void {
    this.#data = data;
    this.#plot.setData(this.#drawnData(), this.#zoomed === undefined);
    if (this.#zoomed !== undefined) this.#show(this.#zoomed);
    // uPlot moves to the new range in a microtask of its own, queued above.
    queueMicrotask(() => {
      if (this.#keyX === undefined) this.#readAtCursor();
      else this.#placeCursor(this.#keyX);
    });
  }

  /** Shows other values and another range, without calling `onZoom`. */
  showData(data: ChartData, range: XRange): void {
    this.#zoomed = range;
    this.setData(data);
  }

  /** Draws the same data again. */
  redraw(): void {
    this.#plot.redraw(false);
  }

  /** Shows a range, or everything. */
  zoom(range: XRange | undefined): void {
    this.#zoomed = range;
    if (range === undefined) this.#plot.setData(this.#plot.data, true);
    else this.#show(range);
    this.#options.onZoom?.(range);
  }

  /** Destroys the chart and removes it from the page. */
  destroy(): void {
    for (const end of this.#ends) end();
    this.#plot.destroy();
    this.root.remove();
  }

  #show({ minimum, maximum }: XRange): void {
    this.#plot.setScale('x', { min: minimum, max: maximum });
  }

  /**
   * The data for uPlot: each series or, if stacked, the sum of the shown series from it to the
   * last.
   */
  #drawnData(): uPlot.AlignedData {
    const [x, ...series] = this.#data;
    if (this.#options.isStacked !== true) return this.#data as unknown as uPlot.AlignedData;
    const sums = new Float64Array(x.length);
    const stacked = [...series];
    for (let i = stacked.length - 1; i >= 0; i--) {
      if (this.#plot.series[i + 1]?.show === false) continue;
      const values = series[i] as ArrayLike<number | null>;
      for (let at = 0; at < sums.length; at++) sums[at] = (sums[at] as number) + (values[at] ?? 0);
      stacked[i] = sums.slice();
    }
    return [x, ...stacked] as unknown as uPlot.AlignedData;
  }

  #plotOptions(): uPlot.Options {
    const { series, height, formatX, formatY, xIsTime = false, syncKey, topSpace = 8, onDraw } = this.#options;
    const axis: uPlot.Axis = {
      stroke: () => resolveColor('--muted'),
      grid: { stroke: () => resolveColor('--grid'), width: 1 },
      ticks: { stroke: () => resolveColor('--grid'), width: 1 },
    };
    return {
      width: 600,
      height,
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        bind: {
          dblclick: () => () => {
            this.zoom(undefined);
            return null;
          },
        },
        ...(syncKey === undefined ? {} : { sync: { key: syncKey } }),
      },
      scales: { x: { time: xIsTime }, y: { range: (_, minimum, maximum) => [Math.min(0, minimum ?? 0), maximum ? maximum * 1.05 : 1] } },
      axes: [
        { ...axis, size: 34, space: 80, values: (_, values) => values.map(formatX) },
        {
          ...axis,
          size: 84,
          values: (_, values) => values.map(formatY),
          ...(formatY === formatBytes ? { incrs: powersOfTwo } : {}),
        },
      ],
      series: [
        {},
        ...series.map(({ label, style, isStepped = false, fill }) => ({
          label,
          ...(fill === undefined ? {} : { fill }),
          stroke: () => resolveColor(seriesVariable(style)),
          width: fill === undefined ? 2 : 1,
          dash: fill === undefined ? seriesDash(style) : [],
          points: { show: false },
          ...(isStepped ? { paths: uPlot.paths.stepped?.({ align: 1 }) as uPlot.Series.PathBuilder } : {}),
        })),
      ],
      padding: [topSpace, 16, 0, 0],
      hooks: {
        ...(onDraw === undefined ? {} : { draw: [onDraw] }),
        setCursor: [() => this.#readAtCursor()],
        setSelect: [
          (plot) => {
            const { left, width } = plot.select;
            if (width <= 2) return;
            this.zoom({ minimum: plot.posToVal(left, 'x'), maximum: plot.posToVal(left + width, 'x') });
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    };
  }

  #legend(): HTMLElement {
    const items = this.#options.series.map(({ label, style, swatch }, index) => {
      const readout = element('output');
      this.#readouts.push(readout);
      const button = element('button', { type: 'button', 'aria-pressed': 'true' }, swatch?.() ?? seriesSwatch(style), label, readout);
      button.addEventListener('click', () => {
        const isShown = button.getAttribute('aria-pressed') !== 'true';
        button.setAttribute('aria-pressed', String(isShown));
        this.#plot.setSeries(index + 1, { show: isShown });
        if (this.#options.isStacked === true) this.setData(this.#data);
      });
      return element('li', {}, button);
    });
    return element(
      'ul',
      { class: 'chart-legend', 'aria-label': `${this.#options.title}: lines, and the values at the cursor` },
      ...items,
      element('li', {}, this.#position),
    );
  }

  /** Reads the values at the cursor or, if there is none, the last ones. */
  #readAtCursor(): void {
    const { left = -1 } = this.#plot.cursor;
    if (left < 0) this.#readOut(this.#data[0].length - 1, undefined);
    else {
      const x = this.#plot.posToVal(left, 'x');
      this.#readOut(this.#indexAt(x), x);
    }
  }

  /** The index of the values that are drawn at an x. */
  #indexAt(x: number): number {
    return this.#isStepped ? lastAtMost(this.#data[0], x) : this.#plot.valToIdx(x);
  }

  #placeCursor(x: number): void {
    this.#keyX = x;
    this.#plot.setCursor({ left: this.#plot.valToPos(x, 'x'), top: 0 });
    this.#readOut(this.#indexAt(x), x);
  }

  /** Shows the values at an index, and an x beside them. */
  #readOut(index: number, x: number | undefined): void {
    this.#position.textContent = x === undefined ? '' : this.#options.formatX(x);
    for (const [i, readout] of this.#readouts.entries()) {
      const value = this.#data[i + 1]?.[index];
      readout.textContent = typeof value === 'number' ? this.#options.formatY(value) : '–';
    }
  }

  #onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const x = this.#plot.data[0];
    if (x.length === 0) return;
    const { min = x[0], max = x.at(-1) } = this.#plot.scales['x'] ?? {};
    const [minimum, maximum] = [min as number, max as number];
    const first = this.#plot.valToIdx(minimum);
    const last = this.#plot.valToIdx(maximum);
    const current = this.#keyX === undefined ? (this.#plot.cursor.idx ?? last) : this.#indexAt(this.#keyX);
    const center = x[Math.min(Math.max(current, first), last)] as number;
    const moves: Readonly<Record<string, () => void>> = {
      ArrowLeft: () => this.#moveTo(Math.max(first, current - (event.shiftKey ? 10 : 1))),
      ArrowRight: () => this.#moveTo(Math.min(last, current + (event.shiftKey ? 10 : 1))),
      Home: () => this.#moveTo(first),
      End: () => this.#moveTo(last),
      '+': () => this.zoom({ minimum: center - (center - minimum) / 2, maximum: center + (maximum - center) / 2 }),
      '-': () => this.#zoomOut(center, minimum, maximum),
      '0': () => this.zoom(undefined),
      Escape: () => this.zoom(undefined),
    };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    move();
  }

  #zoomOut(center: number, minimum: number, maximum: number): void {
    const x = this.#plot.data[0];
    const extent = this.#options.extent?.() ?? { minimum: x[0] as number, maximum: x.at(-1) as number };
    const range = {
      minimum: Math.max(extent.minimum, center - 2 * (center - minimum)),
      maximum: Math.min(extent.maximum, center + 2 * (maximum - center)),
    };
    this.zoom(range.minimum <= extent.minimum && range.maximum >= extent.maximum ? undefined : range);
  }

  #moveTo(index: number): void {
    const { formatX, formatY, series } = this.#options;
    const x = this.#plot.data[0][index] as number;
    this.#placeCursor(x);
    const values = series.map(({ label }, i) => {
      const value = this.#data[i + 1]?.[index];
      return `${label} ${typeof value === 'number' ? formatY(value) : 'no value'}`;
    });
    this.#announcement.textContent = `${formatX(x)}: ${values.join(', ')}`;
  }
}
