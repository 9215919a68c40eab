import { expect, test } from 'vitest';
import { layersOf } from '../../src/adaptors/layers.js';
import * as cistern from '../support/package.js';
import { harnessesOf } from './harnesses.js';

test('every exported resource is in the conformance suite', () => {
  const exported: readonly unknown[] = Object.values(cistern);
  const missing = new Set(exported.filter(isResourceClass));
  // It allocates nothing: buffers make it for memory that they wrap.
  missing.delete(cistern.ForeignMemoryResource);
  // It allocates from a `cistern keep`, once for each region: test/lasting.
  missing.delete(cistern.LastingMemoryResource);
  for (const { create } of (['upstream', 'pooling', 'pass-through'] as const).flatMap(harnessesOf)) {
    const { resource, dispose } = create();
    for (const layer of layersOf(resource)) for (const type of missing) if (layer instanceof type) missing.delete(type);
    resource[Symbol.dispose]();
    dispose?.();
  }
  expect([...missing]).toEqual([]);
});

function isResourceClass(value: unknown): value is abstract new (...arguments_: never) => cistern.MemoryResource {
  return typeof value === 'function' && typeof value.prototype?.allocate === 'function';
}
