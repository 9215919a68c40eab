import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { CudaMemoryResource, KiB, PoolMemoryResource } from '../../../src/index.js';
import { AdmittingResourceAdaptor } from '../../../src/serving/index.js';
import { stream } from '../../support/stream.js';

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
});

afterEach(() => {
  vi.useRealTimers();
});

async function secondsPass(): Promise<void> {
  vi.advanceTimersByTime(2000);
  await nextTurn();
}

test('a grant tries again, as memory may have been freed elsewhere, and the timer ends after its wait', async () => {
  using upstream = new CudaMemoryResource();
  using pool = new PoolMemoryResource(upstream, { initialBytes: 4 * KiB, maximumBytes: 4 * KiB });
  using resource = new AdmittingResourceAdaptor(pool, { limitBytes: 4 * KiB });
  const elsewhere = pool.allocate(3 * KiB, stream);
  using _other = await resource.reserve(KiB);
  using grant = await resource.reserve(2 * KiB);
  expect(vi.getTimerCount()).toBe(0);
  let tries = 0;
  const retried = grant.retry(() => {
    tries++;
    return resource.allocate(2 * KiB, stream);
  });
  await nextTurn();
  expect([tries, vi.getTimerCount()]).toEqual([2, 1]);
  await secondsPass();
  expect([tries, vi.getTimerCount()]).toEqual([3, 1]);
  pool.deallocate(elsewhere, 3 * KiB, stream);
  await secondsPass();
  expect(tries).toBe(4);
  resource.deallocate(await retried, 2 * KiB, stream);
  await secondsPass();
  expect([tries, vi.getTimerCount()]).toEqual([4, 0]);
});

test('a request is looked at as long as it waits', async () => {
  using upstream = new CudaMemoryResource();
  using resource = new AdmittingResourceAdaptor(upstream, { limitBytes: KiB });
  const holding = await resource.reserve(KiB);
  const waiting = resource.reserve(KiB);
  const settles = vi.spyOn(resource.queue, 'settle');
  expect(vi.getTimerCount()).toBe(1);
  await secondsPass();
  expect([vi.getTimerCount(), settles.mock.calls.length]).toEqual([1, 2]);
  // Others were served meanwhile: the line moves.
  for (let second = 0; second < 3; second++) {
    (await resource.reserve(0)).dispose();
    vi.advanceTimersByTime(1000);
  }
  expect([vi.getTimerCount(), settles.mock.calls.length]).toEqual([1, 2]);
  holding.dispose();
  (await waiting).dispose();
  await secondsPass();
  expect([vi.getTimerCount(), settles.mock.calls.length]).toEqual([0, 2]);
});
