/**
 * Counts what frees under `'off'` cost at the driver, in every resource that keeps memory, below every
 * adaptor that passes calls on, however `'off'` is asked for.
 *
 * Memory that nobody has freed yet may cost something: an event for each block that came from the
 * upstream, a few more while streams merge it that have freed nothing yet, and waits of streams that get a
 * part of it. Once they free that part under `'off'`, it costs nothing any more, so those parts have
 * together no more bytes than came from the upstream.
 */
import { describe, expect, test } from 'vitest';
import {
  ALLOCATION_ALIGNMENT,
  ArenaMemoryResource,
  type ArenaStatistics,
  CachingMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  currentBackend,
  type DeallocationEvents,
  Device,
  type DevicePointer,
  formatSpecification,
  KiB,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  type ResourceKind,
  type ResourceStack,
  type Specification,
  Stream,
  VirtualMemoryResource,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { Sfc32 } from '../../src/tools/replay/generator-random.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { callsOf } from '../support/driver-calls.js';
import { exampleOf, leafOf, withEvents } from '../support/kind-stacks.js';
import { eventCalls, policies, sharingPolicies } from '../support/stream-order.js';

const keepers = everyKind.filter(({ role }) => role === 'pooling');
const adaptors = everyKind.filter(({ role }) => role === 'pass-through');

/** The kinds that pass some calls on to their upstream, which must then keep memory, too: a leaf's free waits. */
const passingKinds = new Set(['binning', 'caching', 'planned']);
const roomyBytes = 256 * MiB;
const mostBytes = 2 * MiB;
/** What an adaptor asks for in addition, to align what it returns. */
const mostPaddingBytes = 4 * KiB;
const steps = 700;
const eventWaits = callsOf('cuStreamWaitEvent');
/** A plan serves what is not larger than planned, and makes streams wait as planned, whatever the policy. */
const leastBytesOf = ({ kind, upstream }: Specification): number =>
  kind === 'planned' ? MiB / 2 : upstream === undefined ? 8 * KiB : leastBytesOf(upstream);

/** How a free under `'off'` is asked for, over a keeper with a policy of its own. */
const ways = ['own', 'adaptor', 'outermost adaptor', 'call'] as const;

interface Traffic {
  readonly specification: Specification;
  readonly streams: number;
  /** Whether nothing that is queued on the streams runs: none of them is ever idle. */
  readonly isBusy: boolean;
  readonly seed: number;
  /** How many frees of a hundred are under `'off'`; the others have no fence. */
  readonly percentOff: number;
  /** Whether those ask for it themselves. */
  readonly isAskedFor: boolean;
  /** Whether memory may run out. */
  readonly isScarce?: boolean;
}

interface Costs {
  readonly frees: number;
  /** Frees that were not under `'off'`. */
  readonly otherFrees: number;
  readonly records: number;
  readonly synchronizations: number;
  /** The bytes of the allocations in which a stream waited. */
  readonly waitedBytes: number;
  /** The blocks that resources took from those below, and their bytes. */
  readonly growths: number;
  readonly grownBytes: number;
  /** How often an arena moved all memory to the global one. */
  readonly defragmentations: number;
}

/**
 * A kind's example on something else, with room for whatever is asked for: before memory runs out,
 * streams are waited for. It takes little at a time, so that fresh memory is soon used up.
 */
function roomy(kind: ResourceKind, upstream: Specification): Specification {
  const { options: { maximumBytes: _, ...options } = {} } = exampleOf(kind);
  const room = kind.maximum !== undefined && kind.maximum in options ? { [kind.maximum]: roomyBytes } : {};
  const block = 'blockBytes' in options ? { blockBytes: mostBytes + mostPaddingBytes } : {};
  const branches = Object.keys(options).filter((name) => kind.options[name]?.type === 'resource');
  // Where the second resource must be of another kind of memory, it stays as it is.
  const isElsewhere = (name: string) => leafOf(options[name] as Specification).kind === 'pinned-host';
  const second = Object.fromEntries(branches.filter((name) => !isElsewhere(name)).map((name) => [name, { kind: 'pool', upstream }]));
  return { kind: kind.name, upstream, options: { ...options, ...room, ...block, ...second } };
}

function keeping(keeper: ResourceKind, leaf: Specification, policy: DeallocationEvents): Specification {
  return withEvents(roomy(keeper, passingKinds.has(keeper.name) ? { kind: 'pool', upstream: leaf } : leaf), policy);
}

function passing(
  adaptor: ResourceKind,
  keeper: ResourceKind,
  { policy, way }: { policy: DeallocationEvents; way: (typeof ways)[number] },
): Specification {
  const below = keeping(keeper, leafOf(exampleOf(adaptor)), policy);
  if (way === 'own') return roomy(adaptor, below);
  if (way === 'adaptor') return withEvents(roomy(adaptor, below), 'off');
  const eager = withEvents(roomy(adaptor, below), 'eager');
  return way === 'call' ? eager : withEvents(roomy(adaptor, eager), 'off');
}

/** Allocates and frees at random, and counts what that costs at the driver. */
function costsOf({ specification, streams: count, isBusy, seed, percentOff, isAskedFor, isScarce = false }: Traffic): Costs {
  using stack = createResourceStack(specification);
  const streams = Array.from({ length: count }, () => new Stream({ nonBlocking: true }));
  const holds = isBusy ? streams.map((stream) => stream.hold()) : [];
  const random = new Sfc32(seed);
  const leastBytes = leastBytesOf(specification);
  const live: { pointer: DevicePointer; bytes: number; stream: Stream }[] = [];
  /** The greatest alignment that was not refused. */
  let mostAlignment = mostBytes;
  let frees = 0;
  let otherFrees = 0;
  let waitedBytes = 0;
  let growths = 0;
  let grownBytes = 0;
  let defragmentations = 0;

  const allocate = () => {
    const stream = streams[random.between(0, count - 1)] as Stream;
    const bytes = Math.ceil(2 ** random.uniform(Math.log2(leastBytes), Math.log2(mostBytes)));
    const alignment = Math.min(random.fraction() < 0.5 ? ALLOCATION_ALIGNMENT : 2 ** random.between(8, 21), mostAlignment);
    const waits = eventWaits();
    try {
      live.push({ pointer: stack.resource.allocate(bytes, stream, alignment), bytes, stream });
    } catch (error) {
      if (!(error instanceof OutOfMemoryError || error instanceof RangeError)) throw error;
      if (!isScarce && alignment === ALLOCATION_ALIGNMENT) throw error;
      if (!isScarce) mostAlignment = alignment / 2;
    }
    if (eventWaits() > waits) waitedBytes += bytes;
  };
  const free = () => {
    const [{ pointer, bytes, stream }] = live.splice(random.between(0, live.length - 1), 1) as [(typeof live)[number]];
    const isOff = random.between(0, 99) < percentOff;
    frees++;
    if (!isOff) otherFrees++;
    stack.resource.deallocate(pointer, bytes, stream, isOff && isAskedFor ? 'off' : undefined);
  };

  let costs: Costs | undefined;
  const before = driverCallCounts();
  try {
    inRun(stack, () => {
      for (let step = 0; step < steps; step++) {
        if (live.length < 24 && random.fraction() < 0.6) allocate();
        else if (live.length > 0) free();
      }
      const after = driverCallCounts();
      for (const layer of stack.layers) {
        const { growths: blocks = 0, peakReservedBytes = 0, defragmentations: moves = 0 } = statisticsOf(layer);
        growths += blocks;
        grownBytes += peakReservedBytes;
        defragmentations += moves;
      }
      costs = {
        frees,
        otherFrees,
        records: after.eventRecords - before.eventRecords,
        synchronizations: after.synchronizations - before.synchronizations,
        waitedBytes,
        growths,
        grownBytes,
        defragmentations,
      };
      while (live.length > 0) free();
    });
  } finally {
    for (const hold of holds) hold.release();
    for (const stream of streams) stream.dispose();
  }
  return costs as Costs;
}

function statisticsOf(layer: object): Partial<ArenaStatistics> {
  return 'statistics' in layer ? (layer as { statistics(): Partial<ArenaStatistics> }).statistics() : {};
}

/** Fails if there are more events than fresh memory and other frees account for, or any wait of the host. */
function expectFree(traffic: Traffic): Costs {
  const costs = costsOf(traffic);
  if (traffic.isScarce !== true) expect(costs.frees, told(traffic)).toBeGreaterThan(steps / 3);
  const fresh = costs.growths + 2 * traffic.streams;
  expect(costs.records, told(traffic)).toBeLessThanOrEqual(fresh + costs.otherFrees + costs.defragmentations);
  // A stream that has just begun to wait for an event is idle again at once only on the software device.
  if (traffic.isScarce !== true || currentBackend() === 'software') expect(costs.synchronizations, told(traffic)).toBe(0);
  if (traffic.percentOff === 100) expect(costs.waitedBytes, told(traffic)).toBeLessThanOrEqual(costs.grownBytes);
  return costs;
}

/** A cache keeps memory in its runs. */
function inRun(stack: ResourceStack, action: () => void): void {
  const cache = stack.layers.find((layer) => layer instanceof CachingMemoryResource);
  if (cache === undefined) action();
  else cache.run(action);
}

function told({ specification, streams, isBusy, seed, percentOff }: Traffic): string {
  return `${formatSpecification(specification)}, ${percentOff} % off, ${streams} ${isBusy ? 'busy' : 'idle'} streams, seed ${seed}`;
}

describe.each(keepers.map((keeper) => [keeper.name, keeper] as const))(
  'in %s, frees under off cost nothing at the driver',
  (_name, keeper) => {
    /** Each policy and way, in turns: an adaptor goes on where the one before ended. */
    const manners = policies.flatMap((policy) => ways.filter((way) => way !== 'own' || policy === 'off').map((way) => ({ policy, way })));
    test.each(adaptors.map((adaptor, i) => [adaptor.name, adaptor, i] as const))('below %s', (_adaptor, adaptor, i) => {
      for (let k = 4 * i; k < 4 * i + 4; k++) {
        const manner = manners[k % manners.length] as (typeof manners)[number];
        const traffic: Traffic = {
          specification: passing(adaptor, keeper, manner),
          streams: 1 + ((k + (k >> 2)) % 4),
          isBusy: k % 3 > 0,
          seed: 1000 * keepers.indexOf(keeper) + k,
          percentOff: 100,
          isAskedFor: manner.way === 'call',
        };
        expect(expectFree(traffic).defragmentations).toBe(0);
      }
    });

    test.each(sharingPolicies)('beside others, which are %s', (policy) => {
      for (let k = 0; k < 12; k++) {
        const traffic: Traffic = {
          specification: keeping(keeper, { kind: 'cuda' }, policy),
          streams: 1 + (k % 4),
          isBusy: k % 3 > 0,
          seed: 1000 * keepers.indexOf(keeper) + 100 + k,
          percentOff: [50, 90, 98][k % 3] as number,
          isAskedFor: true,
        };
        expect(expectFree(traffic).defragmentations).toBe(0);
      }
    });
  },
);

test.each(keepers.flatMap((keeper) => (keeper.maximum === undefined ? [] : [[keeper.name, keeper, keeper.maximum] as const])))(
  'in %s, they cost nothing if memory runs out, and streams are asked whether they are idle',
  (_name, keeper, maximum) => {
    for (const [k, policy] of policies.entries()) {
      const { options = {}, ...rest } = keeping(keeper, { kind: 'cuda' }, policy);
      expectFree({
        specification: { ...rest, options: { ...options, [maximum]: 12 * MiB } },
        streams: 2 + k,
        isBusy: false,
        seed: 1000 * keepers.indexOf(keeper) + 200 + k,
        percentOff: 100,
        isAskedFor: true,
        isScarce: true,
      });
    }
  },
);

describe('memory freed under off in a pool that records events', () => {
  const bytes = 64 * KiB;
  const page = 2 * MiB;

  test('costs no event after a stream that frees under a policy with events has merged it', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes: bytes });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    using c = new Stream({ nonBlocking: true });
    pool.deallocate(pool.allocate(bytes, a), bytes, a, 'off');
    a.synchronizeSync();
    using _busy = b.hold();
    expect(
      eventCalls(() => {
        expect(() => pool.allocate(2 * bytes, b)).toThrow('out of memory');
        pool.allocate(bytes, c);
      }),
    ).toEqual({ records: 0, waits: 0 });
    _busy.release();
  });

  test('stays held for its stream when that trims the pool', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource());
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    pool.deallocate(pool.allocate(bytes, a), bytes, a, 'off');
    using busy = a.hold();
    pool.deallocate(pool.allocate(bytes, a), bytes, a, 'off');
    expect(pool.trim(a, { bytesToKeep: bytes })).toBe(0);
    expect(pool.heldBackFrom(b)).toBe(bytes);
    expect(pool.trim(a)).toBe(bytes);
    busy.release();
  });

  test('coalesces with the pages that come after it', () => {
    using pool = new PoolMemoryResource(new VirtualMemoryResource());
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using busy = b.hold();
    // Runs if the host waits.
    other.launchHostFunction(() => busy.release());
    pool.deallocate(pool.allocate(page, b), page, b, 'off');
    pool.deallocate(pool.allocate(page, a), page, a, 'off');
    pool.allocate(2 * page, a);
    expect(pool.statistics()).toMatchObject({ reservedBytes: 3 * page, synchronizations: 0 });
    pool.validate();
    busy.release();
  });

  test('is searched thoroughly before memory runs out', () => {
    const [least, gap, block] = [16 * KiB, 256, 16 * KiB + 256];
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 10 * (block + gap), maximumBytes: 10 * (block + gap) });
    using a = new Stream();
    const pointers = Array.from({ length: 10 }, (_, i) => {
      const pointer = pool.allocate(i === 0 ? block : least, a);
      pool.allocate(gap, a);
      return pointer;
    });
    pool.allocate(9 * gap, a);
    // The index looks at a few of a class, the latest first.
    for (const [i, pointer] of pointers.entries()) pool.deallocate(pointer, i === 0 ? block : least, a, 'off');
    expect(pool.allocate(block, a)).toBe(pointers[0]);
  });

  test('goes back to the upstream before more is taken than the maximum', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { maximumBytes: 3 * bytes });
    using a = new Stream();
    const first = pool.allocate(bytes, a);
    const second = pool.allocate(bytes, a);
    pool.deallocate(first, bytes, a, 'off');
    pool.deallocate(second, bytes, a, 'off');
    pool.allocate(3 * bytes, a);
    expect(pool.statistics()).toMatchObject({ reservedBytes: 3 * bytes, synchronizations: 0 });
    pool.validate();
  });
});

test('a superblock of a stream that has freed under off serves that stream only', () => {
  using arena = new ArenaMemoryResource(new CudaMemoryResource(), { arenaBytes: MiB, deallocationEvents: 'eager' });
  using a = new Stream();
  using b = new Stream();
  const [small, large] = [256, 32 * KiB - 512];
  using busy = a.hold();
  arena.deallocate(arena.allocate(small, a), small, a, 'off');
  arena.allocate(small, a);
  arena.allocate(large, a);
  arena.allocate(small, a);
  expect(arena.heldBackFrom(b)).toBe(0);
  arena.allocate(2 * small, a);
  expect(arena.heldBackFrom(b)).toBe(32 * KiB - 2 * small);
  busy.release();
});

const taking = [...keepers, ...adaptors].filter(({ options }) => 'deallocationEvents' in options);

test.each(taking)('$name refuses null as a policy', (kind) => {
  const { options = {} } = exampleOf(kind);
  const device = Device.get();
  const upstreamOf = () => new CudaMemoryResource();
  const make = () =>
    kind.create({ upstream: upstreamOf(), device, upstreamOf, options: { ...options, deallocationEvents: null } as never });
  expect(make).toThrow("deallocationEvents must be 'eager', 'deferred', 'off', got null");
});
