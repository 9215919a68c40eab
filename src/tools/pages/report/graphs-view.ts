import { element } from '../common/dom.js';
import { formatBytes, formatCount } from '../common/format.js';
import type { ReportState, View } from './report-state.js';
import { type Cell, dataTable, numberCell } from './tables.js';

/** What the CUDA graphs of a log hold, and would hold if their memory was arranged in other ways. */
export class GraphsView implements View {
  readonly root: HTMLElement;
  readonly isPatient = true;
  readonly #state: ReportState;
  readonly #place = element('div');

  constructor(state: ReportState) {
    this.#state = state;
    this.root = element('section', { 'aria-labelledby': 'graphs-title' }, element('h2', { id: 'graphs-title' }, 'Graphs'), this.#place);
  }

  update(): void {
    const { contents, runIndex } = this.#state;
    const found = contents.runs[runIndex]?.graphs ?? null;
    if (found === null) {
      this.#place.replaceChildren(element('p', { class: 'muted' }, 'This log has no graphs.'));
      return;
    }
    const bytes = (value: number) => numberCell(formatBytes(value));
    const arrangements: [string, number][] = [
      ['A private pool for each graph', found.poolsBytes],
      ['One private pool for all, captured in this order', found.sharedPoolBytes],
      ['Planned, a separate block for each graph', found.plannedApartBytes],
      ['Planned, one region for all', found.plannedBytes],
    ];
    this.#place.replaceChildren(
      dataTable(
        'The memory that the graphs hold together, if they never run at the same time',
        [{ text: 'Memory' }, numberCell('Bytes'), numberCell('Over the largest lower bound')],
        arrangements.map(([title, value]): [string, ...Cell[]] => [
          title,
          bytes(value),
          numberCell(found.lowerBoundBytes === 0 ? '–' : (value / found.lowerBoundBytes).toFixed(3)),
        ]),
      ),
      dataTable(
        'Each graph, in the order of capture, with the private pool that PyTorch would have for it',
        [
          { text: 'Graph' },
          numberCell('Allocations'),
          numberCell('Peak live'),
          numberCell('Lower bound'),
          numberCell('In a pool'),
          numberCell('Planned'),
        ],
        found.graphs.map(({ name, allocationCount, peakLiveBytes, lowerBoundBytes, poolBytes, plannedBytes }): [string, ...Cell[]] => [
          name,
          numberCell(formatCount(allocationCount)),
          bytes(peakLiveBytes),
          bytes(lowerBoundBytes),
          bytes(poolBytes),
          bytes(plannedBytes),
        ]),
      ),
    );
  }
}
