import type { RunOverview } from '../../report/report-contents.js';
import { element } from '../common/dom.js';
import { formatBytes, formatCount, formatShare, formatTime } from '../common/format.js';
import { shortName } from './memory-view.js';
import type { ReportState, View } from './report-state.js';
import { type Cell, dataTable, numberCell } from './tables.js';

type Summary = RunOverview['layers'][number];

const orNothing = (bytes: number | null) => (bytes === null ? '–' : formatBytes(bytes));

const rows: readonly (readonly [title: string, textOf: (run: RunOverview, summary: Summary) => string])[] = [
  ['Events', (run) => formatCount(run.eventCount)],
  ['Duration', (run) => formatTime(run.durationNanoseconds, run.durationNanoseconds)],
  ['Layer', (_, { name }) => name],
  ['Peak live', (_, { peakLiveBytes }) => formatBytes(peakLiveBytes)],
  ['Peak live at', (run, { peakLiveAt }) => formatTime(peakLiveAt, run.durationNanoseconds)],
  ['Peak reserved', (_, { peakReservedBytes }) => orNothing(peakReservedBytes)],
  [
    'Reserved over live',
    (_, { peakReservedBytes, peakLiveBytes }) =>
      peakReservedBytes === null || peakLiveBytes === 0 ? '–' : (peakReservedBytes / peakLiveBytes).toFixed(3),
  ],
  [
    'Fragmentation at the peak',
    (_, { fragmentationAtPeak, peakReservedBytes }) => (peakReservedBytes === null ? '–' : formatShare(fragmentationAtPeak)),
  ],
  [
    'Largest hole at the peak',
    (_, { largestHoleAtPeak, peakReservedBytes }) => orNothing(peakReservedBytes === null ? null : largestHoleAtPeak),
  ],
  ['Allocations', (_, { allocationCount }) => formatCount(allocationCount)],
  ['Failed', (_, { failureCount }) => formatCount(failureCount)],
  ['Never freed', (_, { neverFreedCount, neverFreedBytes }) => `${formatCount(neverFreedCount)} (${formatBytes(neverFreedBytes)})`],
  ['Growths', (run) => formatCount(run.layers.reduce((sum, { growthCount }) => sum + growthCount, 0))],
  ['Threads', (run) => formatCount(run.threadCount)],
  ['Streams', (run) => formatCount(run.streamCount)],
];

/** All runs of the report side by side, whatever is selected. */
export class CompareView implements View {
  readonly root: HTMLElement;

  constructor(state: ReportState) {
    const { runs } = state.contents;
    const table = dataTable(
      'The outermost layer of each log, over the whole log',
      [
        { text: 'Figure' },
        ...runs.map((run, index): Cell => numberCell(`${index + 1}: ${shortName(run.source)}${run.isDamaged ? ' (cut off)' : ''}`)),
      ],
      rows.map(([title, textOf]): [string, ...Cell[]] => [
        title,
        ...runs.map((run) => numberCell(textOf(run, run.layers[run.layer] as Summary))),
      ]),
    );
    this.root = element('section', { 'aria-labelledby': 'compare-title' }, element('h2', { id: 'compare-title' }, 'Comparison'), table);
  }

  update(): void {}
}
