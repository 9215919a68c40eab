import type { RunOverview } from '../../report/report-contents.js';
import { number, words } from '../common/columns.js';
import { formatBytes, formatCount, formatShare, formatTime } from '../common/format.js';
import { shortName } from './memory-view.js';
import type { ReportState, View } from './report-state.js';
import { section } from './section.js';
import { dataTable } from './tables.js';

type Summary = RunOverview['layers'][number];

const orNothing = (bytes: number | null) => (bytes === null ? '–' : formatBytes(bytes));

type Figure = readonly [title: string, textOf: (run: RunOverview, summary: Summary) => string];

const figures: readonly Figure[] = [
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
export function compareView({ contents: { runs } }: ReportState): View {
  const table = dataTable('The outermost layer of each log, over the whole log', figures, [
    words('Figure', ([title]) => title),
    ...runs.map((run, index) =>
      number<Figure>(`${index + 1}: ${shortName(run.source)}${run.isDamaged ? ' (cut off)' : ''}`, ([, textOf]) =>
        textOf(run, run.layers[run.layer] as Summary),
      ),
    ),
  ]);
  return { root: section('compare', 'Comparison', table), update: () => {} };
}
