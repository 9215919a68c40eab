import { expect, it } from 'vitest';
import { CudaMemoryResource, LimitingResourceAdaptor } from '../../src/index.js';
import { AdmittingResourceAdaptor } from '../../src/serving/index.js';
import { collectGarbage, collectGarbageUntil } from './collection.js';

it('a shared limit ends once the adaptors that share it are collected', async () => {
  (() => {
    for (let i = 0; i < 10; i++) new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 1024, shared: 'dropped' });
  })();
  await collectGarbage();
  const other = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 2048, shared: 'dropped' });
  expect(other.limitBytes).toBe(2048);
  other.dispose();
});

it('a shared queue of requests ends once the adaptors that share it are collected', async () => {
  const admitting = (limitBytes: number) => new AdmittingResourceAdaptor(new CudaMemoryResource(), { limitBytes, shared: 'dropped' });
  (() => {
    for (let i = 0; i < 10; i++) admitting(1024);
  })();
  const others: AdmittingResourceAdaptor[] = [];
  const isMade = () => {
    try {
      others.push(admitting(2048));
    } catch {
      // Those that were dropped still have it.
    }
    return others.length > 0;
  };
  expect(isMade()).toBe(false);
  await collectGarbageUntil(isMade);
  expect(others.map((each) => each.statistics().limitBytes)).toEqual([2048]);
  for (const each of others) each.dispose();
});
