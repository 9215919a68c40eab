import { existsSync, readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { StreamWait } from '../../../src/plans/sequence.js';
import { appendEvents } from '../../../src/tools/formats/event-columns.js';
import { EventKind } from '../../../src/tools/formats/index.js';
import {
  type AllocationSequence,
  formatPlan,
  type OrderedSequence,
  type Plan,
  parsePlan,
  planAllocations,
  readMinimallocCsv,
  writeMinimallocCsv,
} from '../../../src/tools/planning/index.js';
import { Lifetimes } from '../../../src/tools/planning/lifetimes.js';
import { lowerBound } from '../../../src/tools/planning/lower-bound.js';
import { searchWithin } from '../../../src/tools/planning/search-within.js';
import { sectionsOf } from '../../../src/tools/planning/sections.js';
import { readAllocationLog } from '../../../src/tools/replay/index.js';
import { AllocationProjection } from '../../../src/tools/replay/project-allocations.js';
import { sequenceOf } from '../../support/plans.js';
import { allocate, free, runOf } from '../formats/runs.js';

const traces = new URL('../../../../shared/traces/', import.meta.url);
const hasTraces = existsSync(traces);

/** Which allocations may not share bytes, computed from the definition of stream order, step by step. */
function mustDiffer({ operations, streams, freeStreams, waits = [] }: OrderedSequence): (a: number, b: number) => boolean {
  // reached[i][j]: operation i is ordered before operation j.
  const nodes: { stream: number; operation?: number; wait?: number; record?: number }[] = [];
  for (let i = 0; i <= operations.length; i++) {
    waits.forEach((wait, number) => {
      waits.forEach((of, record) => {
        if (of.recordedAt === i && (of.recordedAfter ?? 0) === number) nodes.push({ stream: of.recordedOn, record });
      });
      if (wait.at === i) nodes.push({ stream: wait.stream, wait: number });
    });
    const operation = operations[i];
    if (operation === undefined) continue;
    nodes.push({ stream: (operation >= 0 ? streams[operation] : freeStreams[~operation]) as number, operation });
  }
  const before = nodes.map(() => new Set<number>());
  nodes.forEach((node, j) => {
    for (let i = 0; i < j; i++) {
      const other = nodes[i] as (typeof nodes)[number];
      if (other.stream !== node.stream && (other.record === undefined || other.record !== node.wait)) continue;
      before[j]?.add(i);
      for (const each of before[i] ?? []) before[j]?.add(each);
    }
  });
  const at = (operation: number) => nodes.findIndex((node) => node.operation === operation);
  const precedes = (a: number, b: number) => (freeStreams[a] as number) >= 0 && before[at(b)]?.has(at(~a)) === true;
  return (a, b) => !precedes(a, b) && !precedes(b, a);
}

function expectValid(of: OrderedSequence, plan: Pick<Plan, 'offsets' | 'alignmentBytes' | 'totalBytes'>): void {
  const differ = mustDiffer(of);
  for (let a = 0; a < of.sizes.length; a++) {
    const start = plan.offsets[a] as number;
    expect(start % plan.alignmentBytes).toBe(0);
    expect(start + (of.sizes[a] as number)).toBeLessThanOrEqual(plan.totalBytes);
    for (let b = 0; b < a; b++) {
      const other = plan.offsets[b] as number;
      const shares = start < other + (of.sizes[b] as number) && other < start + (of.sizes[a] as number);
      if (shares) expect(differ(a, b), `${a} and ${b} share bytes`).toBe(false);
    }
  }
}

/** The same for a long plan with one stream. */
function expectNoOverlap({ operations, sizes, offsets, streams }: Plan): void {
  expect(Math.max(...new Set(Array.from(streams)))).toBe(0);
  // By offset.
  const live: number[] = [];
  let conflicts = 0;
  for (const operation of Array.from(operations)) {
    if (operation < 0) {
      live.splice(live.indexOf(~operation), 1);
      continue;
    }
    const start = offsets[operation] as number;
    const found = live.findIndex((other) => (offsets[other] as number) > start);
    const at = found < 0 ? live.length : found;
    const below = live[at - 1];
    const above = live[at];
    if (below !== undefined && (offsets[below] as number) + (sizes[below] as number) > start) conflicts++;
    if (above !== undefined && start + (sizes[operation] as number) > (offsets[above] as number)) conflicts++;
    live.splice(at, 0, operation);
  }
  expect(conflicts).toBe(0);
}

/** The greatest sum of sizes of allocations that pairwise must not share bytes. */
function heaviestClique(of: OrderedSequence): number {
  const differ = mustDiffer(of);
  let most = 0;
  for (let set = 1; set < 2 ** of.sizes.length; set++) {
    const members = Array.from(of.sizes, (_, a) => a).filter((a) => (set & (1 << a)) !== 0);
    if (members.some((a, i) => members.slice(0, i).some((b) => !differ(a, b)))) continue;
    most = Math.max(
      most,
      members.reduce((sum, a) => sum + (of.sizes[a] as number), 0),
    );
  }
  return most;
}

/** The smallest total of any plan: in one of the orders, each allocation lies as low as it can. */
function smallestTotal(of: OrderedSequence): number {
  const differ = mustDiffer(of);
  const offsets = new Map<number, number>();
  const endOf = (a: number) => (offsets.get(a) as number) + (of.sizes[a] as number);
  const place = (unplaced: readonly number[]): number => {
    if (unplaced.length === 0) return Math.max(...Array.from(offsets.keys(), endOf));
    const totals = unplaced.map((a) => {
      const others = Array.from(offsets.keys()).filter((b) => differ(a, b));
      const bytes = of.sizes[a] as number;
      const isFree = (start: number) => others.every((b) => start + bytes <= (offsets.get(b) as number) || endOf(b) <= start);
      offsets.set(a, Math.min(...[0, ...others.map(endOf)].filter(isFree)));
      const total = place(unplaced.filter((b) => b !== a));
      offsets.delete(a);
      return total;
    });
    return Math.min(...totals);
  };
  return place(Array.from(of.sizes, (_, a) => a));
}

/** Allocations that fill a number of pages completely for some time: a rectangle that is cut up. */
function cutUp(pages: number, cuts: readonly { which: number; isInTime: boolean; at: number }[]): OrderedSequence {
  const pieces = [{ from: 0, to: 24, pages }];
  for (const { which, isInTime, at } of cuts) {
    const [piece] = pieces.splice(which % pieces.length, 1) as [(typeof pieces)[number]];
    const { from, to } = piece;
    const length = isInTime ? to - from : piece.pages;
    const part = 1 + (at % Math.max(1, length - 1));
    if (part >= length) pieces.push(piece);
    else if (isInTime) pieces.push({ ...piece, to: from + part }, { ...piece, from: from + part });
    else pieces.push({ ...piece, pages: part }, { ...piece, pages: length - part });
  }
  pieces.sort((a, b) => a.from - b.from);
  const words: string[] = [];
  for (let time = 0; time <= 24; time++) {
    pieces.forEach(({ to }, number) => {
      if (to === time) words.push(`-${number}`);
    });
    pieces.forEach(({ from, pages }) => {
      if (from === time) words.push(`+${pages}`);
    });
  }
  return sequenceOf(words.join(' '));
}

/** Random operations on several streams with waits. */
function sequences(streamCount: number, steps: number): fc.Arbitrary<OrderedSequence> {
  const step = fc.tuple(fc.nat(9), fc.nat(streamCount - 1), fc.nat(streamCount - 1), fc.integer({ min: 1, max: 9 }));
  return fc.array(step, { minLength: 1, maxLength: steps, size: 'max' }).map((all) => {
    const words: string[] = [];
    const live: { number: number; stream: number }[] = [];
    let count = 0;
    for (const [kind, stream, other, pages] of all) {
      if (kind < 5) {
        words.push(`+${pages}@${stream}`);
        live.push({ number: count++, stream });
      } else if (kind < 8 && live.length > 0) {
        const [freed] = live.splice(pages % live.length, 1);
        words.push(`-${freed?.number}@${kind === 7 ? other : freed?.stream}`);
      } else if (stream !== other) {
        words.push(`w${stream}<${other}`);
      }
    }
    if (count === 0) words.push('+1@0');
    return sequenceOf(words.join(' '));
  });
}

describe('a plan', () => {
  test('lets allocations share bytes if one is freed before the other is requested', () => {
    const plan = planAllocations(sequenceOf('+4 +2 -0 +4 -1 +2'));
    expect(plan).toMatchObject({ totalBytes: 6 * 256, lowerBoundBytes: 6 * 256, isOptimal: true, gap: 0 });
    expect(plan.offsets[2]).toBe(plan.offsets[0]);
  });

  test('gives bytes to another stream only after a wait', () => {
    expect(planAllocations(sequenceOf('+4@0 -0@0 +4@1 -1@1')).totalBytes).toBe(8 * 256);
    expect(planAllocations(sequenceOf('+4@0 -0@0 w1<0 +4@1 -1@1')).totalBytes).toBe(4 * 256);
    expect(planAllocations(sequenceOf('+4@0 w1<0 -0@0 +4@1 -1@1')).totalBytes).toBe(8 * 256);
    expect(planAllocations(sequenceOf('+4@0 -0@0 w1<0 w2<1 +4@2 -1@2')).totalBytes).toBe(4 * 256);
  });

  test('follows an order that passes through a stream without allocations', () => {
    const plan = planAllocations(sequenceOf('+4@0 -0@0 w2<0 w1<2 +4@1 -1@1'));
    expect(plan).toMatchObject({ totalBytes: 4 * 256, lowerBoundBytes: 4 * 256, isOptimal: true });
    expect(planAllocations(sequenceOf('+4@0 -0@0 w1<2 w2<0 +4@1 -1@1')).totalBytes).toBe(8 * 256);
  });

  test('of a recording numbers the streams that only wait after those that allocate', () => {
    const on = (stream: number) => ({ stream });
    const run = runOf(
      [
        allocate(4096, 1024, on(1)),
        free(4096, 1024, on(1)),
        { kind: EventKind.eventRecord, stream: 1, first: 7, second: 0 },
        { kind: EventKind.eventWait, stream: 0, first: 7, second: 0 },
        { kind: EventKind.eventRecord, stream: 0, first: 8, second: 0 },
        { kind: EventKind.eventWait, stream: 2, first: 8, second: 0 },
        allocate(4096, 1024, on(2)),
      ],
      { streams: ['0x1', '0x2', '0x3'] },
    );
    const plan = planAllocations(run);
    expect([Array.from(plan.streams), plan.totalBytes]).toEqual([[0, 1], 1024]);
  });

  test('of a recording is the same whether the whole of it was read or its allocations', () => {
    const events = [
      { kind: EventKind.eventRecord, stream: 0, first: 4, second: 0 },
      allocate(4096, 1024),
      free(4096, 1024),
      { kind: EventKind.failure, first: 0, second: 64 },
      { kind: EventKind.eventRecord, stream: 0, first: 5, second: 0 },
      { kind: EventKind.eventWait, stream: 2, first: 5, second: 0 },
      { kind: EventKind.eventRecord, stream: 2, first: 6, second: 0 },
      { kind: EventKind.eventWait, stream: 1, first: 6, second: 0 },
      allocate(0, 0),
      allocate(8192, 1024, { stream: 1 }),
    ];
    const totals = (all: typeof events) => {
      const run = runOf(all, { streams: ['0x5', '0x6', '0x7'] });
      const projection = new AllocationProjection('run', run, undefined);
      appendEvents(run, projection);
      return [planAllocations(run).totalBytes, planAllocations(projection.finish({ damage: undefined, skippedRecordCount: 0 })).totalBytes];
    };
    expect(totals(events)).toEqual([1024, 1024]);
    for (const left of [4, 5, 6, 7]) expect(totals(events.toSpliced(left, 1))).toEqual([2048, 2048]);
  });

  test('of a recording keeps the default streams of threads apart', () => {
    const events = [allocate(4096, 1024), free(4096, 1024), allocate(4096, 1024, { thread: 1 })];
    expect(planAllocations(runOf(events, { streams: ['0x2'], threads: ['1', '2'] })).totalBytes).toBe(2048);
  });

  test('gives bytes to the stream that frees them', () => {
    expect(planAllocations(sequenceOf('+4@0 -0@1 +4@1 -1@1')).totalBytes).toBe(4 * 256);
    expect(planAllocations(sequenceOf('+4@0 -0@1 +4@0 -1@0')).totalBytes).toBe(8 * 256);
  });

  test('follows stream order for any operations, and is never below the lower bound', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 3 }).chain((streams) => sequences(streams, 40)),
        (of) => {
          const plan = planAllocations(of, { timeLimitMilliseconds: 5 });
          expectValid(of, plan);
          expect(plan.totalBytes).toBeGreaterThanOrEqual(plan.lowerBoundBytes);
          if (plan.totalBytes === plan.lowerBoundBytes) expect(plan.isOptimal).toBe(true);
        },
      ),
      { numRuns: 150 },
    );
  });

  test('takes a wait for one that comes before a record only if it did', () => {
    // Stream 1 waits for stream 0, and stream 2 for an event of stream 1.
    const of = { operations: [0, ~0, 1], sizes: [256, 256], streams: [0, 2], freeStreams: [0, -1] };
    const waits = (record: { recordedAt: number; recordedAfter?: number }) => [
      { at: 2, stream: 1, recordedOn: 0, recordedAt: 2 },
      { at: 2, stream: 2, recordedOn: 1, ...record },
    ];
    const overlaps = (record: { recordedAt: number; recordedAfter?: number }) =>
      new Lifetimes({ ...of, waits: waits(record) }, 256).overlaps(1, 0);
    expect([overlaps({ recordedAt: 2 }), overlaps({ recordedAt: 2, recordedAfter: 0 })]).toEqual([true, true]);
    expect(overlaps({ recordedAt: 1, recordedAfter: 0 })).toBe(true);
    // The two numbers contradict each other: the earlier counts.
    expect(overlaps({ recordedAt: 1, recordedAfter: 1 })).toBe(true);
    expect(overlaps({ recordedAt: 2, recordedAfter: 1 })).toBe(false);
  });

  test('knows which allocations must not share bytes', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 4 }).chain((streams) => sequences(streams, 30)),
        (of) => {
          const lifetimes = new Lifetimes(of, 256);
          const differ = mustDiffer(of);
          for (let a = 0; a < of.sizes.length; a++) {
            for (let b = 0; b < of.sizes.length; b++) {
              if (a !== b) expect(lifetimes.overlaps(a, b)).toBe(differ(a, b));
              // Large passes are placed by these numbers alone.
              if ((lifetimes.starts[b] as number) >= (lifetimes.ends[a] as number)) expect(differ(a, b)).toBe(false);
            }
          }
        },
      ),
      { numRuns: 2000 },
    );
  });

  test('has a lower bound that no plan can be below, and that is reached without waits', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 3 }).chain((streams) => sequences(streams, 18)),
        (of) => {
          if (of.sizes.length > 11) return;
          const bound = lowerBound(new Lifetimes(of, 256));
          const clique = heaviestClique(of);
          expect(bound).toBeLessThanOrEqual(clique);
          const isPlain = of.waits?.length === 0 && Array.from(of.freeStreams).every((by, a) => by < 0 || by === of.streams[a]);
          if (isPlain) expect(bound).toBe(clique);
        },
      ),
      { numRuns: 1000 },
    );
  });

  test('is proven to be the best if no smaller one exists', () => {
    // Five allocations in a ring of overlaps, of which no more than 3 units are live at once.
    const of = readMinimallocCsv(
      'id,lower,upper,size\na,0,3,256\nb,2,5,512\nc,4,8,256\nd,7,10,512\ne,0,2,512\nf,5,7,512\ng,8,10,256\n',
    ).sequence;
    const plan = planAllocations(of);
    expectValid(of, plan);
    expect(plan.isOptimal).toBe(true);
  });

  test('is found by exact search if one exists, and only then', () => {
    fc.assert(
      fc.property(sequences(1, 16), (of) => {
        if (of.sizes.length > 6) return;
        const lifetimes = new Lifetimes(of, 256);
        const problem = sectionsOf(lifetimes, lifetimes.durations);
        const best = smallestTotal(of);
        const offsets = searchWithin(problem, best, () => false) as Float64Array;
        expectValid(of, { offsets, alignmentBytes: 256, totalBytes: best });
        expect(searchWithin(problem, best - 256, () => false)).toBe('impossible');
      }),
      { numRuns: 300 },
    );
  });

  test('is found by exact search if there is exactly as much space as needed', () => {
    const cut = fc.record({ which: fc.nat(1000), isInTime: fc.boolean(), at: fc.nat(1000) });
    fc.assert(
      fc.property(fc.array(cut, { minLength: 4, maxLength: 24, size: 'max' }), (cuts) => {
        const of = cutUp(24, cuts);
        const lifetimes = new Lifetimes(of, 256);
        const offsets = searchWithin(sectionsOf(lifetimes, lifetimes.durations), 24 * 256, () => false) as Float64Array;
        expectValid(of, { offsets, alignmentBytes: 256, totalBytes: 24 * 256 });
      }),
      { numRuns: 300 },
    );
  });

  test('takes the largest size of several runs at each place', () => {
    const plan = planAllocations([sequenceOf('+4 +2 -0 +4 -1 -2'), sequenceOf('+2 +8 -0 +5 -1 -2')]);
    expect(Array.from(plan.sizes)).toEqual([4 * 256, 8 * 256, 5 * 256]);
    expect(() => planAllocations([sequenceOf('+4 +2 -0'), sequenceOf('+4 -0 +2')])).toThrow(
      /log 1 differs from log 0 in its operations, at 1/,
    );
  });

  test('of several runs relies on an order between streams only if all runs have it', () => {
    const ordered = sequenceOf('+4@0 -0@0 w1<0 +4@1 -1@1');
    const other = sequenceOf('+4@0 -0@0 +4@1 w1<0 -1@1');
    expect(planAllocations([ordered, ordered]).totalBytes).toBe(4 * 256);
    expect(planAllocations([ordered, other]).totalBytes).toBe(8 * 256);
    expect(planAllocations([ordered, { ...ordered, waits: [] }]).totalBytes).toBe(8 * 256);
  });

  test('keeps to an alignment and a maximum', () => {
    const plan = planAllocations(sequenceOf('+1 +1'), { alignmentBytes: 4096 });
    expect(plan).toMatchObject({ totalBytes: 8192, alignmentBytes: 4096 });
    expect(() => planAllocations(sequenceOf('+1 +1'), { maximumBytes: 256 })).toThrow(/no plan within 256 B was found/);
    expect(() => planAllocations(sequenceOf('+1'), { alignmentBytes: 3 })).toThrow(RangeError);
    expect(() => planAllocations(sequenceOf('+1'), { timeLimitMilliseconds: -1 })).toThrow(RangeError);
    expect(() => planAllocations(5 as never)).toThrow(TypeError);
    expect(() => planAllocations(sequenceOf('+1'), { timeLimitMilliseconds: Number.POSITIVE_INFINITY })).toThrow(RangeError);
    expect(() => planAllocations(sequenceOf('+1'), { onAttempt: 5 as never })).toThrow(TypeError);
  });

  test('is refused for operations that are no integers, or contradict each other', () => {
    const of: AllocationSequence = { operations: [0, ~0], sizes: [256], streams: [0], freeStreams: [0] };
    expect(planAllocations(of).totalBytes).toBe(256);
    for (const changes of [
      { operations: [0, Number.NaN] },
      { operations: undefined },
      { sizes: [1.5] },
      { sizes: [Number.POSITIVE_INFINITY] },
      { sizes: [2 ** 53] },
      { streams: [0.5] },
      { times: [0] },
      { times: [0, 0.5] },
      { streams: [1e8] },
      { freeStreams: [-1] },
      { waits: 5 },
      { waits: [undefined] },
      { waits: [{ at: 3, stream: 1, recordedOn: 0, recordedAt: 0 }] },
      { waits: [{ at: 1, stream: 1, recordedOn: 0, recordedAt: 2 }] },
      { waits: [{ at: 1, stream: -1, recordedOn: 0, recordedAt: 0 }] },
      { waits: [{ at: 1, stream: 1, recordedOn: 1e8, recordedAt: 0 }] },
      { waits: [{ at: 1, stream: 1, recordedOn: 0, recordedAt: 0, recordedAfter: 1 }] },
    ]) {
      const wrong = { ...of, ...changes } as AllocationSequence;
      expect(() => planAllocations(wrong)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_PLAN' }));
    }
  });

  test('is valid with offsets of any size', () => {
    const of = sequenceOf('+3 +5 +2 -0 +4 -1 +6 -2 +1 -3 -4 -5');
    const large = { ...of, sizes: Array.from(of.sizes, (bytes) => bytes * 2 ** 40) };
    const plan = planAllocations(large);
    expectValid(large, plan);
    expect(plan.totalBytes).toBeGreaterThanOrEqual(plan.lowerBoundBytes);
    expect(parsePlan(formatPlan(plan)).totalBytes).toBe(plan.totalBytes);
  });

  test('of a training step wastes nothing, even if there is no time to search', () => {
    // Each layer keeps an activation and needs a workspace; the way back frees them last to first.
    const layers = Array.from({ length: 20 }, (_, i) => ({ kept: 1 + ((i * 37) % 31), workspace: 1 + ((i * 53) % 11) }));
    const forward = layers.flatMap(({ kept, workspace }, i) => [`+${kept}`, `+${workspace}`, `-${2 * i + 1}`]);
    const backward = layers.toReversed().flatMap(({ kept }, step) => {
      const gradient = 2 * layers.length + step;
      return [`+${kept}`, `-${2 * (layers.length - 1 - step)}`, ...(step > 0 ? [`-${gradient - 1}`] : [])];
    });
    const of = sequenceOf([...forward, ...backward].join(' '));
    const plan = planAllocations(of, { timeLimitMilliseconds: 0 });
    expectValid(of, plan);
    expect(plan.gap).toBe(0);
  });

  test('takes no longer for a stream that waits for what was recorded long ago', () => {
    const count = 150_000;
    const waits: StreamWait[] = [];
    for (let i = 0; i < count; i++) waits.push({ at: i, stream: 0, recordedOn: 2, recordedAt: i, recordedAfter: i });
    for (let i = 0; i < count; i++) waits.push({ at: count, stream: 1, recordedOn: 0, recordedAt: 0, recordedAfter: 0 });
    const operations = Int32Array.from({ length: count + 2 }, (_, i) => (i <= count ? i : ~0));
    const streams = Int32Array.from({ length: count + 1 }, (_, i) => (i === count ? 1 : 2));
    const freeStreams = Int32Array.from(streams, (_, i) => (i === 0 ? 2 : -1));
    const lifetimes = new Lifetimes({ operations, sizes: new Float64Array(count + 1).fill(256), streams, freeStreams, waits }, 256);
    expect(lifetimes.seenBefore(1, count + 2)).toEqual([0, 0, 0]);
    expect(lifetimes.seenBefore(0, 1000)?.[2]).toBe(999);
    expect(lowerBound(lifetimes)).toBe(256 * (count + 1));
  });

  test('of a thousand layers, each on eight streams that fork and join, needs the memory of one', () => {
    const streamCount = 8;
    const operations: number[] = [];
    const streams: number[] = [];
    const waits: StreamWait[] = [];
    const wait = (stream: number, recordedOn: number) =>
      waits.push({ at: operations.length, stream, recordedOn, recordedAt: operations.length, recordedAfter: waits.length });
    for (let layer = 0; layer < 1000; layer++) {
      for (let stream = 1; stream < streamCount; stream++) wait(stream, 0);
      for (let stream = 0; stream < streamCount; stream++) operations.push(streams.push(stream) - 1);
      for (let stream = 0; stream < streamCount; stream++) operations.push(~(streams.length - streamCount + stream));
      for (let stream = 1; stream < streamCount; stream++) wait(0, stream);
    }
    const plan = planAllocations({
      operations: Int32Array.from(operations),
      sizes: new Float64Array(streams.length).fill(1024),
      streams: Int32Array.from(streams),
      freeStreams: Int32Array.from(streams),
      waits,
    });
    expect([plan.totalBytes, plan.lowerBoundBytes]).toEqual([8192, 8192]);
  });

  test('of nothing is empty', () => {
    const nothing: AllocationSequence = { operations: [], sizes: [], streams: [], freeStreams: [] };
    expect(planAllocations(nothing)).toMatchObject({ totalBytes: 0, lowerBoundBytes: 0, isOptimal: true, gap: 0 });
  });
});

describe('a plan as text', () => {
  const plan = planAllocations(sequenceOf('+4@0 +2@1 -0@0 +4@0 -1@1'));

  test('is read as it was written', () => {
    const read = parsePlan(formatPlan(plan));
    for (const column of ['operations', 'sizes', 'streams', 'freeStreams', 'offsets'] as const)
      expect(Array.from(read[column])).toEqual(Array.from(plan[column]));
    expect(read).toMatchObject({ totalBytes: plan.totalBytes, isOptimal: plan.isOptimal, lowerBoundBytes: plan.lowerBoundBytes });
  });

  test('of a newer cistern is read without the fields that are not known, unless its version is another', () => {
    const written = JSON.parse(formatPlan(plan));
    expect(parsePlan(JSON.stringify({ ...written, waits: [{ at: 1 }], madeBy: 'cistern 9' }))).toEqual(parsePlan(formatPlan(plan)));
    expect(() => parsePlan(JSON.stringify({ ...written, version: 2 }), 'new.json')).toThrow('new.json has version 2; this reads version 1');
  });

  test('is refused if it is invalid', () => {
    const change = (changes: object) => formatPlan({ ...plan, ...changes } as Plan);
    const rewrite = (changes: object) => JSON.stringify({ ...JSON.parse(formatPlan(plan)), ...changes });
    expect(parsePlan(rewrite({}))).toMatchObject({ totalBytes: plan.totalBytes });
    const code = 'ERR_CISTERN_INVALID_PLAN';
    for (const text of [
      '{',
      '{}',
      'null',
      change({ alignmentBytes: 3 }),
      change({ offsets: [0, 0, 0] }),
      change({ offsets: [0, 1] }),
      change({ operations: [0, 0] }),
      change({ totalBytes: 256 }),
      change({ alignmentBytes: 3 * 2 ** 32 }),
      change({ lowerBoundBytes: plan.totalBytes + 256 }),
      change({ streams: [0, 1e8, 0] }),
      rewrite({ offsets: null }),
      rewrite({ offsets: { length: 1e12 } }),
      rewrite({ offsets: plan.offsets.length }),
      rewrite({ offsets: ['0', '1024', '0'] }),
      rewrite({ sizes: [null, [512], 1024] }),
    ]) {
      expect(() => parsePlan(text)).toThrow(expect.objectContaining({ code }));
    }
  });
});

describe('a problem of MiniMalloc', () => {
  test('is solved and written with offsets', () => {
    const problem = readMinimallocCsv('id,lower,upper,size\nx,5,9,512\ny,0,5,512\n');
    expect(writeMinimallocCsv(problem, planAllocations(problem.sequence))).toBe('id,lower,upper,size,offset\nx,5,9,512,0\ny,0,5,512,0\n');
    expect(() => readMinimallocCsv('id,lower,upper,size\nx,5,5,512\n')).toThrow(/line 2/);
    expect(() => readMinimallocCsv('a,b\n')).toThrow(/line 1/);
  });

  // E needs more time than a test should take.
  test.skipIf(!hasTraces).each(['A', 'B', 'C', 'D', 'E'])('%s fits into 1 MiB', { timeout: 120_000 }, (name) => {
    const { sequence: of } = readMinimallocCsv(readFileSync(new URL(`planning/${name}.1048576.csv`, traces), 'utf8'));
    const plan = planAllocations(of, { maximumBytes: 2 ** 20, timeLimitMilliseconds: 100_000 });
    expect(plan.totalBytes).toBeLessThanOrEqual(2 ** 20);
    expectValid(of, plan);
  });
});

describe('a real log', () => {
  test.skipIf(!hasTraces).each(['torch-ddp-training', 'torch-owlv2-inference', 'torch-sglang-capture', 'arrow-etl'])(
    '%s is planned without waste',
    { timeout: 120_000 },
    async (name) => {
      const log = await readAllocationLog(new URL(`${name}.csv.gz`, traces));
      const plan = planAllocations(log, { timeLimitMilliseconds: 100_000 });
      expect(plan.gap).toBeLessThan(0.005);
      expectNoOverlap(plan);
    },
  );
});
