import { bytes, count, number, words } from '../common/columns.js';
import { element } from '../common/dom.js';
import type { ReportState, View } from './report-state.js';
import { sectionView } from './section.js';
import { dataTable } from './tables.js';

/** What the CUDA graphs of a log hold, and would hold if their memory was arranged in other ways. */
export function graphsView(state: ReportState): View {
  return sectionView('graphs', 'Graphs', () => {
    const found = state.contents.runs[state.runIndex]?.graphs ?? null;
    if (found === null) return [element('p', { class: 'muted' }, 'This log has no graphs.')];
    const arrangements: [string, number][] = [
      ['A private pool for each graph', found.poolsBytes],
      ['One private pool for all, captured in this order', found.sharedPoolBytes],
      ['Planned, a separate block for each graph', found.plannedApartBytes],
      ['Planned, one region for all', found.plannedBytes],
    ];
    return [
      dataTable('The memory that the graphs hold together, if they never run at the same time', arrangements, [
        words('Memory', ([title]) => title),
        bytes('Bytes', ([, value]) => value),
        number('Over the largest lower bound', ([, value]) =>
          found.lowerBoundBytes === 0 ? '–' : (value / found.lowerBoundBytes).toFixed(3),
        ),
      ]),
      dataTable('Each graph, in the order of capture, with the private pool that PyTorch would have for it', found.graphs, [
        words('Graph', ({ name }) => name),
        count('Allocations', ({ allocationCount }) => allocationCount),
        bytes('Peak live', ({ peakLiveBytes }) => peakLiveBytes),
        bytes('Lower bound', ({ lowerBoundBytes }) => lowerBoundBytes),
        bytes('In a pool', ({ poolBytes }) => poolBytes),
        bytes('Planned', ({ plannedBytes }) => plannedBytes),
      ]),
    ];
  });
}
