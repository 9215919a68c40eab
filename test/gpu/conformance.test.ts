import { describe, test } from 'vitest';
import { resourceConformance } from '../../src/testing/index.js';
import {
  arenaHarnesses,
  cachingHarnesses,
  fixedSizeHarnesses,
  leafHarnesses,
  monotonicHarnesses,
  passThroughHarnesses,
  poolHarnesses,
} from '../conformance/harnesses.js';
import { describeOnGpu } from './gpu.js';

describeOnGpu('on the CUDA device', () => {
  for (const harness of [
    ...leafHarnesses(undefined),
    ...passThroughHarnesses(),
    ...poolHarnesses(),
    ...arenaHarnesses(),
    ...cachingHarnesses(),
    ...fixedSizeHarnesses(),
    ...monotonicHarnesses(),
  ]) {
    describe(harness.name, () => {
      for (const { name, run } of resourceConformance(harness)) test(name, run);
    });
  }
});
