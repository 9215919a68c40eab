import { expect, it } from 'vitest';
import { CudaMemoryResource, LimitingResourceAdaptor } from '../../src/index.js';
import { collectGarbage } from './collection.js';

it('a shared limit ends once the adaptors that share it are collected', async () => {
  (() => {
    for (let i = 0; i < 10; i++) new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 1024, shared: 'dropped' });
  })();
  await collectGarbage();
  const other = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 2048, shared: 'dropped' });
  expect(other.limitBytes).toBe(2048);
  other.dispose();
});
