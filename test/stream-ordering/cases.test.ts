/**
 * The cases of docs/stream-order-protocol.md against the four implementations of the rule: who gets freed memory, and what it must wait for. The
 * outcomes are read from the page.
 */

import { readFileSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterAll, describe, expect, test } from 'vitest';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CudaMemoryResource,
  type DeallocationEvents,
  type DeallocationFence,
  type DevicePointer,
  Event,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
  type StreamHold,
  set,
} from '../../src/index.js';
import { type Plan, PlannedMemoryResource } from '../../src/plans/index.js';
import { none } from '../../src/suballocation/blocks.js';
import { ThreadSafeArenaMemoryResource } from '../../src/workers/index.js';
import { checkOrderInEachTest } from '../support/order-checked-tests.js';
import { expectWaiting } from '../support/stream-order.js';

const unit = MiB;
const page = readFileSync(new URL('../../docs/stream-order-protocol.md', import.meta.url), 'utf8');

/** A row of the table. */
interface Case {
  readonly program: string;
  readonly steps: readonly string[];
  readonly wantedBy: string;
  /** How many blocks, as one, are wanted. */
  readonly units: number;
  readonly outcomes: Readonly<Record<Column, string>>;
}

type Column = 'eager, deferred' | 'off' | 'graph' | 'plan';

const cases = page
  .split('\n')
  .filter((line) => line.startsWith('| A has'))
  .map((line): Case => {
    const [program, wanted, shared, off, graph, plan] = line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()) as [string, string, string, string, string, string];
    return {
      program: `${program}; by ${wanted}`,
      steps: program.split(', '),
      wantedBy: wanted.slice(-1),
      units: wanted.startsWith('both') ? 2 : 1,
      outcomes: { 'eager, deferred': shared, off, graph, plan },
    };
  });

/** Runs the steps of a case with streams that are held back. */
class Run {
  readonly streams = new Map(['A', 'B', 'C'].map((name) => [name, new Stream({ nonBlocking: true })]));
  readonly #holds = new Map<string, StreamHold | undefined>();
  readonly #events = new Map<string, Event>();
  readonly #blocks = new Map<string, DevicePointer>();
  readonly #resource: MemoryResource;

  constructor(resource: MemoryResource) {
    this.#resource = resource;
  }

  stream(name: string): Stream {
    return this.streams.get(name) as Stream;
  }

  hold(name: string): void {
    this.#holds.set(name, this.stream(name).hold());
  }

  release(name: string): void {
    this.#holds.get(name)?.release();
    this.#holds.set(name, undefined);
  }

  step(text: string): void {
    const [name, verb, ...rest] = text.split(' ') as [string, string, ...string[]];
    const stream = this.stream(name);
    if (verb === 'has' && rest[0] === 'run') {
      this.release(name);
      stream.synchronizeSync();
    } else if (verb === 'has') this.#blocks.set(rest[0] as string, this.#resource.allocate(unit, stream));
    else if (verb === 'uses') set(this.#blocks.get(rest[0] as string) as DevicePointer, 1, 1, unit, stream);
    else if (verb === 'frees') this.#free(name, rest[0] as string, rest.length > 1 ? this.#events.get(name) : undefined);
    else if (verb === 'waits')
      stream.wait(rest.at(-1) === 'event' ? (this.#events.get(rest[1]?.[0] as string) as Event) : this.#recorded(rest[1] as string));
    else if (verb === 'records') this.#recorded(name);
    else if (verb === 'is') this.hold(name);
    else if (verb === 'ends') stream.dispose();
    else throw new Error(`the page has a step that is none: ${text}`);
  }

  /** What the last request gets; `undefined` if nothing. */
  want({ wantedBy, units }: Case): DevicePointer | undefined {
    try {
      return this.#resource.allocate(units * unit, this.stream(wantedBy));
    } catch (error) {
      if (error instanceof OutOfMemoryError) return undefined;
      throw error;
    }
  }

  /** The host would wait for memory that a pool holds back, which is as much as it has. */
  expectNotGiven(one: Case): void {
    const resource = this.#resource;
    if (resource instanceof PoolMemoryResource) expect(resource.heldBackFrom(this.stream(one.wantedBy))).toBe(resource.reservedBytes);
    else expect(this.want(one)).toBeUndefined();
  }

  #free(name: string, block: string, fence: DeallocationFence | undefined): void {
    this.#resource.deallocate(this.#blocks.get(block) as DevicePointer, unit, this.stream(name), fence);
  }

  #recorded(name: string): Event {
    const event = new Event();
    event.record(this.stream(name));
    this.#events.get(name)?.dispose();
    this.#events.set(name, event);
    return event;
  }

  [Symbol.dispose](): void {
    for (const name of this.streams.keys()) this.release(name);
    for (const event of this.#events.values()) event.dispose();
    for (const stream of this.streams.values()) if (!stream.isDisposed) stream.synchronizeSync();
    this.#resource[Symbol.dispose]();
    for (const stream of this.streams.values()) stream.dispose();
  }
}

const upstream = new CudaMemoryResource();
afterAll(() => upstream.dispose());

/** The blocks that a case has at once. */
function mostUnits({ steps, units }: Case): number {
  return Math.max(units, steps.slice(0, 2).filter((step) => / has [xy]$/.test(step)).length);
}

/** A plan of a case: each block where it is free. */
function planOf({ steps, wantedBy, units }: Case): Plan {
  const [operations, sizes, streams, freeStreams, offsets] = [[], [], [], [], []] as [number[], number[], number[], number[], number[]];
  const [names, live]: [string[], Map<string, number>] = [[], new Map()];
  const numberOf = (name: string) => (names.includes(name) ? names.indexOf(name) : names.push(name) - 1);
  const allocate = (name: string, bytes: number) => {
    operations.push(sizes.length);
    sizes.push(bytes);
    streams.push(numberOf(name));
    freeStreams.push(none);
    offsets.push(live.size * unit);
  };
  for (const step of steps) {
    const [, by = '', verb, block = ''] = /^(\w) (has|frees) ([xy])/.exec(step) ?? [];
    if (verb === 'has') {
      allocate(by, unit);
      live.set(block, sizes.length - 1);
    } else if (verb === 'frees') {
      const a = live.get(block) as number;
      operations.push(~a);
      freeStreams[a] = numberOf(by);
      live.delete(block);
    }
  }
  allocate(wantedBy, units * unit);
  const totalBytes = Math.max(...offsets.map((offset, a) => offset + (sizes[a] as number)));
  return {
    operations,
    sizes,
    streams,
    freeStreams,
    offsets,
    alignmentBytes: 256,
    totalBytes,
    lowerBoundBytes: totalBytes,
    isOptimal: true,
    gap: 0,
  };
}

type Make = (one: Case) => MemoryResource;

const pool =
  (deallocationEvents: DeallocationEvents): Make =>
  (one) =>
    new PoolMemoryResource(upstream, { deallocationEvents, initialBytes: mostUnits(one) * unit, maximumBytes: mostUnits(one) * unit });

let arenas = 0;
const arena =
  (deallocationEvents: DeallocationEvents): Make =>
  (one) => {
    const bytes = mostUnits(one) * unit;
    return new ThreadSafeArenaMemoryResource({ name: `cases ${++arenas}`, arenaBytes: bytes, superblockBytes: bytes, deallocationEvents });
  };

const planned: Make = (one) => {
  const resource = new PlannedMemoryResource(upstream, planOf(one), { deviations: 'refuse' });
  resource.begin();
  return resource;
};

const onStreams: readonly (readonly [name: string, column: Column, make: Make])[] = [
  ['a pool, eager', 'eager, deferred', pool('eager')],
  ['a pool, deferred', 'eager, deferred', pool('deferred')],
  ['a pool, off', 'off', pool('off')],
  ['an arena of native threads, eager', 'eager, deferred', arena('eager')],
  ['an arena of native threads, deferred', 'eager, deferred', arena('deferred')],
  ['an arena of native threads, off', 'off', arena('off')],
  ['a plan', 'plan', planned],
];

/** Fails if the stream does not get through. */
async function expectPassing(stream: Stream): Promise<void> {
  const end = performance.now() + 10_000;
  while (!stream.query() && performance.now() < end) await nextTurn();
  expect(stream.query()).toBe(true);
}

describe.each(onStreams)('%s', (name, column, make) => {
  checkOrderInEachTest();

  const able = cases.filter(({ outcomes }) => outcomes[column] !== '—');
  const isNative = name.includes('native');
  // Arenas of native threads ignore the program's events.
  const written = able.filter(({ program }) => !(isNative && program.includes('event')));

  /** An arena of native threads asks no stream, since native code may have ended it: what is held for one stays held. */
  const staysHeld = (one: Case) => isNative && column === 'off' && /A has run|A ends/.test(one.program);
  const rows = written.map((one) => [one.program, staysHeld(one) ? 'not' : one.outcomes[column], one] as const);

  test.each(rows)('%s: %s', async (_program, outcome, one) => {
    for (const held of ['A', 'B', 'C'].filter((each) => each !== one.wantedBy)) {
      using run = new Run(make(one));
      for (const each of run.streams.keys()) run.hold(each);
      for (const step of one.steps) run.step(step);
      if (outcome === 'not') {
        run.expectNotGiven(one);
        continue;
      }
      const pointer = run.want(one);
      expect(pointer).toBeDefined();
      set(pointer as DevicePointer, 2, 1, one.units * unit, run.stream(one.wantedBy));
      for (const each of run.streams.keys()) if (each !== held) run.release(each);
      const waitsFor = outcome === 'at once' ? [] : outcome.replace('for ', '').split(', ');
      if (waitsFor.includes(held)) expectWaiting(run.stream(one.wantedBy));
      else await expectPassing(run.stream(one.wantedBy));
    }
  });
});

describe('a captured graph', () => {
  checkOrderInEachTest();

  const able = cases.filter(({ outcomes }) => outcomes.graph !== '—');

  test.each(able.map((one) => [one.program, one.outcomes.graph, one] as const))('%s: %s', (_program, outcome, one) => {
    const graphs = new GraphMemoryResource(upstream, { maximumBytes: mostUnits(one) * unit });
    using run = new Run(graphs);
    using origin = new Stream({ nonBlocking: true });
    using fork = new Event();
    let isGiven: boolean | undefined;
    const graph = graphs.capture(origin, () => {
      fork.record(origin);
      for (const stream of run.streams.values()) stream.wait(fork);
      for (const step of one.steps) run.step(step);
      isGiven = run.want(one) !== undefined;
      for (const stream of run.streams.values()) {
        fork.record(stream);
        origin.wait(fork);
      }
    });
    graph.dispose();
    expect(isGiven).toBe(outcome !== 'not');
  });
});

test('the page has the cases', () => {
  expect(cases.length).toBeGreaterThan(15);
  expect(new Set(cases.flatMap(({ outcomes }) => Object.values(outcomes)))).toEqual(
    new Set(['at once', 'not', '—', 'for A', 'for B', 'for A, B']),
  );
});
