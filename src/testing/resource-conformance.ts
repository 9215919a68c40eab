import { allocationCases } from './allocation-cases.js';
import type { ConformanceCase, ResourceHarness } from './harness.js';
import { misuseCases } from './misuse-cases.js';
import { streamOrderCases } from './stream-order-cases.js';
import { TestBed } from './test-bed.js';

/**
 * What every memory resource must do, as a list of tests for any test runner. Each test creates its
 * own resource, and needs a device: a GPU or the software device.
 * @example
 * ```ts
 * import { test } from 'node:test';
 * import { resourceConformance } from 'cistern/testing';
 *
 * const cases = resourceConformance({
 *   name: 'MyResource',
 *   create: () => ({ resource: new MyResource() }),
 *   supports: { maximumAlignment: 256, streamOrdered: true },
 * });
 * for (const { name, run } of cases) test(name, run);
 * ```
 */
export function resourceConformance(harness: ResourceHarness): readonly ConformanceCase[] {
  const { supports } = harness;
  const bodies = { ...allocationCases(supports), ...misuseCases(supports), ...streamOrderCases(supports) };
  return Object.entries(bodies).map(([name, body]) => ({
    name: `${harness.name} ${name}`,
    run() {
      using bed = new TestBed(harness);
      body(bed);
    },
  }));
}
