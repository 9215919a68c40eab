import { expect, test } from 'vitest';
import { GiB, Stream, VirtualMemoryResource } from '../../src/index.js';
import { sleepResource, wakeResource } from '../../src/serving/index.js';
import { collectGarbage } from './collection.js';

const steps = {
  sleep: (memory: VirtualMemoryResource) => sleepResource(memory, { keep: 'host', unchanged: true }),
  wake: (memory: VirtualMemoryResource) => wakeResource(memory, { stagingBytes: GiB }),
  dispose: (memory: VirtualMemoryResource) => memory.dispose(),
};

test.each<(keyof typeof steps)[]>([
  ['sleep', 'wake', 'dispose'],
  ['sleep', 'wake', 'sleep', 'wake', 'dispose'],
  ['sleep', 'wake', 'wake', 'dispose'],
  ['sleep', 'dispose', 'wake'],
  ['sleep', 'wake', 'sleep', 'dispose', 'wake'],
])('nothing watches what is written to memory that is no more: %s %s %s %s %s', async (...names) => {
  using stream = new Stream();
  const watching = await (async () => {
    const memory = new VirtualMemoryResource();
    const pointer = memory.allocate(memory.granularityBytes, stream);
    for (const name of names) await steps[name](memory);
    memory.deallocate(pointer, memory.granularityBytes, stream);
    return new WeakRef(memory.sleepable.sleep as object);
  })();
  // What was dereferenced stays until the end of its job.
  for (let turn = 0; turn < 3; turn++) await collectGarbage();
  expect(watching.deref()).toBe(undefined);
});
