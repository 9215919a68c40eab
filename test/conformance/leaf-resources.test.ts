import { describe, test } from 'vitest';
import { GiB } from '../../src/index.js';
import { resourceConformance } from '../../src/testing/index.js';
import { harnessesOf } from './harnesses.js';

// Only the software device has exactly this much.
const capacityBytes = process.env['CISTERN_DEVICE'] === 'software' ? GiB : undefined;

for (const harness of harnessesOf('upstream')) {
  const isBounded = capacityBytes !== undefined && harness.name.startsWith('cuda');
  const supports = isBounded ? { ...harness.supports, capacityBytes } : harness.supports;
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance({ ...harness, supports })) test(name, run);
  });
}
