import { expect, test } from 'vitest';
import { unpackReportRun } from '../../../src/tools/formats/report/report-data.js';
import { sumAccounts } from '../../../src/tools/report/accounts.js';
import { groupSpans, matchingAllocations } from '../../../src/tools/report/held-bytes.js';
import { packReportRun } from '../../../src/tools/report/pack-report-run.js';
import { allocate, runOf } from '../formats/runs.js';
import { createReportRun } from './create-report-run.js';
import { RunWriter } from './runs.js';

const recorded = new RunWriter()
  .allocate(0x1000, 100, { account: 'a/request' })
  .allocate(0x2000, 300, { account: 'a' })
  .free(0x1000, 100, { account: undefined })
  .allocate(0x3000, 50, { account: 'b/request/step' })
  .fail(1 << 20)
  .allocate(0x4000, 700, { account: undefined })
  .allocate(0x5000, 200, { account: 'a/request' })
  .free(0x4000, 700)
  .free(0x2000, 300)
  .allocate(0x6000, 10)
  .finish();
const run = createReportRun(recorded);
const mask = matchingAllocations(run, { layer: 0 });

test('an account counts what is charged to it and to those within it', () => {
  expect(sumAccounts(run, mask, 0, 0, run.changes.length)).toEqual([
    { path: 'a', count: 4, failureCount: 0, peakBytes: 500, bytesAtPeak: 500, bytes: 210 },
    { path: 'a/request', count: 3, failureCount: 0, peakBytes: 210, bytesAtPeak: 200, bytes: 210 },
    { path: 'b', count: 1, failureCount: 1, peakBytes: 50, bytesAtPeak: 50, bytes: 50 },
    { path: 'b/request', count: 1, failureCount: 1, peakBytes: 50, bytesAtPeak: 50, bytes: 50 },
    { path: 'b/request/step', count: 1, failureCount: 1, peakBytes: 50, bytesAtPeak: 50, bytes: 50 },
  ]);
});

test('counts and peaks are those of the selected changes, with what was held before', () => {
  expect(sumAccounts(run, mask, 0, 2, 3)).toEqual([{ path: 'a', count: 0, failureCount: 0, peakBytes: 300, bytesAtPeak: 300, bytes: 300 }]);
  expect(sumAccounts(run, mask, 1, 0, 1)).toEqual([
    { path: 'a', count: 1, failureCount: 0, peakBytes: 100, bytesAtPeak: 100, bytes: 100 },
    { path: 'a/request', count: 1, failureCount: 0, peakBytes: 100, bytesAtPeak: 100, bytes: 100 },
  ]);
});

test('failures are those of the layer', () => {
  expect(sumAccounts(run, mask, 1, 0, run.changes.length).every(({ failureCount }) => failureCount === 0)).toBe(true);
});

test('allocations are grouped by the account that they are charged to itself', () => {
  expect(groupSpans(run, mask, 'account').names).toEqual(['no account', 'a', 'a/request', 'b/request/step']);
});

test('a packed report has the accounts of allocations and failures', () => {
  const packed = unpackReportRun(Buffer.concat([...packReportRun(recorded).pieces()]));
  expect([packed.accounts, packed.spans.accountOf, packed.failures.accountOf]).toEqual([
    run.accounts,
    run.spans.accountOf,
    run.failures.accountOf,
  ]);
});

test('many accounts take no longer for each allocation that holds more than all before', () => {
  const count = 65_535;
  const accounts = Array.from({ length: count + 1 }, (_, account) => (account === 0 ? '' : `a${account}`));
  const events = Array.from({ length: 2 * count }, (_, i) => allocate(256 * (i + 1), 8, { account: 1 + (i % count), time: i }));
  const rising = createReportRun(runOf(events, { accounts }));
  const sums = sumAccounts(rising, matchingAllocations(rising, { layer: 0 }), 0, 0, rising.changes.length);
  expect(sums).toHaveLength(count);
  expect(sums.every(({ bytesAtPeak }) => bytesAtPeak === 16)).toBe(true);
});

test('the accounts of a request may be many', () => {
  const path = Array.from({ length: 20_000 }, () => 'a').join('/');
  const deep = createReportRun(runOf([allocate(256, 8, { account: 1 })], { accounts: ['', path] }));
  expect(sumAccounts(deep, matchingAllocations(deep, { layer: 0 }), 0, 0, deep.changes.length)).toHaveLength(20_000);
});
