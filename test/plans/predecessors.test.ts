import { expect, test } from 'vitest';
import type { Plan } from '../../src/plans/plan.js';
import { withPredecessors } from '../../src/plans/predecessors.js';

function planOf(places: readonly (readonly [offset: number, bytes: number])[]): Plan {
  return { offsets: places.map(([offset]) => offset), sizes: places.map(([, bytes]) => bytes) } as unknown as Plan;
}

/** By allocation: its predecessors. */
function predecessorsOf(places: readonly (readonly [offset: number, bytes: number])[]): number[][] {
  const { starts, predecessors } = withPredecessors(planOf(places));
  return places.map((_, i) => [...predecessors.subarray(starts[i], starts[i + 1])]);
}

test('the predecessors are those that had the bytes last', () => {
  const places = [
    [0, 256],
    [256, 256],
    [0, 512],
    [0, 512],
    [128, 128],
    [0, 512],
  ] as const;
  // The last one has two ranges of 3, with 4 in between.
  expect(predecessorsOf(places)).toEqual([[], [], [0, 1], [2], [3], [3, 4]]);
});

test('an allocation may have any number of them', () => {
  const count = 300_000;
  const small = Array.from({ length: count }, (_, i) => [256 * i, 256] as const);
  expect(predecessorsOf([...small, [0, 256 * count]]).at(-1)).toHaveLength(count);
});

test('a thousand layers, each over both of the layer before, have two edges each', () => {
  const layers = Array.from({ length: 1000 }, () => [[0, 512] as const, [0, 256] as const, [256, 256] as const]).flat();
  const { predecessors } = withPredecessors(planOf(layers));
  expect(predecessors).toHaveLength(999 * 2 + 1000 * 2);
});
