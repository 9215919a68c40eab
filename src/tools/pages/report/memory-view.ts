import type uPlot from 'uplot';
import { drawnChanges, type Extremes } from '../../report/extremes.js';
import { type Grouping, phasesWithin } from '../../report/held-bytes.js';
import { type PhaseInterval, phaseIntervals } from '../../report/phase-intervals.js';
import { Chart, type ChartData, type ChartSeries } from '../common/chart.js';
import { bytes, words } from '../common/columns.js';
import { element } from '../common/dom.js';
import { formatBytes, formatCount } from '../common/format.js';
import { resolveColor } from '../common/series-style.js';
import { groupings } from './groupings.js';
import type { ReportState, View } from './report-state.js';
import type { RunModel, TimeRange } from './run-model.js';
import { sectionWithChoices } from './section.js';
import { dataTable, Folded, labelledSelect } from './tables.js';
import { areaPattern, areaSwatch } from './textures.js';

type Shown = 'total' | 'layer' | Grouping;

const shownOptions: readonly (readonly [Shown, string])[] = [
  ['total', 'live and reserved'],
  ...groupings.map(([grouping, name]) => [grouping, `live, by ${name}`] as const),
  ['layer', 'every layer'],
];

const stripHeight = 16;
const mostPhaseDepths = 3;
/** At most this many lines are shown, so that they stay distinguishable. */
const mostLines = 6;
const tableRows = 24;

/** A line of a chart that is not stacked. */
interface Line {
  readonly label: string;
  readonly model: RunModel;
  readonly curve: Extremes;
}

/** Live and reserved bytes over time. */
export class MemoryView implements View {
  readonly root: HTMLElement;
  readonly #state: ReportState;
  readonly #place = element('div');
  readonly #legend = element('p', { class: 'muted marks' });
  readonly #table: Folded;
  #shown: Shown = 'total';
  #chart: Chart | undefined;
  #lines: readonly Line[] = [];
  #phases: readonly PhaseInterval[] = [];
  #phaseDepths = 0;

  constructor(state: ReportState) {
    this.#state = state;
    const { root, select } = labelledSelect('Show', shownOptions, (value) => {
      this.#shown = value as Shown;
      this.update(true);
    });
    select.id = 'memory-shown';
    // Whoever uses accounts asks whose memory it was. A comparison has its lines in the other picture.
    if (state.model.run.accounts.length > 1 && state.compared === undefined) this.#shown = 'account';
    select.value = this.#shown;
    this.#table = new Folded('These values as a table', () => this.#makeTable());
    this.root = sectionWithChoices('memory', 'Memory over time', [root], this.#place, this.#legend, this.#table.root);
  }

  update(data: boolean): void {
    if (data || this.#chart === undefined) this.#makeChart();
    const { range } = this.#state;
    this.#chart?.showData(this.#chartData(range), { minimum: range.from / 1e9, maximum: range.to / 1e9 });
    this.#table.refresh();
  }

  #makeChart(): void {
    const { model } = this.#state;
    this.#phases = phaseIntervals(model.run);
    this.#phaseDepths = Math.min(
      mostPhaseDepths,
      this.#phases.reduce((most, { depth }) => Math.max(most, depth + 1), 0),
    );
    const shown = this.#shown;
    const isStacked = shown !== 'total' && shown !== 'layer';
    let series: ChartSeries[];
    if (isStacked) {
      this.#lines = [];
      series = model
        .groups(shown)
        .names.map((label, style) => ({
          label,
          style,
          isStepped: true,
          fill: () => areaPattern(style),
          swatch: () => areaSwatch(style),
        }))
        .reverse();
    } else {
      this.#lines = shown === 'total' ? this.#totalLines() : this.#layerLines();
      series = this.#lines.map(({ label }, style) => ({ label, style, isStepped: true }));
    }
    this.#chart?.destroy();
    this.#chart = new Chart({
      title: isStacked ? `Live bytes by ${new Map(groupings).get(shown)}` : 'Live and reserved bytes',
      series,
      height: 300 + stripHeight * this.#phaseDepths,
      formatY: formatBytes,
      ...this.#state.timeAxis,
      isStacked,
      topSpace: 12 + stripHeight * this.#phaseDepths,
      onDraw: (plot) => this.#drawMarks(plot),
    });
    this.#place.replaceChildren(this.#chart.root);
  }

  #totalLines(): Line[] {
    const { model, compared, contents, runIndex } = this.#state;
    const lines: Line[] = [];
    const add = (of: RunModel, suffix: string) => {
      lines.push({ label: `live${suffix}`, model: of, curve: of.live });
      if (of.reserved !== undefined) lines.push({ label: `reserved${suffix}`, model: of, curve: of.reserved });
    };
    const nameOf = (index: number) => `, ${index + 1}: ${shortName(contents.runs[index]?.source ?? '')}`;
    add(model, compared === undefined ? '' : nameOf(runIndex));
    if (compared !== undefined) add(compared.model, nameOf(compared.index));
    return lines;
  }

  #layerLines(): Line[] {
    const { model } = this.#state;
    const lines = model.run.layers.flatMap(({ name }, layer) => {
      const live = model.liveOf(layer);
      const hasAllocations = live.values.some((bytes) => bytes > 0);
      return hasAllocations ? [{ label: `${name}: live`, model, curve: live }] : [];
    });
    const reserved = model.reserved;
    if (reserved !== undefined) lines.push({ label: 'reserved', model, curve: reserved });
    return lines.slice(0, mostLines);
  }

  #chartData(range: TimeRange): ChartData {
    const columns = Math.max(100, Math.round((this.#place.clientWidth - 100) * Math.min(2, devicePixelRatio)));
    const shown = this.#shown;
    const { model } = this.#state;
    if (shown === 'total' || shown === 'layer') return lineData(this.#lines, range, columns);
    const changes = drawnChanges(model.run.times, [model.live], range, columns);
    const groups = model.grouped(shown).after(changes);
    const x = Array.from(changes, (change) => (model.run.times[change] as number) / 1e9);
    if (changes.length > 0) x.push(Math.min(range.to, model.run.durationNanoseconds) / 1e9);
    return [x, ...groups.map((values) => [...values, ...values.slice(-1)]).reverse()];
  }

  /**
   * Draws phases above the lines, and marks for failures and pool growth, at most one per column of
   * pixels.
   */
  #drawMarks(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const { model, range } = this.#state;
    const scale = devicePixelRatio;
    const xOf = (nanoseconds: number) => plot.valToPos(nanoseconds / 1e9, 'x', true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    this.#drawPhases(ctx, bbox, range, xOf);

    const { run, filter } = model;
    const within = filter.phase === undefined ? undefined : phasesWithin(run, filter.phase);
    let failureCount = 0;
    let last = -1;
    ctx.strokeStyle = resolveColor('--bad');
    ctx.fillStyle = resolveColor('--bad');
    ctx.lineWidth = 1.5 * scale;
    ctx.setLineDash([2 * scale, 3 * scale]);
    for (let failure = 0; failure < run.failures.count; failure++) {
      const time = run.failures.times[failure] as number;
      if (run.failures.layerOf[failure] !== filter.layer || time < range.from || time > range.to) continue;
      if (filter.stream !== undefined && run.failures.streamOf[failure] !== filter.stream) continue;
      if (within !== undefined && within[run.failures.phaseOf[failure] as number] !== 1) continue;
      failureCount++;
      const x = Math.round(xOf(time));
      if (x === last) continue;
      last = x;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = `bold ${12 * scale}px system-ui, sans-serif`;
      ctx.textAlign = 'center';
      ctx.fillText('✕', x, bbox.top + 10 * scale);
    }
    ctx.setLineDash([]);
    ctx.fillStyle = resolveColor('--text');
    let growthCount = 0;
    last = -10;
    for (const change of model.growth) {
      const time = run.times[change] as number;
      if (time < range.from || time > range.to) continue;
      growthCount++;
      const x = xOf(time);
      if (x - last < 3 * scale) continue;
      last = x;
      const y = bbox.top + bbox.height;
      ctx.beginPath();
      ctx.moveTo(x - 4 * scale, y);
      ctx.lineTo(x + 4 * scale, y);
      ctx.lineTo(x, y - 8 * scale);
      ctx.fill();
    }
    ctx.restore();
    const marks = [];
    if (failureCount > 0) marks.push(`✕ ${formatCount(failureCount)} failed ${failureCount === 1 ? 'allocation' : 'allocations'}`);
    if (growthCount > 0) marks.push(`▲ the pool grew ${growthCount === 1 ? 'once' : `${formatCount(growthCount)} times`}`);
    const text = marks.join('   ');
    if (this.#legend.textContent !== text) this.#legend.textContent = text;
  }

  #drawPhases(ctx: CanvasRenderingContext2D, bbox: uPlot.BBox, range: TimeRange, xOf: (nanoseconds: number) => number): void {
    const scale = devicePixelRatio;
    const { phases } = this.#state.model.run;
    const reached = new Float64Array(mostPhaseDepths).fill(-1);
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    for (const { phase, depth, from, to } of this.#phases) {
      if (depth >= mostPhaseDepths || to < range.from || from > range.to) continue;
      const left = Math.max(bbox.left, xOf(from));
      const right = Math.min(bbox.left + bbox.width, xOf(to));
      if (right <= (reached[depth] as number)) continue;
      reached[depth] = Math.max(right, left + scale);
      const y = (4 + stripHeight * depth) * scale;
      const width = Math.max(scale, right - left - scale);
      ctx.fillStyle = resolveColor('--phase');
      ctx.fillRect(left, y, width, (stripHeight - 2) * scale);
      if (width < 24 * scale) continue;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, y, width - 3 * scale, stripHeight * scale);
      ctx.clip();
      ctx.fillStyle = resolveColor('--text');
      ctx.fillText(phases[phase]?.name ?? '', left + 4 * scale, y + (stripHeight / 2 - 0.5) * scale);
      ctx.restore();
    }
  }

  #makeTable(): HTMLElement {
    const { model, range } = this.#state;
    const { live, reserved } = model;
    return dataTable(`Live and reserved bytes in each of ${tableRows} parts of the selected time`, model.partsOf(range, tableRows), [
      words('from', ({ start }) => this.#state.formatTime(start)),
      bytes('maximum live', ({ from, to }) => live.values[live.indexOfMaximum(from, to)]),
      bytes('minimum live', ({ from, to }) => live.values[live.indexOfMinimum(from, to)]),
      bytes('maximum reserved', ({ from, to }) => reserved?.values[reserved.indexOfMaximum(from, to)]),
    ]);
  }
}

/** The last part of a path. */
export function shortName(source: string): string {
  return source.slice(Math.max(source.lastIndexOf('/'), source.lastIndexOf('\\')) + 1);
}

/** The values of lines, from one run or several, at the times that must be drawn. */
export function lineData(lines: readonly Line[], range: TimeRange, columns: number): ChartData {
  const models = [...new Set(lines.map(({ model }) => model))];
  const drawn = models.map((model) => {
    const curves = lines.filter((line) => line.model === model).map(({ curve }) => curve);
    return drawnChanges(model.run.times, curves, range, columns);
  });
  const places = models.map(() => -1);
  const x: number[] = [];
  const y: (number | null)[][] = lines.map(() => []);
  const push = (time: number) => {
    x.push(time / 1e9);
    for (const [i, { model, curve }] of lines.entries()) {
      const run = models.indexOf(model);
      const change = drawn[run]?.[places[run] as number];
      const hasEnded = time > model.run.durationNanoseconds;
      (y[i] as (number | null)[]).push(change === undefined || hasEnded ? null : (curve.values[change] as number));
    }
  };
  for (;;) {
    let next = -1;
    let time = Number.POSITIVE_INFINITY;
    for (const [run, changes] of drawn.entries()) {
      const change = changes[(places[run] as number) + 1];
      const at = change === undefined ? Number.POSITIVE_INFINITY : (models[run]?.run.times[change] as number);
      if (at < time) [next, time] = [run, at];
    }
    if (next < 0) break;
    places[next] = (places[next] as number) + 1;
    push(time);
  }
  if (x.length > 0) push(range.to);
  return [x, ...y];
}
