import { expect, it } from 'vitest';
import { eventObserver } from '../../src/driver/streams/stream-identity.js';
import { CudaMemoryResource, Event, PoolMemoryResource, Stream } from '../../src/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { collectGarbageUntil } from './collection.js';

it('a planned resource that is dropped within a recorded pass leaves no observer of events', async () => {
  using upstream = new CudaMemoryResource();
  using pool = new PoolMemoryResource(upstream);
  using stream = new Stream();
  using event = new Event();
  (() => {
    for (let i = 0; i < 10; i++) {
      const resource = new PlannedMemoryResource(pool, undefined, { planner: planAllocations });
      resource.begin();
      const own = new Stream();
      for (const each of [stream, own]) resource.deallocate(resource.allocate(256, each), 256, each);
    }
  })();
  expect(eventObserver).toBeDefined();
  await collectGarbageUntil(() => {
    event.record(stream);
    return eventObserver === undefined;
  });
  expect(eventObserver).toBeUndefined();
});
