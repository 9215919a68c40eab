/** Each want of memory that the program sees is told once, and none that a wait has made good. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterAll, beforeEach, expect, test } from 'vitest';
import { OutOfMemoryError } from '../../../src/basics/errors.js';
import { CudaMemoryResource, MiB, PinnedHostMemoryResource, PoolMemoryResource, Stream } from '../../../src/index.js';
import type { MemoryResource } from '../../../src/memory-resource.js';
import { attempt, observeFailures } from '../../../src/observing/failed-allocations.js';
import { SpillableBuffer, SpillingResourceAdaptor } from '../../../src/serving/index.js';
import { WaitingLine, type WaitRules, WaitTimes } from '../../../src/serving/waiting/waiting-line.js';
import { caught, code } from '../../support/errors.js';

const told: MemoryResource[] = [];
// For this file: nothing ends it.
observeFailures((_, resource) => told.push(resource));
const stream = new Stream({ nonBlocking: true });
afterAll(() => stream.dispose());
beforeEach(() => void told.splice(0));

const [below, top] = [{}, {}] as [MemoryResource, MemoryResource];
const fail = (): never => {
  throw new OutOfMemoryError('none is left', { requestedBytes: 1, path: [] });
};
const failBelow = () => attempt(below, fail);
const line = new WaitingLine(true, new WaitTimes());
const rules: WaitRules = {
  resource: top,
  isShortage: () => true,
  begin: () => {},
  beforeAttempt: () => {},
  beforeWaiting: () => 'give up',
  failure: (_, shortage) => shortage,
  gaveUp: (shortage) => shortage,
  over: () => {},
};

test.each([
  ['the resource that had none', failBelow, below],
  ['that of the line if none was asked', fail, top],
])('a wait that gives up is told with %s', async (_, tries, where) => {
  await expect(line.run(tries, {}, rules)).rejects.toThrow('none is left');
  expect(told).toEqual([where]);
  expect(told[0]).toBe(where);
});

test('attempts before the one that is served are not told', async () => {
  let tries = 0;
  expect(await line.run(() => (++tries < 3 ? failBelow() : 'served'), {}, { ...rules, beforeWaiting: () => 'try' })).toBe('served');
  expect(told).toEqual([]);
});

test('what a call still does after it was served is told', async () => {
  let later: Promise<unknown> | undefined;
  await line.run(
    () => {
      later = nextTurn().then(() => caught(failBelow));
    },
    {},
    rules,
  );
  expect(await later).toBeInstanceOf(OutOfMemoryError);
  expect(told).toEqual([below]);
});

test('a pin that does not wait is told once, after all that it tries', async () => {
  using leaf = new CudaMemoryResource();
  using pool = new PoolMemoryResource(leaf, { initialBytes: 2 * MiB, maximumBytes: 2 * MiB });
  using pinned = new PinnedHostMemoryResource();
  using resource = new SpillingResourceAdaptor(pool, pinned);
  using buffer = new SpillableBuffer(MiB, { stream, resource });
  resource.spill();
  const pointer = resource.allocate(2 * MiB, stream);
  expect(caught(() => buffer.pinSync())).toEqual(code('ERR_CISTERN_OUT_OF_MEMORY'));
  expect(told).toEqual([resource]);
  await expect(buffer.pin(stream, { timeoutMilliseconds: 0 })).rejects.toEqual(code('ERR_CISTERN_OUT_OF_MEMORY'));
  expect(told).toEqual([resource, resource]);
  expect(buffer.prefetch()).toBe(false);
  expect(told).toEqual([resource, resource]);
  resource.deallocate(pointer, 2 * MiB, stream);
});

test('a wait for room that ends before it has tried is told with its adaptor', async () => {
  using leaf = new CudaMemoryResource();
  using pinned = new PinnedHostMemoryResource();
  using resource = new SpillingResourceAdaptor(leaf, pinned);
  const pointer = resource.allocate(256, stream);
  const controller = new AbortController();
  const first = resource.inTurn(failBelow, { signal: controller.signal });
  const never = () => expect.unreachable();
  await expect(resource.inTurn(never, { timeoutMilliseconds: 1 })).rejects.toEqual(code('ERR_CISTERN_OUT_OF_MEMORY'));
  expect(told).toEqual([resource]);
  controller.abort(new Error('no more'));
  await expect(first).rejects.toThrow('no more');
  resource.deallocate(pointer, 256, stream);
});
