import { describe, test } from 'vitest';
import { resourceConformance } from '../../src/testing/index.js';
import { cachingHarnesses } from './harnesses.js';

for (const harness of cachingHarnesses()) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
