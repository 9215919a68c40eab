import { expect, test } from 'vitest';
import { HostMemoryResource, StatisticsResourceAdaptor } from '../../src/index.js';
import { sampleStatistics } from '../../src/tools/watch/index.js';
import { collectGarbage } from './collection.js';

test('samples keep no statistics adaptor alive, and forget collected ones', async () => {
  using upstream = new HostMemoryResource();
  using kept = new StatisticsResourceAdaptor(upstream, { name: 'kept' });
  (() => new StatisticsResourceAdaptor(upstream, { name: 'dropped' }))();
  expect(sampleStatistics().resources.map(({ name }) => name)).toEqual(['kept', 'dropped']);
  // What a job has looked at stays alive until the job ends.
  await collectGarbage();
  await collectGarbage();
  expect(sampleStatistics().resources.map(({ name }) => name)).toEqual([kept.name]);
});
