import { expect, test } from 'vitest';
import {
  CudaMemoryResource,
  FallbackResourceAdaptor,
  LimitingResourceAdaptor,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  RoundingResourceAdaptor,
  StatisticsResourceAdaptor,
  Stream,
} from '../../src/index.js';
import { allocatableBytes } from '../../src/machine/index.js';
import { Account, AccountingResourceAdaptor, withQuota } from '../../src/serving/index.js';

const stream = new Stream();

test('a limit is exact if the memory below is certain', () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 64 * MiB });
  const resource = new StatisticsResourceAdaptor(new LimitingResourceAdaptor(pool, { limitBytes: 8 * MiB }));
  const pointer = resource.allocate(3 * MiB - 100, stream);
  expect(allocatableBytes(resource)).toEqual({ atLeastBytes: 5 * MiB, atMostBytes: 5 * MiB, isExact: true });
  resource.deallocate(resource.allocate(5 * MiB, stream), 5 * MiB, stream);
  expect(() => resource.allocate(5 * MiB + 1, stream)).toThrow(OutOfMemoryError);
  resource.deallocate(pointer, 3 * MiB - 100, stream);
});

test('a pool has its largest block for sure, and at most all that it and the device have', () => {
  using device = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 16 * MiB });
  using pool = new PoolMemoryResource(device, { initialBytes: 8 * MiB });
  const pointers = [0, 1, 2].map(() => pool.allocate(2 * MiB, stream));
  pool.deallocate(pointers[1] as number, 2 * MiB, stream);
  expect(allocatableBytes(pool)).toEqual({ atLeastBytes: 2 * MiB, atMostBytes: 12 * MiB, isExact: false });
  for (const i of [0, 2]) pool.deallocate(pointers[i] as number, 2 * MiB, stream);
});

test('an account, a fallback and other adaptors', () => {
  using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 32 * MiB });
  const accounting = new AccountingResourceAdaptor(pool);
  const outer = new Account({ name: 'outer', limitBytes: 4 * MiB });
  withQuota({ name: 'tenant', limitBytes: 8 * MiB, parent: outer }, () => {
    expect(allocatableBytes(accounting)).toEqual({ atLeastBytes: 4 * MiB, atMostBytes: 4 * MiB, isExact: true });
  });
  expect(allocatableBytes(accounting).atLeastBytes).toBe(32 * MiB);
  const small = new LimitingResourceAdaptor(pool, { limitBytes: MiB });
  expect(allocatableBytes(new FallbackResourceAdaptor(small, accounting)).atLeastBytes).toBe(32 * MiB);
  // It may ask for more than it is asked for.
  expect(allocatableBytes(new RoundingResourceAdaptor(small, { kind: 'top-bits', bits: 4 })).atLeastBytes).toBe(0);
});
