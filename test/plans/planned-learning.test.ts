import { describe, expect, test } from 'vitest';
import { checkOrder, formatOrderViolation } from '../../src/checking/index.js';
import { CallbackMemoryResource, CudaMemoryResource, type DeallocationEvents, Event, PoolMemoryResource, Stream } from '../../src/index.js';
import { formatPlan, PlannedMemoryResource, type PlannedMemoryResourceOptions, type Planner, parsePlan } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { code } from '../support/errors.js';
import { page } from '../support/plans.js';

/** A resource that learns, over a pool that serves what is not planned. */
class Program implements Disposable {
  readonly fallback: PoolMemoryResource;
  readonly resource: PlannedMemoryResource;
  readonly stream = new Stream();

  constructor(options: PlannedMemoryResourceOptions = {}, deallocationEvents: DeallocationEvents = 'eager') {
    const fallback = new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents });
    this.fallback = fallback;
    this.resource = new PlannedMemoryResource(new CudaMemoryResource(), undefined, { fallback, planner: planAllocations, ...options });
  }

  /** A pass that allocates two blocks, frees the first, allocates another, and frees the rest. Returns the addresses. */
  pass(sizes: readonly [number, number, number] = [4, 2, 4]): number[] {
    const { resource, stream } = this;
    return resource.run(() => {
      const [first, second, third] = sizes.map((pages) => pages * page) as [number, number, number];
      const a = resource.allocate(first, stream);
      const b = resource.allocate(second, stream);
      resource.deallocate(a, first, stream);
      const c = resource.allocate(third, stream);
      resource.deallocate(b, second, stream);
      resource.deallocate(c, third, stream);
      return [a, b, c];
    });
  }

  [Symbol.dispose](): void {
    this.resource.dispose();
    this.stream.dispose();
    this.fallback.dispose();
  }
}

describe('a planned resource that learns', () => {
  test('serves recorded passes from the fallback, and those after from the plan', () => {
    using program = new Program();
    const { resource } = program;
    expect(resource.plan).toBeUndefined();
    program.pass();
    expect(resource.statistics()).toMatchObject({ isRecording: true, plans: 0, reservedBytes: 0, fallbackAllocations: 3 });
    program.pass();
    expect(resource.plan).toMatchObject({ totalBytes: 6 * page, isOptimal: true });
    const addresses = program.pass();
    expect(addresses[2]).toBe(addresses[0]);
    const before = driverCallCounts();
    expect([program.pass(), program.pass()]).toEqual([addresses, addresses]);
    expect(driverCallCounts()).toEqual(before);
    expect(resource.statistics()).toMatchObject({ isRecording: false, plans: 1, reservedBytes: 6 * page, fallbackAllocations: 6 });
    const plan = parsePlan(formatPlan(resource.plan as NonNullable<typeof resource.plan>));
    using again = new PlannedMemoryResource(new CudaMemoryResource(), plan, { deviations: 'refuse' });
    again.run(() => again.deallocate(again.allocate(4 * page, program.stream), 4 * page, program.stream));
  });

  test('plans the largest size at each place', () => {
    using program = new Program({ recordedPasses: 3 });
    const sizes = [
      [4, 2, 1],
      [3, 6, 1],
      [1, 1, 5],
    ] as const;
    for (const each of sizes) program.pass(each);
    expect(Array.from(program.resource.plan?.sizes ?? [])).toEqual([4 * page, 6 * page, 5 * page]);
    for (const each of sizes) program.pass(each);
    expect(program.resource.statistics()).toMatchObject({ fallbackAllocations: 9, deviatingPasses: 0 });
  });

  test('goes on recording while passes differ in their operations, and says how', () => {
    using program = new Program();
    const { resource, stream } = program;
    const other = () => resource.run(() => resource.deallocate(resource.allocate(page, stream), page, stream));
    program.pass();
    other();
    expect(resource.statistics()).toMatchObject({
      isRecording: true,
      difference: 'it differs from the pass before in its operations, at 1',
    });
    program.pass();
    resource.run(() => 0);
    expect(resource.plan).toBeUndefined();
    program.pass();
    expect(resource.statistics()).toMatchObject({ isRecording: false, difference: undefined });
  });

  test('does not plan from a pass that failed, or that another began within', async () => {
    using program = new Program({ recordedPasses: 1 });
    const { resource, stream } = program;
    const pass = () => resource.deallocate(resource.allocate(page, stream), page, stream);
    const fail = () => {
      pass();
      throw new Error('the step failed');
    };
    expect(() => resource.run(fail)).toThrow('the step failed');
    await expect(resource.run(async () => fail())).rejects.toThrow('the step failed');
    expect(resource.plan).toBeUndefined();
    await resource.run(async () => pass());
    expect(resource.plan?.totalBytes).toBe(page);
  });

  test('records again after several deviating passes, and after twice as many if that did not help', () => {
    using program = new Program({ recordedPasses: 1, replanAfter: 2 });
    const { resource } = program;
    const larger = (pages: number) => program.pass([pages, 2, 4]);
    program.pass();
    larger(5);
    program.pass();
    larger(6);
    expect(resource.statistics()).toMatchObject({ isRecording: false, deviatingPasses: 2, plans: 1 });
    larger(7);
    expect(resource.statistics()).toMatchObject({ isRecording: true, deviatingPasses: 3 });
    larger(7);
    expect(resource.statistics()).toMatchObject({ isRecording: false, plans: 2 });
    // No pass followed the new plan.
    for (const pages of [8, 9, 10]) larger(pages);
    expect(resource.statistics().isRecording).toBe(false);
    larger(11);
    expect(resource.statistics().isRecording).toBe(true);
    larger(12);
    const { fallbackAllocations } = resource.statistics();
    larger(12);
    expect(resource.statistics()).toMatchObject({ plans: 3, fallbackAllocations });
    // One did: two are enough again.
    larger(13);
    larger(14);
    expect(resource.statistics().isRecording).toBe(true);
  });

  test('records passes again when asked to, and starts from a plan', () => {
    using program = new Program();
    program.pass();
    program.pass();
    const { plan } = program.resource;
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, { planner: planAllocations, recordedPasses: 1 });
    const pass = () => resource.run(() => resource.deallocate(resource.allocate(page, program.stream), page, program.stream));
    pass();
    expect(resource.statistics().fallbackAllocations).toBe(0);
    resource.record();
    expect(resource.plan).toMatchObject({ totalBytes: 6 * page });
    pass();
    expect(resource.plan).toMatchObject({ totalBytes: page });
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 1, reservedBytes: 0 });
    pass();
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 1, reservedBytes: page });
  });

  test('never gives out memory of an earlier plan that is still allocated, and returns its block afterwards', () => {
    using program = new Program({ recordedPasses: 1 });
    const { resource, stream } = program;
    program.pass();
    resource.begin();
    const kept = resource.allocate(4 * page, stream);
    resource.record();
    program.resource.end();
    program.pass();
    expect(resource.reservedBytes).toBe(6 * page);
    expect(program.pass().every((address) => address + 4 * page <= kept || address >= kept + 6 * page)).toBe(true);
    expect(resource.statistics()).toMatchObject({ reservedBytes: 12 * page, upstreamBlocks: 2, plannedAllocations: 1, plans: 2 });
    expect(() => resource.deallocate(kept, page, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
    expect(() => resource.deallocate(kept + page, page, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }));
    resource.deallocate(kept, 4 * page, stream);
    expect(() => resource.deallocate(kept, 4 * page, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DOUBLE_FREE' }));
    expect(resource.statistics().deviations['free-stream']).toBe(0);
    program.pass();
    expect(resource.statistics()).toMatchObject({ reservedBytes: 6 * page, plannedAllocations: 0, upstreamBlocks: 1 });
  });

  test.each([
    ['that the program makes', true, 4],
    ['but not those that the fallback makes', false, 8],
  ])('knows the waits %s', (_, isProgram, pages) => {
    using program = new Program();
    const { resource, stream } = program;
    using other = new Stream({ nonBlocking: true });
    using event = new Event();
    using checker = checkOrder();
    const pass = () =>
      resource.run(() => {
        const a = resource.allocate(4 * page, stream);
        resource.deallocate(a, 4 * page, stream);
        if (isProgram) {
          event.record(stream);
          other.wait(event);
        }
        const b = resource.allocate(4 * page, other);
        resource.deallocate(b, 4 * page, other);
        stream.synchronizeSync();
        other.synchronizeSync();
      });
    for (let i = 0; i < 4; i++) pass();
    expect(resource.plan?.totalBytes).toBe(pages * page);
    expect(resource.statistics().fallbackAllocations).toBe(4);
    expect(checker.violations.map((report) => formatOrderViolation(report))).toEqual([]);
  });

  test('learns from nothing that it recorded before it was asked to record', () => {
    using program = new Program({ recordedPasses: 2 });
    const { resource, stream } = program;
    const aligned = () => resource.run(() => resource.deallocate(resource.allocate(page, stream, 1024), page, stream));
    program.pass();
    aligned();
    expect(resource.statistics().difference).toBeDefined();
    resource.record();
    expect(resource.statistics().difference).toBeUndefined();
    program.pass();
    expect(resource.plan).toBeUndefined();
    resource.record();
    program.pass();
    expect(resource.plan).toBeUndefined();
    program.pass();
    expect(resource.plan?.alignmentBytes).toBe(256);
  });

  test('compares only passes with the same operations, one after the other', () => {
    using program = new Program({ recordedPasses: 3 });
    const { resource, stream } = program;
    const other = () => resource.run(() => resource.deallocate(resource.allocate(page, stream), page, stream));
    for (const pass of [() => program.pass(), other, () => program.pass(), () => program.pass()]) pass();
    expect(resource.statistics()).toMatchObject({ plans: 0, difference: undefined });
    program.pass();
    expect(resource.plan).toMatchObject({ totalBytes: 6 * page });
  });

  test('counts deviating passes from the first one on, if it starts from a plan', () => {
    using program = new Program({ recordedPasses: 1 });
    program.pass();
    const { plan } = program.resource;
    const { fallback, stream } = program;
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, { fallback, planner: planAllocations, replanAfter: 2 });
    const pass = () => resource.run(() => resource.deallocate(resource.allocate(9 * page, stream), 9 * page, stream));
    pass();
    expect(resource.statistics()).toMatchObject({ isRecording: false, deviatingPasses: 1 });
    pass();
    expect(resource.statistics()).toMatchObject({ isRecording: true, deviatingPasses: 2 });
  });

  test('counts a pass with a refused request as deviating, and plans again after several', () => {
    using program = new Program({ recordedPasses: 1 });
    program.pass();
    const { plan } = program.resource;
    const options = { planner: planAllocations, replanAfter: 2, deviations: 'refuse', recordedPasses: 1 } as const;
    using resource = new PlannedMemoryResource(new CudaMemoryResource(), plan, options);
    const { stream } = program;
    const pass = () =>
      resource.run(() => {
        expect(() => resource.allocate(9 * page, stream)).toThrow(code('ERR_CISTERN_PLAN_DEVIATION'));
      });
    pass();
    expect(resource.statistics()).toMatchObject({ isRecording: false, deviatingPasses: 1 });
    pass();
    expect(resource.statistics()).toMatchObject({ isRecording: true, deviatingPasses: 2 });
    resource.run(() => resource.deallocate(resource.allocate(9 * page, stream), 9 * page, stream));
    expect(resource.plan).toMatchObject({ totalBytes: 9 * page });
  });

  test('does not plan a pass that is too long, nor from one before it', () => {
    // Without events, which a device may take minutes for.
    using program = new Program({ recordedPasses: 2 }, 'deferred');
    const { resource, stream } = program;
    program.pass();
    resource.run(() => {
      for (let i = 0; i < 2 ** 19 + 1; i++) resource.deallocate(resource.allocate(page, stream), page, stream);
    });
    expect(resource.statistics()).toMatchObject({ plans: 0, difference: 'the pass has more than 1048576 operations and events' });
    program.pass();
    expect(resource.plan).toBeUndefined();
    program.pass();
    expect(resource.statistics()).toMatchObject({ plans: 1, difference: undefined });
  });

  test('plans for the greatest alignment that was asked for', () => {
    using program = new Program({ recordedPasses: 1 });
    const { resource, stream } = program;
    const pass = () =>
      resource.run(() => {
        const pointers = [resource.allocate(page, stream), resource.allocate(page, stream, 1024)];
        for (const pointer of pointers) resource.deallocate(pointer, page, stream);
        return pointers;
      });
    pass();
    expect((pass()[1] as number) % 1024).toBe(0);
    expect(resource.plan?.alignmentBytes).toBe(1024);
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 2 });
  });

  test('returns the result of a pass if the planner throws, keeps the error, and stops recording', async () => {
    let failures = 0;
    const planner: Planner = (...args) => {
      if (failures++ === 0) throw new Error('no plan');
      return planAllocations(...args);
    };
    using program = new Program({ planner, recordedPasses: 1, planningMilliseconds: 20, deviations: 'refuse' });
    const { resource } = program;
    expect(program.pass()).toHaveLength(3);
    expect(resource.statistics()).toMatchObject({ isRecording: false, plans: 0, planningError: new Error('no plan') });
    // Without a plan, the fallback goes on serving.
    for (let i = 0; i < 5; i++) program.pass();
    expect(resource.plan).toBeUndefined();
    expect(resource.statistics()).toMatchObject({ isRecording: false, fallbackAllocations: 18, deviatingPasses: 0 });
    expect(failures).toBe(1);
    resource.record();
    expect(resource.statistics()).toMatchObject({ isRecording: true, planningError: undefined });
    program.pass();
    expect(resource.plan?.totalBytes).toBe(6 * page);
    using wrong = new Program({ planner: () => ({}) as never, recordedPasses: 1 });
    expect(await wrong.resource.run(async () => wrong.resource.allocate(page, wrong.stream))).toBeGreaterThan(0);
    expect(wrong.resource.statistics().planningError).toMatchObject({ code: 'ERR_CISTERN_INVALID_PLAN' });
  });

  test('throws the error of the planner where the program ends the pass, and no other', () => {
    const failing: Planner = () => {
      throw new Error('no plan');
    };
    using program = new Program({ planner: failing, recordedPasses: 1 });
    const { resource, stream } = program;
    const pass = () => {
      resource.begin();
      resource.deallocate(resource.allocate(page, stream), page, stream);
    };
    pass();
    expect(() => resource.end()).toThrow('no plan');
    pass();
    resource.end();
    resource.record();
    pass();
    pass();
    expect(resource.statistics()).toMatchObject({ passes: 4, planningError: new Error('no plan') });
    resource.end();
  });

  test('keeps the plan that it has if the planner throws, whatever deviates', () => {
    let isFailing = false;
    const planner: Planner = (...args) => {
      if (isFailing) throw new Error('no plan');
      return planAllocations(...args);
    };
    using program = new Program({ planner, recordedPasses: 1, replanAfter: 1 });
    const { resource } = program;
    program.pass();
    isFailing = true;
    program.pass([5, 2, 4]);
    program.pass([5, 2, 4]);
    for (let i = 0; i < 5; i++) program.pass([5, 2, 4]);
    expect(resource.statistics()).toMatchObject({ isRecording: false, plans: 1, deviatingPasses: 6, planningError: new Error('no plan') });
    expect(resource.plan?.totalBytes).toBe(6 * page);
  });

  test('records no waits of streams that the pass does not use', () => {
    const waits: (number | undefined)[] = [];
    const planner: Planner = (passes, options) => {
      waits.push(passes[0]?.waits?.length);
      return planAllocations(passes, options);
    };
    using program = new Program({ planner, recordedPasses: 1 });
    const { resource, stream } = program;
    using event = new Event();
    const others = Array.from({ length: 8 }, () => new Stream());
    resource.run(() => {
      const a = resource.allocate(page, stream);
      const b = resource.allocate(page, others[0] as Stream);
      for (let i = 0; i < 2000; i++) {
        event.record(others[1 + (i % 7)] as Stream);
        (others[1 + ((i + 1) % 7)] as Stream).identity.wait(event);
      }
      resource.deallocate(a, page, stream);
      resource.deallocate(b, page, others[0] as Stream);
    });
    expect(waits).toEqual([undefined]);
    for (const other of others) other.dispose();
  });

  test('does not plan again while earlier plans keep more memory than the current one has', () => {
    using program = new Program({ recordedPasses: 1, replanAfter: 1 });
    const { resource, stream } = program;
    const kept: number[] = [];
    const pass = (keeps: boolean) =>
      resource.run(() => {
        const large = resource.allocate(64 * page, stream);
        const small = resource.allocate(page, stream);
        if (keeps) kept.push(small);
        else resource.deallocate(small, page, stream);
        resource.deallocate(large, 64 * page, stream);
      });
    for (let i = 0; i < 10; i++) {
      resource.record();
      pass(false);
      pass(true);
      pass(false);
    }
    expect(resource.statistics()).toMatchObject({ plans: 3, isRecording: false, pinnedBytes: 130 * page, reservedBytes: 3 * 65 * page });
    expect(resource.statistics().deviatingPasses).toBeGreaterThan(5);
    for (const pointer of kept.splice(0)) resource.deallocate(pointer, page, stream);
    // What was asked for meanwhile is done now.
    expect(resource.statistics()).toMatchObject({ isRecording: true, pinnedBytes: 0 });
    pass(false);
    expect(resource.statistics()).toMatchObject({ plans: 4, isRecording: false, reservedBytes: 0 });
    pass(false);
    expect(resource.statistics()).toMatchObject({ reservedBytes: 65 * page });
  });

  test('gives only the block of the earlier plan back', () => {
    using program = new Program({ recordedPasses: 1 });
    const { resource, stream } = program;
    program.pass();
    resource.begin();
    const kept = resource.allocate(4 * page, stream);
    resource.record();
    resource.end();
    program.pass();
    program.pass();
    const { growths, releases } = resource.statistics();
    resource.deallocate(kept, 4 * page, stream);
    const addresses = program.pass();
    expect(resource.statistics()).toMatchObject({ growths, releases: releases + 1, reservedBytes: 6 * page });
    expect(program.pass()).toEqual(addresses);
  });

  test('refuses invalid options, and to record without a planner', () => {
    const create = (options: object) => () => new PlannedMemoryResource(new CudaMemoryResource(), undefined, options);
    expect(create({})).toThrow(TypeError);
    expect(create({ planner: 5 })).toThrow(TypeError);
    const planner = planAllocations;
    for (const options of [
      { recordedPasses: 0 },
      { replanAfter: 1.5 },
      { planningMilliseconds: -1 },
      { planningMilliseconds: Number.POSITIVE_INFINITY },
      { repeats: true },
    ])
      expect(create({ planner, ...options })).toThrow(RangeError);
    using program = new Program({ replanAfter: Number.POSITIVE_INFINITY, recordedPasses: 1 });
    program.pass();
    const { plan } = program.resource;
    for (let pages = 5; pages < 15; pages++) program.pass([pages, pages, pages]);
    expect(program.resource.statistics()).toMatchObject({ isRecording: false, deviatingPasses: 10 });
    using fixed = new PlannedMemoryResource(new CudaMemoryResource(), plan);
    expect(() => fixed.record()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
  });
});

describe('the blocks of earlier plans', () => {
  /** A resource that learns from one pass, over an upstream whose addresses descend. */
  class Descending implements Disposable {
    readonly fallback = new PoolMemoryResource(new CudaMemoryResource());
    readonly stream = new Stream();
    /** By address: what the upstream has given and not got back. */
    readonly given = new Map<number, number>();
    /** Called by the next allocation of the upstream. */
    meanwhile = () => {};
    readonly resource: PlannedMemoryResource;

    constructor() {
      let next = 2 ** 40;
      const upstream = new CallbackMemoryResource(
        (bytes) => {
          const { meanwhile } = this;
          this.meanwhile = () => {};
          meanwhile();
          next -= 2 ** 20;
          this.given.set(next, bytes);
          return next;
        },
        (pointer, bytes) => {
          if (this.given.get(pointer) !== bytes) throw new Error(`${pointer} was not given, or with another size`);
          this.given.delete(pointer);
        },
      );
      const { fallback } = this;
      this.resource = new PlannedMemoryResource(upstream, undefined, { fallback, planner: planAllocations, recordedPasses: 1 });
    }

    get givenBytes(): number {
      return [...this.given.values()].reduce((sum, bytes) => sum + bytes, 0);
    }

    /** A pass that allocates blocks of these pages, and frees all but the first `kept` of them. Returns the addresses. */
    pass(pages: readonly number[], kept = 0): number[] {
      const { resource, stream } = this;
      return resource.run(() => {
        const pointers = pages.map((each) => resource.allocate(each * page, stream));
        for (const [i, pointer] of pointers.entries()) if (i >= kept) resource.deallocate(pointer, (pages[i] as number) * page, stream);
        return pointers;
      });
    }

    /** Plans passes of these pages, and keeps the first block of one. Returns its address. */
    planAndKeep(pages: readonly number[]): number {
      this.resource.record();
      this.pass(pages);
      return this.pass(pages, 1)[0] as number;
    }

    [Symbol.dispose](): void {
      this.resource.dispose();
      this.stream.dispose();
      this.fallback.dispose();
    }
  }

  test('go back when the resource ends, once, and nothing is freed into them then', () => {
    using program = new Descending();
    const { resource, stream } = program;
    const kept = [2, 4, 8].map((pages) => program.planAndKeep([pages]));
    expect(resource.statistics()).toMatchObject({ plannedAllocations: 3, upstreamBlocks: 3 });
    expect(program.givenBytes).toBe(14 * page);
    const elsewhere = resource.allocate(page, stream);
    resource.dispose();
    expect(program.givenBytes).toBe(0);
    expect(resource.statistics()).toMatchObject({ plannedAllocations: 0, reservedBytes: 0 });
    for (const [i, pointer] of kept.entries()) {
      expect(() => resource.deallocate(pointer, ([2, 4, 8][i] as number) * page, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    }
    resource.deallocate(elsewhere, page, stream);
    expect(program.fallback.statistics().allocatedBytes).toBe(0);
    // Only what the upstream refused would be tried again.
    resource.dispose();
  });

  test('do not cost the current plan its block while something is live in them', () => {
    using program = new Descending();
    const { resource, stream } = program;
    const kept = program.planAndKeep([8]);
    resource.record();
    program.pass([8]);
    program.pass([8]);
    const { growths } = resource.statistics();
    for (let i = 0; i < 3; i++) program.pass([8]);
    expect(resource.statistics()).toMatchObject({ growths, upstreamBlocks: 2 });
    resource.deallocate(kept, 8 * page, stream);
    expect(resource.statistics().reservedBytes).toBe(16 * page);
    // Nothing is returned that has more bytes than may go.
    expect(resource.trim(stream, { bytesToKeep: 10 * page })).toBe(0);
    expect(resource.trim(stream, { bytesToKeep: 8 * page })).toBe(8 * page);
  });

  test('have places of which the next plan knows nothing', () => {
    using program = new Descending();
    const { resource, stream } = program;
    program.pass([1, 2, 3]);
    program.pass([1, 2, 3]);
    resource.record();
    program.pass([6, 6]);
    resource.begin();
    const pointers = [resource.allocate(6 * page, stream), resource.allocate(6 * page, stream)];
    expect(resource.statistics().fallbackAllocations).toBe(5);
    const first = Math.min(...pointers);
    for (let at = 1; at < 12; at++) {
      if (at === 6) continue;
      expect(() => resource.deallocate(first + at * page, 6 * page, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    }
    for (const pointer of pointers) resource.deallocate(pointer, 6 * page, stream);
  });

  test('may come while a greater plan is made, and then serve nothing', () => {
    using program = new Descending();
    const { resource, stream } = program;
    program.pass([4]);
    program.meanwhile = () => {
      resource.end();
      resource.record();
      resource.begin();
      resource.deallocate(resource.allocate(16 * page, stream), 16 * page, stream);
      resource.end();
    };
    resource.begin();
    resource.deallocate(resource.allocate(4 * page, stream), 4 * page, stream);
    expect(resource.statistics()).toMatchObject({ plans: 2, reservedBytes: 4 * page });
    expect([...program.given.values()]).toEqual([4 * page]);
    const [pointer] = program.pass([16]);
    expect(program.given).toEqual(new Map([[pointer, 16 * page]]));
    expect(resource.statistics()).toMatchObject({ reservedBytes: 16 * page, upstreamBlocks: 1 });
  });
});
