import { existsSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ArgumentRangeError, ArgumentTypeError, MiB, OutOfMemoryError } from '../../../src/index.js';
import { type AllocationSequence, type Plan, planGraphs } from '../../../src/tools/planning/index.js';
import { sequenceOfLog } from '../../../src/tools/planning/sequences.js';
import { readAllocationLog } from '../../../src/tools/replay/index.js';

const traces = new URL('../../../../shared/traces/', import.meta.url);

/** Steps on one stream: a size, or the number of an allocation that is freed, as `~number`. */
function steps(...all: readonly number[]): AllocationSequence {
  const sizes = all.filter((step) => step >= 0);
  let next = 0;
  const operations = all.map((step) => (step >= 0 ? next++ : step));
  return { operations, sizes, streams: sizes.map(() => 0), freeStreams: sizes.map((_, a) => (all.includes(~a) ? 0 : -1)) };
}

/**
 * PyTorch's rules, told again without any of our structures: a segment is a list of pieces, and everything
 * is looked at each time.
 */
function reserved(graphs: readonly AllocationSequence[]): number {
  interface Piece {
    bytes: number;
    owner: string | undefined;
  }
  const segments: { readonly key: string; readonly pieces: Piece[]; readonly bytes: number }[] = [];
  const up = (bytes: number, step: number) => Math.ceil(bytes / step) * step;
  for (const [g, { operations, sizes, streams }] of graphs.entries()) {
    for (const operation of Array.from(operations)) {
      if (operation < 0) {
        release(`${g}:${~operation}`);
        continue;
      }
      const bytes = up(sizes[operation] as number, 512);
      const isSmall = bytes <= 2 ** 20;
      const key = `${streams[operation]} ${isSmall}`;
      let found = segments
        .filter((segment) => segment.key === key)
        .flatMap(({ pieces }) => pieces.map((piece) => ({ pieces, piece })))
        .filter(({ piece }) => piece.owner === undefined && piece.bytes >= bytes)
        .reduce<{ pieces: Piece[]; piece: Piece } | undefined>(
          (best, each) => (best === undefined || each.piece.bytes < best.piece.bytes ? each : best),
          undefined,
        );
      if (found === undefined) {
        const large = bytes < 10 * 2 ** 20 ? 20 * 2 ** 20 : up(bytes, 2 ** 21);
        const piece: Piece = { bytes: isSmall ? 2 ** 21 : large, owner: undefined };
        const pieces = [piece];
        segments.push({ key, pieces, bytes: piece.bytes });
        found = { pieces, piece };
      }
      const { pieces, piece } = found;
      const rest = piece.bytes - bytes;
      if (isSmall ? rest >= 512 : rest > 2 ** 20) {
        piece.bytes = bytes;
        pieces.splice(pieces.indexOf(piece) + 1, 0, { bytes: rest, owner: undefined });
      }
      piece.owner = `${g}:${operation}`;
    }
    for (let a = 0; a < sizes.length; a++) release(`${g}:${a}`);
  }
  return segments.reduce((sum, { bytes }) => sum + bytes, 0);

  function release(owner: string): void {
    for (const { pieces } of segments) {
      for (const piece of pieces) if (piece.owner === owner) piece.owner = undefined;
      for (let i = pieces.length - 1; i > 0; i--) {
        const [before, after] = [pieces[i - 1] as Piece, pieces[i] as Piece];
        if (before.owner !== undefined || after.owner !== undefined) continue;
        before.bytes += after.bytes;
        pieces.splice(i, 1);
      }
    }
  }
}

/** The most that is live at once, each allocation rounded up. */
function fullest({ operations, sizes }: AllocationSequence, alignment: number): number {
  const bytes = Array.from(sizes, (size) => Math.ceil(size / alignment) * alignment);
  const live = new Set<number>();
  return Array.from(operations).reduce((most, operation) => {
    if (operation >= 0) live.add(operation);
    else live.delete(~operation);
    return Math.max(
      most,
      [...live].reduce((sum, a) => sum + (bytes[a] as number), 0),
    );
  }, 0);
}

/** Whether two allocations of a plan on one stream share bytes while both are live; and where it ends. */
function checkPlaces({ operations, sizes, offsets }: Plan): { conflicts: number; end: number } {
  const live = new Set<number>();
  let conflicts = 0;
  let end = 0;
  for (const operation of Array.from(operations)) {
    if (operation < 0) {
      live.delete(~operation);
      continue;
    }
    const [from, to] = [offsets[operation] as number, (offsets[operation] as number) + (sizes[operation] as number)];
    for (const other of live) {
      const start = offsets[other] as number;
      if (from < start + (sizes[other] as number) && start < to) conflicts++;
    }
    end = Math.max(end, Math.ceil(to / 256) * 256);
    live.add(operation);
  }
  return { conflicts, end };
}

describe('the memory of graphs', () => {
  test('that PyTorch would reserve depends on the order of the captures, and planned memory does not', () => {
    const graphs = [1, 2, 3].map((scale) => steps(scale * 12 * MiB, scale * 30 * MiB, ~0, ~1));
    const ascending = planGraphs(graphs);
    const descending = planGraphs(graphs.toReversed());
    expect(ascending.graphs.map(({ poolBytes }) => poolBytes / MiB)).toEqual([42, 84, 126]);
    expect([ascending.poolsBytes, ascending.plannedApartBytes, ascending.plannedBytes].map((bytes) => bytes / MiB)).toEqual([
      252, 252, 126,
    ]);
    // The second graph can use the first one's 30 MiB for its 24 MiB, and needs 60 MiB more; and so on.
    expect(ascending.sharedPoolBytes / MiB).toBe(42 + 60 + 90);
    expect(descending.sharedPoolBytes / MiB).toBe(126);
    expect(descending).toMatchObject({ plannedBytes: ascending.plannedBytes, poolsBytes: ascending.poolsBytes });
  });

  test('counts what a graph never frees, and gives it to the next', () => {
    const { graphs, sharedPoolBytes } = planGraphs([steps(1000, 3 * MiB), steps(1000, 3 * MiB, ~0, 2000)]);
    expect(sharedPoolBytes).toBe(22 * MiB);
    expect(graphs).toMatchObject([
      { allocationCount: 2, peakLiveBytes: 3 * MiB + 1000, lowerBoundBytes: 3 * MiB + 1024, plannedBytes: 3 * MiB + 1024 },
      { allocationCount: 3, peakLiveBytes: 3 * MiB + 2000, lowerBoundBytes: 3 * MiB + 2048 },
    ]);
  });

  test('of different streams lies in different segments', () => {
    const sequence: AllocationSequence = { operations: [0, ~0, 1], sizes: [512, 512], streams: [0, 1], freeStreams: [0, -1] };
    expect(planGraphs([sequence]).poolsBytes).toBe(4 * MiB);
  });

  test('fills a segment to its last 512 bytes', () => {
    expect(planGraphs([steps(MiB, MiB - 512, 1)]).poolsBytes).toBe(2 * MiB);
    expect(planGraphs([steps(MiB, MiB - 512, 513)]).poolsBytes).toBe(4 * MiB);
  });

  test('is what a computation in another way gives, whatever the graphs', () => {
    const limits = fc.constantFrom(1, 512, MiB - 512, MiB, MiB + 1, 9.5 * MiB, 10 * MiB - 512, 10 * MiB, 11 * MiB);
    const size = fc.oneof(limits, fc.integer({ min: 1, max: 2000 }), fc.integer({ min: 1, max: 40 * MiB }));
    const step = fc.oneof(
      { weight: 3, arbitrary: fc.tuple(fc.constant(true), size) },
      { weight: 2, arbitrary: fc.tuple(fc.constant(false), fc.nat()) },
    );
    const graph = fc.array(step, { maxLength: 40 }).map((drawn) => {
      const live: number[] = [];
      const all: number[] = [];
      let count = 0;
      for (const [isAllocation, value] of drawn) {
        if (isAllocation) {
          live.push(count++);
          all.push(value);
        } else if (live.length > 0) all.push(~(live.splice(value % live.length, 1)[0] as number));
      }
      return steps(...all);
    });
    fc.assert(
      fc.property(fc.array(graph, { minLength: 1, maxLength: 4 }), (graphs) => {
        const found = planGraphs(graphs, { timeLimitMilliseconds: 0 });
        expect(found.sharedPoolBytes).toBe(reserved(graphs));
        expect(found.graphs.map(({ poolBytes }) => poolBytes)).toEqual(graphs.map((each) => reserved([each])));
        expect(found.graphs.map(({ lowerBoundBytes }) => lowerBoundBytes)).toEqual(graphs.map((each) => fullest(each, 256)));
        expect(found.graphs.map(({ peakLiveBytes }) => peakLiveBytes)).toEqual(graphs.map((each) => fullest(each, 1)));
        const checks = found.graphs.map(({ plan }) => checkPlaces(plan));
        expect(checks).toEqual(found.graphs.map(({ plannedBytes }) => ({ conflicts: 0, end: plannedBytes })));
        expect(found.plannedBytes).toBe(Math.max(...checks.map(({ end }) => end)));
        expect(found.plannedApartBytes).toBe(checks.reduce((sum, { end }) => sum + end, 0));
        expect(found.poolsBytes).toBe(graphs.reduce((sum, each) => sum + reserved([each]), 0));
      }),
      { numRuns: 300 },
    );
  });

  test.skipIf(!existsSync(traces))(
    `of a real capture, as it is and for other batches, needs one region (skipped without the folder of traces)`,
    async () => {
      const log = await readAllocationLog(new URL('torch-sglang-capture.csv.gz', traces));
      const sequence = sequenceOfLog(log);
      const graphs = [1, 2, 3, 4].map((scale) => ({ ...sequence, sizes: Array.from(sequence.sizes, (size) => size * scale) }));
      const found = planGraphs([log, ...graphs]);
      expect(found.graphs[0]).toMatchObject({ allocationCount: log.allocationCount, peakLiveBytes: log.peakLiveBytes });
      expect(found.sharedPoolBytes).toBe(reserved([sequence, ...graphs]));
      expect(found.graphs.map(({ poolBytes }) => poolBytes)).toEqual([sequence, ...graphs].map((each) => reserved([each])));
      for (const { plan } of found.graphs) expect(checkPlaces(plan)).toEqual({ conflicts: 0, end: plan.totalBytes });
      expect(found.lowerBoundBytes).toBe(fullest(graphs[3] as AllocationSequence, 256));
      expect(found.plannedBytes).toBe(found.lowerBoundBytes);
    },
  );

  test('is refused if there is no graph, or no plan within the maximum', () => {
    expect(() => planGraphs([])).toThrow(ArgumentRangeError);
    expect(() => planGraphs({} as never)).toThrow(ArgumentTypeError);
    expect(() => planGraphs([3 as never])).toThrow(ArgumentTypeError);
    expect(() => planGraphs([steps(4096)], { maximumBytes: 1024 })).toThrow(OutOfMemoryError);
  });
});
