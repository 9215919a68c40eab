import { GiB } from '../../src/index.js';
import { conformanceTests } from './conformance-tests.js';
import { harnessesOf } from './harnesses.js';

// Only the software device has exactly this much.
const capacityBytes = process.env['CISTERN_DEVICE'] === 'software' ? GiB : undefined;

for (const harness of harnessesOf('upstream')) {
  const isBounded = capacityBytes !== undefined && harness.name.startsWith('cuda');
  conformanceTests(isBounded ? { ...harness, supports: { ...harness.supports, capacityBytes } } : harness);
}
