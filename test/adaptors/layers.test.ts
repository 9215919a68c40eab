import { expect, test } from 'vitest';
import { LimitingResourceAdaptor, type MemoryResource } from '../../src/index.js';
import { kindOf } from '../../src/resource-kind.js';
import { SpyResource } from '../support/spy-resource.js';

test("a program's own classes have the kind that their names say", () => {
  class Tagged extends LimitingResourceAdaptor {}
  class OwnDiskMemoryResource extends SpyResource {}
  class MyResourceAdaptor extends SpyResource {}
  const upstream = new SpyResource();
  const resources: readonly MemoryResource[] = [
    upstream,
    new Tagged(upstream, { limitBytes: 1 }),
    new OwnDiskMemoryResource(),
    new MyResourceAdaptor(),
    new (class extends SpyResource {})(),
    Object.assign(Object.create(null), upstream),
    { ...upstream, allocate: upstream.allocate, deallocate: upstream.deallocate } as unknown as MemoryResource,
  ];
  expect(resources.map(kindOf)).toEqual(['spy', 'tagged', 'own-disk', 'my', 'resource', 'resource', 'object']);
});
