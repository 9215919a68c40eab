import {
  AlignedResourceAdaptor,
  ArenaMemoryResource,
  BinningMemoryResource,
  CachingMemoryResource,
  CallbackMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  FailureCallbackResourceAdaptor,
  FallbackResourceAdaptor,
  FixedSizeMemoryResource,
  formatSanitizerReport,
  HostMemoryResource,
  LimitingResourceAdaptor,
  LoggingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  PrefetchResourceAdaptor,
  ReclaimingResourceAdaptor,
  RecordingResourceAdaptor,
  RoundingResourceAdaptor,
  type RoundingResourceAdaptorOptions,
  SanitizingResourceAdaptor,
  StatisticsResourceAdaptor,
  TrackingResourceAdaptor,
} from '../../src/index.js';
import type { ResourceHarness, ResourceSupport } from '../../src/testing/index.js';
import { InRunResource } from '../support/in-run-resource.js';

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
const managed = () => new ManagedMemoryResource();
const aligned: Wrap = (upstream) => new AlignedResourceAdaptor(upstream, { alignment: 4096, alignmentThresholdBytes: 2000 });
const callback: Wrap = (upstream) => {
  const allocate = upstream.allocate.bind(upstream);
  return new CallbackMemoryResource(allocate, upstream.deallocate.bind(upstream), { memoryKind: upstream.memoryKind });
};
const failureCallback: Wrap = (upstream) => {
  let calls = 0;
  return new FailureCallbackResourceAdaptor(upstream, () => ++calls % 2 === 1);
};
const prefetching: Wrap = (upstream) => new PrefetchResourceAdaptor(upstream);
const rounding = (options: RoundingResourceAdaptorOptions): Wrap => {
  return (upstream) => new RoundingResourceAdaptor(upstream, options);
};
const tracking: Wrap = (upstream) => new TrackingResourceAdaptor(upstream);
/** Small sizes come from either, others from the fallback only. */
const fallback: Wrap = (upstream) =>
  new FallbackResourceAdaptor(new LimitingResourceAdaptor(upstream, { limitBytes: 64 * 1024 }), limiting(upstream));
const limiting: Wrap = (upstream) => new LimitingResourceAdaptor(upstream, { limitBytes: capacityBytes });
const logging: Wrap = (upstream) => new LoggingResourceAdaptor(upstream, { file: '/dev/null' });
const recording: Wrap = (upstream) => new RecordingResourceAdaptor(upstream, { file: '/dev/null', stackSampleBytes: 1 * MiB });
const reclaiming: Wrap = (upstream) => new ReclaimingResourceAdaptor(upstream);
/** Fails in the end where stream order was not kept, by the suite or by what is below. */
class Sanitizing extends SanitizingResourceAdaptor {
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    const reports = this.reports.filter((report) => 'missing' in report);
    if (reports.length > 0) throw new Error(reports.map(formatSanitizerReport).join('\n'));
  }
}
const sanitizing: Wrap = (upstream) => new Sanitizing(upstream, { stacks: false });
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
const caching = (deallocationEvents: DeallocationEvents): Wrap => {
  return (upstream) => new CachingMemoryResource(upstream, { deallocationEvents });
};
const inRun: Wrap = (cache) => new InRunResource(cache as CachingMemoryResource);
const monotonic = (deallocationEvents: DeallocationEvents): Wrap => {
  return (upstream) => new MonotonicMemoryResource(upstream, { maximumBytes: capacityBytes, deallocationEvents });
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
    stack('recording(cuda)', cuda, [recording], synchronous),
    stack('recording(recording(cuda-async))', cudaAsync, [recording, recording], streamOrdered),
    stack('aligned(limiting(cuda))', cuda, [limiting, aligned], { ...synchronous, maximumAlignment: 1024 * MiB, capacityBytes }),
    stack('aligned(cuda-async)', cudaAsync, [aligned], { ...streamOrdered, maximumAlignment: 1024 * MiB }),
    // Sizes that are rounded to the same cannot be told apart below.
    stack('tracking(rounding(cuda, multiple=1000))', cuda, [rounding({ kind: 'multiple', multipleBytes: 1000 }), tracking], synchronous),
    stack(
      'tracking(rounding(cuda-async, divisions=2))',
      cudaAsync,
      [rounding({ kind: 'divisions', divisions: 2 }), tracking],
      streamOrdered,
    ),
    stack('tracking(rounding(cuda-async, top-bits=4))', cudaAsync, [rounding({ kind: 'top-bits' }), tracking], streamOrdered),
    stack('prefetch(managed)', managed, [prefetching], synchronous),
    stack('failure-callback(limiting(cuda))', cuda, [limiting, failureCallback], { ...synchronous, capacityBytes }),
    stack('failure-callback(cuda-async)', cudaAsync, [failureCallback], streamOrdered),
    stack('fallback(limiting(cuda), to=limiting(cuda))', cuda, [fallback], { ...synchronous, capacityBytes }),
    stack('fallback(limiting(cuda-async), to=limiting(cuda-async))', cudaAsync, [fallback], { ...streamOrdered, capacityBytes }),
    stack('tracking(cuda)', cuda, [tracking], synchronous),
    stack('tracking(cuda-async)', cudaAsync, [tracking], streamOrdered),
    stack('sanitizing(cuda)', cuda, [sanitizing], synchronous),
    stack('sanitizing(cuda-async)', cudaAsync, [sanitizing], streamOrdered),
    stack('callback(cuda)', cuda, [callback], synchronous),
    stack('callback(cuda-async)', cudaAsync, [callback], streamOrdered),
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
      stack(`aligned(pool(cuda, events=${events}))`, cuda, [pool(events), aligned], { ...supports, maximumAlignment: 1024 * MiB }),
      stack(`sanitizing(pool(sanitizing(cuda), events=${events}))`, cuda, [sanitizing, pool(events), sanitizing], supports),
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

/** The monotonic resource under each policy. */
export function monotonicHarnesses(): readonly ResourceHarness[] {
  const supports = { maximumAlignment: Infinity, streamOrdered: true, reusesFreedMemory: false, checksFrees: false, capacityBytes };
  return (['eager', 'deferred', 'off'] as const).flatMap((events) => [
    stack(`monotonic(cuda, events=${events})`, cuda, [monotonic(events)], supports),
    stack(`monotonic(cuda-async, events=${events})`, cudaAsync, [monotonic(events)], supports),
  ]);
}

/** A cache under each policy: outside of its runs, where it passes calls on, and inside of one. */
export function cachingHarnesses(): readonly ResourceHarness[] {
  return (['eager', 'deferred', 'off'] as const).flatMap((events) => {
    const cached = { ...streamOrdered, capacityBytes };
    return [
      stack(`caching(limiting(cuda), events=${events})`, cuda, [limiting, caching(events)], { ...synchronous, capacityBytes }),
      stack(`caching(limiting(cuda-async), events=${events})`, cudaAsync, [limiting, caching(events)], cached),
      // Without memory of the size that is asked for, it gives some back to the driver, which waits for the device then.
      stack(`a run of caching(limiting(cuda), events=${events})`, cuda, [limiting, caching(events), inRun], cached),
      stack(`a run of caching(limiting(cuda-async), events=${events})`, cudaAsync, [limiting, caching(events), inRun], {
        ...cached,
        reusesAcrossStreams: events !== 'off',
      }),
    ];
  });
}
