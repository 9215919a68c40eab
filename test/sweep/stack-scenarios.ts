import { layersOf } from '../../src/adaptors/layers.js';
import {
  ArenaMemoryResource,
  CachingMemoryResource,
  createResourceStack,
  type DeallocationEvents,
  Event,
  FallbackResourceAdaptor,
  FixedSizeMemoryResource,
  LimitingResourceAdaptor,
  type MemoryResource,
  PoolMemoryResource,
  ReclaimingResourceAdaptor,
  StatisticsResourceAdaptor,
  Stream,
  StreamOrderedMemoryResource,
  set,
  TrackingResourceAdaptor,
  type TrimmingMemoryResource,
} from '../../src/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { stacksOf } from '../support/kind-stacks.js';
import type { Scenario, ScenarioRun } from './scenario-run.js';

const policies: readonly DeallocationEvents[] = ['eager', 'deferred', 'off'];

/**
 * Stacks with several layers that keep memory, common orders of layers, and options that the
 * examples of kinds leave out.
 */
const compositions = [
  'arena(cuda,arenaBytes=4MiB)',
  'binning(cuda-async,minimumExponent=16,maximumExponent=18)',
  'fallback(pool(cuda,maximumBytes=100KB),fallback=cuda)',
  'prefetch(pool(managed))',
  'recording(cuda,file=/dev/null,stackSampleBytes=0)',
  'sanitizing(cuda-async)',
  'limiting(statistics(tracking(pool(cuda,initialBytes=1MiB,deallocationEvents=deferred))),limitBytes=8MiB)',
  'binning(pool(cuda),bins=[64KiB,1MiB],blocksToPreallocate=1)',
  'pool(arena(cuda,arenaBytes=8MiB,deallocationEvents=eager))',
  'pool(pool(cuda-async,deallocationEvents=off),deallocationEvents=eager)',
  'pool(global-arena(name=small,arenaBytes=4MiB,superblockBytes=256KiB),deallocationEvents=deferred)',
  'monotonic(pool(cuda),initialBytes=64KiB,fallback=cuda)',
  'caching(rounding(pool(cuda,maximumBytes=8MiB),kind=top-bits,bits=3))',
  'fallback(pool(cuda,maximumBytes=256KiB),fallback=pool(managed))',
  'reclaiming(fixed-size(cuda-async,blockBytes=1MiB,blocksToPreallocate=1))',
];

/**
 * Every kind of resource, over each leaf with device memory, with each policy of the layer that
 * keeps memory.
 */
export function stackScenarios(): Scenario[] {
  const specifications = [...everyKind.flatMap(stacksOf), ...compositions];
  return specifications.map((specification) => ({ name: specification, play: (run) => playStack(run, specification) }));
}

/** Memory that runs out, and comes back as others free it. */
export function exhaustionScenarios(): Scenario[] {
  const stacks = policies.flatMap((events) => [
    `pool(cuda,maximumBytes=1MiB,deallocationEvents=${events})`,
    `arena(cuda-async,arenaBytes=1MiB,deallocationEvents=${events})`,
    `pool(global-arena(arenaBytes=1MiB,superblockBytes=64KiB),deallocationEvents=${events})`,
    `fixed-size(limiting(cuda,limitBytes=1MiB),blockBytes=600KB,blocksToPreallocate=1,deallocationEvents=${events})`,
    `binning(limiting(cuda,limitBytes=1MiB),bins=[600KB],deallocationEvents=${events})`,
    `monotonic(cuda,initialBytes=64KiB,maximumBytes=1MiB,deallocationEvents=${events})`,
    `reclaiming(pool(limiting(cuda,limitBytes=1MiB),deallocationEvents=${events}))`,
  ]);
  return stacks.map((specification) => ({ name: `${specification} runs out`, play: (run) => playExhaustion(run, specification) }));
}

/** Many blocks in one call, some of which run out. */
export function bulkScenarios(): Scenario[] {
  const stacks = policies.map((events) => `pool(cuda,maximumBytes=1MiB,deallocationEvents=${events})`);
  return stacks.map((specification) => ({ name: `${specification}, many at once`, play: (run) => playMany(run, specification) }));
}

/**
 * Allocates and frees on two streams, one of which ends, and on one created after that; with a
 * fence, trim and defragment.
 */
function playStack(run: ScenarioRun, specification: string): void {
  const stack = run.make('the stack', () => createResourceStack(specification));
  const { resource, layers } = stack;
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const allocate = (bytes: number, stream: Stream) => {
    const pointer = run.do(`allocate ${bytes} bytes`, () => resource.allocate(bytes, stream));
    stream.touch(pointer, bytes, 'write');
    return pointer;
  };
  const free = (pointer: number, bytes: number, stream: Stream, fence?: DeallocationEvents | Event) =>
    run.do(`free ${bytes} bytes`, () => resource.deallocate(pointer, bytes, stream, fence));

  const first = allocate(100_000, a);
  if (resource.memoryKind !== 'host') run.do('set memory', () => set(first, 1, 1, 100_000, a));
  const second = allocate(5_000, a);
  const third = allocate(70_000, b);
  free(first, 100_000, a);
  const fourth = allocate(90_000, b);
  const event = run.make('an event', () => new Event());
  run.do('record the event', () => event.record(a));
  free(second, 5_000, a, event);
  const fifth = allocate(4_000, a);
  free(third, 70_000, b);
  free(fourth, 90_000, b, 'off');
  run.do('dispose stream b', () => b.dispose());
  const sixth = allocate(80_000, a);
  const large = allocate(700_000, a);
  free(sixth, 80_000, a);
  free(fifth, 4_000, a, 'deferred');
  for (const layer of layers) {
    if (isTrimming(layer) && layer.device === a.device) run.do(`trim the ${layer.constructor.name}`, () => layer.trim(a));
    if (isDefragmenting(layer)) run.do('defragment', () => layer.defragment());
  }
  const c = run.make('stream c', () => new Stream());
  const last = allocate(60_000, c);
  free(large, 700_000, a);
  free(last, 60_000, c);
  const inside = new Set(layers.filter(isPooling).flatMap((pool) => layersOf(pool).slice(1)));
  for (const layer of layers) {
    // Memory that a pooling resource holds for its own use is live in the layers below it.
    if (!inside.has(layer)) run.checkGivenBack(outstandingBytes(layer) === 0, `the ${layer.constructor.name} counts no memory as live`);
  }

  // A resource that keeps memory gives it back at the end, even if it is in use, unless it passed the request on.
  if (!isPooling(resource) || resource instanceof CachingMemoryResource || resource instanceof PlannedMemoryResource) return;
  allocate(3_000, a);
  run.do('synchronize a', () => a.synchronizeSync());
}

/** One stream takes all memory; another gets it after it is freed, and is refused before. */
function playExhaustion(run: ScenarioRun, specification: string): void {
  const { resource } = run.make('the stack', () => createResourceStack(specification));
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const bytes = 600_000;
  const first = run.do('allocate on a', () => resource.allocate(bytes, a));
  a.touch(first, bytes, 'write');
  run.refused('allocate on b', 'ERR_CISTERN_OUT_OF_MEMORY', () => resource.allocate(bytes, b));
  run.do('free on a', () => resource.deallocate(first, bytes, a));
  // Single frees give nothing back there.
  if (isResetting(resource)) run.do('reset', () => resource.reset());
  const second = run.do('allocate on b', () => resource.allocate(bytes, b));
  b.touch(second, bytes, 'write');
  run.do('free on b', () => resource.deallocate(second, bytes, b));
  run.do('dispose b', () => b.dispose());
  if (isResetting(resource)) run.do('reset', () => resource.reset());
  const third = run.do('allocate on a', () => resource.allocate(bytes, a));
  a.touch(third, bytes, 'write');
  run.do('free on a', () => resource.deallocate(third, bytes, a));
}

function playMany(run: ScenarioRun, specification: string): void {
  const { resource } = run.make('the stack', () => createResourceStack(specification));
  const bulk = resource as PoolMemoryResource;
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const sizes = Float64Array.of(100_000, 0, 5_000, 300_000, 700);
  for (const stream of [a, b, a]) {
    const pointers = run.do('allocate many', () => bulk.allocateMany(sizes, stream));
    pointers.forEach((pointer, i) => {
      if (pointer !== 0) stream.touch(pointer, sizes[i] as number, 'write');
    });
    run.refused('allocate too many', 'ERR_CISTERN_OUT_OF_MEMORY', () => bulk.allocateMany(Float64Array.of(5_000, 70_000, 900_000), b));
    run.refused('free one twice', 'ERR_CISTERN_DOUBLE_FREE', () => {
      bulk.deallocateMany(Float64Array.of(...pointers, pointers[0] as number), Float64Array.of(...sizes, sizes[0] as number), stream);
    });
    run.do('free many', () => bulk.deallocateMany(pointers, sizes, stream));
  }
}

function isTrimming(resource: MemoryResource): resource is TrimmingMemoryResource {
  return 'trim' in resource;
}

function isDefragmenting(resource: MemoryResource): resource is MemoryResource & { defragment(): number } {
  return 'defragment' in resource;
}

function isResetting(resource: MemoryResource): resource is MemoryResource & { reset(): void } {
  return 'reset' in resource;
}

function isPooling(resource: MemoryResource): resource is StreamOrderedMemoryResource {
  return resource instanceof StreamOrderedMemoryResource;
}

/** The bytes that a resource counts as live, if it counts. */
function outstandingBytes(resource: MemoryResource): number {
  const isCounting = [PoolMemoryResource, ArenaMemoryResource, FixedSizeMemoryResource, CachingMemoryResource].some(
    (type) => resource instanceof type,
  );
  if (isCounting) return (resource as PoolMemoryResource).statistics().allocatedBytes;
  if (resource instanceof LimitingResourceAdaptor || resource instanceof TrackingResourceAdaptor) return resource.allocatedBytes;
  if (resource instanceof StatisticsResourceAdaptor) return resource.statistics().bytes.current;
  if (resource instanceof ReclaimingResourceAdaptor) return resource.liveBytes;
  if (resource instanceof FallbackResourceAdaptor) return resource.fallbackBytes;
  return 0;
}
