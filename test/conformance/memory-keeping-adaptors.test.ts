import { describe, test } from 'vitest';
import { resourceConformance } from '../../src/testing/index.js';
import { harnessesOf } from './harnesses.js';

for (const harness of harnessesOf('pooling')) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
