import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { checkOrder, formatOrderViolation } from '../../src/checking/index.js';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  Device,
  Event,
  LimitingResourceAdaptor,
  type MemoryResource,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';
import { type Plan, PlannedMemoryResource, type PlannedStatistics } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { code } from '../support/errors.js';
import { orderChecks } from '../support/order-checked-tests.js';
import { page, planOf } from '../support/plans.js';
import { eventRecords, madeElsewhere } from '../support/stream-order.js';

/** Allocates, and uses the memory. */
function take(resource: MemoryResource, pages: number, stream: Stream): number {
  const pointer = resource.allocate(pages * page, stream);
  set(pointer, 0, 1, pages * page, stream);
  return pointer;
}

/** Runs something under the order checker, which must find nothing. */
function inOrder(run: () => void): void {
  using checker = checkOrder(orderChecks);
  run();
  expect(checker.violations.map((report) => formatOrderViolation(report))).toEqual([]);
}

/** Makes a stream wait for another. */
function follow(stream: Stream, other: Stream): void {
  using event = new Event();
  event.record(other);
  stream.wait(event);
}

const newStream = () => new Stream({ nonBlocking: true });

describe('planned memory is ordered', () => {
  test.each(['trim of the plan', 'a neighbour that is out of memory'])(
    'if its block is returned after several streams have used it: %s',
    (how) => {
      using a = newStream();
      using b = newStream();
      using c = newStream();
      using leaf = new CudaAsyncMemoryResource();
      using upstream = new LimitingResourceAdaptor(leaf, { limitBytes: 16 * page });
      using resource = new PlannedMemoryResource(upstream, planOf('+4@0:0 +4@1:4 -1@1 -0@0'));
      using neighbour = new PoolMemoryResource(upstream, { deallocationEvents: 'off' });
      inOrder(() => {
        resource.begin();
        const [first, second] = [take(resource, 4, a), take(resource, 4, b)];
        resource.deallocate(second, 4 * page, b);
        resource.deallocate(first, 4 * page, a);
        using _held = a.hold();
        if (how === 'trim of the plan') resource.trim(c);
        else neighbour.deallocate(take(neighbour, 12, c), 12 * page, c);
        expect(resource.reservedBytes).toBe(0);
      });
    },
  );

  test('if a request between two of other streams was served by the fallback', () => {
    using a = newStream();
    using c = newStream();
    using fallback = new CudaAsyncMemoryResource();
    const plan = planOf('+1@2:4 +4@0:0 -1@0 +4@1:0 -2@1 +4@2:0 -3@2 -0@2');
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, { fallback });
    inOrder(() => {
      resource.begin();
      take(resource, 1, c);
      const first = take(resource, 4, a);
      resource.deallocate(first, 4 * page, a);
      // On another stream than planned.
      take(resource, 4, a);
      expect(take(resource, 4, c)).toBe(first);
    });
  });

  test('if the request before was never used, and was freed on another stream', () => {
    using a = newStream();
    using b = newStream();
    using c = newStream();
    using d = newStream();
    using resource = new PlannedMemoryResource(
      new CudaMemoryResource(),
      planOf('+1@3:4 +1@2:5 +4@0:0 -2@0 +4@1:0 -3@2 +4@3:0 -4@3 -1@2 -0@3'),
    );
    inOrder(() => {
      resource.begin();
      take(resource, 1, d);
      take(resource, 1, c);
      const first = take(resource, 4, a);
      resource.deallocate(first, 4 * page, a);
      // Its stream waits for the first one, the stream of its free does not.
      expect(resource.allocate(4 * page, b)).toBe(first);
      resource.deallocate(first, 4 * page, c);
      expect(take(resource, 4, d)).toBe(first);
      resource.deallocate(first, 4 * page, d);
    });
  });

  test('for a stream whose first call in a pass frees what was never used', () => {
    using a = newStream();
    using b = newStream();
    using c = newStream();
    using d = newStream();
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), planOf('+4@0:0 -0@1 +1@1:4 -1@1'));
    inOrder(() => {
      resource.begin();
      resource.deallocate(resource.allocate(4 * page, a), 4 * page, b);
      const pointer = take(resource, 1, b);
      resource.deallocate(pointer, page, b);
      resource.begin();
      resource.deallocate(resource.allocate(4 * page, c), 4 * page, d);
      expect(take(resource, 1, d)).toBe(pointer);
      resource.deallocate(pointer, page, d);
    });
  });

  test('if the request before was freed on another stream, as planned', () => {
    using a = newStream();
    using b = newStream();
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), planOf('+4@0:0 +1@1:4 -0@1 +4@0:0 -2@0 -1@1'));
    inOrder(() => {
      resource.begin();
      const first = take(resource, 4, a);
      take(resource, 1, b);
      follow(b, a);
      set(first, 0, 1, 4 * page, b);
      resource.deallocate(first, 4 * page, b);
      expect(take(resource, 4, a)).toBe(first);
    });
  });

  test('if it is trimmed on another stream while some of it is live', () => {
    using a = newStream();
    using b = newStream();
    using trimming = newStream();
    const plan = planOf('+1@1:4 +4@0:0 -1@0 +4@1:0 -2@1 -0@1');
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan);
    inOrder(() => {
      resource.begin();
      take(resource, 1, b);
      const first = take(resource, 4, a);
      resource.deallocate(first, 4 * page, a);
      expect(resource.trim(trimming)).toBe(0);
      expect(take(resource, 4, b)).toBe(first);
    });
  });

  test('for the next pass on another stream, and for the upstream, after a trim', () => {
    using a = newStream();
    using b = newStream();
    using trimming = newStream();
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { growth: 'after-waits' });
    const resource = new PlannedMemoryResource(pool, planOf('+1@0:4 +4@0:0 -1@0 -0@0'));
    inOrder(() => {
      for (const [stream, next] of [
        [a, b],
        [b, a],
      ] as const) {
        resource.begin();
        const kept = take(resource, 1, stream);
        resource.trim(trimming);
        const pointer = take(resource, 4, stream);
        resource.deallocate(pointer, 4 * page, stream);
        resource.deallocate(kept, page, stream);
        resource.begin();
        expect([take(resource, 1, next), take(resource, 4, next)]).toEqual([kept, pointer]);
        for (const [each, pages] of [
          [kept, 1],
          [pointer, 4],
        ] as const)
          resource.deallocate(each, pages * page, next);
      }
      resource.dispose();
      take(pool, 5, b);
    });
  });

  test('for every stream, if the block is taken again', () => {
    using a = newStream();
    using b = newStream();
    using other = newStream();
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { growth: 'after-waits' });
    using resource = new PlannedMemoryResource(pool, planOf('+4@0:0 +4@1:4 -0@0 -1@1 +4@0:0 +4@1:4 -2@0 -3@1'));
    inOrder(() => {
      resource.begin();
      const [first, second] = [take(resource, 4, a), take(resource, 4, b)];
      resource.deallocate(first, 4 * page, a);
      resource.deallocate(second, 4 * page, b);
      expect(resource.trim(other)).toBe(8 * page);
      const between = take(pool, 8, other);
      pool.deallocate(between, 8 * page, other);
      expect([take(resource, 4, a), take(resource, 4, b)]).toEqual([between, between + 4 * page]);
    });
  });

  test('for a stream that comes after one has ended', () => {
    const a = newStream();
    using b = newStream();
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), planOf('+4@0:0 +4@1:4 -0@0 -1@1'));
    inOrder(() => {
      resource.begin();
      const [first, second] = [take(resource, 4, a), take(resource, 4, b)];
      resource.deallocate(first, 4 * page, a);
      resource.deallocate(second, 4 * page, b);
      resource.begin();
      resource.deallocate(take(resource, 4, a), 4 * page, a);
      a.dispose();
      using c = newStream();
      expect(take(resource, 4, c)).toBe(second);
    });
  });

  test('if an object for the stream that had it is disposed, but not the stream', () => {
    using a = newStream();
    using b = newStream();
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), planOf('+1@1:4 +4@0:0 -1@0 +4@1:0 -2@1 -0@1'));
    inOrder(() => {
      resource.begin();
      take(resource, 1, b);
      const another = Stream.fromHandle(a.nativeHandle);
      const pointer = take(resource, 4, another);
      resource.deallocate(pointer, 4 * page, another);
      another.dispose();
      expect(take(resource, 4, b)).toBe(pointer);
    });
  });

  test('in an irregular pass by new events, not by those of its beginning', () => {
    using a = newStream();
    using b = newStream();
    using c = newStream();
    using fallback = new CudaAsyncMemoryResource();
    const plan = planOf('+1@2:4 +4@0:0 -1@0 +4@1:0 -2@1 +4@2:0 -3@2 -0@2');
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, { fallback });
    inOrder(() => {
      for (const second of [b, a]) {
        resource.begin();
        const kept = take(resource, 1, c);
        const pointers: number[] = [];
        // The second time, the request in the middle comes on another stream than planned.
        for (const stream of [a, second, c]) {
          const pointer = take(resource, 4, stream);
          resource.deallocate(pointer, 4 * page, stream);
          pointers.push(pointer);
        }
        expect(pointers[2]).toBe(pointers[0]);
        resource.deallocate(kept, page, c);
      }
    });
  });

  test('if it was kept into a pass, and freed there on a stream that the pass has used', () => {
    using a = newStream();
    using b = newStream();
    using fallback = new CudaAsyncMemoryResource();
    const plan = planOf('+1@1:8 +4@0:0 -1@0 +4@1:0 -2@1 -0@1');
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, { fallback });
    inOrder(() => {
      resource.begin();
      resource.deallocate(take(resource, 1, b), page, b);
      resource.deallocate(take(resource, 4, a), 4 * page, a);
      const kept = take(resource, 4, b);
      resource.begin();
      take(resource, 1, b);
      set(kept, 1, 1, 4 * page, b);
      resource.deallocate(kept, 4 * page, b);
      take(resource, 4, a);
    });
  });

  test('if another stream freed it, although the stream of the plan goes on meanwhile', () => {
    using a = newStream();
    using other = newStream();
    using fallback = new CudaAsyncMemoryResource();
    const plan = planOf('+4@0:0 +1@0:4 -0@0 +1@0:5 +4@0:0');
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, { fallback });
    inOrder(() => {
      resource.begin();
      const first = take(resource, 4, a);
      take(resource, 1, a);
      follow(other, a);
      set(first, 1, 1, 4 * page, other);
      resource.deallocate(first, 4 * page, other);
      take(resource, 1, a);
      expect(take(resource, 4, a)).not.toBe(first);
    });
  });

  test('if a stream takes over memory of another after some of its own, in every pass', () => {
    using a = newStream();
    using b = newStream();
    const plan = planOf('+1@0:4 +4@1:0 -1@1 +1@0:5 +4@0:0 -0@0 -2@0 -3@0');
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan);
    inOrder(() => {
      for (let pass = 0; pass < 2; pass++) {
        resource.begin();
        const kept = take(resource, 1, a);
        const pointer = take(resource, 4, b);
        resource.deallocate(pointer, 4 * page, b);
        const next = take(resource, 1, a);
        expect(take(resource, 4, a)).toBe(pointer);
        for (const each of [kept, next]) resource.deallocate(each, page, a);
        resource.deallocate(pointer, 4 * page, a);
      }
    });
  });

  test('if a stream takes over memory of two others after some of its own', () => {
    using first = newStream();
    using second = newStream();
    using taker = newStream();
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), planOf('+1@0:2 +1@1:0 +1@2:1 -1@1 -2@2 +2@0:0 -3@0 -0@0'));
    inOrder(() => {
      for (const others of [
        [first, second],
        [second, first],
      ] as const) {
        resource.begin();
        const own = take(resource, 1, taker);
        const pointers = others.map((stream) => take(resource, 1, stream));
        for (const [i, stream] of others.entries()) resource.deallocate(pointers[i] as number, page, stream);
        const both = take(resource, 2, taker);
        expect(both).toBe(pointers[0]);
        resource.deallocate(both, 2 * page, taker);
        resource.deallocate(own, page, taker);
      }
    });
  });

  test('for the next pass, after a trim on a stream that uses none of it', () => {
    using a = newStream();
    using b = newStream();
    using trimming = newStream();
    using fallback = new CudaAsyncMemoryResource();
    const plan = planOf('+1@0:4 +4@0:0 -1@0 -0@0');
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, { fallback });
    inOrder(() => {
      resource.begin();
      take(resource, 1, a);
      const pointer = take(resource, 4, a);
      resource.deallocate(pointer, 4 * page, a);
      expect(resource.trim(trimming)).toBe(0);
      resource.begin();
      take(resource, 1, b);
      expect(take(resource, 4, b)).toBe(pointer);
    });
  });

  test('for every stream, if the block is taken again by the stream that gave it back', () => {
    using a = newStream();
    using b = newStream();
    using other = newStream();
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { growth: 'after-waits' });
    using resource = new PlannedMemoryResource(pool, planOf('+4@0:0 +4@1:4 -0@0 -1@1'));
    inOrder(() => {
      resource.begin();
      const [first, second] = [take(resource, 4, a), take(resource, 4, b)];
      resource.deallocate(first, 4 * page, a);
      resource.deallocate(second, 4 * page, b);
      expect(resource.trim(a)).toBe(8 * page);
      const between = take(pool, 8, other);
      pool.deallocate(between, 8 * page, other);
      resource.begin();
      expect([take(resource, 4, a), take(resource, 4, b)]).toEqual([between, between + 4 * page]);
    });
  });

  describe.each(['eager', 'deferred', 'off'] as const)('under %s', (deallocationEvents) => {
    test('for the next pass, if a stream freed it that its owner destroys without notice', () => {
      const foreign = madeElsewhere();
      const unannounced = Stream.fromHandle(foreign.address);
      using a = newStream();
      using b = newStream();
      using resource = new PlannedMemoryResource(new CudaMemoryResource(), planOf('+4@0:0 -0@0'), { deallocationEvents });
      inOrder(() => {
        resource.begin();
        const pointer = take(resource, 4, a);
        follow(unannounced, a);
        set(pointer, 1, 1, 4 * page, unannounced);
        resource.deallocate(pointer, 4 * page, unannounced);
        foreign.destroy();
        resource.begin();
        expect(take(resource, 4, b)).toBe(pointer);
      });
      unannounced.dispose();
    });

    test('for a stream that trims, if a stream freed it that its owner has destroyed without notice', () => {
      const foreign = madeElsewhere();
      const unannounced = Stream.fromHandle(foreign.address);
      using a = newStream();
      using b = newStream();
      using pool = new PoolMemoryResource(new CudaMemoryResource());
      using resource = new PlannedMemoryResource(pool, planOf('+4@0:0 -0@0'), { deallocationEvents });
      inOrder(() => {
        resource.begin();
        const pointer = take(resource, 4, a);
        follow(unannounced, a);
        set(pointer, 1, 1, 4 * page, unannounced);
        resource.deallocate(pointer, 4 * page, unannounced);
        foreign.destroy();
        expect(resource.trim(b)).toBe(4 * page);
        expect(take(pool, 4, b)).toBe(pointer);
      });
      unannounced.dispose();
    });
  });

  test('by an event at each free on a stream that was made elsewhere, without which nothing is freed', () => {
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    using stream = newStream();
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), planOf('+1@0:0 +1@0:1 -0@1 -1@0'));
    resource.begin();
    const [first, second] = [take(resource, 1, stream), take(resource, 1, stream)];
    follow(unannounced, stream);
    failCall('cuEventRecord', 1, 999);
    expect(() => resource.deallocate(first, page, unannounced)).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(resource.statistics().plannedAllocations).toBe(2);
    expect(eventRecords(() => resource.deallocate(first, page, unannounced))).toBe(1);
    expect(eventRecords(() => resource.deallocate(second, page, stream))).toBe(0);
    expect(resource.statistics().plannedAllocations).toBe(0);
    unannounced.dispose();
    foreign.destroy();
  });

  /** The sizes and streams that programs request in each pass, unless they deviate. */
  const scripts = [
    '+1@2:4 +4@0:0 -1@0 +4@1:0 -2@1 +4@2:0 -3@2 -0@2',
    '+1@0:0 +2@1:1 -0@0 +1@1:0 -1@1 +2@0:1 -2@1 -3@0',
    '+4@0:0 +2@0:4 -0@0 +4@0:0 -1@0 -2@0',
    '+2@0:0 +2@1:2 -0@1 +2@2:0 -1@0 +2@0:2 -2@2 -3@1',
  ].map(planOf);
  const rarely = fc.integer({ min: 0, max: 5 }).map((n) => n === 0);
  const step = fc.record({
    kind: fc.constantFrom(
      ...(['begin', 'finish', 'record', 'trim', 'end', 'wait', 'free all'] as const),
      ...Array<'allocate'>(9).fill('allocate'),
      ...Array<'free'>(8).fill('free'),
    ),
    stream: fc.nat({ max: 3 }),
    isOther: rarely,
    isLarger: rarely,
  });
  type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

  /** Runs a program under the order checker, and checks that live memory never overlaps. Returns the statistics. */
  function runProgram(script: Plan, steps: readonly Step[], make: (fallback: MemoryResource) => PlannedMemoryResource): PlannedStatistics {
    using fallback = new CudaAsyncMemoryResource();
    const streams = Array.from({ length: 4 }, newStream);
    const live: { pointer: number; bytes: number; stream: number }[] = [];
    const wait = (from: number, to: number) => follow(streams[to] as Stream, streams[from] as Stream);
    const statistics: PlannedStatistics[] = [];
    inOrder(() => {
      using resource = make(fallback);
      let cursor = 0;
      for (const { kind, stream, isOther, isLarger } of steps) {
        if (kind === 'begin') {
          resource.begin();
          cursor = 0;
        } else if (kind === 'finish') {
          resource.end();
        } else if (kind === 'record') {
          if (isOther && resource.statistics().plans > 0) resource.record();
        } else if (kind === 'trim') {
          resource.trim(streams[stream] as Stream);
        } else if (kind === 'wait') {
          wait(stream, (stream + 1) % 4);
        } else if (kind === 'end') {
          const next = (stream + 1) % 4;
          for (const each of live.filter((one) => one.stream === stream)) {
            wait(stream, next);
            each.stream = next;
          }
          streams[stream]?.dispose();
          streams[stream] = newStream();
        } else if (kind === 'allocate') {
          const a = cursor++ % script.sizes.length;
          const pages = (script.sizes[a] as number) / page + Number(isLarger);
          const on = isOther ? stream : (script.streams[a] as number);
          const pointer = take(resource, pages, streams[on] as Stream);
          for (const each of live) expect(pointer >= each.pointer + each.bytes || each.pointer >= pointer + pages * page).toBe(true);
          live.push({ pointer, bytes: pages * page, stream: on });
        } else if (live.length > 0) {
          for (const freed of live.splice(isLarger ? live.length - 1 : 0, kind === 'free all' ? live.length : 1)) {
            const on = isOther ? stream : freed.stream;
            if (on !== freed.stream) wait(freed.stream, on);
            resource.deallocate(freed.pointer, freed.bytes, streams[on] as Stream);
          }
        }
        resource.validate();
      }
      for (const { pointer, bytes, stream } of live) resource.deallocate(pointer, bytes, streams[stream] as Stream);
      statistics.push(resource.statistics());
    });
    for (const stream of streams) stream.dispose();
    // Gives back the memory of its pools before the next program makes others.
    Device.get().synchronizeSync();
    return statistics[0] as PlannedStatistics;
  }

  test('whatever a program does', () => {
    fc.assert(
      fc.property(fc.constantFrom(...scripts), fc.boolean(), fc.array(step, { maxLength: 60, size: 'max' }), (plan, repeats, steps) => {
        using upstream = new CudaAsyncMemoryResource();
        runProgram(plan, steps, (fallback) => new PlannedMemoryResource(upstream, plan, { fallback, repeats }));
      }),
      { numRuns: 300 },
    );
  });

  test('whatever a program does while its plan is learnt, and learnt again', () => {
    let served = 0;
    let plans = 0;
    const options = fc.record({
      hasPlan: fc.boolean(),
      isPool: fc.boolean(),
      recordedPasses: fc.integer({ min: 1, max: 2 }),
      replanAfter: fc.integer({ min: 1, max: 2 }),
    });
    const pass = fc.record({
      steps: fc.array(step, { maxLength: 20, size: 'max' }),
      times: fc.integer({ min: 1, max: 5 }),
      isTidy: fc.boolean(),
    });
    const passes = fc.array(pass, { minLength: 1, maxLength: 4, size: 'max' });
    fc.assert(
      fc.property(fc.constantFrom(...scripts), options, passes, (script, { hasPlan, isPool, ...rest }, all) => {
        using upstream = new CudaAsyncMemoryResource();
        using pool = new PoolMemoryResource(upstream);
        const plain = { stream: 0, isOther: false, isLarger: false } as const;
        const steps = all.flatMap(({ steps, times, isTidy }) =>
          Array.from({ length: times }, (): Step[] => [
            { ...plain, kind: 'begin' },
            ...steps,
            ...(isTidy ? [{ ...plain, kind: 'free all' } as const] : []),
          ]).flat(),
        );
        const statistics = runProgram(script, steps, (fallback) => {
          const shared = { ...rest, planner: planAllocations, planningMilliseconds: 0 };
          const plan = hasPlan ? script : undefined;
          return new PlannedMemoryResource(isPool ? pool : upstream, plan, isPool ? shared : { ...shared, fallback });
        });
        plans += statistics.plans;
        served += steps.filter(({ kind }) => kind === 'allocate').length - statistics.fallbackAllocations;
        expect(statistics.plannedAllocations).toBe(0);
      }),
      { numRuns: 300 },
    );
    // Otherwise nothing was tested.
    expect([plans > 100, served > 500]).toEqual([true, true]);
  });
});
