/**
 * For each allocation of a plan, the earlier allocations that had its bytes last. A resource that
 * follows the plan may reuse a place only in an order after their frees.
 *
 *     bytes   0    256   512        allocations a b c d
 *             [ a  ][ b  ]          predecessors of c: a, b
 *             [ c        ]          predecessors of d: c
 *             [ d  ]
 *
 * The last ones are enough, because each of them came after those before it.
 */
import type { Plan } from './plan.js';

export interface PlanWithPredecessors {
  readonly plan: Plan;
  /** By allocation: where its predecessors begin in `predecessors`; one more at the end. */
  readonly starts: Int32Array;
  readonly predecessors: Int32Array;
}

/** Bytes from `start` on, up to the next range, and the allocation that had them last. */
interface Range {
  readonly start: number;
  readonly owner: number;
}

export function withPredecessors(plan: Plan): PlanWithPredecessors {
  const { sizes, offsets } = plan;
  const starts = new Int32Array(sizes.length + 1);
  const predecessors: number[] = [];
  // In the order of addresses, from 0 to infinity.
  const ranges: Range[] = [{ start: 0, owner: -1 }];
  for (let request = 0; request < sizes.length; request++) {
    const start = offsets[request] as number;
    const end = start + (sizes[request] as number);
    const first = lastUpTo(ranges, start);
    const last = lastUpTo(ranges, end - 1);
    const owners = new Set(ranges.slice(first, last + 1).map(({ owner }) => owner));
    owners.delete(-1);
    predecessors.push(...owners);
    starts[request + 1] = predecessors.length;
    const before = ranges[first] as Range;
    const behind = ranges[last] as Range;
    const next = ranges[last + 1]?.start ?? Number.POSITIVE_INFINITY;
    const replacing: Range[] = [];
    if (before.start < start) replacing.push(before);
    replacing.push({ start, owner: request });
    if (end < next) replacing.push({ start: end, owner: behind.owner });
    ranges.splice(first, last - first + 1, ...replacing);
  }
  return { plan, starts, predecessors: Int32Array.from(predecessors) };
}

/** The last range that begins at an address or before it. */
function lastUpTo(ranges: readonly Range[], address: number): number {
  let low = 0;
  let high = ranges.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((ranges[middle] as Range).start <= address) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
