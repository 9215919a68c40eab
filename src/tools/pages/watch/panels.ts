import type { LayerSample, ResourceSample, StatisticsSample } from '../../watch/statistics-sample.js';
import { Chart, type ChartData, type ChartOptions } from '../common/chart.js';
import { element } from '../common/dom.js';
import { formatBytes, formatRate, formatTimeOfDay } from '../common/format.js';
import { rates } from './history.js';

const chartHeight = 220;
/** This many resources are unfolded initially. */
const openPanels = 6;

function timeChart(title: string, formatY: ChartOptions['formatY'], labels: readonly string[]): Chart {
  return new Chart({
    title,
    formatY,
    formatX: (seconds) => formatTimeOfDay(1000 * seconds),
    xIsTime: true,
    height: chartHeight,
    series: labels.map((label, style) => ({ label, style, isStepped: formatY === formatBytes })),
    syncKey: 'time',
  });
}

function times(samples: readonly StatisticsSample[]): number[] {
  return samples.map(({ timeMilliseconds }) => timeMilliseconds / 1000);
}

/** The charts of one resource. */
class ResourcePanel {
  readonly root: HTMLDetailsElement;
  readonly #name: string;
  readonly #memory: Chart;
  readonly #events: Chart;
  readonly #note = element('span', { class: 'muted' });

  constructor(name: string, isOpen: boolean) {
    this.#name = name;
    this.#memory = timeChart(`${name}: bytes`, formatBytes, ['live', 'peak', 'reserved', 'free']);
    this.#events = timeChart(`${name}: events per second`, formatRate, ['allocations', 'frees', 'failed allocations']);
    this.root = element(
      'details',
      { class: 'resource' },
      element('summary', {}, element('h2', {}, name), ' ', this.#note),
      element('div', { class: 'charts' }, this.#memory.root, this.#events.root),
    );
    this.root.open = isOpen;
  }

  show(samples: readonly StatisticsSample[]): void {
    const mine = samples.map(({ resources }) => resources.find(({ name }) => name === this.#name));
    const held = samples.map(({ layers }, i) => outermostLayer(mine[i], layers));
    const latest = mine.at(-1);
    this.#note.textContent = latest === undefined ? 'disposed or collected' : `${formatBytes(latest.liveBytes)} live`;
    if (!this.root.open) return;
    this.#memory.setData([
      times(samples),
      mine.map((resource) => resource?.liveBytes ?? null),
      mine.map((resource) => resource?.peakBytes ?? null),
      held.map((layer) => layer?.reservedBytes ?? null),
      held.map((layer) => layer?.pool?.freeBytes ?? null),
    ]);
    const count = (of: (resource: ResourceSample) => number) =>
      rates(samples, ({ resources }) => {
        const resource = resources.find(({ name }) => name === this.#name);
        return resource === undefined ? null : of(resource);
      });
    const data: ChartData = [
      times(samples),
      count(({ allocations }) => allocations),
      count(({ frees }) => frees),
      count(({ failedAllocations }) => failedAllocations),
    ];
    this.#events.setData(data);
  }

  destroy(): void {
    this.#memory.destroy();
    this.#events.destroy();
    this.root.remove();
  }
}

/**
 * The layer nearest to the resource that holds memory. What it holds is counted again by the layers
 * below it.
 */
function outermostLayer(resource: ResourceSample | undefined, layers: readonly LayerSample[]): LayerSample | undefined {
  return resource && layers.find(({ name }) => name === resource.layers[0]);
}

/** A panel for each resource in any visible sample. */
export class ResourcePanels {
  readonly #place: HTMLElement;
  readonly #panels = new Map<string, ResourcePanel>();
  #samples: readonly StatisticsSample[] = [];

  constructor(place: HTMLElement) {
    this.#place = place;
  }

  show(samples: readonly StatisticsSample[]): void {
    this.#samples = samples;
    const names = new Set(samples.flatMap(({ resources }) => resources.map(({ name }) => name)));
    for (const [name, panel] of this.#panels) {
      if (names.has(name)) continue;
      panel.destroy();
      this.#panels.delete(name);
    }
    for (const name of names) {
      let panel = this.#panels.get(name);
      if (panel === undefined) {
        panel = new ResourcePanel(name, this.#panels.size < openPanels);
        this.#panels.set(name, panel);
        this.#place.append(panel.root);
        panel.root.addEventListener('toggle', () => this.show(this.#samples));
      }
      panel.show(samples);
    }
  }
}

/** So many lines are drawn, those that were highest. */
const drawnLines = 6;

/** The bytes of one line of a chart. */
interface NamedBytes {
  readonly name: string;
  readonly bytes: number;
}

/** A chart of bytes with a line for each name that a sample has; hidden while there is none. */
export class BytesByName {
  readonly #section: HTMLElement;
  readonly #place: HTMLElement;
  readonly #title: string;
  readonly #read: (sample: StatisticsSample) => readonly NamedBytes[];
  #chart: Chart | undefined;
  #names: readonly string[] = [];

  constructor(section: HTMLElement, place: HTMLElement, title: string, read: (sample: StatisticsSample) => readonly NamedBytes[]) {
    this.#section = section;
    this.#place = place;
    this.#title = title;
    this.#read = read;
  }

  show(samples: readonly StatisticsSample[]): void {
    const lines = samples.map(this.#read);
    const most = new Map<string, number>();
    for (const { name, bytes } of lines.flat()) most.set(name, Math.max(most.get(name) ?? 0, bytes));
    const names = [...most]
      .sort(([, one], [, other]) => other - one)
      .slice(0, drawnLines)
      .map(([name]) => name)
      .sort();
    this.#section.hidden = names.length === 0;
    if (names.length === 0) return;
    if (this.#chart === undefined || names.join('\n') !== this.#names.join('\n')) {
      this.#chart?.destroy();
      this.#chart = timeChart(this.#title, formatBytes, names);
      this.#names = names;
      this.#place.replaceChildren(this.#chart.root);
    }
    const bytesOf = (name: string) => lines.map((line) => line.find((each) => each.name === name)?.bytes ?? 0);
    this.#chart.setData([times(samples), ...names.map(bytesOf)]);
  }
}

/** The driver calls that have a line: its name, and the functions that it counts. */
const drawnCalls: ReadonlyMap<string, RegExp> = new Map([
  ['allocations', /^cuMem(Host)?Alloc/],
  ['frees', /^cuMemFree/],
  ['event records', /^cuEventRecord/],
  ['event waits', /^cuStreamWaitEvent/],
  ['synchronizations', /^cu(Stream|Event|Ctx)Synchronize/],
]);

/** The memory of the devices, and the calls of the driver. */
export class DevicePanel {
  readonly #section: HTMLElement;
  readonly #charts: HTMLElement;
  readonly #memory = new Map<number, Chart>();
  readonly #calls: Chart;

  constructor(section: HTMLElement, charts: HTMLElement) {
    this.#section = section;
    this.#charts = charts;
    this.#calls = timeChart('Driver calls per second', formatRate, [...drawnCalls.keys()]);
    charts.append(this.#calls.root);
  }

  show(samples: readonly StatisticsSample[]): void {
    const latest = samples.at(-1);
    this.#section.hidden = latest === undefined || latest.devices.length === 0;
    if (latest === undefined) return;
    for (const { index, name } of latest.devices) {
      let chart = this.#memory.get(index);
      if (chart === undefined) {
        chart = timeChart(`Device ${index}, ${name}: bytes`, formatBytes, ['in use', 'all']);
        this.#memory.set(index, chart);
        this.#charts.prepend(chart.root);
      }
      const device = samples.map(({ devices }) => devices.find((candidate) => candidate.index === index));
      chart.setData([
        times(samples),
        device.map((sample) => (sample === undefined ? null : sample.totalBytes - sample.freeBytes)),
        device.map((sample) => sample?.totalBytes ?? null),
      ]);
    }
    const calls = [...drawnCalls.values()].map((pattern) => rates(samples, (sample) => callsOf(sample, pattern)));
    this.#calls.setData([times(samples), ...calls]);
  }
}

function callsOf({ driverCalls }: StatisticsSample, pattern: RegExp): number {
  return Object.entries(driverCalls).reduce((sum, [name, count]) => (pattern.test(name) ? sum + count : sum), 0);
}
