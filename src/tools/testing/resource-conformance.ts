import assert from 'node:assert/strict';
import { Device, type MemoryKind } from '../../driver/device.js';
import { allocationCases } from './allocation-cases.js';
import type { ConformanceCase, ResourceHarness } from './harness.js';
import { misuseCases } from './misuse-cases.js';
import { streamOrderCases } from './stream-order-cases.js';
import { TestBed } from './test-bed.js';

/**
 * The rules that every memory resource must follow, as a list of tests for any test runner. Each
 * test creates its own resource, and needs a device: a GPU or the software device. If a resource
 * lacks members of the interface, the first test that runs fails and names them, and the others do
 * nothing.
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
  let isIncomplete = false;
  return Object.entries(bodies).map(([name, body]) => ({
    name: `${harness.name} ${name}`,
    run() {
      if (isIncomplete) return;
      const missing = missingMembers(harness);
      isIncomplete = missing.length > 0;
      assert.ok(!isIncomplete, `${harness.name} lacks members of MemoryResource: ${missing.join(', ')}`);
      using bed = new TestBed(harness);
      body(bed);
    },
  }));
}

const methods = ['allocate', 'deallocate', 'isEqual', Symbol.dispose] as const;
const memoryKinds: readonly MemoryKind[] = ['device', 'managed', 'pinned-host', 'host'];

/** Lists the missing members, as the compiler would for TypeScript. */
function missingMembers(harness: ResourceHarness): string[] {
  const { resource, dispose } = harness.create();
  const missing = methods
    .filter((name) => typeof resource[name] !== 'function')
    .map((name) => (name === Symbol.dispose ? '[Symbol.dispose]()' : `${String(name)}()`));
  if (!(resource.device instanceof Device)) missing.push('device, a Device');
  if (!memoryKinds.includes(resource.memoryKind)) missing.push(`memoryKind, one of ${memoryKinds.join(', ')}`);
  resource[Symbol.dispose]?.();
  dispose?.();
  return missing;
}
