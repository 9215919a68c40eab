import { describe, test } from 'vitest';
import { resourceConformance } from '../../src/testing/index.js';
import { monotonicHarnesses } from './harnesses.js';

for (const harness of monotonicHarnesses()) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
