import type { Extremes } from '../../report/extremes.js';
import { hasPlaces, sumMoves } from '../../report/managed-moves.js';
import { bytes, count, words } from '../common/columns.js';
import { formatCount } from '../common/format.js';
import type { ReportState, View } from './report-state.js';
import { sectionView } from './section.js';
import { dataTable } from './tables.js';

/** The rows that the table of moves shows. */
const shownMoves = 100;

/** The recorded resources, outermost first, and who moved pages of managed memory. */
export function layersView(state: ReportState): View {
  return sectionView('layers', 'Layers', () => {
    const { model, range, contents, runIndex } = state;
    const { run } = model;
    const { from, to } = model.changesIn(range);
    const peak = (curve: Extremes | undefined) => curve?.values[curve.indexOfMaximum(from, to)];
    const upstreamOf = (layer: number) => run.layers[run.layers[layer]?.upstream ?? -1]?.name ?? null;
    const caption = 'The recorded resources: counts for the whole log, and bytes during the selected time and at its end';
    return [
      dataTable(caption, contents.runs[runIndex]?.layers ?? [], [
        words('Layer', ({ name }) => name),
        words('On', ({ layer }) => upstreamOf(layer)),
        count('Allocations', ({ allocationCount }) => allocationCount),
        count('Failed', ({ failureCount }) => failureCount),
        bytes('Peak live', ({ layer }) => peak(model.liveOf(layer))),
        bytes('Live at the end', ({ layer }) => model.liveOf(layer).values[to - 1]),
        bytes('Peak reserved', ({ layer }) => peak(model.reservedOf(layer))),
        bytes('Reserved at the end', ({ layer }) => model.reservedOf(layer)?.values[to - 1]),
        count('Grew', ({ growthCount }) => growthCount),
        count('Returned', ({ releaseCount }) => releaseCount),
      ]),
      ...(hasPlaces(run) ? [movesTable(state, from, to)] : []),
    ];
  });
}

function movesTable({ model, contents, runIndex }: ReportState, from: number, to: number): HTMLElement {
  const { run, filter } = model;
  const shown = run.layers[filter.layer]?.isPlace ? (contents.runs[runIndex]?.layer ?? 0) : filter.layer;
  const moves = sumMoves(run, model.ownersOfPages(shown), from, to);
  const more = moves.length > shownMoves ? `; the largest ${shownMoves} of ${formatCount(moves.length)} rows` : '';
  const caption = `Pages of managed memory that came to a place in the selected time, and why${more}`;
  return dataTable(caption, moves.slice(0, shownMoves), [
    words('Place', ({ layer }) => run.layers[layer]?.name ?? ''),
    words('Reason', ({ reason }) => run.labels[reason] || null),
    words('Stream', ({ stream }) => run.streams[stream] || null),
    words(`Label in ${run.layers[shown]?.name}`, ({ label }) => run.labels[label] || null),
    count('Pages', ({ pages }) => pages),
    bytes('Bytes', (move) => move.bytes),
  ]);
}
