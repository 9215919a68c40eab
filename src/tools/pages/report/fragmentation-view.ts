import { Chart } from '../common/chart.js';
import { bytes, formatted, words } from '../common/columns.js';
import { element } from '../common/dom.js';
import { formatBytes, formatShare } from '../common/format.js';
import { lineData } from './memory-view.js';
import type { ReportState, View } from './report-state.js';
import type { FragmentationCurves, RunModel } from './run-model.js';
import { section } from './section.js';
import { dataTable, Folded } from './tables.js';

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
    this.#share = new Chart({
      ...state.timeAxis,
      title: 'External fragmentation: the share of free memory that is not in the largest hole',
      series: [{ label: 'fragmentation', style: 0, isStepped: true }],
      height: 180,
      formatY: formatShare,
    });
    this.#bytes = new Chart({
      ...state.timeAxis,
      title: 'Free bytes between allocations',
      series: [
        { label: 'all holes', style: 1, isStepped: true },
        { label: 'largest hole', style: 2, isStepped: true },
      ],
      height: 180,
      formatY: formatBytes,
    });
    this.#table = new Folded('These values as a table', () => this.#makeTable());
    this.root = section('fragmentation', 'Fragmentation over time', this.#note, this.#share.root, this.#bytes.root, this.#table.root);
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

  #makeTable(): HTMLElement {
    const curves = this.#curves?.curves;
    const { model, range } = this.#state;
    const changeIn = ({ from, to }: { from: number; to: number }) => curves?.share.indexOfMaximum(from, to) ?? -1;
    return dataTable(`The highest fragmentation in each of ${tableRows} parts of the selected time`, model.partsOf(range, tableRows), [
      words('from', ({ start }) => this.#state.formatTime(start)),
      formatted('fragmentation', (part) => curves?.share.values[changeIn(part)], formatShare),
      bytes('all holes then', (part) => curves?.holes.values[changeIn(part)]),
      bytes('largest hole then', (part) => curves?.largestHole.values[changeIn(part)]),
    ]);
  }
}
