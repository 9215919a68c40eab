/**
 * What a policy for deallocation events costs in time on the device, in simulated time: streams that could run side by side wait for each
 * other when memory changes hands. docs/design/061 has the figures; `CISTERN_OVERLAP=all` prints them.
 */
import { expect, test } from 'vitest';
import { CudaMemoryResource, GiB, MiB, OutOfMemoryError, PoolMemoryResource, Stream } from '../../src/index.js';
import { randomNumbers } from '../support/logged-calls.js';
import { TimedDevice } from '../support/timed-device.js';

type Policy = 'eager' | 'deferred';

interface Case {
  readonly streams: number;
  /** How many pieces of work the host may be ahead of a stream. */
  readonly depth: number;
  /** The pool's memory over the peak of what is in use. */
  readonly ratio: number;
  /** How many buffers a stream has in use at the same time. */
  readonly live: number;
}

const steps = 4000;
const microsecondsOfLaunch = 3;

interface Run {
  readonly microseconds: number;
  readonly peakBytes: number;
  readonly reservedBytes: number;
}

/** Random work under a maximum; `undefined` if memory runs out. */
function run({ streams: count, depth, live }: Case, deallocationEvents: Policy, maximumBytes?: number): Run | undefined {
  using upstream = new CudaMemoryResource();
  using pool = new PoolMemoryResource(upstream, { initialBytes: maximumBytes, maximumBytes, deallocationEvents });
  const streams = Array.from({ length: count }, () => new Stream({ nonBlocking: true }));
  const held = streams.map((): [number, number][] => []);
  const queued = streams.map((): number[] => []);
  const next = randomNumbers(7);
  const device = new TimedDevice();
  let liveBytes = 0;
  let peakBytes = 0;
  try {
    for (let step = 0; step < steps; step++) {
      const at = next() % count;
      const [stream, mine, ends] = [streams[at], held[at], queued[at]] as [Stream, [number, number][], number[]];
      if (mine.length === live) {
        const [[pointer, bytes]] = mine.splice(next() % live, 1) as [[number, number]];
        pool.deallocate(pointer, bytes, stream);
        liveBytes -= bytes;
      }
      // 0.5 to 8 MiB, each power of two as often.
      const bytes = (8 * MiB) >> (next() % 5);
      mine.push([pool.allocate(bytes, stream), bytes]);
      liveBytes += bytes;
      peakBytes = Math.max(peakBytes, liveBytes);
      ends.push(device.launch(stream, 5 + (next() % 60), microsecondsOfLaunch));
      if (ends.length > depth) device.now = Math.max(device.now, ends[ends.length - 1 - depth] as number);
    }
    return { microseconds: device.end, peakBytes, reservedBytes: pool.reservedBytes };
  } catch (error) {
    if (error instanceof OutOfMemoryError) return undefined;
    throw error;
  } finally {
    for (const [at, mine] of held.entries()) for (const [pointer, bytes] of mine) pool.deallocate(pointer, bytes, streams[at] as Stream);
    device[Symbol.dispose]();
    for (const stream of streams) stream.dispose();
  }
}

/** How long the device takes, over how long it takes with memory for everything. */
function slowdownOf(each: Case, deallocationEvents: Policy): number {
  const free = run(each, deallocationEvents, GiB) as Run;
  const { microseconds } = run(each, deallocationEvents, Math.ceil(each.ratio * free.peakBytes)) ?? { microseconds: Number.NaN };
  return microseconds / free.microseconds;
}

const all = [2, 4, 8].flatMap((streams) =>
  [2, 8, 32].flatMap((depth) => [1, 1.1, 1.25, 1.5, 2, 4].flatMap((ratio) => [1, 4].map((live) => ({ streams, depth, ratio, live })))),
);

test.runIf(process.env['CISTERN_OVERLAP'] === 'all')(
  'figures',
  () => {
    for (const each of all) {
      const [eager, deferred] = [slowdownOf(each, 'eager'), slowdownOf(each, 'deferred')];
      console.log(
        JSON.stringify({
          ...each,
          eager: Number(eager.toFixed(3)),
          deferred: Number(deferred.toFixed(3)),
          ratioOfBoth: Number((deferred / eager).toFixed(3)),
        }),
      );
    }
    for (const streams of [2, 4, 8]) {
      for (const live of [1, 4]) {
        const grown = (policy: Policy) => {
          const { microseconds, peakBytes, reservedBytes } = run({ streams, depth: 8, ratio: 0, live }, policy) as Run;
          return { milliseconds: Math.round(microseconds / 1000), reservedOverPeak: Number((reservedBytes / peakBytes).toFixed(2)) };
        };
        console.log(JSON.stringify({ streams, live, growing: { eager: grown('eager'), deferred: grown('deferred') } }));
      }
    }
    expect(all.length).toBeGreaterThan(0);
  },
  600_000,
);

test('with memory for everything, no stream waits for another under either policy', () => {
  const each = { streams: 4, depth: 8, ratio: 16, live: 2 };
  expect([slowdownOf(each, 'eager'), slowdownOf(each, 'deferred')]).toEqual([1, 1]);
});

test('with two streams, "deferred" loses less than a twentieth to "eager"', () => {
  for (const ratio of [1.25, 1.5, 2]) {
    const each = { streams: 2, depth: 8, ratio, live: 4 };
    expect(slowdownOf(each, 'deferred') / slowdownOf(each, 'eager')).toBeLessThan(1.05);
  }
});

test('with eight streams and little memory, "deferred" is slower, which is why it is not the default', () => {
  const each = { streams: 8, depth: 8, ratio: 1.5, live: 4 };
  const ratio = slowdownOf(each, 'deferred') / slowdownOf(each, 'eager');
  expect(ratio).toBeGreaterThan(1.1);
  expect(ratio).toBeLessThan(1.4);
});
