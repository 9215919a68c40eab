import { describe, expect, test } from 'vitest';
import { appendEvents } from '../../../src/tools/formats/event-columns.js';
import type { RecordedRun } from '../../../src/tools/formats/recorded-run.js';
import { RunEstimator } from '../../../src/tools/replay/index.js';
import { AllocationProjection } from '../../../src/tools/replay/project-allocations.js';
import { RunWriter } from '../report/runs.js';

const MiB = 2 ** 20;

interface Step {
  readonly activations: number;
  readonly scores?: number;
}

/** Weights that stay, and a step on a stream of its own. */
function program({ activations, scores = 0 }: Step, stream = '0x10'): RecordedRun {
  const run = new RunWriter()
    .beginPhase('step')
    .allocate(0x1000, 4 * MiB, { stream, thread: '7', stack: 'load (a.ts:1:1)' })
    .label(0x1000, 'weights')
    .allocate(0x10_000_000, activations, { stream: '0x20', stack: 'step (a.ts:2:1)' });
  if (scores > 0) run.allocate(0x20_000_000, scores).free(0x20_000_000, scores);
  return run
    .free(0x10_000_000, activations)
    .endPhase('step')
    .free(0x1000, 4 * MiB, { stream })
    .finish();
}

const linear = (value: number) => ({ run: program({ activations: value * MiB + 512 }), value });
const square = (value: number) => ({ run: program({ activations: value * MiB, scores: 8192 * value * value }), value });

describe('peakLiveBytes', () => {
  test('follows the line through two logs, whatever their order', () => {
    for (const samples of [
      [linear(8), linear(16)],
      [linear(16), linear(8)],
    ]) {
      const estimator = new RunEstimator(samples);
      expect(estimator.peakLiveBytes(64)).toBe(68 * MiB + 512);
      expect(estimator.peakLiveBytes(12)).toBe(16 * MiB + 512);
      expect(estimator.peakLiveBytes(16)).toBe(20 * MiB + 512);
    }
  });

  test('follows a parabola if three logs show that a line misses', () => {
    const three = new RunEstimator([square(8), square(16), square(32)]);
    expect(three.peakLiveBytes(64)).toBe(4 * MiB + 64 * MiB + 8192 * 64 * 64);
    const four = new RunEstimator([square(8), square(16), square(24), square(32)]);
    expect(four.peakLiveBytes(100)).toBe(4 * MiB + 100 * MiB + 8192 * 100 * 100);
    expect(new RunEstimator([square(8), square(16)]).peakLiveBytes(64)).toBeLessThan(three.peakLiveBytes(64));
  });

  test('a line stays a line though sizes are rounded up to pages', () => {
    const rounded = (value: number) => ({ run: program({ activations: Math.ceil((value * 100_000) / 4096) * 4096 }), value });
    const { peakLiveBytes } = new RunEstimator([rounded(8), rounded(16), rounded(32)]).sources[2] as { peakLiveBytes: number };
    const estimate = new RunEstimator([rounded(8), rounded(16), rounded(32)]).peakLiveBytes(320);
    expect(Math.abs(estimate - (4 * MiB + 10 * (peakLiveBytes - 4 * MiB)))).toBeLessThan(10 * 4096);
  });

  test('what shrinks keeps a byte', () => {
    const shrinking = (value: number) => ({ run: program({ activations: 1000 - value * 100 }), value });
    expect(new RunEstimator([shrinking(1), shrinking(2)]).peakLiveBytes(50)).toBe(4 * MiB + 1);
  });
});

test('sources and check say what is known', () => {
  const estimator = new RunEstimator([square(32), square(8), square(16)]);
  expect(estimator.sources.map(({ value }) => value)).toEqual([8, 16, 32]);
  const largest = 4 * MiB + 32 * MiB + 8192 * 32 * 32;
  // The line through the other two gives 8192 · (64 + 24 · (32 - 8)) for the scores.
  expect(estimator.check()).toEqual({
    source: 'run.cistern',
    value: 32,
    peakLiveBytes: largest,
    estimatedBytes: 4 * MiB + 32 * MiB + 8192 * (64 + 24 * 24),
  });
  expect(new RunEstimator([linear(1), linear(2)]).check()).toBeUndefined();
});

test('largestValue is the last that fits', () => {
  const estimator = new RunEstimator([linear(8), linear(16)]);
  const value = estimator.largestValue(1000 * MiB) as number;
  expect(value).toBe(995);
  expect(estimator.peakLiveBytes(value)).toBeLessThanOrEqual(1000 * MiB);
  expect(estimator.peakLiveBytes(value + 1)).toBeGreaterThan(1000 * MiB);
  expect(estimator.largestValue(5 * MiB + 512)).toBe(1);
  expect(estimator.largestValue(5 * MiB + 511)).toBeUndefined();
  const constant = new RunEstimator([
    { run: program({ activations: 100 }), value: 1 },
    { run: program({ activations: 100 }), value: 2 },
  ]);
  expect(constant.largestValue(5 * MiB)).toBe(Number.POSITIVE_INFINITY);
});

test('run gives the whole log, which can be replayed', () => {
  const run = new RunEstimator([square(8), square(16), square(32)]).run(64);
  expect(run).toMatchObject({ source: 'estimate at 64', layers: [{ name: 'pool' }] });
  const projection = new AllocationProjection(run.source, run, undefined);
  appendEvents(run, projection);
  const log = projection.finish({ damage: undefined, skippedRecordCount: 0 });
  expect(log).toMatchObject({ allocationCount: 3, unfreedCount: 0, peakLiveBytes: 4 * MiB + 64 * MiB + 8192 * 64 * 64, threads: ['7'] });
  expect(log.streams).toEqual(['0x10', '0x20']);
  // Phase, weights with their label, activations and scores, and the end of all of these.
  expect([...run.kinds]).toEqual([8, 1, 10, 1, 1, 2, 2, 9, 2]);
  expect(run.labels[run.seconds[2] as number]).toBe('weights');
  expect(run.stacks[run.stackOf[3] as number]).toBe('step (a.ts:2:1)');
});

test('nothing overlaps in the estimated log', () => {
  const run = new RunEstimator([linear(1), linear(2)]).run(1000);
  const live = [1, 3].map((event) => [run.firsts[event] as number, run.seconds[event] as number] as const);
  const [[first, bytes], [second]] = live.sort(([a], [b]) => a - b) as [readonly [number, number], readonly [number, number]];
  expect(first + bytes).toBeLessThanOrEqual(second);
});

describe('refused are', () => {
  test('logs of other operations or streams', () => {
    const longer = { run: program({ activations: MiB, scores: 5 }), value: 3 };
    expect(() => new RunEstimator([linear(1), longer])).toThrow(
      'run.cistern does not repeat run.cistern: operation 2 is an allocation, not a free of allocation 1',
    );
    const elsewhere = { run: program({ activations: MiB }, '0x20'), value: 3 };
    expect(() => new RunEstimator([linear(1), elsewhere])).toThrow('operation 1 is on another stream');
    const cut = new RunWriter().allocate(0x1000, 4 * MiB, { stream: '0x10' }).finish();
    expect(() => new RunEstimator([linear(1), { run: cut, value: 2 }])).toThrow('it has 1 operations, not 4');
  });

  test('streams of other names are the same streams', () => {
    const renamed = { run: program({ activations: 3 * MiB + 512 }, '0x99'), value: 3 };
    expect(new RunEstimator([linear(1), renamed]).peakLiveBytes(2)).toBe(6 * MiB + 512);
  });

  test('too few logs, and values that are none', () => {
    expect(() => new RunEstimator([linear(1)])).toThrow('an estimate needs at least two logs, got 1');
    expect(() => new RunEstimator([linear(1), linear(1)])).toThrow('two logs have the value 1');
    expect(() => new RunEstimator([linear(1), { ...linear(2), value: 0 }])).toThrow('value must be above 0 and at most 2^53 - 1, got 0');
    const estimator = new RunEstimator([linear(1), linear(2)]);
    for (const value of [0, -1, Number.NaN, Number.POSITIVE_INFINITY]) {
      expect(() => estimator.peakLiveBytes(value)).toThrow(`value must be above 0 and at most 2^53 - 1, got ${value}`);
      expect(() => estimator.run(value)).toThrow(`value must be above 0 and at most 2^53 - 1, got ${value}`);
    }
    expect(() => estimator.peakLiveBytes('8' as unknown as number)).toThrow('value must be a number, got "8"');
    expect(() => new RunEstimator([linear(1), linear(2)], { layer: 'arena' })).toThrow('has no layer "arena"');
  });
});
