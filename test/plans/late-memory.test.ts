import { expect, test } from 'vitest';
import { LateMemory } from '../../src/plans/late-memory.js';

test('a pass knows nothing of places that were overdue in the one before, which may have had another plan', () => {
  const late = new LateMemory();
  late.overdue.add(0);
  late.begin({ asked: Float64Array.of(0, 1) } as never);
  expect([...late.overdue]).toEqual([1]);
});
