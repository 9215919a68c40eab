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
import { type Extent, Extents } from './extents.js';
import type { Plan } from './plan.js';

export interface PlanWithPredecessors {
  readonly plan: Plan;
  /** By allocation: where its predecessors begin in `predecessors`; one more at the end. */
  readonly starts: Int32Array;
  readonly predecessors: Int32Array;
}

/** Bytes, and the allocation that had them last. */
export interface OwnedBytes extends Extent {
  readonly owner: number;
}

export function withPredecessors(plan: Plan): PlanWithPredecessors {
  const { sizes } = plan;
  const starts = new Int32Array(sizes.length + 1);
  const predecessors: number[] = [];
  const owned = new Extents<OwnedBytes>();
  for (let request = 0; request < sizes.length; request++) {
    const place = placeOf(plan, request);
    const owners = new Set(owned.cut(place).map(({ whole }) => whole.owner));
    for (const owner of owners) predecessors.push(owner);
    starts[request + 1] = predecessors.length;
    owned.insert(place);
  }
  return { plan, starts, predecessors: Int32Array.from(predecessors) };
}

/** The bytes of a plan that an allocation has. */
export function placeOf({ offsets, sizes }: Plan, request: number): OwnedBytes {
  return { address: offsets[request] as number, bytes: sizes[request] as number, owner: request };
}
