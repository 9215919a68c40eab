import {
  ArenaMemoryResource,
  BinningMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  FixedSizeMemoryResource,
  HostMemoryResource,
  LimitingResourceAdaptor,
  LoggingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  ReclaimingResourceAdaptor,
  StatisticsResourceAdaptor,
} from '../../src/index.js';
import type { ResourceHarness, ResourceSupport } from '../../src/testing/index.js';

const capacityBytes = 64 * MiB;
const synchronous: ResourceSupport = { maximumAlignment: 256, streamOrdered: false };
const streamOrdered: ResourceSupport = { maximumAlignment: 256, streamOrdered: true };

function leaf(type: new () => MemoryResource, supports: ResourceSupport): ResourceHarness {
  return { name: type.name, create: () => ({ resource: new type() }), supports };
}

type Wrap = (upstream: MemoryResource) => MemoryResource;

/** Adaptors over a leaf, from the inside out. */
function stack(name: string, leaf: () => MemoryResource, wraps: readonly Wrap[], supports: ResourceSupport): ResourceHarness {
  const create = () => {
    const resources = [leaf()];
    for (const wrap of wraps) resources.unshift(wrap(resources[0] as MemoryResource));
    const [resource, ...below] = resources as [MemoryResource, ...MemoryResource[]];
    const dispose = () => {
      for (const each of below) each[Symbol.dispose]();
    };
    return { resource, dispose };
  };
  return { name, create, supports };
}

const cuda = () => new CudaMemoryResource();
const cudaAsync = () => new CudaAsyncMemoryResource();
const limiting: Wrap = (upstream) => new LimitingResourceAdaptor(upstream, { limitBytes: capacityBytes });
const logging: Wrap = (upstream) => new LoggingResourceAdaptor(upstream, { file: '/dev/null' });
const reclaiming: Wrap = (upstream) => new ReclaimingResourceAdaptor(upstream);
const statistics: Wrap = (upstream) => new StatisticsResourceAdaptor(upstream);
const pool = (deallocationEvents: DeallocationEvents): Wrap => {
  return (upstream) => new PoolMemoryResource(upstream, { maximumBytes: capacityBytes, initialBytes: capacityBytes, deallocationEvents });
};
const arena = (deallocationEvents: DeallocationEvents): Wrap => {
  return (upstream) => new ArenaMemoryResource(upstream, { arenaBytes: capacityBytes, deallocationEvents });
};
const fixedSize = (deallocationEvents: DeallocationEvents): Wrap => {
  return (upstream) => new FixedSizeMemoryResource(upstream, { blocksToPreallocate: 2, deallocationEvents });
};
const binning = (maximumExponent: number, deallocationEvents: DeallocationEvents): Wrap => {
  return (upstream) => new BinningMemoryResource(upstream, { minimumExponent: 10, maximumExponent, bins: [300, 5000], deallocationEvents });
};

/** @param deviceBytes what device memory is exhausted at, or `undefined` where that is not to be tried */
export function leafHarnesses(deviceBytes: number | undefined): readonly ResourceHarness[] {
  const bounded = deviceBytes === undefined ? {} : { capacityBytes: deviceBytes };
  return [
    leaf(CudaMemoryResource, { ...synchronous, ...bounded }),
    leaf(CudaAsyncMemoryResource, { ...streamOrdered, ...bounded }),
    leaf(ManagedMemoryResource, synchronous),
    leaf(PinnedHostMemoryResource, synchronous),
    leaf(HostMemoryResource, { ...synchronous, maximumAlignment: 1024 * MiB }),
  ];
}

/** The adaptors that keep no memory, over an upstream with stream order and over one without. */
export function passThroughHarnesses(): readonly ResourceHarness[] {
  return [
    stack('limiting(cuda)', cuda, [limiting], { ...synchronous, capacityBytes }),
    stack('limiting(cuda-async)', cudaAsync, [limiting], { ...streamOrdered, capacityBytes }),
    stack('statistics(cuda)', cuda, [statistics], synchronous),
    stack('statistics(cuda-async)', cudaAsync, [statistics], streamOrdered),
    stack('reclaiming(limiting(cuda))', cuda, [limiting, reclaiming], { ...synchronous, capacityBytes }),
    stack('reclaiming(limiting(cuda-async))', cudaAsync, [limiting, reclaiming], { ...streamOrdered, capacityBytes }),
    stack('logging(cuda)', cuda, [logging], synchronous),
    stack('logging(cuda-async)', cudaAsync, [logging], streamOrdered),
  ];
}

/** The pool under each policy, its own or one that an adaptor above asks for. */
export function poolHarnesses(): readonly ResourceHarness[] {
  return (['eager', 'deferred', 'off'] as const).flatMap((events) => {
    const supports = { maximumAlignment: Infinity, streamOrdered: true, reusesAcrossStreams: events !== 'off', capacityBytes };
    const asking: Wrap = (upstream) => new StatisticsResourceAdaptor(upstream, { deallocationEvents: events });
    const other = events === 'eager' ? 'deferred' : 'eager';
    return [
      stack(`pool(cuda, events=${events})`, cuda, [pool(events)], supports),
      stack(`pool(cuda-async, events=${events})`, cudaAsync, [pool(events)], supports),
      stack(`statistics(pool(cuda, events=${other}), events=${events})`, cuda, [pool(other), asking], supports),
      // Where memory runs out, it waits for the device before it fails.
      stack(`reclaiming(pool(cuda, events=${events}))`, cuda, [pool(events), reclaiming], { ...supports, reusesAcrossStreams: false }),
    ];
  });
}

/** The arena under each policy. */
export function arenaHarnesses(): readonly ResourceHarness[] {
  return (['eager', 'deferred', 'off'] as const).flatMap((events) => {
    const supports = { maximumAlignment: Infinity, streamOrdered: true, reusesAcrossStreams: events !== 'off', capacityBytes };
    return [
      stack(`arena(cuda, events=${events})`, cuda, [arena(events)], supports),
      stack(`arena(cuda-async, events=${events})`, cudaAsync, [arena(events)], supports),
    ];
  });
}

/** Blocks of one size, and bins of them, under each policy. One piece of most of the capacity goes through the bins to a pool. */
export function fixedSizeHarnesses(): readonly ResourceHarness[] {
  return (['eager', 'deferred', 'off'] as const).flatMap((events) => {
    const supports = { ...streamOrdered, reusesAcrossStreams: events !== 'off' };
    return [
      stack(`fixed-size(cuda, events=${events})`, cuda, [fixedSize(events)], supports),
      stack(`fixed-size(cuda-async, events=${events})`, cudaAsync, [fixedSize(events)], supports),
      stack(`binning(cuda, events=${events})`, cuda, [binning(20, events)], supports),
      stack(`binning(cuda-async, events=${events})`, cudaAsync, [binning(20, events)], supports),
      stack(`binning(pool(cuda), events=${events})`, cuda, [pool('eager'), binning(16, events)], { ...supports, capacityBytes }),
    ];
  });
}
