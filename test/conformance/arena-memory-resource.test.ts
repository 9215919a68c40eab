import { describe, test } from 'vitest';
import { resourceConformance } from '../../src/testing/index.js';
import { arenaHarnesses } from './harnesses.js';

for (const harness of arenaHarnesses()) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
