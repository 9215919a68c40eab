import type { Extremes } from '../../report/extremes.js';
import { hasPlaces, sumMoves } from '../../report/managed-moves.js';
import { element } from '../common/dom.js';
import { formatBytes, formatCount } from '../common/format.js';
import type { ReportState, View } from './report-state.js';
import { dataTable, numberCell } from './tables.js';

/** The rows that the table of moves shows. */
const shownMoves = 100;

/** The recorded resources, outermost first, and who moved pages of managed memory. */
export class LayersView implements View {
  readonly root: HTMLElement;
  readonly isPatient = true;
  readonly #state: ReportState;
  readonly #place = element('div');

  constructor(state: ReportState) {
    this.#state = state;
    this.root = element('section', { 'aria-labelledby': 'layers-title' }, element('h2', { id: 'layers-title' }, 'Layers'), this.#place);
  }

  update(): void {
    const { model, range, contents, runIndex } = this.#state;
    const { run } = model;
    const { from, to } = model.changesIn(range);
    const bytes = (curve: Extremes | undefined, index: number | undefined) =>
      numberCell(curve === undefined || index === undefined || index < 0 ? '–' : formatBytes(curve.values[index] as number));
    const rows = (contents.runs[runIndex]?.layers ?? []).map((summary): [string, ...ReturnType<typeof numberCell>[]] => {
      const { layer, name } = summary;
      const upstream = run.layers[layer]?.upstream;
      const live = model.liveOf(layer);
      const reserved = model.reservedOf(layer);
      return [
        name,
        { text: upstream === undefined ? '–' : (run.layers[upstream]?.name ?? ''), isNumber: false },
        numberCell(formatCount(summary.allocationCount)),
        numberCell(formatCount(summary.failureCount)),
        bytes(live, live.indexOfMaximum(from, to)),
        bytes(live, to - 1),
        bytes(reserved, reserved?.indexOfMaximum(from, to)),
        bytes(reserved, to - 1),
        numberCell(formatCount(summary.growthCount)),
        numberCell(formatCount(summary.releaseCount)),
      ];
    });
    this.#place.replaceChildren(
      dataTable(
        'The recorded resources: counts for the whole log, and bytes during the selected time and at its end',
        [
          { text: 'Layer' },
          { text: 'On' },
          numberCell('Allocations'),
          numberCell('Failed'),
          numberCell('Peak live'),
          numberCell('Live at the end'),
          numberCell('Peak reserved'),
          numberCell('Reserved at the end'),
          numberCell('Grew'),
          numberCell('Returned'),
        ],
        rows,
      ),
      ...(hasPlaces(run) ? [this.#moves(from, to)] : []),
    );
  }

  #moves(from: number, to: number): HTMLElement {
    const { model, contents, runIndex } = this.#state;
    const { run, filter } = model;
    const layer = run.layers[filter.layer]?.isPlace ? (contents.runs[runIndex]?.layer ?? 0) : filter.layer;
    const moves = sumMoves(run, model.ownersOfPages(layer), from, to);
    const more = moves.length > shownMoves ? `; the largest ${shownMoves} of ${formatCount(moves.length)} rows` : '';
    const text = (text: string) => ({ text: text === '' ? '–' : text });
    return dataTable(
      `Pages of managed memory that came to a place in the selected time, and why${more}`,
      [
        text('Place'),
        text('Reason'),
        text('Stream'),
        text(`Label in ${run.layers[layer]?.name}`),
        numberCell('Pages'),
        numberCell('Bytes'),
      ],
      moves
        .slice(0, shownMoves)
        .map(({ layer, reason, stream, label, pages, bytes }): [string, ...ReturnType<typeof numberCell>[]] => [
          run.layers[layer]?.name ?? '',
          text(run.labels[reason] ?? ''),
          text(run.streams[stream] ?? ''),
          text(run.labels[label] ?? ''),
          numberCell(formatCount(pages)),
          numberCell(formatBytes(bytes)),
        ]),
    );
  }
}
