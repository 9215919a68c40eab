import { describe, test } from 'vitest';
import { GiB } from '../../src/index.js';
import { resourceConformance } from '../../src/testing/index.js';
import { leafHarnesses } from './harnesses.js';

// Only the software device has exactly so much.
const capacityBytes = process.env['CISTERN_DEVICE'] === 'software' ? GiB : undefined;

for (const harness of leafHarnesses(capacityBytes)) {
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) test(name, run);
  });
}
