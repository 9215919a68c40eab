import { describe, expect, test } from 'vitest';
import { createResourceStack, KiB, MiB } from '../../../src/index.js';
import { everyKind } from '../../../src/tools/every-kind.js';
import { type FitOptions, type FittedMaximum, fitLog, generateLog, readAllocationLog, replayLog } from '../../../src/tools/replay/index.js';
import { maximumLayers } from '../../../src/tools/replay/specification-maximum.js';
import { logText, readText, row } from '../formats/logs.js';

const columns = await readAllocationLog(generateLog('dataframe', { events: 6_000 }), { name: 'dataframe' });
const streams = await readAllocationLog(generateLog('multi-stream', { events: 8_000 }), { name: 'multi-stream' });
/** Two of 1000 bytes, one of which is freed before one of 3000 is allocated. */
const small = await readText(
  logText(
    row('allocate', 1, 1000),
    row('allocate', 5, 1000),
    row('free', 1, 1000),
    row('allocate', 9, 3000),
    row('free', 5, 1000),
    row('free', 9, 3000),
  ),
);

/** The number of allocations that fail in a replay through a specification. */
function failures(log: typeof columns, specification: string, options: FitOptions = {}): number {
  return replayLog(log, () => createResourceStack(specification), { repeat: 1, streams: options.streams ?? 'log' }).failures;
}

describe('the result of fitLog', () => {
  test.each([
    ['pool(host)', (bytes: number) => `pool(host, maximumBytes=${bytes})`],
    ['limiting is put around a leaf: host', (bytes: number) => `limiting(host, limitBytes=${bytes})`],
    ['arena(host)', (bytes: number) => `arena(host, arenaBytes=${bytes})`],
    [
      'statistics(pool(host, deallocationEvents=off))',
      (bytes: number) => `statistics(pool(host, maximumBytes=${bytes}, deallocationEvents=off))`,
    ],
    ['binning(pool(host), bins=[64KiB])', (bytes: number) => `binning(pool(host, maximumBytes=${bytes}), bins=[64KiB])`],
    ['binning(host, bins=[64KiB])', (bytes: number) => `binning(limiting(host, limitBytes=${bytes}), bins=[64KiB])`],
  ])('completes the log, and 256 bytes less do not: %s', (text, withMaximum) => {
    const specification = text.split(': ').at(-1) as string;
    const result = fitLog(columns, specification, { repeat: 1 });
    const growing = (result.maxima.asNeeded ?? result.maxima.atOnce)?.bytes as number;
    expect(failures(columns, withMaximum(growing))).toBe(0);
    expect(failures(columns, result.fitted as string)).toBe(0);
    expect(failures(columns, withMaximum(growing - 256))).toBeGreaterThan(0);
    const smallest = Math.min(growing, result.maxima.atOnce?.bytes ?? Infinity);
    expect(result).toMatchObject({
      resource: specification,
      streams: 'log',
      operations: columns.eventCount,
      peakLiveBytes: columns.peakLiveBytes,
      smallestMaximumBytes: smallest,
      overheadRatio: smallest / columns.peakLiveBytes - 1,
    });
    expect(smallest).toBeGreaterThanOrEqual(columns.peakLiveBytes);
  });

  test.each(['eager', 'deferred', 'off'])('also holds on several streams, with deallocationEvents=%s', (events) => {
    const result = fitLog(streams, `pool(host, deallocationEvents=${events})`, { repeat: 1 });
    const growing = result.maxima.asNeeded?.bytes as number;
    expect(failures(streams, `pool(host, maximumBytes=${growing}, deallocationEvents=${events})`)).toBe(0);
    expect(failures(streams, `pool(host, maximumBytes=${growing - 256}, deallocationEvents=${events})`)).toBeGreaterThan(0);
  });

  test('also tries taking the memory at once, and says which way needs less', () => {
    const { maxima, taking, fitted, smallestMaximumBytes, overheadRatio } = fitLog(columns, 'statistics(pool(host))', { repeat: 1 });
    const { asNeeded, atOnce } = maxima as { asNeeded: FittedMaximum; atOnce: FittedMaximum };
    expect(atOnce.bytes).toBeLessThan(asNeeded.bytes);
    expect({ taking, smallestMaximumBytes, overheadRatio }).toEqual({
      taking: 'at-once',
      smallestMaximumBytes: atOnce.bytes,
      overheadRatio: atOnce.overheadRatio,
    });
    expect(atOnce.resource).toBe(fitted);
    const [, initial, maximum] = /^statistics\(pool\(host, initialBytes=(\w+), maximumBytes=(\w+)\)\)$/.exec(
      atOnce.resource,
    ) as RegExpExecArray;
    expect(initial).toBe(maximum);
    expect(failures(columns, atOnce.resource)).toBe(0);
    const less = atOnce.bytes - 256;
    // A pool that takes too little at once fails as well.
    expect(failures(columns, `pool(host, initialBytes=${less}, maximumBytes=${less})`)).toBeGreaterThan(0);
    expect(asNeeded.resource).toMatch(/^statistics\(pool\(host, maximumBytes=\w+\)\)$/);
  });

  test.each([
    ['pool(host, initialBytes=1KiB)', 'sets its own initial size'],
    ['fallback(pool(host), fallback=pinned-host)', 'has branches'],
    ['host', 'has no pool'],
  ])('has only one way to take memory: %s, which %s', (specification) => {
    expect(fitLog(small, specification, { repeat: 1 })).toMatchObject({ taking: 'as-needed', maxima: { atOnce: null } });
  });

  test('knows that an arena takes all of its memory at once', () => {
    expect(fitLog(small, 'arena(host)', { repeat: 1 })).toMatchObject({ taking: 'at-once', maxima: { asNeeded: null } });
  });

  test('takes memory as needed if both ways need the same', async () => {
    const log = await readText(logText(row('allocate', 1, 1000), row('free', 1, 1000)));
    const { taking, maxima } = fitLog(log, 'pool(host)', { repeat: 1 });
    expect([taking, maxima.asNeeded?.bytes, maxima.atOnce?.bytes]).toEqual(['as-needed', 1024, 1024]);
  });

  test('agrees with a calculation by hand', () => {
    expect(fitLog(small, 'host', { repeat: 1 })).toMatchObject({
      fitted: 'limiting(host, limitBytes=4KiB)',
      peakLiveBytes: 4000,
      smallestMaximumBytes: 4 * KiB,
      overheadRatio: 4096 / 4000 - 1,
    });
    // A monotonic resource reuses nothing until everything is freed: 1024 + 1024 + 3072 bytes.
    expect(fitLog(small, 'monotonic(host, initialBytes=1KiB, growthFactor=1)', { repeat: 1 }).smallestMaximumBytes).toBe(5 * KiB);
  });

  test.each([
    ['statistics(tracking(host))', 'statistics(tracking(limiting(host, limitBytes=4KiB)))'],
    [
      'fixed-size(pool(host), blockBytes=4KiB, blocksToPreallocate=0)',
      'fixed-size(pool(host, maximumBytes=8KiB), blockBytes=4KiB, blocksToPreallocate=0)',
    ],
  ])('is the maximum of the innermost resource that can have one: %s', (specification, fitted) => {
    expect(fitLog(small, specification, { repeat: 1 }).fitted).toBe(fitted);
  });

  test('depends on the streams', () => {
    const fits = (['log', 'single'] as const).map((mode) => fitLog(streams, 'arena(host)', { repeat: 1, streams: mode }));
    expect(fits.map(({ streams: mode }) => mode)).toEqual(['log', 'single']);
    expect(fits[0]?.smallestMaximumBytes).not.toBe(fits[1]?.smallestMaximumBytes);
  });

  test('starts from the initial size if that is more than is needed', () => {
    expect(fitLog(small, 'pool(host, initialBytes=1MiB)', { repeat: 1 })).toMatchObject({
      fitted: 'pool(host, initialBytes=1MiB, maximumBytes=1MiB)',
      smallestMaximumBytes: MiB,
    });
  });

  test('is a limit around the whole if there are branches', () => {
    expect(fitLog(small, 'fallback(host, fallback=pinned-host)', { repeat: 1 }).fitted).toBe(
      'limiting(fallback(host, fallback=pinned-host), limitBytes=4KiB)',
    );
  });

  test('is null if no maximum is enough', () => {
    const result = fitLog(small, 'fixed-size(host, blockBytes=2KiB)', { repeat: 1 });
    expect(result).toMatchObject({ fitted: null, taking: null, smallestMaximumBytes: null, overheadRatio: null });
    expect(result.maxima).toEqual({ asNeeded: null, atOnce: null });
    expect(result.nanosecondsPerOperation).toEqual({ smallest: null, unlimited: null });
  });

  test('is nothing for a log that needs nothing', async () => {
    const log = await readText(logText(row('allocate', 1, 0), row('free', 1, 0)));
    expect(fitLog(log, 'host', { repeat: 1 })).toMatchObject({ smallestMaximumBytes: 0, overheadRatio: null });
  });
});

describe('fitLog', () => {
  test('measures both alternately, and counts every replay', () => {
    const told: { replays: number; left: number }[] = [];
    const result = fitLog(small, 'pool(host)', { repeat: 5, onProgress: (progress) => told.push(progress) });
    const { smallest, unlimited } = result.nanosecondsPerOperation;
    for (const time of [smallest, unlimited]) expect(time?.median).toBeGreaterThanOrEqual(time?.minimum as number);
    expect(told.map(({ replays }) => replays)).toEqual(Array.from(told, (_, i) => i + 1));
    expect(result.replays).toBe(told.length);
    expect(told.slice(-10, -1).every(({ left }) => left > 0)).toBe(true);
    expect(told.at(-1)?.left).toBeLessThanOrEqual(1);
  });

  test('takes a specification as data, and returns it as text', () => {
    expect(fitLog(small, { kind: 'pool', upstream: { kind: 'host' } }, { repeat: 1 }).resource).toBe('pool(host)');
  });

  test.each([
    ['pool(host, maximumBytes=1MiB)', /^pool already has a maximum, which is what the search looks for: leave maximumBytes out$/],
    ['limiting(pool(host), limitBytes=1MiB)', /^limiting already has a maximum.*: leave limiting out$/],
    ['fallback(host, fallback=arena(host, arenaBytes=1MiB))', /^arena already has a maximum/],
    ['pool(hots)', /^there is no resource kind "hots"/],
  ])('refuses %s', (specification, message) => {
    expect(() => fitLog(small, specification)).toThrow(message);
  });

  test('refuses a log that cannot be replayed', async () => {
    expect(() => fitLog(small, 'host', { repeat: 0 })).toThrow('repeat must be an integer from 1 to 2^53 - 1, got 0');
    expect(() => fitLog(small, 'host', { streams: 'two' as 'log' })).toThrow('streams must be');
    const empty = await readText(logText());
    expect(() => fitLog(empty, 'host')).toThrow('has no events to replay');
  });

  test('knows every option that sets a maximum', () => {
    const withMaximum = everyKind.filter(
      // The maximum of a cache applies to a run of it, and a replay has no runs. The size of a global
      // arena is for all workers of the process. A replay captures no graphs. A driver rounds the maximum of
      // its pool to blocks of its own, so that a limit around the pool is what is searched for.
      ({ name, options }) =>
        !['binning', 'caching', 'cuda-async', 'global-arena', 'graph', 'pinned-async', 'thread-safe-arena'].includes(name) &&
        ('maximumBytes' in options || 'limitBytes' in options || 'arenaBytes' in options),
    );
    for (const { name } of withMaximum) expect(maximumLayers({ kind: name })).toHaveLength(1);
    expect(withMaximum.length).toBeGreaterThan(3);
  });
});

describe('a time limit', () => {
  test('ends the search with the smallest maximum found, which completes the log', () => {
    const complete = fitLog(columns, 'pool(host)', { repeat: 1 });
    expect(complete.isComplete).toBe(true);
    const hasty = fitLog(columns, 'arena(host)', { repeat: 1, timeLimitMilliseconds: 0 });
    expect(hasty.isComplete).toBe(false);
    if (hasty.fitted !== null) expect(failures(columns, hasty.fitted)).toBe(0);
  });

  test.each([-1, Number.NaN, '1' as never])('of %s is refused', (timeLimitMilliseconds) => {
    expect(() => fitLog(small, 'host', { timeLimitMilliseconds })).toThrow(/^timeLimitMilliseconds must be a number from 0/);
  });
});
