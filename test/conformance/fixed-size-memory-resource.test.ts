import { describe, test } from 'vitest';
import { resourceConformance } from '../../src/testing/index.js';
import { fixedSizeHarnesses } from './harnesses.js';

for (const harness of fixedSizeHarnesses()) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
