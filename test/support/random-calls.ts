/**
 * Random programs for one pooling resource over an upstream that has too little memory now and then: several
 * streams that come and go, fences, alignments, host functions in the middle of calls. What the resource does
 * is logged.
 */

import {
  ArenaMemoryResource,
  ArgumentRangeError,
  BinningMemoryResource,
  CachingMemoryResource,
  CisternError,
  type DeallocationEvents,
  type DeallocationFence,
  Event,
  FixedSizeMemoryResource,
  KiB,
  type MemoryResource,
  MiB,
  type MonotonicMark,
  MonotonicMemoryResource,
  PoolMemoryResource,
  Stream,
  type TrimmingMemoryResource,
} from '../../src/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { LoggedCalls, LoggedGrowingUpstream, LoggedUpstream, randomNumbers } from './logged-calls.js';

interface Subject {
  readonly resource: MemoryResource & TrimmingMemoryResource;
  readonly upstream: LoggedUpstream;
  readonly others?: readonly MemoryResource[];
}

type Make = (log: LoggedCalls, limitBytes: number, deallocationEvents: DeallocationEvents) => Subject;

const over =
  (make: (upstream: LoggedUpstream, deallocationEvents: DeallocationEvents, log: LoggedCalls) => Subject['resource']): Make =>
  (log, limitBytes, deallocationEvents) => {
    const upstream = new LoggedUpstream(log, 'upstream', limitBytes);
    return { resource: make(upstream, deallocationEvents, log), upstream };
  };

/** Every kind that keeps memory, with options that lead to each of its tries. */
export const subjects: Readonly<Record<string, Make>> = {
  pool: over((upstream, deallocationEvents) => new PoolMemoryResource(upstream, { deallocationEvents })),
  'pool with an initial block': over(
    (upstream, deallocationEvents) => new PoolMemoryResource(upstream, { deallocationEvents, initialBytes: 4 * MiB }),
  ),
  'pool with a maximum': over(
    (upstream, deallocationEvents) => new PoolMemoryResource(upstream, { deallocationEvents, initialBytes: MiB, maximumBytes: 6 * MiB }),
  ),
  'pool in pages': (log, limitBytes, deallocationEvents) => {
    const upstream = new LoggedGrowingUpstream(log, 'pages', limitBytes);
    return { resource: new PoolMemoryResource(upstream, { deallocationEvents }), upstream };
  },
  'pool in pages with a maximum': (log, limitBytes, deallocationEvents) => {
    const upstream = new LoggedGrowingUpstream(log, 'pages', limitBytes);
    return { resource: new PoolMemoryResource(upstream, { deallocationEvents, maximumBytes: 6 * MiB, initialBytes: MiB }), upstream };
  },
  'pool on a pool': over(
    (upstream, deallocationEvents) => new PoolMemoryResource(new PoolMemoryResource(upstream), { deallocationEvents }),
  ),
  arena: over((upstream, deallocationEvents) => new ArenaMemoryResource(upstream, { deallocationEvents, arenaBytes: 3 * MiB })),
  'fixed-size': over(
    (upstream, deallocationEvents) =>
      new FixedSizeMemoryResource(upstream, { deallocationEvents, blockBytes: 100_000, blocksToPreallocate: 8 }),
  ),
  'fixed-size with a maximum': over(
    (upstream, deallocationEvents) =>
      new FixedSizeMemoryResource(upstream, { deallocationEvents, blockBytes: 64 * KiB, blocksToPreallocate: 0, maximumBytes: 2 * MiB }),
  ),
  binning: over(
    (upstream, deallocationEvents) =>
      new BinningMemoryResource(upstream, { deallocationEvents, minimumExponent: 12, maximumExponent: 17, blocksToPreallocate: 4 }),
  ),
  monotonic: over(
    (upstream, deallocationEvents) =>
      new MonotonicMemoryResource(upstream, { deallocationEvents, initialBytes: 128 * KiB, maximumBytes: 7 * MiB }),
  ),
  'monotonic with a fallback': (log, limitBytes, deallocationEvents) => {
    const upstream = new LoggedUpstream(log, 'upstream', limitBytes);
    const fallback = new LoggedUpstream(log, 'fallback', 2 * limitBytes, 2 ** 45);
    return { resource: new MonotonicMemoryResource(upstream, { deallocationEvents, initialBytes: 64 * KiB, fallback }), upstream };
  },
  caching: over((upstream, deallocationEvents) => new CachingMemoryResource(upstream, { deallocationEvents })),
  'caching with a maximum': over(
    (upstream, deallocationEvents) => new CachingMemoryResource(upstream, { deallocationEvents, maximumBytes: 5 * MiB }),
  ),
  'planned, learning': (log, limitBytes, deallocationEvents) => {
    const upstream = new LoggedUpstream(log, 'upstream', limitBytes);
    const fallback = new LoggedUpstream(log, 'fallback', 2 * limitBytes, 2 ** 45);
    const options = { planner: planAllocations, deallocationEvents, fallback, planningMilliseconds: 0 };
    return { resource: new PlannedMemoryResource(upstream, undefined, options), upstream };
  },
};

interface Live {
  readonly pointer: number;
  readonly bytes: number;
}

const streamCount = 5;

/** Runs a random program. Returns what was called how often, and the digest of the sequence. */
export function runRandomCalls(name: string, deallocationEvents: DeallocationEvents, seed: number, steps: number, keepsLines = false) {
  using log = new LoggedCalls(seed, [24, 128, 240][seed % 3] as number, keepsLines);
  const random = randomNumbers(seed ^ 0x5eed);
  const below = (count: number) => (count === 0 ? 0 : random() % count);
  const limitBytes = (4 + below(8)) * MiB;
  const { resource, upstream } = (subjects[name] as Make)(log, limitBytes, deallocationEvents);
  const largest = [8 * KiB, 96 * KiB, 400 * KiB][below(3)] as number;
  let streamsMade = 0;
  const makeStream = () => {
    const stream = new Stream();
    log.name(stream, ++streamsMade);
    return stream;
  };
  const used = 1 + below(streamCount);
  const streams = Array.from({ length: used }, (_, i) => (i === 0 && seed % 2 === 0 ? Stream.legacyDefault() : makeStream()));
  if (seed % 2 === 0) log.name(streams[0] as Stream, 0);
  const live: Live[] = [];
  const marks: MonotonicMark[] = [];
  const pick = () => streams[below(streams.length)] as Stream;
  const attempt = (what: () => void) => {
    try {
      what();
    } catch (error) {
      if (!(error instanceof CisternError || error instanceof ArgumentRangeError)) throw error;
      log.add('throws', error.name, (error as CisternError).code);
    }
  };
  const allocate = (bytes: number, stream: Stream, alignment?: number) =>
    attempt(() => {
      const pointer = resource.allocate(bytes, stream, alignment);
      log.add('gives', pointer, bytes);
      live.push({ pointer, bytes });
    });
  const fence = (stream: Stream): DeallocationFence | undefined => {
    const kind = below(16);
    if (kind > 3) return undefined;
    if (kind < 3) return (['eager', 'deferred', 'off'] as const)[kind];
    return recorded(stream);
  };
  const freeBlock = (place: number, stream: Stream, by?: DeallocationFence) => {
    const [block] = live.splice(place, 1);
    if (block !== undefined) attempt(() => resource.deallocate(block.pointer, block.bytes, stream, by));
  };
  const free = (stream: Stream) => freeBlock(below(live.length), stream, fence(stream));
  const size = () => (below(4) === 0 ? 256 * (1 + below(4)) : 1 + below(below(12) === 0 ? 8 * largest : largest));
  const alignment = () => (below(24) === 0 ? 256 << below(7) : undefined);
  /** What only some kinds have. */
  const special = () => {
    if (resource instanceof ArenaMemoryResource) attempt(() => log.add('defragments', resource.defragment()));
    if (!(resource instanceof MonotonicMemoryResource)) return;
    const mark = marks.at(-1);
    if (mark === undefined || below(2) === 0) {
      marks.push(resource.mark());
      return;
    }
    attempt(() => resource.rewind(mark));
    if (below(4) === 0) marks.pop();
    live.length = 0;
  };
  const step = () => {
    const stream = pick();
    const choice = below(200);
    if (choice < 105) allocate(size(), stream, alignment());
    else if (choice < 180) free(stream);
    else if (choice < 186) stream.wait(recorded(pick()));
    else if (choice < 188) attempt(() => log.add('trims', resource.trim(stream, below(2) === 0 ? {} : { bytesToKeep: MiB })));
    else if (choice < 190) special();
    else if (choice < 192) stream.query();
    else if (choice < 194) {
      const bytes = size();
      const other = pick();
      upstream.interruption = () => {
        if (below(2) === 0) allocate(bytes, other);
        else free(other);
      };
    } else if (choice < 196 && streams.length > 1 && stream !== Stream.legacyDefault()) {
      const place = streams.indexOf(stream);
      attempt(() => stream.dispose());
      streams.splice(place, 1, makeStream());
    } else if (choice < 197) attempt(() => stream.synchronizeSync());
    else while (live.length > 0 && below(8) > 0) free(stream);
  };
  const pass = () => {
    for (let i = 0; i < steps / 8; i++) step();
  };
  for (let run = 0; run < 8; run++) {
    if (resource instanceof CachingMemoryResource) {
      attempt(() => resource.run(pass));
      if (below(3) > 0) live.length = 0;
    } else if (resource instanceof PlannedMemoryResource) {
      attempt(() => resource.run(() => regularPass(random, run, streams, allocate, freeBlock, live)));
    } else pass();
    const statistics = (resource as { statistics?: () => { deviations?: object } }).statistics?.();
    if (statistics !== undefined)
      log.add('statistics', JSON.stringify({ ...statistics, planningError: undefined, idleReturnedBytes: undefined }));
    (resource as { validate?: () => void }).validate?.();
  }
  attempt(() => resource[Symbol.dispose]());
  for (const stream of streams) if (stream !== Stream.legacyDefault()) stream.dispose();
  return { digest: log.digest(), counts: log.counts, lines: log.lines };
}

function recorded(stream: Stream): Event {
  const event = new Event();
  event.record(stream);
  return event;
}

/** A pass that repeats, with a deviation now and then. */
function regularPass(
  random: () => number,
  run: number,
  streams: readonly Stream[],
  allocate: (bytes: number, stream: Stream) => void,
  free: (place: number, stream: Stream) => void,
  live: readonly Live[],
): void {
  const fixed = randomNumbers(77);
  for (let i = 0; i < 60; i++) {
    const number = fixed();
    const stream = streams[number % Math.min(streams.length, 3)] as Stream;
    if (number % 7 < 4) allocate(1 + ((number >>> 8) % 100_000), stream);
    else if (live.length > 0) free((number >>> 8) % live.length, stream);
    if (run > 4 && random() % 64 === 0) allocate(5000, stream);
  }
  while (live.length > (run > 5 ? 2 : 0)) free(0, streams[0] as Stream);
}
