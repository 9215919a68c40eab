import { Chart } from '../common/chart.js';
import { element } from '../common/dom.js';
import { formatBytes, formatShare, formatTime } from '../common/format.js';
import { lineData } from './memory-view.js';
import type { ReportState, View } from './report-state.js';
import type { FragmentationCurves, RunModel } from './run-model.js';
import { dataTable, Folded, numberCell } from './tables.js';

const tableRows = 24;

/** How free memory was fragmented. */
export class FragmentationView implements View {
  readonly root: HTMLElement;
  readonly #state: ReportState;
  readonly #note = element('p', { class: 'muted' });
  readonly #share: Chart;
  readonly #bytes: Chart;
  readonly #table: Folded;
  #curves: { readonly model: RunModel; readonly layer: number; readonly curves: FragmentationCurves } | undefined;

  constructor(state: ReportState) {
    this.#state = state;
    const shared = {
      formatX: (seconds: number) => this.#formatTime(seconds * 1e9),
      extent: () => ({ minimum: 0, maximum: state.extent.to / 1e9 }),
      onZoom: (range: { minimum: number; maximum: number } | undefined) =>
        state.select(range && { from: range.minimum * 1e9, to: range.maximum * 1e9 }),
      syncKey: 'time',
    };
    this.#share = new Chart({
      ...shared,
      title: 'External fragmentation: the share of free memory that is not in the largest hole',
      series: [{ label: 'fragmentation', style: 0, isStepped: true }],
      height: 180,
      formatY: formatShare,
    });
    this.#bytes = new Chart({
      ...shared,
      title: 'Free bytes between allocations',
      series: [
        { label: 'all holes', style: 1, isStepped: true },
        { label: 'largest hole', style: 2, isStepped: true },
      ],
      height: 180,
      formatY: formatBytes,
    });
    this.#table = new Folded('These values as a table', () => this.#makeTable());
    this.root = element(
      'section',
      { 'aria-labelledby': 'fragmentation-title' },
      element('h2', { id: 'fragmentation-title' }, 'Fragmentation over time'),
      this.#note,
      this.#share.root,
      this.#bytes.root,
      this.#table.root,
    );
    // A part that is hidden is never updated.
    const hideWithoutBlocks = () => {
      this.root.hidden = state.model.blocks === undefined;
    };
    state.onChange(hideWithoutBlocks);
    hideWithoutBlocks();
  }

  update(): void {
    const { model, range } = this.#state;
    if (model.blocks === undefined) return;
    const { layer } = model.filter;
    if (this.#curves?.model !== model || this.#curves.layer !== layer) {
      this.#note.textContent = 'Finding the holes …';
      void model.fragmentation().then((curves) => {
        if (this.#state.model !== model || model.filter.layer !== layer) return;
        this.#curves = { model, layer, curves };
        this.#note.textContent =
          'Holes are the parts of each reserved block that are not live. All allocations of the layer count, even those that are filtered out.';
        this.update();
      });
      return;
    }
    const { share, holes, largestHole } = this.#curves.curves;
    const columns = Math.max(100, this.root.clientWidth - 100);
    const view = { minimum: range.from / 1e9, maximum: range.to / 1e9 };
    this.#share.showData(lineData([{ label: '', model, curve: share }], range, columns), view);
    const lines = [holes, largestHole].map((curve) => ({ label: '', model, curve }));
    this.#bytes.showData(lineData(lines, range, columns), view);
    this.#table.refresh();
  }

  #formatTime(nanoseconds: number): string {
    const { extent, range } = this.#state;
    return formatTime(nanoseconds, extent.to, range.to - range.from);
  }

  #makeTable(): HTMLElement {
    const { model, range } = this.#state;
    const curves = this.#curves?.curves;
    const rows = Array.from({ length: tableRows }, (_, row): [string, ...ReturnType<typeof numberCell>[]] => {
      const start = range.from + ((range.to - range.from) * row) / tableRows;
      const { from, to } = model.changesIn({ from: start, to: range.from + ((range.to - range.from) * (row + 1)) / tableRows });
      const change = curves?.share.indexOfMaximum(from, to) ?? -1;
      if (curves === undefined || change < 0) return [this.#formatTime(start), numberCell('–'), numberCell('–'), numberCell('–')];
      return [
        this.#formatTime(start),
        numberCell(formatShare(curves.share.values[change] as number)),
        numberCell(formatBytes(curves.holes.values[change] as number)),
        numberCell(formatBytes(curves.largestHole.values[change] as number)),
      ];
    });
    return dataTable(
      `The highest fragmentation in each of ${tableRows} parts of the selected time`,
      [{ text: 'from' }, numberCell('fragmentation'), numberCell('all holes then'), numberCell('largest hole then')],
      rows,
    );
  }
}
