/**
 * The most bytes that may be live at once: no plan needs less.
 *
 * A state that the streams can reach is a cut: how many operations of each stream have run. If a
 * stream has run a wait, the other has run what the wait is for; if a free has run, so has its
 * allocation. What is allocated and not freed in a cut is live in it, and no two of these may share
 * bytes. With one stream, the cuts are the prefixes of the log, and the greatest is the peak. With
 * several, the search begins with the greatest prefix and moves one stream after another to the
 * best operation that the other streams permit, until none improves. Every cut that it visits is a
 * bound. The result is the greatest one if nothing orders the streams.
 *
 * Cost: linear in the operations, times the number of rounds, which are few.
 */
import type { Lifetimes } from './lifetimes.js';

const mostRounds = 16;

export function lowerBound(lifetimes: Lifetimes): number {
  const peak = peakOfPrefixes(lifetimes);
  return lifetimes.streamCount === 1 ? peak.bytes : improveCut(lifetimes, peak.at);
}

/** The operations in order: an allocation, `~allocation` for a free. */
function operationsOf({ starts, frees, operationCount, count }: Lifetimes): Int32Array {
  const operations = new Int32Array(operationCount);
  for (let a = 0; a < count; a++) {
    operations[starts[a] as number] = a;
    if ((frees[a] as number) < operationCount) operations[frees[a] as number] = ~a;
  }
  return operations;
}

function peakOfPrefixes(lifetimes: Lifetimes): { readonly bytes: number; readonly at: number } {
  const operations = operationsOf(lifetimes);
  let live = 0;
  let bytes = 0;
  let at = 0;
  for (let i = 0; i < operations.length; i++) {
    const operation = operations[i] as number;
    if (operation < 0) live -= lifetimes.sizes[~operation] as number;
    else live += lifetimes.sizes[operation] as number;
    if (live > bytes) {
      bytes = live;
      at = i + 1;
    }
  }
  return { bytes, at };
}

/** `cut[s]`: operations of stream `s` with numbers below this have run. */
function improveCut(lifetimes: Lifetimes, at: number): number {
  const { starts, frees, streams, freeStreams, sizes, streamCount } = lifetimes;
  const ofStream: number[][] = Array.from({ length: streamCount }, () => []);
  operationsOf(lifetimes).forEach((operation) => {
    const stream = operation >= 0 ? (streams[operation] as number) : (freeStreams[~operation] as number);
    (ofStream[stream] as number[]).push(operation);
  });
  /** By stream: its allocations that other streams free. */
  const freedElsewhere: number[][] = Array.from({ length: streamCount }, () => []);
  streams.forEach((stream, a) => {
    const by = freeStreams[a] as number;
    if (by >= 0 && by !== stream) (freedElsewhere[stream] as number[]).push(a);
  });
  const cut = new Array<number>(streamCount).fill(at);
  /** By stream: what it has seen of the others at its cut. */
  const seen = cut.map((place, stream) => lifetimes.seenBefore(stream, place));
  let best = -1;
  for (let round = 0; round < mostRounds; round++) {
    const before = best;
    for (let stream = 0; stream < streamCount; stream++) {
      const { least, most } = limits(lifetimes, cut, stream);
      let gain = 0;
      let bestGain = Number.NEGATIVE_INFINITY;
      let bestAt = cut[stream] as number;
      const consider = (place: number) => {
        if (place < least || place > most || gain <= bestGain) return;
        bestGain = gain;
        bestAt = place;
      };
      consider(0);
      for (const operation of ofStream[stream] as number[]) {
        const a = operation >= 0 ? operation : ~operation;
        const number = operation >= 0 ? (starts[a] as number) : (frees[a] as number);
        if (number >= most) break;
        consider(number);
        if (operation >= 0) {
          const by = freeStreams[a] as number;
          const isFreed = by >= 0 && by !== stream && (frees[a] as number) < (cut[by] as number);
          if (!isFreed) gain += sizes[a] as number;
        } else {
          const from = streams[a] as number;
          const isAllocated = from === stream || (starts[a] as number) < (cut[from] as number);
          // Its allocation has not run.
          if (!isAllocated) break;
          gain -= sizes[a] as number;
        }
        consider(number + 1);
      }
      cut[stream] = bestAt;
      seen[stream] = lifetimes.seenBefore(stream, bestAt);
    }
    best = Math.max(best, liveIn(lifetimes, cut));
    if (best === before) break;
  }
  return Math.max(best, liveIn(lifetimes, new Array<number>(streamCount).fill(at)));

  /** How far the other streams let a stream run, and how far they need it to have run. */
  function limits(of: Lifetimes, all: readonly number[], stream: number): { least: number; most: number } {
    const most = of.firstBeyond(stream, all);
    let least = 0;
    for (let other = 0; other < streamCount; other++) {
      if (other !== stream) least = Math.max(least, seen[other]?.[stream] ?? 0);
    }
    for (const a of freedElsewhere[stream] as number[]) {
      const hasRun = (frees[a] as number) < (all[freeStreams[a] as number] as number);
      if (hasRun) least = Math.max(least, (starts[a] as number) + 1);
    }
    return { least, most };
  }
}

function liveIn({ starts, frees, streams, freeStreams, sizes, count }: Lifetimes, cut: readonly number[]): number {
  let bytes = 0;
  for (let a = 0; a < count; a++) {
    if ((starts[a] as number) >= (cut[streams[a] as number] as number)) continue;
    const by = freeStreams[a] as number;
    if (by < 0 || (frees[a] as number) >= (cut[by] as number)) bytes += sizes[a] as number;
  }
  return bytes;
}
