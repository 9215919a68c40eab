import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { type RememberedAllocations, rememberIfTakenBack } from '../../src/adaptors/pass-through/remember-allocations.js';
import { SanitizingResourceAdaptor } from '../../src/checking/index.js';
import { freeUnreachableBuffers } from '../../src/collector/free-unreachable-buffers.js';
import {
  AlignedResourceAdaptor,
  ArenaMemoryResource,
  BinningMemoryResource,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  DeviceBuffer,
  FallbackResourceAdaptor,
  FixedSizeMemoryResource,
  HostMemoryResource,
  KiB,
  LimitingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  type MemoryResourceAdaptor,
  MiB,
  MonotonicMemoryResource,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  ReclaimingResourceAdaptor,
  RoundingResourceAdaptor,
  StatisticsResourceAdaptor,
  Stream,
  TrackingResourceAdaptor,
} from '../../src/index.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import { madeElsewhere } from '../support/stream-order.js';

const cuda = new CudaMemoryResource();
let stream: Stream;
let other: Stream;
beforeAll(() => {
  stream = new Stream();
  other = new Stream();
});
afterAll(() => {
  stream.dispose();
  other.dispose();
});
afterEach(() => {
  vi.restoreAllMocks();
});

const bufferOf = (bytes: number, resource: MemoryResource, on = stream) => new DeviceBuffer(bytes, { resource, stream: on });

/**
 * A way to take back everything that `use` allocated from the resource, while the resource is in
 * use.
 */
interface Taker {
  readonly name: string;
  make(): MemoryResource & { validate(): void };
  run(resource: MemoryResource, use: () => void): void;
}

const takers: readonly Taker[] = [
  {
    name: 'the end of a run',
    make: () => new CachingMemoryResource(cuda),
    run: (cache, use) => (cache as CachingMemoryResource).run(use),
  },
  {
    name: 'the end of a run without events',
    make: () => new CachingMemoryResource(cuda, { deallocationEvents: 'off' }),
    run: (cache, use) => (cache as CachingMemoryResource).run(use),
  },
  {
    name: 'a rewind',
    make: () => new MonotonicMemoryResource(cuda),
    run: (scratch, use) => {
      using _frame = (scratch as MonotonicMemoryResource).mark();
      use();
    },
  },
  {
    name: 'a rewind to a mark after others,',
    make: () => new MonotonicMemoryResource(cuda, { initialBytes: 4096, growthFactor: 1 }),
    run: (scratch, use) => {
      scratch.allocate(1000, other);
      scratch.allocate(1000, stream);
      const mark = (scratch as MonotonicMemoryResource).mark();
      use();
      (scratch as MonotonicMemoryResource).rewind(mark);
    },
  },
  {
    name: 'a rewind of memory of the fallback',
    make: () => new MonotonicMemoryResource(cuda, { maximumBytes: 0, fallback: new PoolMemoryResource(cuda) }),
    run: (scratch, use) => {
      using _frame = (scratch as MonotonicMemoryResource).mark();
      use();
    },
  },
  {
    name: 'reset',
    make: () => new MonotonicMemoryResource(cuda, { deallocationEvents: 'deferred' }),
    run: (scratch, use) => {
      use();
      (scratch as MonotonicMemoryResource).reset();
    },
  },
  {
    name: 'release',
    make: () => new MonotonicMemoryResource(cuda),
    run: (scratch, use) => {
      use();
      (scratch as MonotonicMemoryResource).release(stream);
    },
  },
];

/**
 * An adaptor that remembers something, and its counts that must be zero when nothing is allocated
 * through it.
 */
interface Adaptor {
  readonly name: string;
  wrap(upstream: MemoryResource): MemoryResourceAdaptor;
  numbers(resource: never): unknown[];
}

const adaptors: readonly Adaptor[] = [
  {
    name: 'LimitingResourceAdaptor',
    wrap: (upstream) => new LimitingResourceAdaptor(upstream, { limitBytes: 100_000 }),
    numbers: (limit: LimitingResourceAdaptor) => [limit.allocatedBytes],
  },
  {
    name: 'StatisticsResourceAdaptor',
    wrap: (upstream) => new StatisticsResourceAdaptor(upstream),
    numbers: (resource: StatisticsResourceAdaptor) => {
      const { bytes, allocations } = resource.statistics();
      return [bytes.current, allocations.current];
    },
  },
  {
    name: 'TrackingResourceAdaptor',
    wrap: (upstream) => new TrackingResourceAdaptor(upstream, { captureStacks: true }),
    numbers: (resource: TrackingResourceAdaptor) => [resource.allocatedBytes, resource.outstandingAllocations().length],
  },
  {
    name: 'SanitizingResourceAdaptor',
    wrap: (upstream) => new SanitizingResourceAdaptor(upstream),
    numbers: (resource: SanitizingResourceAdaptor) => [resource.allocatedBytes, resource.violations.length],
  },
  {
    name: 'RoundingResourceAdaptor',
    wrap: (upstream) => new RoundingResourceAdaptor(upstream, { kind: 'top-bits' }),
    numbers: (resource: RoundingResourceAdaptor) => [resource.askedBytes, resource.roundedBytes],
  },
  {
    name: 'ReclaimingResourceAdaptor',
    wrap: (upstream) => new ReclaimingResourceAdaptor(upstream),
    numbers: (resource: ReclaimingResourceAdaptor) => [resource.liveBytes],
  },
  {
    name: 'AlignedResourceAdaptor',
    wrap: (upstream) => new AlignedResourceAdaptor(upstream, { alignment: 8192 }),
    numbers: () => [],
  },
  {
    name: 'FallbackResourceAdaptor',
    wrap: (upstream) => new FallbackResourceAdaptor(new LimitingResourceAdaptor(cuda, { limitBytes: 0 }), upstream),
    numbers: (resource: FallbackResourceAdaptor) => [resource.fallbackBytes],
  },
];

const zeros = (numbers: readonly unknown[]) => numbers.map(() => 0);

describe.each(takers)('$name', ({ make, run }) => {
  test.each(adaptors)('leaves nothing allocated in a $name above', ({ wrap, numbers }) => {
    const resource = make();
    const adaptor = wrap(resource);
    const outer = new StatisticsResourceAdaptor(adaptor);
    for (let pass = 0; pass < 40; pass++) {
      let buffer: DeviceBuffer | undefined;
      // What is freed in time is freed once. The sizes change, so that blocks get other owners.
      run(resource, () => {
        const pointers = [1000, 3000 + 256 * (pass % 3)].map((bytes) => adaptor.allocate(bytes, stream));
        outer.allocate(700, stream);
        resource.allocate(400, stream);
        adaptor.deallocate(pointers[0] as number, 1000, stream);
        buffer = bufferOf(2000, outer, pass % 2 === 0 ? stream : other);
        adaptor.allocate(1000, other);
      });
      expect(buffer?.isDisposed).toBe(true);
      expect(numbers(adaptor as never)).toEqual(zeros(numbers(adaptor as never)));
      expect(outer.statistics().bytes).toMatchObject({ current: 0 });
      resource.validate();
      // The same addresses, and nothing is taken back.
      run(resource, () => {
        for (const bytes of [3000, 1000, 700, 2000]) adaptor.deallocate(adaptor.allocate(bytes, stream), bytes, stream);
      });
    }
    vi.spyOn(process, 'emitWarning').mockReturnValue();
    adaptor[Symbol.dispose]();
    expect(process.emitWarning).not.toHaveBeenCalled();
    resource[Symbol.dispose]();
  });

  test('disposes the buffers in the memory, and no others', () => {
    using resource = make();
    using pool = new PoolMemoryResource(cuda);
    using elsewhere = bufferOf(5000, pool);
    const buffers: DeviceBuffer[] = [];
    run(resource, () => {
      buffers.push(bufferOf(100, resource), bufferOf(3 * MiB, resource), bufferOf(0, resource), bufferOf(5000, pool));
      buffers[3]?.dispose();
    });
    expect(buffers.map((buffer) => buffer.isDisposed)).toEqual([true, true, false, true]);
    expect(elsewhere.isDisposed).toBe(false);
    expect(() => buffers[0]?.ptr).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    for (const buffer of buffers) buffer.dispose();
  });
});

test('buffers free their memory the latest first, however many there are and whichever were disposed before', () => {
  const pool = new PoolMemoryResource(cuda);
  const seen = new StatisticsResourceAdaptor(pool);
  const buffers = Array.from({ length: 300 }, () => bufferOf(256, seen));
  const disposed = buffers.filter((_, i) => i % 7 === 3 || (i > 60 && i < 130));
  for (const buffer of disposed) buffer.dispose();
  buffers.push(bufferOf(256, seen), bufferOf(256, seen));
  const latestFirst = buffers.filter((buffer) => !buffer.isDisposed).map((buffer) => buffer.ptr);
  latestFirst.reverse();
  const deallocate = vi.spyOn(seen, 'deallocate');
  pool.dispose();
  expect(deallocate.mock.calls.map(([pointer]) => pointer)).toEqual(latestFirst);
  expect(buffers.every((buffer) => buffer.isDisposed)).toBe(true);
});

describe('one wait for the device covers everything ordered on ended streams', () => {
  /** Allocates in several ways on streams that end, and counts waits from then on. */
  const useEndingStreams = (resource: MemoryResource, limit: MemoryResource) => {
    for (const ending of [new Stream(), new Stream(), new Stream()]) {
      bufferOf(1000, resource, ending);
      bufferOf(1000, limit, ending);
      limit.allocate(1000, ending);
      ending.dispose();
    }
    return vi.spyOn(stream.device, 'synchronizeSync');
  };

  test.each(takers)('by $name', ({ make, run }) => {
    const resource = make();
    const limit = new LimitingResourceAdaptor(resource, { limitBytes: MiB });
    let waits: ReturnType<typeof useEndingStreams> | undefined;
    run(resource, () => {
      waits = useEndingStreams(resource, limit);
    });
    expect(waits).toHaveBeenCalledTimes(1);
    expect(limit.allocatedBytes).toBe(0);
    resource[Symbol.dispose]();
  });

  test('by dispose', () => {
    const pool = new PoolMemoryResource(cuda);
    const waits = useEndingStreams(pool, pool);
    pool.dispose();
    expect(waits).toHaveBeenCalledTimes(1);
  });

  test('by the end of a run, even for bare pointers of the cache', () => {
    using cache = new CachingMemoryResource(cuda);
    let waits: ReturnType<typeof useEndingStreams> | undefined;
    cache.run(() => {
      waits = useEndingStreams(cache, cache);
    });
    expect(waits).toHaveBeenCalledTimes(1);
    expect(cache.statistics().busyBlocks).toBe(0);
  });

  test('but not memory allocated after it', () => {
    using scratch = new MonotonicMemoryResource(cuda);
    const limit = new LimitingResourceAdaptor(scratch, { limitBytes: MiB });
    const waits = useEndingStreams(scratch, limit);
    let late: DeviceBuffer | undefined;
    const deallocate = limit.deallocate.bind(limit);
    limit.deallocate = (...args) => {
      deallocate(...args);
      if (late !== undefined) return;
      const ending = new Stream();
      late = bufferOf(1000, scratch, ending);
      ending.dispose();
    };
    scratch.reset();
    expect(late?.isDisposed).toBe(true);
    expect(waits).toHaveBeenCalledTimes(2);
  });
});

describe('a buffer whose memory is taken back while it moves to that memory', () => {
  test.each([
    ['rewind', 'resize'],
    ['reset', 'reserve'],
    ['dispose', 'resize'],
  ] as const)('by %s, in a host function that runs before the copy, is as it was: %s', (operation, move) => {
    using host = new HostMemoryResource();
    const scratch = new MonotonicMemoryResource(host);
    using limit = new LimitingResourceAdaptor(cuda, { limitBytes: 32 * MiB });
    using resource = new FallbackResourceAdaptor(limit, scratch);
    // More than is staged without an allocation, before which host functions run.
    using buffer = bufferOf(32 * MiB, resource);
    buffer.fill(7);
    const { ptr } = buffer;
    const mark = scratch.mark();
    const next: DeviceBuffer[] = [];
    stream.launchHostFunction(() => {
      if (operation === 'rewind') scratch.rewind(mark);
      else if (operation === 'reset') scratch.reset();
      // Host memory cannot be waited for here: the last dispose gives it back.
      else expect(() => scratch.dispose()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
      if (operation !== 'dispose') next.push(bufferOf(KiB, scratch));
    });
    expect(() => buffer[move](33 * MiB)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE', message: expect.stringContaining('changed meanwhile') }),
    );
    expect([buffer.ptr, buffer.byteLength, buffer.capacityBytes]).toEqual([ptr, 32 * MiB, 32 * MiB]);
    expect([resource.fallbackBytes, limit.allocatedBytes]).toEqual([0, 32 * MiB]);
    freeUnreachableBuffers();
    expect(next.map(({ isDisposed }) => isDisposed)).toEqual(operation === 'dispose' ? [] : [false]);
    for (const each of next) each.dispose();
    scratch.dispose();
    expect(host.reservedBytes).toBe(0);
  });
});

describe('a rewind', () => {
  test('of a fallback does not free memory a second time when it belongs to another owner', () => {
    using pool = new PoolMemoryResource(cuda);
    using scratch = new MonotonicMemoryResource(cuda, { maximumBytes: 0, fallback: pool });
    const mark = scratch.mark();
    const buffer = bufferOf(1000, scratch);
    const { ptr } = buffer;
    scratch.rewind(mark);
    const pointer = pool.allocate(1000, stream);
    expect(pointer).toBe(ptr);
    const next = scratch.allocate(1000, stream);
    buffer.dispose();
    expect(pool.allocate(1000, stream)).not.toBe(pointer);
    expect(next).not.toBe(pointer);
    expect(pool.statistics().allocatedBytes).toBe(3 * 1024);
  });

  test('leaves buffers from before its mark, including moved ones, and takes those that moved since', () => {
    using scratch = new MonotonicMemoryResource(cuda);
    const [still, moved, moving] = [100, 100, 100].map((bytes) => bufferOf(bytes, scratch)) as [DeviceBuffer, DeviceBuffer, DeviceBuffer];
    moved.resize(5000);
    const inner = scratch.mark();
    const nested = bufferOf(700, scratch);
    const innermost = scratch.mark();
    moving.resize(9000);
    scratch.rewind(innermost);
    expect([still, moved, moving, nested].map(({ isDisposed }) => isDisposed)).toEqual([false, false, true, false]);
    expect(() => moving.resize(1)).toThrow('the MonotonicMemoryResource took its memory back by a rewind');
    scratch.rewind(inner);
    expect([still, moved, nested].map(({ isDisposed }) => isDisposed)).toEqual([false, false, true]);
    scratch.reset();
    expect([still, moved].map(({ isDisposed }) => isDisposed)).toEqual([true, true]);
  });

  test.each(['rewind', 'reset', 'release', 'dispose'] as const)(
    'leaves the state unchanged if a buffer cannot be freed by %s, which can be called again',
    (operation) => {
      using fallback = new PoolMemoryResource(cuda);
      using scratch = new MonotonicMemoryResource(cuda, { maximumBytes: 4096, fallback });
      const mark = scratch.mark();
      const buffers = [1000, 8000].map((bytes) => bufferOf(bytes, scratch));
      const take = () =>
        operation === 'rewind' ? scratch.rewind(mark) : operation === 'release' ? scratch.release(stream) : scratch[operation]();
      failCall('cuEventRecord', 1, 999);
      expect(take).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
      expect(buffers.filter(({ isDisposed }) => !isDisposed)).toHaveLength(1);
      expect(scratch.statistics().usedBytes).toBe(1024);
      take();
      expect(buffers.map(({ isDisposed }) => isDisposed)).toEqual([true, true]);
      expect(fallback.statistics().allocatedBytes).toBe(0);
    },
  );

  test('looks only at allocations made since its mark', () => {
    using scratch = new MonotonicMemoryResource(cuda);
    const limit = new LimitingResourceAdaptor(scratch, { limitBytes: MiB });
    for (let i = 0; i < 100; i++) limit.allocate(100, stream);
    const mark = scratch.mark();
    limit.allocate(100, stream);
    const positions = vi.spyOn(mark.positions, 'find');
    scratch.rewind(mark);
    expect(positions.mock.calls.length).toBeLessThan(5);
    expect(limit.allocatedBytes).toBe(25_600);
  });
});

describe('a run', () => {
  test('ends if reading `then` of its result throws', () => {
    using cache = new CachingMemoryResource(cuda);
    const failure = new Error('no then');
    const result = Object.defineProperty({}, 'then', {
      get: () => {
        throw failure;
      },
    });
    expect(() =>
      cache.run(() => {
        cache.allocate(1000, stream);
        return result;
      }),
    ).toThrow(failure);
    expect(cache.statistics()).toMatchObject({ activeRuns: 0, busyBlocks: 0 });
    expect(cache.invalidate()).toBe(1024);
  });

  test('leaves kept memory to the resources above', () => {
    using cache = new CachingMemoryResource(cuda);
    using aligned = new AlignedResourceAdaptor(cache, { alignment: 4096 });
    const limit = new LimitingResourceAdaptor(aligned, { limitBytes: MiB });
    const kept = cache.run(() => {
      limit.allocate(100, stream);
      return cache.keep(limit.allocate(1000, stream));
    });
    expect([limit.allocatedBytes, cache.statistics().busyBlocks]).toEqual([1024, 1]);
    cache.run(() => limit.allocate(1000, stream));
    limit.deallocate(kept, 1000, stream);
    expect([limit.allocatedBytes, cache.statistics().busyBlocks]).toEqual([0, 0]);
  });

  test('leaves allocated what an adaptor above cannot free', () => {
    using cache = new CachingMemoryResource(cuda);
    const limit = new LimitingResourceAdaptor(cache, { limitBytes: MiB });
    let pointer = 0;
    failCall('cuEventRecord', 1, 999);
    expect(() =>
      cache.run(() => {
        pointer = limit.allocate(1000, stream);
      }),
    ).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    expect([limit.allocatedBytes, cache.statistics().keptBlocks]).toEqual([1024, 1]);
    limit.deallocate(pointer, 1000, stream);
    expect([limit.allocatedBytes, cache.statistics().busyBlocks]).toEqual([0, 0]);
  });

  test('frees memory that was allocated on a stream that is gone', () => {
    using cache = new CachingMemoryResource(cuda);
    const limit = new LimitingResourceAdaptor(cache, { limitBytes: MiB });
    cache.run(() => {
      using ending = new Stream();
      limit.allocate(1000, ending);
    });
    expect([limit.allocatedBytes, cache.statistics().busyBlocks]).toEqual([0, 0]);
  });

  test('frees memory that was allocated without blocking', async () => {
    using cache = new CachingMemoryResource(cuda);
    const resource = new ReclaimingResourceAdaptor(cache);
    await cache.run(async () => {
      await resource.allocateAsync(1000, stream);
      resource.allocate(1000, stream);
    });
    expect(resource.liveBytes).toBe(0);
  });
});

const poolingResources: readonly [string, (upstream: MemoryResource) => MemoryResource & { validate?(): void; reservedBytes?: number }][] =
  [
    ['a pool', (upstream) => new PoolMemoryResource(upstream)],
    ['a pool through a limit', (upstream) => new PoolMemoryResource(new LimitingResourceAdaptor(upstream, { limitBytes: 64 * MiB }))],
    ['a pool on a pool', (upstream) => new PoolMemoryResource(new PoolMemoryResource(upstream, { deallocationEvents: 'off' }))],
    ['an arena', (upstream) => new ArenaMemoryResource(upstream, { arenaBytes: 4 * MiB })],
    ['blocks of fixed size', (upstream) => new FixedSizeMemoryResource(upstream, { blockBytes: 4 * KiB, blocksToPreallocate: 2 })],
    ['bins', (upstream) => new BinningMemoryResource(upstream, { bins: [4 * KiB] })],
  ];

const bottoms: readonly [string, () => MonotonicMemoryResource][] = [
  ['blocks', () => new MonotonicMemoryResource(cuda)],
  ['the fallback', () => new MonotonicMemoryResource(cuda, { maximumBytes: 0, fallback: new PoolMemoryResource(cuda) })],
];

describe.each(bottoms)('memory of %s that is taken back', (_, makeBottom) => {
  describe.each(poolingResources)('under %s', (name, makePool) => {
    test.each(['rewind', 'reset', 'release'] as const)('by %s is not given to two owners', (operation) => {
      const scratch = makeBottom();
      const mark = scratch.mark();
      const pool = makePool(scratch);
      const limit = new LimitingResourceAdaptor(pool, { limitBytes: 64 * MiB });
      const take = () =>
        operation === 'rewind' ? scratch.rewind(mark) : operation === 'release' ? scratch.release(stream) : scratch.reset();
      for (let pass = 0; pass < 3; pass++) {
        const buffer = bufferOf(3000, limit, pass === 1 ? other : stream);
        limit.allocate(2000, other);
        pool.deallocate(pool.allocate(1000, stream), 1000, stream);
        take();
        expect([buffer.isDisposed, limit.allocatedBytes, scratch.statistics().usedBytes, scratch.statistics().fallbackBytes]).toEqual([
          true,
          0,
          0,
          0,
        ]);
        pool.validate?.();
        scratch.validate();
        const theirs = Array.from({ length: 4 }, () => scratch.allocate(3 * KiB, stream));
        const own = Array.from({ length: 4 }, () => pool.allocate(3 * KiB, stream));
        for (const pointer of own) expect(theirs.some((each) => Math.abs(each - pointer) < 3 * KiB)).toBe(false);
        for (const pointer of own) pool.deallocate(pointer, 3 * KiB, stream);
        for (const pointer of theirs) scratch.deallocate(pointer, 3 * KiB, stream);
        take();
      }
      pool[Symbol.dispose]();
      scratch.dispose();
    });

    // Bins remember the allocations made through them.
    if (name === 'bins') return;
    test('stays while a bare pointer in it is allocated', () => {
      const scratch = makeBottom();
      const mark = scratch.mark();
      const pool = makePool(scratch);
      const pointer = pool.allocate(1000, stream);
      for (const take of [() => scratch.rewind(mark), () => scratch.reset(), () => scratch.release(stream), () => scratch.dispose()]) {
        expect(take).toThrow(
          expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE', message: expect.stringContaining('still allocated') }),
        );
        expect(mark.isStanding).toBe(true);
      }
      pool.validate?.();
      pool.deallocate(pointer, 1000, stream);
      scratch.rewind(mark);
      expect([scratch.statistics().usedBytes, scratch.statistics().fallbackBytes]).toEqual([0, 0]);
      pool[Symbol.dispose]();
      scratch.dispose();
    });
  });

  test('stays while another monotonic resource, to which single frees give nothing back, has used some of it', () => {
    const lower = makeBottom();
    const upper = new MonotonicMemoryResource(lower, { initialBytes: 4 * KiB });
    upper.deallocate(upper.allocate(1000, stream), 1000, stream);
    expect(() => lower.reset()).toThrow(/a MonotonicMemoryResource holds this memory/);
    upper.reset();
    lower.reset();
    expect([upper.reservedBytes, lower.statistics().usedBytes]).toEqual([0, 0]);
    upper.dispose();
    lower.dispose();
  });

  test('stays while it belongs to the fallback of another monotonic resource', () => {
    const lower = makeBottom();
    const upper = new MonotonicMemoryResource(cuda, { maximumBytes: 0, fallback: lower });
    const pointer = upper.allocate(1000, stream);
    const buffer = bufferOf(1000, upper);
    expect(() => lower.reset()).toThrow(/a MonotonicMemoryResource holds this memory/);
    expect(buffer.isDisposed).toBe(true);
    upper.deallocate(pointer, 1000, stream);
    lower.reset();
    upper.dispose();
    lower.dispose();
  });
});

describe('memory of a stream that was created elsewhere and destroyed without notice', () => {
  test.each(takers)('is freed by $name', ({ make, run }) => {
    const resource = make();
    const limit = new LimitingResourceAdaptor(resource, { limitBytes: MiB });
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    let buffer: DeviceBuffer | undefined;
    run(resource, () => {
      limit.allocate(1000, unannounced);
      buffer = bufferOf(2000, limit, unannounced);
      foreign.destroy();
    });
    expect([buffer?.isDisposed, limit.allocatedBytes]).toEqual([true, 0]);
    unannounced.dispose();
    resource[Symbol.dispose]();
  });

  test('is waited for by dispose, which then takes what a host function allocated meanwhile', () => {
    const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, deallocationEvents: 'off' });
    const foreign = madeElsewhere();
    const gone = Stream.fromHandle(foreign.address);
    using other = new Stream({ nonBlocking: true });
    pool.deallocate(pool.allocate(KiB, gone), KiB, gone);
    const hold = gone.hold();
    let buffer: DeviceBuffer | undefined;
    other.launchHostFunction(() => {
      buffer = new DeviceBuffer(KiB, { stream: other, resource: pool });
      hold.release();
    });
    pool.dispose();
    expect(buffer?.isDisposed).toBe(true);
    gone.dispose();
    foreign.destroy();
  });
});

describe('the end of', () => {
  test.each([
    ['a pool', () => new PoolMemoryResource(cuda)],
    ['an arena', () => new ArenaMemoryResource(cuda, { arenaBytes: 8 * MiB })],
    ['blocks of fixed size', () => new FixedSizeMemoryResource(cuda, { blockBytes: 4 * MiB })],
    ['a binning resource', () => new BinningMemoryResource(cuda, { bins: [8 * MiB] })],
    ['a cache', () => new CachingMemoryResource(cuda)],
    ['a monotonic resource', () => new MonotonicMemoryResource(cuda)],
    ['a monotonic resource with a fallback', () => new MonotonicMemoryResource(cuda, { maximumBytes: 512, fallback: cuda })],
    ['a pool of the driver', () => new CudaAsyncMemoryResource()],
  ])('%s disposes the buffers in its memory, whatever is above', (_, make) => {
    const before = cuda.reservedBytes;
    const resource = make();
    using elsewhere = bufferOf(3000, cuda);
    const aligned = new AlignedResourceAdaptor(resource, { alignment: 8192 });
    const limit = new LimitingResourceAdaptor(aligned, { limitBytes: 64 * MiB });
    const allocate = () => [resource, limit].flatMap((each) => [bufferOf(500, each), bufferOf(2 * MiB, each, other)]);
    const buffers =
      resource instanceof CachingMemoryResource ? resource.run(() => allocate().map((buffer) => resource.keep(buffer))) : allocate();
    resource.dispose();
    expect(buffers.map(({ isDisposed }) => isDisposed)).toEqual([true, true, true, true]);
    expect(() => buffers[0]?.ptr).toThrow(/cannot read the address of a buffer: the \w+ is disposed/);
    expect(limit.allocatedBytes).toBe(0);
    expect(elsewhere.isDisposed).toBe(false);
    expect(cuda.reservedBytes - before).toBe(3000);
    for (const buffer of buffers) buffer.dispose();
  });

  test('a resource leaves a buffer that only has the same address', () => {
    using managed = new ManagedMemoryResource();
    using pinned = new PinnedHostMemoryResource();
    using buffer = bufferOf(100, managed);
    new PoolMemoryResource(pinned, { initialBytes: 4 * KiB }).dispose();
    expect(buffer.isDisposed).toBe(false);
  });
});

describe('an adaptor', () => {
  test('remembers nothing if nothing below takes memory back while it is in use', () => {
    using pool = new PoolMemoryResource(cuda);
    const adaptor = new LimitingResourceAdaptor(pool, { limitBytes: MiB });
    expect(Object.keys(adaptor)).not.toContain('allocate');
    expect(rememberIfTakenBack(adaptor, pool)).toBeUndefined();
  });

  test('keeps memory that the resource above takes back, which had it from the adaptor', () => {
    using scratch = new MonotonicMemoryResource(cuda);
    const between = new LimitingResourceAdaptor(scratch, { limitBytes: 8 * MiB });
    const upper = new MonotonicMemoryResource(between, { initialBytes: MiB });
    const pool = new PoolMemoryResource(between, { initialBytes: MiB });
    const mark = upper.mark();
    upper.allocate(1000, stream);
    upper.rewind(mark);
    upper.allocate(1000, stream);
    upper.reset();
    expect(between.allocatedBytes).toBe(2 * MiB);
    pool.dispose();
    upper.dispose();
    expect(between.allocatedBytes).toBe(0);
  });

  test('forgets what is freed, and keeps what could not be freed', () => {
    using scratch = new MonotonicMemoryResource(cuda);
    const below = new TrackingResourceAdaptor(scratch);
    const adaptor = new LimitingResourceAdaptor(below, { limitBytes: MiB });
    const { live } = rememberIfTakenBack(adaptor, below) as RememberedAllocations;
    const pointers = Array.from({ length: 100 }, (_, i) => adaptor.allocate(100 + i, stream));
    expect(live.count).toBe(100);
    expect(() => adaptor.deallocate(pointers[50] as number, 1, stream)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }),
    );
    expect(live.count).toBe(100);
    pointers.forEach((pointer, i) => {
      if (i % 2 === 0) adaptor.deallocate(pointer, 100 + i, stream);
    });
    expect(live.count).toBe(50);
    scratch.reset();
    expect([live.count, adaptor.allocatedBytes, below.allocatedBytes]).toEqual([0, 0, 0]);
  });
});
