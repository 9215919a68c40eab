import { type Account, liveAccounts } from '../../serving/accounts/account.js';
import type { AccountSample } from './statistics-sample.js';

/** The most paths with their own sample, because each is a time series in monitoring systems. */
const ownSamples = 20;
const othersPath = '(other accounts)';

/** The paths of the accounts that hold the most, the largest first, then all others as one. */
export function sampleAccounts(): readonly AccountSample[] {
  const byPath = new Map<string, Account[]>();
  for (const account of liveAccounts()) {
    const { path } = account;
    const same = byPath.get(path);
    if (same === undefined) byPath.set(path, [account]);
    else same.push(account);
  }
  const samples = [...byPath].map(([path, accounts]) => sampleOf(path, accounts));
  samples.sort((a, b) => b.liveBytes - a.liveBytes || (a.path < b.path ? -1 : 1));
  if (samples.length <= ownSamples) return samples;
  const shown = samples.slice(0, ownSamples);
  for (const { path } of shown) byPath.delete(path);
  return [...shown, sampleOf(othersPath, [...byPath.values()].flat())];
}

function sampleOf(path: string, accounts: readonly Account[]): AccountSample {
  const limits = accounts.map(({ limitBytes }) => limitBytes);
  return {
    path,
    accounts: accounts.length,
    liveBytes: sumOf(new Set(accounts), ({ liveBytes }) => liveBytes),
    peakBytes: accounts.reduce((most, { peakBytes }) => Math.max(most, peakBytes), 0),
    limitBytes: limits.includes(undefined) ? null : limits.reduce<number>((sum, bytes) => sum + (bytes as number), 0),
    spilledBytes: sumOf(new Set(accounts), ({ spilledBytes }) => spilledBytes),
    waitedMilliseconds: sumOf(new Set(accounts), ({ waitedMilliseconds }) => waitedMilliseconds),
  };
}

/** An account within another one counts once. */
function sumOf(accounts: ReadonlySet<Account>, value: (account: Account) => number): number {
  let sum = 0;
  for (const account of accounts) {
    let outer = account.parent;
    while (outer !== undefined && !accounts.has(outer)) outer = outer.parent;
    if (outer === undefined) sum += value(account);
  }
  return sum;
}
