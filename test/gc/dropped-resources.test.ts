import { afterAll, describe, expect, test } from 'vitest';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CallbackMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  Device,
  DeviceBuffer,
  FailureCallbackResourceAdaptor,
  type MemoryResource,
  PoolMemoryResource,
  Stream,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { GlobalArena } from '../../src/workers/global-arena.js';
import { attachBuffer, detachBuffer } from '../../src/workers/index.js';
import { stacksOf } from '../support/kind-stacks.js';
import { collectGarbageUntil } from './collection.js';

const bytes = 256;
/** They live as long as the process. */
const streams = [Stream.legacyDefault(), new Stream(), new Stream({ nonBlocking: true })] as const;
afterAll(() => {
  for (const stream of streams.slice(1)) stream.dispose();
});

type Make = () => readonly MemoryResource[];
const callback = (upstream: MemoryResource) =>
  new CallbackMemoryResource(upstream.allocate.bind(upstream), upstream.deallocate.bind(upstream));

/** A checker of the order of all streams, which checks until it is disposed. */
const kinds = everyKind.filter(({ name }) => name !== 'sanitizing');

/** What is dropped keeps its memory until the process ends: on a small device, arenas of all stacks take too much. */
function withSmallArena(stack: string): string {
  return stack.replace('arenaBytes=64MiB', 'arenaBytes=4MiB');
}

/** By name: what makes the layers of a stack, the outermost first. */
const stacks: Readonly<Record<string, Make>> = {
  ...Object.fromEntries(kinds.flatMap(stacksOf).map((stack) => [stack, () => [...createResourceStack(withSmallArena(stack)).layers]])),
  callback: () => [callback(new PoolMemoryResource(new CudaMemoryResource()))],
  'failure-callback': () => [new FailureCallbackResourceAdaptor(new PoolMemoryResource(new CudaMemoryResource()), () => false)],
};

/** Leaves memory that each stream has freed, some of which had been another's before. */
function use(resource: MemoryResource): void {
  for (const stream of streams) {
    const pointers = [bytes, bytes].map((each) => resource.allocate(each, stream));
    for (const pointer of pointers) resource.deallocate(pointer, bytes, stream);
  }
  // A captured stream tells whoever keeps its memory, and a launched one whoever has memory of graphs.
  const stream = streams[2];
  const free = () => resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
  using graph = resource instanceof GraphMemoryResource ? resource.capture(stream, free) : stream.capture(() => {});
  using exec = graph.instantiate();
  exec.launch(stream);
  stream.synchronizeSync();
}

describe('a resource is collected if it is dropped with memory that was freed on streams that live on', () => {
  test.each(Object.keys(stacks))('%s', async (name) => {
    const kept = new Set<string>();
    const registry = new FinalizationRegistry<string>((layer) => kept.delete(layer));
    (() => {
      const layers = (stacks[name] as Make)();
      use(layers[0] as MemoryResource);
      for (const [depth, layer] of layers.entries()) {
        const layerName = `${depth} ${layer.constructor.name}`;
        kept.add(layerName);
        registry.register(layer, layerName);
      }
    })();
    await collectGarbageUntil(() => kept.size === 0);
    expect([...kept]).toEqual([]);
  });
});

test('a resource is collected once memory that it gave away has come home', async () => {
  let isCollected = false;
  const registry = new FinalizationRegistry(() => {
    isCollected = true;
  });
  (() => {
    const resource = new PoolMemoryResource(new CudaMemoryResource());
    const message = detachBuffer(new DeviceBuffer(bytes, { resource, stream: streams[1] }));
    attachBuffer(message, { stream: streams[2] }).dispose();
    registry.register(resource, undefined);
  })();
  await collectGarbageUntil(() => isCollected);
  expect(isCollected).toBe(true);
});

test('an arena of all workers is collected once it has ended', async () => {
  let isCollected = false;
  const registry = new FinalizationRegistry(() => {
    isCollected = true;
  });
  (() => {
    const options = { device: Device.get(), name: 'ended', kind: undefined, arenaBytes: 4096, superblockBytes: 4096 };
    const arena = GlobalArena.open(options);
    GlobalArena.open(options).close();
    arena.deallocate(arena.allocate(1, streams[0], 0), 1, streams[0]);
    arena.close();
    registry.register(arena, undefined);
  })();
  await collectGarbageUntil(() => isCollected);
  expect(isCollected).toBe(true);
});
