import { AsyncResource } from 'node:async_hooks';
import { setImmediate, setTimeout } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  AlignedResourceAdaptor,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResource,
  currentResource,
  DeviceBuffer,
  type DevicePointer,
  Event,
  GiB,
  KiB,
  LifetimeError,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PoolMemoryResource,
  RoundingResourceAdaptor,
  StatisticsResourceAdaptor,
  Stream,
  set,
  uncached,
  withResource,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';
import { SpyResource } from '../support/spy-resource.js';
import { eventCalls, eventRecords, expectWaiting, inHostFunction, madeElsewhere, policies, valuesOf } from '../support/stream-order.js';

const disposed = expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' });
const stream = new Stream();

/** Counts its calls. */
class CountingResource extends AddressCountingResource {
  calls = 0;

  override allocate(...args: Parameters<AddressCountingResource['allocate']>): DevicePointer {
    this.calls++;
    return super.allocate(...args);
  }

  override deallocate(...args: Parameters<AddressCountingResource['deallocate']>): void {
    this.calls++;
    super.deallocate(...args);
  }
}

function countingCache(): { upstream: CountingResource; cache: CachingMemoryResource } {
  const upstream = new CountingResource();
  return { upstream, cache: new CachingMemoryResource(upstream, { name: 'test' }) };
}

function bufferOf(bytes: number, resource?: MemoryResource): DeviceBuffer {
  return new DeviceBuffer(bytes, resource === undefined ? { stream } : { stream, resource });
}

describe('a run', () => {
  test('has nothing left of what was freed in it', () => {
    const { cache } = countingCache();
    cache.run(() => {
      cache.deallocate(cache.allocate(1000, stream), 1000, stream);
      cache.validate();
    });
    cache.validate();
  });

  const sizes = [1000, 4096, 1000, 70 * KiB];

  test('serves its allocations from those of the run before, without the upstream', () => {
    const { upstream, cache } = countingCache();
    const pass = () => cache.run(() => sizes.map((bytes) => cache.allocate(bytes, stream)));
    const first = pass();
    expect(upstream.calls).toBe(4);
    expect(new Set(first).size).toBe(4);
    for (let i = 0; i < 3; i++) expect(pass().toSorted()).toEqual(first.toSorted());
    expect(upstream.calls).toBe(4);
    expect(cache.statistics()).toMatchObject({ hits: 12, misses: 4, freeBlocks: 4, busyBlocks: 0, runs: 4, activeRuns: 0 });
    cache.validate();
  });

  test('does so for asynchronous functions and buffers, and makes no driver calls for memory', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    const pass = () =>
      cache.run(async () => {
        const input = new DeviceBuffer(Uint8Array.of(1, 2, 3), { stream });
        const scratch = bufferOf(64 * KiB);
        await setImmediate();
        scratch.fill(7);
        bufferOf(64 * KiB).fill(9);
        return [...(await input.toHost()), ...(await scratch.toHost({ byteLength: 1 }))];
      });
    expect(await pass()).toEqual([1, 2, 3, 7]);
    const before = driverCallCounts();
    for (let i = 0; i < 3; i++) expect(await pass()).toEqual([1, 2, 3, 7]);
    const after = driverCallCounts();
    expect([after.allocations - before.allocations, after.frees - before.frees]).toEqual([0, 0]);
    expect(cache.statistics()).toMatchObject({ upstreamBlocks: 3, busyBlocks: 0 });
    cache.validate();
  });

  test('returns what its function returns, and ends before a promise settles', async () => {
    const { cache } = countingCache();
    const value = {};
    expect(cache.run(() => value)).toBe(value);
    let settle = (_: object) => {};
    const running = cache.run(() => {
      cache.allocate(100, stream);
      return new Promise<object>((resolve) => {
        settle = resolve;
      });
    });
    await setImmediate();
    expect(cache.statistics()).toMatchObject({ activeRuns: 1, busyBlocks: 1 });
    settle(value);
    const ended = running.then((settled) => [settled, cache.statistics().busyBlocks]);
    expect(await ended).toEqual([value, 0]);
  });

  test('takes its memory back, however it ends', async () => {
    const { cache } = countingCache();
    const failure = new Error('no');
    const fails = () => {
      cache.allocate(100, stream);
      bufferOf(200);
      throw failure;
    };
    expect(() => cache.run(fails)).toThrow(failure);
    expect(cache.statistics()).toMatchObject({ freeBlocks: 2, busyBlocks: 0, activeRuns: 0 });
    await expect(cache.run(async () => fails())).rejects.toBe(failure);
    await expect(
      cache.run(async () => {
        await setImmediate();
        fails();
      }),
    ).rejects.toBe(failure);
    expect(cache.statistics()).toMatchObject({ freeBlocks: 2, busyBlocks: 0, activeRuns: 0 });
    cache.validate();
  });

  test('ends for a thenable that is not a promise', async () => {
    const { cache } = countingCache();
    const thenable = {
      // biome-ignore lint/suspicious/noThenProperty: it is what is tested
      then: (resolve: (value: number) => void) => resolve(5),
    };
    const result = cache.run(() => {
      cache.allocate(100, stream);
      return thenable as unknown as Promise<number>;
    });
    expect(await result).toBe(5);
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, activeRuns: 0 });
  });

  test('reuses at once what is freed in it', () => {
    const { upstream, cache } = countingCache();
    cache.run(() => {
      const first = cache.allocate(1000, stream);
      cache.deallocate(first, 1000, stream);
      for (let i = 0; i < 5; i++) {
        const again = cache.allocate(1024, stream);
        expect(again).toBe(first);
        cache.deallocate(again, 1024, stream);
      }
    });
    expect(upstream.calls).toBe(1);
    cache.validate();
  });

  test('rounds sizes up to 256, and reuses a block only for its own size', () => {
    const { upstream, cache } = countingCache();
    const take = (bytes: number) => cache.run(() => cache.allocate(bytes, stream));
    take(1);
    take(256);
    expect(upstream.calls).toBe(1);
    take(257);
    expect([...upstream.live.values()]).toEqual([256, 512]);
    for (let i = 0; i < 2; i++) take(3 * GiB - 5);
    expect([...upstream.live.values()]).toEqual([256, 512, 3 * GiB]);
    expect(cache.statistics()).toMatchObject({ hits: 2, misses: 3 });
    expect(cache.run(() => cache.allocate(0, stream))).toBe(0);
  });

  test('makes the cache the current resource', async () => {
    const { cache } = countingCache();
    const before = currentResource();
    await cache.run(async () => {
      await setImmediate();
      expect(currentResource()).toBe(cache);
      expect(bufferOf(10).resource).toBe(cache);
    });
    expect(currentResource()).toBe(before);
  });

  test('is found below a resource above the cache if that is the current one', () => {
    const { upstream, cache } = countingCache();
    const rounding = new RoundingResourceAdaptor(cache, { kind: 'top-bits', bits: 2 });
    const pass = (bytes: number) => cache.run(() => withResource(rounding, () => void bufferOf(bytes)));
    pass(1000 * KiB);
    pass(900 * KiB);
    expect(upstream.calls).toBe(1);
    cache.validate();
  });

  test('refuses a value that is not a function, and a disposed cache', () => {
    const { cache } = countingCache();
    expect(() => cache.run(5 as unknown as () => void)).toThrow('fn must be a function, got 5');
    cache.dispose();
    expect(() => cache.run(() => 1)).toThrow(disposed);
    expect(() => cache.invalidate()).toThrow(disposed);
    expect(() => cache.keep(256)).toThrow(disposed);
    expect(() => cache.allocate(256, stream)).toThrow(disposed);
  });

  test('passes work that continues after it to the upstream', async () => {
    const { upstream, cache } = countingCache();
    let late: Promise<DevicePointer> | undefined;
    cache.run(() => {
      cache.allocate(500, stream);
      late = setTimeout(1).then(() => cache.allocate(500, stream));
    });
    expect(upstream.calls).toBe(1);
    const pointer = (await late) as DevicePointer;
    expect(upstream.calls).toBe(2);
    // Even while other runs go on, and until those end.
    cache.run(() => undefined);
    expect(upstream.live.get(pointer)).toBe(500);
    cache.deallocate(pointer, 500, stream);
    expect(upstream.live.has(pointer)).toBe(false);
  });

  test('passes work that continues after it to the upstream while another run goes on', async () => {
    const { upstream, cache } = countingCache();
    let late: Promise<DevicePointer> | undefined;
    cache.run(() => {
      cache.allocate(500, stream);
      late = setTimeout(1).then(() => cache.allocate(500, stream));
    });
    await cache.run(async () => {
      await late;
      expect(cache.statistics().busyBlocks).toBe(0);
      expect([...upstream.live.values()]).toEqual([512, 500]);
    });
  });
});

describe('outside a run', () => {
  test('every call passes to the upstream', () => {
    const { upstream, cache } = countingCache();
    cache.run(() => cache.allocate(500, stream));
    const pointer = cache.allocate(500, stream);
    expect([...upstream.live.values()]).toEqual([512, 500]);
    cache.deallocate(pointer, 500, stream);
    expect(upstream.calls).toBe(3);
    expect(upstream.frees).toMatchObject([{ pointer, bytes: 500 }]);
    expect(cache.statistics()).toMatchObject({ hits: 0, misses: 1 });
  });

  test('the same alignment is promised as inside one', () => {
    using upstream = new PoolMemoryResource(new CudaMemoryResource());
    using cache = new CachingMemoryResource(upstream);
    const refusal = 'alignment must be at most 256, which is what this resource can promise, got 512';
    expect(() => cache.allocate(100, stream, 512)).toThrow(refusal);
    expect(() => cache.run(() => cache.allocate(100, stream, 512))).toThrow(refusal);
    const pointer = cache.allocate(100, stream, 16);
    cache.deallocate(pointer, 100, stream);
  });

  test('the resources below get the policy of the option, or none if it is not set', () => {
    const recording = new SpyResource();
    using asking = new CachingMemoryResource(recording, { deallocationEvents: 'off' });
    using silent = new CachingMemoryResource(recording);
    for (const cache of [asking, silent]) cache.deallocate(cache.allocate(100, stream), 100, stream);
    asking.deallocate(asking.allocate(100, stream), 100, stream, 'deferred');
    expect(recording.fences).toEqual(['off', undefined, 'deferred']);
  });

  test("an allocation gets the cache's free memory if the upstream has no more", () => {
    using upstream = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: MiB });
    using cache = new CachingMemoryResource(upstream);
    cache.run(() => cache.allocate(MiB, stream));
    const pointer = cache.allocate(512 * KiB, stream);
    expect(cache.statistics().reservedBytes).toBe(0);
    const error = expect.objectContaining({ path: ['CachingMemoryResource', 'LimitingResourceAdaptor'], requestedBytes: MiB });
    expect(() => cache.allocate(MiB, stream)).toThrow(error);
    cache.deallocate(pointer, 512 * KiB, stream);
  });
});

describe('runs of one cache', () => {
  test('take back their own memory if they are nested', () => {
    const { upstream, cache } = countingCache();
    cache.run(() => {
      const outer = cache.allocate(1000, stream);
      const inner = cache.run(() => cache.allocate(1000, stream));
      expect(inner).not.toBe(outer);
      expect(cache.statistics()).toMatchObject({ busyBlocks: 1, freeBlocks: 1 });
      expect(cache.allocate(1000, stream)).toBe(inner);
      cache.deallocate(outer, 1000, stream);
      cache.validate();
    });
    expect(upstream.calls).toBe(2);
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, freeBlocks: 2, runs: 2 });
    cache.validate();
  });

  test('take back their own memory if they run side by side', async () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    const bytes = 4 * KiB;
    const task = (value: number) =>
      cache.run(async () => {
        const buffers: DeviceBuffer[] = [];
        for (let i = 0; i < 5; i++) {
          const buffer = bufferOf(bytes);
          buffer.fill(value);
          buffers.push(buffer);
          await (i % 2 === 0 ? setImmediate() : setTimeout((value * 7 + i) % 3));
          const pointer = cache.allocate(bytes, stream);
          set(pointer, 255, 1, bytes, stream);
          if (i % 2 === 0) cache.deallocate(pointer, bytes, stream);
        }
        const found = await Promise.all(buffers.map((buffer) => buffer.toHost()));
        return [...new Set(found.flatMap((contents) => [...contents]))];
      });
    for (let round = 0; round < 3; round++) {
      const found = await Promise.all([1, 2, 3, 4, 5, 6].map(task));
      expect(found).toEqual([[1], [2], [3], [4], [5], [6]]);
      cache.validate();
    }
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, activeRuns: 0, runs: 18 });
  });

  test('end in any order', async () => {
    const { cache } = countingCache();
    const ends: (() => void)[] = [];
    const begin = (bytes: number) =>
      cache.run(() => {
        cache.allocate(bytes, stream);
        return new Promise<void>((resolve) => void ends.push(resolve));
      });
    const runs = [begin(1000), begin(2000), begin(3000)];
    for (const [i, busy] of [
      [1, 2],
      [2, 1],
      [0, 0],
    ] as const) {
      ends[i]?.();
      await runs[i];
      expect(cache.statistics()).toMatchObject({ busyBlocks: busy, activeRuns: busy });
      cache.validate();
    }
  });
});

describe('two caches', () => {
  test('have their own memory and runs', () => {
    const first = countingCache();
    const second = countingCache();
    first.cache.run(() => {
      second.cache.run(() => {
        first.cache.allocate(1000, stream);
        second.cache.allocate(1000, stream);
        expect(currentResource()).toBe(second.cache);
        bufferOf(500, first.cache);
      });
      expect(first.cache.statistics().busyBlocks).toBe(2);
      expect(second.cache.statistics().busyBlocks).toBe(0);
      second.cache.allocate(3000, stream);
    });
    expect([first.upstream.calls, second.upstream.calls]).toEqual([2, 2]);
    expect([...second.upstream.live.values()]).toEqual([1024, 3000]);
    expect(first.cache.statistics().busyBlocks).toBe(0);
    for (const { cache } of [first, second]) cache.validate();
  });

  test('one above the other: the upper one takes its blocks uncached', () => {
    const { upstream, cache: lower } = countingCache();
    using upper = new CachingMemoryResource(lower);
    const pass = () => lower.run(() => upper.run(() => upper.allocate(1000, stream)));
    const pointer = pass();
    expect(pass()).toBe(pointer);
    expect(upstream.calls).toBe(1);
    expect(lower.statistics().upstreamBlocks).toBe(0);
  });
});

describe('uncached', () => {
  test('suspends every cache, and a new run inside it works', async () => {
    const { upstream, cache } = countingCache();
    const pointer = await cache.run(() =>
      uncached(async () => {
        await setImmediate();
        const outliving = cache.allocate(700, stream);
        cache.run(() => cache.allocate(800, stream));
        expect(cache.statistics()).toMatchObject({ freeBlocks: 1, busyBlocks: 0 });
        return outliving;
      }),
    );
    expect([...upstream.live.values()]).toEqual([700, 1024]);
    cache.deallocate(pointer, 700, stream);
    expect(upstream.frees).toHaveLength(1);
    expect(() => uncached(5 as unknown as () => void)).toThrow('fn must be a function, got 5');
  });

  test('lets a buffer outlive the run', () => {
    const { upstream, cache } = countingCache();
    using buffer = cache.run(() => uncached(() => bufferOf(700)));
    expect([buffer.isDisposed, buffer.resource]).toEqual([false, cache]);
    buffer.dispose();
    expect(upstream.live.size).toBe(0);
  });
});

describe('a buffer made in a run', () => {
  test('is disposed when the run ends, and says why', () => {
    const { cache } = countingCache();
    const buffer = cache.run(() => bufferOf(1000));
    expect([buffer.isDisposed, buffer.byteLength, buffer.capacityBytes]).toEqual([true, 0, 0]);
    const reason = "the scope of the cache 'test' that the buffer was made in has ended; cache.keep(buffer) lets it outlive the scope";
    expect(() => buffer.ptr).toThrow(new LifetimeError('ERR_CISTERN_DISPOSED', `cannot read the address of a buffer: ${reason}`));
    expect(() => buffer.ptr).toThrow(disposed);
    expect(() => buffer.resize(5000)).toThrow(disposed);
    expect(() => buffer.fill(0)).toThrow(disposed);
    expect(() => cache.keep(buffer)).toThrow(disposed);
    const other = cache.run(() => {
      const next = bufferOf(1000);
      buffer.dispose();
      expect([next.isDisposed, next.byteLength]).toEqual([false, 1000]);
      return next;
    });
    expect([buffer.isDisposed, other.isDisposed]).toEqual([true, true]);
    cache.validate();
  });

  test('is freed through everything above the cache', () => {
    const { cache } = countingCache();
    const statistics = new StatisticsResourceAdaptor(cache);
    cache.run(() => {
      bufferOf(1000, statistics);
      bufferOf(2000, statistics).dispose();
      expect(statistics.statistics().bytes.current).toBe(1000);
    });
    expect(statistics.statistics().bytes.current).toBe(0);
    expect(cache.statistics().busyBlocks).toBe(0);
  });

  test('is disposed even if an adaptor moved its pointer inside the block', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    const aligned = new AlignedResourceAdaptor(cache, { alignment: 64 * KiB });
    const [first, second] = cache.run(() => [bufferOf(1000, aligned), bufferOf(1000, aligned)]);
    expect([first.isDisposed, second.isDisposed]).toEqual([true, true]);
    using kept = cache.run(() => cache.keep(bufferOf(1000, aligned)));
    expect(kept.isDisposed).toBe(false);
    cache.validate();
  });

  test('belongs to its run wherever it grows', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    let outer: DeviceBuffer | undefined;
    let empty: DeviceBuffer | undefined;
    cache.run(() => {
      outer = bufferOf(1000);
      empty = bufferOf(0);
      cache.run(() => {
        outer?.resize(5000);
        empty?.resize(2000);
      });
      expect([outer.isDisposed, empty.isDisposed]).toEqual([false, false]);
      expect(cache.statistics().busyBlocks).toBe(2);
      outer.resize(9000);
      uncached(() => empty?.shrinkToFit());
      cache.validate();
    });
    expect([outer?.isDisposed, empty?.isDisposed]).toEqual([true, true]);
    expect(cache.statistics().busyBlocks).toBe(0);
  });

  test('is not taken back with memory that it took elsewhere', () => {
    const { upstream, cache } = countingCache();
    using buffer = cache.run(() => bufferOf(500, upstream));
    expect(buffer.isDisposed).toBe(false);
  });

  test('keeps its memory if the free is refused, and the run says so', () => {
    const { cache } = countingCache();
    const fussy = new RefusingAdaptor(cache);
    const failure = new Error('not now');
    let buffer: DeviceBuffer | undefined;
    let other: DeviceBuffer | undefined;
    fussy.failure = failure;
    expect(() =>
      cache.run(() => {
        buffer = bufferOf(1000, fussy);
        other = bufferOf(1000);
        cache.allocate(1000, stream);
      }),
    ).toThrow(failure);
    expect([buffer?.isDisposed, other?.isDisposed]).toEqual([false, true]);
    const pointer = buffer?.ptr;
    expect(cache.statistics()).toMatchObject({ busyBlocks: 1, keptBlocks: 1, freeBlocks: 2 });
    cache.run(() => {
      for (let i = 0; i < 3; i++) expect(cache.allocate(1000, stream)).not.toBe(pointer);
    });
    fussy.failure = undefined;
    buffer?.dispose();
    expect(cache.statistics().busyBlocks).toBe(0);
    cache.validate();
  });

  test('is taken back through a disposed resource in between', async () => {
    const { cache } = countingCache();
    const statistics = new StatisticsResourceAdaptor(cache);
    let buffer: DeviceBuffer | undefined;
    const running = cache.run(async () => {
      buffer = bufferOf(1000, statistics);
      statistics.dispose();
    });
    await running;
    expect(buffer?.isDisposed).toBe(true);
    expect(statistics.statistics().bytes.current).toBe(0);
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, freeBlocks: 1 });
    cache.validate();
  });

  test('can be freed by a resource that uses the cache during the free', () => {
    const { upstream, cache } = countingCache();
    const busy = new RefusingAdaptor(cache);
    busy.meanwhile = () => {
      cache.run(() => cache.allocate(1000, stream));
      expect(() => cache.invalidate()).toThrow('a run has not ended');
      const passing = cache.allocate(1000, stream);
      cache.deallocate(passing, 1000, stream);
    };
    for (let pass = 0; pass < 3; pass++) {
      cache.run(() => {
        for (let i = 0; i < 3; i++) bufferOf(1000, busy);
        cache.allocate(1000, stream);
      });
      expect(cache.statistics()).toMatchObject({ busyBlocks: 0, activeRuns: 0 });
      cache.validate();
    }
    busy.meanwhile = () => cache.dispose();
    const buffer = cache.run(() => bufferOf(1000, busy));
    expect(buffer.isDisposed).toBe(true);
    expect(upstream.live.size).toBe(0);
  });
});

describe('memory of an ended stream that a run which ends in a host function leaves', () => {
  /**
   * Leaves memory that can only be freed after a wait for the device, which a host function must
   * not do.
   */
  const leave = (cache: CachingMemoryResource, resource: MemoryResource = cache) =>
    inHostFunction(() => {
      cache.run(() => {
        using ending = new Stream();
        cache.allocate(1000, stream);
        resource.allocate(5000, ending);
        resource.allocate(3000, ending);
      });
      cache.validate();
    });

  test('belongs to no run and is not kept', () => {
    const { cache } = countingCache();
    leave(cache);
    expect(cache.statistics()).toMatchObject({ activeRuns: 0, busyBlocks: 2, keptBlocks: 0 });
    leave(cache);
    expect(cache.statistics()).toMatchObject({ activeRuns: 0, busyBlocks: 4, keptBlocks: 0 });
  });

  test('is taken back by the end of the next run', () => {
    const { cache } = countingCache();
    leave(cache);
    cache.run(() => {});
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, freeBlocks: 3 });
    cache.validate();
  });

  test('is taken back by trim', () => {
    const { upstream, cache } = countingCache();
    leave(cache);
    expect(cache.trim(stream)).toBe(1024 + 5120 + 3072);
    expect(upstream.live.size).toBe(0);
    cache.validate();
  });

  test('serves an allocation that would otherwise run out of memory', () => {
    using cache = new CachingMemoryResource(new CountingResource(), { maximumBytes: 10_000 });
    leave(cache);
    cache.run(() => expect(cache.allocate(5000, stream)).toBeGreaterThan(0));
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, growths: 3 });
    cache.validate();
  });

  test('is taken back through the adaptors above', () => {
    const { cache } = countingCache();
    const limit = new LimitingResourceAdaptor(cache, { limitBytes: MiB });
    leave(cache, limit);
    expect(limit.allocatedBytes).toBe(5120 + 3072);
    cache.validate();
    cache.run(() => {});
    expect(limit.allocatedBytes).toBe(0);
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, freeBlocks: 3 });
    cache.validate();
  });

  test('belongs to the upstream again when the cache is disposed', () => {
    const { upstream, cache } = countingCache();
    const limit = new LimitingResourceAdaptor(cache, { limitBytes: MiB });
    leave(cache, limit);
    leave(cache);
    cache.dispose();
    expect([upstream.live.size, limit.allocatedBytes]).toEqual([0, 0]);
  });

  test('can be freed, and kept', () => {
    const { cache } = countingCache();
    let freed: DevicePointer = 0;
    let kept: DevicePointer = 0;
    inHostFunction(() =>
      cache.run(() => {
        using ending = new Stream();
        freed = cache.allocate(5000, ending);
        kept = cache.allocate(3000, ending);
      }),
    );
    cache.deallocate(freed, 5000, stream);
    cache.keep(kept);
    cache.run(() => {});
    expect(cache.statistics()).toMatchObject({ busyBlocks: 1, keptBlocks: 1 });
    cache.deallocate(kept, 3000, stream);
    cache.validate();
  });
});

test('the end of a run does not name a stream created elsewhere that may be gone', () => {
  const { cache } = countingCache();
  const foreign = madeElsewhere();
  const unannounced = Stream.fromHandle(foreign.address);
  let pointer: DevicePointer = 0;
  cache.run(() => {
    pointer = cache.allocate(1000, unannounced);
  });
  expect(eventRecords(() => cache.run(() => expect(cache.allocate(1000, unannounced)).toBe(pointer)))).toBe(0);
  cache.run(() => {
    cache.allocate(1000, unannounced);
    foreign.destroy();
  });
  expect(cache.statistics()).toMatchObject({ busyBlocks: 0, freeBlocks: 1 });
  unannounced.dispose();
  cache.run(() => expect(cache.allocate(1000, stream)).toBe(pointer));
});

describe('a buffer made outside a run', () => {
  test('outlives it, even with memory that it got in it', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    using buffer = bufferOf(100, cache);
    using empty = bufferOf(0, cache);
    cache.run(() => {
      buffer.resize(5000);
      empty.resize(600);
    });
    expect([buffer.isDisposed, empty.isDisposed]).toEqual([false, false]);
    expect(cache.statistics()).toMatchObject({ busyBlocks: 2, keptBlocks: 2 });
    const { ptr } = buffer;
    expect(cache.run(() => cache.allocate(5000, stream))).not.toBe(ptr);
    buffer.dispose();
    empty.dispose();
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, keptBlocks: 0 });
    cache.validate();
  });
});

describe('keep', () => {
  test('lets a buffer and its contents outlive the run, until it is disposed', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    const bytes = 64 * KiB;
    const pass = (value: number) => {
      const [kept] = cache.run(() => {
        const buffers = [bufferOf(bytes), bufferOf(bytes)];
        for (const buffer of buffers) buffer.fill(value);
        return [cache.keep(buffers[0] as DeviceBuffer)];
      });
      return kept as DeviceBuffer;
    };
    const first = pass(1);
    const second = pass(2);
    expect([...new Set(first.toHostSync())]).toEqual([1]);
    first.dispose();
    let last = second;
    const before = driverCallCounts();
    for (let value = 3; value < 8; value++) {
      const next = pass(value);
      expect([...new Set(last.toHostSync())]).toEqual([value - 1]);
      last.dispose();
      last = next;
    }
    const after = driverCallCounts();
    // Kept in one pass and freed in the next: no pass calls the driver.
    expect([after.allocations - before.allocations, after.frees - before.frees]).toEqual([0, 0]);
    expect(cache.statistics()).toMatchObject({ upstreamBlocks: 3, keptBlocks: 1 });
    last.dispose();
    cache.validate();
  });

  test('takes a pointer, or an object that has one, and returns it', () => {
    const { upstream, cache } = countingCache();
    const view = { ptr: 0 };
    const pointer = cache.run(() => {
      view.ptr = cache.allocate(300, stream);
      expect(cache.keep(view)).toBe(view);
      const kept = cache.keep(cache.allocate(400, stream));
      expect(cache.keep(kept)).toBe(kept);
      return kept;
    });
    expect(cache.statistics()).toMatchObject({ keptBlocks: 2, freeBlocks: 0 });
    cache.deallocate(pointer, 400, stream);
    expect(upstream.frees).toEqual([]);
    expect(cache.run(() => cache.allocate(400, stream))).toBe(pointer);
    cache.deallocate(view.ptr, 300, stream);
    expect(cache.statistics()).toMatchObject({ keptBlocks: 0, freeBlocks: 2 });
  });

  test('in nested runs, holds for all of them', () => {
    const { cache } = countingCache();
    using buffer = cache.run(() => cache.run(() => cache.keep(bufferOf(300))));
    expect(buffer.isDisposed).toBe(false);
  });

  test('holds for a buffer that grows afterwards', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    using buffer = cache.run(() => {
      const kept = cache.keep(bufferOf(300));
      kept.resize(3000);
      return kept;
    });
    expect(buffer.isDisposed).toBe(false);
    cache.validate();
  });

  test('leaves memory alone that no run would take back', () => {
    const { upstream, cache } = countingCache();
    const foreign = upstream.allocate(100, stream);
    expect(cache.keep(foreign)).toBe(foreign);
    expect(cache.keep(cache.run(() => bufferOf(0))).byteLength).toBe(0);
    using outside = cache.keep(bufferOf(100, cache));
    expect(outside.isDisposed).toBe(false);
  });

  test('refuses freed memory, and values that are not memory', () => {
    const { cache } = countingCache();
    const pointer = cache.run(() => cache.allocate(300, stream));
    expect(() => cache.keep(pointer)).toThrow(disposed);
    expect(() => cache.keep('0x100' as unknown as number)).toThrow('memory must be a number, got "0x100"');
    expect(() => cache.keep({ ptr: 1.5 })).toThrow('memory must be an integer from 0 to 2^53 - 1, got 1.5');
    expect(() => cache.keep(null as unknown as number)).toThrow('memory must be a number, got null');
  });
});

describe('a free', () => {
  test('after the run that took the memory back is refused, and so is a second one', () => {
    const { cache } = countingCache();
    const doubleFree = expect.objectContaining({ code: 'ERR_CISTERN_DOUBLE_FREE', message: expect.stringContaining("the cache 'test'") });
    const pointer = cache.run(() => {
      const first = cache.allocate(300, stream);
      cache.deallocate(first, 300, stream);
      expect(() => cache.deallocate(first, 300, stream)).toThrow(doubleFree);
      return cache.allocate(300, stream);
    });
    expect(() => cache.deallocate(pointer, 300, stream)).toThrow(doubleFree);
    cache.run(() => {
      cache.allocate(299, stream);
      expect(() => cache.deallocate(pointer, 300, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
    });
    cache.validate();
  });

  test('that is refused leaves the block with its run', () => {
    const { cache } = countingCache();
    using event = new Event();
    cache.run(() => {
      const buffer = bufferOf(300);
      expect(() => cache.deallocate(buffer.ptr, 300, stream, event)).toThrow('fence must be an event');
      cache.validate();
      expect(cache.statistics()).toMatchObject({ busyBlocks: 1, keptBlocks: 0 });
    });
    expect(cache.statistics().busyBlocks).toBe(0);
  });
});

describe('a resource above a cache that keeps memory', () => {
  test('takes it uncached, so that the end of a run does not pull it away', () => {
    const { upstream, cache } = countingCache();
    using pool = new PoolMemoryResource(cache);
    using scratch = new MonotonicMemoryResource(cache, { initialBytes: MiB });
    const pointer = cache.run(() => pool.allocate(1000, stream));
    cache.run(() => scratch.allocate(1000, stream));
    using buffer = cache.run(() => bufferOf(500, pool));
    expect(cache.statistics().upstreamBlocks).toBe(0);
    expect(upstream.live.size).toBeGreaterThanOrEqual(2);
    pool.deallocate(pointer, 1000, stream);
    pool.validate();
    expect(buffer.isDisposed).toBe(false);
  });

  test('also takes it uncached from a cache that it falls back to', () => {
    const { upstream, cache } = countingCache();
    using scratch = new MonotonicMemoryResource(upstream, { maximumBytes: MiB, fallback: cache });
    cache.run(() => scratch.allocate(2 * MiB, stream));
    expect([cache.statistics().upstreamBlocks, upstream.live.size]).toEqual([0, 1]);
    scratch.reset();
    expect(upstream.live.size).toBe(0);
  });
});

describe('invalidate', () => {
  test('gives free blocks back, leaves kept ones, and is refused while a run goes on', async () => {
    const { upstream, cache } = countingCache();
    const refusal = (message: string) => expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE', message });
    const kept = cache.run(() => {
      cache.allocate(1000, stream);
      cache.allocate(2000, stream);
      expect(() => cache.invalidate()).toThrow(refusal("cannot invalidate the cache 'test': a run has not ended"));
      cache.run(() => expect(() => cache.invalidate()).toThrow('2 runs have not ended'));
      return cache.keep(cache.allocate(3000, stream));
    });
    const running = cache.run(() => setImmediate());
    expect(() => cache.invalidate()).toThrow('a run has not ended');
    await running;
    expect(cache.invalidate()).toBe(1024 + 2048);
    expect([...upstream.live.values()]).toEqual([3072]);
    cache.deallocate(kept, 3000, stream);
    expect(cache.invalidate(stream)).toBe(3072);
    expect(upstream.live.size).toBe(0);
    expect(upstream.frees.map((free) => free.stream)).toEqual([Stream.legacyDefault(), Stream.legacyDefault(), stream]);
    cache.validate();
  });

  test('trim does the same for free blocks, even in a run', () => {
    const { upstream, cache } = countingCache();
    cache.run(() => {
      cache.allocate(1000, stream);
      cache.deallocate(cache.allocate(2000, stream), 2000, stream);
      expect(cache.trim(stream)).toBe(2048);
      expect([...upstream.live.values()]).toEqual([1024]);
    });
    cache.validate();
  });

  test('gives memory back only after the stream that freed it', () => {
    using upstream = new CudaAsyncMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents: 'deferred' });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const pointer = cache.run(() => cache.allocate(MiB, a));
    using hold = a.hold();
    set(pointer, 1, 1, MiB, a);
    cache.invalidate(b);
    const next = upstream.allocate(MiB, b);
    set(next, 9, 1, MiB, b);
    expectWaiting(b);
    hold.release();
    expect(valuesOf(next, MiB, b)).toEqual([9]);
    upstream.deallocate(next, MiB, b);
  });
});

describe('if the upstream is out of memory', () => {
  test.each(policies)('a run gives free blocks of other sizes back first, under %s', (deallocationEvents) => {
    using upstream = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 4 * MiB });
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    using other = new Stream();
    cache.run(() => {
      cache.allocate(MiB, stream);
      cache.allocate(MiB, other);
      cache.allocate(2 * MiB, other);
    });
    cache.run(() => {
      cache.allocate(3 * MiB, stream);
      expect(cache.statistics().reservedBytes).toBeLessThanOrEqual(4 * MiB);
      cache.validate();
    });
  });

  test.each(['eager', 'deferred'] as const)(
    'the rest of the memory of another stream goes to a third in its order, under %s (rapidsai/rmm#2489)',
    (policy) => {
      const upstream = new AddressCountingResource();
      upstream.limitBytes = 4 * MiB;
      using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents: policy });
      using a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      using c = new Stream({ nonBlocking: true });
      cache.run(() => {
        const blocks = [cache.allocate(2 * MiB, a), cache.allocate(2 * MiB, a)];
        using _hold = a.hold();
        for (const block of blocks) cache.deallocate(block, 2 * MiB, a);
        let second = 0;
        upstream.beforeFree = () => {
          second = cache.allocate(2 * MiB, c);
        };
        // Stream b has both blocks by the time that one of them goes back.
        cache.allocate(MiB, b);
        upstream.beforeFree = undefined;
        expect(blocks).toContain(second);
        expectWaiting(c);
      });
    },
  );

  test('no more than needed goes back, if that is enough', () => {
    using upstream = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 4 * MiB });
    using cache = new CachingMemoryResource(upstream);
    cache.run(() => {
      for (let i = 0; i < 4; i++) cache.allocate(MiB, stream);
    });
    cache.run(() => cache.allocate(2 * MiB, stream));
    expect(cache.statistics()).toMatchObject({ upstreamBlocks: 3, releases: 2, misses: 5 });
  });

  test('everything goes back, if that is not enough', () => {
    const { upstream, cache } = countingCache();
    for (const bytes of [1000, 2000, 3000]) cache.run(() => cache.allocate(bytes, stream));
    upstream.beforeAllocate = (bytes) => {
      // As on a fragmented device.
      if (upstream.live.size > 0) throw new OutOfMemoryError('no room', { requestedBytes: bytes, path: ['addresses'] });
    };
    cache.run(() => cache.allocate(500, stream));
    expect([...upstream.live.values()]).toEqual([512]);
  });

  test('the error says what is in the cache, and the state is unchanged', () => {
    const { upstream, cache } = countingCache();
    upstream.limitBytes = 10_000;
    cache.run(() => {
      const pointer = cache.allocate(4096, stream);
      expect(() => cache.allocate(8192, stream)).toThrow(
        expect.objectContaining({
          code: 'ERR_CISTERN_OUT_OF_MEMORY',
          requestedBytes: 8192,
          path: ['CachingMemoryResource', 'addresses'],
          message: expect.stringContaining("4 KiB are in the cache 'test'"),
        }),
      );
      cache.deallocate(pointer, 4096, stream);
      cache.validate();
    });
  });
});

describe('dispose', () => {
  test('leaves memory that passed through it to be freed, and refuses memory that it gave back itself', () => {
    const { upstream, cache } = countingCache();
    const kept = cache.run(() => cache.keep(cache.allocate(1000, stream)));
    const passed = cache.allocate(2000, stream);
    cache.dispose();
    expect([...upstream.live.keys()]).toEqual([passed]);
    const other = upstream.allocate(1000, stream);
    expect(() => cache.deallocate(kept, 1000, stream)).toThrow(disposed);
    cache.deallocate(passed, 2000, stream);
    expect([...upstream.live.keys()]).toEqual([other]);
  });

  test('in a run gives everything back, and the end of the run finds nothing', async () => {
    const { upstream, cache } = countingCache();
    const running = cache.run(async () => {
      cache.allocate(1000, stream);
      const buffer = bufferOf(2000);
      await setImmediate();
      cache.dispose();
      expect(() => cache.allocate(1000, stream)).toThrow(disposed);
      return buffer;
    });
    const buffer = await running;
    expect(upstream.live.size).toBe(0);
    expect(() => buffer.ptr).toThrow('cannot read the address of a buffer: the CachingMemoryResource is disposed');
    buffer.dispose();
    cache.dispose();
  });
});

describe.each(policies)('stream order with %s events', (deallocationEvents) => {
  const bytes = MiB;

  test('returns a block that a run took back to its stream without waiting', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    using a = new Stream({ nonBlocking: true });
    const pointer = cache.run(() => cache.allocate(bytes, a));
    using _hold = a.hold();
    const before = driverCallCounts().eventWaits;
    expect(cache.run(() => cache.allocate(bytes, a))).toBe(pointer);
    expect(driverCallCounts().eventWaits).toBe(before);
  });

  test('gives a block that a run took back to another stream, ordered after its own', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const first = cache.run(() => {
      const pointer = cache.allocate(bytes, a);
      return cache.keep(pointer);
    });
    a.synchronizeSync();
    using hold = a.hold();
    set(first, 1, 1, bytes, a);
    // The free of a buffer's memory, and that of a bare pointer, are queued after the write.
    cache.deallocate(first, bytes, a);
    cache.run(() => {
      const second = cache.allocate(bytes, b);
      if (deallocationEvents === 'off') {
        expect(second).not.toBe(first);
        hold.release();
        a.synchronizeSync();
        expect(cache.allocate(bytes, b)).toBe(first);
        return;
      }
      expect(second).toBe(first);
      set(second, 9, 1, bytes, b);
      expectWaiting(b);
      hold.release();
      expect(valuesOf(second, bytes, b)).toEqual([9]);
    });
    cache.validate();
  });

  test.each(['a pointer', 'a buffer'])('takes %s back after the work queued on its stream at the end of the run', (what) => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    cache.run(() => cache.allocate(bytes, a));
    a.synchronizeSync();
    using hold = a.hold();
    const first = cache.run(() => {
      const pointer = what === 'a pointer' ? cache.allocate(bytes, a) : new DeviceBuffer(bytes, { stream: a }).ptr;
      set(pointer, 1, 1, bytes, a);
      return pointer;
    });
    cache.run(() => {
      const second = cache.allocate(bytes, b);
      if (deallocationEvents === 'off') {
        expect(second).not.toBe(first);
        return;
      }
      expect(second).toBe(first);
      set(second, 9, 1, bytes, b);
      expectWaiting(b);
      hold.release();
      expect(valuesOf(second, bytes, b)).toEqual([9]);
    });
  });

  test('takes a buffer back on the stream that it has at the end', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const first = cache.run(() => {
      const buffer = new DeviceBuffer(bytes, { stream: a });
      buffer.setStream(b);
      return buffer.ptr;
    });
    using _hold = b.hold();
    const before = driverCallCounts().eventWaits;
    expect(cache.run(() => cache.allocate(bytes, b))).toBe(first);
    expect(driverCallCounts().eventWaits).toBe(before);
  });

  test.each(['a pointer', 'a buffer'])('takes %s back after all work on the device if its stream is disposed', (what) => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    const a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    let ran = false;
    const first = cache.run(() => {
      const pointer = what === 'a pointer' ? cache.allocate(bytes, a) : new DeviceBuffer(bytes, { stream: a }).ptr;
      a.launchHostFunction(() => {
        ran = true;
      });
      a.dispose();
      return pointer;
    });
    expect(ran).toBe(true);
    expect(cache.run(() => cache.allocate(bytes, b))).toBe(first);
    cache.validate();
  });

  test('makes another stream wait for memory that the upstream ordered on the first', () => {
    using upstream = new CudaAsyncMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    using hold = a.hold();
    cache.run(() => {
      const first = cache.allocate(bytes, a);
      cache.deallocate(first, bytes, a, 'deferred');
      const second = cache.allocate(bytes, b);
      expect(second).toBe(first);
      set(second, 9, 1, bytes, b);
      expectWaiting(b);
      hold.release();
    });
    b.synchronizeSync();
  });

  test('records events at the end of a run as at any free, one for all bare pointers of a stream', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const pass = () =>
      cache.run(() => {
        for (let i = 0; i < 5; i++) for (const on of [a, b]) cache.allocate(bytes / 16, on);
      });
    pass();
    expect(eventRecords(pass)).toBe(deallocationEvents === 'eager' ? 2 : 0);
  });
});

describe('an event that cannot be recorded', () => {
  test('at the end of a run is recorded when another stream wants the memory', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream, { growth: 'after-waits' });
    using a = new Stream({ nonBlocking: true });
    using b = new Stream({ nonBlocking: true });
    const hold = a.hold();
    cache.run(() => {
      cache.allocate(1000, a);
      cache.allocate(1000, a);
      failCall('cuEventRecord', 1);
    });
    expect(cache.statistics()).toMatchObject({ busyBlocks: 0, freeBlocks: 2, activeRuns: 0 });
    cache.validate();
    cache.run(() => {
      expect(eventCalls(() => cache.allocate(1000, b))).toEqual({ records: 1, waits: 1 });
    });
    hold.release();
  });

  test('does not hide what the function threw', () => {
    using upstream = new CudaMemoryResource();
    using cache = new CachingMemoryResource(upstream);
    using a = new Stream();
    const failure = new Error('first');
    expect(() =>
      cache.run(() => {
        cache.allocate(1000, a);
        failCall('cuEventRecord', 1);
        throw failure;
      }),
    ).toThrow(failure);
  });
});

describe('whatever happens', () => {
  interface Open {
    readonly scope: AsyncResource;
    readonly end: () => void;
    readonly ended: Promise<void>;
    readonly pointers: DevicePointer[];
    readonly buffers: DeviceBuffer[];
  }

  function open(cache: CachingMemoryResource): Open {
    let scope: AsyncResource | undefined;
    let end = () => {};
    const ended = cache.run(() => {
      scope = new AsyncResource('run');
      return new Promise<void>((resolve) => {
        end = resolve;
      });
    });
    return { scope: scope as AsyncResource, end, ended, pointers: [], buffers: [] };
  }

  const step = fc.record({
    action: fc.constantFrom('begin', 'nest', 'end', 'allocate', 'allocate', 'allocate', 'buffer', 'buffer', 'free', 'keep', 'trim'),
    pick: fc.nat(7),
    bytes: fc.constantFrom(100, 256, 257, 1000, 5000),
    second: fc.boolean(),
  });

  test('live memory never overlaps, and a run takes back exactly its own', async () => {
    using other = new Stream();
    const steps = fc.array(step, { maxLength: 80, size: 'max' });
    await fc.assert(
      fc.asyncProperty(steps, fc.constantFrom(...policies), async (steps, deallocationEvents) => {
        const upstream = new CountingResource();
        const cache = new CachingMemoryResource(upstream, { growth: 'after-waits', deallocationEvents });
        const runs: Open[] = [];
        /** Live bytes, by pointer. */
        const live = new Map<DevicePointer, number>();
        const kept: DevicePointer[] = [];
        const add = (pointer: DevicePointer, bytes: number) => {
          expect(live.has(pointer)).toBe(false);
          live.set(pointer, bytes);
          return pointer;
        };
        for (const { action, pick, bytes, second } of steps) {
          const run = runs[pick % Math.max(runs.length, 1)];
          const on = second ? other : stream;
          if (action === 'begin') runs.push(open(cache));
          else if (action === 'nest') runs.push(run?.scope.runInAsyncScope(() => open(cache)) ?? open(cache));
          else if (action === 'trim') cache.trim(on);
          else if (run !== undefined && action === 'end') {
            runs.splice(runs.indexOf(run), 1);
            for (const buffer of run.buffers) live.delete(buffer.ptr);
            for (const pointer of run.pointers) live.delete(pointer);
            run.end();
            await run.ended;
            expect(run.buffers.every(({ isDisposed }) => isDisposed)).toBe(true);
          } else if (run !== undefined && action === 'allocate') {
            run.pointers.push(
              add(
                run.scope.runInAsyncScope(() => cache.allocate(bytes, on)),
                bytes,
              ),
            );
          } else if (run !== undefined && action === 'buffer') {
            const buffer = run.scope.runInAsyncScope(() => new DeviceBuffer(bytes, { stream: on }));
            add(buffer.ptr, bytes);
            run.buffers.push(buffer);
          } else if (action === 'free') {
            const pointer = run?.pointers.pop() ?? kept.pop();
            if (pointer === undefined) continue;
            cache.deallocate(pointer, live.get(pointer) as number, on);
            live.delete(pointer);
          } else if (action === 'keep') {
            const pointer = run?.pointers.pop();
            if (pointer !== undefined) kept.push(cache.keep(pointer));
          }
          cache.validate();
          const { busyBlocks, keptBlocks, activeRuns } = cache.statistics();
          expect([busyBlocks, keptBlocks, activeRuns]).toEqual([live.size, kept.length, runs.length]);
        }
        for (const run of runs) {
          run.end();
          await run.ended;
        }
        cache.dispose();
        expect(upstream.live.size).toBe(0);
      }),
      { numRuns: 60 },
    );
  });
});

describe('a cache', () => {
  test('is created from a specification, and checks its options', () => {
    using resource = createResource('caching(cuda, name=training, deallocationEvents=off)');
    expect(resource).toBeInstanceOf(CachingMemoryResource);
    expect(resource).toMatchObject({ name: 'training', deallocationEvents: 'off' });
    const upstream = new CudaMemoryResource();
    expect(() => new CachingMemoryResource(upstream, { name: 5 as unknown as string })).toThrow('name must be a string, got 5');
    expect(() => new CachingMemoryResource(upstream, { deallocationEvents: 'late' as 'off' })).toThrow("'eager', 'deferred', 'off'");
    expect(() => new CachingMemoryResource(null as unknown as MemoryResource)).toThrow('upstream must be a MemoryResource');
    expect(new CachingMemoryResource(upstream)).toMatchObject({ name: 'cache', deallocationEvents: 'eager' });
  });
});

/** Passes calls on, but can refuse frees, or call back before them. */
class RefusingAdaptor extends StatisticsResourceAdaptor {
  failure: Error | undefined;
  meanwhile: (() => void) | undefined;

  override deallocate(...args: Parameters<StatisticsResourceAdaptor['deallocate']>): void {
    const { meanwhile } = this;
    this.meanwhile = undefined;
    meanwhile?.();
    this.meanwhile = meanwhile;
    if (this.failure !== undefined) throw this.failure;
    super.deallocate(...args);
  }
}
