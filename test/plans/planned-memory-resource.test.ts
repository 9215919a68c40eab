import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  ArgumentTypeError,
  CudaMemoryResource,
  createResourceStack,
  Device,
  type MemoryResource,
  PoolMemoryResource,
  type ResourceKind,
  Stream,
} from '../../src/index.js';
import { type PlanDeviation, PlannedMemoryResource, type PlannedMemoryResourceOptions } from '../../src/plans/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { page, planOf } from '../support/plans.js';

function planned(text: string, options?: PlannedMemoryResourceOptions): PlannedMemoryResource {
  return new PlannedMemoryResource(new CudaMemoryResource(), planOf(text), options);
}

/** Fails if live ranges overlap. */
class Live {
  readonly ranges = new Map<number, { bytes: number; stream: Stream }>();
  readonly #resource: MemoryResource;

  constructor(resource: MemoryResource) {
    this.#resource = resource;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): number {
    const pointer = this.#resource.allocate(bytes, stream, alignment);
    for (const [start, range] of this.ranges) {
      if (pointer < start + range.bytes && start < pointer + bytes) throw new Error(`${pointer} is in use`);
    }
    this.ranges.set(pointer, { bytes, stream });
    return pointer;
  }

  free(pointer: number, stream?: Stream): void {
    const { bytes, stream: own } = this.ranges.get(pointer) as { bytes: number; stream: Stream };
    this.ranges.delete(pointer);
    this.#resource.deallocate(pointer, bytes, stream ?? own);
  }
}

describe('a planned resource', () => {
  test.each(['missing.json', 'src', `${'x'.repeat(5000)}.json`])('names a file of a plan that cannot be read: %.12s', (plan) => {
    const error = (() => {
      try {
        return createResourceStack(`planned(cuda, plan=${plan})`);
      } catch (caught) {
        return caught;
      }
    })();
    expect(error).toMatchObject({
      code: 'ERR_CISTERN_INVALID_PLAN',
      message: expect.stringMatching(/^the plan "[^"]+" cannot be read: E[A-Z]+$/),
    });
    expect((error as Error).message).toContain(plan.slice(0, 40));
    expect((error as Error).cause).toHaveProperty('code');
  });

  test('reads no file descriptor for a plan', () => {
    const kind = everyKind.find(({ name }) => name === 'planned') as ResourceKind;
    const upstreamOf = () => new CudaMemoryResource();
    const input = { upstream: upstreamOf(), device: Device.get(), upstreamOf, options: { plan: 0 } as never };
    expect(() => kind.create(input)).toThrow(new ArgumentTypeError('plan must be the path of a file, got 0'));
  });

  const text = '+4 +2 -0 +4 -1 -2';

  test('gives the same addresses in every pass, from one upstream allocation, and records nothing', () => {
    using stream = new Stream();
    using resource = planned(text);
    const upstream = resource.reservedBytes;
    const pass = () => {
      const a = resource.allocate(4 * page, stream);
      const b = resource.allocate(2 * page, stream);
      resource.deallocate(a, 4 * page, stream);
      const c = resource.allocate(4 * page - 7, stream);
      resource.deallocate(b, 2 * page, stream);
      resource.deallocate(c, 4 * page - 7, stream);
      return [a, b, c];
    };
    const before = driverCallCounts();
    const first = resource.run(pass);
    for (let i = 0; i < 5; i++) expect(resource.run(pass)).toEqual(first);
    const after = driverCallCounts();
    expect(first[2]).toBe(first[0]);
    expect(upstream).toBe(6 * page);
    expect(after).toEqual(before);
    expect(resource.statistics()).toMatchObject({ passes: 6, fallbackAllocations: 0, plannedAllocations: 0 });
  });

  test('serves deviations from the fallback, and counts them', () => {
    using stream = new Stream();
    using other = new Stream();
    using resource = planned(text);
    const live = new Live(resource);
    resource.begin();
    const a = live.allocate(5 * page, stream);
    const b = live.allocate(2 * page, other);
    expect(resource.statistics().deviations).toMatchObject({ larger: 1, stream: 1 });
    live.free(a);
    live.free(b);
    resource.begin();
    const c = live.allocate(4 * page, stream);
    const d = live.allocate(2 * page, other);
    const e = live.allocate(4 * page, stream);
    const f = live.allocate(page, stream);
    expect(resource.statistics().deviations).toMatchObject({ larger: 1, stream: 2, 'in-use': 1, extra: 1 });
    for (const pointer of [c, d, e, f]) live.free(pointer);
    resource.validate();
  });

  /** A program whose last request or free deviates; and how the refusal of a request explains it. */
  interface Deviating {
    readonly program: (live: Live, stream: Stream, other: Stream, begin: () => void) => void;
    readonly expected?: RegExp;
  }
  const deviating: Record<PlanDeviation, Deviating> = {
    larger: {
      program: (live, stream) => live.allocate(5 * page, stream),
      expected: /expected request 0 with at most 1024 bytes on stream 0 of the plan; got 1280 bytes on stream \d+ \(larger\)$/,
    },
    alignment: {
      program: (live, stream) => live.allocate(page, stream, 2 * page),
      expected: /on stream 0 of the plan, aligned to at most 256; got 256 bytes on stream \d+, aligned to 512 \(alignment\)$/,
    },
    stream: {
      program: (live, stream, other) => {
        live.allocate(4 * page, stream);
        live.allocate(2 * page, other);
      },
      expected: /expected request 1 with at most 512 bytes on stream 0 of the plan; got 512 bytes on stream \d+ \(stream\)$/,
    },
    extra: {
      program: (live, stream) => {
        const a = live.allocate(4 * page, stream);
        live.allocate(2 * page, stream);
        live.free(a);
        live.allocate(4 * page, stream);
        live.allocate(page, stream);
      },
      expected: /expected no further request; got 256 bytes on stream \d+ \(extra\)$/,
    },
    'in-use': {
      program: (live, stream) => {
        for (const pages of [4, 2, 4]) live.allocate(pages * page, stream);
      },
      expected: /expected request 2 with .* of the plan, and its place to be free; got 1024 bytes on stream \d+ \(in-use\)$/,
    },
    'free-stream': {
      program: (live, stream, other) => live.free(live.allocate(4 * page, stream), other),
    },
    'late-free': {
      program: (live, stream, _other, begin) => {
        const a = live.allocate(4 * page, stream);
        begin();
        live.free(a);
      },
    },
  };

  for (const [kind, { program, expected }] of Object.entries(deviating)) {
    test(`counts a deviation of the kind ${kind}, gives no memory that is in use, and explains a refusal`, () => {
      using fallback = new PoolMemoryResource(new CudaMemoryResource());
      using stream = new Stream();
      using other = new Stream();
      for (const deviations of ['fallback', 'refuse'] as const) {
        using resource = planned(text, { deviations, fallback });
        const live = new Live(resource);
        const run = () => program(live, stream, other, () => resource.begin());
        resource.begin();
        if (deviations === 'refuse' && expected !== undefined) expect(run).toThrow(expected);
        else run();
        const none = { larger: 0, alignment: 0, stream: 0, extra: 0, 'in-use': 0, 'free-stream': 0, 'late-free': 0 };
        expect(resource.statistics().deviations).toEqual({ ...none, [kind]: 1 });
        for (const pointer of [...live.ranges.keys()]) live.free(pointer);
        resource.begin();
        for (const pages of [4, 2]) live.allocate(pages * page, stream);
        expect(resource.statistics().plannedAllocations).toBe(2);
        for (const pointer of [...live.ranges.keys()]) live.free(pointer);
        resource.validate();
      }
    });
  }

  test('never hands out memory that is kept longer than planned', () => {
    using stream = new Stream();
    using resource = planned(text);
    const live = new Live(resource);
    resource.begin();
    const a = live.allocate(4 * page, stream);
    live.allocate(2 * page, stream);
    // Allocation 0 is not freed.
    live.allocate(4 * page, stream);
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 1, deviations: { 'in-use': 1 } });
    resource.begin();
    live.allocate(4 * page, stream);
    expect(resource.statistics().fallbackAllocations).toBe(2);
    live.free(a);
    resource.begin();
    expect(live.allocate(4 * page, stream)).toBe(a);
  });

  test('never hands out a single byte that is kept longer than planned', () => {
    using stream = new Stream();
    using resource = planned(text);
    const live = new Live(resource);
    resource.begin();
    const a = live.allocate(1, stream);
    resource.begin();
    expect(live.allocate(4 * page, stream)).not.toBe(a);
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 1, deviations: { 'in-use': 1 } });
  });

  test('refuses memory that was kept from the pass before, also after it has refused something else', () => {
    using stream = new Stream();
    using resource = planned(text, { deviations: 'refuse' });
    resource.begin();
    const a = resource.allocate(4 * page, stream);
    resource.begin();
    expect(() => resource.allocate(5 * page, stream)).toThrow(/\(larger\)/);
    expect(() => resource.allocate(4 * page, stream)).toThrow(/\(in-use\)/);
    resource.deallocate(a, 4 * page, stream);
    expect(resource.allocate(4 * page, stream)).toBe(a);
  });

  test('does not take a free for late that comes after a request that it refused before it was due', () => {
    using stream = new Stream();
    using resource = planned(text, { deviations: 'refuse' });
    resource.begin();
    const a = resource.allocate(4 * page, stream);
    resource.allocate(2 * page, stream);
    expect(() => resource.allocate(5 * page, stream)).toThrow(/\(larger\)/);
    resource.deallocate(a, 4 * page, stream, 'eager');
    expect(resource.allocate(4 * page, stream)).toBe(a);
    expect(resource.statistics().deviations).toMatchObject({ larger: 1, 'late-free': 0, 'in-use': 0 });
  });

  test('does not give memory to its stream that another freed, until the next pass waits for that', () => {
    using stream = new Stream();
    using other = new Stream();
    using resource = planned(text);
    const live = new Live(resource);
    resource.begin();
    const a = live.allocate(4 * page, stream);
    live.allocate(2 * page, stream);
    live.free(a, other);
    expect(live.allocate(4 * page, stream)).not.toBe(a);
    expect(resource.statistics().deviations).toMatchObject({ 'free-stream': 1, 'in-use': 1 });
    const before = driverCallCounts().eventWaits;
    resource.begin();
    expect(live.allocate(4 * page, stream)).toBe(a);
    expect(driverCallCounts().eventWaits).toBeGreaterThan(before);
  });

  test('refuses deviations if asked to, and names what it expected', () => {
    using stream = new Stream();
    using resource = planned(text, { deviations: 'refuse' });
    resource.begin();
    expect(() => resource.allocate(5 * page, stream)).toThrow(
      /expected request 0 with at most 1024 bytes on stream 0 of the plan; got 1280 bytes/,
    );
    expect(() => resource.allocate(5 * page, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_PLAN_DEVIATION' }));
    const a = resource.allocate(4 * page, stream);
    resource.deallocate(a, 4 * page, stream);
  });

  test('takes frees in another order than planned, and refuses wrong ones', () => {
    using stream = new Stream();
    using resource = planned(text);
    resource.begin();
    const a = resource.allocate(4 * page, stream);
    expect(() => resource.deallocate(-1, 0, stream)).toThrow(expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' }));
    const b = resource.allocate(2 * page, stream);
    resource.deallocate(b, 2 * page, stream);
    expect(() => resource.deallocate(b, 2 * page, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DOUBLE_FREE' }));
    expect(() => resource.deallocate(a, page, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
    expect(() => resource.deallocate(a + 256, page, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }));
    resource.deallocate(a, 4 * page, stream);
    const c = resource.allocate(4 * page, stream);
    expect(c).toBe(a);
    resource.deallocate(c, 4 * page, stream);
    expect(resource.statistics().fallbackAllocations).toBe(0);
  });

  test('makes a stream wait where the plan gives it memory of another', () => {
    using first = new Stream();
    using second = new Stream();
    using resource = planned('+1@0 +4@1 -1@1 w0<1 +4@0 -0@0 -2@0');
    expect(resource.plan?.totalBytes).toBe(5 * page);
    resource.run(() => {
      // Both streams have had their first request when the memory changes hands.
      const kept = resource.allocate(page, first);
      const a = resource.allocate(4 * page, second);
      resource.deallocate(a, 4 * page, second);
      const before = driverCallCounts().eventWaits;
      const b = resource.allocate(4 * page, first);
      expect(b).toBe(a);
      expect(driverCallCounts().eventWaits).toBe(before + 1);
      resource.deallocate(kept, page, first);
      resource.deallocate(b, 4 * page, first);
    });
  });

  test('marks an asynchronous pass until its promise settles, and refuses another meanwhile', async () => {
    using stream = new Stream();
    using resource = planned(text);
    const pass = resource.run(async () => {
      const a = resource.allocate(page, stream);
      await Promise.resolve();
      resource.deallocate(a, page, stream);
      return 5;
    });
    expect(() => resource.run(() => 0)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
    expect(await pass).toBe(5);
    resource.run(() => 0);
    const outside = resource.allocate(page, stream);
    expect(resource.statistics().fallbackAllocations).toBe(1);
    resource.deallocate(outside, page, stream);
  });

  test('never lets live memory overlap, whatever the program does', () => {
    const plans = [text, '+4 +2 -0 +3 +1 -1 +2 -2 -3 -4', '+1@0 +2@1 -0@0 w0@1 +1@1 -1@1 w0<1 +2@0 -2@1 -3@0'];
    const step = fc.record({
      kind: fc.nat(9),
      stream: fc.nat(2),
      pages: fc.integer({ min: 1, max: 5 }),
      which: fc.nat(20),
      frees: fc.nat(2),
    });
    fc.assert(
      fc.property(fc.constantFrom(...plans), fc.array(step, { maxLength: 120, size: 'max' }), fc.boolean(), (plan, steps, repeats) => {
        const streams = [new Stream(), new Stream(), new Stream()] as const;
        const resource = planned(plan, { repeats });
        const live = new Live(resource);
        for (const { kind, stream, pages, which, frees } of steps) {
          if (kind === 9) resource.begin();
          else if (kind < 5) live.allocate(pages * page, streams[kind === 0 ? stream : 0] as Stream);
          else if (live.ranges.size > 0) {
            const pointer = [...live.ranges.keys()][which % live.ranges.size] as number;
            live.free(pointer, kind === 5 ? streams[frees] : undefined);
          }
          resource.validate();
        }
        for (const pointer of [...live.ranges.keys()]) live.free(pointer);
        resource.dispose();
        for (const stream of streams) stream.dispose();
      }),
      { numRuns: 200 },
    );
  });
});
