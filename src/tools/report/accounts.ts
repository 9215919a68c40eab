/** The accounts in a log. Each counts the bytes charged to it and to the accounts within it. */
import type { ReportRun } from '../formats/report/report-run.js';

/** The allocations of an account and of those within it, added up. */
export interface AccountSum {
  /** The names of the accounts around it, and its own: `tenant-a/request`. */
  readonly path: string;
  readonly count: number;
  readonly failureCount: number;
  /** The most bytes at once. */
  readonly peakBytes: number;
  /** When all allocations together held the most. */
  readonly bytesAtPeak: number;
  /** At the end. */
  readonly bytes: number;
}

/** Paths, each with the one around it. */
class Paths {
  readonly paths: string[] = [];
  /** The index of the path around each, or -1. */
  readonly outer: number[] = [];
  readonly #indexes = new Map<string, number>();

  /** The index of a path; adds it, and those around it. */
  indexOf(path: string): number {
    /** The path and those around it that are new. A log may have one of so many names that a recursion would be too deep. */
    const added: string[] = [];
    let known: number | undefined;
    for (let each = path; ; each = each.slice(0, each.lastIndexOf('/'))) {
      known = this.#indexes.get(each);
      if (known !== undefined) break;
      added.push(each);
      if (!each.includes('/')) break;
    }
    let index = known ?? -1;
    for (const each of added.reverse()) {
      this.outer.push(index);
      index = this.paths.push(each) - 1;
      this.#indexes.set(each, index);
    }
    return index;
  }
}

/**
 * Adds up the allocations in `mask` by account, for the changes from `from` up to `to`, and orders
 * the accounts by path. Allocations that are charged to no account are left out.
 */
export function sumAccounts(run: ReportRun, mask: Uint8Array, layer: number, from: number, to: number): AccountSum[] {
  const { changes, spans, failures, accounts, times } = run;
  const paths = new Paths();
  const pathOf = accounts.map((path, account) => (account === 0 ? -1 : paths.indexOf(path)));
  const sums = paths.paths.map(() => ({ count: 0, failureCount: 0, peakBytes: 0, bytesAtPeak: 0, bytes: 0 }));
  const peak = changeAtPeak(run, mask, from, to);
  for (let change = 0; change < to; change++) {
    const at = changes[change] as number;
    const span = at >= 0 ? at : ~at;
    if (mask[span] !== 1) continue;
    const bytes = (at >= 0 ? 1 : -1) * (spans.bytes[span] as number);
    for (let path = pathOf[spans.accountOf[span] as number] as number; path >= 0; path = paths.outer[path] as number) {
      const sum = sums[path] as (typeof sums)[number];
      sum.bytes += bytes;
      if (at >= 0 && change >= from) sum.count++;
      if (change >= from) sum.peakBytes = Math.max(sum.peakBytes, sum.bytes);
    }
    if (change === peak) for (const sum of sums) sum.bytesAtPeak = sum.bytes;
  }
  const begin = times[from] ?? 0;
  const end = to < times.length ? (times[to] as number) : Number.POSITIVE_INFINITY;
  for (let failure = 0; failure < failures.count; failure++) {
    const time = failures.times[failure] as number;
    if (failures.layerOf[failure] !== layer || time < begin || time > end) continue;
    for (let path = pathOf[failures.accountOf[failure] as number] as number; path >= 0; path = paths.outer[path] as number)
      (sums[path] as (typeof sums)[number]).failureCount++;
  }
  return sums
    .map((sum, path) => ({ path: paths.paths[path] as string, ...sum }))
    .filter(({ count, failureCount, bytes }) => count + failureCount + bytes > 0)
    .sort((a, b) => (a.path < b.path ? -1 : 1));
}

/** The change from `from` up to `to` after which the allocations in `mask` first hold the most bytes; -1 if there is none. */
function changeAtPeak({ changes, spans }: ReportRun, mask: Uint8Array, from: number, to: number): number {
  let peak = -1;
  let most = -1;
  let bytes = 0;
  for (let change = 0; change < to; change++) {
    const at = changes[change] as number;
    const span = at >= 0 ? at : ~at;
    if (mask[span] !== 1) continue;
    bytes += (at >= 0 ? 1 : -1) * (spans.bytes[span] as number);
    if (change < from || bytes <= most) continue;
    peak = change;
    most = bytes;
  }
  return peak;
}
