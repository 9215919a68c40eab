import { afterAll, expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import {
  CachingMemoryResource,
  CallbackMemoryResource,
  CudaMemoryResource,
  type DeallocateCallback,
  DeviceBuffer,
  FailureCallbackResourceAdaptor,
  MiB,
  OutOfMemoryError,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  ReclaimingResourceAdaptor,
  Stream,
  uncached,
  withResource,
} from '../../src/index.js';
import { wrapMemory } from '../../src/interchange/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { collectGarbage } from './collection.js';

/** Gives a function that captures an object to the library. Returns what the program still has afterwards. */
type Use = (captured: object) => unknown;

const upstream = new CudaMemoryResource();
const stream = new Stream();
afterAll(() => {
  stream.dispose();
});

function newCache(): CachingMemoryResource {
  return new CachingMemoryResource(new PoolMemoryResource(upstream));
}

function allocateIn(resource: CachingMemoryResource | PlannedMemoryResource): void {
  resource.deallocate(resource.allocate(MiB, stream), MiB, stream);
  new DeviceBuffer(MiB, { stream, resource }).dispose();
}

/** Made here, as functions of one scope share what any of them captures. */
const freeUpstream: DeallocateCallback = (pointer, bytes, on) => upstream.deallocate(pointer, bytes, on);

/** The functions have nothing to allocate, so this is never served. */
function exhaust(resource: { allocate(bytes: number, stream: Stream): number }): void {
  expect(() => resource.allocate(2 ** 50, stream)).toThrow(OutOfMemoryError);
}

const uses: Readonly<Record<string, Use>> = {
  'a function of withResource': (captured) => {
    withResource(upstream, () => new DeviceBuffer(256, { stream }).dispose() ?? captured);
    return upstream;
  },
  'a function of uncached': (captured) => void uncached(() => captured),
  'the last function of a cache': (captured) => {
    const cache = newCache();
    cache.run(() => {
      allocateIn(cache);
      return [captured].length;
    });
    return cache;
  },
  'the last asynchronous function of a cache': async (captured) => {
    const cache = newCache();
    await cache.run(async () => {
      allocateIn(cache);
      await null;
      return [captured].length;
    });
    return cache;
  },
  'a function of a cache that leaves memory to it': (captured) => {
    const cache = newCache();
    cache.run(() => {
      cache.allocate(MiB, stream);
      new DeviceBuffer(MiB, { stream, resource: cache });
      return [captured].length;
    });
    return cache;
  },
  'a function of a cache whose memory is kept': (captured) => {
    const cache = newCache();
    const kept = cache.run(() => {
      new DeviceBuffer(MiB, { stream, resource: cache });
      return cache.keep(new DeviceBuffer([captured].length, { stream, resource: cache }));
    });
    return [cache, kept];
  },
  'a function of a cache that threw': (captured) => {
    const cache = newCache();
    expect(() =>
      cache.run(() => {
        cache.allocate(MiB, stream);
        throw new Error(`failed ${[captured].length}`);
      }),
    ).toThrow('failed 1');
    return cache;
  },
  'a function of a cache in one of the same cache': (captured) => {
    const cache = newCache();
    cache.run(() => {
      cache.allocate(MiB, stream);
      cache.run(() => cache.allocate([captured].length * MiB, stream));
    });
    return cache;
  },
  'a function of a cache that is disposed': (captured) => {
    const cache = newCache();
    cache.run(() => cache.allocate([captured].length * MiB, stream));
    cache.dispose();
    return cache;
  },
  'a function of a cache that is disposed in it': (captured) => {
    const cache = newCache();
    cache.run(() => {
      cache.allocate([captured].length * MiB, stream);
      cache.dispose();
    });
    return cache;
  },
  'the last pass of a plan': (captured) => {
    const planned = new PlannedMemoryResource(upstream, undefined, { planner: planAllocations });
    planned.run(() => {
      allocateIn(planned);
      return [captured].length;
    });
    return planned;
  },
  'the last asynchronous pass of a plan': async (captured) => {
    const planned = new PlannedMemoryResource(upstream, undefined, { planner: planAllocations });
    await planned.run(async () => {
      allocateIn(planned);
      await null;
      return [captured].length;
    });
    return planned;
  },
  'the planner of a disposed resource': (captured) => {
    const planned = new PlannedMemoryResource(upstream, undefined, {
      planner: (...args) => planAllocations(...args) ?? captured,
      recordedPasses: 1,
    });
    for (let pass = 0; pass < 3; pass++) planned.run(() => allocateIn(planned));
    planned.dispose();
    return planned;
  },
  'a host function that has run': (captured) => {
    stream.launchHostFunction(() => void captured);
    stream.synchronizeSync();
    return stream;
  },
  'the callback of a disposed failure-callback adaptor': (captured) => {
    const adaptor = new FailureCallbackResourceAdaptor(upstream, () => [captured].length === 0);
    exhaust(adaptor);
    adaptor.dispose();
    return adaptor;
  },
  'the callback of a disposed reclaiming adaptor': (captured) => {
    const adaptor = new ReclaimingResourceAdaptor(upstream, { stages: ['callback'], onOutOfMemory: () => [captured].length - 1 });
    exhaust(adaptor);
    adaptor.dispose();
    return adaptor;
  },
  'the function that allocates for a disposed callback resource': (captured) => {
    const resource = new CallbackMemoryResource((bytes, on) => upstream.allocate(bytes * [captured].length, on), freeUpstream);
    const pointer = resource.allocate(MiB, stream);
    resource.dispose();
    resource.deallocate(pointer, MiB, stream);
    return resource;
  },
  'the callback of a disposed order checker': (captured) => {
    const checker = checkOrder({ onViolation: () => void captured });
    checker.dispose();
    return checker;
  },
  'the function that releases memory of a disposed buffer': async (captured) => {
    const host = new PinnedHostMemoryResource();
    const ptr = host.allocate(4096, stream);
    const buffer = wrapMemory({
      ptr,
      byteLength: 4096,
      stream,
      release: () => host.deallocate(ptr, [captured].length * 4096, stream),
    });
    buffer.dispose();
    await stream.synchronize();
    return buffer;
  },
};

/** In a frame of its own, so that no stack slot of the test has the object. */
async function watchedThrough(use: Use): Promise<{ readonly watched: WeakRef<object>; readonly left: unknown }> {
  const captured = { bytes: new Uint8Array(1 << 20) };
  const watched = new WeakRef<object>(captured);
  return { watched, left: await use(captured) };
}

test.each(Object.entries(uses))('%s is collected with what it captured', async (_, use) => {
  const { watched, left } = await watchedThrough(use);
  // A job that looks at the reference keeps the object, and so must not be the one that collects.
  for (let round = 0; round < 3; round++) await collectGarbage();
  // What is left stays reachable until here.
  expect([watched.deref() === undefined, left === watched]).toEqual([true, false]);
});
