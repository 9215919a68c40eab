import { describe, test } from 'vitest';
import { type ResourceHarness, resourceConformance } from '../../src/tools/testing/index.js';
import { mayOversubscribe, oversubscriptionReason } from '../support/real-gpu.js';

const askingForEverything = 'runs out of memory for sizes that no machine has, and is unchanged';

/** The conformance suite of a resource, as tests. */
export function conformanceTests(harness: ResourceHarness): void {
  const isLeftOut = (name: string) => name === askingForEverything && harness.name.includes('managed') && !mayOversubscribe;
  describe(harness.name, () => {
    for (const { name, run } of resourceConformance(harness)) {
      test(name, (context) => {
        if (isLeftOut(name)) context.skip(oversubscriptionReason);
        return run();
      });
    }
  });
}
