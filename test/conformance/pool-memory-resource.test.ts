import { describe, test } from 'vitest';
import { resourceConformance } from '../../src/testing/index.js';
import { poolHarnesses } from './harnesses.js';

for (const harness of poolHarnesses()) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
