import { sumAccounts } from '../../report/accounts.js';
import { bytes, count, words } from '../common/columns.js';
import { formatCount } from '../common/format.js';
import type { ReportState, View } from './report-state.js';
import { sectionView } from './section.js';
import { dataTable } from './tables.js';

/** The rows of the table; of more accounts, those that held most. */
const shownAccounts = 50;

/** Whose memory it was. */
export function accountsView(state: ReportState): View {
  return sectionView('accounts', 'By account', () => {
    const { model, range } = state;
    const { run, wholeMask, filter } = model;
    const { from, to } = model.changesIn(range);
    const sums = sumAccounts(run, wholeMask, filter.layer, from, to);
    const least = sums.map(({ peakBytes }) => peakBytes).sort((a, b) => b - a)[shownAccounts - 1] ?? 0;
    const shown = sums.filter(({ peakBytes }) => peakBytes >= least).slice(0, shownAccounts);
    const more = shown.length < sums.length ? `; the ${shown.length} of ${formatCount(sums.length)} accounts that held the most` : '';
    return [
      dataTable(`Bytes charged to each account and to those within it, in the selected time${more}`, shown, [
        words('Account', ({ path }) => path),
        bytes('At its peak', ({ peakBytes }) => peakBytes),
        bytes('At the peak of all', ({ bytesAtPeak }) => bytesAtPeak),
        bytes('At the end', (sum) => sum.bytes),
        count('Allocations', (sum) => sum.count),
        count('Failed', ({ failureCount }) => failureCount),
      ]),
    ];
  });
}
