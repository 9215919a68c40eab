import { sumAccounts } from '../../report/accounts.js';
import { element } from '../common/dom.js';
import { formatBytes, formatCount } from '../common/format.js';
import type { ReportState, View } from './report-state.js';
import { dataTable, numberCell } from './tables.js';

/** The rows of the table; of more accounts, those that held most. */
const shownAccounts = 50;

/** Whose memory it was. */
export class AccountsView implements View {
  readonly root: HTMLElement;
  readonly isPatient = true;
  readonly #state: ReportState;
  readonly #place = element('div');

  constructor(state: ReportState) {
    this.#state = state;
    this.root = element(
      'section',
      { 'aria-labelledby': 'accounts-title' },
      element('h2', { id: 'accounts-title' }, 'By account'),
      this.#place,
    );
  }

  update(): void {
    const { model, range } = this.#state;
    const { run, wholeMask, filter } = model;
    const { from, to } = model.changesIn(range);
    const sums = sumAccounts(run, wholeMask, filter.layer, from, to);
    const least = sums.map(({ peakBytes }) => peakBytes).sort((a, b) => b - a)[shownAccounts - 1] ?? 0;
    const shown = sums.filter(({ peakBytes }) => peakBytes >= least).slice(0, shownAccounts);
    const more = shown.length < sums.length ? `; the ${shown.length} of ${formatCount(sums.length)} accounts that held the most` : '';
    this.#place.replaceChildren(
      dataTable(
        `Bytes charged to each account and to those within it, in the selected time${more}`,
        [
          { text: 'Account' },
          numberCell('At its peak'),
          numberCell('At the peak of all'),
          numberCell('At the end'),
          numberCell('Allocations'),
          numberCell('Failed'),
        ],
        shown.map(({ path, peakBytes, bytesAtPeak, bytes, count, failureCount }): [string, ...ReturnType<typeof numberCell>[]] => [
          path,
          ...[peakBytes, bytesAtPeak, bytes].map((each) => numberCell(formatBytes(each))),
          ...[count, failureCount].map((each) => numberCell(formatCount(each))),
        ]),
      ),
    );
  }
}
