import { describe, test } from 'vitest';
import { GiB } from '../../src/index.js';
import { resourceConformance } from '../../src/testing/index.js';
import { leafHarnesses } from './harnesses.js';

for (const harness of leafHarnesses(1 * GiB)) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
