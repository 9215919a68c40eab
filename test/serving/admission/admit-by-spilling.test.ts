/** How an admitting resource lets memory above it go for requests that wait, with givers that say what they are told to. */
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Helps, RoomGiver } from '../../../src/adaptors/room-for-limits.js';
import { AdmittingResourceAdaptor, type Grant } from '../../../src/serving/index.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';

/** A limit of 1,024 bytes, outside allocations of 256 bytes each, and givers above it. */
class Bed {
  readonly resource: AdmittingResourceAdaptor;
  /** What was allocated outside of all grants. */
  readonly outside: number[] = [];
  /** What each giver was asked for. */
  readonly asked: [name: string, bytes: number][] = [];
  readonly #givers: RoomGiver[] = [];
  #depth = 0;
  deepest = 0;

  constructor(maximumOvertakes = 0) {
    this.resource = new AdmittingResourceAdaptor(new SpyResource(), { limitBytes: 1024, maximumOvertakes });
  }

  allocate(count: number): void {
    for (let i = 0; i < count; i++) this.outside.push(this.resource.allocate(256, stream));
  }

  free(count = 1): void {
    for (const pointer of this.outside.splice(0, count)) this.resource.deallocate(pointer, 256, stream);
  }

  /** @param answer frees what it gives */
  giver(name: string, answer: (bytes: number, helps: Helps) => ReturnType<RoomGiver['giveIfEnough']>): void {
    const giveIfEnough = (bytes: number, helps: Helps) => {
      this.asked.push([name, bytes]);
      this.deepest = Math.max(this.deepest, ++this.#depth);
      const outcome = answer(bytes, helps);
      this.#depth--;
      return outcome;
    };
    const giver = { giveIfEnough, hostRefusal: undefined };
    this.#givers.push(giver);
    this.resource.takeFrom(giver);
  }

  /** Gives what it is asked for. */
  givesAll(name: string): void {
    this.giver(name, (bytes) => {
      this.free(bytes / 256);
      return 'given';
    });
  }

  [Symbol.dispose](): void {
    this.free(this.outside.length);
    this.resource.dispose();
    this.resource.validate();
  }
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
});

afterEach(() => {
  // Nothing waits any more: the timer ends.
  vi.advanceTimersByTime(2000);
  vi.restoreAllMocks();
  vi.useRealTimers();
});

describe('memory above goes for who waits', () => {
  test('as much as the first lacks, and for each that comes to be the first', async () => {
    using bed = new Bed();
    bed.allocate(3);
    using _later = await bed.resource.reserve(256);
    bed.givesAll('above');
    expect(bed.asked).toEqual([]);
    const grant = await bed.resource.reserve(512);
    // Nobody waits any more, so nothing is asked for again.
    expect([bed.asked, bed.outside.length]).toEqual([[['above', 512]], 1]);
    grant.dispose();
    expect(bed.asked).toHaveLength(1);
  });

  test('of several requests at once, as soon as that is possible', async () => {
    using bed = new Bed();
    bed.allocate(4);
    let isPossible = false;
    bed.giver('above', (bytes) => {
      if (!isPossible) return 'lacking';
      bed.free(bytes / 256);
      return 'given';
    });
    const waits = [bed.resource.reserve(512), bed.resource.reserve(256)];
    expect(bed.asked).toEqual([
      ['above', 512],
      ['above', 512],
    ]);
    isPossible = true;
    bed.free();
    const grants = await Promise.all(waits);
    expect(bed.asked.slice(2)).toEqual([
      ['above', 256],
      ['above', 256],
    ]);
    // What the giver frees asks nobody again before it is done.
    expect([bed.deepest, bed.outside.length]).toEqual([1, 1]);
    for (const grant of grants) grant.dispose();
  });

  test('not as another one is served at once', async () => {
    using bed = new Bed(1);
    bed.allocate(3);
    bed.giver('above', () => 'lacking');
    const waiting = bed.resource.reserve(512);
    (await bed.resource.reserve(256)).dispose();
    // Once as the first began to wait, and once as the other gave back.
    expect(bed.asked).toHaveLength(2);
    bed.free();
    (await waiting).dispose();
  });

  test('of the top first, and of each below only if those above it did not give', async () => {
    using bed = new Bed();
    bed.allocate(4);
    bed.givesAll('lowest');
    bed.givesAll('low');
    bed.giver('refusing', () => 'refused');
    bed.giver('lacking', () => 'lacking');
    (await bed.resource.reserve(256)).dispose();
    expect(bed.asked).toEqual([
      ['lacking', 256],
      ['refusing', 256],
      ['low', 256],
    ]);
  });

  test('once, if what was given is not enough after all', async () => {
    using bed = new Bed();
    bed.allocate(4);
    bed.giver('above', () => 'given');
    const waiting = bed.resource.reserve(256);
    expect(bed.asked).toHaveLength(1);
    bed.free();
    (await waiting).dispose();
  });

  test('not for the next, if it was refused and the first still waits', async () => {
    using bed = new Bed(1);
    bed.allocate(3);
    using holding = await bed.resource.reserve(256);
    let isAsked = false;
    bed.giver('above', () => {
      if (isAsked) bed.free();
      return 'refused';
    });
    const [first, passing] = [bed.resource.reserve(512), bed.resource.reserve(256)];
    const before = bed.asked.length;
    isAsked = true;
    // The second passes the first as the giver frees too little.
    holding.giveBack(0);
    expect([(await passing).bytes, bed.asked.length - before]).toEqual([256, 1]);
    isAsked = false;
    bed.free(2);
    (await first).dispose();
    (await passing).dispose();
  });

  test('unless a grant keeps it', async () => {
    using bed = new Bed();
    const grants: Grant[] = [await bed.resource.reserve(256), await bed.resource.reserve(256)];
    const [kept, ended] = grants.map((grant) => grant.run(() => bed.resource.allocate(256, stream))) as [number, number];
    grants[1]?.dispose();
    bed.allocate(1);
    const answers: boolean[] = [];
    bed.giver('above', (_bytes, helps) => {
      answers.push(...[kept, ended, bed.outside[0] as number].map((pointer) => helps(pointer, bed.resource)));
      return 'lacking';
    });
    const waiting = bed.resource.reserve(512);
    expect(answers).toEqual([false, true, true]);
    for (const pointer of [kept, ended]) bed.resource.deallocate(pointer, 256, stream);
    (await waiting).dispose();
    grants[0]?.dispose();
  });
});

test('the process does not stay alive for who waits without anything above', async () => {
  const setIntervals = vi.spyOn(globalThis, 'setInterval');
  using bed = new Bed();
  bed.allocate(4);
  const waiting = bed.resource.reserve(256);
  expect(setIntervals.mock.results.map(({ value }) => value.hasRef())).toEqual([false]);
  bed.free();
  (await waiting).dispose();
});

test('the process stays alive only while what was refused may be tried again', async () => {
  const setIntervals = vi.spyOn(globalThis, 'setInterval');
  const isKept = () => setIntervals.mock.results[0]?.value.hasRef();
  using bed = new Bed();
  let answer: ReturnType<RoomGiver['giveIfEnough']> = 'lacking';
  bed.giver('above', () => answer);
  using holding = await bed.resource.reserve(768);
  bed.allocate(1);
  const waiting = bed.resource.reserve(512);
  expect(isKept()).toBe(false);
  for (const [next, keeps] of [
    ['refused', true],
    ['lacking', false],
    ['refused', true],
    ['given', false],
    ['refused', true],
  ] as const) {
    answer = next;
    holding.giveBack(0);
    expect([next, isKept()]).toEqual([next, keeps]);
  }
  holding.giveBack(512);
  (await waiting).dispose();
  expect([isKept(), setIntervals.mock.calls.length]).toEqual([false, 1]);
});
